#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::types::Type;
use super::*;
use crate::snapshot::Snapshot;

/// Kinds with a table.
fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL
        .into_iter()
        .filter(|kind| rules_of(*kind).is_some())
}

fn resource(kind: Kind, name: &str, spec: Value) -> Value {
    json!({"kind": kind.as_str(), "apiVersion": API_VERSION, "metadata": {"name": name}, "spec": spec})
}

fn faults(kind: Kind, name: &str, spec: Value) -> Vec<String> {
    let mut value = resource(kind, name, spec);
    defaults(kind, &mut value);
    let faults = validate(kind, &value).into_iter();
    faults.map(|ValueError(text)| text).collect()
}

#[test]
fn both_tables_know_the_same_fields() {
    for kind in Kind::ALL {
        assert_eq!(
            rules_of(kind).is_some(),
            fields::fields_of(kind).is_some(),
            "{kind}"
        );
        let is_leaf = |rule: &&Rule| !matches!(rule.holds, Type::Object | Type::Objects);
        let rules = rules_of(kind).unwrap_or_default().iter();
        let types: BTreeSet<_> = rules.filter(is_leaf).map(|rule| rule.path).collect();
        let table = fields::fields_of(kind).unwrap_or_default().iter();
        let effects: BTreeSet<_> = table.map(|(path, _)| *path).collect();
        assert_eq!(types, effects, "{kind}");
    }
}

#[test]
fn every_field_has_its_mapping_and_stands_once() {
    for kind in kinds() {
        let rules = rules_of(kind).unwrap();
        let paths: BTreeSet<_> = rules.iter().map(|rule| rule.path).collect();
        assert_eq!(paths.len(), rules.len(), "{kind}");
        for rule in rules {
            let (parent, _) = rule.path.rsplit_once('.').unwrap();
            let found = rules.iter().find(|other| other.path == parent);
            let good = found.is_some_and(|r| matches!(r.holds, Type::Object | Type::Objects));
            assert!(parent == "spec" || good, "{kind}: {}", rule.path);
            if let Some(default) = rule.default {
                assert!(serde_json::from_str::<Value>(default).is_ok(), "{default}");
            }
        }
    }
}

#[test]
fn each_fault_of_a_pool_has_its_sentence() {
    let pool = |spec: Value| faults(Kind::IpPool, "p", spec);
    assert_eq!(pool(json!({"cidr": "10.244.0.0/16"})), [""; 0]);
    assert_eq!(pool(json!({})), ["spec.cidr is required"]);
    assert_eq!(
        pool(json!({"cidr": "10.244.0.1/16", "natOutgoing": "yes"})),
        [
            "spec.cidr \"10.244.0.1/16\": expected ADDRESS/LENGTH such as 10.244.0.0/16: 10.244.0.1/16 has host bits set; the prefix is 10.244.0.0/16",
            "spec.natOutgoing \"yes\": expected true or false"
        ]
    );
    assert_eq!(
        pool(json!({"cidr": "10.244.0.0/16", "ipipMode": "always"})),
        ["spec.ipipMode \"always\": expected Never, Always or CrossSubnet; did you mean Always?"]
    );
    let both = json!({"cidr": "10.244.0.0/16", "ipipMode": "Always", "vxlanMode": "Always"});
    assert_eq!(
        pool(both),
        ["spec.ipipMode and spec.vxlanMode are both set; one of them must be Never"]
    );
    assert_eq!(
        pool(json!({"cidr": "10.244.0.0/28"})),
        ["spec.blockSize 26: a block of /26 is larger than the pool 10.244.0.0/28"]
    );
    assert_eq!(
        pool(json!({"cidr": "169.254.8.0/24"})),
        ["spec.cidr 169.254.8.0/24 overlaps the link-local range 169.254.0.0/16"]
    );
    let balancer = json!({"cidr": "10.9.0.0/24", "allowedUses": ["LoadBalancer", "Tunnel"],
        "vxlanMode": "Always", "nodeSelector": "has(x)", "disableBGPExport": true});
    assert_eq!(pool(balancer).len(), 4);
    let fault = pool(json!({"cidr": "10.244.0.0/16", "nodeSelector": "rack =="}));
    assert!(
        fault[0].starts_with("spec.nodeSelector \"rack ==\": expected a selector"),
        "{fault:?}"
    );
}

#[test]
fn faults_inside_lists_are_told_with_their_place() {
    let rule = json!({"exportV4": [{"action": "Accept"},
        {"cidr": "fd00::/64", "matchOperator": "Inside", "prefixLength": {"max": 33}}]});
    assert_eq!(
        faults(Kind::BgpFilter, "f", rule),
        [
            "spec.exportV4[1].cidr \"fd00::/64\": expected an IPv4 range",
            "spec.exportV4[1].matchOperator \"Inside\": expected Equal, NotEqual, In or NotIn",
            "spec.exportV4[1].prefixLength.max 33: expected a whole number of 0 to 32",
            "spec.exportV4[1].action is required",
        ]
    );
    let rule = json!({"importV6": [{"cidr": "fd00::/64", "action": "Reject",
        "communities": {"values": ["65000:1", "65000:2"]}, "prefixLength": {"min": 70, "max": 64},
        "operations": [{"addCommunity": {"value": "65000:1"}, "setPriority": {"value": 1}}]}]});
    let found = faults(Kind::BgpFilter, "f", rule);
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(
        found.iter().all(|t| t.starts_with("spec.importV6[0].")),
        "{found:#?}"
    );
}

#[test]
fn peers_and_configurations_are_held_against_their_rules() {
    let peer = |spec: Value| faults(Kind::BgpPeer, "x", spec);
    assert_eq!(
        peer(json!({"peerIP": "10.0.0.9:1790", "asNumber": "1.10"})),
        [""; 0]
    );
    assert_eq!(
        peer(json!({"peerSelector": "has(rr)", "nodeSelector": "all()"})),
        [""; 0]
    );
    assert!(peer(json!({"asNumber": 1}))[0].ends_with("it names no peer"));
    assert!(
        peer(json!({"peerIP": "10.0.0.9", "asNumber": 1, "reachableBy": "fd00::1"}))[0]
            .ends_with("are of different address families")
    );
    assert_eq!(
        peer(
            json!({"peerIP": "10.0.0.9", "asNumber": 4_294_967_296_u64, "ttlSecurity": 256,
            "maxRestartTime": "90 s", "password": {"secretKeyRef": {"name": "s"}}})
        ),
        [
            "spec.asNumber 4294967296: expected an AS number of 0 to 4294967295, or HIGH.LOW",
            "spec.password.secretKeyRef.key is required",
            "spec.maxRestartTime \"90 s\": expected a duration such as 90s or 1m30s",
            "spec.ttlSecurity 256: expected a whole number of 0 to 255",
        ]
    );
    let config = |name: &str, spec: Value| faults(Kind::BgpConfiguration, name, spec);
    assert_eq!(config("node.a", json!({"listenPort": 1790})), [""; 0]);
    assert!(
        config("node.a", json!({"asNumber": 1}))[0].contains("only the BGPConfiguration default")
    );
    assert!(config("other", json!({}))[0].contains("default (for the cluster) or node.NAME"));
    let unnamed = json!({"communities": [{"name": "a", "value": "1:2"}],
        "prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["a", "b", "1:2:3"]}]});
    let found = config("default", unnamed);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"b\""), "{found:?}");
}

#[test]
fn nodes_endpoints_and_the_rest_are_held_against_their_rules() {
    let good = json!({"bgp": {"ipv4Address": "10.0.0.1/24", "routeReflectorClusterID": "244.0.0.1"},
        "addresses": [{"address": "10.0.0.1", "type": "InternalIP"}],
        "orchRefs": [{"orchestrator": "k8s", "nodeName": "a"}]});
    assert_eq!(faults(Kind::Node, "a", good), [""; 0]);
    let bad = json!({"bgp": {"ipv6Address": "10.0.0.1/24"}, "vxlanTunnelMACAddr": "66:07"});
    assert_eq!(faults(Kind::Node, "a", bad).len(), 2);
    let reserved = json!({"reservedCIDRs": ["10.0.0.0/30", "10.0.0.1/30"]});
    assert!(faults(Kind::IpReservation, "r", reserved)[0].starts_with("spec.reservedCIDRs[1] "));
    let felix = json!({"vxlanPort": 0, "bpfEnabled": 1, "routeRefreshInterval": "90s",
        "logSeverityScreen": "INFO", "natPortRange": "32768:1024"});
    let found = faults(Kind::FelixConfiguration, "default", felix);
    assert_eq!(found.len(), 3, "{found:?}");
    let endpoint = json!({"orchestrator": "k8s", "node": "node-a", "pod": "web-0",
        "endpoint": "eth0", "interfaceName": "cali1", "ipNetworks": ["10.0.0.1/32"]});
    let kind = Kind::WorkloadEndpoint;
    assert_eq!(
        faults(kind, "node--a-k8s-web--0-eth0", endpoint.clone()),
        [""; 0]
    );
    assert!(faults(kind, "web", endpoint)[0].ends_with(": node--a-k8s-web--0-eth0"));
    let ipam = json!({"maxBlocksPerHost": -1});
    assert_eq!(faults(Kind::IpamConfiguration, "default", ipam).len(), 1);
    assert_eq!(faults(Kind::ClusterInformation, "x", json!({})).len(), 1);
}

#[test]
fn metadata_follows_kubernetes() {
    let with = |metadata: Value| {
        let mut value = resource(Kind::IpReservation, "r", json!({}));
        value["metadata"] = metadata;
        let faults = validate(Kind::IpReservation, &value).into_iter();
        faults.map(|ValueError(text)| text).collect::<Vec<_>>()
    };
    assert_eq!(
        with(json!({"name": "r.1-a", "labels": {"projectcalico.org/x": "A_1"}})),
        [""; 0]
    );
    for bad in ["R", "-a", "a_b", "a..b", "", &"a".repeat(254)] {
        assert_eq!(with(json!({"name": bad})).len(), 1, "{bad}");
    }
    assert_eq!(
        with(json!({"name": "r", "labels": {"on": true}})),
        ["metadata.labels.on: expected a text, found true; quote it"]
    );
    assert_eq!(
        with(json!({"name": "r", "labels": {"/x": "", "y": "a b"}})).len(),
        2
    );
    let space = with(json!({"name": "r", "namespace": "ns"}));
    assert!(
        space[0].contains("belongs to the whole cluster"),
        "{space:?}"
    );
    let version = json!({"apiVersion": "crd.projectcalico.org/v1", "metadata": {"name": "r"}});
    let found = validate(Kind::IpReservation, &version);
    assert_eq!(
        found[0].0,
        "apiVersion: expected projectcalico.org/v3, found crd.projectcalico.org/v1"
    );
}

#[test]
fn unknown_fields_are_refused_unless_they_are_stored_already() {
    let new = resource(
        Kind::IpPool,
        "p",
        json!({"cidr": "10.0.0.0/16", "nodeSelecter": "all()"}),
    );
    let found = unknown_fields(Kind::IpPool, &new, None);
    assert_eq!(
        found[0].0,
        "spec.nodeSelecter: an IPPool has no such field; did you mean nodeSelector?"
    );
    assert_eq!(unknown_fields(Kind::IpPool, &new, Some(&new)), []);
    let filter = |n: usize| {
        let mut rules = vec![json!({"action": "Accept"}); n];
        rules.push(json!({"action": "Accept", "future": 1}));
        resource(Kind::BgpFilter, "f", json!({"exportV4": rules}))
    };
    assert_eq!(
        unknown_fields(Kind::BgpFilter, &filter(2), Some(&filter(0))),
        []
    );
    let felix = resource(
        Kind::FelixConfiguration,
        "default",
        json!({"bpfEnabled": true}),
    );
    let found = without_effect(Kind::FelixConfiguration, &felix);
    assert_eq!(
        found,
        ["spec.bpfEnabled true has no effect: there is no eBPF data path"]
    );
}

#[test]
fn kinds_are_found_by_all_their_names() {
    let names = [
        "IPPool",
        "ippools",
        "ipp",
        "BGPConfig",
        "wep",
        "no",
        "affinities",
    ];
    assert!(names.iter().all(|name| ResourceType::named(name).is_ok()));
    assert_eq!(
        ResourceType::named("ipool").unwrap_err(),
        "there is no kind \"ipool\"; did you mean ippool?"
    );
    assert!(
        ResourceType::named("networkpolicy")
            .unwrap_err()
            .contains("the kinds are: bgpconfigurations,")
    );
    for kind in Kind::ALL {
        let target = ResourceType::Resource(kind);
        assert_eq!(ResourceType::named(target.as_str()), Ok(target));
        assert_eq!(ResourceType::named(target.short()), Ok(target));
    }
}

#[test]
fn what_only_calicos_programs_follow_is_written_and_said_so() {
    for (kind, name) in [
        (Kind::KubeControllersConfiguration, "kubecontrollersconfig"),
        (Kind::CalicoNodeStatus, "caliconodestatuses"),
    ] {
        let target = ResourceType::Resource(kind);
        assert_eq!(ResourceType::named(name), Ok(target));
        assert_eq!(target.writable(), WriteRule::Writable);
        let value = resource(kind, "default", json!({"anything": 1}));
        assert_eq!(validate(kind, &value), []);
        let texts = without_effect(kind, &value);
        assert!(
            texts[0].starts_with("Caracal does not read a "),
            "{texts:?}"
        );
    }
}

/// Defaults of Calico's definitions, and what its node writes.
#[test]
fn what_calico_itself_writes_is_no_mistake() {
    let felix = json!({"nftablesFlowTableOffload": "Disabled", "nodeSelector": "all()"});
    let interfaces = json!([{"name": "eth0", "addresses": ["10.0.0.1"], "more": {"mtu": 1500}}]);
    for (kind, spec) in [
        (Kind::FelixConfiguration, felix),
        (Kind::Node, json!({"interfaces": interfaces})),
    ] {
        let value = resource(kind, "default", spec);
        assert_eq!(unknown_fields(kind, &value, None), []);
        assert_eq!(without_effect(kind, &value), [""; 0]);
    }
    let spec = json!({"nftablesFlowTableOffload": "Enabled", "nodeSelector": "has(x)"});
    let texts = without_effect(
        Kind::FelixConfiguration,
        &resource(Kind::FelixConfiguration, "default", spec),
    );
    assert_eq!(texts.len(), 2, "{texts:?}");
    // Another name than those that are read: nobody else would say it.
    let kind = Kind::FelixConfiguration;
    let rack = resource(kind, "rack", json!({"nodeSelector": "all()"}));
    let notes = fields::notes(kind, &rack);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(!notes[0].is_unknown());
    let rack = resource(kind, "rack", json!({"nodeSelector": "has(x)"}));
    assert_eq!(without_effect(kind, &rack).len(), 1);
}

#[test]
fn a_pool_keeps_its_range_and_block_size_and_overlaps_no_other() {
    let pool = |spec: Value| resource(Kind::IpPool, "p", spec);
    let stored = pool(json!({"cidr": "10.244.0.0/16"}));
    let same = pool(json!({"cidr": "10.244.0.0/16", "blockSize": 26, "vxlanMode": "Always"}));
    assert_eq!(immutable(Kind::IpPool, &stored, &same), []);
    let other = pool(json!({"cidr": "10.245.0.0/16", "blockSize": 27}));
    let found = immutable(Kind::IpPool, &stored, &other);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[1]
            .0
            .starts_with("spec.blockSize 27: it is 26 and cannot be changed; ")
    );

    let mut snapshot = Snapshot::default();
    let key = crate::Key::resource(Kind::IpPool, "q").to_path();
    let bytes = pool(json!({"cidr": "10.244.0.0/16"})).to_string();
    snapshot.apply(&key, Some(bytes.as_bytes()), 1);
    let inside = pool(json!({"cidr": "10.244.8.0/24"}));
    let found = conflicts(Kind::IpPool, "p", &inside, &snapshot);
    assert!(
        found[0].0.contains("overlaps 10.244.0.0/16 of IPPool q"),
        "{found:?}"
    );
    assert_eq!(conflicts(Kind::IpPool, "q", &inside, &snapshot), []);
    let block = crate::ipam::Block::new("10.9.0.0/27".parse().unwrap(), None, 1);
    let key = crate::Key::Block(block.cidr).to_path();
    snapshot.apply(&key, Some(&block.to_json()), 2);
    let found = conflicts(
        Kind::IpPool,
        "p",
        &pool(json!({"cidr": "10.9.0.0/16"})),
        &snapshot,
    );
    assert!(
        found[0].0.contains("1 block(s) of another size"),
        "{found:?}"
    );
}

#[test]
fn what_is_not_the_writers_is_kept() {
    let stored = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "t",
        "finalizers": ["x"], "annotations": {"caracal.io/mode-check": "1/before", "mine": "1"}},
        "spec": {"bgp": {"ipv4Address": "10.0.0.1/24"}}, "status": {"a": 1}});
    let mut new = resource(Kind::Node, "a", json!({"bgp": {"asNumber": 1}}));
    new["metadata"]["uid"] = json!("another");
    carry_over(Kind::Node, &stored, &mut new);
    assert_eq!(
        new["metadata"],
        json!({"name": "a", "uid": "u", "creationTimestamp": "t",
        "annotations": {"caracal.io/mode-check": "1/before"}, "finalizers": ["x"]})
    );
    assert_eq!(new["spec"]["bgp"]["ipv4Address"], "10.0.0.1/24");
    assert_eq!(new["status"], json!({"a": 1}));
    new["spec"]["bgp"]["ipv4Address"] = json!("10.0.0.2/24");
    assert_eq!(other_addresses(&stored, &new).len(), 1);
    export(&mut new);
    assert_eq!(
        new["metadata"],
        json!({"name": "a", "annotations": {}, "finalizers": ["x"]})
    );
    assert_eq!(new.get("status"), None);
}

/// Values of a type, good ones.
fn good(holds: Type) -> BoxedStrategy<Value> {
    match holds {
        Type::Boolean => any::<bool>().prop_map(Value::from).boxed(),
        Type::Integer(low, high) => (low..=high).prop_map(Value::from).boxed(),
        Type::OneOf(all) | Type::OneOfAnyCase(all) => {
            proptest::sample::select(all).prop_map(Value::from).boxed()
        }
        Type::AsNumber => any::<u32>().prop_map(Value::from).boxed(),
        Type::Duration => (0..9000_u32)
            .prop_map(|n| Value::from(format!("{n}ms")))
            .boxed(),
        Type::Mac => Just(Value::from("66:07:02:c1:cc:60")).boxed(),
        Type::Community => (0..99_u32)
            .prop_map(|n| Value::from(format!("1:{n}")))
            .boxed(),
        Type::Selector => Just(Value::from("rack == 'r1'")).boxed(),
        Type::Ports => (1..9_u32)
            .prop_map(|n| Value::from(format!("{n}:99")))
            .boxed(),
        Type::Any => Just(json!({"a": [1]})).boxed(),
        _ => "[a-z]{1,8}".prop_map(Value::from).boxed(),
    }
}

proptest! {
    /// A good value of each field by itself passes the table, and a value of another type never
    /// does.
    #[test]
    fn types_take_what_they_say_and_nothing_else(
        (rule, value) in proptest::sample::select(
            kinds().flat_map(|kind| rules_of(kind).unwrap()).copied().collect::<Vec<_>>()
        ).prop_flat_map(|rule| (Just(rule), good(rule.holds)))
    ) {
        let name = rule.path.rsplit('.').next().unwrap();
        let alone = Rule { path: name, required: false, ..rule };
        let faults_of = |value: &Value| {
            let mut faults = Vec::new();
            let object = json!({name: value});
            check::object(&[alone], "", "spec", &object, &mut faults);
            faults
        };
        let generated = !matches!(rule.holds, Type::Object | Type::Objects | Type::List(_)
            | Type::Cidr(_) | Type::AddressWithLength(_) | Type::Address(_) | Type::Peer);
        if generated {
            prop_assert_eq!(faults_of(&value), vec![], "{:?}", rule);
        }
        if rule.holds != Type::Any {
            let wrong = if matches!(rule.holds, Type::Objects | Type::List(_) | Type::Object) {
                Value::from(7)
            } else {
                json!([[7]])
            };
            prop_assert_eq!(faults_of(&wrong).len(), 1, "{:?}", rule);
        }
    }

    /// A written resource is a fixed point: exported, completed and written again it is the same.
    #[test]
    fn defaults_and_export_are_a_fixed_point(
        block in 20_u8..=32, nat in any::<bool>(), mode in 0..3_usize, selector in any::<bool>()
    ) {
        let mode = ["Never", "Always", "CrossSubnet"][mode];
        let mut spec = json!({"cidr": "10.0.0.0/16", "blockSize": block, "natOutgoing": nat, "vxlanMode": mode});
        if selector {
            spec["nodeSelector"] = json!("has(a)");
        }
        let mut once = resource(Kind::IpPool, "p", spec);
        defaults(Kind::IpPool, &mut once);
        prop_assert_eq!(validate(Kind::IpPool, &once), vec![]);
        let mut again = once.clone();
        again["metadata"]["uid"] = json!("u");
        again["metadata"]["resourceVersion"] = json!("7");
        export(&mut again);
        defaults(Kind::IpPool, &mut again);
        prop_assert_eq!(again, once);
    }
}
