//! Metrics, one file per owner of the counted state. Everything here is a pure reading of a state
//! that its owner gave away.
//!
//! Cardinality is bounded whatever the size of the cluster: no series a node, prefix or mesh peer.
//! `docs/monitoring.md` lists the names; a test compares that page, the dashboard and the alert
//! rules with what a node serves.

pub(crate) mod bgp;
pub(crate) mod dataplane;
pub(crate) mod datastore;
pub(crate) mod ipam;
pub(crate) mod policy;
pub(crate) mod probes;
pub(crate) mod process;
pub(crate) mod services;

/// Most pools that have series of their own.
const POOLS: usize = 50;

/// A count as a sample's value.
#[allow(
    clippy::cast_precision_loss,
    reason = "2^53 routes, octets or passes are out of reach"
)]
pub(crate) const fn count(number: usize) -> f64 {
    number as f64
}

/// A counter as a sample's value.
#[allow(
    clippy::cast_precision_loss,
    reason = "2^53 routes, octets or passes are out of reach"
)]
pub(crate) const fn total(number: u64) -> f64 {
    number as f64
}

/// One sample a word of a closed list, 1 for the one that holds: how a state is told without series
/// that come and go.
fn one_of<'a>(
    label: &'static str,
    words: &'a [&'a str],
    now: &'a str,
) -> impl Iterator<Item = (crate::http::exposition::MetricLabels, f64)> + 'a {
    words.iter().map(move |word| {
        let holds = if *word == now { 1.0 } else { 0.0 };
        (vec![(label, (*word).to_owned())], holds)
    })
}

#[cfg(test)]
pub(crate) mod tests;
