//! Which traffic is masqueraded and which is let through.

use std::collections::{BTreeMap, BTreeSet};

use std::net::{IpAddr, Ipv4Addr};

use caracal_model::{Doubt, Family, Node, NodeName, Prefix, Snapshot};

use super::Planner;
use crate::kernel_objects::TunnelDevice;
use crate::nat::name::PlainName;
use crate::nat::{BgpGuard, FamilyRules, KnownFingerprint, Nat, Senders};

/// BGP's port (RFC 4271 §8).
pub(crate) const BGP_PORT: u16 = 179;

/// What rules follow from and cannot be read, of values of which no good one is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreadRules {
    /// A pool, which may be one that is masqueraded, or this node's own Node.
    pub(crate) ranges: bool,
    /// A Node: any machine may be it.
    pub(crate) nodes: bool,
}

impl UnreadRules {
    /// Of the values that a snapshot doubts.
    pub(crate) fn from_snapshot(snapshot: &Snapshot, me: &NodeName) -> Self {
        let mut unread = Self::default();
        for (_, doubt) in snapshot.doubts() {
            unread.ranges |= match &doubt {
                Doubt::Pool(_) => true,
                Doubt::Node(node) => node == me,
                _ => false,
            };
            unread.nodes |= matches!(doubt, Doubt::Node(_));
        }
        unread
    }
}

/// The rules, of everything that can be read.
pub(super) fn plan(planner: &Planner<'_>) -> Nat {
    let settings = planner.inputs.settings;
    Nat {
        interface_prefixes: settings
            .interface_prefixes
            .iter()
            .filter_map(|prefix| PlainName::beginning(prefix))
            .collect(),
        no_vxlan_from_workloads: (!settings.vxlan_from_workloads).then_some(settings.vxlan_port),
        no_ipip_from_workloads: !settings.ipip_from_workloads,
        ipv4: family(planner, Family::Ipv4),
        ipv6: family(planner, Family::Ipv6),
        known_fingerprint: KnownFingerprint::default(),
    }
}

fn family(planner: &Planner<'_>, family: Family) -> FamilyRules {
    let mut rules = FamilyRules::default();
    if !planner.family(family) {
        return rules;
    }
    for pool in planner.pools.iter().filter(|p| p.prefix.family() == family) {
        rules.exempt.insert(pool.prefix);
        if pool.nat_outgoing {
            rules.masquerade.insert(pool.prefix);
        }
    }
    if planner.inputs.settings.nat_excludes_hosts {
        let nodes = planner.desired.ownership.cluster.nodes.keys().copied();
        let nodes = nodes.filter(|address| Family::of(*address) == family);
        rules.exempt.extend(nodes.map(Prefix::host));
    }
    for tunnel in planner
        .desired
        .tunnels
        .values()
        .filter(|t| t.family() == family)
    {
        if let Some(address) = tunnel.address {
            let name = PlainName::new(tunnel.name.as_str());
            rules.tunnels.extend(name.map(|name| (name, address)));
        }
    }
    // Without a pool nothing of the family is forwarded, and no rules of the family are needed.
    if planner.pools.any(family) {
        rules.sources = sources(planner, family);
        rules.bgp = Some(bgp_guard(planner, family));
    }
    // IPv6 has no switch like `route_localnet`: the kernel takes ::1 from no wire.
    let of_ipv4 = || Prefix::v4(Ipv4Addr::new(127, 0, 0, 0), 8);
    rules.loopback = (family == Family::Ipv4).then(of_ipv4);
    let outgoing = planner.inputs.settings.nat_address.map(Into::into);
    rules.outgoing = outgoing.filter(|address| Family::of(*address) == family);
    rules.senders = senders(planner, family);
    rules.loops = planner.loops.get(&family).cloned();
    rules.ports = planner.inputs.settings.nat_ports;
    rules.leaving_by = planner.inputs.settings.nat_interface.clone();
    rules
}

/// Sources that may send tunnel packets: all nodes by all of their addresses, but for those among
/// pods, and those that FelixConfiguration names. Only for the kinds of tunnel that this node has;
/// those of others on this machine are not ours to judge.
fn senders(planner: &Planner<'_>, family: Family) -> Option<Senders> {
    let inputs = planner.inputs;
    let mut senders = Senders::default();
    let tunnels = planner.desired.tunnels.values();
    for tunnel in tunnels.filter(|t| t.family() == family) {
        match tunnel.kind {
            TunnelDevice::Ipip { .. } => senders.ipip = true,
            TunnelDevice::Vxlan { port, .. } => senders.vxlan = Some(port),
            TunnelDevice::Tun => {}
        }
    }
    if !senders.ipip && senders.vxlan.is_none() {
        return None;
    }
    let all = planner.guarded.of_nodes(family);
    let all = all.filter(|address| !planner.is_refused(*address));
    senders.from = all.map(Prefix::host).collect();
    let named = inputs.settings.external_nodes.iter();
    let named = named.filter(|prefix| prefix.family() == family);
    senders.from.extend(named.copied());
    (!senders.from.is_empty()).then_some(senders)
}

/// The addresses of a node, but for those of its tunnels.
pub(crate) fn addresses(node: &Node, family: Family) -> impl Iterator<Item = IpAddr> {
    let all = node.spec.machine_addresses();
    all.filter(move |address| Family::of(*address) == family)
}

/// TCP ports on which nodes take BGP.
pub(crate) fn bgp_ports(snapshot: &Snapshot) -> BTreeSet<u16> {
    let configured = snapshot.bgp_configurations.values();
    let configured = configured.filter_map(|c| c.spec.listen_port);
    let configured = configured.filter(|port| *port > 0);
    configured.chain([BGP_PORT]).collect()
}

/// Workloads are kept off the nodes' BGP. A workload that speaks to the address of a tunnel is not
/// translated, and no node takes it for another.
fn bgp_guard(planner: &Planner<'_>, family: Family) -> BgpGuard {
    let inputs = planner.inputs;
    let snapshot = inputs.snapshot;
    let mut guard = BgpGuard {
        ports: bgp_ports(snapshot),
        nodes: planner.guarded.of_nodes(family).collect(),
        local_peers: local_peers(planner),
        ..BgpGuard::default()
    };
    let masqueraded = planner
        .pools
        .of_family(family)
        .filter(|pool| pool.nat_outgoing);
    guard.masqueraded = masqueraded.map(|pool| pool.prefix).collect();
    let named = snapshot.bgp_peers.values();
    let named = named.filter_map(|peer| peer.spec.peer_address());
    for (address, _) in named.filter(|(address, _)| Family::of(*address) == family) {
        let in_pool = planner.pools.covering(&Prefix::host(address)).is_some();
        if in_pool && !guard.nodes.contains(&address) {
            guard.peers.insert(address);
        } else if !guard.nodes.contains(&address) {
            guard.routers.insert(address);
        }
    }
    guard
}

/// Interfaces of workloads that are peers of this node.
fn local_peers(planner: &Planner<'_>) -> BTreeSet<PlainName> {
    let inputs = planner.inputs;
    let Some(node) = inputs.snapshot.nodes.get(inputs.me) else {
        return BTreeSet::new();
    };
    let peers = inputs.snapshot.bgp_peers.values();
    let peers = peers.filter(|peer| peer.spec.is_for(inputs.me.as_str(), &node.metadata.labels));
    let selectors: Vec<_> = peers
        .filter_map(|peer| peer.spec.local_workloads())
        .collect();
    if selectors.is_empty() {
        return BTreeSet::new();
    }
    let workloads = inputs.snapshot.workloads_of(inputs.me);
    let chosen = workloads.filter(|w| selectors.iter().any(|s| s.matches(&w.metadata.labels)));
    let names = chosen.map(|w| w.spec.interface_name.as_str());
    names
        .filter(|name| inputs.settings.is_workload_interface(name))
        .filter_map(PlainName::new)
        .collect()
}

/// Interfaces of local workloads with what may come from them: their addresses, and the prefixes
/// that their WorkloadEndpoint allows beside these when `workloadSourceSpoofing` is `Any`.
fn sources(planner: &Planner<'_>, family: Family) -> BTreeMap<PlainName, BTreeSet<Prefix>> {
    let inputs = planner.inputs;
    let mut sources: BTreeMap<PlainName, BTreeSet<Prefix>> = BTreeMap::new();
    for workload in inputs.snapshot.workloads_of(inputs.me) {
        let spec = &workload.spec;
        let there = super::local::interface_of(inputs, spec);
        let Some(link) = there.filter(|l| inputs.settings.is_workload_interface(l.name.as_str()))
        else {
            continue;
        };
        // Another name is a problem of the workload's, and it has no route.
        let Some(name) = PlainName::new(link.name.as_str()) else {
            continue;
        };
        let allowed = spec
            .extra
            .get("allowSpoofedSourcePrefixes")
            .and_then(|v| v.as_array());
        let allowed = allowed
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str()?.parse().ok());
        let allowed = allowed.filter(|_| inputs.settings.spoofing);
        let of = sources.entry(name).or_default();
        of.extend(
            spec.ip_networks
                .iter()
                .copied()
                .chain(allowed)
                .filter(|p| p.family() == family),
        );
    }
    sources
}
