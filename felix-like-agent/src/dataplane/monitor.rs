//! The kernel's notifications, as hints: "look again". What changed is read from the kernel, never from a
//! notification, so a lost one costs time and not truth.

use std::sync::Arc;

use futures_util::StreamExt;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::NeighbourState;
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use netlink_sys::{AsyncSocket, SocketAddr};
use tokio::sync::Notify;

use super::netlink::NetlinkError;
use super::read::MAIN_TABLE;

/// Octets asked for the receive buffer: a table of routes may change at once.
const RECEIVE_BUFFER: u32 = 4 << 20;

/// `RTNLGRP_*` of links, neighbours, IPv4 and IPv6 addresses and routes, as bits of the bind address.
const GROUPS: u32 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10;

/// A running monitor. Ends when dropped.
#[derive(Debug)]
pub(super) struct Monitor {
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for Monitor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Monitor {
    /// Listens in the calling thread's namespace and rings `bell` for each change that did not come from the netlink socket
    /// `own_port`. One ring may stand for many changes.
    pub(super) fn start(bell: Arc<Notify>, own_port: u32) -> Result<Self, NetlinkError> {
        Self::start_for(bell, own_port, vec![MAIN_TABLE])
    }

    /// The same with routes of these tables.
    pub(super) fn start_for(
        bell: Arc<Notify>,
        own_port: u32,
        tables: Vec<u32>,
    ) -> Result<Self, NetlinkError> {
        let (mut connection, handle, mut messages) =
            netlink_proto::new_connection::<RouteNetlinkMessage>(
                netlink_sys::protocols::NETLINK_ROUTE,
            )
            .map_err(NetlinkError::Open)?;
        let socket = connection.socket_mut().socket_mut();
        socket
            .set_rx_buf_sz(RECEIVE_BUFFER)
            .map_err(NetlinkError::Open)?;
        socket
            .bind(&SocketAddr::new(0, GROUPS))
            .map_err(NetlinkError::Open)?;
        let listener = async move {
            // Held, for the connection ends when nobody can send requests.
            let _requests = handle;
            while let Some((message, _)) = messages.next().await {
                if matches!(message.payload, NetlinkPayload::Overrun(_)) {
                    tracing::warn!(
                        "the kernel's notifications came faster than they were read, and some are lost; everything is read again"
                    );
                }
                if is_hint(&message, own_port, &tables) {
                    bell.notify_one();
                }
            }
            // The socket is gone: the resync timer is what is left.
            tracing::error!(
                "the netlink monitor ended; changes by others are seen at the next resync only"
            );
        };
        Ok(Self {
            tasks: [tokio::spawn(connection), tokio::spawn(listener)],
        })
    }
}

fn is_hint(message: &NetlinkMessage<RouteNetlinkMessage>, own_port: u32, tables: &[u32]) -> bool {
    let inner = match &message.payload {
        // Notifications were lost.
        NetlinkPayload::Overrun(_) => return true,
        NetlinkPayload::InnerMessage(inner) => inner,
        _ => return false,
    };
    if message.header.port_number == own_port {
        return false;
    }
    match inner {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            is_in(route, tables)
        }
        // Dynamic neighbours come and go all the time and are not ours. A permanent one that somebody deletes is told as a
        // failed one; but then it was somebody, and not the kernel itself, whose port is zero.
        RouteNetlinkMessage::NewNeighbour(n) | RouteNetlinkMessage::DelNeighbour(n) => {
            n.header.state == NeighbourState::Permanent || message.header.port_number != 0
        }
        RouteNetlinkMessage::NewLink(_)
        | RouteNetlinkMessage::DelLink(_)
        | RouteNetlinkMessage::NewAddress(_)
        | RouteNetlinkMessage::DelAddress(_) => true,
        _ => false,
    }
}

fn is_in(route: &RouteMessage, tables: &[u32]) -> bool {
    let number = route.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(number) => Some(*number),
        _ => None,
    });
    let table = number.unwrap_or_else(|| route.header.table.into());
    tables.contains(&table) && !route.header.flags.contains(RouteFlags::Cloned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::neighbour::NeighbourMessage;

    fn message(inner: RouteNetlinkMessage, port: u32) -> NetlinkMessage<RouteNetlinkMessage> {
        let mut message = NetlinkMessage::from(inner);
        message.header.port_number = port;
        message
    }

    #[test]
    fn only_changes_of_others_are_hints() {
        let mut route = RouteMessage::default();
        route.header.table = 254;
        let deleted = RouteNetlinkMessage::DelRoute(route.clone());
        assert!(is_hint(&message(deleted.clone(), 0), 7, &[MAIN_TABLE]));
        assert!(
            !is_hint(&message(deleted, 7), 7, &[MAIN_TABLE]),
            "our own change"
        );
        route.header.table = 255;
        let local = RouteNetlinkMessage::NewRoute(route);
        assert!(
            !is_hint(&message(local, 0), 7, &[MAIN_TABLE]),
            "the local table"
        );
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.state = NeighbourState::Stale;
        let stale = RouteNetlinkMessage::NewNeighbour(neighbour.clone());
        assert!(!is_hint(&message(stale.clone(), 0), 7, &[MAIN_TABLE]));
        assert!(
            is_hint(&message(stale.clone(), 9), 7, &[MAIN_TABLE]),
            "by a program's request"
        );
        assert!(!is_hint(&message(stale, 7), 7, &[MAIN_TABLE]), "by our own");
        neighbour.header.state = NeighbourState::Permanent;
        let gone = RouteNetlinkMessage::DelNeighbour(neighbour);
        assert!(is_hint(&message(gone, 0), 7, &[MAIN_TABLE]));
    }
}
