//! In which order a host walks the blocks of a pool. Different hosts start at different places, so
//! that they seldom want the same new block; the same host always walks the same way. Calico picks
//! its start with Go's random generator, which need not be reproduced: only compare-and-swap
//! decides.

use caracal_model::{Prefix, Timestamp};

use crate::pools::Candidate;

/// 32-bit FNV-1: multiply, then xor.
#[must_use]
pub(crate) fn fnv1_32(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, octet| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(octet)
    })
}

/// The blocks of a pool, from the host's start onwards, wrapping once.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pool: Prefix,
    block_len: u8,
    count: u128,
    /// Index of the block visited last.
    at: u128,
    next: u128,
    left: u128,
}

impl Walk {
    /// The walk of `host` through a pool. Blocks of one address start at a place that changes with
    /// time: a host walks past all it has taken before, and there would be many.
    #[must_use]
    pub(crate) fn new(pool: &Candidate, host: &str, now: Timestamp) -> Self {
        let count = block_count(pool.cidr, pool.block_len);
        let single = pool.block_len == pool.cidr.family().bits();
        let seed = if single {
            u128::from(now.nanos())
        } else {
            u128::from(fnv1_32(host))
        };
        Self {
            pool: pool.cidr,
            block_len: pool.block_len,
            count,
            at: 0,
            next: seed % count,
            left: count,
        }
    }

    /// Goes on behind a range that holds the block visited last, without visiting every block in
    /// it.
    pub(crate) fn pass(&mut self, range: &Prefix) {
        let Some(start) = self.pool.offset(range.address()) else {
            // The range covers the whole pool, or lies outside.
            if range.covers(&self.pool) {
                self.left = 0;
            }
            return;
        };
        let size = u128::from(self.pool.family().bits() - self.block_len);
        let end = start.saturating_add(range.size()) >> size;
        let behind = self.at + 1;
        let skipped = end.saturating_sub(behind).min(self.left);
        self.left -= skipped;
        self.next = behind + skipped;
        if self.next >= self.count {
            self.next = 0;
        }
    }
}

fn block_count(pool: Prefix, block_len: u8) -> u128 {
    1u128
        .checked_shl(u32::from(block_len.saturating_sub(pool.len())))
        .unwrap_or(u128::MAX)
}

impl Iterator for Walk {
    type Item = Prefix;

    fn next(&mut self) -> Option<Prefix> {
        if self.left == 0 {
            return None;
        }
        let shift = u32::from(self.pool.family().bits() - self.block_len);
        let address = self.pool.nth(self.next.checked_shl(shift)?)?;
        self.left -= 1;
        self.at = self.next;
        self.next += 1;
        if self.next >= self.count {
            self.next = 0;
        }
        Some(Prefix::truncated(address, self.block_len))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pool(cidr: &str, block_len: u8) -> Candidate {
        Candidate {
            name: "p".into(),
            cidr: cidr.parse().unwrap(),
            block_len,
        }
    }

    #[test]
    fn fnv_1_vectors() {
        // From the authors' test vectors for 32-bit FNV-1.
        assert_eq!(fnv1_32(""), 0x811c_9dc5);
        assert_eq!(fnv1_32("a"), 0x050c_5d7e);
        assert_eq!(fnv1_32("foobar"), 0x31f0_b262);
    }

    #[test]
    fn every_block_once_and_wrapping() {
        let now = Timestamp::from_nanos(0);
        let blocks: Vec<_> = Walk::new(&pool("10.0.0.0/24", 28), "node-a", now).collect();
        assert_eq!(blocks.len(), 16);
        assert!(
            blocks
                .windows(2)
                .all(|w| w[0] < w[1] || w[1] == "10.0.0.0/28".parse().unwrap())
        );
        let mut sorted = blocks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 16);
        let again: Vec<_> = Walk::new(&pool("10.0.0.0/24", 28), "node-a", now).collect();
        assert_eq!(blocks, again);
        let starts: std::collections::BTreeSet<_> = ["node-a", "node-b", "node-c", "node-d"]
            .iter()
            .map(|host| Walk::new(&pool("10.0.0.0/16", 26), host, now).next())
            .collect();
        assert_eq!(starts.len(), 4);
    }

    #[test]
    fn a_huge_reservation_is_skipped_in_one_step() {
        let pool = pool("fd00::/64", 122);
        let now = Timestamp::from_nanos(0);
        let mut walk = Walk::new(&pool, "node-a", now);
        let first = walk.next().unwrap();
        let reserved: Prefix = "fd00::/65".parse().unwrap();
        assert!(reserved.covers(&first));
        walk.pass(&reserved);
        assert_eq!(walk.next(), Some("fd00::8000:0:0:0/122".parse().unwrap()));
        let mut walk = Walk::new(&pool, "node-a", now);
        walk.next();
        walk.pass(&"fd00::/64".parse().unwrap());
        assert_eq!(walk.clone().next(), Some("fd00::/122".parse().unwrap()));
        // Up to the end of the pool; what is left is the part before the start.
        assert_eq!(walk.next(), Some("fd00::/122".parse().unwrap()));
        walk.pass(&"fd00::/32".parse().unwrap());
        assert_eq!(walk.next(), None);
    }

    #[test]
    fn skipping_the_last_block_does_not_skip_those_before_the_start() {
        let pool = pool("10.0.0.0/28", 30);
        let mut walk = Walk::new(&pool, "node-a", Timestamp::from_nanos(0));
        let last: Prefix = "10.0.0.12/30".parse().unwrap();
        let mut seen = Vec::new();
        while let Some(block) = walk.next() {
            if block == last {
                walk.pass(&last);
            }
            seen.push(block);
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn single_address_blocks_start_anywhere() {
        let pool = pool("10.0.0.0/24", 32);
        let start = |nanos| Walk::new(&pool, "node-a", Timestamp::from_nanos(nanos)).next();
        assert_ne!(start(3), start(4));
    }
}
