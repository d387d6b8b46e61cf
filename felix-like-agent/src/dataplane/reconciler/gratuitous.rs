//! Tells the neighbours on the link where this node is: gratuitous ARP (RFC 5227 §3) and
//! unsolicited neighbour advertisements (RFC 4861 §7.2.6), when an address of the node comes, moves
//! to another interface, when the interface gets another MAC, or its cable comes back. Without them
//! a neighbour goes on sending to the old MAC until its own reachability check fails, for up to 45
//! s.
//!
//! It writes nothing into the kernel and asks it nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::time::Duration;

use caracal_model::{Family, Mac, Node, Prefix, format_mac};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::links::Links;

/// `MAX_NEIGHBOR_ADVERTISEMENT` (RFC 4861 §10): any of them may be lost.
const REPEATS: u32 = 3;
/// `RETRANS_TIMER` (RFC 4861 §10).
const SPACING: Duration = Duration::from_secs(1);
/// An address that is still being checked for duplicates cannot be a source; that takes a second or
/// two.
const ATTEMPTS: u32 = 10;
/// `ETH_P_ARP`.
const ARP: u16 = 0x0806;
/// All nodes of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dataplane) struct Place {
    index: u32,
    mac: Mac,
    /// The node forwards, for IPv6 neighbours that want to know.
    router: bool,
}

/// The node's addresses on links where somebody may listen.
pub(in crate::dataplane) type Places = BTreeMap<IpAddr, Place>;

/// Finds the node's own addresses, and the link-local ones of the interface that has its IPv6
/// address.
pub(in crate::dataplane) fn places(node: &Node, links: &Links, forwards: bool) -> Places {
    let mut places = Places::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let Some(own) = node.spec.address(family) else {
            continue;
        };
        let Some(link) = links.holding(own) else {
            continue;
        };
        let Some(mac) = link
            .mac
            .filter(|_| link.up && link.carrier && !link.loopback)
        else {
            continue;
        };
        let place = Place {
            index: link.index,
            mac,
            router: forwards,
        };
        let mut addresses = vec![own];
        let local = Prefix::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
        if family == Family::Ipv6 {
            let others = link.addresses.iter().map(|cidr| cidr.address);
            addresses.extend(others.filter(|address| local.contains(*address)));
        }
        places.extend(addresses.into_iter().map(|address| (address, place)));
    }
    places
}

/// Schedule of announcements. Pure.
#[derive(Debug, Default)]
struct AnnouncementSchedule {
    places: Places,
    due: BTreeMap<IpAddr, DueAnnouncement>,
}

#[derive(Clone, Copy, Debug)]
struct DueAnnouncement {
    at: Instant,
    left: u32,
    attempts: u32,
}

impl AnnouncementSchedule {
    /// Takes over where the addresses are; what is new or has changed is said from now on.
    fn follow(&mut self, places: &Places, now: Instant) {
        let before = std::mem::replace(&mut self.places, places.clone());
        self.due.retain(|address, _| places.contains_key(address));
        for (address, place) in places {
            if before.get(address) != Some(place) {
                let due = DueAnnouncement {
                    at: now,
                    left: REPEATS,
                    attempts: ATTEMPTS,
                };
                self.due.insert(*address, due);
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        self.due.values().map(|due| due.at).min()
    }

    /// Announcements that are due.
    fn ready(&self, now: Instant) -> Vec<(IpAddr, Place)> {
        let ready = self.due.iter().filter(|(_, due)| due.at <= now);
        ready
            .filter_map(|(address, _)| Some((*address, *self.places.get(address)?)))
            .collect()
    }

    /// It was said, or could not be. True when it will not be tried again.
    fn done(&mut self, address: IpAddr, said: bool, now: Instant) -> bool {
        let Some(due) = self.due.get_mut(&address) else {
            return true;
        };
        due.at = now + SPACING;
        due.attempts -= 1;
        due.left -= u32::from(said);
        let ended = due.left == 0 || due.attempts == 0;
        if ended {
            self.due.remove(&address);
        }
        ended
    }
}

/// The task. Ends when dropped.
#[derive(Debug)]
pub(in crate::dataplane) struct GratuitousSender {
    places: watch::Sender<Places>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for GratuitousSender {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GratuitousSender {
    pub(in crate::dataplane) fn start() -> Self {
        let (places, receiver) = watch::channel(Places::new());
        Self {
            places,
            task: tokio::spawn(run(receiver)),
        }
    }

    /// Where the node's addresses are now.
    pub(in crate::dataplane) fn follow(&self, places: Places) {
        self.places.send_if_modified(|known| {
            let changed = *known != places;
            *known = places;
            changed
        });
    }
}

async fn run(mut places: watch::Receiver<Places>) {
    let mut schedule = AnnouncementSchedule::default();
    loop {
        let next = schedule.next();
        let timer = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = places.changed() => {
                if changed.is_err() {
                    return;
                }
                schedule.follow(&places.borrow_and_update(), Instant::now());
            }
            () = timer => {}
        }
        let now = Instant::now();
        for (address, place) in schedule.ready(now) {
            let said = send(address, place);
            match &said {
                Ok(()) => {
                    tracing::debug!(%address, mac = format_mac(&place.mac), "told the neighbours");
                }
                Err(error) => tracing::debug!(%address, %error, "the neighbours cannot be told"),
            }
            let ended = schedule.done(address, said.is_ok(), now);
            if let (true, Err(error)) = (ended, said) {
                tracing::warn!(%address, %error, "neighbours were not told of the address; they notice within a minute");
            }
        }
    }
}

fn send(address: IpAddr, place: Place) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => announcement(address, place),
        IpAddr::V6(address) => advertisement(address, place),
    }
}

/// An ARP announcement: a request for the address by itself.
fn announcement(address: Ipv4Addr, place: Place) -> io::Result<()> {
    let protocol = Protocol::from(i32::from(ARP.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking(), Some(protocol))?;
    let packet = arp(address, place.mac);
    socket.send_to(&packet, &broadcast(place.index)?).map(drop)
}

/// RFC 826: Ethernet, IPv4, request.
fn arp(address: Ipv4Addr, mac: Mac) -> [u8; 28] {
    let mut packet = [0; 28];
    packet[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    packet[8..14].copy_from_slice(&mac);
    packet[14..18].copy_from_slice(&address.octets());
    packet[24..28].copy_from_slice(&address.octets());
    packet
}

/// Everybody on an Ethernet link.
#[allow(
    unsafe_code,
    reason = "no safe wrapper among our crates makes a packet address"
)]
fn broadcast(index: u32) -> io::Result<SockAddr> {
    let family = libc::sa_family_t::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    let octets = std::mem::size_of::<libc::sockaddr_ll>();
    let octets = libc::socklen_t::try_from(octets).map_err(io::Error::other)?;
    // SAFETY: the storage is zeroed and large enough for every kind of address; what is written is
    // a whole `sockaddr_ll` with its family and its size (packet(7)).
    let made = unsafe {
        SockAddr::try_init(|storage, length| {
            let place = storage.cast::<libc::sockaddr_ll>();
            place.write(libc::sockaddr_ll {
                sll_family: family,
                sll_protocol: ARP.to_be(),
                sll_ifindex: index.cast_signed(),
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 6,
                sll_addr: [255, 255, 255, 255, 255, 255, 0, 0],
            });
            length.write(octets);
            Ok(())
        })
    };
    made.map(|((), address)| address)
}

/// An unsolicited neighbour advertisement.
fn advertisement(address: Ipv6Addr, place: Place) -> io::Result<()> {
    let socket = Socket::new(
        Domain::IPV6,
        Type::RAW.nonblocking(),
        Some(Protocol::ICMPV6),
    )?;
    // RFC 4861 §7.1.2: anything less has been through a router and is not believed.
    socket.set_multicast_hops_v6(255)?;
    socket.set_multicast_if_v6(place.index)?;
    socket.set_multicast_loop_v6(false)?;
    let scope = if address.is_unicast_link_local() {
        place.index
    } else {
        0
    };
    socket.bind(&SockAddr::from(SocketAddrV6::new(address, 0, 0, scope)))?;
    let to = SocketAddrV6::new(ALL_NODES, 0, 0, place.index);
    socket
        .send_to(&neighbour(address, place), &to.into())
        .map(drop)
}

/// RFC 4861 §4.4, with the option of the target's link-layer address. The kernel makes the checksum
/// (RFC 3542 §3.1).
fn neighbour(address: Ipv6Addr, place: Place) -> [u8; 32] {
    const ROUTER: u8 = 0x80;
    const OVERRIDE: u8 = 0x20;
    let mut packet = [0; 32];
    packet[0] = 136;
    packet[4] = OVERRIDE | if place.router { ROUTER } else { 0 };
    packet[8..24].copy_from_slice(&address.octets());
    packet[24..26].copy_from_slice(&[2, 1]);
    packet[26..32].copy_from_slice(&place.mac);
    packet
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::links::Link;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    fn node() -> Node {
        let text = r#"{"metadata":{"name":"a"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64"}}}"#;
        Node::from_json(text.as_bytes()).unwrap()
    }

    fn link() -> Link {
        let mut link = Link::new(7, "eth0");
        link.mac = Some(MAC);
        for address in ["10.0.0.1/24", "10.0.0.9/24", "fd00::1/64", "fe80::7/64"] {
            link.addresses.push(address.parse().unwrap());
        }
        link
    }

    #[test]
    fn the_nodes_addresses_are_told_where_somebody_hears() {
        let addresses = |link: Link| {
            let links: Links = [link].into_iter().collect();
            let places = places(&node(), &links, true);
            places.keys().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(link()), ["10.0.0.1", "fd00::1", "fe80::7"]);
        for silent in [
            |link: &mut Link| link.carrier = false,
            |link: &mut Link| link.up = false,
            |link: &mut Link| link.mac = None,
        ] {
            let mut link = link();
            silent(&mut link);
            assert_eq!(addresses(link), [] as [&str; 0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_said_three_times_and_what_is_gone_is_not() {
        let mut schedule = AnnouncementSchedule::default();
        let links: Links = [link()].into_iter().collect();
        let here = places(&node(), &links, false);
        let start = Instant::now();
        schedule.follow(&here, start);
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        for second in 0..REPEATS {
            let now = start + SPACING * second;
            assert_eq!(schedule.ready(now).len(), 3, "{second}");
            for (address, _) in schedule.ready(now) {
                schedule.done(address, true, now);
            }
            assert_eq!(schedule.ready(now), []);
        }
        assert_eq!(schedule.next(), None);
        schedule.follow(&here, start);
        assert_eq!(schedule.next(), None, "nothing has changed");
        // Another card.
        let mut there = here.clone();
        there.get_mut(&own).unwrap().mac = [2, 0, 0, 0, 0, 8];
        schedule.follow(&there, start);
        let ready = schedule.ready(start);
        assert_eq!(ready, [(own, there[&own])]);
        schedule.follow(&Places::new(), start);
        assert_eq!(schedule.next(), None);
        // The cable comes back.
        schedule.follow(&there, start);
        assert_eq!(schedule.ready(start).len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_said_yet_is_tried_again_and_given_up() {
        let mut schedule = AnnouncementSchedule::default();
        let links: Links = [link()].into_iter().collect();
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let now = Instant::now();
        schedule.follow(&places(&node(), &links, false), now);
        for _ in 1..ATTEMPTS {
            assert!(!schedule.done(own, false, now));
        }
        assert!(schedule.done(own, false, now));
        assert!(!schedule.due.contains_key(&own));
    }

    #[test]
    fn rfc5227_an_announcement_asks_for_its_own_address() {
        let packet = arp([10, 0, 0, 1].into(), MAC);
        let expected = [
            &[0, 1, 8, 0, 6, 4, 0, 1][..],
            &MAC,
            &[10, 0, 0, 1],
            &[0; 6],
            &[10, 0, 0, 1],
        ];
        assert_eq!(packet.to_vec(), expected.concat());
    }

    #[test]
    fn rfc4861_4_4_an_advertisement_overrides_and_is_unsolicited() {
        let place = Place {
            index: 7,
            mac: MAC,
            router: true,
        };
        let address: Ipv6Addr = "fd00::1".parse().unwrap();
        let expected = [
            &[136, 0, 0, 0, 0xa0, 0, 0, 0][..],
            &address.octets(),
            &[2, 1],
            &MAC,
        ];
        assert_eq!(neighbour(address, place).to_vec(), expected.concat());
    }
}
