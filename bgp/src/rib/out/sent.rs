//! The limit of the prefixes that a peer is sent. A peer with such a limit has a group of its own.

use caracal_model::Family;

use super::advertised::{Advertised, Member, visible};
use crate::config::{LimitAction, PrefixLimit};
use crate::rib::families::slot;

/// A limit, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rib) struct SentLimit {
    pub(in crate::rib) member: Member,
    pub(in crate::rib) limit: PrefixLimit,
}

/// What the only member of a group is sent, by family.
#[derive(Debug, Default)]
pub(in crate::rib) struct Sent {
    /// Number of paths.
    counts: [usize; 2],
    /// There was no room for a path, and there is none yet.
    over: [bool; 2],
}

impl Sent {
    pub(in crate::rib) const fn count(&self, family: Family) -> usize {
        self.counts[slot(family)]
    }

    pub(in crate::rib) const fn is_over(&self, family: Family) -> bool {
        self.over[slot(family)]
    }

    /// Counts a path that is to replace another. False: there is no room for it. A limit that only
    /// warns has room.
    pub(super) fn admits(
        &mut self,
        to: &SentLimit,
        family: Family,
        before: Option<&Advertised>,
        after: Option<&Advertised>,
    ) -> bool {
        let [had, has] = [before, after].map(|path| visible(path, &to.member).is_some());
        let max = usize::try_from(to.limit.max).unwrap_or(usize::MAX);
        let (count, over) = (&mut self.counts[slot(family)], &mut self.over[slot(family)]);
        if has && !had && *count >= max {
            *over = true;
            if to.limit.action != LimitAction::Warn {
                return false;
            }
        }
        *count = *count + usize::from(has) - usize::from(had);
        *over &= *count >= max;
        true
    }
}
