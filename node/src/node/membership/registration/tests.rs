#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use caracal_datastore::{
    Accept, Accepted, Accepter, CommitFault, GuardOptions, MemoryStore, StoreId, TestFolder,
    WatchOptions, spawn_guarded_watcher,
};
use caracal_ipam::{Lease, LeaseHolder};
use caracal_model::{NodeName, Snapshot};

use super::*;
use crate::node::problems::{Problems, Registry, Reported};

const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/node-a";
const INFO: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

fn holder(name: &str) -> LeaseHolder {
    LeaseHolder {
        machine: name.to_owned(),
        boot: name.to_owned(),
    }
}

fn config(ip: &str) -> Arc<Config> {
    let vars = BTreeMap::from([("IP".to_owned(), ip.to_owned())]);
    Arc::new(Config::from_env(&vars, None, "node-a").unwrap())
}

struct Fixture {
    store: MemoryStore,
    view: watch::Receiver<View>,
    accepter: Accepter,
    problems: Problems,
    registered: watch::Receiver<Option<Node>>,
    lost: mpsc::Receiver<machine::Taken>,
    claim: machine::Claim,
    /// Only who holds the name writes there.
    lib: TestFolder,
}

impl Fixture {
    fn new(store: MemoryStore, accepted: Option<Accepted>) -> Self {
        let guard = GuardOptions {
            me: "node-a".into(),
            accepted,
            accept: Accept::Never,
        };
        let options = WatchOptions {
            node_grace: Duration::from_secs(20),
            ..WatchOptions::default()
        };
        let (view, accepter) = spawn_guarded_watcher(store.clone(), options, guard);
        let (outcome, registered) = watch::channel(None);
        let registry = Registry::default();
        let (lost_tx, lost) = mpsc::channel(1);
        let lib = TestFolder::new("registrar");
        let claim = machine::Claim::new("node-a".into(), holder("this"), &lib, machine::TERM);
        let registrar = Registrar {
            store: store.clone(),
            config: config("10.0.0.1/24"),
            claim: claim.clone(),
            view: view.clone(),
            interfaces: async || Ok(Vec::new()),
            registered: false,
            guid: None,
            outcome,
            problems: registry.reporter("registrar"),
            lost: lost_tx,
        };
        tokio::task::spawn_local(registrar.run());
        Self {
            store,
            view,
            accepter,
            problems: registry.problems(),
            registered,
            lost,
            claim,
            lib,
        }
    }

    async fn registered(&mut self) -> Node {
        let node = self.registered.wait_for(Option::is_some).await.unwrap();
        node.clone().unwrap()
    }

    async fn await_problem(&mut self, code: &str, what: &str) {
        let about = |p: &Problem| p.code == code && p.reason.contains(what);
        let there = |found: &Reported| found.all().any(about);
        let limit = Duration::from_secs(60);
        let found = tokio::time::timeout(limit, self.problems.wait_for(there)).await;
        drop(found.unwrap_or_else(|_| panic!("{code}: {what} is not reported")));
    }

    fn stored(&self) -> Node {
        Node::from_json(&self.store.get(NODE).expect("a Node").value).unwrap()
    }

    /// The present content, as a process before would have left it.
    fn accepted(&self) -> Accepted {
        let mut snapshot = Snapshot::default();
        for kv in self.store.list("/calico/") {
            snapshot.apply(&kv.key, Some(&kv.value), kv.mod_revision);
        }
        Accepted {
            snapshot: Arc::new(snapshot),
            store: StoreId(1),
            restored: false,
        }
    }
}

async fn on_stage(work: impl AsyncFnOnce(Fixture)) {
    let local = tokio::task::LocalSet::new();
    let stage = async {
        let mut stage = Fixture::new(MemoryStore::new(), None);
        stage.registered().await;
        work(stage).await;
    };
    local.run_until(stage).await;
}

#[tokio::test]
async fn a_node_that_is_deleted_or_overwritten_is_written_again_and_told() {
    on_stage(async |mut stage| {
        let mut labelled = stage.stored();
        let label = ("rack".to_owned(), "7".to_owned());
        labelled.metadata.labels.insert(label.0, label.1);
        labelled.spec.ipv4_vxlan_tunnel_addr = Some([10, 1, 0, 1].into());
        let block = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.0-26";
        stage.store.put(block, r#"{"state":"confirmed"}"#);
        let revision = stage.store.put(NODE, labelled.to_json());
        let heard = stage.view.wait_for(|v| v.snapshot.revision >= revision);
        drop(heard.await.unwrap());

        for (damage, what) in [
            (None, "was deleted"),
            (Some("nonsense"), "no Node"),
            (
                Some(r#"{"metadata":{"name":"node-a"},"spec":{}}"#),
                "addresses were gone",
            ),
        ] {
            match damage {
                None => stage.store.delete(NODE),
                Some(text) => stage.store.put(NODE, text),
            };
            stage.await_problem("node.written_again", what).await;
            assert_eq!(stage.stored().spec, labelled.spec, "{what}");
            assert_eq!(stage.stored().metadata.labels, labelled.metadata.labels);
            let current = stage.view.wait_for(View::is_current).await.unwrap();
            drop(current);
        }
    })
    .await;
}

#[test]
fn what_an_operator_changes_in_a_node_stays() {
    let node = |text: &str| {
        let text = format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"bgp":{text}}}}}"#);
        Node::from_json(text.as_bytes()).unwrap()
    };
    let was = node(r#"{"ipv4Address":"10.0.0.1/24"}"#);
    for (now, literal, detected) in [
        (r#"{"ipv4Address":"10.0.0.1/24"}"#, false, false),
        (r#"{"ipv4Address":"10.0.0.1/16"}"#, false, false),
        (
            r#"{"ipv4Address":"10.0.0.1/24","asNumber":7}"#,
            false,
            false,
        ),
        (
            r#"{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64"}"#,
            false,
            false,
        ),
        (r#"{"ipv4Address":"10.0.0.2/24"}"#, true, false),
        (r#"{"asNumber":7}"#, true, true),
    ] {
        let now = node(now);
        assert_eq!(
            lacks(&config("10.0.0.1/24"), &now, &was),
            literal,
            "{now:?}"
        );
        assert_eq!(
            lacks(&config("autodetect"), &now, &was),
            detected,
            "{now:?}"
        );
        assert!(!lacks(&config("none"), &now, &was));
    }
}

#[tokio::test]
async fn a_datastore_that_takes_no_writes_is_a_problem_and_no_end() {
    on_stage(async |stage| {
        let accepted = stage.accepted();
        let again = MemoryStore::new();
        let mut other = stage.stored();
        other.spec.bgp.as_mut().unwrap().ipv4_address = Some("10.0.0.9/24".parse().unwrap());
        again.set_cluster(1);
        for kv in stage.store.list("/calico/") {
            again.put(kv.key, kv.value);
        }
        again.put(NODE, other.to_json());
        let full = "etcdserver: mvcc: database space exceeded";
        again.fail_commit(1, CommitFault::Refused(full.to_owned()));
        let mut next = Fixture::new(again, Some(accepted));
        next.await_problem("node.registration", full).await;
        // Room was made.
        next.registered().await;
        assert_eq!(next.stored().spec.bgp, stage.stored().spec.bgp);
        let gone = next.problems.wait_for(|found| found.all().next().is_none());
        tokio::time::timeout(SHOWN, gone).await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn nothing_is_written_into_a_datastore_that_is_not_the_clusters() {
    on_stage(async |stage| {
        let accepted = stage.accepted();
        let guid = stage.store.get(INFO).unwrap();
        // Empty, as after a loss of its disk.
        let empty = MemoryStore::new();
        let mut next = Fixture::new(empty.clone(), Some(accepted));
        let fault = next.view.wait_for(|v| v.fault.is_some());
        drop(fault.await.unwrap());
        assert_eq!(empty.commits(), 0);
        // Accepted, it becomes the cluster's, with the cluster's identity.
        next.accepter.accept().await.unwrap();
        next.registered().await;
        let current = next.view.wait_for(View::is_current).await;
        drop(current.unwrap());
        assert_eq!(next.stored().spec.bgp, stage.stored().spec.bgp);
        let value = |text: &[u8]| -> serde_json::Value { serde_json::from_slice(text).unwrap() };
        let of = |text: &[u8]| value(text)["spec"]["clusterGUID"].clone();
        assert_eq!(of(&empty.get(INFO).unwrap().value), of(&guid.value));
    })
    .await;
}

#[tokio::test]
async fn another_machine_with_the_name_ends_the_process() {
    on_stage(async |mut stage| {
        let term = Duration::from_secs(900);
        let now = SystemTime::now().into();
        let txn = Lease::renew(&"node-a".into(), &holder("other"), None, term, now);
        stage.store.apply(&txn).unwrap();
        // Nothing is wrong with its own entry yet, so nobody looks; then the other one writes its
        // address.
        let mut node = stage.stored();
        node.spec.bgp.as_mut().unwrap().ipv4_address = Some("10.0.0.2/24".parse().unwrap());
        let revision = stage.store.put(NODE, node.to_json());
        let taken = stage.lost.recv().await.unwrap().to_string();
        assert!(taken.contains("machine other renewed"), "{taken}");
        assert_eq!(stage.store.revision(), revision, "nothing is fought over");
    })
    .await;
}

#[tokio::test]
async fn a_copy_of_this_machine_loses_the_name_and_is_named() {
    on_stage(async |mut stage| {
        for _ in 0..2 {
            stage.claim.renew(&stage.store).await.unwrap();
            tokio::time::pause();
            tokio::time::advance(Lease::interval(machine::TERM)).await;
            tokio::time::resume();
        }
        std::fs::remove_dir_all(&stage.lib).unwrap();
        let (me, now) = ("node-a".into(), SystemTime::now().into());
        let path = Lease::path(&me);
        let copy = LeaseHolder {
            boot: "copy".to_owned(),
            ..holder("this")
        };
        let revision = stage.store.get(&path).unwrap().mod_revision;
        let txn = Lease::renew(&me, &copy, Some(revision), machine::TERM, now);
        stage.store.apply(&txn).unwrap();
        let own = stage.stored().spec.bgp;
        let mut node = stage.stored();
        node.spec.bgp.as_mut().unwrap().ipv4_address = Some("10.0.0.2/24".parse().unwrap());
        stage.store.put(NODE, node.to_json());
        stage.await_problem("node.copied", "boot copy").await;
        assert_eq!(stage.stored().spec.bgp, own);
        let lease = Lease::read(&stage.store.get(&path).unwrap()).unwrap();
        assert_eq!(lease.holder, holder("this"));
        // The copy has not ended yet: what it writes does not hide that it is one. The second time,
        // what is said of the first has been said.
        for _ in 0..2 {
            let revision = stage.store.put(NODE, node.to_json());
            let restored = |view: &View| {
                let known = view.snapshot.nodes.get(&NodeName::from("node-a"));
                view.snapshot.revision > revision && known.is_some_and(|node| node.spec.bgp == own)
            };
            drop(stage.view.wait_for(restored).await.unwrap());
        }
        let found = stage.problems.borrow();
        let codes: Vec<&str> = found.all().map(|p| p.code.as_str()).collect();
        assert_eq!(codes, ["node.copied"]);
    })
    .await;
}
