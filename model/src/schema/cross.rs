//! Rules between the fields of one resource.

use serde_json::Value;

use super::check::{at, is_community};
use crate::net::Prefix;
use crate::resource::{
    BgpConfiguration, BgpFilter, BgpPeer, FelixConfiguration, IpPool, IpReservation, Kind, Node,
    ValueError, WorkloadEndpoint, endpoint_name,
};

/// Adds what is wrong between fields that are right each for itself. What Caracal's own readers
/// refuse is refused here too, so that nothing is written that no node takes.
pub(super) fn validate(kind: Kind, resource: &Value, faults: &mut Vec<ValueError>) {
    let mut no = |text: String| faults.push(ValueError(text));
    match kind {
        Kind::IpPool => ip_pool(resource, &mut no),
        Kind::BgpConfiguration => bgp_configuration(resource, &mut no),
        Kind::BgpPeer => bgp_peer(resource, &mut no),
        Kind::BgpFilter => bgp_filter(resource, &mut no),
        Kind::WorkloadEndpoint => workload_endpoint(resource, &mut no),
        _ => {}
    }
    let bytes = resource.to_string().into_bytes();
    let read = match kind {
        Kind::Node => Node::from_json(&bytes).err(),
        Kind::IpPool => IpPool::from_json(&bytes).err(),
        Kind::IpReservation => IpReservation::from_json(&bytes).err(),
        Kind::BgpConfiguration => BgpConfiguration::from_json(&bytes).err(),
        Kind::BgpPeer => BgpPeer::from_json(&bytes).err(),
        Kind::BgpFilter => BgpFilter::from_json(&bytes).err(),
        Kind::FelixConfiguration => FelixConfiguration::from_json(&bytes).err(),
        Kind::WorkloadEndpoint => WorkloadEndpoint::from_json(&bytes).err(),
        _ => None,
    };
    faults.extend(read);
}

fn text<'a>(resource: &'a Value, path: &str) -> Option<&'a str> {
    at(resource, path).and_then(Value::as_str)
}

fn list<'a>(resource: &'a Value, path: &str) -> &'a [Value] {
    at(resource, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn ip_pool(pool: &Value, no: &mut impl FnMut(String)) {
    let cidr = text(pool, "spec.cidr").and_then(|text| Prefix::parse_strict(text).ok());
    for link_local in ["169.254.0.0/16", "fe80::/10"] {
        let range: Option<Prefix> = link_local.parse().ok();
        if let (Some(cidr), Some(range)) = (cidr, range)
            && cidr.overlaps(&range)
        {
            no(format!(
                "spec.cidr {cidr} overlaps the link-local range {link_local}"
            ));
        }
    }
    let uses = list(pool, "spec.allowedUses");
    let is_for = |wanted: &str| uses.iter().any(|u| u.as_str() == Some(wanted));
    if !is_for("LoadBalancer") {
        return;
    }
    if uses.len() > 1 {
        no("spec.allowedUses: LoadBalancer stands alone".to_owned());
    }
    for field in ["spec.ipipMode", "spec.vxlanMode"] {
        if let Some(mode) = text(pool, field).filter(|mode| *mode != "Never") {
            no(format!(
                "{field} {mode}: a pool for LoadBalancer is not encapsulated; it must be Never"
            ));
        }
    }
    if let Some(selector) = text(pool, "spec.nodeSelector").filter(|s| *s != "all()") {
        no(format!(
            "spec.nodeSelector {selector}: a pool for LoadBalancer belongs to no node; it must be all()"
        ));
    }
    if at(pool, "spec.disableBGPExport") == Some(&Value::Bool(true)) {
        no(
            "spec.disableBGPExport true: addresses for LoadBalancer are there to be announced"
                .to_owned(),
        );
    }
}

/// Fields that only the BGPConfiguration `default` may have.
const CLUSTER_ONLY: [&str; 7] = [
    "asNumber",
    "nodeToNodeMeshEnabled",
    "serviceClusterIPs",
    "serviceExternalIPs",
    "serviceLoadBalancerIPs",
    "nodeMeshPassword",
    "nodeMeshMaxRestartTime",
];

fn bgp_configuration(config: &Value, no: &mut impl FnMut(String)) {
    if text(config, "metadata.name") != Some("default") {
        for field in CLUSTER_ONLY {
            if at(config, &format!("spec.{field}")).is_some() {
                no(format!(
                    "spec.{field}: only the BGPConfiguration default may set it; nobody reads it of one node"
                ));
            }
        }
    }
    let named: Vec<&str> = list(config, "spec.communities")
        .iter()
        .filter_map(|c| text(c, "name"))
        .collect();
    // A node's advertisements may use the names of the cluster's configuration.
    let own_names_only = text(config, "metadata.name") == Some("default");
    for (n, entry) in list(config, "spec.prefixAdvertisements").iter().enumerate() {
        for community in list(entry, "communities").iter().filter_map(Value::as_str) {
            let known = is_community(community) || named.contains(&community);
            if !known && (own_names_only || community.contains(':')) {
                no(format!(
                    "spec.prefixAdvertisements[{n}].communities {community:?}: neither AS:VALUE, A:B:C nor a name in spec.communities"
                ));
            }
        }
    }
}

fn bgp_peer(peer: &Value, no: &mut impl FnMut(String)) {
    let is_set = |field: &str| text(peer, &format!("spec.{field}")).is_some();
    let workloads = is_set("localWorkloadSelector");
    if !is_set("peerIP") && !is_set("peerSelector") && !workloads {
        no("none of spec.peerIP, spec.peerSelector and spec.localWorkloadSelector is set: it names no peer".to_owned());
    }
    if workloads {
        if is_set("peerIP") || is_set("peerSelector") {
            no("spec.localWorkloadSelector excludes spec.peerIP and spec.peerSelector".to_owned());
        }
        if at(peer, "spec.asNumber").is_none() {
            no(
                "spec.localWorkloadSelector needs spec.asNumber, the AS of the workloads"
                    .to_owned(),
            );
        }
    }
    let Some(gateway) = text(peer, "spec.reachableBy") else {
        return;
    };
    let Some(address) = text(peer, "spec.peerIP") else {
        no("spec.reachableBy needs spec.peerIP: it is the gateway towards that address".to_owned());
        return;
    };
    let is_v6 = |text: &str| text.matches(':').count() > 1;
    if is_v6(gateway) != is_v6(address) {
        no(format!(
            "spec.reachableBy {gateway} and spec.peerIP {address} are of different address families"
        ));
    }
}

fn bgp_filter(filter: &Value, no: &mut impl FnMut(String)) {
    for name in ["importV4", "exportV4", "importV6", "exportV6"] {
        let rules = list(filter, &format!("spec.{name}")).iter().enumerate();
        for (n, rule) in rules {
            filter_rule(&format!("spec.{name}[{n}]"), rule, no);
        }
    }
}

fn filter_rule(place: &str, rule: &Value, no: &mut impl FnMut(String)) {
    match (text(rule, "cidr"), text(rule, "matchOperator")) {
        (Some(_), None) => no(format!(
            "{place}.cidr needs {place}.matchOperator: Equal, NotEqual, In or NotIn"
        )),
        (None, Some(_)) => no(format!("{place}.matchOperator needs {place}.cidr")),
        _ => {}
    }
    let bound = |end: &str| at(rule, &format!("prefixLength.{end}")).and_then(Value::as_u64);
    if let (Some(min), Some(max)) = (bound("min"), bound("max"))
        && min > max
    {
        no(format!(
            "{place}.prefixLength: min {min} is more than max {max}"
        ));
    }
    if at(rule, "prefixLength").is_some() && text(rule, "cidr").is_none() {
        no(format!("{place}.prefixLength needs {place}.cidr"));
    }
    let values = list(rule, "communities.values");
    if at(rule, "communities").is_some() && values.len() != 1 {
        no(format!(
            "{place}.communities.values holds {}; exactly one is allowed",
            values.len()
        ));
    }
    let operations = list(rule, "operations");
    if !operations.is_empty() && text(rule, "action") != Some("Accept") {
        no(format!(
            "{place}.operations goes with action Accept: a route that is rejected is not changed"
        ));
    }
    for (n, operation) in operations.iter().enumerate() {
        let set = operation.as_object().map_or(0, serde_json::Map::len);
        if set != 1 {
            no(format!(
                "{place}.operations[{n}] holds {set} operations; exactly one of addCommunity, prependASPath and setPriority is allowed"
            ));
        }
    }
}

fn workload_endpoint(endpoint: &Value, no: &mut impl FnMut(String)) {
    let field = |name: &str| text(endpoint, &format!("spec.{name}")).unwrap_or_default();
    let orchestrator = field("orchestrator");
    let (part, workload) = match orchestrator {
        "k8s" => ("pod", field("pod")),
        "cni" => ("containerID", field("containerID")),
        _ => ("workload", field("workload")),
    };
    if workload.is_empty() {
        no(format!(
            "spec.{part} is required for the orchestrator {orchestrator}"
        ));
        return;
    }
    let wanted = endpoint_name(field("node"), orchestrator, workload, field("endpoint"));
    let name = text(endpoint, "metadata.name").unwrap_or_default();
    if name != wanted {
        no(format!(
            "metadata.name {name:?}: the name is made of node, orchestrator, {part} and endpoint: {wanted}"
        ));
    }
    for network in list(endpoint, "spec.ipNetworks")
        .iter()
        .filter_map(Value::as_str)
    {
        let host = network
            .parse::<Prefix>()
            .is_ok_and(|p| p.len() == p.family().bits());
        if !host {
            no(format!(
                "spec.ipNetworks {network}: an endpoint has addresses of its own, /32 or /128"
            ));
        }
    }
}
