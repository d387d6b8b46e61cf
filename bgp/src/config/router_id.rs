//! Which addresses of the machine may be its router id, as BIRD says it.

use caracal_model::Prefix;

/// An item of a list of interfaces and addresses; the first item of the list that an address
/// matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfacePattern {
    /// What matches is not taken.
    pub excludes: bool,
    /// The name of the interface, with `*` and `?`; `None`: any.
    pub interface: Option<String>,
    /// The address, or the other end's on a point-to-point link, is in here; `None`: anywhere.
    pub prefix: Option<Prefix>,
}
