//! Interned attribute sets: one [`Arc`] per distinct set, so that equality is pointer equality and
//! a million routes with sixty thousand sets cost sixty thousand sets.

use std::hash::BuildHasher;
use std::sync::Arc;

use super::parted::SegmentedTable;
use crate::attrs::PathAttrs;

/// Fewest attribute sets that are worth a sweep.
const MIN_SWEEP: usize = 1024;
/// Fewest octets of attribute sets that are worth a sweep: one set may have 64 KiB.
const MIN_SWEEP_OCTETS: usize = 8 << 20;
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
    /// Octets of all sets, those that await a sweep included.
    octets: usize,
    /// Sweep when the table has grown to this many sets.
    sweep_at: usize,
    /// Sweep when the table has grown to this many octets.
    sweep_at_octets: usize,
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
        if self.sets.len() >= self.sweep_at.max(MIN_SWEEP)
            || self.octets >= self.sweep_at_octets.max(MIN_SWEEP_OCTETS)
        {
            if self.sets.len() < MAX_SWEEP {
                self.sweep();
            } else {
                self.due = true;
                self.swept();
            }
        }
        self.octets += attrs.octets();
        let set = Arc::new(attrs);
        let entry = InternedSet {
            hash,
            set: set.clone(),
        };
        self.sets.insert(hash, entry, |entry| entry.hash);
        set
    }

    /// Drops the sets that nobody else holds. Amortised: the next sweep comes when the table has
    /// doubled in sets or in octets.
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
        let octets = &mut self.octets;
        let gone = |entry: &InternedSet| {
            let gone = Arc::strong_count(&entry.set) == 1;
            if gone {
                *octets = octets.saturating_sub(entry.set.octets());
            }
            gone
        };
        self.sets.walk(at, MIN_SWEEP * 4, gone, |entry| entry.hash)
    }

    /// A sweep is over.
    pub(super) const fn swept(&mut self) {
        self.sweep_at = self.sets.len() * 2;
        self.sweep_at_octets = self.octets * 2;
    }

    /// Number of distinct sets, those that await a sweep included.
    pub(super) fn len(&self) -> usize {
        self.sets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Community;

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

    /// A few sets of the largest size are as much memory as many small ones.
    #[test]
    fn churn_of_large_sets_does_not_grow_the_table() {
        let mut interner = Interner::default();
        let large = |n: u32| PathAttrs {
            communities: (0..15_000).map(|c| Community(n << 16 | c)).collect(),
            ..PathAttrs::default()
        };
        let kept = interner.intern(large(0));
        for n in 1..1000 {
            interner.intern(large(n));
            assert!(interner.octets <= MIN_SWEEP_OCTETS + 2 * kept.octets());
        }
        assert!(interner.len() < 150, "{} sets", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern(large(0))));
        interner.sweep();
        assert_eq!(interner.octets, kept.octets());
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
