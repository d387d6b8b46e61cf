//! The table as an MRT file: TABLE_DUMP_V2 (RFC 6396 §4.3), with the additional-path subtypes of
//! RFC 8050 where peers send several paths per prefix. What import policy lets pass is in it, as
//! policy leaves it.

use std::net::{IpAddr, Ipv4Addr};

use bytes::{BufMut, BytesMut};
use caracal_model::{Family, Prefix};

use super::scan::{RouteQuery, RouteTable};
use super::table::Path;
use super::{PeerId, Rib};
use crate::types::{Asn, PeerName, RouterId};
use crate::wire::nlri;
use crate::wire::update::encode_table_attributes;

/// MRT type TABLE_DUMP_V2 (RFC 6396 §4.3).
const TYPE: u16 = 13;
const PEER_INDEX_TABLE: u16 = 1;

/// The subtype for a family, without and with path identifiers.
const fn subtype(family: Family, paths: bool) -> u16 {
    match (family, paths) {
        (Family::Ipv4, false) => 2,
        (Family::Ipv6, false) => 4,
        (Family::Ipv4, true) => 8,
        (Family::Ipv6, true) => 10,
    }
}

/// Appends a record around `body`.
fn record(time: u32, subtype: u16, out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    out.put_u32(time);
    out.put_u16(TYPE);
    out.put_u16(subtype);
    let at = out.len();
    out.put_u32(0);
    body(out);
    let len = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

fn put_peer(id: RouterId, address: IpAddr, asn: Asn, out: &mut BytesMut) {
    // Bit 0: IPv6; bit 1: four octets of AS number.
    out.put_u8(2 | u8::from(address.is_ipv6()));
    out.put_u32(id.number());
    match address {
        IpAddr::V4(v4) => out.put_slice(&v4.octets()),
        IpAddr::V6(v6) => out.put_slice(&v6.octets()),
    }
    out.put_u32(asn.0);
}

/// How far a dump is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrtProgress {
    /// Number of the next record.
    pub sequence: u32,
    /// Paths that no record can hold: an entry has 65,535 octets of attributes at most, and a
    /// prefix as many entries (RFC 6396 §4.3.4).
    pub left_out: usize,
}

/// The peers of a dump, in the order of its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MrtPeers(Vec<PeerName>);

impl Rib {
    /// All usable paths. `time`: seconds of Unix time, for the records and for the routes, whose
    /// age is not kept.
    #[must_use]
    pub fn mrt(&self, time: u32) -> BytesMut {
        let (mut out, peers) = self.mrt_index(time);
        let all = RouteQuery::all(RouteTable::Routes);
        let mut prefixes = self.scan(&all, 0..self.slots()).unwrap_or_default();
        prefixes.sort_unstable();
        self.mrt_records(time, &peers, MrtProgress::default(), &prefixes, &mut out);
        out
    }

    /// The first record of a dump, and what those that follow refer to.
    #[must_use]
    pub fn mrt_index(&self, time: u32) -> (BytesMut, MrtPeers) {
        let mut out = BytesMut::new();
        let peers = MrtPeers(
            self.peers
                .iter()
                .map(|(_, peer)| peer.name.clone())
                .collect(),
        );
        record(time, PEER_INDEX_TABLE, &mut out, |out| {
            self.put_index(&peers, out)
        });
        (out, peers)
    }

    /// Appends the records of these prefixes, and says how far the dump is then. A peer that was
    /// not there when the dump began has no entry in its peer table, and
    /// its paths are left out.
    pub fn mrt_records(
        &self,
        time: u32,
        peers: &MrtPeers,
        mut progress: MrtProgress,
        prefixes: &[Prefix],
        out: &mut BytesMut,
    ) -> MrtProgress {
        let indices = self.mrt_indices(peers);
        for prefix in prefixes {
            let Some(id) = self.table.find(prefix) else {
                continue;
            };
            let dest = self.table.get(id);
            let entry = |path: &'_ Path| {
                let owner = self.peers.paths.owner(path.peer);
                indices.get(owner.index()).copied().flatten()
            };
            let usable = |path: &&Path| path.accepted().is_some() && entry(path).is_some();
            let paths: Vec<&Path> = dest.paths().iter().filter(usable).collect();
            if paths.is_empty() {
                continue;
            }
            let with_identifier = |path: &&Path| self.peers.paths.path_id(path.peer).is_some();
            let with_ids = paths.iter().any(with_identifier);
            let subtype = subtype(dest.prefix.family(), with_ids);
            let (before, mut written) = (out.len(), 0_u16);
            record(time, subtype, out, |out| {
                out.put_u32(progress.sequence);
                nlri::encode(&dest.prefix, out);
                let at = out.len();
                out.put_u16(0);
                for path in &paths {
                    let index = entry(path).unwrap_or_default();
                    if written == u16::MAX || !self.put_entry(time, path, index, with_ids, out) {
                        progress.left_out += 1;
                    } else {
                        written += 1;
                    }
                }
                out[at..at + 2].copy_from_slice(&written.to_be_bytes());
            });
            if written == 0 {
                out.truncate(before);
            } else {
                progress.sequence = progress.sequence.wrapping_add(1);
            }
        }
        progress
    }

    /// For each peer, by its handle, its index in the peer table of a dump.
    fn mrt_indices(&self, peers: &MrtPeers) -> Vec<Option<u16>> {
        let mut indices = vec![None; 1];
        indices[PeerId::LOCAL.index()] = Some(0);
        for (n, name) in peers.0.iter().enumerate() {
            let Some(id) = self.peers.id(name) else {
                continue;
            };
            if indices.len() <= id.index() {
                indices.resize(id.index() + 1, None);
            }
            indices[id.index()] = u16::try_from(n + 1).ok();
        }
        indices
    }

    /// The collector, which is us, and the peers; entry 0 stands for ourselves.
    fn put_index(&self, peers: &MrtPeers, out: &mut BytesMut) {
        out.put_u32(self.config.router_id.number());
        out.put_u16(0);
        out.put_u16(u16::try_from(peers.0.len() + 1).unwrap_or(u16::MAX));
        let own = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        put_peer(self.config.router_id, own, self.config.local_as, out);
        let peers = peers.0.iter().filter_map(|name| self.peers.id(name));
        for peer in peers.filter_map(|id| self.peers.get(id)) {
            let session = peer.session.as_ref();
            let unknown = RouterId(Ipv4Addr::UNSPECIFIED);
            let id = session.map_or(unknown, |session| session.router_id);
            put_peer(id, peer.config.address, peer.config.remote_as, out);
        }
    }

    /// Appends an entry; false, and nothing, when its attributes are too long.
    fn put_entry(
        &self,
        time: u32,
        path: &Path,
        index: u16,
        with_ids: bool,
        out: &mut BytesMut,
    ) -> bool {
        let before = out.len();
        out.put_u16(index);
        out.put_u32(time);
        if with_ids {
            out.put_u32(self.peers.paths.path_id(path.peer).unwrap_or_default());
        }
        let at = out.len();
        out.put_u16(0);
        if let Some(attrs) = path.accepted() {
            encode_table_attributes(attrs, out);
        }
        let Ok(len) = u16::try_from(out.len() - at - 2) else {
            out.truncate(before);
            return false;
        };
        out[at..at + 2].copy_from_slice(&len.to_be_bytes());
        true
    }
}
