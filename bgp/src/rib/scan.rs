//! Questions about many routes, answered in slices: the prefixes first, then the routes of a few
//! prefixes at a time.
//!
//! Each call looks at a bounded part of the table and keeps nothing, so whoever asks decides how
//! fast the answer is read and a question that is given up costs nothing more. The routes of one
//! prefix belong together; the answer as a whole is no snapshot: a prefix that comes after its
//! slot was passed is not in it, one that goes is left out.
//!
//! The expensive part, printing attributes, is done by the caller: a record shares them with the
//! table.

use std::ops::Range;
use std::sync::Arc;

use caracal_model::Prefix;

use super::decision::{Candidate, Decision};
use super::dest_id::DestId;
use super::next_hops::ResolvedNextHop;
use super::out::{Group, Member, PathId};
use super::select::candidate;
use super::table::{Dest, Path};
use super::view::{AdvertisedRoute, AttrsInfo, PathStatus, RouteInfo};
use super::{PeerId, PeerState, Rib};
use crate::attrs::PathAttrs;
use crate::types::PeerName;

/// Which routes are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTable {
    /// All paths that are not refused.
    Routes,
    /// The Adj-RIB-In of a peer, refused routes included.
    Received(PeerName),
    /// The Adj-RIB-Out of a peer; empty without a session.
    Advertised(PeerName),
}

/// A question about many routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// Table that is searched.
    pub table: RouteTable,
    /// Answers only routes to this prefix.
    pub prefix: Option<Prefix>,
    /// The more specific ones of `prefix`, too.
    pub longer: bool,
    /// Only paths from this peer.
    pub from: Option<PeerName>,
    /// Answers only best paths.
    pub best: bool,
}

impl RouteQuery {
    /// Everything in a table.
    #[must_use]
    pub const fn all(table: RouteTable) -> Self {
        Self {
            table,
            prefix: None,
            longer: false,
            from: None,
            best: false,
        }
    }

    fn wants(&self, prefix: &Prefix) -> bool {
        match self.prefix {
            Some(wanted) if self.longer => wanted.covers(prefix),
            Some(wanted) => wanted == *prefix,
            None => true,
        }
    }
}

/// A path as it is in the table, cheap to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRecord {
    /// Destination of the route.
    pub prefix: Prefix,
    /// The peer that sent it; `None` for a route of ours.
    pub peer: Option<PeerName>,
    /// The identifier with which it was sent, or is sent (RFC 7911).
    pub path_id: Option<u32>,
    /// After import policy, or as received when refused; as sent in an Adj-RIB-Out.
    pub attrs: Arc<PathAttrs>,
    /// Kept while the peer restarts.
    pub stale: bool,
    /// Gateway and interface of the next hop, where they are tracked.
    pub way: Option<ResolvedNextHop>,
    /// Result of the origin check, where there is one.
    pub origin_check: Option<String>,
    /// Result of import and decision; `None` in an Adj-RIB-Out.
    pub status: Option<PathStatus>,
}

impl From<RouteRecord> for RouteInfo {
    fn from(record: RouteRecord) -> Self {
        Self {
            prefix: record.prefix,
            peer: record.peer,
            path_id: record.path_id,
            attrs: AttrsInfo::from(&*record.attrs),
            stale: record.stale,
            way: record.way,
            origin_check: record.origin_check,
            status: record.status.unwrap_or(PathStatus::Unreachable),
        }
    }
}

impl From<RouteRecord> for AdvertisedRoute {
    fn from(record: RouteRecord) -> Self {
        Self {
            prefix: record.prefix,
            path_id: record.path_id,
            attrs: AttrsInfo::from(&*record.attrs),
        }
    }
}

impl Rib {
    /// The number of slots for destinations; a scan goes from 0 to this.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.table.slots()
    }

    /// The prefixes at these slots that a question is about, in no particular order. `None`: there
    /// is no such peer.
    #[must_use]
    pub fn scan(&self, query: &RouteQuery, slots: Range<usize>) -> Option<Vec<Prefix>> {
        let from = match &query.table {
            RouteTable::Received(peer) => Some(self.peer_id(peer)?),
            RouteTable::Advertised(peer) => return self.scan_advertised(query, peer, slots),
            RouteTable::Routes => match &query.from {
                Some(peer) => Some(self.peer_id(peer)?),
                None => None,
            },
        };
        let has = |dest: &Dest| match from {
            Some(id) => {
                let mut paths = dest.paths().iter();
                paths.any(|path| self.peers.owns(id, path.peer))
            }
            None => !dest.paths().is_empty(),
        };
        let wanted = |(_, dest): &(DestId, &Dest)| query.wants(&dest.prefix) && has(dest);
        let dests = self.table.at(slots).filter(wanted);
        Some(dests.map(|(_, dest)| dest.prefix).collect())
    }

    fn scan_advertised(
        &self,
        query: &RouteQuery,
        peer: &PeerName,
        slots: Range<usize>,
    ) -> Option<Vec<Prefix>> {
        let id = self.peer_id(peer)?;
        let Some((group, member)) = self.membership(id) else {
            return Some(Vec::new());
        };
        let is_advertised = |id: DestId| group.advertised(id, member).next().is_some();
        let wanted = |(id, dest): &(DestId, &Dest)| query.wants(&dest.prefix) && is_advertised(*id);
        let dests = self.table.at(slots).filter(wanted);
        Some(dests.map(|(_, dest)| dest.prefix).collect())
    }

    /// The routes of the first of these prefixes, of at least one and of no more once there are
    /// `limit` routes; and of how many prefixes. Prefixes that are gone have none.
    #[must_use]
    pub fn route_records(
        &self,
        query: &RouteQuery,
        prefixes: &[Prefix],
        limit: usize,
    ) -> (Vec<RouteRecord>, usize) {
        let mut found = Vec::new();
        let out = match &query.table {
            RouteTable::Advertised(peer) => self.peer_id(peer).map(|id| self.membership(id)),
            _ => None,
        };
        for (n, prefix) in prefixes.iter().enumerate() {
            if n > 0 && found.len() >= limit {
                return (found, n);
            }
            let Some(id) = self.table.find(prefix) else {
                continue;
            };
            match out {
                Some(Some((group, member))) => {
                    let peer = self.peers.get(member.peer);
                    sent_records(*prefix, id, (group, member, peer), &mut found);
                }
                Some(None) => {}
                None => self.add_records(query, self.table.get(id), &mut found),
            }
        }
        (found, prefixes.len())
    }

    fn add_records(&self, query: &RouteQuery, dest: &Dest, found: &mut Vec<RouteRecord>) {
        let (from, refused) = match &query.table {
            RouteTable::Received(peer) => (Some(peer), true),
            _ => (None, false),
        };
        let wanted = |route: &RouteRecord| {
            let is_from = |peer: Option<&PeerName>| peer.is_none() || route.peer.as_ref() == peer;
            let best = matches!(route.status, Some(PathStatus::Best { .. }));
            let is_refused = matches!(route.status, Some(PathStatus::Refused { .. }));
            is_from(from)
                && is_from(query.from.as_ref())
                && (refused || !is_refused)
                && (best || !query.best)
        };
        found.extend(self.records(dest).into_iter().filter(wanted));
    }

    /// All paths of a destination with what became of them, the best first.
    pub(super) fn records(&self, dest: &Dest) -> Vec<RouteRecord> {
        // For each path its index among the candidates.
        let mut indices: Vec<Option<usize>> = Vec::with_capacity(dest.paths().len());
        let mut candidates: Vec<Candidate> = Vec::with_capacity(dest.paths().len());
        for path in dest.paths() {
            let eligible = candidate(&dest.prefix, path, &self.peers, &self.next_hops);
            indices.push(eligible.is_some().then_some(candidates.len()));
            candidates.extend(eligible);
        }
        let mut decision = Decision::default();
        decision.run(&candidates);
        let mut multipath = vec![false; candidates.len()];
        for index in &decision.multipath {
            multipath[*index] = true;
        }
        // Paths of a peer that is gone are no routes any more.
        let gone = |path: &Path| {
            let peer = self.peers.get(path.peer);
            peer.is_some_and(|peer| peer.forgetting)
        };
        let mut routes: Vec<RouteRecord> = dest
            .paths()
            .iter()
            .zip(indices)
            .filter(|(path, _)| !gone(path))
            .map(|(path, index)| {
                let equal = index.is_some_and(|index| multipath[index]);
                let status = self.path_status(dest, path, index, equal, &decision);
                self.record(dest.prefix, path, status)
            })
            .collect();
        let rank = |route: &RouteRecord| match route.status {
            Some(PathStatus::Best { .. }) => 0,
            Some(PathStatus::Lost {
                multipath: true, ..
            }) => 1,
            Some(PathStatus::Lost { .. }) => 2,
            _ => 3,
        };
        routes.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.peer.cmp(&b.peer)));
        routes
    }

    fn path_status(
        &self,
        dest: &Dest,
        path: &Path,
        index: Option<usize>,
        multipath: bool,
        decision: &Decision,
    ) -> PathStatus {
        if let Some(refusal) = path.refusal() {
            let peer = self.peers.get(path.peer);
            let by = peer
                .filter(|_| refusal == super::ImportRefusal::Policy)
                .and_then(|peer| {
                    let rules =
                        peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
                    rules.decided_by(dest.prefix, &path.received)
                });
            let detail = self.screen.detail(&dest.prefix, refusal, &path.received);
            return PathStatus::Refused {
                refusal,
                by,
                detail,
            };
        }
        let Some(index) = index else {
            return PathStatus::Unreachable;
        };
        if self.is_deferring() {
            return PathStatus::Deferred;
        }
        match (decision.lost[index], decision.best) {
            (Some(reason), _) => PathStatus::Lost { reason, multipath },
            (None, Some((_, reason))) => PathStatus::Best { reason },
            (None, None) => PathStatus::Unreachable,
        }
    }

    /// Resolution of the next hop, once next hops are tracked.
    fn resolved(&self, prefix: &Prefix, path: &Path) -> Option<ResolvedNextHop> {
        if path.peer == PeerId::LOCAL || !self.next_hops.is_tracking() {
            return None;
        }
        let attrs = path.accepted().unwrap_or(&path.received);
        self.next_hops.resolved(&attrs.way()?, prefix)
    }

    fn record(&self, prefix: Prefix, path: &Path, status: PathStatus) -> RouteRecord {
        RouteRecord {
            prefix,
            peer: self.peers.get(path.peer).map(|peer| peer.name.clone()),
            path_id: self.peers.paths.path_id(path.peer),
            attrs: path.accepted().unwrap_or(&path.received).clone(),
            stale: path.stale.is_kept(),
            way: self.resolved(&prefix, path),
            origin_check: self
                .screen
                .concerns(&prefix)
                .then(|| self.screen.origin(&prefix, &path.received))
                .flatten()
                .filter(|_| path.peer != PeerId::LOCAL),
            status: Some(status),
        }
    }
}

/// Records of the advertisements to a member about a destination.
fn sent_records(
    prefix: Prefix,
    id: DestId,
    (group, member, peer): (&Group, &Member, Option<&PeerState>),
    found: &mut Vec<RouteRecord>,
) {
    let record = |path_id: Option<u32>, attrs: &Arc<PathAttrs>| RouteRecord {
        prefix,
        peer: None,
        path_id,
        attrs: attrs.clone(),
        stale: false,
        way: None,
        origin_check: None,
        status: None,
    };
    let before = found.len();
    let has_room = |attrs: &PathAttrs| peer.is_none_or(|peer| peer.has_room_for(&prefix, attrs));
    let advertised = group.advertised(id, member);
    let advertised = advertised.filter(|(_, attrs)| has_room(attrs));
    found.extend(advertised.map(|(path_id, attrs)| record(path_id.map(PathId::get), attrs)));
    found[before..].sort_by_key(|route| route.path_id);
}
