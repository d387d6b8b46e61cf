//! The kinds of resources that a topology file may have.

/// Kinds whose plural is the lower-case kind and an `s`.
const CLUSTER_KINDS: [&str; 8] = [
    "BGPConfiguration",
    "BGPFilter",
    "BGPPeer",
    "FelixConfiguration",
    "IPAMConfiguration",
    "IPPool",
    "IPReservation",
    "Node",
];

/// The kinds of resources a topology file may have.
pub(crate) fn kinds() -> &'static [&'static str] {
    &CLUSTER_KINDS
}

/// The plural in a resource's key.
pub(crate) fn plural(kind: &str) -> Option<String> {
    CLUSTER_KINDS
        .contains(&kind)
        .then(|| format!("{}s", kind.to_ascii_lowercase()))
}
