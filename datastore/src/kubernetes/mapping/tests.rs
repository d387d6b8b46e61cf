#![allow(clippy::unwrap_used)]

mod by_name;

use caracal_model::Block;
use proptest::prelude::*;

use super::*;

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.3.64-26";
const AFFINITY: &str = "/calico/ipam/v2/host/node-1/ipv4/block/10.244.3.64-26";
const HANDLE: &str = "/calico/ipam/v2/handle/k8s-pod-network.8F2C";
const GROUPS: [ApiGroup; 2] = [ApiGroup::V1, ApiGroup::V3];

fn collection(key: &str) -> Collection {
    ObjectName::from_key(&Key::parse(key).unwrap())
        .unwrap()
        .collection
}

fn object(key: &str, value: &Value, before: Option<&Value>, group: ApiGroup) -> Value {
    let text = value.to_string();
    match written(
        &Key::parse(key).unwrap(),
        Some(text.as_bytes()),
        before,
        group,
    )
    .unwrap()
    {
        Written::Object(object) => object,
        Written::StatusPatch(patch) => panic!("{patch:?}"),
    }
}

fn back(key: &str, object: &Value, group: ApiGroup) -> (String, Value) {
    let mut values = values(collection(key), object, group).unwrap();
    let (key, value) = values.remove(0);
    (key.to_path(), value)
}

fn round(key: &str, value: &Value) {
    for group in GROUPS {
        let object = object(key, value, None, group);
        let (path, found) = back(key, &object, group);
        assert_eq!((path.as_str(), &found), (key, value), "{object}");
    }
}

#[test]
fn model_1_values_of_ipam_survive_with_unknown_fields() {
    round(
        BLOCK,
        &json!({"cidr": "10.244.3.64/26", "affinity": "host:node-1",
            "affinity_claim_time": "2026-01-05T10:11:12Z", "allocations": [0, null], "unallocated": [1],
            "attributes": [{"handle_id": "h", "secondary": {"node": "node-1"}, "new": 1}],
            "sequenceNumber": 1_767_607_872_000_000_001_u64, "sequenceNumberForAllocation": {"0": 7},
            "deleted": false, "future": {"a": [null]}}),
    );
    round(
        AFFINITY,
        &json!({"state": "pending", "deleted": false, "future": true}),
    );
    round(
        HANDLE,
        &json!({"block": {"10.244.3.64/26": 2}, "deleted": false, "future": "x"}),
    );
    round(
        "/calico/ipam/v2/config",
        &json!({"strict_affinity": true, "auto_allocate_blocks": false, "maxBlocksPerHost": 3, "future": 1}),
    );
}

#[test]
fn objects_of_ipam_are_calicos() {
    let value = json!({"cidr": "10.244.3.64/26", "affinity": null, "affinity_claim_time": null,
        "allocations": [null], "attributes": null, "deleted": false});
    let block = object(BLOCK, &value, None, ApiGroup::V1);
    assert_eq!(block["kind"], "IPAMBlock");
    assert_eq!(block["metadata"], json!({"name": "10-244-3-64-26"}));
    assert_eq!(
        block["spec"],
        json!({"cidr": "10.244.3.64/26", "allocations": [null], "attributes": [], "deleted": false,
            "unallocated": [], "strictAffinity": false})
    );
    let pending = json!({"state": "pending", "deleted": false});
    let affinity = object(AFFINITY, &pending, None, ApiGroup::V1);
    assert_eq!(affinity["metadata"]["name"], "node-1-10-244-3-64-26");
    let labels = affinity["metadata"]["labels"].as_object().unwrap();
    assert_eq!(labels["projectcalico.org/ip-version"], "4");
    assert_eq!(
        affinity["spec"],
        json!({"state": "pending", "deleted": "false", "cidr": "10.244.3.64/26", "node": "node-1",
            "type": "host"})
    );
    let newer = object(AFFINITY, &pending, None, ApiGroup::V3);
    assert_eq!(newer["spec"]["deleted"], false);
    let handle = object(
        HANDLE,
        &json!({"block": {}, "deleted": false}),
        None,
        ApiGroup::V1,
    );
    assert_eq!(handle["metadata"]["name"], "k8s-pod-network.8f2c");
    assert_eq!(handle["spec"]["handleID"], "k8s-pod-network.8F2C");
    let config = object("/calico/ipam/v2/config", &json!({}), None, ApiGroup::V1);
    assert_eq!(
        (config["kind"].as_str(), &config["spec"]),
        (
            Some("IPAMConfig"),
            &json!({"strictAffinity": false, "autoAllocateBlocks": false, "maxBlocksPerHost": 0})
        )
    );
}

#[test]
fn deletion_is_marked_in_the_form_of_the_object() {
    for group in GROUPS {
        let value = json!({"state": "confirmed", "deleted": false});
        let there = object(AFFINITY, &value, None, group);
        assert!(!is_deleted(&there));
        assert!(is_deleted(&marked_deleted(there)));
    }
}

#[test]
fn an_update_keeps_what_is_the_servers() {
    let before = json!({"metadata": {"name": "node-1-10-244-3-64-26", "uid": "u", "resourceVersion": "7",
        "finalizers": ["f"], "labels": {"mine": "1"}, "managedFields": [1]}});
    let value = json!({"state": "confirmed", "deleted": false});
    let after = object(AFFINITY, &value, Some(&before), ApiGroup::V1);
    let metadata = &after["metadata"];
    assert_eq!(
        (&metadata["uid"], &metadata["resourceVersion"]),
        (&json!("u"), &json!("7"))
    );
    assert_eq!(metadata["finalizers"], json!(["f"]));
    assert_eq!(metadata["labels"]["mine"], "1");
    assert_eq!(metadata.get("managedFields"), None);
}

#[test]
fn the_metadata_of_users_stands_in_v1s_annotation() {
    let key = "/calico/resources/v3/projectcalico.org/ippools/p";
    let value = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "p", "creationTimestamp": "2026-01-05T10:11:12Z",
            "labels": {"team": "red", "projectcalico.org/x": "y"}, "annotations": {"note": "n"}},
        "spec": {"cidr": "10.0.0.0/16", "future": [1]}});
    let v1 = object(key, &value, None, ApiGroup::V1);
    assert_eq!(v1["apiVersion"], "crd.projectcalico.org/v1");
    assert_eq!(
        v1["metadata"]["labels"],
        json!({"projectcalico.org/x": "y"})
    );
    let stored = v1["metadata"]["annotations"]["projectcalico.org/metadata"]
        .as_str()
        .unwrap();
    let stored: Value = serde_json::from_str(stored).unwrap();
    assert_eq!(stored["labels"]["team"], "red");
    assert_eq!(
        back(key, &v1, ApiGroup::V1),
        (key.to_owned(), value.clone())
    );
    let mut value = value;
    // That one is the server's in v3.
    value["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("creationTimestamp");
    let v3 = object(key, &value, None, ApiGroup::V3);
    assert_eq!(v3["metadata"], value["metadata"]);
    assert_eq!(back(key, &v3, ApiGroup::V3).1, value);
    // A pool that somebody applied with kubectl.
    let mut plain = v1;
    plain["metadata"] = json!({"name": "p", "uid": "6f1c2a34-5b6d-4e7f-8a9b-0c1d2e3f4a5b",
        "resourceVersion": "9"});
    let found = back(key, &plain, ApiGroup::V1).1;
    assert_eq!(
        found["metadata"],
        json!({"name": "p", "uid": "f638542c-dab6-4efe-8ad9-30b874fc52da"})
    );
}

fn kubernetes_node() -> Value {
    json!({"metadata": {"name": "node-1", "uid": "u", "resourceVersion": "12",
            "labels": {"kubernetes.io/hostname": "node-1", "rack": "r1"},
            "annotations": {"node.alpha/ttl": "0", "projectcalico.org/IPv4Address": "10.0.0.1/24",
                "projectcalico.org/ASNumber": "64512", "projectcalico.org/labels": "{\"rack\":\"old\",\"mine\":\"1\"}",
                "projectcalico.org/RouteReflectorClusterID": ""}},
        "spec": {"podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "Hostname", "address": "node-1"},
            {"type": "InternalIP", "address": "10.0.0.1"}]}})
}

#[test]
fn a_node_is_read_from_its_annotations() {
    let value = node::value(&kubernetes_node());
    assert_eq!(
        value["spec"]["bgp"],
        json!({"ipv4Address": "10.0.0.1/24", "asNumber": 64512})
    );
    assert_eq!(
        value["metadata"]["labels"],
        json!({"kubernetes.io/hostname": "node-1", "mine": "1", "rack": "r1"})
    );
    assert_eq!(
        value["metadata"]["annotations"],
        json!({"node.alpha/ttl": "0"})
    );
    assert_eq!(
        value["spec"]["addresses"],
        json!([{"address": "10.0.0.1/24", "type": "CalicoNodeIP"},
            {"address": "10.0.0.1", "type": "InternalIP"}])
    );
    assert_eq!(value["status"]["podCIDRs"], json!(["10.244.1.0/24"]));
    let parsed = caracal_model::Node::from_json(value.to_string().as_bytes()).unwrap();
    assert_eq!(parsed.metadata.name, "node-1");
}

#[test]
fn only_what_changed_of_a_node_is_written() {
    let before = kubernetes_node();
    let mut value = node::value(&before);
    // The empty annotation goes, and the label that is Kubernetes' own now.
    let patch = node::patch(&value, &before).unwrap();
    assert_eq!(
        patch["metadata"]["annotations"],
        json!({"projectcalico.org/RouteReflectorClusterID": null,
            "projectcalico.org/labels": "{\"mine\":\"1\"}"})
    );
    assert_eq!(patch["metadata"]["resourceVersion"], "12");
    let mut clean = before;
    let annotations = clean["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove("projectcalico.org/RouteReflectorClusterID");
    annotations.insert(
        "projectcalico.org/labels".to_owned(),
        "{\"mine\":\"1\"}".into(),
    );
    assert_eq!(node::patch(&value, &clean), None);
    value["spec"]["ipv4VXLANTunnelAddr"] = "10.244.1.1".into();
    value["metadata"]["labels"]["route-reflector"] = "true".into();
    value["spec"]["bgp"]
        .as_object_mut()
        .unwrap()
        .remove("asNumber");
    let patch = node::patch(&value, &clean).unwrap();
    assert_eq!(
        patch["metadata"]["annotations"],
        json!({"projectcalico.org/ASNumber": null, "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.1",
            "projectcalico.org/labels": "{\"mine\":\"1\",\"route-reflector\":\"true\"}"})
    );
}

#[test]
fn the_pod_cidrs_of_a_node_are_its_blocks() {
    let annotations = json!({"projectcalico.org/IPv4Address": "10.0.0.1/24",
        "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.9"});
    let mut node = json!({"metadata": {"name": "node-a", "uid": "u", "resourceVersion": "7", "annotations": annotations},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:1::/64", "nonsense"]}});
    let values = key_values_with_pod_cidrs(&node);
    let keys: Vec<_> = values.iter().map(|kv| kv.key.as_str()).collect();
    let expected = [
        "/calico/resources/v3/projectcalico.org/nodes/node-a",
        "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-24",
        "/calico/ipam/v2/host/node-a/ipv4/block/10.244.1.0-24",
        "/calico/ipam/v2/assignment/ipv6/block/fd00:1::-64",
        "/calico/ipam/v2/host/node-a/ipv6/block/fd00:1::-64",
    ];
    assert_eq!(keys, expected);
    // A snapshot takes them as any others.
    let mut snapshot = caracal_model::Snapshot::default();
    for kv in &values {
        snapshot.apply(&kv.key, Some(&kv.value), kv.mod_revision);
    }
    assert!(snapshot.invalid.is_empty(), "{:?}", snapshot.invalid);
    assert_eq!(snapshot.blocks.len(), 2);
    assert!(
        snapshot
            .blocks
            .values()
            .all(|b| b.host() == Some(&"node-a".into()))
    );
    // Tunnels have the first address but one, unless an annotation names another.
    let value: Value = serde_json::from_slice(&values[0].value).unwrap();
    assert_eq!(value["spec"]["bgp"]["ipv4IPIPTunnelAddr"], "10.244.1.1");
    assert_eq!(value["spec"]["ipv4VXLANTunnelAddr"], "10.244.1.9");
    assert_eq!(value["spec"]["ipv6VXLANTunnelAddr"], "fd00:1::1");
    // What was derived is not written.
    let mut written = value.clone();
    remove_tunnels(&node, &mut written);
    assert_eq!(node::patch(&written, &node), None);
    assert!(node::patch(&value, &node).is_some());
    // Older Nodes have one range; one that has none yet has no block.
    node["spec"] = json!({"podCIDR": "10.244.2.0/24"});
    assert_eq!(key_values_with_pod_cidrs(&node).len(), 3);
    node["spec"] = json!({});
    assert_eq!(key_values_with_pod_cidrs(&node).len(), 1);
}

#[test]
fn lists_of_blocks_are_lists_of_nodes_where_pod_cidrs_are_blocks() {
    let blocks = caracal_model::blocks_prefix(caracal_model::Family::Ipv4);
    let nodes = [List::all(Collection::Nodes)];
    assert_eq!(List::under_prefix_with_pod_cidrs(&blocks), nodes);
    assert_eq!(
        List::under_prefix_with_pod_cidrs("/calico/ipam/v2/host/node-1/"),
        nodes
    );
    let pools = caracal_model::kind_prefix(Kind::IpPool);
    assert_eq!(
        List::under_prefix_with_pod_cidrs(&pools),
        List::under_prefix(&pools)
    );
}

fn pod() -> Value {
    json!({"metadata": {"name": "web-0", "namespace": "default", "uid": "u", "resourceVersion": "5",
            "labels": {"app": "web"},
            "annotations": {"cni.projectcalico.org/podIP": "10.244.3.65/32",
                "cni.projectcalico.org/podIPs": "10.244.3.65/32,fd00::41/128",
                "cni.projectcalico.org/containerID": "8f2c"}},
        "spec": {"nodeName": "node-a", "serviceAccountName": "builder"}, "status": {"phase": "Pending"}})
}

#[test]
fn limits_of_a_pod_are_a_field_of_its_endpoint() {
    let mut limited = pod();
    let annotations = &mut limited["metadata"]["annotations"];
    annotations["qos.projectcalico.org/ingressBandwidth"] = "10M".into();
    annotations["qos.example.org/ingressBandwidth"] = "10M".into();
    let (.., value) = pod::endpoint(&limited).unwrap();
    let controls = &value["spec"]["qosControls"];
    assert_eq!(*controls, json!({"ingressBandwidth": "10M"}));
    let (.., value) = pod::endpoint(&pod()).unwrap();
    assert_eq!(value["spec"].get("qosControls"), None);
}

#[test]
fn a_pod_is_an_endpoint_while_it_has_addresses() {
    let (namespace, name, value) = pod::endpoint(&pod()).unwrap();
    assert_eq!(
        (namespace.as_str(), name.as_str()),
        ("default", "node--a-k8s-web--0-eth0")
    );
    let spec = &value["spec"];
    assert_eq!(
        spec["ipNetworks"],
        json!(["10.244.3.65/32", "fd00::41/128"])
    );
    assert_eq!(spec["interfaceName"], "cali0d7763386da");
    assert_eq!(
        spec["profiles"],
        json!(["kns.default", "ksa.default.builder"])
    );
    assert_eq!(
        value["metadata"]["labels"]["projectcalico.org/orchestrator"],
        "k8s"
    );
    let without = |change: fn(&mut Value)| {
        let mut pod = pod();
        change(&mut pod);
        pod::endpoint(&pod).is_none()
    };
    assert!(without(|pod| pod["spec"]["hostNetwork"] = true.into()));
    assert!(without(|pod| drop(
        pod["spec"].as_object_mut().unwrap().remove("nodeName")
    )));
    assert!(without(|pod| pod["status"]["phase"] = "Succeeded".into()));
    assert!(without(|pod| pod["metadata"]["annotations"] = json!({})));
    let mut running = pod();
    running["status"]["podIPs"] = json!([{"ip": "10.244.3.65"}]);
    let (.., value) = pod::endpoint(&running).unwrap();
    assert_eq!(value["spec"]["ipNetworks"], json!(["10.244.3.65/32"]));
}

#[test]
fn a_pod_is_read_with_its_ports_and_its_namespace() {
    let mut object = pod();
    object["metadata"]["generateName"] = "web-".into();
    object["spec"]["containers"] = json!([
        {"ports": [{"name": "http", "containerPort": 8080}, {"containerPort": 9090}]},
        {"ports": [{"containerPort": 53, "hostPort": 5353, "hostIP": "10.0.0.1", "protocol": "UDP"},
            {"name": "odd", "containerPort": 1, "protocol": "DCCP"}]},
    ]);
    object["spec"]["initContainers"] =
        json!([{"ports": [{"name": "x", "containerPort": 7, "protocol": "SCTP"}]}]);
    let namespace = json!({"metadata": {"annotations": {"cni.projectcalico.org/ipv4pools": "[]"}}});
    let read = pod::read_pod(&object, &namespace);
    let port = |name: &str, protocol: &str, port: u16, host: u16, address: &str| json!({"name": name, "protocol": protocol, "port": port, "hostPort": host, "hostIP": address});
    let ports = [
        port("http", "TCP", 8080, 0, ""),
        port("", "UDP", 53, 5353, "10.0.0.1"),
        port("x", "SCTP", 7, 0, ""),
    ];
    assert_eq!(read.ports, ports);
    assert_eq!(read.uid, "u");
    assert_eq!(read.generate_name.as_deref(), Some("web-"));
    assert_eq!(read.service_account, "builder");
    assert_eq!(read.profiles, ["kns.default", "ksa.default.builder"]);
    let labels: Vec<_> = read
        .labels
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let expected = [
        ("app", "web"),
        ("projectcalico.org/namespace", "default"),
        ("projectcalico.org/orchestrator", "k8s"),
        ("projectcalico.org/serviceaccount", "builder"),
    ];
    assert_eq!(labels, expected);
    assert_eq!(
        read.annotations["cni.projectcalico.org/containerID"],
        "8f2c"
    );
    assert_eq!(read.namespace_annotations.len(), 1);
    // What is kept in etcd when a cluster moves there says the same.
    let (.., value) = pod::endpoint(&object).unwrap();
    assert_eq!(value["spec"]["ports"], json!(ports));
    object["spec"]["serviceAccountName"] = "a".repeat(63).into();
    let label = "projectcalico.org/serviceaccount";
    assert!(
        !pod::read_pod(&object, &namespace)
            .labels
            .contains_key(label)
    );
}

#[test]
fn an_endpoint_is_written_as_annotations_of_its_pod() {
    let key =
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0";
    let key = Key::parse(key).unwrap();
    let (.., value) = pod::endpoint(&pod()).unwrap();
    let text = value.to_string();
    let set = written(&key, Some(text.as_bytes()), Some(&pod()), ApiGroup::V1).unwrap();
    let Written::StatusPatch(Some(set)) = set else {
        panic!("{set:?}")
    };
    assert_eq!(set["metadata"]["uid"], "u");
    assert_eq!(
        set["metadata"]["annotations"],
        pod()["metadata"]["annotations"]
    );
    let gone = written(&key, None, Some(&pod()), ApiGroup::V1).unwrap();
    let Written::StatusPatch(Some(gone)) = gone else {
        panic!("{gone:?}")
    };
    assert_eq!(
        gone["metadata"]["annotations"],
        json!({"cni.projectcalico.org/podIP": "", "cni.projectcalico.org/podIPs": ""})
    );
    let missing = written(&key, Some(text.as_bytes()), None, ApiGroup::V1);
    assert_eq!(missing, Err(MappingError::NotWritten(NO_POD)));
    let mut older = value;
    older["metadata"]["uid"] = "another".into();
    let text = older.to_string();
    let replaced = written(&key, Some(text.as_bytes()), Some(&pod()), ApiGroup::V1);
    assert_eq!(replaced, Err(MappingError::NotWritten(REPLACED)));
}

#[test]
fn a_further_interface_takes_no_annotation_of_the_first() {
    for interface in ["net1", "a--eth0"] {
        let key = format!(
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-{interface}"
        );
        let key = Key::parse(&key).unwrap();
        let (.., value) = pod::endpoint(&pod()).unwrap();
        let text = value.to_string();
        for value in [Some(text.as_bytes()), None] {
            let refused = written(&key, value, Some(&pod()), ApiGroup::V1);
            assert_eq!(refused, Err(MappingError::NotWritten(FURTHER)));
        }
    }
}

proptest! {
    #[test]
    fn model_1_any_block_survives(
        sequence: u64,
        host in "[a-z]([-a-z0-9]{0,20}[a-z0-9])?",
        length in 26u8..=32,
        claimed in prop::option::of(Just("2026-01-05T10:11:12Z".to_owned())),
    ) {
        let cidr = caracal_model::Prefix::truncated("10.244.3.64".parse().unwrap(), length);
        let owner = caracal_model::BlockOwner::Host(host.as_str().into());
        let mut block = Block::new(cidr, Some(&owner), sequence);
        block.affinity_claim_time = claimed;
        let key = Key::Block(cidr).to_path();
        for group in GROUPS {
            let value: Value = serde_json::from_slice(&block.to_json()).unwrap();
            let object = object(&key, &value, None, group);
            let found = key_values(BLOCKS, &object, group).unwrap();
            prop_assert_eq!(&found[0].key, &key);
            prop_assert_eq!(Block::from_json(&found[0].value).unwrap(), block.clone());
        }
    }
}

/// What a key stands for, as the layers above read it.
fn told(collection: Collection, object: &Value) -> (String, Value) {
    let mut values = key_values(collection, object, ApiGroup::V1).unwrap();
    let kv = values.remove(0);
    assert_eq!(values, []);
    (kv.key, serde_json::from_slice(&kv.value).unwrap())
}

#[test]
fn what_policy_is_made_of_says_what_it_says_on_etcd() {
    const BELOW: &str = "/calico/resources/v3/projectcalico.org/";
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
    // As an item of a list: without its kind.
    let object = json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7",
        "managedFields": [{}]}, "spec": spec});
    let (key, value) = told(Collection::Policies(PolicyKind::Network), &object);
    assert_eq!(key, format!("{BELOW}networkpolicies/shop/knp.default.web"));
    let wanted = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    assert_eq!(value, wanted);

    // The name that people gave stands in the annotation.
    let kept = json!({"name": "default.web", "labels": {"site": "x"}}).to_string();
    let object = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "default.web", "namespace": "shop",
            "annotations": {"projectcalico.org/metadata": kept}},
        "spec": {"types": ["Ingress"]}});
    let (key, value) = told(Collection::Custom("networkpolicies"), &object);
    assert_eq!(key, format!("{BELOW}networkpolicies/shop/default.web"));
    assert_eq!(value["spec"], object["spec"]);
    assert_eq!(value["apiVersion"], API_VERSION);
    let annotations = &value["metadata"]["annotations"];
    assert_eq!(annotations["projectcalico.org/metadata"], kept);

    // Labels of a set are those that people gave, which v1 has in the annotation.
    for (plural, namespace, key) in [
        ("networksets", json!("shop"), "networksets/shop/office"),
        ("globalnetworksets", Value::Null, "globalnetworksets/office"),
    ] {
        let object = json!({"metadata": {"name": "office", "namespace": namespace,
            "annotations": {"projectcalico.org/metadata": kept}},
            "spec": {"nets": ["192.0.2.0/24"]}});
        let (path, value) = told(Collection::Custom(plural), &object);
        assert_eq!(path, format!("{BELOW}{key}"));
        assert_eq!(value["metadata"]["labels"]["site"], "x");
        let lists = List::under_prefix(&format!("{BELOW}{plural}/"));
        assert_eq!(lists, [List::all(Collection::Custom(plural))]);
    }

    // A namespace opens what no policy is about; an account only has labels.
    let object = json!({"metadata": {"name": "shop", "labels": {"team": "a"}}});
    let (key, value) = told(Collection::Namespaces, &object);
    assert_eq!(key, format!("{BELOW}profiles/kns.shop"));
    let allow = json!([{"action": "Allow"}]);
    assert_eq!(
        value["spec"],
        json!({"ingress": allow, "egress": allow,
            "labelsToApply": {"pcns.team": "a", "pcns.projectcalico.org/name": "shop"}})
    );
    let object = json!({"metadata": {"name": "builder", "namespace": "shop"}});
    let (_, value) = told(Collection::ServiceAccounts, &object);
    assert_eq!(
        value["spec"],
        json!({"labelsToApply": {"pcsa.projectcalico.org/name": "builder"}})
    );
}

#[test]
fn of_kubernetes_policies_the_names_are_read_as_calico_has_them_on_etcd() {
    let object = json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7"}});
    let values = key_values(
        Collection::Policies(PolicyKind::Network),
        &object,
        ApiGroup::V1,
    )
    .unwrap();
    let key = "/calico/resources/v3/projectcalico.org/networkpolicies/shop/knp.default.web";
    assert_eq!((values.len(), values[0].key.as_str()), (1, key));
    assert_eq!(
        keys_without_values(
            Collection::Policies(PolicyKind::Network),
            &object,
            ApiGroup::V1
        ),
        [key]
    );
    let below = "/calico/resources/v3/projectcalico.org/networkpolicies/";
    let both = [
        Collection::Policies(PolicyKind::Network),
        Collection::Custom("networkpolicies"),
    ];
    assert_eq!(List::under_prefix(below), both.map(List::all));

    let object = json!({"metadata": {"name": "web", "resourceVersion": "7"}});
    let of_clusters = PolicyKind::ALL
        .into_iter()
        .skip(1)
        .map(Collection::Policies);
    let keys: Vec<String> = of_clusters
        .clone()
        .map(|all| {
            key_values(all, &object, ApiGroup::V1).unwrap()[0]
                .key
                .clone()
        })
        .collect();
    let below = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/";
    let names = [
        "kanp.adminnetworkpolicy.web",
        "kbanp.baselineadminnetworkpolicy.web",
        "kcnp.clusternetworkpolicy.web",
    ];
    assert_eq!(keys, names.map(|name| format!("{below}{name}")));
    let all = of_clusters.chain([Collection::Custom("globalnetworkpolicies")]);
    assert_eq!(
        List::under_prefix(below),
        all.map(List::all).collect::<Vec<_>>()
    );
}
