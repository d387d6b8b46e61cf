//! From the feed to messages: batches of routes that share attributes, in as few UPDATEs as possible.

use std::sync::Arc;

use bytes::BytesMut;
use caracal_model::net::{Family, Prefix};
use tracing::warn;

use crate::fsm::Conn;
use crate::speaker::feed::{OutBatch, OutFeed};
use crate::wire::format::Format;
use crate::wire::update::{encode_announce, encode_end_of_rib, encode_withdraw};

/// How many prefixes are taken from the feed at once: a few full messages, and no long hold of its lock.
const BATCH: usize = 4096;

/// The routes for the peer during one session.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Where the core puts them.
    pub(super) feed: Arc<OutFeed>,
    /// The session's connection.
    pub(super) conn: Conn,
    format: Format,
}

impl Outgoing {
    pub(super) fn new(conn: Conn, format: Format) -> Self {
        Self {
            feed: Arc::new(OutFeed::new()),
            conn,
            format,
        }
    }

    /// Appends the next batch to `out`; false when there was none.
    pub(super) fn pack(&self, out: &mut BytesMut) -> bool {
        let batch = self.feed.take(BATCH);
        if batch.is_empty() {
            return false;
        }
        self.encode(&batch, out);
        true
    }

    fn encode(&self, batch: &OutBatch, out: &mut BytesMut) {
        self.withdraw(&batch.withdrawn, out);
        for (attrs, prefixes) in &batch.announced {
            for family in self.format.families.iter() {
                let of_family = |prefix: &Prefix| prefix.family() == family;
                if !prefixes.iter().any(of_family) {
                    continue;
                }
                if let Err(error) = encode_announce(family, attrs, prefixes, &self.format, out) {
                    // What the peer last heard of them is no longer true.
                    let count = prefixes.iter().filter(|prefix| of_family(prefix)).count();
                    warn!(%error, count, "routes cannot be announced and are withdrawn instead");
                    encode_withdraw(family, prefixes, &self.format, out);
                }
            }
        }
        for family in &batch.end_of_rib {
            if self.format.families.contains(*family) {
                encode_end_of_rib(*family, out);
            }
        }
    }

    fn withdraw(&self, prefixes: &[Prefix], out: &mut BytesMut) {
        for family in [Family::Ipv4, Family::Ipv6] {
            if self.format.families.contains(family) {
                encode_withdraw(family, prefixes, &self.format, out);
            }
        }
    }
}
