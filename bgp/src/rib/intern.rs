//! Interned attribute sets: one [`Arc`] per distinct set, so that equality is pointer equality and
//! a million routes with sixty thousand sets cost sixty thousand sets.

use std::hash::BuildHasher;
use std::sync::Arc;

use super::parted::SegmentedTable;
use crate::attrs::PathAttrs;

/// Fewest attribute sets that are worth a sweep.
const MIN_SWEEP: usize = 1024;
/// Most attribute sets that are swept at once; more are swept in slices, for each is a read of
/// memory that is in no cache.
const MAX_SWEEP: usize = 16 * 1024;

/// A set with its hash beside it: growing the table, and passing over other sets, touch no set.
#[derive(Debug)]
struct InternedSet {
    hash: u64,
    set: Arc<PathAttrs>,
}

/// The table of attribute sets. The hash is seeded per process: a peer cannot choose sets that
/// collide.
#[derive(Debug, Default)]
pub(super) struct Interner {
    sets: SegmentedTable<InternedSet>,
    hasher: foldhash::quality::RandomState,
    /// Sweep when the table has grown to this size.
    sweep_at: usize,
    /// Somebody has to sweep, step by step ([`Interner::sweep_at`]).
    due: bool,
}

impl Interner {
    /// The shared copy of `attrs`.
    pub(super) fn intern(&mut self, attrs: PathAttrs) -> Arc<PathAttrs> {
        let hash = self.hasher.hash_one(&attrs);
        let same = |known: &InternedSet| known.hash == hash && *known.set == attrs;
        if let Some(known) = self.sets.find(hash, same) {
            return known.set.clone();
        }
        if self.sets.len() >= self.sweep_at.max(MIN_SWEEP) {
            if self.sets.len() < MAX_SWEEP {
                self.sweep();
            } else {
                self.due = true;
                self.sweep_at = self.sets.len() * 2;
            }
        }
        let set = Arc::new(attrs);
        let entry = InternedSet {
            hash,
            set: set.clone(),
        };
        self.sets.insert(hash, entry, |entry| entry.hash);
        set
    }

    /// Drops the sets that nobody else holds. Amortised: the next sweep comes when the table has
    /// doubled.
    fn sweep(&mut self) {
        let mut at = 0;
        while at < self.end() {
            at = self.sweep_at(at).0;
        }
        self.swept();
    }

    /// True, once, when a sweep in slices is due.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Where a sweep ends, which begins at 0.
    pub(super) const fn end(&self) -> usize {
        self.sets.end()
    }

    /// A step of a sweep: drops a set that nobody else holds. The result is where it goes on, and
    /// how much more work it was than a look. A table that grows meanwhile may hide some from this
    /// sweep.
    pub(super) fn sweep_at(&mut self, at: usize) -> (usize, usize) {
        let gone = |entry: &InternedSet| Arc::strong_count(&entry.set) == 1;
        self.sets.walk(at, MIN_SWEEP * 4, gone, |entry| entry.hash)
    }

    /// A sweep is over.
    pub(super) const fn swept(&mut self) {
        self.sweep_at = self.sets.len() * 2;
    }

    /// Number of distinct sets, those that await a sweep included.
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(med: u32) -> PathAttrs {
        PathAttrs {
            med: Some(med),
            ..PathAttrs::default()
        }
    }

    #[test]
    fn equal_sets_are_one() {
        let mut interner = Interner::default();
        let one = interner.intern(set(1));
        assert!(Arc::ptr_eq(&one, &interner.intern(set(1))));
        assert!(!Arc::ptr_eq(&one, &interner.intern(set(2))));
        assert_eq!(interner.len(), 2);
    }

    #[test]
    fn churn_does_not_grow_the_table() {
        let mut interner = Interner::default();
        let kept: Vec<_> = (0..10).map(|med| interner.intern(set(med))).collect();
        for med in 0..100_000 {
            interner.intern(set(med));
        }
        assert!(interner.len() <= MIN_SWEEP, "{} sets", interner.len());
        for (med, arc) in (0..).zip(&kept) {
            assert!(Arc::ptr_eq(arc, &interner.intern(set(med))));
        }
    }
}
