//! When a table of nftables has changed, as the kernel tells it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

/// `NFNLGRP_NFTABLES`.
const TABLES: u32 = 7;
/// `NFT_MSG_NEWGEN` of `NFNL_SUBSYS_NFTABLES`: the last message of a transaction.
const NEW_GENERATION: u16 = 10 << 8 | 15;

/// Transactions of nftables in the present network namespace.
pub(super) struct Transactions(Socket);

impl Transactions {
    pub(super) fn follow() -> Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(TABLES)?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Waits for the next one.
    pub(super) fn next(&self, limit: Duration) -> Result<Instant> {
        let end = Instant::now() + limit;
        let mut buffer = Vec::with_capacity(64 * 1024);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let readable = rustix::event::poll(
                &mut [rustix::event::PollFd::new(
                    &self.0,
                    rustix::event::PollFlags::IN,
                )],
                Some(&left.try_into()?),
            )?;
            ensure!(
                readable > 0,
                "the table did not change within {} s",
                limit.as_secs()
            );
            buffer.clear();
            self.0.recv(&mut buffer, 0)?;
            let now = Instant::now();
            if has_generation(&buffer) {
                return Ok(now);
            }
        }
    }
}

fn has_generation(mut datagram: &[u8]) -> bool {
    while let [a, b, c, d, e, f, ..] = *datagram {
        if u16::from_ne_bytes([e, f]) == NEW_GENERATION {
            return true;
        }
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let next = length.max(16).next_multiple_of(4);
        datagram = datagram.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_transaction_is_seen() {
        let element = [
            20, 0, 0, 0, 12, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
        ];
        let generation = [16, 0, 0, 0, 15, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(has_generation(&[&element[..], &generation].concat()));
        assert!(!has_generation(&[&element[..], &element].concat()));
        assert!(!has_generation(&[]));
    }
}
