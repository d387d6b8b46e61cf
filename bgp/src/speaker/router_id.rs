//! A router id from the addresses of the machine (RFC 6286 §2.1 asks for any number that is unique
//! in the AS). The rules are BIRD's.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use caracal_model::Prefix;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::config::InterfacePattern;

/// An IPv4 address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    interface: String,
    is_up: bool,
    address: Ipv4Addr,
    len: u8,
    /// The other end of a point-to-point link.
    peer: Option<Ipv4Addr>,
}

impl Candidate {
    /// Why nobody's router id is such an address.
    const fn unfit(&self) -> Option<&'static str> {
        let address = self.address;
        if !self.is_up {
            Some("down")
        } else if address.is_loopback() {
            Some("loopback")
        } else if address.is_link_local() {
            Some("link-local")
        } else if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            Some("no machine's")
        } else {
            None
        }
    }

    fn is_taken(&self, patterns: &[InterfacePattern]) -> bool {
        let ends = [Some(self.address), self.peer].into_iter().flatten();
        let ends: Vec<IpAddr> = ends.map(IpAddr::V4).collect();
        InterfacePattern::take(patterns, &self.interface, &ends)
    }

    /// True when the kernel has it in second place: an address before it is in the same subnet.
    fn is_secondary(&self, before: &[Self]) -> bool {
        let subnet = |c: &Self| Prefix::truncated(c.address.into(), c.len);
        let mut before = before.iter();
        before.any(|c| c.interface == self.interface && subnet(c) == subnet(self))
    }
}

/// The IPv4 addresses of this machine, in the kernel's order.
fn candidates() -> Result<Vec<Candidate>, String> {
    let of_interface = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address?.as_sockaddr_in()?.ip();
        let mask = found.netmask?.as_sockaddr_in()?.ip();
        let len = u8::try_from(mask.to_bits().leading_ones()).unwrap_or(32);
        let other = found.destination.or(found.broadcast);
        let peer = other.filter(|_| len == 32);
        // An address with a label calls itself `eth0:1`.
        let name = found.interface_name.split(':').next().unwrap_or_default();
        Some(Candidate {
            interface: name.to_owned(),
            is_up: found.flags.contains(InterfaceFlags::IFF_UP),
            address,
            len,
            peer: peer.and_then(|peer| Some(peer.as_sockaddr_in()?.ip())),
        })
    };
    let found = getifaddrs()
        .map_err(|error| format!("the addresses of this machine cannot be read: {error}"))?;
    Ok(found.filter_map(of_interface).collect())
}

/// The router id of this machine: the lowest IPv4 address of an interface that is up and that the
/// patterns take; an empty list takes all. `kept` stays while it is such an address.
///
/// # Errors
/// Which addresses were seen, when none of them is taken, or why they could not be read.
pub fn choose_router_id(
    patterns: &[InterfacePattern],
    kept: Option<Ipv4Addr>,
) -> Result<Ipv4Addr, String> {
    choose(&candidates()?, patterns, kept)
}

fn choose(
    candidates: &[Candidate],
    patterns: &[InterfacePattern],
    kept: Option<Ipv4Addr>,
) -> Result<Ipv4Addr, String> {
    let unfit = |place: usize, candidate: &Candidate| match candidate.unfit() {
        None if candidate.is_secondary(&candidates[..place]) => Some("secondary"),
        None if !candidate.is_taken(patterns) => Some("not in the list"),
        unfit => unfit,
    };
    let (mut lowest, mut seen) = (None, String::new());
    for (place, candidate) in candidates.iter().enumerate() {
        let Candidate {
            interface, address, ..
        } = candidate;
        match unfit(place, candidate) {
            None if kept == Some(*address) => return Ok(*address),
            None => lowest = Some(lowest.map_or(*address, |lowest| *address.min(&lowest))),
            Some(why) => {
                let comma = if seen.is_empty() { "" } else { ", " };
                // Writing to a string does not fail.
                let _written = write!(seen, "{comma}{interface} {address} ({why})");
            }
        }
    }
    lowest.ok_or_else(|| match seen.is_empty() {
        true => "no interface has an IPv4 address".to_owned(),
        false => format!("seen: {seen}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// `d0 10.9.9.9/24`, with a `!` in front when the interface is down, and a peer behind.
    fn machine(lines: &[&str]) -> Vec<Candidate> {
        let candidate = |line: &&str| {
            let (line, is_up) = match line.strip_prefix('!') {
                Some(line) => (line, false),
                None => (*line, true),
            };
            let mut words = line.split(' ');
            let interface = words.next().unwrap().to_owned();
            let (address, len) = words.next().unwrap().split_once('/').unwrap();
            Candidate {
                interface,
                is_up,
                address: address.parse().unwrap(),
                len: len.parse().unwrap(),
                peer: words.next().map(|peer| peer.parse().unwrap()),
            }
        };
        lines.iter().map(candidate).collect()
    }

    fn pattern(excludes: bool, interface: &str, prefix: &str) -> InterfacePattern {
        InterfacePattern {
            excludes,
            interface: (!interface.is_empty()).then(|| interface.to_owned()),
            prefix: (!prefix.is_empty()).then(|| prefix.parse().unwrap()),
        }
    }

    /// The machine that BIRD 2.0.12 was asked about, with the answers that it gave.
    #[test]
    fn the_choice_is_that_of_bird() {
        let machine = machine(&[
            "lo 127.0.0.1/8",
            "lo 10.0.0.1/32",
            "d0 10.9.9.9/24",
            "d0 10.8.0.5/32 10.7.0.1",
            "d0 10.9.9.8/24",
            "!d1 10.0.0.0/31",
            "!d1 1.1.1.1/24",
        ]);
        let (take, leave) = (false, true);
        for (patterns, expected) in [
            (vec![], Some("10.0.0.1")),
            (vec![pattern(take, "d*", "")], Some("10.8.0.5")),
            (vec![pattern(take, "lo", "")], Some("10.0.0.1")),
            (
                vec![pattern(leave, "d*", ""), pattern(take, "", "10.0.0.0/8")],
                Some("10.0.0.1"),
            ),
            (vec![pattern(take, "", "10.9.0.0/16")], Some("10.9.9.9")),
            // The other end of the link.
            (vec![pattern(take, "", "10.7.0.0/16")], Some("10.8.0.5")),
            (vec![pattern(take, "", "0.0.0.0/0")], Some("10.0.0.1")),
            // An address in second place.
            (vec![pattern(take, "d0", "10.9.9.8/32")], None),
            (
                vec![pattern(take, "", "10.9.9.0/24"), pattern(leave, "d0", "")],
                Some("10.9.9.9"),
            ),
            (
                vec![pattern(leave, "d0", "10.0.0.0/8"), pattern(take, "d0", "")],
                None,
            ),
            (vec![pattern(take, "d1", "")], None),
            (vec![pattern(take, "nope", "")], None),
        ] {
            let found = choose(&machine, &patterns, None).ok();
            let found = found.map(|id| id.to_string());
            assert_eq!(found.as_deref(), expected, "{patterns:?}");
        }
    }

    #[test]
    fn an_id_stays_while_its_address_is_there() {
        let kept = Some([10, 9, 9, 9].into());
        let two = machine(&["d0 10.0.0.1/24", "d1 10.9.9.9/24"]);
        assert_eq!(choose(&two, &[], kept), Ok([10, 9, 9, 9].into()));
        // The list does not take it any more, or it is gone.
        let first = [pattern(false, "d0", "")];
        assert_eq!(choose(&two, &first, kept), Ok([10, 0, 0, 1].into()));
        assert_eq!(choose(&two[..1], &[], kept), Ok([10, 0, 0, 1].into()));
    }

    #[test]
    fn an_error_says_what_was_seen() {
        let none = [pattern(false, "eth*", "")];
        let seen = choose(
            &machine(&[
                "lo 127.0.0.1/8",
                "d0 10.0.0.1/24",
                "d0 10.0.0.2/24",
                "d0 169.254.0.9/16",
                "!d1 10.1.0.1/24",
            ]),
            &none,
            None,
        );
        assert_eq!(
            seen.unwrap_err(),
            "seen: lo 127.0.0.1 (loopback), d0 10.0.0.1 (not in the list), d0 10.0.0.2 (secondary), d0 169.254.0.9 \
             (link-local), d1 10.1.0.1 (down)"
        );
        assert_eq!(
            choose(&[], &[], None).unwrap_err(),
            "no interface has an IPv4 address"
        );
    }

    #[test]
    fn this_machine_has_its_loopback() {
        assert!(
            candidates()
                .unwrap()
                .iter()
                .any(|c| c.address.is_loopback())
        );
    }
}
