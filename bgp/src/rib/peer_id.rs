//! Handles of peers.

/// A peer's handle within one table. Reused after the peer has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(super) u32);

impl PeerId {
    /// Stands for ourselves: the source of what we originate.
    pub(super) const LOCAL: Self = Self(0);

    /// The handle as an index into an array of peers.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
