//! Our addresses on the interface of a session, for next hops that are not our end of it: the
//! link-local address beside a global one (RFC 2545 §3), and an address of the family that the
//! session itself does not have (RFC 4760 §3).
//!
//! The kernel's addresses are read when such a session comes up. What cannot be read is no address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use caracal_model::{Family, Prefix};
use nix::ifaddrs::getifaddrs;

use super::socket;
use crate::config::{PeerConfig, SpeakerConfig};
use crate::fsm::ConnectionEnds;
use crate::rib::SessionInfo;
use crate::types::PeerName;

/// The IPv6 addresses of the network namespace, with what `getifaddrs` does not say: their flags.
const LIST: &str = "/proc/thread-self/net/if_inet6";
/// Linux: `IFA_F_TEMPORARY`, privacy addresses that change by themselves.
const TEMPORARY: u8 = 0x01;
/// Linux: `IFA_F_DADFAILED`, `IFA_F_DEPRECATED`, `IFA_F_TENTATIVE`: nobody should be sent to such
/// an address.
const UNUSABLE: u8 = 0x08 | 0x20 | 0x40;

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    address: IpAddr,
    len: u8,
    flags: u8,
    interface: String,
}

impl InterfaceAddress {
    /// `fd000000000000000000000000000001 02 40 00 80 eth0`: address, index, length, scope, flags,
    /// all in hexadecimal, and a name.
    fn of_line(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let mut octet = |skip| u8::from_str_radix(fields.nth(skip)?, 16).ok();
        let (len, flags) = (octet(1)?, octet(1)?);
        Some(Self {
            address: Ipv6Addr::from(address).into(),
            len,
            flags,
            interface: fields.next()?.to_owned(),
        })
    }

    /// An address that somebody else can be sent to.
    fn is_next_hop(&self) -> bool {
        let anywhere = match self.address {
            IpAddr::V4(v4) => !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        anywhere && !self.address.is_loopback() && self.flags & UNUSABLE == 0
    }
}

/// The addresses of this host.
#[derive(Debug, Default)]
pub(super) struct Addresses(Vec<InterfaceAddress>);

impl Addresses {
    /// Reads the addresses of this machine from the kernel.
    pub(super) fn read() -> Self {
        let v6 = std::fs::read_to_string(LIST).unwrap_or_default();
        let v6 = v6.lines().filter_map(InterfaceAddress::of_line);
        let v4 = getifaddrs().into_iter().flatten().filter_map(|found| {
            let address = found.address?.as_sockaddr_in()?.ip();
            let mask = found.netmask?.as_sockaddr_in()?.ip();
            // An address with a label calls itself `eth0:1`.
            let name = found.interface_name.split(':').next().unwrap_or_default();
            Some(InterfaceAddress {
                address: address.into(),
                len: u8::try_from(mask.to_bits().leading_ones()).unwrap_or(32),
                flags: 0,
                interface: name.to_owned(),
            })
        });
        Self(v4.chain(v6).collect())
    }

    fn on<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a InterfaceAddress> {
        self.0.iter().filter(move |e| e.interface == interface)
    }

    /// Our address of a family on an interface. Of several: none that changes by itself if there is
    /// another; of IPv4 the first, which is the primary one; of IPv6, whose list has no order, the
    /// lowest.
    fn global(&self, interface: &str, family: Family) -> Option<IpAddr> {
        let other = self.on(interface);
        let other = other.filter(|e| Family::of(e.address) == family && e.is_next_hop());
        let rank = |e: &&InterfaceAddress| match e.address {
            IpAddr::V4(_) => (0, 0),
            IpAddr::V6(v6) => (e.flags & TEMPORARY, v6.to_bits()),
        };
        other.min_by_key(rank).map(|e| e.address)
    }

    /// The interface that has `local` in a subnet with `remote`.
    fn shared(&self, local: IpAddr, remote: IpAddr) -> Option<&str> {
        let shared = |e: &&InterfaceAddress| {
            e.address == local && Prefix::truncated(local, e.len).contains(remote)
        };
        Some(&self.0.iter().find(shared)?.interface)
    }

    /// The link-local address of an interface.
    fn link_local(&self, interface: &str) -> Option<Ipv6Addr> {
        self.on(interface).find_map(|e| match e.address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(v6),
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        })
    }

    /// The subnets of an interface, on which others are as well.
    fn subnets(&self, interface: &str) -> Vec<Prefix> {
        let mut subnets: Vec<_> = self
            .on(interface)
            .map(|e| Prefix::truncated(e.address, e.len))
            .collect();
        subnets.sort_unstable();
        subnets.dedup();
        subnets
    }

    /// The interface of one of our addresses.
    fn interface(&self, address: IpAddr) -> Option<&str> {
        let entry = self.0.iter().find(|e| e.address == address)?;
        Some(&entry.interface)
    }
}

/// Fills in what a session that has come up needs of them.
pub(super) fn complete(session: &mut SessionInfo, peer: &PeerConfig, ends: ConnectionEnds) {
    let direct = peer.ttl == Some(1) || peer.ttl_security == Some(1);
    let v6 = session.families.contains(&Family::Ipv6) || session.options.extended_next_hop;
    let lacks = session
        .without_next_hop(peer.own_next_hops)
        .next()
        .is_some();
    if !(lacks || direct) {
        return;
    }
    let addresses = Addresses::read();
    let (local, remote) = (
        ends.local.ip().to_canonical(),
        ends.remote.ip().to_canonical(),
    );
    let named = peer.interface.as_ref().map(|interface| interface.as_str());
    let options = &mut session.options;
    if lacks && let Some(interface) = named.or_else(|| addresses.interface(local)) {
        options.other_address = addresses.global(interface, other_family(local));
    }
    let Some(link) = named
        .or_else(|| addresses.shared(local, remote))
        .filter(|_| direct)
    else {
        return;
    };
    options.link = addresses.subnets(link);
    // A next hop that somebody has written down may be on another link.
    if v6 && peer.own_next_hops.ipv6.is_none() {
        // Between link-local addresses our end is one already, and told alone.
        options.link_local = addresses.link_local(link).filter(|_| named.is_none());
    }
}

const fn other_family(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::Ipv6,
        IpAddr::V6(_) => Family::Ipv4,
    }
}

/// Peers towards which this host has no next hop in one of their families, each with a sentence;
/// needs no session. Of peers that this host has no route to, nothing is known.
#[must_use]
pub fn missing_next_hops(config: &SpeakerConfig) -> Vec<(PeerName, String)> {
    let addresses = Addresses::read();
    let of_peer = |(name, peer): (&PeerName, &PeerConfig)| {
        let local = peer.source.or_else(|| source_towards(peer))?;
        let named = peer.interface.as_ref().map(|interface| interface.as_str());
        let interface = named.or_else(|| addresses.interface(local))?;
        let missing = |family: &&Family| {
            let over_ipv6 = peer.extended_next_hop && **family == Family::Ipv4 && local.is_ipv6();
            **family != Family::of(local)
                && peer.own_next_hops.for_family(**family).is_none()
                && !over_ipv6
                && addresses.global(interface, **family).is_none()
        };
        let family = peer.families.iter().find(missing)?;
        Some((name.clone(), no_next_hop(*family, local, Some(interface))))
    };
    config.peers.iter().filter_map(of_peer).collect()
}

/// The address from which the kernel would dial a peer.
fn source_towards(peer: &PeerConfig) -> Option<IpAddr> {
    let any: SocketAddr = match Family::of(peer.address) {
        Family::Ipv4 => ([0, 0, 0, 0], 0).into(),
        Family::Ipv6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Nothing is sent: the kernel looks up the route.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(socket::remote_of(peer).ok()?).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The sentence for people where there is no next hop.
pub(super) fn no_next_hop(family: Family, local: IpAddr, interface: Option<&str>) -> String {
    let session = Family::of(local);
    let place = match interface {
        Some(interface) => format!("{interface}, the interface of {local},"),
        None => format!("the interface of {local}"),
    };
    let (family, session) = (title(family), title(session));
    format!(
        "no next hop for {family} routes over the {session} session: {place} has no {family} address; write \"next hop \
         address ADDRESS;\" into the family, or give the interface one and reset the session"
    )
}

const fn title(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LIST: &str = "\
fd000000000000010000000000000001 02 40 00 80     eth0
fe80000000000000beef0000fe000001 02 40 20 80     eth0
fd000000000000020000000000000001 03 40 00 80     eth1
fe80000000000000beef0000fe000002 03 40 20 80     eth1
fd000000000000030000000000000001 04 80 00 80 dummy.long-name
fd000000000000010000000000000000 02 40 00 01     eth0
fd00000000000001000000000000000a 02 40 00 a0     eth0
fd00000000000001000000000000000b 02 40 00 40     eth0
fe80000000000000beef0000fe000005 05 40 20 80     eth2
00000000000000000000000000000001 01 80 10 80       lo
";

    fn addresses() -> Addresses {
        let v4 = [
            ("10.0.1.9", 24, "eth0"),
            ("10.0.1.1", 24, "eth0"),
            ("10.0.5.1", 24, "eth2"),
            ("169.254.1.1", 16, "dummy.long-name"),
            ("127.0.0.1", 8, "lo"),
        ];
        let v4 = v4.map(|(address, len, interface)| InterfaceAddress {
            address: address.parse().unwrap(),
            len,
            flags: 0,
            interface: interface.to_owned(),
        });
        let v6 = LIST
            .lines()
            .map(|line| InterfaceAddress::of_line(line).unwrap());
        Addresses(v4.into_iter().chain(v6).collect())
    }

    #[test]
    fn rfc2545_3_only_on_a_link_that_both_share() {
        let found = |local: &str, remote: &str| {
            let addresses = addresses();
            let link = addresses.shared(local.parse().unwrap(), remote.parse().unwrap());
            let found = link.and_then(|link| addresses.link_local(link));
            found.map(|address| address.to_string())
        };
        let first = Some("fe80::beef:0:fe00:1".to_owned());
        let second = Some("fe80::beef:0:fe00:2".to_owned());
        assert_eq!(found("fd00:0:0:1::1", "fd00:0:0:1::9"), first);
        assert_eq!(found("10.0.1.1", "10.0.1.77"), first);
        assert_eq!(found("fd00:0:0:2::1", "fd00:0:0:2::9"), second);
        assert_eq!(found("fd00:0:0:1::1", "fd00:0:0:2::9"), None);
        assert_eq!(found("10.0.1.1", "10.0.2.77"), None);
        assert_eq!(found("fd00:0:0:3::1", "fd00:0:0:3::1"), None);
        assert_eq!(found("::1", "::1"), None);
        assert_eq!(found("fd00:0:0:9::1", "fd00:0:0:9::2"), None);
    }

    #[test]
    fn rfc4271_5_1_3_the_subnets_of_a_link_that_both_share() {
        let found = |local: &str, remote: &str| {
            let addresses = addresses();
            let link = addresses.shared(local.parse().unwrap(), remote.parse().unwrap());
            let found = link.map(|link| addresses.subnets(link)).unwrap_or_default();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            found.join(" ")
        };
        let both = "10.0.1.0/24 fd00:0:0:1::/64 fe80::/64";
        assert_eq!(found("10.0.1.1", "10.0.1.77"), both);
        assert_eq!(found("fd00:0:0:1::1", "fd00:0:0:1::9"), both);
        assert_eq!(found("10.0.1.1", "10.0.2.77"), "");
        assert_eq!(found("10.9.9.9", "10.9.9.8"), "");
    }

    #[test]
    fn rfc4760_3_the_next_hop_of_the_other_family_is_on_the_interface_of_the_session() {
        let found = |local: &str| {
            let addresses = addresses();
            let local: IpAddr = local.parse().unwrap();
            let link = addresses.interface(local);
            let found = link.and_then(|link| addresses.global(link, other_family(local)));
            found.map(|address| address.to_string())
        };
        // Neither the temporary one, though it is lower, nor those that are deprecated or
        // tentative.
        assert_eq!(found("10.0.1.1").unwrap(), "fd00:0:0:1::1");
        assert_eq!(found("fd00:0:0:1::1").unwrap(), "10.0.1.9", "the first");
        // Link-local addresses and those of the loopback lead nowhere, and other interfaces
        // elsewhere.
        for none in [
            "10.0.5.1",
            "fd00:0:0:2::1",
            "fd00:0:0:3::1",
            "127.0.0.1",
            "::1",
            "10.9.9.9",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn this_host_has_its_loopback() {
        let addresses = Addresses::read();
        assert_eq!(addresses.interface([127, 0, 0, 1].into()), Some("lo"));
    }
}
