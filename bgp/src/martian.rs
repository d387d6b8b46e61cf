//! Martians: prefixes that no peer may route for us, whatever policy says.
//!
//! A route into one of these ranges is semantically incorrect, as a NEXT_HOP of our own is (RFC
//! 4271 §6.3): it is kept in Adj-RIB-In, never used and never passed on, and the session stays. A
//! less specific route that contains such a range, the default route above all, is a legal route.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use caracal_model::{LocalNetworks, Prefix};
use serde::{Deserialize, Serialize};

use crate::ranges::Ranges;

/// 0.0.0.0/8, "this network" (RFC 6890).
const THIS_NETWORK: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// 169.254.0.0/16, IPv4 link-local (RFC 3927); a cloud's metadata service answers there.
const LINK_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 0);

/// Ranges that are refused by default and may be opened by a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenRanges {
    /// 0.0.0.0/8 may be announced.
    pub this_network: bool,
    /// 169.254.0.0/16 may be announced.
    pub link_local: bool,
}

/// The text names a range that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be opened; only 0.0.0.0/8 and 169.254.0.0/16 can, separated by commas")]
pub struct OpenRangesError(pub String);

impl FromStr for OpenRanges {
    type Err = OpenRangesError;

    /// Reads `0.0.0.0/8,169.254.0.0/16`; an empty text opens nothing.
    fn from_str(text: &str) -> Result<Self, OpenRangesError> {
        let mut open = Self::default();
        for range in text.split(',').map(str::trim).filter(|r| !r.is_empty()) {
            match range {
                "0.0.0.0/8" => open.this_network = true,
                "169.254.0.0/16" => open.link_local = true,
                _ => return Err(OpenRangesError(range.to_owned())),
            }
        }
        Ok(open)
    }
}

/// Why a prefix is never routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Martian {
    /// 127.0.0.0/8 or ::1.
    Loopback,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 240.0.0.0/4, the broadcast address included.
    Reserved,
    /// 0.0.0.0/8 or ::.
    ThisNetwork,
    /// fe80::/10, or 169.254.0.0/16.
    LinkLocal,
    /// ::ffff:0:0/96: an IPv4 address written as one of IPv6 is on no wire (RFC 6890).
    Mapped,
    /// An address of this machine.
    OwnAddress,
    /// A subnet of an interface of this machine, or a part of it. A part counts, too: it would take
    /// hosts off their own link (RFC 7454 §6.1.4.1 has the same rule for exchange points).
    Connected(Prefix),
}

impl fmt::Display for Martian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "it is loopback (127.0.0.0/8, ::1)",
            Self::Multicast => "it is multicast (224.0.0.0/4, ff00::/8)",
            Self::Reserved => "it is reserved (240.0.0.0/4)",
            Self::ThisNetwork => {
                "it is \"this network\" (0.0.0.0/8, ::); the setting that opens ranges can allow 0.0.0.0/8"
            }
            Self::LinkLocal => {
                "it is link-local (169.254.0.0/16, fe80::/10); the setting that opens ranges can allow 169.254.0.0/16"
            }
            Self::Mapped => "it is IPv4 written as IPv6 (::ffff:0:0/96)",
            Self::OwnAddress => "it is an address of this machine",
            Self::Connected(subnet) => {
                return write!(f, "it lies in {subnet}, a subnet of an interface of this machine");
            }
        })
    }
}

/// The rules in force.
#[derive(Clone, Debug)]
pub(crate) struct Martians {
    open: OpenRanges,
    local: LocalNetworks,
    /// Fixed ranges and connected subnets.
    by_range: Ranges<Martian>,
}

impl Default for Martians {
    /// Nothing is open, and nothing is known of this machine.
    fn default() -> Self {
        Self::new(OpenRanges::default(), LocalNetworks::default())
    }
}

impl Martians {
    /// Rules with these ranges open and these local networks.
    #[must_use]
    pub(crate) fn new(open: OpenRanges, local: LocalNetworks) -> Self {
        let mut martians = Self {
            open,
            local,
            by_range: Ranges::default(),
        };
        martians.index();
        martians
    }

    fn index(&mut self) {
        let subnets = self.local.subnets.iter().copied();
        let subnets = subnets.map(|subnet| (subnet, Martian::Connected(subnet)));
        self.by_range = self.fixed().chain(subnets).collect();
    }

    /// Replaces the local networks. True when they differ.
    pub(crate) fn set_local(&mut self, local: LocalNetworks) -> bool {
        let differs = self.local != local;
        if differs {
            self.local = local;
            self.index();
        }
        differs
    }

    /// The fixed ranges that are refused.
    fn fixed(&self) -> impl Iterator<Item = (Prefix, Martian)> {
        let v4 = |a, b, len, why| (Prefix::v4(Ipv4Addr::new(a, b, 0, 0), len), why);
        let this = (Prefix::v4(THIS_NETWORK, 8), Martian::ThisNetwork);
        let link = (Prefix::v4(LINK_LOCAL, 16), Martian::LinkLocal);
        let optional = [(self.open.this_network, this), (self.open.link_local, link)];
        let closed = optional.into_iter().filter(|(open, _)| !open);
        closed.map(|(_, rule)| rule).chain([
            v4(127, 0, 8, Martian::Loopback),
            v4(224, 0, 4, Martian::Multicast),
            v4(240, 0, 4, Martian::Reserved),
            (Prefix::host(Ipv6Addr::LOCALHOST.into()), Martian::Loopback),
            (
                Prefix::host(Ipv6Addr::UNSPECIFIED.into()),
                Martian::ThisNetwork,
            ),
            (
                Prefix::v6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
                Martian::Mapped,
            ),
            (
                Prefix::v6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
                Martian::Multicast,
            ),
            (
                Prefix::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
                Martian::LinkLocal,
            ),
        ])
    }

    /// Every range inside which a prefix may be refused.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Prefix> {
        let addresses = self.local.addresses.iter().copied().map(Prefix::host);
        let subnets = self.local.subnets.iter().copied();
        self.fixed()
            .map(|(range, _)| range)
            .chain(addresses)
            .chain(subnets)
    }

    /// Why a prefix is never routed; `None`: it may be.
    #[must_use]
    pub(crate) fn find(&self, prefix: &Prefix) -> Option<Martian> {
        let found = self.by_range.first(prefix).map(|(_, why)| *why);
        let is_fixed = found.is_some_and(|why| !matches!(why, Martian::Connected(_)));
        if !is_fixed && prefix.is_host() && self.local.addresses.contains(&prefix.address()) {
            return Some(Martian::OwnAddress);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn find(rules: &Martians, text: &str) -> Option<Martian> {
        rules.find(&text.parse().unwrap())
    }

    #[test]
    fn rfc4271_6_3_fixed_ranges_and_what_lies_inside_them() {
        let rules = Martians::default();
        for (text, expected) in [
            ("127.0.0.0/8", Some(Martian::Loopback)),
            ("127.1.2.3/32", Some(Martian::Loopback)),
            ("::1/128", Some(Martian::Loopback)),
            ("224.0.0.0/4", Some(Martian::Multicast)),
            ("239.255.0.0/16", Some(Martian::Multicast)),
            ("ff00::/8", Some(Martian::Multicast)),
            ("ff02::1/128", Some(Martian::Multicast)),
            ("240.0.0.0/4", Some(Martian::Reserved)),
            ("255.255.255.255/32", Some(Martian::Reserved)),
            ("fe80::/64", Some(Martian::LinkLocal)),
            ("fe80::/10", Some(Martian::LinkLocal)),
            ("169.254.169.254/32", Some(Martian::LinkLocal)),
            ("0.1.0.0/16", Some(Martian::ThisNetwork)),
            ("::/128", Some(Martian::ThisNetwork)),
            ("::ffff:0:0/96", Some(Martian::Mapped)),
            ("::ffff:10.0.0.1/128", Some(Martian::Mapped)),
            // A shorter prefix that contains such a range is a legal route.
            ("0.0.0.0/0", None),
            ("0.0.0.0/1", None),
            ("128.0.0.0/1", None),
            ("224.0.0.0/3", None),
            ("169.0.0.0/8", None),
            ("::/0", None),
            ("::/95", None),
            ("fe00::/7", None),
            ("10.0.0.0/8", None),
            ("100.64.0.0/10", None),
            ("2001:db8::/32", None),
        ] {
            assert_eq!(find(&rules, text), expected, "{text}");
        }
    }

    #[test]
    fn a_setting_opens_two_ranges_and_no_other() {
        let both: OpenRanges = "0.0.0.0/8, 169.254.0.0/16".parse().unwrap();
        let rules = Martians::new(both, LocalNetworks::default());
        assert_eq!(find(&rules, "169.254.169.254/32"), None);
        assert_eq!(find(&rules, "0.0.0.0/8"), None);
        assert_eq!(find(&rules, "127.0.0.1/32"), Some(Martian::Loopback));
        assert_eq!("".parse(), Ok(OpenRanges::default()));
        let one: OpenRanges = "169.254.0.0/16".parse().unwrap();
        assert!(one.link_local && !one.this_network);
        for bad in ["127.0.0.0/8", "169.254.0.0/17", "all"] {
            assert!(bad.parse::<OpenRanges>().is_err(), "{bad}");
        }
    }

    #[test]
    fn own_addresses_connected_subnets_and_parts_of_them() {
        let subnet: Prefix = "10.0.0.0/24".parse().unwrap();
        let local = LocalNetworks {
            subnets: [subnet, "fd00::/64".parse().unwrap()].into(),
            addresses: ["10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap()].into(),
        };
        let rules = Martians::new(OpenRanges::default(), local);
        assert_eq!(
            find(&rules, "10.0.0.0/24"),
            Some(Martian::Connected(subnet))
        );
        assert_eq!(
            find(&rules, "10.0.0.9/32"),
            Some(Martian::Connected(subnet))
        );
        assert_eq!(find(&rules, "10.0.0.1/32"), Some(Martian::OwnAddress));
        assert_eq!(find(&rules, "192.0.2.1/32"), Some(Martian::OwnAddress));
        assert!(find(&rules, "fd00::/64").is_some());
        assert_eq!(find(&rules, "10.0.0.0/16"), None, "contains it");
        assert_eq!(find(&rules, "10.0.1.0/24"), None);
        assert_eq!(find(&rules, "192.0.2.0/24"), None, "no subnet of ours");
    }
}
