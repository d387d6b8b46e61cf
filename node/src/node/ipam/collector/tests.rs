#![allow(clippy::unwrap_used)]

use caracal_datastore::MemoryStore;
use caracal_ipam::{AssignIpRequest, ReleaseTarget};
use caracal_model::{AllowedUse, HandleId, Txn, TxnWrite};

use super::*;

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
