//! Both families as indices of arrays.

use caracal_model::Family;

/// Both families, each at its [`slot`].
pub(super) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The index of a family in an array of both.
pub(super) const fn slot(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}
