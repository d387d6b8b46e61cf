//! The subnets of this machine's interfaces, for `protocol direct`. The rules are BIRD's.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use caracal_model::{IfName, Prefix};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::config::InterfacePattern;

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

/// Leading ones of a mask.
fn length(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => v4.to_bits().leading_ones(),
        IpAddr::V6(v6) => v6.to_bits().leading_ones(),
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

/// The subnet of an address, or the other end of a point-to-point link; `None` for what is on no
/// other machine's way: addresses of the loopback and of a link alone.
fn subnet(address: IpAddr, len: u8, peer: Option<IpAddr>) -> Option<Prefix> {
    let near = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if near || address.is_loopback() || address.is_unspecified() {
        return None;
    }
    let host = Prefix::host(address);
    match peer.filter(|_| len == host.len()) {
        Some(peer) => Some(Prefix::host(peer)),
        None => Some(Prefix::truncated(address, len.min(host.len()))),
    }
}

/// The subnets of interfaces that are up, of those that the patterns take, each with its interface.
///
/// # Errors
/// The kernel does not say.
pub fn direct_subnets(patterns: &[InterfacePattern]) -> io::Result<BTreeMap<Prefix, IfName>> {
    let of_address = |found: InterfaceAddress| {
        let address = ip(&found.address?)?;
        let len = length(ip(&found.netmask?)?);
        let other = found.destination.or(found.broadcast);
        let peer = other.and_then(|other| ip(&other));
        // An address with a label calls itself `eth0:1`.
        let name = found.interface_name.split(':').next().unwrap_or_default();
        let is_up = found.flags.contains(InterfaceFlags::IFF_UP);
        let subnet = subnet(address, len, peer)?;
        // Of other links it is the broadcast address.
        let other = peer.filter(|_| subnet != Prefix::truncated(address, len));
        let ends: Vec<IpAddr> = [Some(address), other].into_iter().flatten().collect();
        let is_taken = is_up && InterfacePattern::take(patterns, name, &ends);
        let subnet = is_taken.then_some(subnet)?;
        Some((subnet, IfName::from(name)))
    };
    let mut subnets = BTreeMap::new();
    for (subnet, interface) in getifaddrs()?.filter_map(of_address) {
        subnets.entry(subnet).or_insert(interface);
    }
    Ok(subnets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_subnet_of_an_address_is_birds() {
        for (address, len, peer, expected) in [
            ("10.1.0.9", 24, Some("10.1.0.255"), Some("10.1.0.0/24")),
            ("10.7.7.7", 32, None, Some("10.7.7.7/32")),
            ("10.66.0.1", 32, Some("10.66.0.2"), Some("10.66.0.2/32")),
            ("2001:db8::1", 64, None, Some("2001:db8::/64")),
            ("2001:db8::1", 128, None, Some("2001:db8::1/128")),
            ("169.254.7.7", 16, None, Some("169.254.0.0/16")),
            ("fe80::1", 64, None, None),
            ("127.0.0.1", 8, None, None),
            ("::1", 128, None, None),
        ] {
            let peer = peer.map(|peer| peer.parse().unwrap());
            let found = subnet(address.parse().unwrap(), len, peer);
            assert_eq!(found, expected.map(|p| p.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn the_first_item_that_fits_decides() {
        let pattern = |excludes, name: &str| InterfacePattern {
            excludes,
            interface: Some(name.to_owned()),
            prefix: None,
        };
        let list = [pattern(true, "eth1"), pattern(false, "eth*")];
        let address = [10, 0, 0, 1].into();
        for (name, expected) in [("eth0", true), ("eth1", false), ("lo", false)] {
            let found = InterfacePattern::take(&list, name, &[address]);
            assert_eq!(found, expected, "{name}");
        }
        assert!(InterfacePattern::take(&[], "lo", &[address]));
        let far = InterfacePattern {
            prefix: "10.66.0.2/32".parse().ok(),
            ..InterfacePattern::default()
        };
        let ends = ["10.66.0.1", "10.66.0.2"].map(|end| end.parse().unwrap());
        assert!(
            InterfacePattern::take(&[far], "ppp0", &ends),
            "the other end"
        );
    }
}
