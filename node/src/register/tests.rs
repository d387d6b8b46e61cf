use std::collections::BTreeMap;

use caracal_datastore::MemoryStore;

use super::*;

fn config(pairs: &[(&str, &str)]) -> Config {
    let vars: BTreeMap<String, String> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Config::from_env(&vars, None, "node-a").unwrap()
}

fn addresses(v4: &str) -> Addresses {
    Addresses {
        v4: Some(v4.parse().unwrap()),
        v6: None,
    }
}

fn now() -> Timestamp {
    Timestamp::from_nanos(1_767_607_920_500_000_000)
}

async fn value(store: &MemoryStore, key: &str) -> serde_json::Value {
    let answer = store.read(&[KeyRange::Key(key.into())]).await.unwrap();
    serde_json::from_slice(&answer.ranges[0][0].value).unwrap()
}

const NODE_A: &str = "/calico/resources/v3/projectcalico.org/nodes/node-a";

#[tokio::test]
async fn a_new_node_is_written_as_calico_writes_it() {
    let store = MemoryStore::new();
    let config = config(&[("AS", "64513"), ("CALICO_K8S_NODE_REF", "k8s-a")]);
    register(&store, &config, addresses("10.10.0.5/24"), &[], now())
        .await
        .unwrap();
    let node = value(&store, NODE_A).await;
    assert_eq!(node["kind"], "Node");
    assert_eq!(node["apiVersion"], "projectcalico.org/v3");
    assert_eq!(
        node["metadata"]["creationTimestamp"],
        "2026-01-05T10:12:00Z"
    );
    assert_eq!(node["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(
        node["spec"],
        json!({
            "addresses": [{"address": "10.10.0.5/24", "type": "CalicoNodeIP"}],
            "bgp": {"asNumber": 64513, "ipv4Address": "10.10.0.5/24"},
            "orchRefs": [{"nodeName": "k8s-a", "orchestrator": "k8s"}],
        })
    );
}

#[tokio::test]
async fn an_existing_node_keeps_what_we_do_not_know() {
    let store = MemoryStore::new();
    let old = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-a","labels":{"rack":"r1"}},
        "spec":{"addresses":[{"address":"10.0.0.9/24","type":"CalicoNodeIP"},{"address":"1.2.3.4","type":"ExternalIP"}],
        "bgp":{"ipv4Address":"10.0.0.9/24","routeReflectorClusterID":"244.0.0.1","x":1},"wireguard":{"y":2}}}"#;
    store.put(NODE_A, old);
    register(&store, &config(&[]), addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap();
    let node = value(&store, NODE_A).await;
    assert_eq!(node["metadata"]["labels"]["rack"], "r1");
    assert_eq!(
        node["spec"]["bgp"],
        json!({"ipv4Address": "10.0.0.5/24", "routeReflectorClusterID": "244.0.0.1", "x": 1})
    );
    assert_eq!(node["spec"]["wireguard"], json!({"y": 2}));
    assert_eq!(
        node["spec"]["addresses"],
        json!([{"address": "10.0.0.5/24", "type": "CalicoNodeIP"}, {"address": "1.2.3.4", "type": "ExternalIP"}])
    );
}

#[tokio::test]
async fn a_second_start_writes_nothing() {
    let store = MemoryStore::new();
    let config = config(&[]);
    register(&store, &config, addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap();
    ensure_defaults(&store, &config, &[], None, now())
        .await
        .unwrap();
    let before = store.read(&[KeyRange::Prefix("/".into())]).await.unwrap();
    register(&store, &config, addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap();
    assert!(
        ensure_defaults(&store, &config, &[], None, now())
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        store.read(&[KeyRange::Prefix("/".into())]).await.unwrap(),
        before
    );
}

#[tokio::test]
async fn an_address_of_another_node_is_refused() {
    let store = MemoryStore::new();
    let other = r#"{"metadata":{"name":"node-b"},"spec":{"bgp":{"ipv4Address":"10.0.0.5/24"}}}"#;
    store.put("/calico/resources/v3/projectcalico.org/nodes/node-b", other);
    let error = register(&store, &config(&[]), addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("node node-b already has the address 10.0.0.5"),
        "{error}"
    );
    let lenient = config(&[("DISABLE_NODE_IP_CHECK", "true")]);
    register(&store, &lenient, addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_broken_node_is_not_overwritten() {
    let store = MemoryStore::new();
    store.put(NODE_A, "{nonsense");
    let error = register(&store, &config(&[]), addresses("10.0.0.5/24"), &[], now())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(NODE_A), "{error}");
}

#[tokio::test]
async fn default_pools_are_made_once_and_validly() {
    let store = MemoryStore::new();
    let config = config(&[
        ("CALICO_IPV4POOL_CIDR", "10.244.0.0/16"),
        ("CALICO_IPV4POOL_VXLAN", "CrossSubnet"),
        ("IP6", "autodetect"),
    ]);
    let made = ensure_defaults(&store, &config, &[], None, now())
        .await
        .unwrap();
    assert_eq!(made.len(), 6, "{made:?}");
    let prefix = "/calico/resources/v3/projectcalico.org/ippools/";
    let answer = store
        .read(&[KeyRange::Prefix(prefix.into())])
        .await
        .unwrap();
    for entry in &answer.ranges[0] {
        IpPool::from_json(&entry.value).unwrap_or_else(|e| panic!("{}: {e}", entry.key));
    }
    let pool = value(&store, &format!("{prefix}default-ipv4-ippool")).await;
    assert_eq!(pool["spec"]["vxlanMode"], "CrossSubnet");
    assert_eq!(pool["spec"]["natOutgoing"], true);
    let info = value(
        &store,
        "/calico/resources/v3/projectcalico.org/clusterinformations/default",
    )
    .await;
    assert_eq!(info["spec"]["clusterGUID"].as_str().unwrap().len(), 32);
    assert_eq!(info["spec"]["datastoreReady"], true);
}

#[test]
fn the_default_range_avoids_the_host() {
    let host = |text: &str| vec![text.parse::<Cidr>().unwrap()];
    assert_eq!(
        default_cidr(Family::Ipv4, &[]).to_string(),
        "192.168.0.0/16"
    );
    assert_eq!(
        default_cidr(Family::Ipv4, &host("192.168.7.5/24")).to_string(),
        "172.16.0.0/16"
    );
    let v6 = default_cidr(Family::Ipv6, &[]);
    assert_eq!(v6.len(), 48);
    assert!(v6.to_string().starts_with("fd"), "{v6}");
}
