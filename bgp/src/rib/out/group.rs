//! Update groups: peers with the same export rules, which share one Adj-RIB-Out.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::Prefix;

use super::add_path::{AdvertisedPaths, ByPathId};
use super::advertised::{Advertised, Member, Withheld, visible};
use super::change::{GroupRoute, PathId, RouteChange};
use super::rules::{ExportCache, ExportRoute, GroupKey};
use super::sent::Sent;
use super::single_path::AdvertisedRoutes;
use crate::attrs::PathAttrs;
use crate::rib::dest_id::DestId;
use crate::rib::intern::Interner;
use crate::rib::path_handles::advertised_id;
use crate::rib::peer_id::PeerId;

/// An update group: its rules, its members, its Adj-RIB-Out.
#[derive(Debug)]
pub(in crate::rib) struct Group {
    pub(in crate::rib) key: GroupKey,
    pub(in crate::rib) members: Vec<Member>,
    /// The Adj-RIB-Out of families of which the members take one path.
    single_path: AdvertisedRoutes,
    /// Paths that the members have, in families of which they take several.
    add_path: AdvertisedPaths,
    /// What its only member is sent, where that is limited.
    pub(in crate::rib) sent: Sent,
    /// The group has been given all that is in the table.
    pub(in crate::rib) filled: bool,
    /// Peers on their way to it or from it: it stays although it may have no members.
    pub(in crate::rib) pins: usize,
}

impl Group {
    pub(in crate::rib) fn new(key: GroupKey) -> Self {
        Self {
            key,
            members: Vec::new(),
            single_path: AdvertisedRoutes::default(),
            add_path: AdvertisedPaths::default(),
            sent: Sent::default(),
            filled: false,
            pins: 0,
        }
    }

    pub(in crate::rib) fn join(&mut self, peer: PeerId, address: IpAddr) -> Member {
        let member = Member::new(peer, address);
        self.members.push(member);
        member
    }

    pub(in crate::rib) fn leave(&mut self, peer: PeerId) {
        self.members.retain(|member| member.peer != peer);
    }

    pub(in crate::rib) fn member(&self, peer: PeerId) -> Option<&Member> {
        self.members.iter().find(|member| member.peer == peer)
    }

    /// Recomputes the export of a destination and adds what changed to `changes`. `paths` are the
    /// paths that may be exported, the best first; of a family of which the members take one path
    /// nothing but the first is looked at.
    pub(in crate::rib) fn update(
        &mut self,
        id: DestId,
        prefix: Prefix,
        paths: &[ExportRoute<'_>],
        (cache, interner): (&mut ExportCache, &mut Interner),
        changes: &mut Vec<GroupRoute>,
    ) {
        let mut export = |route: &ExportRoute<'_>| {
            let attrs = self.key.export(*route, cache, interner).ok()?;
            Some(Advertised::new(attrs, route.peer))
        };
        let Some(count) = self.key.paths_of(prefix.family()) else {
            let mut after = paths.first().and_then(export);
            if let Some(limit) = &self.key.limit {
                let before = self.single_path.get(id.index());
                let family = prefix.family();
                let has_room = self.sent.admits(limit, family, before, after.as_ref());
                self.sent.note(id.index(), family, !has_room);
                if !has_room {
                    after = None;
                }
            }
            if let Some(before) = self.single_path.put(id.index(), after.as_ref()) {
                changes.push(GroupRoute {
                    prefix,
                    path_id: None,
                    before,
                    after,
                });
            }
            return;
        };
        let named = |route: &ExportRoute<'_>| Some((advertised_id(route.handle), export(route)?));
        let after = paths.iter().filter_map(named).take(count.limit());
        let after = after.collect();
        let after = self.within_limit(id, prefix, after);
        self.add_path.put(id.index(), prefix, after, changes);
    }

    /// The paths of a destination for which a limit has room. Those that go make room first.
    fn within_limit(
        &mut self,
        id: DestId,
        prefix: Prefix,
        mut after: Vec<(PathId, Advertised)>,
    ) -> Vec<(PathId, Advertised)> {
        let Some(limit) = &self.key.limit else {
            return after;
        };
        let (family, sent) = (prefix.family(), &mut self.sent);
        let before = self.add_path.get(id.index());
        let stays = ByPathId::new(&after);
        for (_, gone) in before.iter().filter(|(id, _)| stays.get(*id).is_none()) {
            sent.admits(limit, family, Some(gone), None);
        }
        let before = ByPathId::new(before);
        let wanted = after.len();
        after.retain(|(id, path)| sent.admits(limit, family, before.get(*id), Some(path)));
        sent.note(id.index(), family, after.len() < wanted);
        after
    }

    /// Has the processor load what [`Group::update`] will read of a destination. The result means
    /// nothing.
    pub(in crate::rib) fn prefetch(&self, id: DestId) -> usize {
        self.single_path.prefetch(id.index())
    }

    /// True when something is advertised about a destination.
    pub(in crate::rib) fn has_advertised(&self, id: DestId) -> bool {
        self.single_path.get(id.index()).is_some() || !self.add_path.get(id.index()).is_empty()
    }

    /// Advertisements of a destination to a member, the best path first.
    pub(in crate::rib) fn advertised<'a>(
        &'a self,
        id: DestId,
        member: &'a Member,
    ) -> impl Iterator<Item = (Option<PathId>, &'a Arc<PathAttrs>)> {
        let one = self.single_path.get(id.index()).map(|one| (None, one));
        let add_path = self.add_path.get(id.index()).iter();
        one.into_iter()
            .chain(add_path.map(|(path_id, sent)| (Some(*path_id), sent)))
            .filter_map(|(path_id, sent)| Some((path_id, sent.visible_to(member).ok()?)))
    }

    /// Why a destination is withheld from a member although the group gets it.
    pub(in crate::rib) fn withheld(&self, id: DestId, member: &Member) -> Option<Withheld> {
        self.single_path.get(id.index())?.visible_to(member).err()
    }

    /// Changes for a peer that moves from group `self` to group `other`, for one destination.
    pub(in crate::rib) fn difference(
        &self,
        id: DestId,
        prefix: Prefix,
        other: &Self,
        member: &Member,
        changes: &mut Vec<RouteChange>,
    ) {
        let (old, new) = (self.by_path_id(id), other.by_path_id(id));
        let change = |path_id, attrs| RouteChange {
            prefix,
            path_id,
            attrs,
        };
        let gone = self
            .advertised(id, member)
            .filter(|(path_id, _)| new.get(*path_id, member).is_none());
        changes.extend(gone.map(|(path_id, _)| change(path_id, None)));
        let changed = other.advertised(id, member).filter(|(path_id, attrs)| {
            let known = old.get(*path_id, member);
            !known.is_some_and(|known| Arc::ptr_eq(known, attrs))
        });
        changes.extend(changed.map(|(path_id, attrs)| change(path_id, Some(attrs.clone()))));
    }

    fn by_path_id(&self, id: DestId) -> DestPaths<'_> {
        DestPaths {
            single_path: self.single_path.get(id.index()),
            add_path: ByPathId::new(self.add_path.get(id.index())),
        }
    }

    /// Number of routes advertised to each of these members.
    pub(in crate::rib) fn counts(&self, members: &[Member]) -> Vec<usize> {
        let one = self.single_path.counts(members).into_iter();
        let add_path = self.add_path.counts(members);
        one.zip(add_path).map(|(one, more)| one + more).collect()
    }
}

/// Advertisements of one destination to a group, by path identifier.
struct DestPaths<'a> {
    single_path: Option<&'a Advertised>,
    add_path: ByPathId<'a>,
}

impl<'a> DestPaths<'a> {
    /// Attributes of a path as advertised to a member.
    fn get(&self, path_id: Option<PathId>, member: &Member) -> Option<&'a Arc<PathAttrs>> {
        let sent = match path_id {
            None => self.single_path,
            Some(path_id) => self.add_path.get(path_id),
        };
        visible(sent, member)
    }
}
