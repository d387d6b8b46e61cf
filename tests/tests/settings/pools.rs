//! Ten thousand pools in the kernel: the rules are as many as with ten, and another pool is one
//! element more, by itself and after a restart.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use caracal_datastore::Store as _;
use caracal_lab::{Lab, wait_until};
use caracal_model::{Family, Txn};
use caracal_tests::{
    SECOND, Stack, assert_full_matrix, await_settled, either, possible, try_run_on, up_text,
    with_ipam,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: pools
pool: {cidr: 10.244.0.0/16, blockSize: 26, natOutgoing: true}
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.12, pods: 1}
";
/// Pools of each family; there are two.
const MANY: u16 = 5_000;
/// So much CPU may thousands of pools take: of the node and of what it starts.
const OF_MANY: Duration = Duration::from_secs(30);
/// The same of another one beside them.
const OF_ONE: Duration = Duration::from_secs(3);

fn cidr(family: Family, number: u16) -> String {
    match family {
        Family::Ipv4 => format!("10.{}.{}.0/24", 64 + number / 256, number % 256),
        // A zero would be left out.
        Family::Ipv6 => format!("fd00:64:{:x}::/48", number + 1),
    }
}

fn key(family: Family, number: u16) -> String {
    let family = either(family, "v4", "v6");
    format!("/calico/resources/v3/projectcalico.org/ippools/{family}-{number}")
}

/// Writes pools of both families, a hundred at a time.
fn put_pools(lab: &Lab, numbers: Range<u16>) {
    let all: Vec<u16> = numbers.collect();
    with_ipam(lab, async |_, store| {
        for some in all.chunks(50) {
            let mut txn = Txn::new();
            for (family, number) in both(some) {
                let spec = json!({"cidr": cidr(family, number), "natOutgoing": true});
                let key = key(family, number);
                let name = key.rsplit('/').next();
                let pool = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
                    "metadata": {"name": name}, "spec": spec});
                txn = txn.create(key, pool.to_string().into_bytes());
            }
            store.commit(&txn).await.unwrap();
        }
    });
}

fn both(numbers: &[u16]) -> impl Iterator<Item = (Family, u16)> {
    let families = [Family::Ipv4, Family::Ipv6].into_iter();
    families.flat_map(|family| numbers.iter().map(move |number| (family, *number)))
}

/// Handles of the rules of node1's table, which are others when rules are written anew.
type Handles = Vec<u64>;

/// The rules, when the table has the networks of so many pools.
fn rules(lab: &Lab, pools: u16) -> Result<Handles, String> {
    let text = try_run_on(lab, "node1", "nft -j list table inet caracal")?;
    let words: HashSet<&str> = text.split('"').collect();
    let numbers: Vec<u16> = (0..pools).collect();
    let mut networks = both(&numbers).map(|(family, number)| cidr(family, number));
    let is_absent = |cidr: &String| {
        let (network, _) = cidr.split_once('/').unwrap();
        !words.contains(network)
    };
    if let Some(absent) = networks.find(is_absent) {
        return Err(format!("no {absent}"));
    }
    let listing: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let objects = listing["nftables"].as_array().ok_or("no table")?;
    let handle = |object: &Value| object["rule"]["handle"].as_u64();
    Ok(objects.iter().filter_map(handle).collect())
}

fn await_rules(lab: &Lab, pools: u16) -> Handles {
    let what = format!("{pools} pools of each family in the kernel");
    wait_until(120 * SECOND, &what, || rules(lab, pools))
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)))
}

/// CPU that node1 and the programs that it has started have used (proc(5): `/proc/PID/stat`).
fn used(lab: &Lab) -> Duration {
    let id = lab.state().processes["node1"].pid;
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let times = fields.split_whitespace().skip(11).take(4);
    let hundredths: u64 = times.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(hundredths * 10)
}

#[test]
fn ten_thousand_pools_are_no_more_rules_than_ten() {
    let scenario = "ten_thousand_pools_are_no_more_rules_than_ten";
    if !possible(scenario, &["nft"]) {
        return;
    }
    let text = Stack::Dual.topology(TOPOLOGY);
    let mut lab = up_text(&text, "pools", "set-pools");
    await_settled(&lab);
    let mut last = used(&lab);
    let mut told = |lab: &Lab, what: &str| {
        let now = used(lab);
        let took = now.saturating_sub(last);
        println!("{what}: {:.2} s of CPU", took.as_secs_f64());
        last = now;
        took
    };
    put_pools(&lab, 0..5);
    let few = await_rules(&lab, 5);
    told(&lab, "ten pools");
    put_pools(&lab, 5..MANY);
    let many = await_rules(&lab, MANY);
    let of_many = told(&lab, "ten thousand pools");
    assert_eq!(few.len(), many.len());
    assert!(of_many < OF_MANY, "{of_many:?} of CPU for all pools");

    put_pools(&lab, MANY..MANY + 1);
    let more = await_rules(&lab, MANY + 1);
    let of_one = told(&lab, "another one of each family");
    assert_eq!(more, many, "the rules stay");
    assert!(of_one < OF_ONE, "{of_one:?} of CPU for another pool");

    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    put_pools(&lab, MANY + 1..MANY + 2);
    let adopted = await_rules(&lab, MANY + 2);
    assert_eq!(adopted, many, "the rules are adopted");
    assert_full_matrix(&lab);
}
