//! The cluster's pools as this node's snapshot has them: how full they are, and who has their
//! blocks.

use caracal_model::{BlockOwner, EncapMode, Snapshot};
use serde_json::{Value, json};

/// Blocks of a pool that are listed.
const LISTED: usize = 2048;

/// All pools with their blocks.
pub(super) fn pools(snapshot: &Snapshot) -> Value {
    let mut pools = Vec::new();
    for (name, pool) in &snapshot.pools {
        let range = pool.spec.prefix();
        let mut blocks = Vec::new();
        let (mut count, mut in_use, mut borrowed) = (0_usize, 0_u64, 0_u64);
        // A pool may lie inside another one; a block is the inner one's.
        let of_pool = snapshot.blocks.range(range..);
        let of_pool = of_pool.take_while(|(cidr, _)| range.covers(cidr));
        for (cidr, block) in of_pool {
            if snapshot
                .pool_of(cidr)
                .is_none_or(|(inner, _)| inner != name)
            {
                continue;
            }
            count += 1;
            in_use += u64::from(block.in_use);
            borrowed += block.used_elsewhere().count() as u64;
            if blocks.len() < LISTED {
                blocks.push(json!({
                    "cidr": cidr,
                    "node": block.owner.as_ref().and_then(BlockOwner::node),
                    "owner": block.owner.as_ref().map(ToString::to_string),
                    "inUse": block.in_use,
                    "size": number(cidr.size()),
                }));
            }
        }
        let in_block = u32::from(pool.spec.block_len().saturating_sub(range.len()));
        pools.push(json!({
            "name": name,
            "cidr": range,
            "encapsulation": encapsulation(pool.spec.ipip_mode, pool.spec.vxlan_mode),
            "natOutgoing": pool.spec.nat_outgoing,
            "disabled": pool.spec.disabled,
            "addresses": number(range.size()),
            "inUse": in_use,
            "borrowed": borrowed,
            "blockCount": count,
            "blocksMax": number(1_u128.checked_shl(in_block).unwrap_or(u128::MAX)),
            "blocks": blocks,
            "blocksOmitted": count.saturating_sub(LISTED),
        }));
    }
    json!({ "revision": snapshot.revision, "pools": pools })
}

/// JSON's numbers end where this one does.
fn number(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn encapsulation(ipip: EncapMode, vxlan: EncapMode) -> String {
    match (ipip, vxlan) {
        (EncapMode::Never, EncapMode::Never) => "none".to_owned(),
        (EncapMode::Never, vxlan) => format!("VXLAN {vxlan}"),
        (ipip, _) => format!("IPIP {ipip}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_model::{Key, Kind};

    use super::*;

    fn put(snapshot: &mut Snapshot, path: &str, value: &Value) {
        snapshot.apply(path, Some(value.to_string().as_bytes()), 7);
    }

    #[test]
    fn a_block_counts_for_the_innermost_pool() {
        let mut snapshot = Snapshot::default();
        for (name, cidr) in [("outer", "10.0.0.0/16"), ("inner", "10.0.1.0/24")] {
            let pool = json!({"metadata": {"name": name}, "spec": {"cidr": cidr, "blockSize": 29}});
            put(
                &mut snapshot,
                &Key::resource(Kind::IpPool, name).to_path(),
                &pool,
            );
        }
        for (cidr, used) in [("10.0.0.0/29", 3), ("10.0.1.0/29", 2), ("10.0.1.8/29", 0)] {
            let allocations: Vec<Value> = (0..8)
                .map(|n| if n < used { 0.into() } else { Value::Null })
                .collect();
            let free: Vec<usize> = (used..8).collect();
            let block = json!({"cidr": cidr, "affinity": "host:n1", "allocations": allocations,
                "unallocated": free, "attributes": [{"handle_id": "h", "secondary": {"node": "n1"}}]});
            let path = Key::Block(cidr.parse().unwrap()).to_path();
            put(&mut snapshot, &path, &block);
        }
        assert_eq!(snapshot.blocks.len(), 3, "{:?}", snapshot.invalid);
        let told = pools(&snapshot);
        let pool = |name: &str| {
            let all = told["pools"].as_array().unwrap();
            all.iter().find(|pool| pool["name"] == name).unwrap()
        };
        assert_eq!(pool("outer")["blockCount"], 1);
        assert_eq!(pool("outer")["inUse"], 3);
        assert_eq!(pool("inner")["blockCount"], 2);
        assert_eq!(pool("inner")["blocksMax"], 32);
        assert_eq!(pool("inner")["addresses"], 256);
        assert_eq!(pool("inner")["blocks"][0]["node"], "n1");
    }
}
