//! Neighbours and FDB entries from netlink's language (`struct ndmsg`): two for each other node of
//! a cluster.

use std::net::IpAddr;

use caracal_model::Mac;

use super::routes::address;
use crate::actual::ActualNeighbour;
use crate::dataplane::netlink::framing::{HEADER, attributes, half, word};
use crate::dataplane::netlink::{Message, Netlink, NetlinkError, Request};
use crate::kernel_objects::{FdbKey, NeighbourKey};
use crate::links::{Link, Links};

/// `RTM_NEWNEIGH`, `RTM_GETNEIGH`.
const NEW: u16 = 28;
const GET: u16 = 30;
/// Octets of `struct ndmsg`.
const NDMSG: usize = 12;
/// `AF_BRIDGE`.
const BRIDGE: u8 = 7;
/// `NDA_*`.
const DESTINATION: u16 = 1;
const LINK_LAYER_ADDRESS: u16 = 2;
/// `NUD_PERMANENT`.
const PERMANENT: u16 = 0x80;

/// A request for the entries of a family, of one interface where it is not zero.
fn request(family: u8, index: u32) -> Request {
    let mut body = vec![0; NDMSG];
    body[0] = family;
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    Request {
        message: Message::Raw { kind: GET, body },
        flags: 0,
    }
}

/// Reads the neighbours on these interfaces.
pub(super) async fn read(
    netlink: &mut Netlink,
    links: &Links,
) -> Result<Vec<(NeighbourKey, ActualNeighbour)>, NetlinkError> {
    let read = |message: &[u8]| neighbour(message, links);
    netlink.dump_each("neighbours", request(0, 0), read).await
}

/// Reads the FDB entries of a VXLAN device that have a destination.
pub(super) async fn read_fdb(
    netlink: &mut Netlink,
    link: &Link,
) -> Result<Vec<(FdbKey, IpAddr)>, NetlinkError> {
    let read = |message: &[u8]| fdb_entry(message, link);
    let request = request(BRIDGE, link.index);
    netlink.dump_each("FDB entries", request, read).await
}

/// An FDB entry with a destination that came or went, as the kernel tells of it. It does not say
/// whose doing it was: VXLAN devices leave the socket's number out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dataplane) struct FdbNews {
    /// Index of the device.
    pub(in crate::dataplane) index: u32,
    pub(in crate::dataplane) mac: Mac,
    pub(in crate::dataplane) remote: IpAddr,
    /// False: it is gone.
    pub(in crate::dataplane) is_there: bool,
}

impl FdbNews {
    /// `None` for any other message.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        if *message.get(HEADER)? != BRIDGE {
            return None;
        }
        let entry = Entry::parse_any(message)?;
        Some(Self {
            index: entry.index,
            mac: entry.mac()?,
            remote: entry.destination?,
            is_there: half(message, 4)? == NEW,
        })
    }
}

/// An entry as the kernel tells it: interface, state, and the two addresses.
struct Entry<'a> {
    index: u32,
    state: u16,
    destination: Option<IpAddr>,
    mac: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Reads an entry that came or changed.
    fn parse(message: &'a [u8]) -> Option<Self> {
        match half(message, 4)? {
            NEW => Self::parse_any(message),
            _ => None,
        }
    }

    /// The same of one that went.
    fn parse_any(message: &'a [u8]) -> Option<Self> {
        let mut entry = Self {
            index: word(message, HEADER + 4)?,
            state: half(message, HEADER + 8)?,
            destination: None,
            mac: &[],
        };
        for (kind, value) in attributes(message.get(HEADER + NDMSG..)?) {
            match kind {
                DESTINATION => entry.destination = address(value),
                LINK_LAYER_ADDRESS => entry.mac = value,
                _ => {}
            }
        }
        Some(entry)
    }

    fn mac(&self) -> Option<Mac> {
        self.mac.try_into().ok()
    }
}

fn neighbour(message: &[u8], links: &Links) -> Option<(NeighbourKey, ActualNeighbour)> {
    let entry = Entry::parse(message)?;
    let key = NeighbourKey {
        link: links.by_index(entry.index)?.name.clone(),
        address: entry.destination?,
    };
    let neighbour = ActualNeighbour {
        mac: entry.mac(),
        permanent: entry.state == PERMANENT,
    };
    Some((key, neighbour))
}

fn fdb_entry(message: &[u8], link: &Link) -> Option<(FdbKey, IpAddr)> {
    let entry = Entry::parse(message)?;
    let key = FdbKey {
        link: link.name.clone(),
        mac: entry.mac()?,
    };
    (entry.index == link.index).then_some((key, entry.destination?))
}
