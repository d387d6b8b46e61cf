//! Lists of interfaces and addresses, as BIRD has them: for a router id, for routes of interfaces.

#[cfg(feature = "speaker")]
use std::net::IpAddr;

use caracal_model::Prefix;

#[cfg(feature = "speaker")]
use crate::policy::glob;

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

#[cfg(feature = "speaker")]
impl InterfacePattern {
    fn matches(&self, interface: &str, ends: &[IpAddr]) -> bool {
        let is_named = |name: &String| glob(name, interface);
        let is_in = |prefix: Prefix| ends.iter().any(|end| prefix.contains(*end));
        self.interface.as_ref().is_none_or(is_named) && self.prefix.is_none_or(is_in)
    }

    /// Whether a list takes an interface with these ends, its address and on a point-to-point link
    /// the other one; an empty list takes all.
    pub(crate) fn take(list: &[Self], interface: &str, ends: &[IpAddr]) -> bool {
        let first = list.iter().find(|pattern| pattern.matches(interface, ends));
        first.map_or(list.is_empty(), |pattern| !pattern.excludes)
    }
}
