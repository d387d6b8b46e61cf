//! Limits of the prefixes of a peer: of those that it announces, of those that import policy
//! accepts (RFC 4486 §4, Cease subcode 1), and of those that it is sent.
//!
//! Beyond a limit that ends the session nothing more is taken from the peer until it has a new one,
//! so what a peer costs is bounded even if its session is slow to end. A limit that blocks looks at
//! the count alone and remembers nothing.

use caracal_model::{Family, Prefix};

use super::families::{FAMILIES, slot};
use super::import::{ImportRefusal, Imported};
use super::out::SentLimit;
use super::{Outbound, PeerId, Rib};
use crate::config::{Counted, LimitAction, LimitPassed, PrefixLimit};

/// All limits of what comes from a peer.
const INCOMING: [Counted; 2] = [Counted::Received, Counted::Accepted];

impl Rib {
    /// Looks whether the peer has too much, and says so once.
    pub(super) fn check_limits(&mut self, id: PeerId) {
        for counted in INCOMING {
            let peer = self.peers.get(id);
            let peer = peer.filter(|peer| peer.up && !peer.over_limit);
            let Some(limits) = peer.map(|peer| peer.config.limits(counted)) else {
                return;
            };
            for family in FAMILIES {
                if let Some(limit) = limits.for_family(family) {
                    let count = self.count_ahead(id, counted, family);
                    let max = usize::try_from(limit.max).unwrap_or(usize::MAX);
                    self.check_limit((id, counted, family), limit, count, count > max);
                }
            }
        }
    }

    /// The same for what peers are sent.
    pub(super) fn check_sent(&mut self) {
        for index in 0..self.groups.len() {
            let Some(group) = &self.groups[index] else {
                continue;
            };
            let Some(SentLimit { member, limits }) = group.key.limit else {
                continue;
            };
            // It may be on its way to the group.
            if group.member(member.peer).is_none() {
                continue;
            }
            let counts =
                FAMILIES.map(|family| (group.sent.count(family), group.sent.is_over(family)));
            for (family, (count, over)) in FAMILIES.into_iter().zip(counts) {
                if let Some(limit) = limits.for_family(family) {
                    self.check_limit((member.peer, Counted::Sent, family), limit, count, over);
                }
            }
        }
    }

    fn check_limit(
        &mut self,
        (id, counted, family): (PeerId, Counted, Family),
        limit: PrefixLimit,
        count: usize,
        over: bool,
    ) {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| !peer.over_limit) else {
            return;
        };
        let warning = usize::try_from(limit.warning_from()).unwrap_or(usize::MAX);
        let warn = count >= warning;
        let warned = &mut peer.warned[counted as usize][slot(family)];
        let before = std::mem::replace(warned, warn);
        if warn && !before {
            self.pending_warnings.push(Outbound::PrefixWarning {
                peer: id,
                counted,
                family,
                count,
                max: limit.max,
            });
        }
        let restart = match limit.action {
            LimitAction::Warn | LimitAction::Block => return,
            LimitAction::Disable => None,
            LimitAction::Restart(pause) => Some(pause),
        };
        if over {
            peer.over_limit = true;
            let passed = LimitPassed {
                counted,
                family,
                max: limit.max,
                restart,
            };
            let peer = id;
            self.pending_warnings
                .push(Outbound::PrefixLimit { peer, passed });
        }
    }

    /// True when a limit of the peer keeps out what would be one more of the family.
    pub(super) fn blocks(&self, id: PeerId, counted: Counted, family: Family) -> bool {
        let limits = self.peers.get(id).map(|peer| peer.config.limits(counted));
        limits
            .and_then(|limits| limits.for_family(family))
            .filter(|limit| limit.action == LimitAction::Block)
            .is_some_and(|limit| {
                let max = usize::try_from(limit.max).unwrap_or(usize::MAX);
                self.count_ahead(id, counted, family) >= max
            })
    }

    /// True when a limit keeps out a path that the peer does not have yet.
    pub(super) fn keeps_out(&mut self, id: PeerId, prefix: &Prefix, path_id: Option<u32>) -> bool {
        if !self.blocks(id, Counted::Received, prefix.family()) {
            return false;
        }
        let handle = match path_id {
            Some(path_id) => self.peers.paths.find(id, path_id),
            None => Some(id),
        };
        let dest = self.table.find(prefix);
        let known = dest.zip(handle);
        known.is_none_or(|(dest, handle)| self.table.get(dest).position(handle).is_none())
    }

    /// False when a limit keeps out what policy accepts besides what it has accepted.
    pub(super) fn accepts_more(&self, id: PeerId, family: Family) -> bool {
        !self.blocks(id, Counted::Accepted, family)
    }
}

/// What policy says of a path, where there is room or the path was accepted before.
pub(super) fn newly_accepted(outcome: Imported, was_accepted: bool, room: bool) -> Imported {
    match outcome {
        Ok(_) if !was_accepted && !room => Err(ImportRefusal::OverLimit),
        outcome => outcome,
    }
}
