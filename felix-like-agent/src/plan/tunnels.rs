//! Tunnel devices, and for VXLAN the neighbour and FDB entry of every other VTEP. They exist as
//! soon as any pool uses the encapsulation, whether or not a route of this node does (AGENT-7).

use std::net::IpAddr;

use caracal_model::{Family, IfName, Key, Node, Prefix, ProblemCode, vxlan_mac};

use super::Planner;
use super::destination::Destination;
use crate::kernel_objects::{
    FdbKey, IPIP_DEVICE, NeighbourKey, Tunnel, TunnelDevice, vxlan_device,
};

pub(super) fn plan(planner: &mut Planner<'_>) {
    ipip(planner);
    for family in [Family::Ipv4, Family::Ipv6] {
        vxlan(planner, family);
    }
    reverse_path(planner);
}

/// While a mode changes, the two directions of a flow travel differently, and strict reverse path
/// filtering drops one of them. Our own devices are made loose; the uplink is the administrator's.
fn reverse_path(planner: &mut Planner<'_>) {
    let strict = &planner.inputs.kernel.strict_rp_filter;
    let ours = planner
        .desired
        .tunnels
        .values()
        .filter(|t| t.family() == Family::Ipv4);
    let ours: Vec<IfName> = ours.map(|t| t.name.clone()).collect();
    for name in ours.iter().filter(|name| strict.contains(*name)) {
        let path = format!("net/ipv4/conf/{name}/rp_filter");
        planner.desired.sysctls.insert(path, "2".to_owned());
    }
    let parent = planner.own.get(&Family::Ipv4).and_then(|own| own.parent);
    if let Some(parent) = parent.filter(|p| strict.contains(&p.name) && !ours.is_empty()) {
        let reason = format!(
            "reverse path filtering is strict on {0}: packets are lost while a pool's mode changes, and between nodes that differ in their view of a subnet; set net.ipv4.conf.{0}.rp_filter=2 (workloads are checked by rules of their own)",
            parent.name
        );
        planner.problem(
            ProblemCode::AgentStrictRpFilter,
            parent.name.as_str(),
            reason,
        );
    }
}

fn ipip(planner: &mut Planner<'_>) {
    let inputs = planner.inputs;
    // Without support the routes complain, one sentence a pool.
    if !planner.pools.any_ipip() || inputs.kernel.ipip.is_err() {
        return;
    }
    let address = inputs
        .snapshot
        .nodes
        .get(inputs.me)
        .and_then(|node| node.spec.ipip_address());
    let tunnel = Tunnel {
        name: IPIP_DEVICE.into(),
        kind: TunnelDevice::Ipip { local: None },
        mtu: planner.ipip_mtu(),
        address: possible(planner, IPIP_DEVICE, address.map(Into::into)),
    };
    planner.desired.tunnels.insert(tunnel.name.clone(), tunnel);
}

fn vxlan(planner: &mut Planner<'_>, family: Family) {
    let inputs = planner.inputs;
    if !planner.pools.any_vxlan(family) || !planner.family(family) || inputs.kernel.vxlan.is_err() {
        return;
    }
    let Some(node) = inputs.snapshot.nodes.get(inputs.me) else {
        return;
    };
    let Some(own) = planner.own.get(&family).copied() else {
        let reason = format!(
            "a pool uses VXLAN, but this node has no {family} address in the datastore: no device {}",
            vxlan_device(family)
        );
        planner.problem(ProblemCode::AgentNoAddress, inputs.me.as_str(), reason);
        return;
    };
    // A missing parent was named already; the device comes with it.
    let Some(parent) = own.parent else { return };
    let name: IfName = vxlan_device(family).into();
    let tunnel = Tunnel {
        name: name.clone(),
        kind: TunnelDevice::Vxlan {
            vni: inputs.settings.vxlan_vni,
            port: inputs.settings.vxlan_port,
            local: own.cidr.address,
            parent: parent.name.clone(),
            mac: vxlan_mac(node, family),
        },
        mtu: planner.vxlan_mtu(family),
        address: possible(
            planner,
            vxlan_device(family),
            node.spec.vxlan_address(family),
        ),
    };
    planner.desired.tunnels.insert(name, tunnel);
}

/// The address of a device of ours, unless it is somebody else's.
fn possible(planner: &mut Planner<'_>, device: &str, address: Option<IpAddr>) -> Option<IpAddr> {
    let me = planner.inputs.me;
    let what = format!("the address of {device}");
    let address = address?;
    let prefix = Prefix::host(address);
    let mut to = Destination::default();
    let cuts = planner.would_cut(&mut to, prefix, &what, || Key::node(me).to_path());
    planner.take(prefix, to);
    (!cuts).then_some(address)
}

/// Where another node's VTEP is: its neighbour and its FDB entry.
pub(super) fn vtep_of(
    planner: &Planner<'_>,
    node: &Node,
    family: Family,
) -> Option<(NeighbourKey, FdbKey, IpAddr)> {
    let (link, _) = planner.tunnel(vxlan_device(family))?;
    let (vtep, address) = (node.spec.vxlan_address(family)?, node.spec.address(family)?);
    if planner.is_refused(address) {
        return None;
    }
    let neighbour = NeighbourKey {
        link: link.clone(),
        address: vtep,
    };
    let mac = vxlan_mac(node, family);
    Some((neighbour, FdbKey { link, mac }, address))
}

/// All of them; answers with their number. Of several nodes with one address or one MAC address
/// the one to which IPAM gave the address has the entries, else the first by name: a wrong Node
/// takes no other's packets.
pub(super) fn vteps(planner: &mut Planner<'_>) -> usize {
    let inputs = planner.inputs;
    let others = inputs
        .snapshot
        .nodes
        .iter()
        .filter(|(name, _)| *name != inputs.me);
    let found = others.flat_map(|(name, node)| {
        let planner = &*planner;
        let of = move |family| Some((name, vtep_of(planner, node, family)?));
        [Family::Ipv4, Family::Ipv6].into_iter().filter_map(of)
    });
    let mut found: Vec<_> = found.collect();
    let number = found.len();
    for again in [false, true] {
        if again {
            // The last one stays.
            found.reverse();
            let snapshot = inputs.snapshot;
            let user = |address| snapshot.block_of(&Prefix::host(address))?.user(address);
            found.sort_by_key(|(name, (key, ..))| user(key.address) == Some(*name));
        }
        let vteps = found.iter().map(|(_, vtep)| vtep);
        let neighbours = vteps.clone().map(|(key, fdb, _)| (key.clone(), fdb.mac));
        planner.desired.neighbours = neighbours.collect();
        let fdb = vteps.map(|(_, key, address)| (key.clone(), *address));
        planner.desired.fdb = fdb.collect();
        if planner.desired.neighbours.len() == number && planner.desired.fdb.len() == number {
            break;
        }
    }
    number
}
