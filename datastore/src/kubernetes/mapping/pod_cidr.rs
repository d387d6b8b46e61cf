//! `USE_POD_CIDR`: the addresses of a node's pods are the `host-local` plugin's to give, from its
//! Node's `spec.podCIDRs`. There are no objects of IPAM; each range stands for a block of the node,
//! without ordinals. Its first address but one is the tunnel's, as in Calico: `host-local` keeps it
//! for the gateway.

use caracal_model::{BlockOwner, Family, Key, Prefix};
use serde_json::{Value, json};

/// Fields of Calico's Node that hold the addresses of tunnels, with their family.
const TUNNELS: [(&str, Family); 3] = [
    ("/spec/bgp/ipv4IPIPTunnelAddr", Family::Ipv4),
    ("/spec/ipv4VXLANTunnelAddr", Family::Ipv4),
    ("/spec/ipv6VXLANTunnelAddr", Family::Ipv6),
];

/// The ranges of a Node.
pub(crate) fn ranges(node: &Value) -> Vec<Prefix> {
    let list = node["spec"]["podCIDRs"].as_array();
    let list = list.filter(|list| !list.is_empty());
    let texts = match list {
        Some(list) => list.iter().collect(),
        None => vec![&node["spec"]["podCIDR"]],
    };
    let parse = |text: &Value| text.as_str()?.parse().ok();
    texts.into_iter().filter_map(parse).collect()
}

/// Blocks and affinities that the ranges stand for.
pub(super) fn blocks(node: &Value) -> Vec<(Key, Value)> {
    let Some(name) = node["metadata"]["name"].as_str() else {
        return Vec::new();
    };
    let owner = BlockOwner::Host(name.into());
    let both = |cidr: Prefix| {
        let block = json!({
            "cidr": cidr, "affinity": owner.to_string(), "podCIDR": true,
            "allocations": [], "unallocated": [], "attributes": [],
        });
        let affinity = json!({"state": "confirmed", "deleted": false});
        [
            (Key::Block(cidr), block),
            (Key::Affinity(owner.clone(), cidr), affinity),
        ]
    };
    ranges(node).into_iter().flat_map(both).collect()
}

/// The address of the tunnels of a family.
fn tunnel(node: &Value, family: Family) -> Option<Value> {
    let mut ranges = ranges(node).into_iter();
    let range = ranges.find(|range| range.family() == family)?;
    Some(json!(range.nth(1)?))
}

/// Puts the tunnels' addresses into Calico's Node where its annotations name none.
pub(super) fn add_tunnels(node: &Value, value: &mut Value) {
    for (pointer, family) in TUNNELS {
        if value.pointer(pointer).is_some_and(|known| !known.is_null()) {
            continue;
        }
        if let Some(address) = tunnel(node, family) {
            super::node::put(value, pointer, address);
        }
    }
}

/// Takes them out again, before the Node is written.
pub(crate) fn remove_tunnels(node: &Value, value: &mut Value) {
    for (pointer, family) in TUNNELS {
        let derived = tunnel(node, family);
        if let Some(address) = value.pointer_mut(pointer)
            && Some(&*address) == derived.as_ref()
        {
            *address = Value::Null;
        }
    }
}
