//! Handles of destinations.

use std::num::NonZeroU32;

/// The handle of a destination; stays valid until the destination is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DestId(NonZeroU32);

impl DestId {
    /// The handle of the destination in this slot.
    pub(super) const fn new(index: u32) -> Self {
        // One more, so that the index has a value for "none" in four octets.
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    pub(super) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}
