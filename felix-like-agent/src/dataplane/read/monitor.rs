//! Changes of links, addresses, neighbours and routes by others, as hints: "look again"
//! ([`crate::dataplane::read::hints`]).

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};

use crate::dataplane::netlink::NetlinkError;
use crate::dataplane::netlink::framing::{HEADER, attributes, half, word};
use crate::dataplane::read::MAIN_TABLE;
use crate::dataplane::read::hints::{Listener, listen};
use crate::dataplane::read::neighbours::FdbNews;

/// `RTNLGRP_*` of links, neighbours, IPv4 and IPv6 addresses and routes, as bits of the bind
/// address.
const GROUPS: u32 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10;
/// `RTM_*`.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
/// `NUD_PERMANENT`.
const PERMANENT: u16 = 0x80;
/// `RTM_F_CLONED`: an entry of the routing cache.
const CLONED: u32 = 0x200;
/// `RTA_TABLE`.
const TABLE: u16 = 15;
/// Octets of `struct rtmsg`.
const RTMSG: usize = 12;

/// Listens in the calling thread's namespace and notifies `wake_up` of each change that did not
/// come from the netlink socket `own_port`. One wake-up may stand for many changes. Of FDB entries
/// it is not known whose doing a change was: they go to `fdb`, and to `wake_up` when it is full.
pub(in crate::dataplane) fn start(
    wake_up: Arc<Notify>,
    own_port: u32,
    fdb: mpsc::Sender<FdbNews>,
) -> Result<Listener, NetlinkError> {
    let route = netlink_sys::protocols::NETLINK_ROUTE;
    let is_hint = move |message: &[u8]| match fdb_news(message) {
        Some(news) => fdb.try_send(news).is_err(),
        None => is_hint(message, own_port, &[MAIN_TABLE]).unwrap_or(false),
    };
    listen(route, GROUPS, wake_up, Some(own_port), is_hint)
}

fn fdb_news(message: &[u8]) -> Option<FdbNews> {
    let kind = half(message, 4)?;
    let is_neighbour = kind == NEW_NEIGHBOUR || kind == DELETE_NEIGHBOUR;
    FdbNews::parse(message).filter(|_| is_neighbour && word(message, 12) == Some(0))
}

/// The same with routes of these tables, and FDB entries among the rest.
pub(in crate::dataplane) fn start_for(
    wake_up: Arc<Notify>,
    own_port: u32,
    tables: Vec<u32>,
) -> Result<Listener, NetlinkError> {
    let route = netlink_sys::protocols::NETLINK_ROUTE;
    let is_hint = move |message: &[u8]| is_hint(message, own_port, &tables).unwrap_or(false);
    listen(route, GROUPS, wake_up, Some(own_port), is_hint)
}

/// `None` for what is too short to be a message.
fn is_hint(message: &[u8], own_port: u32, tables: &[u32]) -> Option<bool> {
    let port = word(message, 12)?;
    if port == own_port {
        return Some(false);
    }
    Some(match half(message, 4)? {
        NEW_LINK | DELETE_LINK | NEW_ADDRESS | DELETE_ADDRESS => true,
        NEW_ROUTE | DELETE_ROUTE => {
            word(message, HEADER + 8)? & CLONED == 0 && tables.contains(&table(message)?)
        }
        // Dynamic neighbours come and go all the time and are not ours. A permanent one that
        // somebody deletes is told as a failed one; but then it was somebody, and not the kernel
        // itself, whose port is zero.
        NEW_NEIGHBOUR | DELETE_NEIGHBOUR => half(message, HEADER + 8)? == PERMANENT || port != 0,
        _ => false,
    })
}

/// The table of a route.
fn table(message: &[u8]) -> Option<u32> {
    let mut attributes = attributes(message.get(HEADER + RTMSG..)?);
    let number = attributes.find(|(kind, _)| *kind == TABLE);
    match number {
        Some((_, number)) => word(number, 0),
        None => message.get(HEADER + 4).map(|table| u32::from(*table)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use netlink_packet_core::NetlinkMessage;
    use netlink_packet_route::neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
    };
    use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
    use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

    use super::*;

    fn hint(inner: RouteNetlinkMessage, port: u32) -> bool {
        let mut message = NetlinkMessage::from(inner);
        message.header.port_number = port;
        message.finalize();
        let mut octets = vec![0; message.buffer_len()];
        message.serialize(&mut octets);
        let found = is_hint(&octets, 7, &[MAIN_TABLE]).unwrap();
        // Cut off anywhere it is something or nothing, and never a panic.
        for cut in 0..octets.len() {
            let _cut = is_hint(&octets[..cut], 7, &[MAIN_TABLE]);
        }
        found
    }

    #[test]
    fn only_changes_of_others_are_hints() {
        let mut route = RouteMessage::default();
        route.header.table = 254;
        let deleted = RouteNetlinkMessage::DelRoute(route.clone());
        assert!(hint(deleted.clone(), 0));
        assert!(!hint(deleted, 7), "our own change");
        route.header.flags = RouteFlags::Cloned;
        let cached = RouteNetlinkMessage::NewRoute(route.clone());
        assert!(!hint(cached, 0), "the routing cache");
        route.header.flags = RouteFlags::empty();
        route.header.table = 255;
        let local = RouteNetlinkMessage::NewRoute(route.clone());
        assert!(!hint(local, 0), "the local table");
        route.attributes = vec![RouteAttribute::Table(MAIN_TABLE)];
        assert!(hint(RouteNetlinkMessage::NewRoute(route), 0));
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.state = NeighbourState::Stale;
        let stale = RouteNetlinkMessage::NewNeighbour(neighbour.clone());
        assert!(!hint(stale.clone(), 0));
        assert!(hint(stale.clone(), 9), "by a program's request");
        assert!(!hint(stale, 7), "by our own");
        neighbour.header.state = NeighbourState::Permanent;
        assert!(hint(RouteNetlinkMessage::DelNeighbour(neighbour), 0));
    }

    #[test]
    fn changes_of_fdb_entries_are_told_with_what_changed() {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = 9;
        message.header.state = NeighbourState::Permanent;
        let mac = [0x66, 0, 0, 0, 0, 1];
        message.attributes = vec![
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 0, 2].into())),
        ];
        let told = |inner: RouteNetlinkMessage, port: u32| {
            let mut message = NetlinkMessage::from(inner);
            message.header.port_number = port;
            message.finalize();
            let mut octets = vec![0; message.buffer_len()];
            message.serialize(&mut octets);
            for cut in 0..octets.len() {
                let _cut = fdb_news(&octets[..cut]);
            }
            fdb_news(&octets)
        };
        let news = |is_there| FdbNews {
            index: 9,
            mac,
            remote: [10, 0, 0, 2].into(),
            is_there,
        };
        let new = RouteNetlinkMessage::NewNeighbour(message.clone());
        assert_eq!(told(new.clone(), 0), Some(news(true)));
        assert_eq!(told(new, 7), None, "a socket is named");
        let gone = RouteNetlinkMessage::DelNeighbour(message.clone());
        assert_eq!(told(gone, 0), Some(news(false)));
        // A bridge's own entry has no destination, and a neighbour is none.
        let mut bridges = message.clone();
        bridges.attributes.truncate(1);
        assert_eq!(told(RouteNetlinkMessage::NewNeighbour(bridges), 0), None);
        message.header.family = AddressFamily::Inet;
        assert_eq!(told(RouteNetlinkMessage::NewNeighbour(message), 0), None);
    }
}
