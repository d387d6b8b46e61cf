//! Limit of prefixes that a peer may announce (RFC 4486 §4, Cease subcode 1).
//!
//! Counted as received, before policy. Beyond the limit nothing more is taken from the peer until
//! it has a new session, so what a peer costs is bounded even if its session is slow to end.

use caracal_model::Family;

use super::families::slot;
use super::{Outbound, PeerId, Rib};
use crate::config::LimitAction;

impl Rib {
    /// Looks whether the peer has announced too much, and says so once.
    pub(super) fn check_limit(&mut self, id: PeerId) {
        let limit = self.peers.get(id).and_then(|peer| peer.config.prefix_limit);
        let Some(limit) = limit else {
            return;
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            let count = self.received_ahead(id, family);
            let Some(peer) = self.peers.get_mut(id) else {
                return;
            };
            let max = usize::try_from(limit.max).unwrap_or(usize::MAX);
            let warning = usize::try_from(limit.warning_from()).unwrap_or(usize::MAX);
            let warn = count >= warning;
            if warn && !peer.warned[slot(family)] {
                self.pending_warnings.push(Outbound::PrefixWarning {
                    peer: id,
                    family,
                    count,
                    max: limit.max,
                });
            }
            peer.warned[slot(family)] = warn;
            let restart = match limit.action {
                LimitAction::Warn => continue,
                LimitAction::Disable => None,
                LimitAction::Restart(pause) => Some(pause),
            };
            if count > max {
                peer.over_limit = true;
                self.pending_warnings.push(Outbound::PrefixLimit {
                    peer: id,
                    family,
                    max: limit.max,
                    restart,
                });
                return;
            }
        }
    }
}
