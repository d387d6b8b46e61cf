//! Questions about the table. They change nothing and copy only what is asked for.

use caracal_model::{Family, Prefix};
use foldhash::HashMap;

use super::dest_id::DestId;
use super::intern::Interner;
use super::order::export_route;
use super::out::{ExportCache, Group, Member, Withheld};
use super::scan::{RouteQuery, RouteRecord, RouteTable};
use super::table::Dest;
use super::view::{
    AdvertisedRoute, Advertisement, AttrsInfo, Explanation, PeerCounts, RibCounts, RouteInfo,
};
use super::{PeerId, PeerState, Rib, SessionInfo};
use crate::types::PeerName;

impl Rib {
    /// All paths that are not refused, by prefix, the best first.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteInfo> {
        let all = self.answer(&RouteQuery::all(RouteTable::Routes));
        all.unwrap_or_default()
            .into_iter()
            .map(Into::into)
            .collect()
    }

    /// The Adj-RIB-In of a peer, by prefix, refused routes included. `None`: there is no such peer.
    #[must_use]
    pub fn received(&self, peer: &PeerName) -> Option<Vec<RouteInfo>> {
        let all = self.answer(&RouteQuery::all(RouteTable::Received(peer.clone())))?;
        Some(all.into_iter().map(Into::into).collect())
    }

    /// The Adj-RIB-Out of a peer, by prefix; empty without a session. `None`: there is no such
    /// peer.
    #[must_use]
    pub fn advertised(&self, peer: &PeerName) -> Option<Vec<AdvertisedRoute>> {
        let all = self.answer(&RouteQuery::all(RouteTable::Advertised(peer.clone())))?;
        Some(all.into_iter().map(Into::into).collect())
    }

    /// The whole answer to a question, by prefix.
    fn answer(&self, query: &RouteQuery) -> Option<Vec<RouteRecord>> {
        let mut prefixes = self.scan(query, 0..self.slots())?;
        prefixes.sort_unstable();
        Some(self.route_records(query, &prefixes, usize::MAX).0)
    }

    /// The established session of a peer.
    #[must_use]
    pub fn session(&self, peer: &PeerName) -> Option<&SessionInfo> {
        let state = self.peers.get(self.peers.id(peer)?)?;
        state.session.as_ref().filter(|_| state.up)
    }

    /// Counters of a peer. For those of all peers, [`Rib::all_peer_counts`] costs far less.
    #[must_use]
    pub fn peer_counts(&self, peer: &PeerName) -> Option<PeerCounts> {
        let id = self.peers.id(peer)?;
        let count = |(group, member): (&Group, &Member)| group.counts(&[*member])[0];
        let advertised = self.membership(id).map_or(0, count);
        Some(counts_of(self.peers.get(id)?, advertised))
    }

    /// Counters of all peers, in one pass over each group.
    #[must_use]
    pub fn all_peer_counts(&self) -> HashMap<PeerId, PeerCounts> {
        let mut advertised: HashMap<PeerId, usize> = HashMap::default();
        for group in self.groups.iter().flatten() {
            let peers = group.members.iter().map(|member| member.peer);
            advertised.extend(peers.zip(group.counts(&group.members)));
        }
        let counts = |(id, peer)| {
            let advertised = advertised.get(&id).copied().unwrap_or_default();
            (id, counts_of(peer, advertised))
        };
        self.peers.iter().map(counts).collect()
    }

    /// Prefixes of one family that a peer has announced, and those of them that were accepted.
    #[must_use]
    pub fn received_and_accepted(&self, peer: &PeerName, family: Family) -> Option<(usize, usize)> {
        let state = self.peers.get(self.peers.id(peer)?)?;
        if state.forgetting {
            return Some((0, 0));
        }
        Some((state.received_of(family), state.accepted_of(family)))
    }

    /// Number of prefixes in the table.
    #[must_use]
    pub fn prefix_count(&self) -> usize {
        self.table.len()
    }

    /// Counters of the table.
    #[must_use]
    pub fn counts(&self) -> RibCounts {
        RibCounts {
            prefixes: self.table.len(),
            paths: self.local_paths + self.peers.received(),
            attribute_sets: self.interner.len(),
            update_groups: self.groups.iter().flatten().count(),
        }
    }

    /// Everything that is known about a prefix, or else about the longest one that covers it.
    #[must_use]
    pub fn explain(&self, prefix: &Prefix) -> Explanation {
        let Some(id) = self.longest_match(prefix) else {
            return Explanation {
                prefix: None,
                paths: vec![],
                advertised: vec![],
                learned: None,
            };
        };
        let dest = self.table.get(id);
        let advertisement = |(peer, state): (PeerId, &PeerState)| {
            Some((state.name.clone(), self.advertisement(id, dest, peer)?))
        };
        Explanation {
            prefix: Some(dest.prefix),
            paths: self.describe(dest),
            advertised: self.peers.iter().filter_map(advertisement).collect(),
            learned: self.learned_of(dest),
        }
    }

    fn longest_match(&self, prefix: &Prefix) -> Option<DestId> {
        (0..=prefix.len())
            .rev()
            .find_map(|len| self.table.find(&Prefix::truncated(prefix.address(), len)))
    }

    /// Whether the best path goes to a peer. `None`: no session, or no best path.
    fn advertisement(&self, id: DestId, dest: &Dest, peer: PeerId) -> Option<Advertisement> {
        let (group, member) = self.membership(peer)?;
        let own = &self.config.originate;
        let route = export_route(dest, &self.peers, &self.next_hops, own)?;
        if let Some((_, attrs)) = group.advertised(id, member).next() {
            let state = self.peers.get(peer)?;
            return Some(match state.has_room_for(&dest.prefix, attrs) {
                true => Advertisement::Sent(AttrsInfo::from(&**attrs)),
                false => Advertisement::Withheld(Withheld::TooLong),
            });
        }
        let why = group.withheld(id, member).or_else(|| {
            let mut scratch = (ExportCache::default(), Interner::default());
            group
                .key
                .export(route, &mut scratch.0, &mut scratch.1)
                .err()
        });
        let limit = group.key.limit.as_ref();
        let limit = limit.and_then(|limit| limit.limits.for_family(dest.prefix.family()));
        let other = match limit {
            Some(_) => Withheld::OverLimit,
            None => Withheld::SplitHorizon,
        };
        Some(Advertisement::Withheld(why.unwrap_or(other)))
    }

    /// All paths of a destination with what became of them, the best first.
    fn describe(&self, dest: &Dest) -> Vec<RouteInfo> {
        self.records(dest)
            .into_iter()
            .map(RouteInfo::from)
            .collect()
    }
}

fn counts_of(peer: &PeerState, advertised: usize) -> PeerCounts {
    PeerCounts {
        received: if peer.forgetting { 0 } else { peer.received },
        accepted: if peer.forgetting { 0 } else { peer.accepted },
        advertised,
        stale: peer.keeps_stale(),
    }
}
