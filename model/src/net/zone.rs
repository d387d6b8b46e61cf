//! Link-local addresses of IPv6 with their links: without its interface such an address is none
//! (RFC 4007 §6).
//!
//! Where addresses are keys, a link-local one is *zoned*: octets 2 to 7, which are zero in all of
//! them (RFC 4291 §2.5.6), hold a number that follows from the interface's name. So it is an
//! address like others, and another one on each link. What goes onto the wire, into the kernel, to
//! people or to disk is [`unzoned`] before.

use std::net::Ipv6Addr;

use super::Prefix;
use crate::names::IfName;

/// The subnet of all link-local addresses, on every link.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
/// Its length (RFC 4291 §2.5.6).
const LINK_LOCAL_LEN: u8 = 64;
/// Where the number stands.
const SHIFT: u32 = 64;
/// The bits of the number.
const ZONE: u128 = 0xffff_ffff_ffff << SHIFT;

/// FNV-1a, folded to 48 bits and never 0. That two interfaces of a machine have the same number is
/// as likely as one in 2⁴⁸.
fn number(interface: &IfName) -> u128 {
    let hash = |hash: u64, octet: &u8| (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3);
    let octets = interface.as_str().as_bytes();
    let hash = octets.iter().fold(0xcbf2_9ce4_8422_2325, hash);
    u128::from((hash ^ hash >> 48) << 16 >> 16).max(1)
}

/// A link-local address on this link.
#[must_use]
pub fn zoned(address: Ipv6Addr, interface: &IfName) -> Ipv6Addr {
    let bits = unzoned(address).to_bits();
    Ipv6Addr::from_bits(bits | (number(interface) << SHIFT))
}

/// A link-local address without the link.
#[must_use]
pub const fn unzoned(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & !ZONE)
}

/// True when a link-local address says on which link.
#[must_use]
pub const fn is_zoned(address: Ipv6Addr) -> bool {
    address.to_bits() & ZONE != 0
}

/// All link-local addresses of a link.
#[must_use]
pub fn zone(interface: &IfName) -> Prefix {
    Prefix::truncated(zoned(LINK_LOCAL, interface).into(), LINK_LOCAL_LEN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rfc4007_6_one_address_on_two_links_is_two_and_comes_back_as_it_was() {
        let address: Ipv6Addr = "fe80::42".parse().unwrap();
        let (a, b) = (IfName::from("zone-a"), IfName::from("zone-b"));
        let (on_a, on_b) = (zoned(address, &a), zoned(address, &b));
        assert_ne!(on_a, on_b);
        assert_ne!(on_a, address);
        assert_eq!(zoned(address, &a), on_a, "a name keeps its number");
        assert_eq!(zoned(on_a, &b), on_b, "an address is on one link");
        assert_eq!((unzoned(on_a), unzoned(on_b)), (address, address));
        assert!(is_zoned(on_a) && !is_zoned(address));
        assert!(on_a.is_unicast_link_local());
        assert!(zone(&a).contains(on_a.into()));
        assert!(!zone(&a).contains(on_b.into()));
        assert!(!zone(&a).contains(address.into()), "on no link");
    }
}
