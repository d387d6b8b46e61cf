//! Constants and the path of a resource, for every plan.

use caracal_model::{Family, Key, Kind};

/// Both families, in the order in which everything is planned.
pub(crate) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// The port of BGP (RFC 4271 §8).
pub(crate) const BGP_PORT: u16 = 179;

/// The path of a cluster-scoped resource, for problems.
pub(crate) fn path(kind: Kind, name: &str) -> String {
    Key::resource(kind, name).to_path()
}
