//! Prefixes and attribute sets: the same for every speaker and every run.

use std::net::Ipv4Addr;

use crate::wire::{self, Attrs, Net};

/// Address of the speaker under test.
pub const DUT: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
/// Its AS number.
pub const DUT_AS: u32 = 64512;
/// Addresses of external neighbours begin here; they are on the link.
pub const NEIGHBOURS: Ipv4Addr = Ipv4Addr::new(10, 64, 1, 0);
/// AS number of the first external sender.
pub const SENDER_AS: u32 = 65001;

/// A small generator of pseudo-random numbers (xorshift64*), so that runs are the same.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub const fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32;
        ((high as u64 * limit as u64) >> 32) as u32
    }
}

/// Prefixes that do not overlap, and the way from a prefix to its index.
#[derive(Clone, Debug)]
pub struct Universe {
    /// The prefixes, ascending.
    pub nets: Vec<Net>,
    base: u32,
    shift: u32,
    slots: Vec<u32>,
}

impl Universe {
    fn new(nets: Vec<Net>, shift: u32) -> Self {
        let base = nets.iter().map(|net| net.bits).min().unwrap_or(0);
        let last = nets.iter().map(|net| net.bits).max().unwrap_or(0);
        let mut slots = vec![u32::MAX; ((last - base) >> shift) as usize + 1];
        for (index, net) in nets.iter().enumerate() {
            slots[((net.bits - base) >> shift) as usize] = index as u32;
        }
        Self {
            nets,
            base,
            shift,
            slots,
        }
    }

    /// `count` prefixes of lengths as in the Internet's table: most are /24, the shortest /16.
    pub fn internet(count: usize) -> Self {
        let mut random = Random::new(1);
        let mut next = 0x0100_0000u32;
        let nets = (0..count).map(|_| {
            let len = match random.below(100) {
                0..60 => 24,
                60..72 => 23,
                72..84 => 22,
                84..90 => 21,
                90..95 => 20,
                95..97 => 19,
                97..99 => 18,
                _ => 16 + random.below(2),
            };
            let size = 1u32 << (32 - len);
            let mut bits = next.next_multiple_of(size);
            if bits >> 24 == 127 {
                // Speakers refuse what belongs to the loopback.
                bits = 128 << 24;
            }
            next = bits + size;
            Net {
                bits,
                len: len as u8,
            }
        });
        Self::new(nets.collect(), 8)
    }

    /// `count` blocks of 64 addresses, as Calico's IPAM gives them to nodes.
    pub fn blocks(count: usize) -> Self {
        let base = u32::from(Ipv4Addr::new(100, 64, 0, 0));
        let net = |index: usize| Net {
            bits: base + (index as u32) * 64,
            len: 26,
        };
        Self::new((0..count).map(net).collect(), 6)
    }

    /// The index of a prefix.
    pub fn index(&self, net: Net) -> Option<u32> {
        let slot = (net.bits.checked_sub(self.base)? >> self.shift) as usize;
        let index = *self.slots.get(slot)?;
        (self.nets.get(index as usize) == Some(&net)).then_some(index)
    }
}

/// Which attribute set each prefix of a universe is announced with.
#[derive(Clone, Debug)]
pub struct AttributeSets {
    /// For each prefix the number of its set.
    pub of: Vec<u32>,
    /// How many sets there are.
    pub count: u32,
}

impl AttributeSets {
    /// One set for some sixteen prefixes, as in the Internet's table.
    pub fn of(universe: &Universe) -> Self {
        let count = (universe.nets.len() * 6 / 100).max(1) as u32;
        let mut random = Random::new(2);
        let of = (0..universe.nets.len())
            .map(|_| random.below(count))
            .collect();
        Self { of, count }
    }

    /// The UPDATEs by which an external sender announces everything, as octets.
    pub fn announcements(&self, universe: &Universe, asn: u32, next_hop: Ipv4Addr) -> Vec<u8> {
        let mut members: Vec<Vec<Net>> = vec![Vec::new(); self.count as usize];
        for (net, set) in universe.nets.iter().zip(&self.of) {
            members[*set as usize].push(*net);
        }
        let mut octets = Vec::new();
        for (set, nets) in members.iter().enumerate() {
            // As many as fit beside the attributes.
            for nets in nets.chunks(900) {
                let attrs = external(asn, set as u32, next_hop);
                wire::update(&[], Some(&attrs), nets, &mut octets);
            }
        }
        octets
    }
}

/// The attribute set number `set` of an external sender: a path of its own, communities on half of
/// them.
pub fn external(sender: u32, set: u32, next_hop: Ipv4Addr) -> Attrs {
    let mut random = Random::new(u64::from(sender) << 32 | u64::from(set));
    let hops = 1 + random.below(5);
    let mut as_path = vec![sender];
    as_path.extend((0..hops).map(|_| 1000 + random.below(60_000)));
    // Makes each set another one.
    as_path.push(100_000 + set);
    let mut communities: Vec<u32> = if random.below(2) == 0 {
        Vec::new()
    } else {
        (0..=random.below(4))
            .map(|_| sender << 16 | random.below(60_000))
            .collect()
    };
    communities.sort_unstable();
    communities.dedup();
    Attrs {
        as_path,
        next_hop: Some(next_hop),
        communities,
        ..Attrs::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_and_do_not_overlap() {
        let universe = Universe::internet(5000);
        for (index, net) in universe.nets.iter().enumerate() {
            assert_eq!(universe.index(*net), Some(index as u32));
            assert_eq!(net.bits & ((1 << (32 - net.len)) - 1), 0, "host bits");
        }
        for pair in universe.nets.windows(2) {
            assert!(pair[0].bits + (1 << (32 - pair[0].len)) <= pair[1].bits);
        }
        assert_eq!(universe.index(Net { bits: 0, len: 8 }), None);
        assert_eq!(Universe::blocks(10).nets.len(), 10);
    }

    #[test]
    fn sets_differ_and_come_out_the_same_each_time() {
        let hop = Ipv4Addr::new(10, 0, 0, 1);
        assert_ne!(external(65001, 1, hop), external(65001, 2, hop));
        assert_eq!(external(65001, 1, hop), external(65001, 1, hop));
    }
}
