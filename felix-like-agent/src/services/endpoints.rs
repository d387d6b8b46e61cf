//! Choice of the endpoints of a service port on one node, as kube-proxy makes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, InsertEach};

use super::address::ServiceTarget;
use super::document::{Slice, SliceEndpoint};
use super::refusals::{Judge, Refusals};
use crate::transport::Transport;

/// Where this node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The orchestrator's name for this node.
    pub(super) node: String,
    /// Its zone (label `topology.kubernetes.io/zone`).
    pub(super) zone: Option<String>,
}

/// Endpoints that connections go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Wherever they run.
    pub(super) cluster: BTreeSet<ServiceTarget>,
    /// Those on this node.
    pub(super) here: BTreeSet<ServiceTarget>,
    /// All that serve: flows to them go on, whoever is chosen.
    pub(super) serving: BTreeSet<ServiceTarget>,
    /// All that slices name, whatever they say of them.
    pub(super) named: BTreeSet<ServiceTarget>,
    /// Addresses of chosen endpoints on this node.
    pub(super) own: BTreeSet<IpAddr>,
    /// Addresses of chosen endpoints without a node.
    pub(super) unplaced: BTreeSet<IpAddr>,
}

/// Endpoints of a port, by (name, protocol) of Service and slice.
pub(super) fn choose(
    family: Family,
    port: (&str, Transport),
    (slices, place): (&[Slice], &Place),
    (judge, refusals): (&Judge<'_>, &mut Refusals),
) -> Chosen {
    let all = admitted(family, port, slices, (judge, refusals));
    let is_here = |e: &SliceEndpoint| e.node.as_deref() == Some(&*place.node);
    let dying = |e: &SliceEndpoint| e.serving && e.terminating;
    let targets = |counts: &dyn Fn(&SliceEndpoint) -> bool| -> BTreeSet<ServiceTarget> {
        let those = all.iter().filter(|(_, endpoint)| counts(endpoint));
        those.map(|(target, _)| *target).insert_each()
    };
    let any_ready = all.values().any(|e| e.ready);
    let hinted = hint(all.values().copied().filter(|e| e.ready), place);
    let cluster = match any_ready {
        true => targets(&|e| e.ready && follows(e, hinted, place)),
        false => targets(&dying),
    };
    let here = match all.values().any(|e| e.ready && is_here(e)) {
        true => targets(&|e| e.ready && is_here(e)),
        false => targets(&|e| dying(e) && is_here(e)),
    };
    let chosen = cluster.iter().chain(&here);
    let those = |is: &dyn Fn(&SliceEndpoint) -> bool| -> BTreeSet<IpAddr> {
        let those = chosen.clone().filter(|t| all.get(t).is_some_and(|e| is(e)));
        those.map(|target| target.address).insert_each()
    };
    let (own, unplaced) = (those(&is_here), those(&|e| e.node.is_none()));
    Chosen {
        serving: targets(&|e| e.ready || e.serving),
        named: targets(&|_| true),
        cluster,
        here,
        own,
        unplaced,
    }
}

/// Endpoints of a port that somebody may be sent to.
fn admitted<'a>(
    family: Family,
    (name, protocol): (&str, Transport),
    slices: &'a [Slice],
    (judge, refusals): (&Judge<'_>, &mut Refusals),
) -> BTreeMap<ServiceTarget, &'a SliceEndpoint> {
    let mut all: BTreeMap<ServiceTarget, &SliceEndpoint> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        let ports = slice.ports.iter();
        for (_, _, port) in ports.filter(|(n, p, _)| n == name && *p == protocol) {
            for endpoint in &slice.endpoints {
                let target = ServiceTarget {
                    address: endpoint.address,
                    port: *port,
                };
                if judge.refuses_endpoint(protocol, &target, refusals) {
                    continue;
                }
                let known = all.entry(target).or_insert(endpoint);
                // Twice there while it moves from one slice to another.
                if known.terminating && !endpoint.terminating {
                    *known = endpoint;
                }
            }
        }
    }
    all
}

/// The kind of hint that narrows the choice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Nothing,
    Node,
    Zone,
}

/// A hint counts when every ready endpoint has one, and one of them is for us.
fn hint<'a>(ready: impl Iterator<Item = &'a SliceEndpoint> + Clone, place: &Place) -> Hint {
    let counts = |hint| {
        let names = |e: &SliceEndpoint| match hint {
            Hint::Node => !e.for_nodes.is_empty(),
            _ => !e.for_zones.is_empty(),
        };
        ready.clone().all(names) && ready.clone().any(|e| follows(e, hint, place))
    };
    [Hint::Node, Hint::Zone]
        .into_iter()
        .find(|h| counts(*h))
        .unwrap_or(Hint::Nothing)
}

fn follows(endpoint: &SliceEndpoint, hint: Hint, place: &Place) -> bool {
    match (hint, &place.zone) {
        (Hint::Nothing, _) => true,
        (Hint::Node, _) => endpoint.for_nodes.contains(&place.node),
        (Hint::Zone, Some(zone)) => endpoint.for_zones.contains(zone),
        (Hint::Zone, None) => false,
    }
}
