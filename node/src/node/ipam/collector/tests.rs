#![allow(clippy::unwrap_used)]

use caracal_datastore::{MemoryStore, TestFolder, WatchOptions, spawn_watcher};
use caracal_ipam::{AssignIpRequest, LeaseHolder, ReleaseTarget};
use caracal_model::{AllowedUse, HandleId, Txn, TxnWrite};

use super::*;
use crate::node::problems::{Registry, Reported};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
const HANDLE: &str = "pods.8f2c";

async fn held() -> Client<MemoryStore> {
    let store = MemoryStore::new();
    let mut txn = Txn::new();
    for (key, value) in [
        (
            "nodes/node-a",
            r#"{"metadata": {"name": "node-a"}, "spec": {}}"#,
        ),
        (
            "ippools/v4",
            r#"{"metadata": {"name": "v4"}, "spec": {"cidr": "10.0.0.0/24"}}"#,
        ),
        (
            "ippools/v6",
            r#"{"metadata": {"name": "v6"}, "spec": {"cidr": "fd00::/112"}}"#,
        ),
    ] {
        let key = format!("{RESOURCES}/{key}");
        txn.writes.push(TxnWrite::Put(key, value.into()));
    }
    store.commit(&txn).await.unwrap();
    let client = Client::new(store);
    for address in addresses() {
        let request = AssignIpRequest {
            address,
            node: "node-a".into(),
            handle: HandleId::from(HANDLE),
            attributes: BTreeMap::new(),
            usage: AllowedUse::Workload,
        };
        client.assign_ip(request).await.unwrap();
    }
    client
}

fn addresses() -> [IpAddr; 2] {
    ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()]
}

fn leak() -> Garbage {
    let target = |address| ReleaseTarget {
        address,
        handle: Some(HandleId::from(HANDLE)),
        sequence: None,
    };
    Garbage::Addresses {
        targets: addresses().map(target).into(),
        preconditions: Vec::new(),
        interfaces: BTreeSet::from(["caliweb".to_owned()]),
        reason: "it looks leaked".to_owned(),
    }
}

/// Looks at what the kernel would show; the answer, and how many addresses are held afterwards.
async fn collected(signs: impl Fn() -> Signs) -> (Result<(), String>, usize) {
    let client = held().await;
    let look = async |asked: Vec<IpAddr>| {
        assert_eq!(asked, addresses());
        Ok(signs())
    };
    let answer = release(&client, &"node-a".into(), leak(), look).await;
    let held = client.addresses_of(&HandleId::from(HANDLE)).await.unwrap();
    (answer.map_err(|error| format!("{error:#}")), held.len())
}

#[tokio::test]
async fn gc_1_an_address_with_a_route_to_an_interface_is_not_freed() {
    for address in addresses() {
        let by = "a route of this node leads to it by interface calix";
        let signs = || Signs {
            interfaces: BTreeSet::from(["calix".to_owned()]),
            routed: BTreeMap::from([(address, by.to_owned())]),
        };
        let (answer, held) = collected(signs).await;
        let error = answer.unwrap_err();
        assert!(
            error.contains(by) && error.contains(&address.to_string()),
            "{error}"
        );
        assert_eq!(held, 2, "GC-4: all of a handle or none");
    }
    let back = || Signs {
        interfaces: BTreeSet::from(["caliweb".to_owned()]),
        ..Signs::default()
    };
    let (answer, held) = collected(back).await;
    assert!(answer.unwrap_err().contains("caliweb is there again"));
    assert_eq!(held, 2);
    assert_eq!(collected(Signs::default).await, (Ok(()), 0));
}

/// A look of another task at the lease comes now and then; who reads the status may come later.
#[tokio::test(start_paused = true)]
async fn a_copy_that_a_renewal_saw_is_shown_for_longer_than_until_the_next_renewal() {
    let (store, folder) = (MemoryStore::new(), TestFolder::new("copy-shown"));
    let me = NodeName::from("node-a");
    let holder = |boot: &str| LeaseHolder {
        machine: "this".to_owned(),
        boot: boot.to_owned(),
    };
    let term = machine::TERM;
    let life = Life {
        store: store.clone(),
        claim: Claim::new(me.clone(), holder("first"), &folder, term),
        grace: term,
    };
    let (lost, _taken) = mpsc::channel(1);
    let registry = Registry::default();
    let mut problems = registry.problems();
    let view = spawn_watcher(store.clone(), WatchOptions::default());
    let copied = |shown: &Reported| shown.all().any(|p| p.code == ProblemCode::NodeCopied);
    let look = async {
        tokio::time::sleep(Lease::interval(term) * 5 / 2).await;
        let revision = store.get(&Lease::path(&me)).unwrap().mod_revision;
        let taken = Lease::renew(&me, &holder("copy"), Some(revision), term, now());
        store.apply(&taken).unwrap();
        problems.wait_for(copied).await.unwrap();
        let shown = tokio::time::Instant::now();
        problems.wait_for(|shown| !copied(shown)).await.unwrap();
        assert!(shown.elapsed() >= SHOWN, "{:?}", shown.elapsed());
    };
    tokio::select! {
        () = life.live(view, lost, registry.reporter("lease")) => panic!("the name is lost"),
        () = look => {}
    }
}
