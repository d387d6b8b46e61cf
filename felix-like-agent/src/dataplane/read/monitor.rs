//! Changes of links, addresses, neighbours and routes by others, as hints: "look again"
//! ([`crate::dataplane::read::hints`]).

use std::sync::Arc;

use tokio::sync::Notify;

use crate::dataplane::netlink::NetlinkError;
use crate::dataplane::netlink::framing::{HEADER, attributes, half, word};
use crate::dataplane::read::MAIN_TABLE;
use crate::dataplane::read::hints::{Listener, listen};

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
/// come from the netlink socket `own_port`. One wake-up may stand for many changes.
pub(in crate::dataplane) fn start(
    wake_up: Arc<Notify>,
    own_port: u32,
) -> Result<Listener, NetlinkError> {
    start_for(wake_up, own_port, vec![MAIN_TABLE])
}

/// The same with routes of these tables.
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
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
    use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};

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
}
