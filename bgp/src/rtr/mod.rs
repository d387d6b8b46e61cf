//! A router's end of the protocol by which a validator tells it who may originate what (RPKI to
//! router: RFC 8210, version 1; RFC 6810, version 0).
//!
//! | module | what it is |
//! |---|---|
//! | `pdu` | octets to protocol data units and back |
//! | `session` | one router's end as a state machine, and the entries that it holds |
//! | `client` | the shell: a connection, times, and who is told of new entries |
//!
//! A state machine has neither clock nor socket. What was agreed stays over lost connections until
//! it expires; a new set takes its place at once, and never in parts.

#[cfg(feature = "speaker")]
mod client;
#[cfg(feature = "speaker")]
mod pdu;
#[cfg(feature = "speaker")]
mod session;

#[cfg(feature = "speaker")]
use std::time::Duration;

#[cfg(feature = "speaker")]
pub use client::{RtrHandle, RtrState, RtrStatus};

/// The port without encryption (RFC 8210 §9).
const PORT: u16 = 323;

/// A validator's cache, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtrCache {
    /// Name or address of the machine.
    pub host: String,
    /// TCP port, normally 323.
    pub port: u16,
    /// From one set of entries to the next question.
    pub refresh: RtrTime,
    /// From a failure to the next try, at most.
    pub retry: RtrTime,
    /// From the last set until its entries are used no more.
    pub expire: RtrTime,
}

/// A time of ours, which the cache may replace by its own unless it is kept (RFC 8210 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrTime {
    /// Seconds.
    pub seconds: u32,
    /// What the cache says does not count.
    pub keep: bool,
}

impl RtrTime {
    /// The time that counts when the cache has said `theirs`, in seconds.
    #[cfg(feature = "speaker")]
    fn or(self, theirs: Option<u32>) -> Duration {
        let theirs = theirs.filter(|_| !self.keep);
        Duration::from_secs(theirs.unwrap_or(self.seconds).into())
    }
}

impl RtrCache {
    /// A cache with the times that RFC 8210 §6 proposes: an hour, ten minutes, two hours.
    #[must_use]
    pub const fn new(host: String) -> Self {
        const fn time(seconds: u32) -> RtrTime {
            let keep = false;
            RtrTime { seconds, keep }
        }
        Self {
            host,
            port: PORT,
            refresh: time(3600),
            retry: time(600),
            expire: time(7200),
        }
    }
}
