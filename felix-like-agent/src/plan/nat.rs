//! Which traffic is masqueraded and which is let through.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::names::IfName;
use caracal_model::net::{Cidr, Family, Prefix};

use super::Planner;
use crate::desired::TunnelKind;
use crate::nat::{FamilyRules, Nat, Senders};

pub(super) fn plan(planner: &mut Planner<'_>) {
    // A pool that cannot be read may be one that is masqueraded: what is there stays.
    if planner.inputs.snapshot.is_doubtful() {
        return;
    }
    let settings = planner.inputs.settings;
    let nat = Nat {
        interface_prefixes: settings.interface_prefixes.clone(),
        no_vxlan_from_workloads: (!settings.vxlan_from_workloads).then_some(settings.vxlan_port),
        no_ipip_from_workloads: !settings.ipip_from_workloads,
        ipv4: family(planner, Family::Ipv4),
        ipv6: family(planner, Family::Ipv6),
    };
    planner.desired.nat = Some(nat);
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
        let nodes = planner.inputs.snapshot.nodes.values();
        rules.exempt.extend(
            nodes
                .filter_map(|n| n.spec.address(family))
                .map(Prefix::host),
        );
    }
    for tunnel in planner
        .desired
        .tunnels
        .values()
        .filter(|t| t.family() == family)
    {
        if let Some(address) = tunnel.address {
            rules.tunnels.insert(tunnel.name.clone(), address);
        }
    }
    // Without a pool nothing of the family is forwarded, and no rules of the family are needed.
    if planner.pools.any(family) {
        rules.sources = sources(planner, family);
    }
    let outgoing = planner.inputs.settings.nat_address.map(Into::into);
    rules.outgoing = outgoing.filter(|address| Family::of(*address) == family);
    rules.senders = senders(planner, family);
    rules.ports = planner.inputs.settings.nat_ports;
    rules.leaving_by = planner.inputs.settings.nat_interface.clone();
    rules
}

/// Who may send tunnel packets: all nodes by all of their addresses, and whom FelixConfiguration names. Only for the kinds of
/// tunnel that this node has; those of others on this machine are not ours to judge.
fn senders(planner: &Planner<'_>, family: Family) -> Option<Senders> {
    let inputs = planner.inputs;
    let mut senders = Senders::default();
    let tunnels = planner.desired.tunnels.values();
    for tunnel in tunnels.filter(|t| t.family() == family) {
        match tunnel.kind {
            TunnelKind::Ipip => senders.ipip = true,
            TunnelKind::Vxlan { port, .. } => senders.vxlan = Some(port),
        }
    }
    if !senders.ipip && senders.vxlan.is_none() {
        return None;
    }
    for node in inputs.snapshot.nodes.values() {
        let listed = node.spec.addresses.iter();
        let listed = listed.filter_map(|a| a.address.parse::<Cidr>().ok());
        let listed = listed.map(|cidr| cidr.address);
        let all = node.spec.address(family).into_iter().chain(listed);
        let all = all.filter(|address| Family::of(*address) == family);
        senders.from.extend(all.map(Prefix::host));
    }
    let named = inputs.settings.external_nodes.iter();
    let named = named.filter(|prefix| prefix.family() == family);
    senders.from.extend(named.copied());
    (!senders.from.is_empty()).then_some(senders)
}

/// Interfaces of local workloads with what may come from them: their addresses, and the prefixes that their
/// WorkloadEndpoint allows beside these when `workloadSourceSpoofing` is `Any`.
fn sources(planner: &Planner<'_>, family: Family) -> BTreeMap<IfName, BTreeSet<Prefix>> {
    let inputs = planner.inputs;
    let mut sources: BTreeMap<IfName, BTreeSet<Prefix>> = BTreeMap::new();
    for workload in inputs.snapshot.workloads_of(inputs.me) {
        let spec = &workload.spec;
        let there = inputs.links.by_name(&spec.interface_name);
        let Some(link) = there.filter(|l| inputs.settings.is_workload_interface(l.name.as_str()))
        else {
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
        let of = sources.entry(link.name.clone()).or_default();
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
