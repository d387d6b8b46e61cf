#![allow(clippy::unwrap_used)]

use caracal_datastore::{MemoryStore, TestFolder};
use caracal_ipam::Client;
use caracal_model::Family;

use super::*;
use crate::addresses;
use crate::attachment::{EndpointUid, Workload};
use crate::settings::Dirs;
use crate::spec::Wishes;

const MAC: Mac = [2, 0, 0, 0, 0, 1];

fn attachment() -> Attachment {
    Attachment {
        network: "net".to_owned(),
        container_id: "8f2c41".to_owned(),
        ifname: "eth0".to_owned(),
        workload: Workload::Container,
        node: "node-a".into(),
        uid: EndpointUid::Fresh,
        wired: true,
    }
}

async fn cluster() -> MemoryStore {
    let store = MemoryStore::new();
    let resource = |kind, name| Key::resource(kind, name).to_path();
    let txn = Txn::new()
        .create(
            resource(Kind::IpPool, "pods"),
            br#"{"metadata":{"name":"pods"},"spec":{"cidr":"10.90.0.0/24","blockSize":26}}"#
                .to_vec(),
        )
        .create(
            Key::node(&"node-a".into()).to_path(),
            br#"{"metadata":{"name":"node-a"},"spec":{}}"#.to_vec(),
        );
    store.commit(&txn).await.unwrap();
    store
}

/// An ADD that is called again, as far as it has held its addresses.
async fn called_again(store: &MemoryStore, test: &str) -> (Known, addresses::Holding) {
    let folder = TestFolder::new(test);
    let attachment = attachment();
    let dirs = Dirs {
        lib: folder.to_path_buf(),
        run: folder.to_path_buf(),
    };
    let wishes = Wishes {
        families: vec![Family::Ipv4],
        ..Wishes::default()
    };
    let hold = async |known: &Known| {
        addresses::hold(store, &dirs, &attachment, &wishes, known.handle.as_ref())
            .await
            .unwrap()
    };
    let known = read(store, &attachment).await.unwrap();
    let first = hold(&known).await;
    assert_eq!(
        (first.held.len(), &first.precondition),
        (1, &None),
        "{first:?}"
    );
    // The first call was killed here.
    let known = read(store, &attachment).await.unwrap();
    let again = hold(&known).await;
    assert_eq!(first.held, again.held);
    assert!(again.precondition.is_some(), "{again:?}");
    (known, again)
}

async fn finish(
    store: &MemoryStore,
    known: Known,
    holding: &addresses::Holding,
) -> Result<i64, EndpointError> {
    let mut pods = holding.held.iter().map(|h| Prefix::host(h.address));
    let addresses: Vec<Prefix> = pods.by_ref().collect();
    let fresh = Fresh {
        addresses: &addresses,
        mac: &MAC,
        precondition: holding.precondition.as_ref(),
        pod: None,
    };
    write(store, &attachment(), &fresh, known).await
}

#[tokio::test]
async fn an_endpoint_is_not_written_for_addresses_that_were_collected() {
    let store = cluster().await;
    let (known, holding) = called_again(&store, "collected").await;
    let released = Client::new(store.clone())
        .release_by_handle(&attachment().handle(), &[])
        .await
        .unwrap();
    assert_eq!(released.addresses.len(), 1);
    let error = finish(&store, known, &holding).await.unwrap_err();
    assert!(matches!(error, EndpointError::Released { .. }), "{error}");
    assert!(error.is_transient());
    let known = read(&store, &attachment()).await.unwrap();
    assert!(known.endpoint().is_none() && known.handle.is_none());
}

#[tokio::test]
async fn an_endpoint_is_written_for_addresses_that_are_held_still() {
    let store = cluster().await;
    let (known, holding) = called_again(&store, "held").await;
    finish(&store, known, &holding).await.unwrap();
    let known = read(&store, &attachment()).await.unwrap();
    assert_eq!(known.endpoint().unwrap().spec.ip_networks.len(), 1);
}

#[test]
fn a_datastore_out_of_reach_is_looked_for_by_either_setting() {
    let error = EndpointError::Store(StoreError::Refused("no".to_owned())).to_string();
    for setting in ["etcd_endpoints", "kubernetes.kubeconfig"] {
        assert!(error.contains(setting), "{error}");
    }
}
