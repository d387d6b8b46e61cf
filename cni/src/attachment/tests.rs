#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;

use super::*;

fn attachment(container_id: &str, ifname: &str, pod: Option<&str>) -> Attachment {
    Attachment {
        network: "k8s-pod-network".to_owned(),
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        workload: pod.map_or(Workload::Container, |name| Workload::Pod {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }),
        node: "node-a".into(),
        uid: EndpointUid::Fresh,
        wired: true,
    }
}

#[test]
fn addresses_of_our_own_interfaces_say_what_proves_their_death() {
    let mut web = attachment("8f2c41", "eth0", Some("web-0"));
    let attributes = web.attributes();
    assert_eq!(attributes["caracal-interface"], "cali0d7763386da");
    assert_eq!(
        attributes["caracal-endpoint"],
        "default/node--a-k8s-web--0-eth0"
    );
    web.wired = false;
    let named: Vec<_> = web.attributes().into_keys().collect();
    assert_eq!(
        named,
        ["caracal-delegated", "namespace", "pod"],
        "a bridge plugin's interface is not ours"
    );
}

#[test]
fn handles_are_calicos_for_the_first_interface() {
    assert_eq!(
        attachment("8f2c41", "eth0", None).handle().as_str(),
        "k8s-pod-network.8f2c41"
    );
    assert_eq!(
        attachment("8f2c41", "net1", None).handle().as_str(),
        "k8s-pod-network.8f2c41:net1"
    );
}

#[test]
fn cni_6_a_handle_gives_its_container_only_when_that_is_certain() {
    let of = |handle: &str| container_of(&handle.into(), "net").map(str::to_owned);
    assert_eq!(of("net.8f2c41").as_deref(), Some("8f2c41"));
    assert_eq!(of("net.8f2c41:net1").as_deref(), Some("8f2c41"));
    for other in [
        "net.b.8f2c41",
        "network.8f2c41",
        "net.",
        "net",
        "ipip-tunnel-addr-net.a",
    ] {
        assert_eq!(of(other), None, "{other}");
    }
}

#[test]
fn host_interfaces_are_calicos_where_those_are_unique() {
    let name = |id: &str, ifname: &str, pod: Option<&str>| {
        attachment(id, ifname, pod).host_interface().to_string()
    };
    let drawn = "8f2c4112345678901234567890abcdef8f2c4112345678901234567890abcdef";
    assert_eq!(name(drawn, "eth0", Some("web-0")), "cali0d7763386da");
    assert_eq!(name(drawn, "eth0", None), "cali8f2c4112345");
    assert_eq!(name("web", "eth0", None), "caliweb");
    // Ids that were chosen share their heads; several interfaces share everything.
    let names = [
        name("test-container-1", "eth0", None),
        name("test-container-2", "eth0", None),
        name("test-container-1", "net1", None),
        name("0000000000001", "eth0", None),
        name("0000000000002", "eth0", None),
        name(drawn, "net1", None),
        name(drawn, "net1", Some("web-0")),
        name(drawn, "net2", Some("web-0")),
    ];
    for (index, one) in names.iter().enumerate() {
        assert!(one.len() == 15 && one.starts_with("cali"), "{one}");
        assert!(!names[..index].contains(one), "{one} twice");
    }
}

#[test]
fn macs_are_unicast_local_and_stable() {
    let one = attachment("8f2c41", "eth0", None);
    assert_eq!(one.mac(), one.mac());
    assert_eq!(one.mac()[0], 0x02);
    assert_ne!(one.mac(), attachment("8f2c42", "eth0", None).mac());
    assert_ne!(one.mac(), attachment("8f2c41", "net1", None).mac());
}

#[test]
fn the_alias_gives_the_handle_back() {
    let one = attachment("8f2c41", "eth0", None);
    assert_eq!(handle_of_alias(&one.alias()), Some(one.handle()));
    assert_eq!(handle_of_alias("uplink to rack 4"), None);
    let long = attachment(&"a".repeat(300), "eth0", None);
    assert!(long.alias().len() < 256);
    assert_ne!(
        long.alias(),
        attachment(&"a".repeat(301), "eth0", None).alias()
    );
}

#[test]
fn model_1_an_endpoint_is_as_calico_writes_it_and_keeps_what_it_had() {
    let one = attachment("8f2c41", "eth0", Some("web-0"));
    let address = Prefix::host(IpAddr::V4(Ipv4Addr::new(10, 244, 3, 66)));
    let mac = [0xee, 0x12, 0x34, 0x56, 0x78, 0x9a];
    let birth = Birth::Create {
        uid: "5a0c".to_owned(),
        now: Timestamp::from_nanos(1_767_607_872_000_000_000),
    };
    let created = one.endpoint(&[address], &mac, birth, None);
    let value: Value = serde_json::from_slice(&created.to_json()).unwrap();
    assert_eq!(
        value,
        json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
         "metadata": {"name": "node--a-k8s-web--0-eth0", "namespace": "default", "uid": "5a0c",
          "creationTimestamp": "2026-01-05T10:11:12Z",
          "labels": {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "k8s"}},
         "spec": {"orchestrator": "k8s", "node": "node-a", "containerID": "8f2c41", "pod": "web-0",
          "endpoint": "eth0", "ipNetworks": ["10.244.3.66/32"], "profiles": ["kns.default"],
          "interfaceName": "cali0d7763386da", "mac": "ee:12:34:56:78:9a"}})
    );
    assert_eq!(
        one.endpoint_key().to_path(),
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0"
    );

    let mut pods = one.clone();
    pods.uid = EndpointUid::OfPod(Some("pod-1".to_owned()));
    let again = pods.endpoint(
        &[address],
        &mac,
        Birth::Update(Box::new(created.clone())),
        None,
    );
    assert_eq!(again.metadata.uid.as_deref(), Some("pod-1"));
    pods.uid = EndpointUid::OfPod(None);
    let untold = pods.endpoint(
        &[address],
        &mac,
        Birth::Update(Box::new(created.clone())),
        None,
    );
    assert_eq!(untold.metadata.uid, None);

    let mut older = created;
    older.spec.container_id = "older".to_owned();
    older.spec.extra.insert("ports".into(), json!([1]));
    older.metadata.labels.insert("app".into(), "web".into());
    let updated = one.endpoint(
        &[address],
        &mac,
        Birth::Update(Box::new(older.clone())),
        None,
    );
    assert_eq!(updated.spec.container_id, "8f2c41");
    assert_eq!(updated.spec.extra["ports"], json!([1]));
    assert_eq!(updated.metadata.labels["app"], "web");
    assert_eq!(updated.metadata.uid.as_deref(), Some("5a0c"));

    // The pod says more than whoever wrote the endpoint before.
    let mut pod = KubernetesPod {
        generate_name: Some("web-".to_owned()),
        labels: [("role".to_owned(), "db".to_owned())].into(),
        service_account: "builder".to_owned(),
        profiles: vec!["kns.default".to_owned(), "ksa.default.builder".to_owned()],
        ports: vec![json!({"name": "http"})],
        ..KubernetesPod::default()
    };
    let described = one.endpoint(&[address], &mac, Birth::Update(Box::new(older)), Some(&pod));
    assert_eq!(described.metadata.labels, pod.labels);
    let value: Value = serde_json::from_slice(&described.to_json()).unwrap();
    assert_eq!(value["metadata"]["generateName"], "web-");
    let spec = &value["spec"];
    assert_eq!(
        spec["profiles"],
        json!(["kns.default", "ksa.default.builder"])
    );
    assert_eq!(spec["serviceAccountName"], "builder");
    assert_eq!(spec["ports"], json!([{"name": "http"}]));
    (pod.generate_name, pod.ports) = (None, Vec::new());
    let less = one.endpoint(
        &[address],
        &mac,
        Birth::Update(Box::new(described)),
        Some(&pod),
    );
    assert!(!less.metadata.extra.contains_key("generateName"));
    assert!(!less.spec.extra.contains_key("ports"));
}
