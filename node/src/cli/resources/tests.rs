#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use caracal_datastore::MemoryStore;
use caracal_model::{Block, Key, Kind, Schema, Snapshot, Timestamp};
use serde_json::{Value, json};

use super::apply::{self, ApplyOptions};
use super::change::{Labels, ResourceChange};
use super::form::Form;
use super::write::{Outcome, RequestedState, RequestedWrite, Stored, WriteError, stored, write};
use super::{effect, input};

fn now() -> Timestamp {
    Timestamp::from_nanos(1_767_607_920_500_000_000)
}

/// One resource of each kind that is written, and what it looks like.
const EVERY_KIND: &str = "
{kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {name: p}, spec: {cidr: 10.244.0.0/16, natOutgoing: true}}
---
{kind: IPReservation, apiVersion: projectcalico.org/v3, metadata: {name: r}, spec: {reservedCIDRs: [10.244.0.0/30]}}
---
{kind: BGPPeer, apiVersion: projectcalico.org/v3, metadata: {name: x}, spec: {peerIP: 10.0.0.9, asNumber: '1.2', filters: [f]}}
---
{kind: BGPFilter, apiVersion: projectcalico.org/v3, metadata: {name: f},
 spec: {exportV4: [{cidr: 10.0.0.0/8, matchOperator: In, action: Accept}, {action: Reject}]}}
---
{kind: BGPConfiguration, apiVersion: projectcalico.org/v3, metadata: {name: default}, spec: {asNumber: 64513}}
---
{kind: FelixConfiguration, apiVersion: projectcalico.org/v3, metadata: {name: node.a}, spec: {vxlanPort: 4790}}
---
{kind: IPAMConfiguration, apiVersion: projectcalico.org/v3, metadata: {name: default}, spec: {strictAffinity: true}}
---
{kind: Node, apiVersion: projectcalico.org/v3, metadata: {name: a, labels: {rack: r1}}, spec: {bgp: {asNumber: 64514}}}
---
{kind: WorkloadEndpoint, apiVersion: projectcalico.org/v3, metadata: {name: a-k8s-web-eth0},
 spec: {orchestrator: k8s, node: a, pod: web, endpoint: eth0, interfaceName: cali1, ipNetworks: [10.244.0.9/32]}}
";

fn orders(text: &str, wanted: fn(Value) -> RequestedState) -> Vec<RequestedWrite> {
    let documents = input::parse("file", text, "ns").unwrap();
    let order = |d: input::Document| RequestedWrite {
        origin: d.origin,
        kind: d.kind,
        key: d.key,
        wanted: wanted(d.value),
    };
    documents.into_iter().map(order).collect()
}

fn change(kind: Kind, name: &str, change: ResourceChange) -> RequestedWrite {
    RequestedWrite {
        origin: String::new(),
        kind,
        key: Key::resource(kind, name),
        wanted: RequestedState::Change(change),
    }
}

async fn put(store: &MemoryStore, order: &RequestedWrite) -> Result<(Outcome, Stored), WriteError> {
    write(store, order, false, now()).await
}

/// Runs as the command does; the exit code as text.
async fn run(store: &MemoryStore, orders: Vec<RequestedWrite>, dry_run: bool) -> String {
    let options = ApplyOptions {
        dry_run,
        allow_unknown: false,
        skip_exists: false,
        form: Form::Table,
    };
    let datastore = BTreeSet::new();
    let to = (store, &datastore);
    let code = apply::run(to, orders, options, now()).await.unwrap();
    format!("{code:?}")
}

fn code(number: u8) -> String {
    format!("{:?}", std::process::ExitCode::from(number))
}

#[tokio::test]
async fn what_is_applied_exported_and_applied_again_is_the_same() {
    let store = MemoryStore::new();
    for order in orders(EVERY_KIND, RequestedState::Apply) {
        let (outcome, first) = put(&store, &order).await.unwrap();
        assert_eq!(outcome, Outcome::Created, "{order:?}");
        let metadata = &first.value["metadata"];
        assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
        assert_eq!(metadata["creationTimestamp"], "2026-01-05T10:12:00Z");
        assert_eq!(metadata.get("resourceVersion"), None);
        let mut exported = first.value.clone();
        Schema::export(&mut exported);
        let again = RequestedWrite {
            wanted: RequestedState::Apply(exported.clone()),
            ..order.clone()
        };
        let (outcome, second) = put(&store, &again).await.unwrap();
        assert_eq!((outcome, &second), (Outcome::Unchanged, &first));
        // On another cluster it is the same but for its identity.
        let (_, other) = put(&MemoryStore::new(), &again).await.unwrap();
        let mut other = other.value;
        Schema::export(&mut other);
        assert_eq!(other, exported);
    }
    let pool = stored(&store, &Key::resource(Kind::IpPool, "p")).await;
    let spec = &pool.unwrap().unwrap().value["spec"];
    let wanted = json!({"cidr": "10.244.0.0/16", "natOutgoing": true, "blockSize": 26,
        "ipipMode": "Never", "vxlanMode": "Never", "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic"});
    assert_eq!(*spec, wanted);
    let endpoint = Key::workload("ns", "a-k8s-web-eth0");
    let endpoint = stored(&store, &endpoint).await.unwrap().unwrap().value;
    let labels =
        json!({"projectcalico.org/namespace": "ns", "projectcalico.org/orchestrator": "k8s"});
    assert_eq!(endpoint["metadata"]["labels"], labels);
}

#[tokio::test]
async fn a_version_that_was_seen_is_held_against_the_one_that_is() {
    let store = MemoryStore::new();
    let reservation = |extra: &str| {
        let text = format!(
            "{{kind: IPReservation, apiVersion: projectcalico.org/v3, metadata: {{name: r{extra}}}, spec: {{reservedCIDRs: [10.0.0.0/30]}}}}"
        );
        orders(&text, RequestedState::Replace).remove(0)
    };
    let missing = put(&store, &reservation("")).await.unwrap_err();
    assert_eq!(missing.code(), 3);
    let new = RequestedWrite {
        wanted: RequestedState::Create(json!({"kind": "IPReservation", "metadata": {"name": "r"}})),
        ..reservation("")
    };
    let first = put(&store, &new).await.unwrap().1.revision;
    assert_eq!(put(&store, &new).await.unwrap_err().code(), 5);
    let seen = format!(", resourceVersion: '{first}'");
    put(&store, &reservation(&seen)).await.unwrap();
    let stale = put(&store, &reservation(&seen)).await.unwrap_err();
    assert_eq!(stale.code(), 6);
    assert!(
        stale.to_string().contains(&format!("not {first}")),
        "{stale}"
    );
    let other = put(&store, &reservation(", uid: other")).await.unwrap_err();
    assert!(
        other.to_string().contains("deleted and made anew"),
        "{other}"
    );
    let patch = ResourceChange::Merge(json!({"metadata": {"resourceVersion": "1"}}));
    let stale = put(&store, &change(Kind::IpReservation, "r", patch)).await;
    assert_eq!(stale.unwrap_err().code(), 6);
}

#[tokio::test]
async fn a_patch_and_a_label_keep_what_caracal_does_not_know() {
    let store = MemoryStore::new();
    let key = Key::resource(Kind::BgpPeer, "x");
    let value = json!({"kind": "BGPPeer", "apiVersion": "projectcalico.org/v3", "future": [1],
        "metadata": {"name": "x", "uid": "u", "creationTimestamp": null, "managedFields": [1]},
        "spec": {"peerIP": "10.0.0.9", "asNumber": 1, "futureField": {"a": 1}}});
    store.put(key.to_path(), value.to_string());
    let patch = ResourceChange::Merge(json!({"spec": {"asNumber": 2, "nodeSelector": "all()"}}));
    let (_, is) = put(&store, &change(Kind::BgpPeer, "x", patch))
        .await
        .unwrap();
    let mut wanted = value.clone();
    wanted["spec"]["asNumber"] = json!(2);
    wanted["spec"]["nodeSelector"] = json!("all()");
    assert_eq!(is.value, wanted);
    let words = ["a=1".to_owned(), "b-".to_owned()];
    let labels = ResourceChange::Labels(Labels::parse(&words, false, false).unwrap());
    let (_, is) = put(&store, &change(Kind::BgpPeer, "x", labels))
        .await
        .unwrap();
    wanted["metadata"]["labels"] = json!({"a": "1"});
    assert_eq!(is.value, wanted);
    let operations = json!([{"op": "test", "path": "/spec/asNumber", "value": 2},
        {"op": "remove", "path": "/spec/futureField"}]);
    let operations = ResourceChange::Operations(serde_json::from_value(operations).unwrap());
    let order = change(Kind::BgpPeer, "x", operations);
    let (_, is) = put(&store, &order).await.unwrap();
    assert_eq!(is.value["spec"].get("futureField"), None);
    let error = put(&store, &order).await.unwrap_err();
    assert_eq!(error.code(), 5);
    for bad in [
        json!({"metadata": {"name": "y"}}),
        json!({"kind": "Node"}),
        json!({"spec": {"asNumber": "x"}}),
        json!({"spec": {"asNumer": 3}}),
        json!({"metadata": null}),
    ] {
        let order = change(Kind::BgpPeer, "x", ResourceChange::Merge(bad.clone()));
        let error = put(&store, &order).await.unwrap_err();
        assert_eq!(error.code(), 5, "{bad}: {error}");
    }
}

#[tokio::test]
async fn labels_of_two_people_both_stay() {
    let store = MemoryStore::new();
    let key = Key::resource(Kind::Node, "a");
    store.put(key.to_path(), r#"{"metadata":{"name":"a"},"spec":{}}"#);
    let label = |number: u32| {
        let words = [format!("l{number}={number}")];
        change(
            Kind::Node,
            "a",
            ResourceChange::Labels(Labels::parse(&words, false, false).unwrap()),
        )
    };
    let (one, two) = (label(1), label(2));
    let (one, two) = tokio::join!(put(&store, &one), put(&store, &two));
    one.unwrap();
    two.unwrap();
    let is = stored(&store, &key).await.unwrap().unwrap().value;
    assert_eq!(is["metadata"]["labels"], json!({"l1": "1", "l2": "2"}));
    let words = ["l1=other".to_owned()];
    let labels =
        |overwrite| ResourceChange::Labels(Labels::parse(&words, overwrite, false).unwrap());
    let refused = put(&store, &change(Kind::Node, "a", labels(false))).await;
    assert!(refused.unwrap_err().to_string().contains("--overwrite"));
    put(&store, &change(Kind::Node, "a", labels(true)))
        .await
        .unwrap();
    assert!(Labels::parse(&["=x".to_owned()], false, false).is_err());
    assert!(Labels::parse(&["x".to_owned()], false, false).is_err());
    assert_eq!(
        Labels::parse(&["x".to_owned()], false, true)
            .unwrap()
            .remove,
        ["x"]
    );
}

#[tokio::test]
async fn nothing_is_written_when_one_of_several_is_not_valid() {
    let pool = |name: &str, cidr: &str, rest: &str| {
        format!(
            "{{kind: IPPool, apiVersion: projectcalico.org/v3, metadata: {{name: {name}}}, spec: {{cidr: {cidr}{rest}}}}}\n---\n"
        )
    };
    let store = MemoryStore::new();
    let good = pool("a", "10.1.0.0/16", "");
    for bad in [
        pool("b", "10.1.2.0/24", ""),
        pool("b", "10.2.0.0/16", ", nodeSelecter: all()"),
        pool("b", "10.2.0.0/16", ", blockSize: 9"),
        pool("a", "10.2.0.0/16", ""),
        "{kind: Tier, apiVersion: projectcalico.org/v3, metadata: {name: t}, spec: {}}".to_owned(),
    ] {
        let both = orders(&format!("{good}{bad}"), RequestedState::Apply);
        assert_eq!(run(&store, both, false).await, code(5), "{bad}");
        let key = Key::resource(Kind::IpPool, "a");
        assert_eq!(stored(&store, &key).await.unwrap(), None, "{bad}");
    }
    assert_eq!(
        run(&store, orders(&good, RequestedState::Apply), true).await,
        code(0)
    );
    let key = Key::resource(Kind::IpPool, "a");
    assert_eq!(stored(&store, &key).await.unwrap(), None);
    assert_eq!(
        run(&store, orders(&good, RequestedState::Apply), false).await,
        code(0)
    );
    let moved = orders(&pool("a", "10.3.0.0/16", ""), RequestedState::Apply);
    assert_eq!(run(&store, moved, false).await, code(5));
    let block = Block::new("10.4.0.0/27".parse().unwrap(), None, 1);
    store.put(Key::Block(block.cidr).to_path(), block.to_json());
    let other = orders(&pool("c", "10.4.0.0/16", ""), RequestedState::Create);
    assert_eq!(run(&store, other, false).await, code(5));
}

#[test]
fn files_that_are_no_resources_are_told_with_their_place() {
    let fault = |text: &str| format!("{:#}", input::parse("f.yaml", text, "default").unwrap_err());
    assert!(fault("a: [").starts_with("f.yaml: the resource file is not YAML"));
    assert!(
        fault("kind: NetworkPolicy\napiVersion: projectcalico.org/v3")
            .contains("line 1: a NetworkPolicy, and nobody here would enforce it")
    );
    assert!(fault("kind: Pod\napiVersion: v1").contains("line 1: not a resource"));
    assert!(
        fault("{kind: Secret, apiVersion: v1, metadata: {name: s}, stringData: {a: b}}")
            .contains("CARACAL_SECRETS_DIR")
    );
    assert!(
        fault("{kind: Service, apiVersion: v1, metadata: {name: s}}")
            .contains("caracal services apply")
    );
}

/// A cluster of two nodes with blocks, and what a change of a resource there is said to do.
fn change_effects(kind: Kind, name: &str, spec: Value) -> Vec<String> {
    let mut before = Snapshot::default();
    let put = |snapshot: &mut Snapshot, kind: Kind, name: &str, spec: Value| {
        let value = json!({"metadata": {"name": name, "labels": {"n": name}}, "spec": spec});
        let path = Key::resource(kind, name).to_path();
        snapshot.apply(&path, Some(value.to_string().as_bytes()), 1);
    };
    put(&mut before, Kind::Node, "a", json!({}));
    put(&mut before, Kind::Node, "b", json!({}));
    put(
        &mut before,
        Kind::IpPool,
        "p",
        json!({"cidr": "10.0.0.0/16", "ipipMode": "Always"}),
    );
    let peer = json!({"peerIP": "10.9.0.1", "asNumber": 1, "filters": ["f"]});
    put(&mut before, Kind::BgpPeer, "x", peer);
    for (number, node) in ["a", "a", "b"].into_iter().enumerate() {
        let cidr = format!("10.0.{number}.0/26").parse().unwrap();
        caracal_topologies::assign_block(&mut before, &node.into(), cidr);
    }
    let mut after = before.clone();
    put(&mut after, kind, name, spec);
    effect::effects_of(kind, name, &before, &after)
}

#[test]
fn effects_are_told_in_sentences() {
    let pool = |rest: Value| {
        let mut spec = json!({"cidr": "10.0.0.0/16", "ipipMode": "Always"});
        spec.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        change_effects(Kind::IpPool, "p", spec)
    };
    let vxlan = pool(json!({"ipipMode": "Never", "vxlanMode": "CrossSubnet"}));
    assert!(
        vxlan[0].starts_with(
            "moves 3 blocks from IPIP to VXLAN between subnets on 2 nodes; see `caracal mode plan`"
        ),
        "{vxlan:?}"
    );
    assert_eq!(
        pool(json!({"disabled": true})),
        ["no new address comes from it; the 0 addresses in use stay"]
    );
    assert_eq!(
        pool(json!({"disableBGPExport": true})),
        ["3 blocks are no longer announced to peers"]
    );
    assert_eq!(
        pool(json!({"natOutgoing": true})),
        ["pods in 3 blocks on 2 nodes reach the outside with their node's address"]
    );
    let selector = pool(json!({"nodeSelector": "n == 'a'"}));
    assert!(
        selector[0].starts_with("1 of 2 nodes may take blocks from it (before: 2)"),
        "{selector:?}"
    );
    let new = change_effects(
        Kind::IpPool,
        "q",
        json!({"cidr": "10.7.0.0/16", "nodeSelector": "has(no)"}),
    );
    assert!(new[0].contains("selects none of the 2 nodes"), "{new:?}");
    let peer = change_effects(
        Kind::BgpPeer,
        "y",
        json!({"peerSelector": "has(no)", "node": "a"}),
    );
    assert_eq!(
        peer,
        [
            "it is for 1 of 2 nodes",
            "peerSelector has(no) selects no node: no session comes"
        ]
    );
    let changed = json!({"peerIP": "10.9.0.1", "asNumber": 2, "filters": ["f"]});
    let changed = change_effects(Kind::BgpPeer, "x", changed);
    assert!(
        changed[0].contains("end and begin anew at once"),
        "{changed:?}"
    );
    assert_eq!(changed[1], "BGPFilter f does not exist");
    assert_eq!(
        change_effects(Kind::BgpFilter, "f", json!({})),
        ["routes of BGPPeer x are filtered anew"]
    );
    let config = json!({"asNumber": 1, "nodeToNodeMeshEnabled": false, "listenPort": 1790});
    assert_eq!(
        change_effects(Kind::BgpConfiguration, "default", config).len(),
        3
    );
}

/// `apply` replaces annotations, as calicoctl does; what goes with this one is told.
#[test]
fn an_end_of_automatic_reflectors_is_told() {
    let path = Key::resource(Kind::BgpConfiguration, "default").to_path();
    let config = |annotations: Value| {
        let mut snapshot = Snapshot::default();
        let value = json!({"metadata": {"name": "default", "annotations": annotations}});
        snapshot.apply(&path, Some(value.to_string().as_bytes()), 1);
        snapshot
    };
    let (auto, mesh) = (
        config(json!({"caracal.io/topology": "auto"})),
        config(json!({})),
    );
    let found = effect::effects_of(Kind::BgpConfiguration, "default", &auto, &mesh);
    assert!(
        found[0].contains("automatic reflectors end at once"),
        "{found:?}"
    );
    let found = effect::effects_of(Kind::BgpConfiguration, "default", &mesh, &auto);
    assert!(found[0].contains("--auto"), "{found:?}");
    let same = effect::effects_of(Kind::BgpConfiguration, "default", &auto, &auto);
    assert_eq!(same, [""; 0]);
}

/// The schema accepts the resources that a node writes at its start: `get`, edit and `apply` of
/// them work.
#[tokio::test]
async fn what_a_node_writes_is_what_the_schema_takes() {
    use std::collections::BTreeMap;

    use caracal_datastore::Store;
    use caracal_model::{KeyRange, resources_prefix};

    use crate::config::Config;
    use crate::register::{self, Addresses};

    let store = MemoryStore::new();
    let text = |pair: (&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
    let variables: BTreeMap<String, String> = [
        ("AS", "64513"),
        ("CALICO_K8S_NODE_REF", "k8s-a"),
        ("CALICO_IPV4POOL_CIDR", "10.244.0.0/16"),
    ]
    .map(text)
    .into();
    let config = Config::from_env(&variables, None, "node-a").unwrap();
    let addresses = Addresses {
        v4: Some("10.0.0.5/24".parse().unwrap()),
        v6: Some("fd00::5/64".parse().unwrap()),
    };
    register::register(&store, &config, addresses, &[], now())
        .await
        .unwrap();
    register::ensure_defaults(&store, &config, &[], None, now())
        .await
        .unwrap();
    let all = KeyRange::Prefix(resources_prefix());
    let answer = store.read(&[all]).await.unwrap();
    let mut kinds = Vec::new();
    for entry in answer.ranges.iter().flatten() {
        let Ok(Key::Resource { kind, name, .. }) = Key::parse(&entry.key) else {
            panic!("{}", entry.key)
        };
        let value: Value = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!(Schema(kind).validate(&value), [], "{kind} {name}");
        assert_eq!(
            Schema(kind).unknown_fields(&value, None),
            [],
            "{kind} {name}"
        );
        let nothing = change(kind, &name, ResourceChange::Merge(json!({})));
        let (outcome, _) = put(&store, &nothing).await.unwrap();
        // A pool gets the block size that its maker left to the default.
        assert!(
            outcome == Outcome::Unchanged || kind == Kind::IpPool,
            "{kind} {name}"
        );
        kinds.push(kind.as_str());
    }
    let wanted = [
        "BGPConfiguration",
        "ClusterInformation",
        "FelixConfiguration",
        "IPAMConfiguration",
        "IPPool",
        "Node",
    ];
    assert_eq!(kinds, wanted);
}
