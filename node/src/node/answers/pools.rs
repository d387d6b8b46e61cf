//! The cluster's pools as this node's snapshot has them: how full they are, and who has their
//! blocks.

use std::collections::BTreeMap;

use caracal_model::{BlockOwner, EncapMode, NodeName, Snapshot};
use serde_json::{Value, json};

/// Blocks of a pool that are listed.
const LISTED: usize = 2048;
/// Pairs of nodes of which one has borrowed from the other, the largest ones, that are listed.
const BORROWERS: usize = 100;

/// Addresses by who has borrowed them, and from whom.
type Lent<'a> = BTreeMap<(&'a NodeName, String), u64>;

/// All pools with their blocks.
pub(super) fn pools(snapshot: &Snapshot) -> Value {
    let mut pools = Vec::new();
    for (name, pool) in &snapshot.pools {
        let range = pool.spec.prefix();
        let mut blocks = Vec::new();
        let (mut count, mut in_use, mut borrowed) = (0_usize, 0_u64, 0_u64);
        let mut lent = Lent::new();
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
            let guests = block.used_elsewhere().count() as u64;
            borrowed += guests;
            let owner = block.owner.as_ref().map(ToString::to_string);
            let of = block.owner.as_ref().and_then(BlockOwner::node);
            let from = of.map(ToString::to_string).or_else(|| owner.clone());
            for (_, borrower) in block.used_elsewhere() {
                let from = from.clone().unwrap_or_default();
                *lent.entry((borrower, from)).or_default() += 1;
            }
            if blocks.len() < LISTED {
                blocks.push(json!({
                    "cidr": cidr,
                    "node": of,
                    "owner": owner,
                    "inUse": block.in_use,
                    "borrowed": guests,
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
            "borrowers": borrowers(lent),
            "blockCount": count,
            "blocksMax": number(1_u128.checked_shl(in_block).unwrap_or(u128::MAX)),
            "blocks": blocks,
            "blocksOmitted": count.saturating_sub(LISTED),
        }));
    }
    json!({ "revision": snapshot.revision, "pools": pools })
}

/// Who has borrowed from whom, the most first.
fn borrowers(lent: Lent<'_>) -> Vec<Value> {
    let mut pairs: Vec<_> = lent.into_iter().collect();
    pairs.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let pairs = pairs.iter().take(BORROWERS);
    let row = |((node, from), count): &_| json!({"node": node, "from": from, "count": count});
    pairs.map(row).collect()
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
    fn who_borrows_from_whom_is_told() {
        let mut snapshot = Snapshot::default();
        let pool =
            json!({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/24", "blockSize": 29}});
        put(
            &mut snapshot,
            &Key::resource(Kind::IpPool, "p").to_path(),
            &pool,
        );
        let used = |node: &str| json!({"handle_id": node, "secondary": {"node": node}});
        for (cidr, owner) in [("10.0.0.0/29", "n1"), ("10.0.0.8/29", "n2")] {
            let block = json!({"cidr": cidr, "affinity": format!("host:{owner}"),
                "allocations": [0, 1, 1, 2, null, null, null, null], "unallocated": [4, 5, 6, 7],
                "attributes": [used("n1"), used("n2"), used("n3")]});
            let path = Key::Block(cidr.parse().unwrap()).to_path();
            put(&mut snapshot, &path, &block);
        }
        let told = pools(&snapshot);
        let pool = &told["pools"][0];
        assert_eq!(pool["inUse"], 8, "{:?}", snapshot.invalid);
        let wanted = json!([
            {"node": "n2", "from": "n1", "count": 2},
            {"node": "n1", "from": "n2", "count": 1},
            {"node": "n3", "from": "n1", "count": 1},
            {"node": "n3", "from": "n2", "count": 1},
        ]);
        assert_eq!(pool["borrowers"], wanted);
        assert_eq!(pool["borrowed"], 5);
        assert_eq!(pool["blocks"][0]["borrowed"], 3);
        assert_eq!(pool["blocks"][1]["borrowed"], 2);
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
