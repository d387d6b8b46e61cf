//! Effect of a changed resource on the cluster, in sentences. Pure: two snapshots, before and
//! after.

use std::collections::BTreeSet;

use caracal_model::{
    BgpPeer, EncapMode, InsertEach, IpPool, IpPoolSpec, Kind, KnownBlock, NodeName, PoolName,
    Selector, Snapshot,
};

/// The sentences for one resource; none where nothing is worth telling.
pub(super) fn effects_of(
    kind: Kind,
    name: &str,
    before: &Snapshot,
    after: &Snapshot,
) -> Vec<String> {
    match kind {
        Kind::IpPool => pool(name, before, after),
        Kind::BgpPeer => peer(name, before, after),
        Kind::BgpFilter => filter(name, after),
        Kind::BgpConfiguration => configuration(name, before, after),
        Kind::Node => node(name, before, after),
        Kind::IpamConfiguration => vec![
            "Calico's clients on etcd read IPAM's settings elsewhere, and so does Caracal: this changes nothing; see `caracal ipam configure`".to_owned(),
        ],
        _ => Vec::new(),
    }
}

/// `1 block`, `12 blocks`.
fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn addresses(number: usize) -> String {
    match number {
        1 => "1 address".to_owned(),
        _ => format!("{number} addresses"),
    }
}

fn blocks_of<'a>(snapshot: &'a Snapshot, pool: &IpPoolSpec) -> Vec<&'a KnownBlock> {
    let range = pool.prefix();
    let inside = snapshot.blocks.values().filter(|b| range.covers(&b.cidr));
    inside.map(|block| &**block).collect()
}

fn owners(blocks: &[&KnownBlock]) -> usize {
    let nodes: BTreeSet<&NodeName> = blocks
        .iter()
        .filter_map(|block| block.owner.as_ref()?.node())
        .insert_each();
    nodes.len()
}

fn in_use(blocks: &[&KnownBlock]) -> usize {
    let used = blocks.iter().map(|block| block.in_use);
    usize::try_from(used.sum::<u32>()).unwrap_or(usize::MAX)
}

fn selected(snapshot: &Snapshot, pool: &IpPoolSpec) -> usize {
    let Ok(selector) = Selector::parse(&pool.node_selector) else {
        return 0;
    };
    let nodes = snapshot.nodes.values();
    nodes
        .filter(|n| selector.matches(&n.metadata.labels))
        .count()
}

/// How packets of a pool travel, in words.
fn travel(pool: &IpPoolSpec) -> String {
    match (pool.ipip_mode, pool.vxlan_mode) {
        (EncapMode::Never, EncapMode::Never) => "plain routes".to_owned(),
        (EncapMode::Always, _) => "IPIP".to_owned(),
        (EncapMode::CrossSubnet, _) => "IPIP between subnets".to_owned(),
        (_, EncapMode::Always) => "VXLAN".to_owned(),
        (_, EncapMode::CrossSubnet) => "VXLAN between subnets".to_owned(),
    }
}

fn get<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a IpPool> {
    snapshot
        .pools
        .get(&PoolName::from(name))
        .map(|pool| &**pool)
}

fn pool(name: &str, before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let Some(new) = get(after, name).map(|pool| &pool.spec) else {
        return Vec::new();
    };
    let selection = selection(after, new);
    let nodes = after.nodes.len();
    let Some(old) = get(before, name).map(|pool| &pool.spec) else {
        let mut effects: Vec<String> = (nodes > 0).then_some(selection).into_iter().collect();
        if new.disabled {
            effects.push("it is disabled: no address comes from it".to_owned());
        }
        return effects;
    };
    let blocks = blocks_of(after, new);
    let mut effects = Vec::new();
    if (old.ipip_mode, old.vxlan_mode) != (new.ipip_mode, new.vxlan_mode) {
        effects.push(mode_change(old, new, &blocks));
    }
    if old.node_selector != new.node_selector {
        effects.push(format!(
            "{selection} (before: {}); blocks stay with their nodes as long as they are in use",
            selected(before, old)
        ));
    }
    if old.disabled != new.disabled {
        effects.push(if new.disabled {
            format!(
                "no new address comes from it; the {} in use stay",
                addresses(in_use(&blocks))
            )
        } else {
            "addresses come from it again".to_owned()
        });
    }
    if old.disable_bgp_export != new.disable_bgp_export {
        let verb = if new.disable_bgp_export {
            "are no longer announced to peers"
        } else {
            "are announced to peers"
        };
        effects.push(format!("{} {verb}", count(blocks.len(), "block")));
    }
    if old.nat_outgoing != new.nat_outgoing {
        let source = if new.nat_outgoing {
            "their node's address"
        } else {
            "their own addresses"
        };
        effects.push(format!(
            "pods in {} on {} reach the outside with {source}",
            count(blocks.len(), "block"),
            count(owners(&blocks), "node")
        ));
    }
    effects
}

fn selection(after: &Snapshot, pool: &IpPoolSpec) -> String {
    let (nodes, takers) = (after.nodes.len(), selected(after, pool));
    match takers {
        0 if nodes > 0 => format!(
            "nodeSelector {} selects none of the {}: nobody takes a block from it",
            pool.node_selector,
            count(nodes, "node")
        ),
        _ => format!(
            "{takers} of {} may take blocks from it",
            count(nodes, "node")
        ),
    }
}

fn mode_change(old: &IpPoolSpec, new: &IpPoolSpec, blocks: &[&KnownBlock]) -> String {
    match blocks.len() {
        0 => format!(
            "from {} to {}; it has no blocks yet, so nothing moves",
            travel(old),
            travel(new)
        ),
        number => format!(
            "moves {} from {} to {} on {}; see `caracal mode plan` (`caracal mode apply` also checks that pods answer, and takes it back when they do not)",
            count(number, "block"),
            travel(old),
            travel(new),
            count(owners(blocks), "node")
        ),
    }
}

fn nodes_of(snapshot: &Snapshot, peer: &BgpPeer) -> usize {
    let nodes = snapshot.nodes.values();
    nodes
        .filter(|node| peer.spec.is_for(&node.metadata.name, &node.metadata.labels))
        .count()
}

fn peer(name: &str, before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let Some(new) = after.bgp_peers.get(name) else {
        return Vec::new();
    };
    let mut effects = Vec::new();
    let nodes = nodes_of(after, new);
    let all = count(after.nodes.len(), "node");
    let old = before.bgp_peers.get(name);
    match old {
        None if after.nodes.is_empty() => {}
        None if nodes == 0 => {
            effects.push(format!("it is for none of the {all}: no session comes"));
        }
        None => effects.push(format!("it is for {nodes} of {all}")),
        Some(old) if old.spec != new.spec => effects.push(format!(
            "it is for {nodes} of {all} (before: {}); sessions that differ end and begin anew at once; `caracal topology apply` makes the new ones first",
            nodes_of(before, old)
        )),
        Some(_) => {}
    }
    if let Ok(selector) = Selector::parse(&new.spec.peer_selector)
        && !new.spec.peer_selector.is_empty()
        && !after
            .nodes
            .values()
            .any(|n| selector.matches(&n.metadata.labels))
    {
        effects.push(format!(
            "peerSelector {} selects no node: no session comes",
            new.spec.peer_selector
        ));
    }
    for filter in &new.spec.filters {
        if !after.bgp_filters.contains_key(filter.as_str()) {
            effects.push(format!("BGPFilter {filter} does not exist"));
        }
    }
    effects
}

fn filter(name: &str, after: &Snapshot) -> Vec<String> {
    let uses = |peer: &&BgpPeer| peer.spec.filters.iter().any(|f| f == name);
    let peers = after.bgp_peers.values().map(|peer| &**peer).filter(uses);
    let names: Vec<&str> = peers.map(|p| p.metadata.name.as_str()).collect();
    vec![match names.is_empty() {
        true => "no BGPPeer names it: it has no effect yet".to_owned(),
        false => format!("routes of BGPPeer {} are filtered anew", names.join(", ")),
    }]
}

fn configuration(name: &str, before: &Snapshot, after: &Snapshot) -> Vec<String> {
    if name != "default" {
        return Vec::new();
    }
    let mut effects = Vec::new();
    let nodes = count(after.nodes.len(), "node");
    let (was, is) = (before.default_asn(), after.default_asn());
    if was != is {
        effects.push(format!(
            "AS {was} → {is}: sessions of all nodes without a number of their own begin anew"
        ));
    }
    let mesh = |snapshot: &Snapshot| {
        let config = snapshot.bgp_default();
        config
            .and_then(|c| c.spec.node_to_node_mesh_enabled)
            .unwrap_or(true)
    };
    match (mesh(before), mesh(after)) {
        (true, false) => effects.push(format!(
            "ends the mesh of {nodes} at once; `caracal topology apply --change` waits until nobody needs it any more"
        )),
        (false, true) => effects.push(format!("{nodes} begin a mesh")),
        _ => {}
    }
    let auto = |snapshot: &Snapshot| {
        let annotations = snapshot.bgp_default().map(|c| &c.metadata.annotations);
        let value = annotations.and_then(|all| all.get(caracal_topologies::TOPOLOGY_ANNOTATION));
        value.is_some_and(|value| value == "auto")
    };
    match (auto(before), auto(after)) {
        (true, false) => effects.push(format!(
            "without the annotation {} automatic reflectors end at once; `caracal topology apply --mesh` makes the mesh first",
            caracal_topologies::TOPOLOGY_ANNOTATION
        )),
        (false, true) => effects.push(
            "automatic reflectors begin at once; `caracal topology apply --auto` makes the new sessions first".to_owned(),
        ),
        _ => {}
    }
    let port = |snapshot: &Snapshot| {
        let config = snapshot.bgp_default();
        config.and_then(|c| c.spec.listen_port).unwrap_or(179)
    };
    if port(before) != port(after) {
        effects.push(format!(
            "port {} → {}: all sessions begin anew",
            port(before),
            port(after)
        ));
    }
    effects
}

/// A Node's own fields are the node's to write.
fn node(name: &str, before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let (Some(old), Some(new)) = (before.nodes.get(name), after.nodes.get(name)) else {
        return Vec::new();
    };
    let value = |node| serde_json::to_value(node).unwrap_or_default();
    let mut effects: Vec<String> =
        caracal_model::Schema::other_addresses(&value(&**old), &value(&**new));
    let labels = |s: &Snapshot| -> Vec<usize> {
        s.pools
            .values()
            .map(|pool| selected(s, &pool.spec))
            .collect()
    };
    if old.metadata.labels != new.metadata.labels {
        let changed = labels(before)
            .into_iter()
            .zip(labels(after))
            .filter(|(was, is)| was != is)
            .count();
        if changed > 0 {
            let pools = count(changed, "pool");
            effects.push(format!("it comes to or leaves the nodes of {pools}"));
        }
        let peers = after.bgp_peers.values();
        let is_for = |n: &caracal_model::Node, p: &BgpPeer| {
            p.spec.is_for(&n.metadata.name, &n.metadata.labels)
        };
        let moved = peers.filter(|p| is_for(old, p) != is_for(new, p)).count();
        if moved > 0 {
            let peers = count(moved, "BGPPeer");
            effects.push(format!("it comes to or leaves {peers}: sessions change"));
        }
    }
    effects
}
