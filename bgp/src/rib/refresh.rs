//! Everything again: route refresh (RFC 2918) and its marks (RFC 7313), both roles.

use std::time::Instant;

use caracal_model::net::Family;

use super::restart::{STALE_LIMIT, slot};
use super::table::Staleness;
use super::{Changes, Outbound, PeerId, Rib};
use crate::types::PeerName;

impl Rib {
    /// A peer asks for everything of a family again (RFC 2918).
    pub fn route_refresh(&mut self, name: &PeerName, family: Family) -> Changes {
        let mut changes = Changes::default();
        let Some(peer) = self.peers.id(name) else {
            return changes;
        };
        let mut routes = self.routes_of_member(peer);
        routes.retain(|(prefix, _)| prefix.family() == family);
        let paths = self.paths_of_member(peer, Some(family));
        let marked = self
            .session(name)
            .is_some_and(|session| session.options.enhanced_refresh);
        // While selection is deferred nothing is known: a marked refresh would say that nothing is there.
        if marked && !self.is_deferring() {
            let refresh = Outbound::Refresh {
                peer,
                family,
                routes,
                paths,
            };
            changes.out.push(refresh);
        } else if !routes.is_empty() || !paths.is_empty() {
            let all = Outbound::Peer {
                peer,
                routes,
                paths,
            };
            changes.out.push(all);
        }
        changes
    }

    /// The peer is about to send everything of a family again (RFC 7313 §4, BoRR).
    pub fn refresh_begin(&mut self, now: Instant, name: &PeerName, family: Family) {
        let Some(id) = self.peers.id(name) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.up) else {
            return;
        };
        peer.refreshing[slot(family)] = Some(now + STALE_LIMIT);
        let fresh = self.find_paths(id, |dest, path| {
            path.stale == Staleness::Fresh && dest.prefix.family() == family
        });
        for (dest, handle) in fresh {
            if let Some(path) = self.table.get_mut(dest).path_of(handle) {
                path.stale = Staleness::Refresh;
            }
        }
    }

    /// That was everything: what the peer has not announced since goes (RFC 7313 §4, EoRR).
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
            self.remove_paths(id, |dest, path| {
                path.stale == Staleness::Refresh && dest.prefix.family() == family
            });
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
