//! Services as data: each with endpoints on nodes that nobody runs, and one whose endpoint is a pod
//! of the lab.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use caracal_datastore::{EtcdStore, Store};
use caracal_model::{DocumentKind, Key, Txn, TxnOutcome, TxnWrite};
use serde_json::{Value, json};

/// Operations in one transaction; etcd allows 128.
const TOGETHER: usize = 100;
/// Transactions under way at once while the services are written.
const AT_ONCE: usize = 16;
/// The port of each service, and that of its endpoints.
pub(super) const PORT: u16 = 80;
pub(super) const TARGET: u16 = 8080;

/// Services in the datastore.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceSet {
    pub(super) services: u32,
    /// Endpoints of each.
    pub(super) endpoints: u32,
    /// The only endpoint of the service in the middle.
    pub(super) pod: IpAddr,
    /// `sessionAffinity`.
    pub(super) affinity: &'static str,
}

impl ServiceSet {
    /// The one that has the pod: half of the others are asked for first where a list is walked.
    pub(super) const fn real(self) -> u32 {
        self.services / 2
    }

    pub(super) fn vip(number: u32) -> Ipv4Addr {
        (u32::from(Ipv4Addr::new(10, 96, 0, 10)) + number).into()
    }

    pub(super) fn targets(self, number: u32) -> Vec<IpAddr> {
        if number == self.real() {
            return vec![self.pod];
        }
        let first = u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number * (self.endpoints + 1);
        (first..first + self.endpoints)
            .map(|address| Ipv4Addr::from(address).into())
            .collect()
    }

    /// How many addresses of endpoints all services have.
    pub(super) fn elements(self) -> u32 {
        (self.services - 1) * self.endpoints + 1
    }

    /// Writes all Services with their slices.
    pub(super) async fn write(self, store: &EtcdStore) -> Result<()> {
        let numbers: Vec<u32> = (0..self.services).collect();
        for numbers in numbers.chunks(TOGETHER / 2 * AT_ONCE) {
            let all = numbers.chunks(TOGETHER / 2).map(|numbers| {
                let puts = numbers
                    .iter()
                    .flat_map(|n| [service(*n, self.affinity), slice(*n, &self.targets(*n))]);
                commit(store, puts.collect())
            });
            futures_util::future::try_join_all(all).await?;
        }
        Ok(())
    }

    /// The last endpoint of a service goes, or comes back.
    pub(super) async fn change(self, store: &EtcdStore, number: u32, is_there: bool) -> Result<()> {
        let mut targets = self.targets(number);
        if !is_there {
            targets.pop();
        }
        commit(store, vec![slice(number, &targets)]).await
    }
}

async fn commit(store: &EtcdStore, writes: Vec<TxnWrite>) -> Result<()> {
    let compare = Vec::new();
    let outcome = store.commit(&Txn { compare, writes }).await?;
    ensure!(
        matches!(outcome, TxnOutcome::Committed(_)),
        "etcd did not take what was written"
    );
    Ok(())
}

fn document(kind: DocumentKind, name: String, value: &Value) -> TxnWrite {
    let key = Key::Document {
        kind,
        namespace: "shop".to_owned(),
        name,
    };
    TxnWrite::Put(key.to_path(), value.to_string().into_bytes())
}

fn service(number: u32, affinity: &str) -> TxnWrite {
    let (name, vip) = (format!("web-{number}"), ServiceSet::vip(number));
    let value = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
        "spec": {"type": "ClusterIP", "clusterIP": vip, "clusterIPs": [vip],
            "ipFamilies": ["IPv4"], "internalTrafficPolicy": "Cluster", "sessionAffinity": affinity,
            "selector": {"app": name},
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP", "targetPort": TARGET}]},
    });
    document(DocumentKind::Service, name, &value)
}

fn slice(number: u32, targets: &[IpAddr]) -> TxnWrite {
    let name = format!("web-{number}");
    let endpoints: Vec<Value> = targets
        .iter()
        .enumerate()
        .map(|(n, address)| {
            json!({"addresses": [address], "nodeName": format!("worker-{n}"),
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": format!("{name}-{n}"), "namespace": "shop"}})
        })
        .collect();
    let value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-abcde"), "namespace": "shop",
            "labels": {"kubernetes.io/service-name": name, "app": name}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": TARGET, "protocol": "TCP"}],
    });
    document(DocumentKind::EndpointSlice, format!("{name}-abcde"), &value)
}
