//! The limit of the prefixes that a peer is sent. A peer with such a limit has a group of its own.

use caracal_model::Family;

use super::advertised::{Advertised, Member, visible};
use crate::config::{LimitAction, PrefixLimits};
use crate::rib::families::slot;

/// Limits, and whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rib) struct SentLimit {
    pub(in crate::rib) member: Member,
    pub(in crate::rib) limits: PrefixLimits,
}

/// What the only member of a group is sent, by family.
#[derive(Debug, Default)]
pub(in crate::rib) struct Sent {
    /// Number of paths.
    counts: [usize; 2],
    /// There was no room for a path, and there is none yet.
    over: [bool; 2],
    /// The destinations of which something is kept back, a bit for each place.
    kept_back: [Vec<u64>; 2],
    /// Number of these destinations.
    kept_back_counts: [usize; 2],
}

impl Sent {
    pub(in crate::rib) const fn count(&self, family: Family) -> usize {
        self.counts[slot(family)]
    }

    pub(in crate::rib) const fn is_over(&self, family: Family) -> bool {
        self.over[slot(family)]
    }

    /// Number of destinations of which the limit keeps something back.
    pub(in crate::rib) const fn kept_back(&self, family: Family) -> usize {
        self.kept_back_counts[slot(family)]
    }

    /// Notes whether something of a destination is kept back.
    pub(super) fn note(&mut self, place: usize, family: Family, is_kept_back: bool) {
        let words = &mut self.kept_back[slot(family)];
        let (word, bit) = (place / 64, 1 << (place % 64));
        if words.len() <= word {
            if !is_kept_back {
                return;
            }
            words.resize(word + 1, 0);
        }
        let Some(word) = words.get_mut(word) else {
            return;
        };
        let count = &mut self.kept_back_counts[slot(family)];
        *count -= usize::from(*word & bit != 0);
        *count += usize::from(is_kept_back);
        *word = if is_kept_back {
            *word | bit
        } else {
            *word & !bit
        };
    }

    /// Counts a path that is to replace another. False: there is no room for it. Without a limit,
    /// and with one that only warns, there is.
    pub(super) fn admits(
        &mut self,
        to: &SentLimit,
        family: Family,
        before: Option<&Advertised>,
        after: Option<&Advertised>,
    ) -> bool {
        let [had, has] = [before, after].map(|path| visible(path, &to.member).is_some());
        let limit = to.limits.for_family(family);
        let max = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit.max).unwrap_or(usize::MAX)
        });
        let (count, over) = (&mut self.counts[slot(family)], &mut self.over[slot(family)]);
        if has && !had && *count >= max {
            *over = true;
            if limit.is_some_and(|limit| limit.action != LimitAction::Warn) {
                return false;
            }
        }
        *count = *count + usize::from(has) - usize::from(had);
        *over &= *count >= max;
        true
    }
}
