//! Handles for received paths that came with an identifier (RFC 7911).
//!
//! A received path is named by a handle of its own beside the peer's, so that a path in the table
//! is no larger for peers that send one path each. A path that we send has the handle of where it
//! came from as its identifier: it stays the same as long as the path is there, whatever others do.

use std::num::NonZeroU32;

use foldhash::HashMap;

use super::peer_id::PeerId;

/// Handles with this bit are of paths, not of peers.
const PATH: u32 = 1 << 31;

/// One handle of a path.
#[derive(Clone, Copy, Debug)]
struct PathHandle {
    owner: PeerId,
    path_id: u32,
    /// Paths in the table with this handle.
    uses: u32,
}

/// The handles of paths that came with an identifier.
#[derive(Debug, Default)]
pub(super) struct PathHandles {
    handles: Vec<PathHandle>,
    known: HashMap<(PeerId, u32), PeerId>,
    free: Vec<PeerId>,
}

const fn index(handle: PeerId) -> Option<usize> {
    if handle.0 & PATH == 0 {
        None
    } else {
        Some((handle.0 & !PATH) as usize)
    }
}

impl PathHandles {
    /// The peer that a handle belongs to.
    #[inline]
    pub(super) fn owner(&self, handle: PeerId) -> PeerId {
        index(handle).map_or(handle, |index| self.handles[index].owner)
    }

    /// The identifier with which the peer sent it.
    pub(super) fn path_id(&self, handle: PeerId) -> Option<u32> {
        index(handle).map(|index| self.handles[index].path_id)
    }

    /// The handle of a path that is known.
    pub(super) fn find(&self, owner: PeerId, path_id: u32) -> Option<PeerId> {
        self.known.get(&(owner, path_id)).copied()
    }

    /// The handle of a path.
    pub(super) fn get_or_insert(&mut self, owner: PeerId, path_id: u32) -> PeerId {
        if let Some(known) = self.find(owner, path_id) {
            return known;
        }
        let new = PathHandle {
            owner,
            path_id,
            uses: 0,
        };
        let handle = if let Some(free) = self.free.pop() {
            if let Some(index) = index(free) {
                self.handles[index] = new;
            }
            free
        } else {
            let next = u32::try_from(self.handles.len()).expect("fewer than 2^31 paths");
            self.handles.push(new);
            PeerId(next | PATH)
        };
        self.known.insert((owner, path_id), handle);
        handle
    }

    /// Gives memory back when no path has a handle, and what can be spared otherwise.
    pub(super) fn shrink(&mut self) {
        if self.known.is_empty() {
            *self = Self::default();
        } else {
            self.known.shrink_to_fit();
        }
    }

    /// A path with this handle is in the table now.
    pub(super) fn take(&mut self, handle: PeerId) {
        if let Some(index) = index(handle) {
            self.handles[index].uses += 1;
        }
    }

    /// A path with this handle has left the table.
    pub(super) fn drop(&mut self, handle: PeerId) {
        let Some(index) = index(handle) else { return };
        let entry = &mut self.handles[index];
        entry.uses -= 1;
        if entry.uses == 0 {
            self.known.remove(&(entry.owner, entry.path_id));
            self.free.push(handle);
        }
    }
}

/// The identifier under which we send a path.
pub(super) const fn advertised_id(handle: PeerId) -> NonZeroU32 {
    // Ours have handle 0, and 0 looks like no identifier.
    NonZeroU32::MIN.saturating_add(handle.0)
}
