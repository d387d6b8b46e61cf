//! The routing information base: Adj-RIB-In, Loc-RIB and Adj-RIB-Out of one speaker (RFC 4271 §3.2).
//!
//! One owner drives it: every change is a call with the time as an argument, and returns [`Changes`]: what
//! the forwarding side must look at again and what peers must be told. It never waits, never reads a clock and
//! never sends.
//!
//! Invariants:
//!
//! * RIB-1: the best path of a prefix depends on the set of its paths, not on the order of their arrival.
//! * RIB-2: two attribute sets in the table are equal exactly when they are the same `Arc`.
//! * RIB-3: what a member of an update group has been told is a function of the group's Adj-RIB-Out and of the
//!   member; nothing is stored per member.
//! * RIB-4: while selection is deferred (RFC 4724 §4.1) nothing is announced, withdrawn or reported.

mod adj_out;
pub mod decision;
mod import;
mod intern;
mod next_hops;
mod peers;
mod query;
mod reconfigure;
mod restart;
mod select;
mod session;
mod startup;
mod table;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use caracal_model::net::{Family, Prefix};

pub use adj_out::{GroupRoute, GroupUpdate, Member, Withheld};
pub use decision::Reason;
pub use import::{DecidedBy, Refusal};
pub use next_hops::NextHops;
pub use peers::PeerId;
pub use session::{RemoteRestart, SessionInfo};
pub use startup::StartupTimes;
pub use view::{
    AdvertisedRoute, Advertisement, AttrsInfo, Explanation, LearnedRoute, PathStatus, PeerCounts,
    RibCounts, RouteInfo,
};

use crate::attrs::PathAttrs;
use crate::config::{Origination, SpeakerConfig};
use crate::types::{ClusterId, PeerName};
use crate::wire::update::Update;
use adj_out::{ExportCache, ExportRoute, Group, PathSource};
use intern::Interner;
use peers::{Filters, PeerState, Peers};
use select::Selector;
use startup::Startup;
use table::{Dest, DestId, Path, Rank, Table};

/// LOCAL_PREF of a route that carries none: the field's common default.
pub const DEFAULT_LOCAL_PREF: u32 = 100;

/// How a table starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RibOptions {
    /// The speaker restarts and its forwarding state survived: selection is deferred until the peers have sent
    /// End-of-RIB (RFC 4724 §4.1).
    pub restarting: bool,
    /// How long the start waits for whom.
    pub startup: StartupTimes,
}

/// What a call changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Prefixes whose best path or ECMP set is another one; ask [`Rib::learned`].
    pub prefixes: Vec<Prefix>,
    /// What peers must be told, in this order.
    pub out: Vec<Outbound>,
}

impl Changes {
    /// True when there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.out.is_empty()
    }
}

/// Something to tell peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Changes for all members of an update group; see [`GroupUpdate::for_member`].
    Group(GroupUpdate),
    /// Announcements (`Some`) and withdrawals (`None`) for one peer.
    Peer {
        /// The peer.
        peer: PeerId,
        /// The routes.
        routes: Vec<(Prefix, Option<Arc<PathAttrs>>)>,
    },
    /// The End-of-RIB marker (RFC 4724 §2).
    EndOfRib {
        /// The peer.
        peer: PeerId,
        /// The family that is complete.
        family: Family,
    },
}

/// The table of one speaker.
#[derive(Debug)]
pub struct Rib {
    config: SpeakerConfig,
    filters: Filters,
    /// The clusters that we reflect for: our CLUSTER_IDs.
    clusters: BTreeSet<ClusterId>,
    peers: Peers,
    table: Table,
    interner: Interner,
    /// Update groups; an empty slot is free.
    groups: Vec<Option<Group>>,
    next_hops: NextHops,
    selector: Selector,
    startup: Startup,
    /// Destinations to decide.
    dirty: Vec<DestId>,
    /// End-of-RIB markers that are due when selection is no longer deferred.
    owed: Vec<(PeerId, Family)>,
}

impl Rib {
    /// A table with the peers and the originated routes of a configuration.
    #[must_use]
    pub fn new(now: Instant, config: &SpeakerConfig, options: RibOptions) -> (Self, Changes) {
        let mut empty = config.clone();
        empty.peers.clear();
        empty.originate.clear();
        empty.filters.clear();
        let mut rib = Self {
            config: empty,
            filters: Filters::default(),
            clusters: BTreeSet::new(),
            peers: Peers::default(),
            table: Table::default(),
            interner: Interner::default(),
            groups: Vec::new(),
            next_hops: NextHops::default(),
            selector: Selector::default(),
            startup: Startup::new(now, options.restarting, options.startup),
            dirty: Vec::new(),
            owed: Vec::new(),
        };
        let changes = rib.reconfigure(now, config);
        (rib, changes)
    }

    /// The handle of a configured peer.
    #[must_use]
    pub fn peer_id(&self, name: &PeerName) -> Option<PeerId> {
        self.peers.id(name)
    }

    /// A session is established: the peer will be told the whole table and then End-of-RIB.
    pub fn peer_up(&mut self, now: Instant, name: &PeerName, session: SessionInfo) -> Changes {
        let mut changes = Changes::default();
        let Some(id) = self.peers.id(name) else {
            return changes;
        };
        // RFC 4724 §4.2: a new session before the end of the old one is the end of the old one.
        self.end_session(now, id, true);
        self.startup.up(now, id, &session);
        let families = session.families.clone();
        self.start_session(now, id, session);
        self.enter_group(id);
        let routes = self.routes_of_member(id);
        if !routes.is_empty() {
            changes.out.push(Outbound::Peer { peer: id, routes });
        }
        if self.startup.deferring() {
            self.owed
                .extend(families.into_iter().map(|family| (id, family)));
        } else {
            let marker = |family| Outbound::EndOfRib { peer: id, family };
            changes.out.extend(families.into_iter().map(marker));
        }
        self.finish(now, changes)
    }

    /// A session has ended. `graceful`: the peer's routes are kept as RFC 4724 §4.2 says.
    pub fn peer_down(&mut self, now: Instant, name: &PeerName, graceful: bool) -> Changes {
        if let Some(id) = self.peers.id(name) {
            self.end_session(now, id, graceful);
            self.startup.down(now, id);
        }
        self.finish(now, Changes::default())
    }

    /// An UPDATE of an established session.
    pub fn apply(&mut self, now: Instant, name: &PeerName, update: Update) -> Changes {
        let up = |id: &PeerId| self.peers.get(*id).is_some_and(|peer| peer.up);
        let Some(id) = self.peers.id(name).filter(up) else {
            return Changes::default();
        };
        self.startup.activity(now, id);
        for prefix in &update.withdrawn {
            if let Some(dest) = self.table.find(prefix) {
                self.remove_path(dest, id);
            }
        }
        if let Some(attrs) = update.attrs.filter(|_| !update.announced.is_empty()) {
            self.learn(id, attrs, &update.announced);
        }
        if let Some(family) = update.end_of_rib {
            self.startup.end_of_rib(id, family);
            self.sweep_stale(id, |seen| seen == family);
        }
        self.finish(now, Changes::default())
    }

    /// A peer asks for everything of a family again (RFC 2918).
    pub fn route_refresh(&mut self, name: &PeerName, family: Family) -> Changes {
        let mut changes = Changes::default();
        if let Some(id) = self.peers.id(name) {
            let mut routes = self.routes_of_member(id);
            routes.retain(|(prefix, _)| prefix.family() == family);
            if !routes.is_empty() {
                changes.out.push(Outbound::Peer { peer: id, routes });
            }
        }
        changes
    }

    /// Announces a route of our own, or changes it.
    pub fn originate(&mut self, now: Instant, prefix: Prefix, route: &Origination) -> Changes {
        self.config.originate.insert(prefix, route.clone());
        self.put_local(prefix, route);
        self.finish(now, Changes::default())
    }

    /// Withdraws a route of our own.
    pub fn withdraw(&mut self, now: Instant, prefix: Prefix) -> Changes {
        self.config.originate.remove(&prefix);
        self.remove_local(prefix);
        self.finish(now, Changes::default())
    }

    /// Says which next hops can be reached, and at what cost. Replaces what was said before.
    pub fn set_next_hops(&mut self, now: Instant, next_hops: NextHops) -> Changes {
        if next_hops != self.next_hops {
            self.next_hops = next_hops;
            for id in self.table.ids() {
                self.mark(id);
            }
        }
        self.finish(now, Changes::default())
    }

    /// Does what is due: drops stale routes, ends a deferral.
    pub fn handle_timeout(&mut self, now: Instant) -> Changes {
        self.expire_stale(now);
        self.finish(now, Changes::default())
    }

    /// When [`Rib::handle_timeout`] is due next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let stale = self.peers.iter().filter_map(|(_, peer)| peer.stale_until);
        stale.chain(self.startup.next_timeout()).min()
    }

    /// The peers that have neither sent End-of-RIB since the start nor had ample time to. None: what a
    /// forwarding table holds from before the start and nobody announced may go.
    pub fn awaited(&self) -> impl Iterator<Item = &PeerName> {
        let name = |id| self.peers.get(id).map(|peer: &PeerState| &peer.name);
        self.startup.waiting().filter_map(name)
    }

    /// True while route selection waits for the peers (RFC 4724 §4.1).
    #[must_use]
    pub fn is_deferring(&self) -> bool {
        self.startup.deferring()
    }

    /// Ends every call that changes something.
    fn finish(&mut self, now: Instant, mut changes: Changes) -> Changes {
        let due = self.startup.expire(now);
        if !self.startup.deferring() {
            self.settle(&mut changes);
        }
        if due {
            let marker = |(peer, family)| Outbound::EndOfRib { peer, family };
            changes
                .out
                .extend(std::mem::take(&mut self.owed).into_iter().map(marker));
        }
        changes
    }

    // -- paths ----------------------------------------------------------------------------------------

    /// Puts a destination on the list to decide.
    fn mark(&mut self, id: DestId) {
        let dest = self.table.get_mut(id);
        if !std::mem::replace(&mut dest.dirty, true) {
            self.dirty.push(id);
        }
    }

    /// Takes routes from a peer into Adj-RIB-In and through import policy.
    fn learn(&mut self, id: PeerId, mut attrs: PathAttrs, prefixes: &[Prefix]) {
        let Some(peer) = self.peers.get(id) else {
            return;
        };
        let Some(session) = &peer.session else { return };
        let families = [Family::Ipv4, Family::Ipv6]
            .map(|family| session.families.contains(&family).then_some(family));
        import::correct(&mut attrs, peer.kind());
        let received = self.interner.intern(attrs);
        for prefix in prefixes
            .iter()
            .filter(|prefix| families.contains(&Some(prefix.family())))
        {
            let dest = self.table.find_or_insert(*prefix);
            if let Some(path) = self.table.get_mut(dest).path_of(id)
                && Arc::ptr_eq(&path.received, &received)
            {
                if std::mem::take(&mut path.stale) {
                    self.touch(dest, id);
                }
                continue;
            }
            let Some(peer) = self.peers.get(id) else {
                return;
            };
            let rules = peer.import_rules(self.config.router_id, &self.clusters);
            let outcome = rules.import(*prefix, &received, &mut self.interner);
            self.put_path(dest, id, received.clone(), outcome);
        }
    }

    /// Stores or replaces the path of a peer.
    fn put_path(
        &mut self,
        id: DestId,
        peer: PeerId,
        received: Arc<PathAttrs>,
        outcome: Result<Arc<PathAttrs>, Refusal>,
    ) {
        let old = self.table.get_mut(id).remove(peer);
        let was_accepted = old.as_ref().is_some_and(|old| old.accepted.is_some());
        let is_accepted = outcome.is_ok();
        if let Some(state) = self.peers.get_mut(peer) {
            state.received += usize::from(old.is_none());
            state.accepted = state.accepted + usize::from(is_accepted) - usize::from(was_accepted);
        }
        let refusal = outcome.as_ref().err().copied();
        let dest = self.table.get_mut(id);
        dest.touched |= old.is_some_and(|old| old.rank != Rank::None);
        dest.push(Path {
            received,
            accepted: outcome.ok(),
            peer,
            refusal,
            stale: false,
            rank: Rank::None,
        });
        if was_accepted || is_accepted {
            self.mark(id);
        }
    }

    /// Removes the path of a peer.
    fn remove_path(&mut self, id: DestId, peer: PeerId) {
        let dest = self.table.get_mut(id);
        let Some(old) = dest.remove(peer) else { return };
        dest.touched |= old.rank != Rank::None;
        if let Some(state) = self.peers.get_mut(peer) {
            state.received -= 1;
            state.accepted -= usize::from(old.accepted.is_some());
        }
        // Also when it was not in use: the destination may be empty now and must be released.
        self.mark(id);
    }

    /// A path changed in place.
    fn touch(&mut self, id: DestId, peer: PeerId) {
        let dest = self.table.get_mut(id);
        let used = dest
            .path_of(peer)
            .is_some_and(|path| path.rank != Rank::None);
        dest.touched |= used;
        self.mark(id);
    }

    /// Removes the paths of a peer that `which` selects.
    fn remove_paths(&mut self, peer: PeerId, which: impl Fn(&Dest, &Path) -> bool) {
        let matches = |dest: &Dest| {
            dest.paths()
                .iter()
                .any(|path| path.peer == peer && which(dest, path))
        };
        let found: Vec<DestId> = self
            .table
            .iter()
            .filter(|(_, dest)| matches(dest))
            .map(|(id, _)| id)
            .collect();
        for id in found {
            self.remove_path(id, peer);
        }
    }

    fn put_local(&mut self, prefix: Prefix, route: &Origination) {
        let mut attrs = PathAttrs {
            next_hop: route.next_hop,
            local_pref: Some(route.local_pref.unwrap_or(DEFAULT_LOCAL_PREF)),
            med: route.med,
            ..PathAttrs::default()
        };
        for community in &route.communities {
            attrs.add_community(*community);
        }
        let attrs = self.interner.intern(attrs);
        let id = self.table.find_or_insert(prefix);
        self.put_path(id, PeerId::LOCAL, attrs.clone(), Ok(attrs));
    }

    fn remove_local(&mut self, prefix: Prefix) {
        if let Some(id) = self.table.find(&prefix) {
            self.remove_path(id, PeerId::LOCAL);
        }
    }

    // -- selection and export ----------------------------------------------------------------------------

    /// Decides every destination on the list and exports what changed.
    fn settle(&mut self, changes: &mut Changes) {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.is_empty() {
            return;
        }
        let mut updates: Vec<(ExportCache, Vec<GroupRoute>)> = Vec::new();
        updates.resize_with(self.groups.len(), Default::default);
        for id in dirty {
            let dest = self.table.get_mut(id);
            dest.dirty = false;
            let changed = self.selector.decide(dest, &self.peers, &self.next_hops);
            if changed {
                changes.prefixes.push(dest.prefix);
                let dest = self.table.get(id);
                let route = export_route(dest, &self.peers);
                for (group, (cache, routes)) in self.groups.iter_mut().zip(&mut updates) {
                    let Some(group) = group else { continue };
                    let interner = &mut self.interner;
                    routes.extend(group.update(id, dest.prefix, route, cache, interner));
                }
            }
            if self.table.get(id).paths().is_empty() {
                self.table.release(id);
            }
        }
        for (group, (_, routes)) in self.groups.iter().zip(updates) {
            if let Some(group) = group.as_ref().filter(|_| !routes.is_empty()) {
                let members = group.members.clone();
                changes
                    .out
                    .push(Outbound::Group(GroupUpdate { members, routes }));
            }
        }
    }

    /// The index of the group with the export rules of an established peer, made if necessary.
    fn group_for(&mut self, peer: PeerId) -> Option<usize> {
        let key = self.peers.get(peer)?.group_key()?;
        let same = |group: &Option<Group>| group.as_ref().is_some_and(|group| group.key == key);
        if let Some(index) = self.groups.iter().position(same) {
            return Some(index);
        }
        let mut group = Group::new(key);
        let mut cache = ExportCache::default();
        for (id, dest) in self.table.iter() {
            let route = export_route(dest, &self.peers);
            group.update(id, dest.prefix, route, &mut cache, &mut self.interner);
        }
        let free = self.groups.iter().position(Option::is_none);
        let index = free.unwrap_or(self.groups.len());
        if free.is_none() {
            self.groups.push(None);
        }
        self.groups[index] = Some(group);
        Some(index)
    }

    /// Makes an established peer a member of its group.
    fn enter_group(&mut self, peer: PeerId) {
        let index = self.group_for(peer);
        if let Some(group) = index.and_then(|index| self.groups[index].as_mut())
            && let Some(state) = self.peers.get_mut(peer)
            && let Some(session) = &state.session
        {
            group.join(peer, session.remote_address);
            state.group = index;
        }
    }

    fn leave_group(&mut self, peer: PeerId) {
        let index = self
            .peers
            .get_mut(peer)
            .and_then(|state| state.group.take());
        if let Some(slot) = index.and_then(|index| self.groups.get_mut(index))
            && let Some(group) = slot
        {
            group.leave(peer);
            if group.members.is_empty() {
                *slot = None;
            }
        }
    }

    /// The group of a peer and the peer as its member.
    fn membership(&self, peer: PeerId) -> Option<(&Group, &Member)> {
        let group = self.groups.get(self.peers.get(peer)?.group?)?.as_ref()?;
        Some((group, group.member(peer)?))
    }

    /// Everything a peer is told.
    fn routes_of_member(&self, peer: PeerId) -> Vec<(Prefix, Option<Arc<PathAttrs>>)> {
        let Some((group, member)) = self.membership(peer) else {
            return Vec::new();
        };
        let told = |(id, dest): (DestId, &Dest)| {
            group
                .sent(id, member)
                .map(|attrs| (dest.prefix, Some(attrs.clone())))
        };
        self.table.iter().filter_map(told).collect()
    }
}

/// The best path of a destination with its source, for export.
fn export_route<'a>(dest: &'a Dest, peers: &Peers) -> Option<ExportRoute<'a>> {
    let best = dest.best()?;
    let source = match best.peer {
        PeerId::LOCAL => PathSource::Local,
        peer => peers.get(peer)?.source()?,
    };
    Some(ExportRoute {
        prefix: dest.prefix,
        attrs: best.accepted.as_ref()?,
        peer: best.peer,
        source,
    })
}

#[cfg(test)]
mod tests;
