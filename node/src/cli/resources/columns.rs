//! The columns of `caracal get` for each kind, in calicoctl's order where calicoctl has them.

use caracal_model::{Kind, ResourceType};
use serde_json::Value;

/// Source of a column's text.
#[derive(Clone, Copy)]
enum Cell {
    /// The field at this JSON pointer; lists with commas.
    At(&'static str),
    /// The same; the text where it is not set.
    Or(&'static str, &'static str),
    /// The number of entries of a list.
    Count(&'static str),
    /// Something else.
    Of(fn(&Value) -> String),
}

/// A column: its header, whether only `-o wide` has it, and what it shows.
type Column = (&'static str, bool, Cell);

const NAME: Column = ("NAME", false, Cell::At("/metadata/name"));

const BGP_CONFIGURATION: &[Column] = &[
    NAME,
    ("LOGSEVERITY", false, Cell::At("/spec/logSeverityScreen")),
    (
        "MESHENABLED",
        false,
        Cell::Or("/spec/nodeToNodeMeshEnabled", "true"),
    ),
    ("ASNUMBER", false, Cell::Or("/spec/asNumber", "64512")),
    ("LISTENPORT", true, Cell::Or("/spec/listenPort", "179")),
];
const BGP_PEER: &[Column] = &[
    NAME,
    ("PEERIP", false, Cell::Of(peer)),
    ("NODE", false, Cell::Of(peers_node)),
    ("ASN", false, Cell::At("/spec/asNumber")),
    ("FILTERS", true, Cell::At("/spec/filters")),
];
const BGP_FILTER: &[Column] = &[
    NAME,
    ("EXPORTV4", false, Cell::Count("/spec/exportV4")),
    ("IMPORTV4", false, Cell::Count("/spec/importV4")),
    ("EXPORTV6", false, Cell::Count("/spec/exportV6")),
    ("IMPORTV6", false, Cell::Count("/spec/importV6")),
];
const FELIX: &[Column] = &[
    NAME,
    ("LOGSEVERITY", false, Cell::At("/spec/logSeverityScreen")),
];
const IP_POOL: &[Column] = &[
    NAME,
    ("CIDR", false, Cell::At("/spec/cidr")),
    ("NAT", true, Cell::Or("/spec/natOutgoing", "false")),
    ("IPIPMODE", false, Cell::Or("/spec/ipipMode", "Never")),
    ("VXLANMODE", false, Cell::Or("/spec/vxlanMode", "Never")),
    ("BLOCKSIZE", true, Cell::At("/spec/blockSize")),
    ("DISABLED", true, Cell::Or("/spec/disabled", "false")),
    (
        "DISABLEBGPEXPORT",
        true,
        Cell::Or("/spec/disableBGPExport", "false"),
    ),
    ("SELECTOR", false, Cell::Or("/spec/nodeSelector", "all()")),
    (
        "ASSIGNMENTMODE",
        true,
        Cell::Or("/spec/assignmentMode", "Automatic"),
    ),
    (
        "USES",
        true,
        Cell::Or("/spec/allowedUses", "Workload,Tunnel"),
    ),
];
const IP_RESERVATION: &[Column] = &[NAME, ("CIDRS", false, Cell::At("/spec/reservedCIDRs"))];
const NODE: &[Column] = &[
    NAME,
    ("ASN", true, Cell::Or("/spec/bgp/asNumber", "(default)")),
    ("IPV4", false, Cell::At("/spec/bgp/ipv4Address")),
    ("IPV6", false, Cell::At("/spec/bgp/ipv6Address")),
    ("LABELS", true, Cell::Of(labels)),
];
const WORKLOAD_ENDPOINT: &[Column] = &[
    ("NAMESPACE", true, Cell::At("/metadata/namespace")),
    ("WORKLOAD", false, Cell::Of(workload)),
    ("NODE", false, Cell::At("/spec/node")),
    ("NETWORKS", false, Cell::At("/spec/ipNetworks")),
    ("INTERFACE", false, Cell::At("/spec/interfaceName")),
    ("NAME", true, Cell::At("/metadata/name")),
    ("PROFILES", true, Cell::At("/spec/profiles")),
];
const CLUSTER_INFORMATION: &[Column] = &[
    NAME,
    ("CLUSTERGUID", false, Cell::At("/spec/clusterGUID")),
    ("CLUSTERTYPE", false, Cell::At("/spec/clusterType")),
    ("CALICOVERSION", true, Cell::At("/spec/calicoVersion")),
    ("DATASTOREREADY", false, Cell::At("/spec/datastoreReady")),
];
const IPAM_CONFIGURATION: &[Column] = &[
    NAME,
    (
        "STRICTAFFINITY",
        false,
        Cell::Or("/spec/strictAffinity", "false"),
    ),
    (
        "MAXBLOCKSPERHOST",
        false,
        Cell::Or("/spec/maxBlocksPerHost", "0"),
    ),
];
const HOST_ENDPOINT: &[Column] = &[
    NAME,
    ("NODE", false, Cell::At("/spec/node")),
    ("INTERFACE", false, Cell::At("/spec/interfaceName")),
    ("IPS", false, Cell::At("/spec/expectedIPs")),
];
const TIER: &[Column] = &[NAME, ("ORDER", false, Cell::At("/spec/order"))];
const PROFILE: &[Column] = &[NAME];
const BLOCK: &[Column] = &[
    ("CIDR", false, Cell::At("/spec/cidr")),
    ("AFFINITY", false, Cell::Or("/spec/affinity", "(none)")),
    ("FREE", false, Cell::Count("/spec/unallocated")),
    ("ADDRESSES", false, Cell::Count("/spec/allocations")),
];
const AFFINITY: &[Column] = &[
    ("CIDR", false, Cell::At("/spec/cidr")),
    ("NODE", false, Cell::At("/spec/node")),
    ("STATE", false, Cell::At("/spec/state")),
    ("NAME", true, Cell::At("/metadata/name")),
];
const CALICO_NODE_STATUS: &[Column] = &[NAME, ("NODE", false, Cell::At("/spec/node"))];
const HANDLE: &[Column] = &[NAME, ("BLOCKS", false, Cell::Of(handle_blocks))];

const fn columns_of(target: ResourceType) -> &'static [Column] {
    match target {
        ResourceType::Resource(kind) => match kind {
            Kind::BgpConfiguration => BGP_CONFIGURATION,
            Kind::BgpPeer => BGP_PEER,
            Kind::BgpFilter => BGP_FILTER,
            Kind::FelixConfiguration => FELIX,
            Kind::IpPool => IP_POOL,
            Kind::IpReservation => IP_RESERVATION,
            Kind::Node => NODE,
            Kind::WorkloadEndpoint => WORKLOAD_ENDPOINT,
            Kind::ClusterInformation => CLUSTER_INFORMATION,
            Kind::IpamConfiguration => IPAM_CONFIGURATION,
            Kind::HostEndpoint => HOST_ENDPOINT,
            Kind::Tier => TIER,
            Kind::Profile => PROFILE,
            Kind::KubeControllersConfiguration => &[NAME],
            Kind::CalicoNodeStatus => CALICO_NODE_STATUS,
        },
        ResourceType::IpamBlock => BLOCK,
        ResourceType::BlockAffinity => AFFINITY,
        ResourceType::IpamHandle => HANDLE,
    }
}

/// The header and the rows of a table of resources.
pub(super) fn table(
    target: ResourceType,
    wide: bool,
    resources: &[Value],
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let columns = || {
        columns_of(target)
            .iter()
            .filter(move |(_, only_wide, _)| wide || !only_wide)
    };
    let header = columns().map(|(header, ..)| *header).collect();
    let row = |resource: &Value| columns().map(|(.., cell)| show(*cell, resource)).collect();
    (header, resources.iter().map(row).collect())
}

fn show(cell: Cell, resource: &Value) -> String {
    let text = |pointer: &str| resource.pointer(pointer).map(plain).unwrap_or_default();
    match cell {
        Cell::At(pointer) => text(pointer),
        Cell::Or(pointer, default) => match text(pointer) {
            text if text.is_empty() => default.to_owned(),
            text => text,
        },
        Cell::Count(pointer) => {
            let list = resource.pointer(pointer).and_then(Value::as_array);
            list.map_or(0, Vec::len).to_string()
        }
        Cell::Of(function) => function(resource),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn field<'a>(resource: &'a Value, pointer: &str) -> &'a str {
    let value = resource.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}

fn peer(peer: &Value) -> String {
    let spec = |name: &str| field(peer, &format!("/spec/{name}")).to_owned();
    let all = ["peerIP", "peerSelector", "localWorkloadSelector"].map(spec);
    all.into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn peers_node(peer: &Value) -> String {
    let all = ["/spec/node", "/spec/nodeSelector"].map(|pointer| field(peer, pointer));
    let found = all.into_iter().find(|text| !text.is_empty());
    found.unwrap_or("(global)").to_owned()
}

fn workload(endpoint: &Value) -> String {
    let all = ["/spec/pod", "/spec/workload", "/spec/containerID"].map(|p| field(endpoint, p));
    let found = all.into_iter().find(|text| !text.is_empty());
    found.unwrap_or_default().to_owned()
}

fn labels(resource: &Value) -> String {
    let labels = resource
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let each = labels.into_iter().flatten();
    let text = each.map(|(key, value)| format!("{key}={}", plain(value)));
    text.collect::<Vec<_>>().join(",")
}

fn handle_blocks(handle: &Value) -> String {
    let blocks = handle.pointer("/spec/block").and_then(Value::as_object);
    let each = blocks.into_iter().flatten();
    let text = each.map(|(cidr, count)| format!("{cidr}: {count}"));
    text.collect::<Vec<_>>().join(", ")
}
