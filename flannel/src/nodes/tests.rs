#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::acquire::DeviceMac;
use crate::config::FlannelConfig;

const PREFIX: &str = "flannel.alpha.coreos.com/";

const V4: Families = Families {
    v4: true,
    v6: false,
};

fn names() -> NodeAnnotations {
    NodeAnnotations::new("flannel.alpha.coreos.com").unwrap()
}

fn request(config: &str) -> AcquireRequest {
    AcquireRequest {
        keys: FlannelKeys::new("Node"),
        config: FlannelConfig::parse(config.as_bytes()).unwrap(),
        public_ip: Some("192.168.64.3".parse().unwrap()),
        public_ipv6: None,
        macs: [DeviceMac::Fresh([2, 0, 0, 0, 0, 1]); 2],
        devices_stand: true,
        previous: None,
        written: None,
        ttl: Duration::from_secs(60),
        seed: 0,
    }
}

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const BOTH: &str = r#"{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;

fn node(cidrs: &[&str], annotations: &[(&str, &str)]) -> Value {
    let annotations = annotations.iter().map(|(name, text)| {
        let name = format!("{PREFIX}{name}");
        (name, json!(text))
    });
    let annotations: serde_json::Map<String, Value> = annotations.collect();
    json!({"metadata": {"name": "a", "annotations": annotations}, "status": {"podCIDRs": cidrs}})
}

fn changed(claim: &NodeClaim) -> Vec<(&str, &str)> {
    let all = claim.changed.iter();
    all.map(|(name, text)| (name.strip_prefix(PREFIX).unwrap(), &**text))
        .collect()
}

#[test]
fn the_annotations_are_flannelds() {
    let bare = node(&["10.244.1.0/24"], &[]);
    let claim = names().claim(&bare, 7, &request(VXLAN)).unwrap();
    assert_eq!(
        changed(&claim),
        [
            ("backend-data", r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#),
            ("backend-type", "vxlan"),
            ("kube-subnet-manager", "true"),
            ("public-ip", "192.168.64.3"),
        ]
    );
    let claim = names().claim(&bare, 7, &request(HOST_GW)).unwrap();
    assert_eq!(
        changed(&claim)[..2],
        [("backend-data", "null"), ("backend-type", "host-gw")]
    );
    let mut request = request(BOTH);
    request.public_ipv6 = Some("fd00::3".parse().unwrap());
    let both = node(&["10.244.1.0/24", "fd00:5:0:1::/64"], &[]);
    let claim = names().claim(&both, 7, &request).unwrap();
    assert_eq!(
        claim.own.subnets.to_string(),
        "10.244.1.0/24 and fd00:5:0:1::/64"
    );
    assert!(changed(&claim).contains(&("public-ipv6", "fd00::3")));
    assert!(changed(&claim).contains(&(
        "backend-v6-data",
        r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#
    )));
}

#[test]
fn a_network_without_ipv4_has_annotations_of_ipv6_alone() {
    let config = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#;
    let mut request = request(config);
    request.public_ipv6 = Some("fd00::3".parse().unwrap());
    // A range of IPv4 is none of this network's.
    let both = node(&["10.244.1.0/24", "fd00:5:0:1::/64"], &[]);
    let claim = names().claim(&both, 7, &request).unwrap();
    assert_eq!(claim.own.subnets.to_string(), "fd00:5:0:1::/64");
    let told: Vec<&str> = changed(&claim).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        told,
        [
            "backend-type",
            "backend-v6-data",
            "kube-subnet-manager",
            "public-ipv6"
        ]
    );
    // Other nodes read it so.
    let annotations: Vec<(&str, &str)> = changed(&claim);
    let object = node(&["fd00:5:0:1::/64"], &annotations);
    let (subnets, value) = names().lease(&object, request.config.families()).unwrap();
    assert_eq!(subnets, claim.own.subnets);
    assert_eq!(SubnetLease::parse(&value).unwrap(), claim.own.lease);
    assert_eq!(names().lease(&object, V4), None);
}

#[test]
fn what_the_node_said_before_is_kept() {
    let said = [
        ("backend-data", r#"{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}"#),
        ("backend-type", "vxlan"),
        ("kube-subnet-manager", "true"),
        ("public-ip", "192.168.64.3"),
    ];
    let claim = |more: &[(&str, &str)]| {
        let node = node(&["10.244.1.0/24"], &[&said, more].concat());
        names().claim(&node, 7, &request(VXLAN))
    };
    // A machine that was started anew: the MAC address that everybody knows.
    let again = claim(&[]).unwrap();
    assert_eq!((changed(&again), again.own.revision), (Vec::new(), 7));
    assert_eq!(again.own.lease.vtep(Family::Ipv4).unwrap().mac[0], 0xc6);
    let moved = claim(&[("public-ip-overwrite", "203.0.113.9")]).unwrap();
    assert_eq!(changed(&moved), [("public-ip", "203.0.113.9")]);
    assert_eq!(moved.own.lease.node().to_string(), "203.0.113.9");
    let wrong = claim(&[("public-ip-overwrite", "here")]).unwrap_err();
    assert!(wrong.to_string().contains("is no address"), "{wrong}");
    let node = node(
        &[],
        &[("node-public-ip", "10.0.0.9"), ("node-public-ipv6", "x")],
    );
    assert_eq!(
        names().public_ips(&node),
        (Some("10.0.0.9".parse().unwrap()), None)
    );
}

#[test]
fn a_node_without_a_subnet_is_named() {
    for (cidrs, config, says) in [
        (&[][..], VXLAN, "node \"a\" pod cidr not assigned"),
        (&["fd00:5::/64"], VXLAN, "not assigned"),
        (&["10.244.1.0/24"], BOTH, "not assigned"),
        (&["10.9.1.0/24"], VXLAN, "which is not inside 10.244.0.0/16"),
        (&["10.244.1.0/24", "fd00:5::/64"], BOTH, "no IPv6 address"),
    ] {
        let refused = names().claim(&node(cidrs, &[]), 7, &request(config));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn prefixes_are_flannelds() {
    for (prefix, whole) in [
        ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/"),
        ("a.b/", "a.b/"),
        ("a.b/one", "a.b/one-"),
        ("a.b/one-", "a.b/one-"),
    ] {
        assert_eq!(NodeAnnotations::new(prefix).unwrap().prefix, whole);
    }
    for prefix in ["", "local", "a.b/c/d", "A.b", "a..b", "a.b/C"] {
        assert!(NodeAnnotations::new(prefix).is_err(), "{prefix}");
    }
}

/// A managed Node with a subnet and a public address.
fn managed(subnet: u8, public: &str) -> Vec<u8> {
    let cidr = format!("10.244.{subnet}.0/24");
    let annotations = [
        ("kube-subnet-manager", "true"),
        ("backend-type", "host-gw"),
        ("backend-data", "null"),
        ("public-ip", public),
    ];
    node(&[&cidr], &annotations).to_string().into_bytes()
}

#[test]
fn changes_of_nodes_are_changes_of_leases() {
    let mut leases = NodeLeases::new(names(), FlannelKeys::new("Node"), V4);
    let value = |ip: &str| {
        let text = format!(r#"{{"PublicIP":"{ip}","PublicIPv6":null,"BackendType":"host-gw"}}"#);
        SubnetLease::parse(text.as_bytes()).unwrap()
    };
    let mut told = |node: &str, value: Option<Vec<u8>>| {
        let changes = leases.change(node, value.as_deref()).into_iter();
        let read = |value: Vec<u8>| SubnetLease::parse(&value).ok();
        changes
            .map(|(key, value)| (key, value.map(read)))
            .collect::<Vec<_>>()
    };
    let key = |n: u8| format!("Node/subnets/10.244.{n}.0-24");
    let known = |ip: &str| Some(Some(value(ip)));
    assert_eq!(
        told("a", Some(managed(1, "10.0.0.1"))),
        [(key(1), known("10.0.0.1"))]
    );
    // A heartbeat.
    assert_eq!(told("a", Some(managed(1, "10.0.0.1"))), []);
    assert_eq!(
        told("a", Some(managed(1, "10.0.0.7"))),
        [(key(1), known("10.0.0.7"))]
    );
    // Made anew with another range.
    let moved = told("a", Some(managed(2, "10.0.0.7")));
    assert_eq!(moved, [(key(1), None), (key(2), known("10.0.0.7"))]);
    // Somebody else's flannel, or none.
    let bare = node(&["10.244.9.0/24"], &[("public-ip", "10.0.0.9")]);
    assert_eq!(told("b", Some(bare.to_string().into_bytes())), []);
    // One range twice: the other's stays when one goes.
    assert_eq!(told("c", Some(managed(2, "10.0.0.3"))).len(), 1);
    assert_eq!(told("c", None), [(key(2), known("10.0.0.7"))]);
    assert_eq!(told("a", None), [(key(2), None)]);
    let broken = node(
        &["10.244.1.0/24"],
        &[
            ("kube-subnet-manager", "true"),
            ("public-ip", "10.0.0.1"),
            ("backend-data", "{"),
        ],
    );
    assert_eq!(
        told("d", Some(broken.to_string().into_bytes())),
        [(key(1), Some(None))]
    );
}

proptest! {
    /// After any changes, what was told is what the Nodes say.
    #[test]
    fn what_was_told_is_what_is_there(
        changes in prop::collection::vec((0u8..4, prop::option::of((1u8..5, 1u8..4))), 0..30),
    ) {
        let mut leases = NodeLeases::new(names(), FlannelKeys::new("Node"), V4);
        let (mut nodes, mut told) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in changes {
            let value = value.map(|(subnet, ip)| managed(subnet, &format!("10.0.0.{ip}")));
            for (key, value) in leases.change(&name.to_string(), value.as_deref()) {
                match value {
                    Some(value) => drop(told.insert(key, value)),
                    None => drop(told.remove(&key)),
                }
            }
            match value {
                Some(value) => drop(nodes.insert(name, value)),
                None => drop(nodes.remove(&name)),
            }
        }
        let said: Vec<NodeLease> = nodes
            .values()
            .filter_map(|value| names().lease(&serde_json::from_slice(value).unwrap(), V4))
            .collect();
        let keys = FlannelKeys::new("Node");
        for (subnets, _) in &said {
            prop_assert!(told.contains_key(&keys.lease(subnets)));
        }
        for (key, value) in &told {
            prop_assert!(said.iter().any(|(s, v)| keys.lease(s) == *key && v == value));
        }
    }
}
