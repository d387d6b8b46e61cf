#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_datastore::KubernetesPod;
use caracal_model::{Cidr, Family};
use serde_json::{Map, Value, json};

use super::outcome::Route;
use super::*;

fn env(pairs: &[(&str, &str)]) -> Result<Env, EnvError> {
    let map: BTreeMap<_, _> = pairs.iter().copied().collect();
    Env::parse(|name| map.get(name).map(|value| (*value).to_owned()))
}

fn add_env(name: &str, value: &str) -> Result<Env, EnvError> {
    let mut pairs = vec![
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "8f2c41"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web-0;IP="),
    ];
    pairs.retain(|(key, _)| *key != name);
    pairs.push((name, value));
    env(&pairs)
}

#[test]
fn a_complete_environment_is_read() {
    let env = add_env("OTHER", "1").unwrap();
    assert_eq!(env.command, Command::Add);
    assert_eq!(
        (env.container_id.as_str(), env.ifname.as_str()),
        ("8f2c41", "eth0")
    );
    assert_eq!(env.path.len(), 2);
    assert_eq!(env.arg("K8S_POD_NAME"), Some("web-0"));
    assert_eq!(env.arg("IP"), None, "empty counts as absent");
}

#[test]
fn every_wrong_variable_is_named_with_what_was_seen() {
    let cases = [
        (
            "CNI_CONTAINERID",
            "",
            "CNI_CONTAINERID is not set; ADD needs it",
        ),
        ("CNI_IFNAME", "", "CNI_IFNAME is not set"),
        ("CNI_NETNS", "", "CNI_NETNS is not set"),
        ("CNI_COMMAND", "", "container runtime"),
        ("CNI_COMMAND", "add", "\"add\" is no verb"),
        (
            "CNI_CONTAINERID",
            "../etc",
            "CNI_CONTAINERID=\"../etc\" is refused",
        ),
        ("CNI_CONTAINERID", "a/b", "refused"),
        ("CNI_CONTAINERID", "-a", "refused"),
        ("CNI_IFNAME", "sixteen-octets-x", "1 to 15 octets"),
        ("CNI_IFNAME", "..", "refused"),
        ("CNI_IFNAME", "eth0:1", "refused"),
        ("CNI_IFNAME", "eth 0", "refused"),
        ("CNI_ARGS", "A=1;B", "KEY=VALUE"),
        ("CNI_ARGS", "K8S_POD_NAME=a/b", "K8S_POD_NAME=a/b"),
    ];
    for (name, value, part) in cases {
        let message = add_env(name, value).unwrap_err().to_string();
        assert!(message.contains(part), "{name}={value}: {message}");
    }
}

#[test]
fn del_needs_no_namespace_and_status_and_gc_no_attachment() {
    let del = [
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "a"),
        ("CNI_IFNAME", "eth0"),
    ];
    assert_eq!(env(&del).unwrap().netns, None);
    for verb in ["STATUS", "GC", "VERSION"] {
        assert!(env(&[("CNI_COMMAND", verb)]).is_ok(), "{verb}");
    }
}

fn conf(change: &Value) -> Result<NetConf, ConfigError> {
    let mut conf = json!({"cniVersion": "1.0.0", "name": "pods", "type": "caracal-cni"});
    for (key, value) in change.as_object().unwrap() {
        conf[key] = value.clone();
    }
    NetConf::parse(conf.to_string().as_bytes())
}

#[test]
fn calicos_own_configuration_is_read_without_a_warning() {
    let text = json!({
        "cniVersion": "0.3.1", "name": "k8s-pod-network", "type": "calico",
        "log_level": "info", "log_file_path": "/var/log/calico/cni/cni.log",
        "datastore_type": "etcdv3", "etcd_endpoints": "https://10.0.0.1:2379",
        "etcd_key_file": "/k", "etcd_cert_file": "/c", "etcd_ca_cert_file": "/ca",
        "nodename": "node-a", "mtu": 1440, "num_queues": 2, "nodename_file_optional": false,
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "false",
                 "ipv4_pools": ["10.0.0.0/24", "second"]},
        "container_settings": {"allow_ip_forwarding": true},
        "include_default_routes": null, "policy_setup_timeout_seconds": 7, "endpoint_status_dir": "/x",
        "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
        "feature_control": {"ip_addrs_no_ipam": false}, "qps": 1, "burst": 2, "readiness_gates": [],
        "ipam_lock_file": "/var/run/calico/ipam.lock", "capabilities": {"bandwidth": true},
        "hostname": "node-a", "nodename_file": "/var/lib/calico/nodename", "require_mtu_file": false,
        "log_file_max_size": 100, "log_file_max_age": 30, "log_file_max_count": 10,
        "etcd_authority": "10.0.0.1:2379", "etcd_scheme": "https", "device_type": "veth",
        "calico_api_group": "", "dataplane_options": {"type": "grpc"},
        "windows_use_single_network": false
    });
    let conf = NetConf::parse(text.to_string().as_bytes()).unwrap();
    assert_eq!(conf.unknown_keys(), Vec::<String>::new());
    assert!(conf.keys_without_effect().contains(&"ipam_lock_file"));
    assert_eq!(conf.route_wait(), 7);
    assert_eq!(conf.mtu, 1440);
    assert!(conf.container_settings.allow_ip_forwarding);
    assert!(conf.ipam.is_ours());
}

#[test]
fn unknown_keys_are_named() {
    let conf = conf(
        &json!({"mtuu": 1, "ipam": {"type": "calico-ipam", "subnet": "x"},
                            "container_settings": {"sysctl": 1}}),
    )
    .unwrap();
    assert_eq!(
        conf.unknown_keys(),
        ["mtuu", "ipam.subnet", "container_settings.sysctl"]
    );
    // What another IPAM plugin understands is not ours to judge.
    let conf = super::tests::conf(&json!({"ipam": {"type": "host-local", "subnet": "x"}})).unwrap();
    assert_eq!(conf.unknown_keys(), Vec::<String>::new());
}

#[test]
fn every_wrong_configuration_is_named() {
    let cases = [
        (
            json!({"cniVersion": "0.2.0"}),
            "cniVersion \"0.2.0\" is not supported; set one of 0.3.1",
        ),
        (json!({"cniVersion": ""}), "cniVersion \"\""),
        (json!({"name": "a/b"}), "\"a/b\" is no network name"),
        (json!({"name": ""}), "no network name"),
        (json!({"mtu": 10}), "mtu: 10 is out of range"),
        (
            json!({"datastore_type": "consul"}),
            "datastore_type \"consul\" is not supported; use \"etcdv3\" with etcd_endpoints, or \"kubernetes\"",
        ),
        (
            json!({"device_type": "netkit"}),
            "device_type \"netkit\" is not supported",
        ),
        (
            json!({"feature_control": {"floating_ips": true}}),
            "feature_control.floating_ips \"true\" is not supported",
        ),
        (
            json!({"ipam": {"type": "caracal-ipam", "subnet": "usePodCidr"}}),
            "ipam.subnet \"usePodCidr\" is not supported",
        ),
        (
            json!({"readiness_gates": ["https://localhost:9098/"]}),
            "readiness_gates: \"https://localhost:9098/\" is refused",
        ),
        (
            json!({"etcd_discovery_srv": "x"}),
            "list the members in etcd_endpoints",
        ),
    ];
    for (change, part) in cases {
        let message = conf(&change).unwrap_err().to_string();
        assert!(message.contains(part), "{change}: {message}");
    }
    for (change, key, part) in [
        (json!({"mtu": "big"}), "mtu", "string \"big\""),
        (
            json!({"ipam": {"assign_ipv4": "maybe"}}),
            "ipam",
            "\"maybe\" is neither",
        ),
        (json!({"ipam": []}), "ipam", "sequence"),
    ] {
        let failure = Failure::new(Code::Decode, &conf(&change).unwrap_err());
        let message = format!("network configuration: {key} has a value of the wrong type");
        assert_eq!(failure.message, message);
        assert!(failure.details.contains(part), "{}", failure.details);
    }
    assert!(matches!(NetConf::parse(b"{"), Err(ConfigError::Decode(_))));
}

fn wishes_with(
    args: &str,
    change: &Value,
    pod: Option<&KubernetesPod>,
) -> Result<Wishes, ConfigError> {
    Wishes::read(
        &add_env("CNI_ARGS", args).unwrap(),
        &conf(change).unwrap(),
        pod,
    )
}

fn wishes(args: &str, change: &Value) -> Result<Wishes, ConfigError> {
    wishes_with(args, change, None)
}

#[test]
fn families_and_pools_come_from_the_configuration_and_annotations_beat_it() {
    let plain = wishes("", &json!({})).unwrap();
    assert_eq!(plain.wanted_families(), [Family::Ipv4]);
    let change = json!({
        "ipam": {"assign_ipv4": "false", "assign_ipv6": true, "ipv4_pools": ["a"], "ipv6_pools": ["b"]},
    });
    let both = wishes("", &change).unwrap();
    assert_eq!(both.wanted_families(), [Family::Ipv6]);
    assert_eq!(both.ipv6_pools, ["b"]);
    let mut annotated = change;
    annotated["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": {
        "cni.projectcalico.org/ipFamilies": "[\"IPv4\"]",
        "cni.projectcalico.org/ipv4pools": "[\"c\", \"10.0.0.0/24\"]",
        "cni.projectcalico.org/hwAddr": "02:00:00:00:00:01",
        "other": "x"
    }});
    let annotated = wishes("MAC=02:00:00:00:00:02", &annotated).unwrap();
    assert_eq!(annotated.wanted_families(), [Family::Ipv4]);
    assert_eq!(annotated.ipv4_pools, ["c", "10.0.0.0/24"]);
    assert_eq!(annotated.ipv6_pools, ["b"]);
    assert_eq!(annotated.mac, Some([2, 0, 0, 0, 0, 1]));
}

#[test]
fn a_pod_wishes_by_its_annotations_and_its_namespace_for_pools() {
    let map = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(key, text)| (format!("cni.projectcalico.org/{key}"), (*text).to_owned()))
            .collect()
    };
    let change = json!({
        "ipam": {"ipv4_pools": ["configured"], "ipv6_pools": ["configured6"]},
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {
            "cni.projectcalico.org/hwAddr": "02:00:00:00:00:01",
            "cni.projectcalico.org/ipAddrs": "[\"10.0.0.1\"]",
        }},
    });
    let namespace = [
        ("ipv4pools", "[\"ours\"]"),
        ("ipv6pools", "[\"ours6\"]"),
        ("hwAddr", "02:00:00:00:00:02"),
    ];
    let mut pod = KubernetesPod {
        annotations: map(&[
            ("ipv4pools", "[\"mine\"]"),
            ("ipv6pools", ""),
            ("ipAddrs", "[\"10.0.0.2\"]"),
        ]),
        namespace_annotations: map(&namespace),
        ..KubernetesPod::default()
    };
    let wishes = wishes_with("", &change, Some(&pod)).unwrap();
    assert_eq!(wishes.ipv4_pools, ["mine"]);
    assert_eq!(wishes.ipv6_pools, ["ours6"], "an empty annotation is none");
    assert_eq!(wishes.addresses, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(
        wishes.mac,
        Some([2, 0, 0, 0, 0, 1]),
        "a namespace has no MAC"
    );
    pod.annotations = map(&[("ipAddrs", "10.0.0.2")]);
    let refused = wishes_with("", &change, Some(&pod))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("expected a JSON list"), "{refused}");
}

#[test]
fn a_policy_of_another_type_and_its_unknown_keys_are_named() {
    let read = conf(&json!({"policy": {"type": "istio", "k8s_api_root": "https://x", "a": 1}}));
    let read = read.unwrap();
    assert_eq!(read.unknown_keys(), ["policy.a", "policy.type=istio"]);
    assert!(!read.has_policy());
    assert!(
        conf(&json!({"policy": {"type": "k8s"}}))
            .unwrap()
            .has_policy()
    );
}

#[test]
fn the_first_source_of_addresses_wins() {
    let all = json!({
        "runtimeConfig": {"ips": ["10.0.0.3/24", "fd00::3/64"],
            "io.kubernetes.cri.pod-annotations": {"cni.projectcalico.org/ipAddrs": "[\"10.0.0.1\"]"}},
        "args": {"cni": {"ips": ["10.0.0.4"]}},
    });
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    assert_eq!(
        wishes("IP=10.0.0.2", &all).unwrap().addresses,
        [ip("10.0.0.1")]
    );
    let mut less = all;
    less["runtimeConfig"]
        .as_object_mut()
        .unwrap()
        .remove("io.kubernetes.cri.pod-annotations");
    let two = wishes("IP=10.0.0.2,fd00::2", &less).unwrap();
    assert_eq!(two.addresses, [ip("10.0.0.2"), ip("fd00::2")]);
    assert_eq!(
        wishes("", &less).unwrap().addresses,
        [ip("10.0.0.3"), ip("fd00::3")]
    );
    assert_eq!(
        wishes("", &less).unwrap().wanted_families(),
        [Family::Ipv4, Family::Ipv6]
    );
    less["runtimeConfig"] = json!({});
    assert_eq!(wishes("", &less).unwrap().addresses, [ip("10.0.0.4")]);
}

#[test]
fn addresses_without_ipam_need_leave_and_are_alone() {
    let mut change = json!({
        "feature_control": {"ip_addrs_no_ipam": true},
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations":
            {"cni.projectcalico.org/ipAddrsNoIpam": "[\"10.9.0.1\", \"fd09::1\"]"}},
    });
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let granted = wishes("", &change).unwrap();
    assert_eq!(granted.without_ipam, [ip("10.9.0.1"), ip("fd09::1")]);
    assert_eq!(granted.wanted_families(), [Family::Ipv4, Family::Ipv6]);
    change["args"] = json!({"cni": {"ips": ["10.0.0.4"]}});
    let error = wishes("", &change).unwrap_err().to_string();
    assert!(error.contains("name one kind only"), "{error}");
}

#[test]
fn limits_that_this_plugin_does_not_set_are_named() {
    let annotations = json!({
        "qos.projectcalico.org/egressBandwidth": "10M",
        "kubernetes.io/ingress-bandwidth": "5M",
        "kubernetes.io/description": "bandwidth",
    });
    let change = json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations": annotations}});
    let mut unmet = wishes("", &change).unwrap().unmet;
    unmet.sort();
    assert_eq!(unmet.len(), 2, "{unmet:?}");
    let bandwidth = "ingress-bandwidth \"5M\" has an effect only where the CNI plugin bandwidth";
    assert!(unmet[0].contains(bandwidth), "{unmet:?}");
    assert!(unmet[1].contains("egressBandwidth \"10M\" has no effect"));
    assert_eq!(wishes("", &json!({})).unwrap().unmet, [""; 0]);
}

#[test]
fn every_wrong_wish_is_named() {
    let annotation = |name: &str, text: &str| {
        json!({"runtimeConfig": {"io.kubernetes.cri.pod-annotations":
            {format!("cni.projectcalico.org/{name}"): text}}})
    };
    let cases = [
        ("IP=10.0.0", json!({}), "CNI_ARGS IP: \"10.0.0\" is refused"),
        ("MAC=ff:ff:ff:ff:ff:ff", json!({}), "unicast MAC"),
        (
            "",
            json!({"runtimeConfig": {"ips": "10.0.0.1"}}),
            "runtimeConfig.ips",
        ),
        (
            "",
            json!({"args": {"cni": {"ips": [7]}}}),
            "args.cni.ips: 7 is refused",
        ),
        ("", annotation("ipAddrs", "10.0.0.1"), "ipAddrs: "),
        ("", annotation("ipFamilies", "[\"v4\"]"), "IPv4 or IPv6"),
        (
            "",
            annotation("ipAddrsNoIpam", "[\"10.9.0.1\"]"),
            "feature_control.ip_addrs_no_ipam is not true",
        ),
        (
            "",
            annotation("floatingIPs", "[\"10.9.0.1\"]"),
            "floatingIPs \"10.9.0.1\" is not supported",
        ),
        (
            "",
            json!({"ipam": {"assign_ipv4": "false"}}),
            "would have no address",
        ),
    ];
    for (args, change, part) in cases {
        let message = wishes(args, &change).unwrap_err().to_string();
        assert!(message.contains(part), "{args} {change}: {message}");
    }
}

fn outcome() -> Outcome {
    let cidr = |text: &str| -> Cidr { text.parse().unwrap() };
    Outcome {
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            mtu: Some(1440),
            sandbox: Some("/run/netns/x".to_owned()),
            ..Interface::default()
        }],
        ips: vec![
            IpConfig::new(cidr("10.0.0.1/32"), Some(0)),
            IpConfig::new(cidr("fd00::1/128"), Some(0)),
        ],
        routes: vec![Route {
            dst: cidr("0.0.0.0/0"),
            gw: Some("169.254.1.1".parse().unwrap()),
            extra: Map::new(),
        }],
        ..Outcome::default()
    }
}

#[test]
fn results_have_the_format_of_their_version() {
    let of = |version| outcome().to_json(version);
    for version in CniVersion::ALL {
        let value = of(version);
        assert_eq!(value["cniVersion"], version.as_str());
        assert_eq!(value["ips"][0]["address"], "10.0.0.1/32");
        assert_eq!(
            value["routes"][0],
            json!({"dst": "0.0.0.0/0", "gw": "169.254.1.1"})
        );
        let old = version < CniVersion::V1_0_0;
        assert_eq!(
            value["ips"][0]["version"],
            if old { json!("4") } else { Value::Null }
        );
        assert_eq!(
            value["ips"][1]["version"],
            if old { json!("6") } else { Value::Null }
        );
        let newest = version == CniVersion::V1_1_0;
        assert_eq!(
            value["interfaces"][0]["mtu"],
            if newest { json!(1440) } else { Value::Null }
        );
        // What is written is read again, from any version.
        let read = Outcome::from_json(&value).unwrap();
        assert_eq!(read.to_json(CniVersion::V0_3_1), {
            let mut without = outcome();
            without.interfaces[0].mtu = None;
            without.to_json(CniVersion::V0_3_1)
        });
    }
}

#[test]
fn a_chain_keeps_what_earlier_plugins_made() {
    let previous = json!({
        "cniVersion": "1.0.0", "note": "kept",
        "interfaces": [{"name": "lo", "socketPath": "/s"}],
        "ips": [{"address": "127.0.0.1/8", "interface": 0}], "routes": null,
        "dns": {"nameservers": ["10.0.0.53"]}
    });
    let all = outcome().after(Outcome::from_json(&previous).unwrap());
    let value = all.to_json(CniVersion::V1_1_0);
    assert_eq!(value["interfaces"][0]["socketPath"], "/s");
    assert_eq!(value["ips"][0]["interface"], 0);
    assert_eq!(
        value["ips"][1]["interface"], 1,
        "ours is the second interface now"
    );
    assert_eq!(value["dns"]["nameservers"][0], "10.0.0.53");
    assert_eq!(value["note"], "kept");
}

#[test]
fn version_repeats_the_question_and_lists_what_is_spoken() {
    let answer = CniVersion::answer(Some("0.4.0"));
    assert_eq!(answer["cniVersion"], "0.4.0");
    assert_eq!(
        answer["supportedVersions"],
        json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
    );
    assert_eq!(CniVersion::answer(None)["cniVersion"], "1.1.0");
}

#[test]
fn codes_of_the_specification() {
    let numbers = [
        (Code::IncompatibleVersion, 1),
        (Code::UnsupportedField, 2),
        (Code::UnknownContainer, 3),
        (Code::InvalidEnvironment, 4),
        (Code::Io, 5),
        (Code::Decode, 6),
        (Code::InvalidConfig, 7),
        (Code::TryAgainLater, 11),
        (Code::NotAvailable, 50),
        (Code::Foreign(17), 17),
    ];
    for (code, number) in numbers {
        assert_eq!(code.number(), number);
    }
    let ours = [
        Code::Datastore,
        Code::Addresses,
        Code::Kernel,
        Code::RouteMissing,
        Code::Differs,
        Code::Delegate,
    ];
    assert!(ours.iter().all(|code| code.number() >= 100));
}

#[test]
fn routes_without_a_next_hop_get_the_gateway_of_their_family() {
    let printed = json!({
        "ips": [{"address": "10.5.1.2/24", "gateway": "10.5.1.1"}, {"address": "fd00::2/64", "gateway": "fd00::1"}],
        "routes": [{"dst": "10.5.0.0/16"}, {"dst": "fd00::/48"}, {"dst": "10.6.0.0/16", "gw": "10.5.1.9"}],
    });
    let routes = |printed: &Value| {
        let outcome = Outcome::from_json(printed).unwrap().with_next_hops();
        let routes = outcome.routes.into_iter().map(|route| route.gw);
        routes
            .map(|gw| gw.map(|gw| gw.to_string()))
            .collect::<Vec<_>>()
    };
    let hops = ["10.5.1.1", "fd00::1", "10.5.1.9"].map(|hop| Some(hop.to_owned()));
    assert_eq!(routes(&printed), hops);
    let bare = json!({"ips": [{"address": "10.5.1.2/24"}], "routes": [{"dst": "10.5.0.0/16"}]});
    assert_eq!(routes(&bare), [None]);
}
