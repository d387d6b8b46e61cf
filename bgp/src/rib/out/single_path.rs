//! The Adj-RIB-Out of families of which the members take one path: four octets for each
//! destination, and each advertisement once.
//!
//! Routes by the dozen carry the same attributes from the same peer. The advertisement of a
//! destination is a handle of that pair; pairs are counted, and go with the last destination that
//! had them.

use std::num::NonZeroU32;

use super::advertised::{Advertised, Before, Member, VisibleCount};
use crate::rib::parted::{SegmentedList, SegmentedTable};

/// A pair in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdvertisementHandle(NonZeroU32);

impl AdvertisementHandle {
    fn new(index: usize) -> Self {
        let index = u32::try_from(index).expect("fewer than 2^32 attribute sets fit into memory");
        // One more, so that a destination without has a value in four octets.
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Advertisement of each destination.
#[derive(Debug, Default)]
pub(super) struct AdvertisedRoutes {
    /// By the destination's handle.
    routes: Vec<Option<AdvertisementHandle>>,
    /// By the pair's handle; `None`: the slot is free.
    pairs: SegmentedList<Option<Advertised>>,
    /// Number of routes with the pair; beside them, so that a pair takes 20 octets.
    uses: Vec<u32>,
    free: Vec<AdvertisementHandle>,
    known: SegmentedTable<AdvertisementHandle>,
    hasher: foldhash::quality::RandomState,
    /// The pair that was put last: routes with the same one come in runs.
    last: Option<AdvertisementHandle>,
}

impl AdvertisedRoutes {
    /// Advertisement of a destination.
    pub(super) fn get(&self, dest: usize) -> Option<&Advertised> {
        let handle = self.routes.get(dest).copied().flatten()?;
        self.pairs[handle.index()].as_ref()
    }

    /// Number of destinations that are advertised to each of these members; in one walk,
    /// however many they are.
    pub(super) fn counts(&self, members: &[Member]) -> Vec<usize> {
        let mut count = VisibleCount::new(members);
        for (sent, uses) in self.pairs.iter().zip(&self.uses) {
            if let Some(sent) = sent {
                count.add(sent.source(), sent.attrs().next_hop, *uses as usize);
            }
        }
        count.finish()
    }

    /// Advertisements of all destinations.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&Advertised>> {
        (0..self.routes.len()).map(|dest| self.get(dest))
    }

    /// Has the processor load what [`AdvertisedRoutes::put`] will read of a destination. The result
    /// means nothing.
    pub(super) fn prefetch(&self, dest: usize) -> usize {
        self.get(dest)
            .map_or(0, |sent| usize::from(sent.attrs().next_hop.is_some()))
    }

    /// Notes what is advertised of a destination from now on. `None`: nothing changes. The result:
    /// what has been advertised until now.
    pub(super) fn put(&mut self, dest: usize, sent: Option<&Advertised>) -> Option<Option<Before>> {
        let before = match (self.get(dest), sent) {
            (None, None) => return None,
            (Some(before), Some(after)) if before.is(after) => return None,
            (before, after) => before.map(|before| before.before(after)),
        };
        if self.routes.len() <= dest {
            self.routes.resize(dest + 1, None);
        }
        let handle = sent.map(|sent| self.take(sent));
        if let Some(before) = std::mem::replace(&mut self.routes[dest], handle) {
            self.give_back(before);
        }
        if handle.is_none() && self.known.is_empty() {
            // Nothing is advertised any more: nothing has to be remembered.
            self.forget();
        }
        Some(before)
    }

    /// Gives all memory back.
    fn forget(&mut self) {
        self.routes = Vec::new();
        self.pairs = SegmentedList::default();
        self.uses = Vec::new();
        self.free = Vec::new();
        self.known = SegmentedTable::default();
        self.last = None;
    }

    /// Octets that it has room for.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.routes.capacity() * size_of::<Option<AdvertisementHandle>>()
            + self.pairs.room()
            + (self.uses.capacity() + self.free.capacity()) * size_of::<u32>()
            + self.known.room()
    }

    /// The handle of a pair for one more route.
    fn take(&mut self, sent: &Advertised) -> AdvertisementHandle {
        let is = |pairs: &SegmentedList<Option<Advertised>>, handle: AdvertisementHandle| {
            let known = pairs[handle.index()].as_ref();
            known.is_some_and(|known| known.is(sent))
        };
        if let Some(last) = self.last.filter(|last| is(&self.pairs, *last)) {
            self.uses[last.index()] += 1;
            return last;
        }
        let hash = sent.hash(&self.hasher);
        let known = self.known.find(hash, |handle| is(&self.pairs, *handle));
        let handle = match known {
            Some(known) => *known,
            None => self.insert(hash, sent.clone()),
        };
        self.uses[handle.index()] += 1;
        self.last = Some(handle);
        handle
    }

    fn insert(&mut self, hash: u64, sent: Advertised) -> AdvertisementHandle {
        let handle = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.uses.push(0);
            AdvertisementHandle::new(self.pairs.len() - 1)
        });
        self.pairs[handle.index()] = Some(sent);
        let (pairs, hasher) = (&self.pairs, &self.hasher);
        self.known.insert(hash, handle, |handle| {
            let pair = pairs[handle.index()].as_ref();
            pair.map_or(0, |pair| pair.hash(hasher))
        });
        handle
    }

    /// A route has the pair no longer.
    fn give_back(&mut self, handle: AdvertisementHandle) {
        let index = handle.index();
        self.uses[index] -= 1;
        if self.uses[index] > 0 {
            return;
        }
        let Some(gone) = self.pairs[index].take() else {
            return;
        };
        let hash = gone.hash(&self.hasher);
        self.known.remove(hash, |seen| *seen == handle);
        self.free.push(handle);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::attrs::PathAttrs;
    use crate::rib::peer_id::PeerId;

    #[test]
    fn a_destination_takes_four_octets() {
        assert_eq!(size_of::<Option<AdvertisementHandle>>(), 4);
        assert_eq!(size_of::<Option<Advertised>>(), 16);
    }

    proptest! {
        /// The same as a list of pairs; and nothing is kept of what is no longer advertised.
        #[test]
        fn it_does_what_a_list_does(
            steps in proptest::collection::vec((0usize..20, proptest::option::of((0usize..4, 0u32..3))), 1..300),
        ) {
            let sets: Vec<Arc<PathAttrs>> = (0..4).map(|_| Arc::default()).collect();
            let (mut routes, mut list) = (AdvertisedRoutes::default(), vec![None; 20]);
            for (dest, advertised) in steps {
                let sent = advertised.map(|(set, peer)| Advertised::new(sets[set].clone(), PeerId(peer)));
                let was: Option<Advertised> = std::mem::replace(&mut list[dest], sent.clone());
                let same = match (&was, &sent) {
                    (None, None) => true,
                    (Some(was), Some(sent)) => was.is(sent),
                    _ => false,
                };
                match routes.put(dest, sent.as_ref()) {
                    None => prop_assert!(same),
                    Some(before) => {
                        prop_assert!(!same);
                        let expected = was.map(|was| Before {
                            source: was.source(),
                            next_hop: was.attrs().next_hop,
                            same: sent.is_some_and(|sent| Arc::ptr_eq(sent.attrs(), was.attrs())),
                        });
                        prop_assert_eq!(before, expected);
                    }
                }
                for (dest, advertised) in list.iter().enumerate() {
                    prop_assert_eq!(routes.get(dest).is_some(), advertised.is_some());
                    let both = routes.get(dest).zip(advertised.as_ref());
                    prop_assert!(both.is_none_or(|(seen, advertised)| seen.is(advertised)));
                }
            }
            let advertised = list.iter().flatten().count();
            prop_assert_eq!(routes.iter().flatten().count(), advertised);
            for (dest, advertised) in list.iter_mut().enumerate() {
                routes.put(dest, None);
                *advertised = None;
            }
            prop_assert!(routes.known.is_empty());
            prop_assert_eq!(routes.room(), 0);
            prop_assert!(sets.iter().all(|set| Arc::strong_count(set) == 1));
        }
    }
}
