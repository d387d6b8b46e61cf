//! What has to be so before a node can go over, what `apply` does, and what comes after it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_agent::Settings;
use caracal_flannel::{Backend, FlannelConfig, KnownLease, SubnetRange};
use caracal_ipam::IpamData;
use caracal_model::{
    BlockOwner, EncapMode, Family, IfName, IpPoolSpec, Kind, NodeName, Prefix, kind_prefix,
};

use super::host_local::LocalHolder;
use crate::flannel::facts::Facts;

/// Name of the pool that flannel's network becomes.
pub(super) const POOL: &str = "flannel";
/// VNI and port of `vxlan.calico`, where nobody sets others.
const CALICOS: (u32, u16) = (4096, 4789);

/// What ends the network.
const END: &str = "every lease is a block: when `caracal node` runs on all nodes, end `caracal flannel` on each, then `caracal flannel migrate end` there; from then on there is no way back";

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepState {
    /// It is so.
    Done,
    /// `apply` does it.
    Apply,
    /// Somebody has to do it first.
    Before,
    /// Somebody does it afterwards.
    Later,
    /// What to know before.
    Note,
    /// It cannot be done.
    Refused,
}

impl StepState {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Apply => "apply",
            Self::Before => "before",
            Self::Later => "later",
            Self::Note => "note",
            Self::Refused => "refused",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MigrationStep {
    pub(super) name: &'static str,
    pub(super) state: StepState,
    /// What is so, or what to do.
    pub(super) text: String,
}

/// The CNI configuration that the runtime takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CniConfiguration {
    pub(super) file: String,
    /// The network's name where our plugin is in it.
    pub(super) ours: Option<String>,
}

/// What is known of a node before it goes over.
pub(super) struct Seen<'a> {
    pub(super) facts: &'a Facts,
    pub(super) node: &'a NodeName,
    pub(super) cni: Option<CniConfiguration>,
    /// What host-local has given out.
    pub(super) held: Option<BTreeMap<IpAddr, LocalHolder>>,
    pub(super) data: &'a IpamData,
    /// `caracal node` answers.
    pub(super) runs: bool,
}

/// The steps of this node, in their order.
pub(super) fn steps(seen: &Seen<'_>) -> Vec<MigrationStep> {
    let mut all = Vec::new();
    let mut add = |name, (state, text): (StepState, String)| {
        all.push(MigrationStep { name, state, text });
        state
    };
    let config = match &seen.facts.config {
        Ok(config) => config,
        Err(reason) => {
            let text = format!("{}: {reason}", seen.facts.place);
            let own = seen.facts.own().and_then(|(own, _)| own.v4);
            match own.map(|own| block(own, seen)) {
                Some((StepState::Done, _)) => {
                    add("end", (StepState::Later, format!("{text}; {END}")))
                }
                _ => add("network", (StepState::Refused, text)),
            };
            return all;
        }
    };
    if add("network", network(config)) == StepState::Refused {
        return all;
    }
    let Some(own) = seen.facts.own().and_then(|(own, _)| own.v4) else {
        let text = "no lease is this machine's: run `caracal flannel` here first";
        add("lease", (StepState::Refused, text.to_owned()));
        return all;
    };
    let Some(range) = &config.v4 else { return all };
    if add("lease", lease(range, own, seen)) == StepState::Refused {
        return all;
    }
    add("routes", routes(seen, own));
    add("cni", cni(seen));
    add("ipam", ipam(seen.data));
    add("pool", pool(&config.backend, range, seen));
    add("block", block(own, seen));
    if seen.facts.env.as_ref().is_ok_and(|env| !env.masquerades) {
        // nf_nat: a connection that is masqueraded dies when it leaves by another device.
        let text = "FLANNEL_IPMASQ=false: where the container runtime masquerades, the kernel drops a packet of each connection between nodes when its way changes";
        add("masquerading", (StepState::Note, text.to_owned()));
    }
    add("node", node(config, seen));
    let others = others(seen, own);
    let is_last = others.is_empty();
    for text in others {
        add("other", (StepState::Later, text));
    }
    let end = match is_last {
        true => END,
        false => "when every lease is a block; until then `caracal flannel` runs on every node",
    };
    add("end", (StepState::Later, end.to_owned()));
    all
}

fn network(config: &FlannelConfig) -> (StepState, String) {
    let refused = |text: &str| (StepState::Refused, text.to_owned());
    let (Some(range), None) = (&config.v4, &config.v6) else {
        return refused("EnableIPv6: only networks of IPv4 alone go over so far");
    };
    match &config.backend {
        Backend::HostGw => {}
        Backend::Vxlan(options) if (options.vni, options.port) != CALICOS => {}
        Backend::Vxlan(_) => {
            return refused(
                "VNI 4096 on port 4789 is that of vxlan.calico as well: change the VNI first",
            );
        }
        _ => return refused("change the Backend to vxlan or host-gw first, which loses nothing"),
    }
    if range.len < 20 {
        return refused("SubnetLen: a block is a /20 or smaller");
    }
    let text = format!(
        "{}, a block of /{} for each lease",
        range.network, range.len
    );
    (StepState::Done, text)
}

/// The pool's modes: how the nodes that have gone over reach each other.
pub(super) fn pool_spec(backend: &Backend, range: &SubnetRange, masquerades: bool) -> IpPoolSpec {
    let vxlan_mode = match backend {
        Backend::Vxlan(options) if options.direct_routing => EncapMode::CrossSubnet,
        Backend::Vxlan(_) => EncapMode::Always,
        _ => EncapMode::Never,
    };
    IpPoolSpec {
        cidr: range.network.to_string(),
        vxlan_mode,
        nat_outgoing: masquerades,
        block_size: range.len,
        ..IpPoolSpec::default()
    }
}

/// Each lease has to be one block of the pool.
fn lease(range: &SubnetRange, own: Prefix, seen: &Seen<'_>) -> (StepState, String) {
    let len = range.len;
    match leases(seen).find(|(subnet, _)| subnet.len() != len) {
        None => (StepState::Done, format!("{own} is this node's")),
        Some((subnet, known)) => (
            StepState::Refused,
            format!(
                "{subnet} ({}) is no /{len}, and all blocks of a pool have one length: that node has to leave the network first",
                known.lease.node()
            ),
        ),
    }
}

/// Flannel's routes have to be there, and behind the agent's.
fn routes(seen: &Seen<'_>, own: Prefix) -> (StepState, String) {
    let agents = Settings::default().route_protocol;
    let mut before = Vec::new();
    for (subnet, known) in leases(seen).filter(|(subnet, _)| *subnet != own) {
        let all = seen.facts.actual.all_routes();
        let flannels = all.filter(|r| r.prefix == subnet && r.protocol != agents);
        let metrics: Vec<u32> = flannels.map(|route| route.metric).collect();
        if metrics.is_empty() {
            let text = format!(
                "there is no route of flannel's to {subnet} ({}): see `caracal flannel show`",
                known.lease.node()
            );
            return (StepState::Before, text);
        }
        if metrics.contains(&0) {
            before.push(subnet.to_string());
        }
    }
    match before.is_empty() {
        true => (
            StepState::Done,
            "flannel's routes lie behind the agent's".to_owned(),
        ),
        false => (
            StepState::Before,
            format!(
                "flannel's routes to {} have the metric 0: in the place of flanneld run `caracal flannel --route-metric=100`; those of before go after its --settle-time",
                before.join(", ")
            ),
        ),
    }
}

fn cni(seen: &Seen<'_>) -> (StepState, String) {
    match &seen.cni {
        Some(CniConfiguration {
            file,
            ours: Some(network),
        }) => (
            StepState::Done,
            format!("{file} is ours, network {network}"),
        ),
        Some(CniConfiguration { file, ours: None }) => (
            StepState::Before,
            format!(
                "host-local goes on giving addresses out as long as {file} comes first: CNI_CONF_NAME={file} caracal install-cni (keep a copy); pods that start wait for `apply`"
            ),
        ),
        None => (StepState::Before, "caracal install-cni".to_owned()),
    }
}

/// No node takes a block by itself: each has the one of its lease, and nobody's lease is taken.
fn ipam(data: &IpamData) -> (StepState, String) {
    let config = data.config();
    if config.strict_affinity && !config.auto_allocate_blocks {
        return (StepState::Done, "no node takes blocks by itself".to_owned());
    }
    let command = "caracal ipam configure --strictaffinity=true --auto-allocate-blocks=false";
    match data.blocks.is_empty() {
        true => (StepState::Apply, command.to_owned()),
        false => (
            StepState::Before,
            format!(
                "{command}: there are blocks, and a node that takes another one could take the subnet of a lease"
            ),
        ),
    }
}

fn pool(backend: &Backend, range: &SubnetRange, seen: &Seen<'_>) -> (StepState, String) {
    let masquerades = seen.facts.env.as_ref().is_ok_and(|env| env.masquerades);
    let wanted = pool_spec(backend, range, masquerades);
    let network = range.network;
    let mut unreadable = seen.data.unreadable.iter();
    let of_pools = kind_prefix(Kind::IpPool);
    if let Some((key, reason)) = unreadable.find(|(key, _)| key.starts_with(&of_pools)) {
        let text = format!("{key} cannot be read, so that nobody knows its range: {reason}");
        return (StepState::Refused, text);
    }
    let mut pools = seen.data.pools.iter();
    let Some((name, pool)) = pools.find(|(_, pool)| pool.spec.prefix().overlaps(&network)) else {
        if seen.data.pools.contains_key(POOL) {
            let text = format!("there is another pool {POOL}; rename or delete it");
            return (StepState::Refused, text);
        }
        let text = format!(
            "IPPool {POOL}: {network}, blockSize {}, vxlanMode {:?}, natOutgoing {masquerades}",
            wanted.block_size, wanted.vxlan_mode
        );
        return (StepState::Apply, text);
    };
    let spec = &pool.spec;
    let is_it = spec.prefix() == network
        && spec.block_len() == wanted.block_size
        && spec.vxlan_mode == wanted.vxlan_mode
        && spec.ipip_mode == EncapMode::Never
        && !spec.disabled;
    match is_it {
        true => (StepState::Done, format!("IPPool {name}")),
        false => (
            StepState::Refused,
            format!(
                "IPPool {name} {} (blockSize {}, vxlanMode {:?}, ipipMode {:?}, disabled {}) is not flannel's {network} in blocks of /{} with vxlanMode {:?}",
                spec.cidr,
                spec.block_len(),
                spec.vxlan_mode,
                spec.ipip_mode,
                spec.disabled,
                wanted.block_size,
                wanted.vxlan_mode
            ),
        ),
    }
}

/// The bridge whose subnet this is.
pub(super) fn bridge(seen: &Facts, subnet: Prefix) -> Option<IfName> {
    let mut links = seen.actual.links.iter().filter(|l| l.kind == "bridge");
    let found = links.find(|l| l.addresses.iter().any(|a| a.prefix() == subnet));
    found.map(|link| link.name.clone())
}

fn block(subnet: Prefix, seen: &Seen<'_>) -> (StepState, String) {
    let bridge = bridge(seen.facts, subnet);
    let Some(held) = &seen.held else {
        return match bridge {
            None => (StepState::Apply, format!("{subnet}, without containers")),
            Some(bridge) => (
                StepState::Refused,
                format!(
                    "{bridge} has containers, and host-local has no folder of them: name it with --networks-dir (default /var/lib/cni/networks/cbr0); docker's own addresses cannot go over"
                ),
            ),
        };
    };
    let held = held
        .keys()
        .filter(|address| subnet.contains(**address))
        .count();
    let me = BlockOwner::Host(seen.node.clone());
    let blocks = seen.data.blocks.iter();
    let mut overlapping = blocks.filter(|(cidr, _)| cidr.overlaps(&subnet));
    match overlapping.next() {
        None => (
            StepState::Apply,
            format!("{subnet} becomes this node's block, with {held} addresses of host-local's"),
        ),
        Some((cidr, block)) if *cidr == subnet && block.value.owner() == Some(me) => {
            let count = block.value.allocated().count();
            (
                StepState::Done,
                format!("{subnet} is this node's block, {count} addresses are held"),
            )
        }
        Some((cidr, block)) => (
            StepState::Refused,
            format!(
                "block {cidr} is {}'s",
                block.value.affinity.as_deref().unwrap_or("nobody")
            ),
        ),
    }
}

/// True once other nodes can send to a node of Calico's.
pub(super) fn receives(data: &IpamData, node: &NodeName, by_vxlan: bool) -> bool {
    let node = data.nodes.get(node);
    let spec = node.and_then(|node| Some(&node.node.as_ref()?.spec));
    spec.is_some_and(|spec| match by_vxlan {
        true => spec.vxlan_address(Family::Ipv4).is_some(),
        false => spec.address(Family::Ipv4).is_some(),
    })
}

fn node(config: &FlannelConfig, seen: &Seen<'_>) -> (StepState, String) {
    let by_vxlan = config.backend != Backend::HostGw;
    match (seen.runs, receives(seen.data, seen.node, by_vxlan)) {
        (true, true) => (
            StepState::Done,
            format!("`caracal node` runs as {}", seen.node),
        ),
        (true, false) => (
            StepState::Later,
            "`caracal node` has no tunnel address yet".to_owned(),
        ),
        (false, _) => (
            StepState::Later,
            format!(
                "start `caracal node` with NODENAME={} and NO_DEFAULT_POOLS=true",
                seen.node
            ),
        ),
    }
}

/// Leases that are no blocks yet.
pub(super) fn others(seen: &Seen<'_>, own: Prefix) -> Vec<String> {
    let left =
        leases(seen).filter(|(subnet, _)| *subnet != own && !seen.data.blocks.contains_key(subnet));
    left.map(|(subnet, known)| format!("{subnet} ({}) is flannel's alone", known.lease.node()))
        .collect()
}

/// The leases of all nodes, by their subnets of IPv4.
pub(super) fn leases<'a>(seen: &Seen<'a>) -> impl Iterator<Item = (Prefix, &'a KnownLease)> {
    let all = seen.facts.table.iter();
    all.filter_map(|(subnets, known)| Some((subnets.v4?, known)))
}

#[cfg(test)]
mod tests;
