//! The prefix table: destinations in chunks, found through one hash lookup, named by handles.
//!
//! A destination holds all paths to one prefix, from whatever peer: Adj-RIB-In and Loc-RIB are
//! views of it. One path needs no allocation of its own, and growing never copies the table.

use std::hash::BuildHasher;
use std::sync::Arc;

use caracal_model::{Family, Prefix};
use foldhash::HashMap;

use super::PeerId;
use super::dest_id::DestId;
use super::free::Free;
use super::import::{ImportRefusal, Imported};
use super::index::Index;
use crate::attrs::PathAttrs;

/// Destinations per chunk: large enough that chunks do not count, small enough that a small table
/// is small.
const CHUNK: usize = 1024;

/// One path to one prefix.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// As received, after the corrections that the kind of session demands, before policy.
    pub(super) received: Arc<PathAttrs>,
    /// After import policy, when that has changed something.
    changed: Option<Arc<PathAttrs>>,
    /// The peer that sent it.
    pub(super) peer: PeerId,
    /// Why it was refused.
    refusal: Option<ImportRefusal>,
    /// Import has accepted the path.
    is_accepted: bool,
    /// Not confirmed since something happened.
    pub(super) stale: Staleness,
    /// Outcome of the last decision.
    pub(super) rank: Rank,
}

impl Path {
    /// A path that has just been announced.
    pub(super) fn new(received: Arc<PathAttrs>, peer: PeerId, outcome: Imported) -> Self {
        let mut path = Self {
            received,
            changed: None,
            peer,
            refusal: None,
            is_accepted: false,
            stale: Staleness::Fresh,
            rank: Rank::None,
        };
        path.set_outcome(outcome);
        path
    }

    /// The attributes after import policy; `None` when refused, or of no use any more.
    pub(super) fn accepted(&self) -> Option<&Arc<PathAttrs>> {
        let accepted = self.changed.as_ref().unwrap_or(&self.received);
        self.is_accepted.then_some(accepted)
    }

    /// Why it was refused.
    pub(super) const fn refusal(&self) -> Option<ImportRefusal> {
        self.refusal
    }

    /// Notes what import made of it.
    pub(super) fn set_outcome(&mut self, outcome: Imported) {
        self.refusal = outcome.as_ref().err().copied();
        self.is_accepted = outcome.is_ok();
        self.changed = outcome.ok().flatten();
    }

    /// Replaces the accepted attributes; `None`: the path is not usable any more.
    pub(super) fn replace_accepted(&mut self, accepted: Option<Arc<PathAttrs>>) {
        self.is_accepted = accepted.is_some();
        self.changed = accepted;
    }
}

/// Why a path awaits to be announced again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Staleness {
    /// The session is up, and the path has come on it.
    Fresh,
    /// The peer sends everything again (RFC 7313).
    Refresh,
    /// Kept from before a restart of the peer (RFC 4724 §4.2).
    Restart,
    /// Kept as a last resort, with LLGR_STALE in its accepted attributes (RFC 9494 §4.2).
    LongLived,
}

impl Staleness {
    /// True when the peer has been away since it announced the path.
    pub(super) const fn is_kept(self) -> bool {
        matches!(self, Self::Restart | Self::LongLived)
    }
}

/// Rank of a path after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The path is not used.
    None,
    /// The best path.
    Best,
    /// As good as the best: part of the ECMP set.
    Equal,
}

/// The paths to one prefix.
#[derive(Clone, Debug)]
pub(super) struct Dest {
    pub(super) prefix: Prefix,
    /// Hash of the prefix.
    hash: u32,
    /// On the list of destinations to decide.
    pub(super) dirty: bool,
    /// Something that the last decision used has been replaced or removed since.
    pub(super) touched: bool,
    paths: Paths,
}

#[derive(Clone, Debug)]
enum Paths {
    Empty,
    One(Path),
    Many(Box<Many>),
}

/// Two paths or more.
#[derive(Clone, Debug, Default)]
struct Many {
    paths: Vec<Path>,
    /// Position of the path of each peer, where paths are so many that it is not simply looked for.
    by_peer: HashMap<PeerId, u32>,
}

/// Paths of a destination above which the place of each is kept.
const LOOKED_THROUGH: usize = 64;

#[cfg(test)]
thread_local! {
    /// Paths that were read to find that of a peer.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn looked_at() -> usize {
    LOOKED_AT.get()
}

impl Many {
    fn position(&self, peer: PeerId) -> Option<usize> {
        if self.by_peer.is_empty() {
            let found = self.paths.iter().position(|path| path.peer == peer);
            #[cfg(test)]
            LOOKED_AT.set(LOOKED_AT.get() + found.map_or(self.paths.len(), |at| at + 1));
            return found;
        }
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + 1);
        self.by_peer.get(&peer).map(|at| *at as usize)
    }

    fn push(&mut self, path: Path) {
        if !self.by_peer.is_empty() {
            self.note(path.peer, self.paths.len());
        }
        self.paths.push(path);
        if self.by_peer.is_empty() && self.paths.len() > LOOKED_THROUGH {
            for at in 0..self.paths.len() {
                self.note(self.paths[at].peer, at);
            }
        }
    }

    fn note(&mut self, peer: PeerId, at: usize) {
        let at = u32::try_from(at).expect("fewer than 2^32 paths fit into memory");
        self.by_peer.insert(peer, at);
    }

    fn swap_remove(&mut self, at: usize) -> Path {
        let path = self.paths.swap_remove(at);
        if !self.by_peer.is_empty() {
            self.by_peer.remove(&path.peer);
            if let Some(moved) = self.paths.get(at) {
                self.note(moved.peer, at);
            }
            if self.paths.len() < LOOKED_THROUGH / 2 {
                self.by_peer = HashMap::default();
                self.paths.shrink_to_fit();
            }
        }
        path
    }
}

impl Dest {
    /// All paths, in no particular order.
    pub(super) fn paths(&self) -> &[Path] {
        match &self.paths {
            Paths::Empty => &[],
            Paths::One(path) => std::slice::from_ref(path),
            Paths::Many(many) => &many.paths,
        }
    }

    /// All paths, in no particular order.
    pub(super) fn paths_mut(&mut self) -> &mut [Path] {
        match &mut self.paths {
            Paths::Empty => &mut [],
            Paths::One(path) => std::slice::from_mut(path),
            Paths::Many(many) => &mut many.paths,
        }
    }

    /// The path that the last decision chose.
    pub(super) fn best(&self) -> Option<&Path> {
        self.paths().iter().find(|path| path.rank == Rank::Best)
    }

    /// The path of a peer.
    pub(super) fn path_of(&mut self, peer: PeerId) -> Option<&mut Path> {
        let at = self.position(peer)?;
        self.paths_mut().get_mut(at)
    }

    /// Position of the path of a peer.
    pub(super) fn position(&self, peer: PeerId) -> Option<usize> {
        match &self.paths {
            Paths::Empty => None,
            Paths::One(path) => (path.peer == peer).then_some(0),
            Paths::Many(many) => many.position(peer),
        }
    }

    /// Adds a path; the peer has none yet.
    pub(super) fn push(&mut self, path: Path) {
        self.paths = match std::mem::replace(&mut self.paths, Paths::Empty) {
            Paths::Empty => Paths::One(path),
            Paths::One(first) => Paths::Many(Box::new(Many {
                paths: vec![first, path],
                by_peer: HashMap::default(),
            })),
            Paths::Many(mut many) => {
                many.push(path);
                Paths::Many(many)
            }
        };
    }

    /// Takes out the path of a peer.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Path> {
        self.remove_at(self.position(peer)?)
    }

    /// Removes a path by its index; the last path moves there.
    pub(super) fn remove_at(&mut self, index: usize) -> Option<Path> {
        if index >= self.paths().len() {
            return None;
        }
        match &mut self.paths {
            Paths::Many(many) => {
                let path = many.swap_remove(index);
                if many.paths.len() == 1 {
                    let last = many.paths.pop();
                    self.paths = last.map_or(Paths::Empty, Paths::One);
                }
                Some(path)
            }
            Paths::Empty | Paths::One(_) => {
                match std::mem::replace(&mut self.paths, Paths::Empty) {
                    Paths::One(path) => Some(path),
                    Paths::Empty | Paths::Many(_) => None,
                }
            }
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Destinations that were read, repeated ones included.
    static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn visits() -> usize {
    VISITS.get()
}

/// Tests count what a call costs; nobody else does.
#[inline]
#[allow(clippy::missing_const_for_fn, reason = "it counts in tests")]
pub(super) fn note_visit() {
    #[cfg(test)]
    VISITS.set(VISITS.get() + 1);
}

/// Destinations, each with its paths, in slots.
#[derive(Debug, Default)]
pub(super) struct Table {
    index: Index,
    /// Searches pass over slots one by one, so that all bits have to be good: with the fast hash
    /// the process's seed made one node in some hundreds pass over 3 to 170 of them at each.
    hasher: foldhash::quality::SeedableRandomState,
    /// A chunk none of whose slots is taken has no memory.
    chunks: Vec<Vec<Dest>>,
    /// Number of slots taken in each chunk.
    taken: Vec<u32>,
    free: Free,
    /// Number of slots, free ones included.
    slots: usize,
    /// Lengths that some prefix has had since the table was empty, a bit for each, by family.
    lens: [[u64; 3]; 2],
}

/// Content of a free slot of a chunk that has memory.
fn empty() -> Dest {
    Dest {
        prefix: Prefix::v4(std::net::Ipv4Addr::UNSPECIFIED, 0),
        hash: 0,
        dirty: false,
        touched: false,
        paths: Paths::Empty,
    }
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get(&self, id: DestId) -> &Dest {
        note_visit();
        &self.chunks[id.index() / CHUNK][id.index() % CHUNK]
    }

    pub(super) fn get_mut(&mut self, id: DestId) -> &mut Dest {
        note_visit();
        &mut self.chunks[id.index() / CHUNK][id.index() % CHUNK]
    }

    fn hash(&self, prefix: &Prefix) -> u32 {
        // The upper half; the index takes its lowest bits.
        (self.hasher.hash_one(prefix) >> 32) as u32
    }

    /// The handle of a prefix.
    pub(super) fn find(&self, prefix: &Prefix) -> Option<DestId> {
        self.find_hashed(self.hash(prefix), prefix)
    }

    fn find_hashed(&self, hash: u32, prefix: &Prefix) -> Option<DestId> {
        self.index.find(hash, |id| self.get(id).prefix == *prefix)
    }

    /// Has what lookups of these prefixes will read on its way to the caches. One UPDATE's lookups
    /// that follow wait for memory together instead of one after the other.
    pub(super) fn prefetch(&self, prefixes: &[Prefix]) {
        let hashes = prefixes.iter().map(|prefix| self.hash(prefix));
        let paths = self
            .index
            .prefetch(hashes)
            .map(|id| self.get(id).paths().first());
        // The counter of a set that is let go is read with the others, for to change it waits for
        // all reads before.
        let seen = paths.map(|path| path.map_or(0, |path| Arc::strong_count(&path.received)));
        // `black_box` keeps the compiler from dropping the prefetch loads.
        std::hint::black_box(seen.fold(0, usize::wrapping_add));
    }

    /// The handle of a prefix, made if necessary.
    pub(super) fn find_or_insert(&mut self, prefix: Prefix) -> DestId {
        let hash = self.hash(&prefix);
        if let Some(id) = self.find_hashed(hash, &prefix) {
            return id;
        }
        let dest = Dest {
            prefix,
            hash,
            dirty: false,
            touched: false,
            paths: Paths::Empty,
        };
        let (family, len) = (usize::from(prefix.family() == Family::Ipv6), prefix.len());
        self.lens[family][usize::from(len / 64)] |= 1 << (len % 64);
        let id = self.insert_dest(dest);
        self.index.insert(hash, id);
        id
    }

    fn insert_dest(&mut self, dest: Dest) -> DestId {
        if let Some(slot) = self.free.take() {
            let chunk = &mut self.chunks[slot / CHUNK];
            if chunk.is_empty() {
                let size = CHUNK.min(self.slots - slot / CHUNK * CHUNK);
                *chunk = vec![empty(); size];
            }
            chunk[slot % CHUNK] = dest;
            self.taken[slot / CHUNK] += 1;
            return Self::id(slot);
        }
        let next = self.slots;
        if next.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
            self.taken.push(0);
        }
        self.chunks[next / CHUNK].push(dest);
        self.taken[next / CHUNK] += 1;
        self.slots += 1;
        Self::id(next)
    }

    /// The handle of a slot.
    pub(super) fn id(slot: usize) -> DestId {
        DestId::new(u32::try_from(slot).expect("fewer than 2^32 prefixes fit into memory"))
    }

    /// Gives a destination without paths back. Its memory stays for who comes next.
    pub(super) fn release(&mut self, id: DestId) {
        if self.index.remove(self.get(id).hash, id) {
            self.free.put(id.index());
            self.taken[id.index() / CHUNK] -= 1;
        }
    }

    /// Gives back the memory of destinations that are gone.
    pub(super) fn shrink(&mut self) {
        self.index.shrink();
        let unused = self.taken.iter().zip(&mut self.chunks);
        for (_, chunk) in unused.filter(|(taken, _)| **taken == 0) {
            *chunk = Vec::new();
        }
        if self.index.len() == 0 {
            // Nothing is left that a slot could be remembered for.
            self.chunks = Vec::new();
            self.taken = Vec::new();
            self.free = Free::default();
            self.slots = 0;
            self.lens = [[0; 3]; 2];
        }
    }

    /// False: no prefix has this length.
    pub(super) fn has_len(&self, family: Family, len: u8) -> bool {
        let lens = &self.lens[usize::from(family == Family::Ipv6)];
        lens[usize::from(len / 64)] >> (len % 64) & 1 == 1
    }

    /// Octets that the table has room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        let dests: usize = self.chunks.iter().map(Vec::capacity).sum();
        dests * size_of::<Dest>() + self.index.room()
    }

    /// The destination at a slot; `None`: the slot is free. One without paths on which nothing has
    /// been decided is there still: peers have what was advertised of it.
    pub(super) fn dest_at(&self, slot: usize) -> Option<(DestId, &Dest)> {
        note_visit();
        let dest = self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)?;
        (dest.dirty || !dest.paths().is_empty()).then(|| (Self::id(slot), dest))
    }

    /// Number of slots, free ones included.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// The destinations at these slots, as far as there are so many; one that is free has no
    /// paths, or is left out.
    pub(super) fn at(
        &self,
        slots: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (DestId, &Dest)> {
        let end = slots.end.min(self.slots);
        let dest = |slot: usize| {
            note_visit();
            let chunk = &self.chunks[slot / CHUNK];
            Some((Self::id(slot), chunk.get(slot % CHUNK)?))
        };
        (slots.start..end).filter_map(dest)
    }

    /// All destinations, in no particular order.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (DestId, &Dest)> {
        self.index.iter().map(|id| (id, self.get(id)))
    }
}

#[cfg(test)]
mod tests;
