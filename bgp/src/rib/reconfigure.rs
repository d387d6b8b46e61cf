//! A new configuration: only what differs moves, and no session is needed for a change of policy.

use std::collections::BTreeSet;
use std::time::Instant;

use super::dest_id::DestId;
use super::import::Imported;
use super::jobs::{JobKind, Within};
use super::limit;
use super::peers;
use super::restart;
use super::table::Staleness;
use super::{Changes, PeerId, Rib};
use crate::config::{self, ConfigChange, SpeakerConfig};
use crate::types::PeerName;

impl Rib {
    /// Gives a peer another name; nothing else changes, but what filters say that ask for it, which
    /// is work to be done. The new name is not taken.
    pub fn rename_peer(&mut self, old: &PeerName, new: &PeerName) {
        self.peers.rename(old, new);
        if let Some(peer) = self.config.peers.remove(old) {
            self.config.peers.insert(new.clone(), peer);
        }
        let asks = |id: &PeerId| {
            let peer = self.peers.get(*id);
            peer.is_some_and(|peer| peer.import_asks().sender)
        };
        let again = self.peers.id(new).filter(asks);
        self.import_again(again.into_iter().collect());
        let mut groups = self.groups.iter().flatten();
        if groups.any(|group| group.key.asks.sender) {
            self.queue(JobKind::TouchAll);
        }
    }

    /// Goes over to a new configuration. For peers whose change needs a new session
    /// ([`config::PeerChange::reset`]) the session counts as ended.
    pub fn reconfigure(&mut self, now: Instant, new: &SpeakerConfig) -> Changes {
        let change = config::compare_all_but_routes(&self.config, new);
        for name in &change.removed {
            if let Some(id) = self.peers.id(name) {
                self.end_session(now, id, false);
                self.startup.forget(id);
                self.peers.remove(id);
            }
        }
        let weight = |config: &SpeakerConfig, name| {
            let peer = config.peers.get(name)?;
            Some((peer.client_of, peer.preference))
        };
        let mut changed = change.peers.keys();
        let weights = changed.any(|name| weight(&self.config, name) != weight(new, name));
        let before = std::mem::replace(&mut self.config, new.clone());
        self.filters = peers::filters(new);
        let clusters = new
            .peers
            .values()
            .filter_map(|peer| peer.client_of)
            .collect();
        let reflection = clusters != self.clusters;
        self.clusters = clusters;
        let import_again = self.configure_peers(now, &change, reflection);
        self.import_again(import_again);
        if reflection || weights {
            // The peer may be the source of routes whose export to others depends on whether it is
            // a client, or which are preferred now to those of others.
            self.queue(JobKind::TouchAll);
        }
        for (name, config) in new
            .peers
            .iter()
            .filter(|(name, _)| change.added.contains(name))
        {
            let id = self.peers.add(name, config, new, &self.filters);
            let restart_time = config.graceful_restart.map(|gr| gr.restart_time);
            self.startup.expect(now, id, restart_time);
        }
        for id in self.peers.ids() {
            self.regroup(id);
        }
        self.change_own(before.originate);
        self.finish(now, Changes::default())
    }

    /// Gives the peers that stay their new rules. The result: whose routes must pass import policy
    /// again.
    fn configure_peers(
        &mut self,
        now: Instant,
        change: &ConfigChange,
        reflection: bool,
    ) -> BTreeSet<PeerId> {
        let mut again = BTreeSet::new();
        for id in self.peers.ids() {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            let Some(config) = self.config.peers.get(&peer.name) else {
                continue;
            };
            let differs = change.peers.get(&peer.name).copied().unwrap_or_default();
            let rules = peer.configure(config, &self.config, &self.filters);
            if rules || reflection || change.speaker {
                again.insert(id);
            }
            if differs.reset {
                // The routes of the same peer stay in use until the new session has brought them
                // again.
                self.end_session(now, id, !differs.replaced);
                self.startup.down(now, id);
            }
        }
        again
    }

    /// Runs import policy again over the stored routes of a peer.
    pub fn import_peer_again(&mut self, now: Instant, name: &PeerName) -> Changes {
        let id = self.peers.id(name);
        self.import_again(id.into_iter().collect());
        self.finish(now, Changes::default())
    }

    /// Runs import policy again over the stored routes of these peers.
    pub(super) fn import_again(&mut self, peers: BTreeSet<PeerId>) {
        if !peers.is_empty() {
            self.queue(JobKind::Import(peers));
        }
    }

    /// The same for one destination. True when it is done.
    pub(super) fn import_dest_again(
        &mut self,
        id: DestId,
        within: &mut Within,
        peers: &BTreeSet<PeerId>,
    ) -> bool {
        let done = self.walk_paths(id, within, 0, |rib, at| {
            let dest = rib.table.get(id);
            let path = &dest.paths()[at];
            if !peers.contains(&rib.peers.paths.owner(path.peer)) {
                return;
            }
            let (from, prefix, received) = (path.peer, dest.prefix, path.received.clone());
            let outcome = rib.import(from, prefix, &received);
            let room = rib.accepts_more(from, prefix.family());
            rib.replace_outcome(id, at, outcome, room);
        });
        if done {
            self.note_wait_over(id);
        }
        done
    }

    /// Stores the outcome of a second import, keeping the path's staleness. Without room, what was
    /// not accepted is not.
    pub(super) fn replace_outcome(&mut self, id: DestId, at: usize, outcome: Imported, room: bool) {
        let dest = self.table.get_mut(id);
        let family = dest.prefix.family();
        let path = &mut dest.paths_mut()[at];
        let from = path.peer;
        let outcome = limit::newly_accepted(outcome, path.accepted().is_some(), room);
        let before = (path.accepted().cloned(), path.refusal());
        path.set_outcome(outcome);
        if path.stale == Staleness::LongLived
            && let Some(attrs) = path.accepted().cloned()
        {
            path.replace_accepted(restart::long_lived(&attrs, &mut self.interner));
        }
        self.screen.count(before.1, path.refusal());
        let (was, is) = (before.0.is_some(), path.accepted().is_some());
        // RIB-2: equal sets are the same set.
        let same = before == (path.accepted().cloned(), path.refusal());
        if let Some(peer) = self.peers.get_mut(from) {
            peer.count_accepted(family, was, is);
        }
        if is && !was {
            self.check_limits(self.peers.paths.owner(from));
        }
        if !same {
            self.note_path(id, from);
            self.touch_at(id, at);
        }
    }

    /// Has an established peer go over to the update group of its rules. It is told the difference
    /// between the old view and the new one when that group has seen the whole table.
    pub(super) fn regroup(&mut self, id: PeerId) {
        // One that is on its way asks again when it has arrived.
        if self.is_moving(id) {
            return;
        }
        self.cancel_move(id);
        let Some((old, _)) = self.membership(id) else {
            return;
        };
        let key = self.peers.get(id).and_then(|peer| peer.group_key(id));
        if key.as_ref() == Some(&old.key) {
            return;
        }
        let Some(to) = self.group_for(id) else {
            return;
        };
        if let Some(group) = self.groups[to].as_mut() {
            group.pins += 1;
        }
        self.queue(JobKind::Move {
            peer: id,
            from: None,
            to,
        });
    }
}
