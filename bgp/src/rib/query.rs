//! Questions about the table. They change nothing and copy only what is asked for.

use caracal_model::net::Prefix;

use super::adj_out::{ExportCache, Withheld};
use super::decision::{Candidate, Decision};
use super::intern::Interner;
use super::next_hops::Way;
use super::select::candidate;
use super::settle::export_route;
use super::table::{Dest, DestId, Path, Rank};
use super::view::{
    AdvertisedRoute, Advertisement, AttrsInfo, Explanation, LearnedRoute, PathStatus, PeerCounts,
    RibCounts, RouteInfo, communities,
};
use super::{DEFAULT_LOCAL_PREF, PeerId, PeerState, Rib, SessionInfo};
use crate::policy::PeerKind;
use crate::types::PeerName;

impl Rib {
    /// The route for the forwarding table. `None`: no path, or the best is our own.
    #[must_use]
    pub fn learned(&self, prefix: &Prefix) -> Option<LearnedRoute> {
        self.learned_of(self.table.get(self.table.find(prefix)?))
    }

    /// All routes for the forwarding table.
    pub fn all_learned(&self) -> impl Iterator<Item = (Prefix, LearnedRoute)> {
        self.table
            .iter()
            .filter_map(|(_, dest)| Some((dest.prefix, self.learned_of(dest)?)))
    }

    fn learned_of(&self, dest: &Dest) -> Option<LearnedRoute> {
        let best = dest.best()?;
        let attrs = best.accepted()?;
        let peer = self.peers.get(best.peer)?;
        let mut next_hops = vec![attrs.next_hop?];
        for path in dest.paths().iter().filter(|path| path.rank == Rank::Equal) {
            if let Some(next_hop) = path.accepted().and_then(|attrs| attrs.next_hop)
                && !next_hops.contains(&next_hop)
            {
                next_hops.push(next_hop);
            }
        }
        // The order in which equal paths arrived shall not show.
        next_hops[1..].sort_unstable();
        Some(LearnedRoute {
            next_hops,
            peer: peer.name.clone(),
            peer_address: peer.config.address,
            internal: peer.kind() == PeerKind::Internal,
            local_pref: attrs.local_pref.unwrap_or(DEFAULT_LOCAL_PREF),
            med: attrs.med,
            as_path_len: attrs.as_path.path_len(),
            communities: communities(attrs),
            stale: best.stale.is_kept(),
        })
    }

    /// All paths that are not refused, by prefix, the best first.
    #[must_use]
    pub fn routes(&self) -> Vec<RouteInfo> {
        let mut dests: Vec<&Dest> = self.table.iter().map(|(_, dest)| dest).collect();
        dests.sort_unstable_by_key(|dest| dest.prefix);
        let used = |route: &RouteInfo| !matches!(route.status, PathStatus::Refused { .. });
        dests
            .into_iter()
            .flat_map(|dest| self.describe(dest))
            .filter(used)
            .collect()
    }

    /// The Adj-RIB-In of a peer, by prefix, refused routes included. `None`: there is no such peer.
    #[must_use]
    pub fn received(&self, peer: &PeerName) -> Option<Vec<RouteInfo>> {
        let id = self.peers.id(peer)?;
        let has = |dest: &&Dest| {
            dest.paths()
                .iter()
                .any(|path| self.peers.owns(id, path.peer))
        };
        let mut dests: Vec<&Dest> = self
            .table
            .iter()
            .map(|(_, dest)| dest)
            .filter(has)
            .collect();
        dests.sort_unstable_by_key(|dest| dest.prefix);
        let from = |route: &RouteInfo| route.peer.as_ref() == Some(peer);
        Some(
            dests
                .into_iter()
                .flat_map(|dest| self.describe(dest))
                .filter(from)
                .collect(),
        )
    }

    /// The Adj-RIB-Out of a peer, by prefix; empty without a session. `None`: there is no such peer.
    #[must_use]
    pub fn advertised(&self, peer: &PeerName) -> Option<Vec<AdvertisedRoute>> {
        let mut routes: Vec<AdvertisedRoute> = self
            .routes_of_member(self.peers.id(peer)?)
            .into_iter()
            .filter_map(|(prefix, attrs)| {
                Some(AdvertisedRoute {
                    prefix,
                    path_id: None,
                    attrs: AttrsInfo::from(&*attrs?),
                })
            })
            .collect();
        let paths = self.paths_of_member(self.peers.id(peer)?, None);
        routes.extend(paths.into_iter().filter_map(|(prefix, path_id, attrs)| {
            Some(AdvertisedRoute {
                prefix,
                path_id: Some(path_id),
                attrs: AttrsInfo::from(&*attrs?),
            })
        }));
        routes.sort_unstable_by_key(|route| (route.prefix, route.path_id));
        Some(routes)
    }

    /// The established session of a peer.
    #[must_use]
    pub fn session(&self, peer: &PeerName) -> Option<&SessionInfo> {
        let state = self.peers.get(self.peers.id(peer)?)?;
        state.session.as_ref().filter(|_| state.up)
    }

    /// Counters of a peer.
    #[must_use]
    pub fn peer_counts(&self, peer: &PeerName) -> Option<PeerCounts> {
        let id = self.peers.id(peer)?;
        let state = self.peers.get(id)?;
        let advertised = self
            .membership(id)
            .map_or(0, |(group, member)| group.count(member));
        Some(PeerCounts {
            received: state.received,
            accepted: state.accepted,
            advertised,
            stale: state.has_stale(),
        })
    }

    /// Counters of the table.
    #[must_use]
    pub fn counts(&self) -> RibCounts {
        RibCounts {
            prefixes: self.table.len(),
            paths: self.table.iter().map(|(_, dest)| dest.paths().len()).sum(),
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
        let told = |(peer, state): (PeerId, &PeerState)| {
            Some((state.name.clone(), self.advertisement(id, dest, peer)?))
        };
        Explanation {
            prefix: Some(dest.prefix),
            paths: self.describe(dest),
            advertised: self.peers.iter().filter_map(told).collect(),
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
        let route = export_route(dest, &self.peers, &self.next_hops)?;
        let sent = group
            .sent(id, member)
            .or_else(|| group.sent_path(id, member));
        if let Some(attrs) = sent {
            return Some(Advertisement::Sent(AttrsInfo::from(&**attrs)));
        }
        let why = group.withheld(id, member).or_else(|| {
            let mut scratch = (ExportCache::default(), Interner::default());
            group
                .key
                .export(route, &mut scratch.0, &mut scratch.1)
                .err()
        });
        Some(Advertisement::Withheld(
            why.unwrap_or(Withheld::SplitHorizon),
        ))
    }

    /// All paths of a destination with what became of them, the best first.
    fn describe(&self, dest: &Dest) -> Vec<RouteInfo> {
        let eligible: Vec<(usize, Candidate)> = dest
            .paths()
            .iter()
            .enumerate()
            .filter_map(|(n, path)| Some((n, candidate(path, &self.peers, &self.next_hops)?)))
            .collect();
        let candidates: Vec<Candidate> = eligible.iter().map(|(_, c)| c.clone()).collect();
        let mut decision = Decision::default();
        decision.run(&candidates);
        let mut routes: Vec<RouteInfo> = dest
            .paths()
            .iter()
            .enumerate()
            .map(|(n, path)| {
                let place = eligible.iter().position(|(index, _)| *index == n);
                self.describe_path(dest.prefix, path, self.status(dest, path, place, &decision))
            })
            .collect();
        let rank = |route: &RouteInfo| match route.status {
            PathStatus::Best { .. } => 0,
            PathStatus::Lost {
                multipath: true, ..
            } => 1,
            PathStatus::Lost { .. } => 2,
            _ => 3,
        };
        routes.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.peer.cmp(&b.peer)));
        routes
    }

    fn status(
        &self,
        dest: &Dest,
        path: &Path,
        place: Option<usize>,
        decision: &Decision,
    ) -> PathStatus {
        if let Some(refusal) = path.refusal() {
            let peer = self.peers.get(path.peer);
            let by = peer
                .filter(|_| refusal == super::Refusal::Policy)
                .and_then(|peer| {
                    let rules =
                        peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
                    rules.decided_by(dest.prefix, &path.received)
                });
            return PathStatus::Refused { refusal, by };
        }
        let Some(place) = place else {
            return PathStatus::Unreachable;
        };
        if self.is_deferring() {
            return PathStatus::Deferred;
        }
        match (decision.lost[place], decision.best) {
            (Some(reason), _) => PathStatus::Lost {
                reason,
                multipath: decision.multipath.contains(&place),
            },
            (None, Some((_, reason))) => PathStatus::Best { reason },
            (None, None) => PathStatus::Unreachable,
        }
    }

    /// How the next hop is reached, once somebody keeps track of that.
    fn way(&self, path: &Path) -> Option<Way> {
        if path.peer == PeerId::LOCAL || !self.next_hops.is_tracking() {
            return None;
        }
        let attrs = path.accepted().unwrap_or(&path.received);
        self.next_hops.get().way(&attrs.next_hop?).cloned()
    }

    fn describe_path(&self, prefix: Prefix, path: &Path, status: PathStatus) -> RouteInfo {
        RouteInfo {
            prefix,
            peer: self.peers.get(path.peer).map(|peer| peer.name.clone()),
            path_id: self.peers.paths.path_id(path.peer),
            attrs: AttrsInfo::from(&**path.accepted().unwrap_or(&path.received)),
            stale: path.stale.is_kept(),
            way: self.way(path),
            status,
        }
    }
}
