//! How far a job is within one destination: of one with very many paths it looks at some of them in
//! a slice.
//!
//! A walk goes from the last path to the first: what is removed gives its place to the last, which
//! the walk has seen already, and what comes meanwhile goes behind it. Nothing is missed, whoever
//! changes the destination between two slices; some may be seen twice, so that a walk must not
//! mind. Where one kind of path is dropped and another marked, that is two walks.

use crate::rib::Rib;
use crate::rib::dest_id::DestId;

/// Paths that a walk looks at in a row.
pub(in crate::rib) const PATHS_AT_ONCE: usize = 8192;

/// Progress of a job within a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rib) struct Within {
    /// Walks that are done.
    walks: usize,
    /// Paths that the present walk has still to look at; `None`: it has not begun.
    left: Option<usize>,
}

impl Rib {
    /// Does the next slice of a walk over the paths of a destination, the first of those that `at`
    /// has not done if its number is this one. True when the walk is over.
    pub(in crate::rib) fn walk_paths(
        &mut self,
        id: DestId,
        within: &mut Within,
        number: usize,
        mut look: impl FnMut(&mut Self, usize),
    ) -> bool {
        if within.walks > number {
            return true;
        }
        let count = self.table.get(id).paths().len();
        let left = within.left.map_or(count, |left| left.min(count));
        let end = left.saturating_sub(PATHS_AT_ONCE);
        for at in (end..left).rev() {
            look(self, at);
        }
        if end == 0 {
            *within = Within {
                walks: number + 1,
                left: None,
            };
        } else {
            within.left = Some(end);
        }
        end == 0
    }
}
