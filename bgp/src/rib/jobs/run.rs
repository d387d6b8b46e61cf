//! Runs jobs over destinations, a slice at a time.

use caracal_model::Family;

use super::within::PATHS_AT_ONCE;
use super::{Job, JobKind, PATHS_PER_SLOT, Within};
use crate::rib::dest_id::DestId;
use crate::rib::families::FAMILIES;
use crate::rib::order::{export_route, in_order};
use crate::rib::out::{ExportCache, RouteChange};
use crate::rib::table::Staleness;
use crate::rib::{Changes, Outbound, PeerId, Rib};

/// Number of moved attribute sets that are as much work as a slot.
const SETS_PER_PLACE: usize = 4;

impl Rib {
    pub(super) fn run_jobs(&mut self, slots: usize, changes: &mut Changes) {
        let mut left = slots;
        while left > 0 {
            let filled = |index: usize| {
                let group = self.groups.get(index).and_then(Option::as_ref);
                group.is_none_or(|group| group.filled)
            };
            let ready = |kind: &JobKind| match kind {
                JobKind::Move { from: None, to, .. } => filled(*to),
                JobKind::Dump { peer, .. } => {
                    let group = self.peers.get(*peer).and_then(|peer| peer.group);
                    group.is_none_or(filled) && !self.is_paused(kind)
                }
                _ => true,
            };
            let Some(at) = self.jobs.next(ready) else {
                break;
            };
            left = left.saturating_sub(self.run_job(at, left, changes));
        }
    }

    /// Does a slice of a job. The result is how much it was, at least 1.
    pub(super) fn run_job(&mut self, at: usize, slots: usize, changes: &mut Changes) -> usize {
        let mut job = self.jobs.list.remove(at);
        self.jobs.turn = job.number;
        let mut spent = 0;
        let mut routes = Vec::new();
        if job.is_new() {
            self.begin(&mut job.kind, changes);
        }
        while spent < slots && job.at < self.extent(&job.kind) {
            if job.at.is_multiple_of(64) && self.is_over(&job.kind) {
                job.at = usize::MAX;
                break;
            }
            if matches!(job.kind, JobKind::Sets) {
                let (next, more) = self.interner.sweep_at(job.at);
                job.at = next;
                spent += usize::from(next.is_multiple_of(4)) + more / SETS_PER_PLACE;
                continue;
            }
            let found = self.table.dest_at(job.at);
            let found = found.map(|(id, dest)| (id, dest.paths().len()));
            spent += 1;
            let done = found.is_none_or(|(id, count)| {
                spent += count.min(PATHS_AT_ONCE) / PATHS_PER_SLOT;
                self.visit(&mut job, id, &mut routes)
            });
            if done {
                job.at += 1;
                job.within = Within::default();
            }
        }
        if let JobKind::Move { peer, .. } | JobKind::Dump { peer, .. } = &job.kind
            && !routes.is_empty()
        {
            changes.out.push(Outbound::Peer {
                peer: *peer,
                routes,
            });
        }
        if job.at < self.extent(&job.kind) {
            let index = self.jobs.find(job.number);
            self.jobs.list.insert(index, job);
        } else {
            self.end(job.kind, changes);
        }
        spent.max(1)
    }

    /// True when nothing is left for a job to find.
    fn is_over(&self, kind: &JobKind) -> bool {
        let of = |id: &PeerId| self.peers.get(*id);
        match kind {
            JobKind::Forget(peers) => {
                let mut peers = peers.iter();
                peers.all(|id| of(id).is_none_or(|peer| peer.received == 0))
            }
            JobKind::Sweep { peer, drops } => of(peer).is_none_or(|peer| {
                let mut families = FAMILIES.into_iter();
                families.all(|family| drops.doomed(peer, family) == 0)
            }),
            JobKind::EndRefresh(peer, family) => {
                of(peer).is_none_or(|peer| peer.refreshed(*family) == 0)
            }
            JobKind::Retain { peer, .. }
            | JobKind::KeepLong { peer, .. }
            | JobKind::MarkRefresh(peer, _) => of(peer).is_none_or(|peer| peer.received == 0),
            JobKind::Import(peers) => {
                let mut peers = peers.iter();
                peers.all(|id| of(id).is_none_or(|peer| peer.received == 0))
            }
            _ => false,
        }
    }

    fn begin(&mut self, kind: &mut JobKind, changes: &mut Changes) {
        match kind {
            JobKind::NextHops(change) => self.next_hops.begin_walk(change),
            JobKind::Dump {
                peer,
                family: Some(family),
                marked: true,
            } => changes.out.push(Outbound::RefreshBegin {
                peer: *peer,
                family: *family,
            }),
            JobKind::Move { peer, from, to } if from.is_none() => {
                let Some(old) = self.peers.get(*peer).and_then(|peer| peer.group) else {
                    return;
                };
                // It stays as long as it says what the peer has been told.
                if let Some(group) = self.groups[old].as_mut() {
                    group.pins += 1;
                    group.leave(*peer);
                }
                *from = Some(old);
                self.join(*peer, *to);
            }
            _ => {}
        }
    }

    /// Does a job to a destination. False: not yet to all of its paths.
    fn visit(&mut self, job: &mut Job, id: DestId, routes: &mut Vec<RouteChange>) -> bool {
        let within = &mut job.within;
        match &mut job.kind {
            JobKind::Forget(peers) => {
                return self.drop_paths(id, within, |rib, _, path| {
                    peers.contains(&rib.peers.paths.owner(path.peer))
                });
            }
            JobKind::Retain { peer, drops, kept } => {
                return self.retain_paths(id, within, *peer, (*drops, *kept));
            }
            JobKind::Sweep { peer, drops } => {
                return self.drop_paths(id, within, |rib, family, path| {
                    rib.peers.owns(*peer, path.peer) && drops.includes(family, path.stale)
                });
            }
            JobKind::KeepLong { peer, kept } => {
                return self.keep_paths_long(id, within, *peer, *kept);
            }
            JobKind::MarkRefresh(peer, family) => {
                return self.mark_refresh(id, within, *peer, *family);
            }
            JobKind::EndRefresh(peer, of) => {
                return self.drop_paths(id, within, |rib, family, path| {
                    rib.peers.owns(*peer, path.peer)
                        && family == *of
                        && path.stale == Staleness::Refresh
                });
            }
            JobKind::Import(peers) => return self.import_dest_again(id, within, peers),
            JobKind::NextHops(change) => self.follow_next_hops(id, change),
            // By its own cursor.
            JobKind::Sets => {}
            JobKind::TouchAll => {
                self.table.get_mut(id).touched = true;
                self.mark(id);
            }
            JobKind::Fill { group, cache } => self.fill(id, *group, cache),
            JobKind::Move { peer, from, .. } => {
                if let Some(from) = *from {
                    self.move_dest(id, *peer, from, routes);
                }
            }
            JobKind::Dump { peer, family, .. } => self.dump(id, *peer, *family, routes),
        }
        true
    }

    /// A group's Adj-RIB-Out gets a destination; its members get it later.
    fn fill(&mut self, id: DestId, group: usize, cache: &mut ExportCache) {
        let Some(mut filled) = self.groups[group].take() else {
            return;
        };
        let dest = self.table.get(id);
        // Destinations advertised already were advertised by a decision; the next decision updates
        // them.
        if !filled.has_advertised(id) {
            let own = &self.config.originate;
            let (all, best);
            let paths = if filled.key.paths_of(dest.prefix.family()).is_some() {
                all = in_order(dest, &self.peers, &self.next_hops, own);
                &all[..]
            } else {
                best = export_route(dest, &self.peers, &self.next_hops, own);
                best.as_slice()
            };
            let shared = (cache, &mut self.interner);
            filled.update(id, dest.prefix, paths, shared, &mut Vec::new());
        }
        self.groups[group] = Some(filled);
    }

    /// The changes for a peer that has changed its group, of a destination.
    pub(in crate::rib) fn move_dest(
        &self,
        id: DestId,
        peer: PeerId,
        from: usize,
        routes: &mut Vec<RouteChange>,
    ) {
        let Some((new, member)) = self.membership(peer) else {
            return;
        };
        let Some(old) = self.groups.get(from).and_then(Option::as_ref) else {
            return;
        };
        let prefix = self.table.get(id).prefix;
        old.difference(id, prefix, new, member, routes);
    }

    fn dump(
        &self,
        id: DestId,
        peer: PeerId,
        family: Option<Family>,
        routes: &mut Vec<RouteChange>,
    ) {
        let Some((group, member)) = self.membership(peer) else {
            return;
        };
        let prefix = self.table.get(id).prefix;
        if family.is_some_and(|family| family != prefix.family()) {
            return;
        }
        let advertised = group.advertised(id, member);
        routes.extend(advertised.map(|(path_id, attrs)| RouteChange {
            prefix,
            path_id,
            attrs: Some(attrs.clone()),
        }));
    }

    fn end(&mut self, kind: JobKind, changes: &mut Changes) {
        match kind {
            JobKind::Forget(peers) => {
                for id in peers {
                    if !self.is_judged(id) {
                        self.peers.forgotten(id);
                    }
                }
            }
            JobKind::Retain { peer, .. }
            | JobKind::Sweep { peer, .. }
            | JobKind::KeepLong { peer, .. } => {
                self.prune_timers(peer);
                self.forget_if_nothing_is_kept(peer);
            }
            JobKind::Fill { group, .. } => {
                if let Some(Some(group)) = self.groups.get_mut(group) {
                    group.filled = true;
                }
            }
            JobKind::Move { peer, from, to } => {
                self.unpin(to);
                if let Some(from) = from {
                    self.unpin(from);
                }
                // Its rules may have changed again meanwhile.
                self.regroup(peer);
            }
            JobKind::Dump {
                peer,
                family: Some(family),
                marked: true,
            } => changes.out.push(Outbound::RefreshEnd { peer, family }),
            JobKind::Sets => self.interner.swept(),
            JobKind::NextHops(change) => self.next_hops.sweep(&change),
            JobKind::MarkRefresh(..)
            | JobKind::EndRefresh(..)
            | JobKind::Import(_)
            | JobKind::TouchAll
            | JobKind::Dump { .. } => {}
        }
    }
}
