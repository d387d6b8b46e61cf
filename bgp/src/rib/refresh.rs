//! Everything again: route refresh (RFC 2918) and its marks (RFC 7313), both roles.

use std::time::Instant;

use caracal_model::Family;

use super::dest_id::DestId;
use super::families::slot;
use super::jobs::{JobKind, Within};
use super::restart::STALE_LIMIT;
use super::table::Staleness;
use super::{Changes, PeerId, Rib};
use crate::types::PeerName;

impl Rib {
    /// A peer asks for everything of a family again (RFC 2918).
    pub fn route_refresh(&mut self, now: Instant, name: &PeerName, family: Family) -> Changes {
        if let Some(peer) = self.peers.id(name)
            && self.membership(peer).is_some()
            // Routes that are not advertised yet will be anyway, before End-of-RIB.
            && !self.restart_dump(peer, family)
        {
            let session = self.session(name);
            let marked = session.is_some_and(|session| session.options.enhanced_refresh);
            self.queue(JobKind::Dump {
                peer,
                family: Some(family),
                // While selection is deferred nothing is known: a marked refresh would say that
                // nothing is there.
                marked: marked && !self.is_deferring(),
            });
        }
        self.finish(now, Changes::default())
    }

    /// The peer is about to send everything of a family again (RFC 7313 §4, BoRR). Its messages
    /// wait while it is busy.
    pub fn refresh_begin(&mut self, now: Instant, name: &PeerName, family: Family) -> Changes {
        if let Some(id) = self.peers.id(name) {
            self.end_judging(id);
            if let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.up) {
                peer.refreshing[slot(family)] = Some(now + STALE_LIMIT);
                self.queue(JobKind::MarkRefresh(id, family));
            }
        }
        self.finish(now, Changes::default())
    }

    /// The paths of a peer to a destination await to be announced again. True when all of them do.
    pub(super) fn mark_refresh(
        &mut self,
        id: DestId,
        within: &mut Within,
        peer: PeerId,
        family: Family,
    ) -> bool {
        if self.table.get(id).prefix.family() != family {
            return true;
        }
        self.walk_paths(id, within, 0, |rib, at| {
            let path = &mut rib.table.get_mut(id).paths_mut()[at];
            if path.stale != Staleness::Fresh || !rib.peers.owns(peer, path.peer) {
                return;
            }
            path.stale = Staleness::Refresh;
            if let Some(state) = rib.peers.get_mut(peer) {
                state.note_staleness(family, Staleness::Fresh, Staleness::Refresh);
            }
        })
    }

    /// Ends an enhanced refresh: what the peer has not announced since its begin goes (RFC 7313 §4,
    /// EoRR).
    pub fn refresh_end(&mut self, now: Instant, name: &PeerName, family: Family) -> Changes {
        if let Some(id) = self.peers.id(name) {
            self.end_refresh(id, family);
        }
        self.finish(now, Changes::default())
    }

    fn end_refresh(&mut self, id: PeerId, family: Family) {
        let refreshing = self
            .peers
            .get_mut(id)
            .and_then(|peer| peer.refreshing[slot(family)].take());
        // RFC 7313 §4: an EoRR without BoRR means nothing.
        if refreshing.is_some() {
            self.queue(JobKind::EndRefresh(id, family));
        }
    }

    /// Ends refreshes whose EoRR fails to come; RFC 7313 §4 allows such a bound.
    pub(super) fn expire_refreshes(&mut self, now: Instant) {
        for id in self.peers.ids() {
            for family in [Family::Ipv4, Family::Ipv6] {
                let until = self
                    .peers
                    .get(id)
                    .and_then(|peer| peer.refreshing[slot(family)]);
                if until.is_some_and(|until| until <= now) {
                    self.end_refresh(id, family);
                }
            }
        }
    }
}
