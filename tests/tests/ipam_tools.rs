//! Every form of `caracal ipam` and `caracal node delete` with `-o json`, and each exit code, by
//! the real binary on a real etcd. Nothing but these two runs here; what the tools do in a living
//! cluster is in `ipam.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, Ipv6Addr};
use std::process::{Command, Output};

use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, Store};
use caracal_ipam::{Assign, AssignRequest, Client, Lease, LeaseHolder, namespace_key};
use caracal_model::{
    AllowedUse, Family, IpPool, IpPoolSpec, Key, Kind, Node, NodeSpec, Prefix, Timestamp, Txn,
    TxnOutcome,
};
use caracal_tests::{binary, either, ipam_why, possible};
use serde_json::{Value, json};

const NOT_FOUND: i32 = 3;
const DEGRADED: i32 = 4;
const REFUSED: i32 = 5;

/// An address or prefix of IPv4, or its counterpart: as many addresses, in the same order.
fn net(family: Family, ipv4: &str) -> String {
    if family == Family::Ipv4 {
        return ipv4.to_owned();
    }
    let prefix: Prefix = ipv4.parse().unwrap();
    let IpAddr::V4(address) = prefix.address() else {
        panic!("{ipv4} is not of IPv4");
    };
    let [a, b, c, d] = address.octets().map(u16::from);
    let address = Ipv6Addr::new(0xfd00, a, b, c, 0, 0, 0, d);
    match ipv4.contains('/') {
        true => Prefix::v6(address, prefix.len() + 96).to_string(),
        false => address.to_string(),
    }
}

/// etcd with a cluster's data, and the binary beside it.
struct Bench {
    /// The family of all pools but one.
    family: Family,
    server: EtcdServer,
    runtime: tokio::runtime::Runtime,
    store: EtcdStore,
}

fn pool(
    family: Family,
    name: &str,
    cidr: &str,
    change: impl FnOnce(&mut IpPoolSpec),
) -> (String, Vec<u8>) {
    let mut pool = IpPool::new(name, IpPoolSpec::default());
    pool.spec.cidr = net(family, cidr);
    pool.spec.block_size = either(family, 30, 126);
    change(&mut pool.spec);
    (Key::resource(Kind::IpPool, name).to_path(), pool.to_json())
}

fn node(name: &str) -> (String, Vec<u8>) {
    let node = Node::new(name, NodeSpec::default());
    (Key::node(&name.into()).to_path(), node.to_json())
}

impl Bench {
    fn start(family: Family) -> Option<Self> {
        let server = EtcdServer::start()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let store = runtime
            .block_on(async { EtcdStore::new(EtcdConfig::new([server.endpoint()])) })
            .unwrap();
        Some(Self {
            family,
            server,
            runtime,
            store,
        })
    }

    fn create(&self, entries: impl IntoIterator<Item = (String, Vec<u8>)>) {
        let txn = entries
            .into_iter()
            .fold(Txn::new(), |txn, (key, value)| txn.create(key, value));
        let outcome = self.runtime.block_on(self.store.commit(&txn)).unwrap();
        assert!(matches!(outcome, TxnOutcome::Committed(_)));
    }

    /// Takes addresses an hour ago, so that they are old enough to be judged.
    fn take(&self, node: &str, handle: &str, count: usize, usage: AllowedUse) -> Vec<String> {
        let mut request = AssignRequest::workload(node.into(), handle.into());
        let (v4, v6) = either(self.family, (count, 0), (0, count));
        (request.num_v4, request.num_v6, request.usage) = (v4, v6, usage);
        let client = Client::new(self.store.clone());
        let now = Timestamp::from(std::time::SystemTime::now());
        let earlier = Timestamp::from_nanos(now.nanos() - 3_600_000_000_000);
        let assigned = self
            .runtime
            .block_on(client.drive(Assign::new(request, earlier)))
            .unwrap();
        assigned.all().map(|a| a.address.to_string()).collect()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(binary())
            .args(arguments)
            .env("ETCD_ENDPOINTS", self.server.endpoint())
            .output()
            .unwrap()
    }

    /// Runs a command that must end with this code and print JSON, and nothing but it, on standard
    /// output.
    fn json_with(&self, code: i32, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["-o", "json"]].concat();
        let output = self.run(&arguments);
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {text}{errors}"
        );
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {text}{errors}"))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        self.json_with(0, arguments)
    }

    /// Runs a command that must be refused with this code; what it says.
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        errors
    }
}

const fn other_family(family: Family) -> Family {
    either(family, Family::Ipv6, Family::Ipv4)
}

fn bench(scenario: &str, family: Family) -> Option<Bench> {
    if !possible(scenario, &["etcd"]) {
        return None;
    }
    let bench = Bench::start(family).expect("etcd is installed");
    bench.create([
        pool(family, "pods", "10.0.0.0/29", |_| {}),
        pool(family, "services", "10.1.0.0/29", |spec| {
            spec.allowed_uses = vec![AllowedUse::LoadBalancer];
        }),
        pool(family, "team", "10.2.0.0/29", |spec| {
            spec.namespace_selector = "team == 'red'".to_owned();
        }),
        pool(other_family(family), "other", "10.3.0.0/29", |_| {}),
        node("node-a"),
        node("node-b"),
        node("node-c"),
    ]);
    Some(bench)
}

#[test]
fn every_question_in_json() {
    for family in [Family::Ipv4, Family::Ipv6] {
        if let Some(bench) = bench("every_question_in_json", family) {
            questions(&bench);
        }
    }
}

fn questions(bench: &Bench) {
    let family = bench.family;
    bench.take("node-a", "net.a", 3, AllowedUse::Workload);
    bench.take("node-b", "net.b", 3, AllowedUse::Workload);
    let borrowed = bench.take("node-c", "net.c", 1, AllowedUse::Workload);
    bench.take("", "lb-1", 1, AllowedUse::LoadBalancer);
    // Pools without and with blocks.
    let shown = bench.json(&["ipam", "show"]);
    let fill = |shown: &Value, n: usize| shown["pools"][n]["fill"].clone();
    assert_eq!(
        fill(&shown, 1),
        json!({"cidr": net(family, "10.0.0.0/29"), "total": 8, "inUse": 7, "reserved": 0, "free": 1})
    );
    assert_eq!(shown["pools"].as_array().unwrap().len(), 4);
    assert!(shown["pools"][1].get("blocks").is_none(), "{shown}");
    let shown = bench.json(&["ipam", "show", "--show-blocks"]);
    let blocks = shown["pools"][1]["blocks"].as_array().unwrap();
    let mut owners: Vec<_> = blocks
        .iter()
        .map(|b| b["owner"].as_str().unwrap())
        .collect();
    owners.sort_unstable();
    assert_eq!(owners, ["host:node-a", "host:node-b"]);
    // Pools are sorted by name: other, pods, services, team.
    assert_eq!(
        shown["pools"][2]["blocks"][0]["owner"],
        "virtual:load-balancer"
    );
    // Borrowed addresses and their borrowers.
    let shown = bench.json(&["ipam", "show", "--show-borrowed"]);
    let list = shown["borrowed"].as_array().unwrap();
    assert_eq!(list.len(), 1, "{shown}");
    assert_eq!(list[0]["address"], borrowed[0].as_str());
    assert_eq!(list[0]["attributes"]["node"], "node-c");
    let configuration = bench.json(&["ipam", "show", "--show-configuration"]);
    let expected = json!({"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 0,
        "kubeVirtVMAddressPersistence": null, "ipCooldownSeconds": 0});
    assert_eq!(configuration["configuration"], expected);
    // One address: held, and not.
    let one = bench.json(&["ipam", "show", &format!("--ip={}", borrowed[0])]);
    assert_eq!(one["allocation"]["handle"], "net.c");
    assert_eq!(one["users"], json!([]));
    let one = {
        let address = format!("--ip={}", net(family, "10.2.0.1"));
        bench.json_with(NOT_FOUND, &["ipam", "show", &address])
    };
    assert_eq!(one["allocation"], Value::Null);
    // Where the next address comes from.
    let lender = list[0]["blockOwner"].as_str().unwrap();
    let other = if lender == "host:node-a" {
        "node-b"
    } else {
        "node-a"
    };
    let output = bench.json(&ipam_why(family, &[other]));
    assert_eq!(output["next"]["ownBlock"], true, "{output}");
    let output = bench.json(&ipam_why(family, &["node-c"]));
    assert_eq!(output["next"]["borrowed"], true, "{output}");
    let reason = |why: &Value, pool: &str| {
        let pools = why["pools"].as_array().unwrap().iter();
        let answer = pools.clone().find(|p| p["pool"] == pool).unwrap();
        answer["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        reason(&output, "services"),
        "does not allow the use Workload"
    );
    assert_eq!(reason(&output, "team"), "does not select this namespace");
    // A namespace by the labels in its profile.
    let value = br#"{"spec":{"labelsToApply":{"pcns.team":"red"}}}"#;
    bench.create([(namespace_key("shop").to_path(), value.to_vec())]);
    let output = bench.json(&ipam_why(family, &["node-c", "--namespace=shop"]));
    assert_eq!(reason(&output, "team"), "serves this node");
    assert_eq!(output["next"]["pool"], "team", "{output}");
    let output = bench.json(&ipam_why(family, &["node-c", "--namespace=elsewhere"]));
    assert_eq!(reason(&output, "team"), "does not select this namespace");
    let output = bench.json(&ipam_why(other_family(family), &["node-c"]));
    assert_eq!(output["next"]["pool"], "other");
    let says = bench.refused(NOT_FOUND, &ipam_why(family, &["node-x", "-o", "json"]));
    assert!(says.contains("known: node-a, node-b, node-c"), "{says}");
}

#[test]
fn every_order_in_json() {
    for family in [Family::Ipv4, Family::Ipv6] {
        if let Some(bench) = bench("every_order_in_json", family) {
            orders(&bench);
        }
    }
}

fn orders(bench: &Bench) {
    let family = bench.family;
    let leaked = bench.take("node-a", "net.a", 4, AllowedUse::Workload);
    // Faults; a report; a dry run; the repair of those that need a request, and of the rest.
    let found = bench.json_with(DEGRADED, &["ipam", "check"]);
    assert_eq!(found["leaked"].as_array().unwrap().len(), 4, "{found}");
    assert_eq!(
        (&found["problems"], &found["findings"]),
        (&json!(4), &json!([]))
    );
    let dry = [
        "ipam",
        "release",
        &format!("--ip={}", leaked[0]),
        "--dry-run",
    ];
    assert_eq!(bench.json(&dry)["released"], json!([leaked[0]]));
    let release = ["ipam", "release", &format!("--ip={}", leaked[0])];
    assert_eq!(bench.json(&release)["released"], json!([leaked[0]]));
    let again = bench.json_with(NOT_FOUND, &release);
    assert_eq!(again["notAssigned"], json!([leaked[0]]));
    let dry_run = bench.json_with(DEGRADED, &["ipam", "check", "--fix", "--dry-run"]);
    assert_eq!(dry_run["repaired"].as_array().unwrap().len(), 3);
    let output = bench.run(&["ipam", "check", "--fix", "-o", "json"]);
    let fixed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &fixed["problemsLeft"]),
        (Some(0), &json!(0)),
        "{fixed}"
    );
    let said = String::from_utf8_lossy(&output.stderr);
    let (release, write) = (
        said.find("Repair: release").unwrap(),
        said.find("put /calico/ipam/"),
    );
    assert!(release < write.unwrap(), "each write is said: {said}");
    assert_eq!(bench.json(&["ipam", "check"])["problems"], 0);
    // The configuration: calicoctl's flags.
    let configured = bench.json(&[
        "ipam",
        "configure",
        "--strictaffinity=true",
        "--max-blocks-per-host=2",
        "--kubevirt-ip-persistence=disabled",
        "--ip-cooldown-seconds=5",
    ]);
    assert_eq!(
        configured,
        json!({"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": 2,
            "kubeVirtVMAddressPersistence": "Disabled", "ipCooldownSeconds": 5})
    );
    let shown = bench.json(&["ipam", "show", "--show-configuration"]);
    assert_eq!(shown["configuration"], configured);
    bench.refused(
        REFUSED,
        &["ipam", "configure", "--strictaffinity=false", "-o", "json"],
    );
    bench.json(&[
        "ipam",
        "configure",
        "--max-blocks-per-host=0",
        "--ip-cooldown-seconds=0",
    ]);
    // A pool in parts.
    bench.refused(
        REFUSED,
        &["ipam", "split", "2", "--name=pods", "-o", "json"],
    );
    bench.refused(
        NOT_FOUND,
        &["ipam", "split", "2", "--name=nothing", "--force"],
    );
    let parts = bench.json(&["ipam", "split", "2", "--name=pods", "--force"]);
    let cidrs: Vec<_> = parts
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["spec"]["cidr"])
        .collect();
    assert_eq!(
        cidrs,
        [
            &json!(net(family, "10.0.0.0/30")),
            &json!(net(family, "10.0.0.4/30"))
        ]
    );
    // A node that is gone, and one that lives.
    let mine = bench.take("node-b", "net.b", 1, AllowedUse::Workload);
    let now = Timestamp::from(std::time::SystemTime::now());
    let txn = Lease::renew(
        &"node-b".into(),
        &LeaseHolder::default(),
        None,
        std::time::Duration::from_secs(900),
        now,
    );
    let txn = txn.create("/caracal/status/node-b", b"{}".to_vec());
    bench.runtime.block_on(bench.store.commit(&txn)).unwrap();
    let says = bench.refused(REFUSED, &["node", "delete", "node-b", "-o", "json"]);
    assert!(says.contains("seems to be alive"), "{says}");
    let dry = bench.json(&["node", "delete", "node-b", "--force", "--dry-run"]);
    assert_eq!(
        (&dry["dryRun"], &dry["addresses"]),
        (&json!(true), &json!(mine))
    );
    let deleted = bench.json(&["node", "delete", "node-b", "--force"]);
    assert_eq!(deleted["addresses"], json!(mine));
    assert_eq!(deleted["blocks"].as_array().unwrap().len(), 1);
    let keys = deleted["deleted"].as_array().unwrap();
    assert!(keys.contains(&json!("/caracal/status/node-b")), "{keys:?}");
    let node = Key::node(&"node-b".into()).to_path();
    assert_eq!(keys.last().unwrap(), &json!(node), "the Node goes last");
    bench.refused(NOT_FOUND, &["node", "delete", "node-b", "-o", "json"]);
    assert_eq!(bench.json(&["ipam", "check"])["problems"], 0);
}
