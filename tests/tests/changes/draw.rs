//! Changes of the datastore as people and programs make them: valid ones, valid ones that are
//! unwise, and values that nobody's tool would write.

#[path = "machines.rs"]
mod machines;

use caracal_lab::{Lab, error_chain};
use caracal_model::Family;
use caracal_tests::{
    Random, address_of, calico_resource_if_any, delete_calico_resource, either, is_kubernetes,
    kubectl, try_put_calico_resource,
};
use serde_json::{Value, json};

use super::NODES;
use machines::{by_hand, node};

/// Where a value is.
#[derive(Clone, Debug)]
enum Place {
    /// Plural of the kind, and the name.
    Resource(&'static str, String),
    /// A key of etcd's.
    Key(String),
    /// A Service or EndpointSlice `drawn`, beside those that are served: the plural of the kind.
    Drawn(&'static str),
}

/// What a change writes to one place, and what was there.
#[derive(Clone, Debug)]
struct Write {
    place: Place,
    before: Option<Value>,
    /// `None` deletes.
    after: Option<Value>,
}

/// One change, and the way back.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// For the log: what, where, to which value.
    pub(super) what: String,
    writes: Vec<Write>,
}

impl Change {
    pub(super) fn make(&self, lab: &Lab) {
        for write in &self.writes {
            put(lab, &write.place, write.after.as_ref());
        }
    }

    pub(super) fn take_back(&self, lab: &Lab) {
        for write in self.writes.iter().rev() {
            put(lab, &write.place, write.before.as_ref());
        }
    }
}

/// An API server refuses what its schema does not allow: then nothing has changed.
fn put(lab: &Lab, place: &Place, value: Option<&Value>) {
    match (place, value) {
        (Place::Resource(plural, _), Some(value)) => {
            match try_put_calico_resource(lab, plural, value) {
                Ok(()) => {}
                Err(why) if is_refused(&why) => {
                    println!("  refused: {why}");
                }
                Err(why) => panic!("{why}"),
            }
        }
        (Place::Resource(plural, name), None) => {
            if calico_resource_if_any(lab, plural, name).is_some() {
                delete_calico_resource(lab, plural, name);
            }
        }
        (Place::Key(key), Some(value)) => {
            // Text that is no JSON is kept as a string.
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            etcdctl(lab, &["put", key], &text);
        }
        (Place::Key(key), None) => drop(etcdctl(lab, &["del", key], "")),
        (Place::Drawn(plural), _) if !is_kubernetes(lab) => {
            let key = format!("/calico/caracal/v1/{plural}/shop/drawn");
            put(lab, &Place::Key(key), value);
        }
        (Place::Drawn(_), Some(value)) => {
            match lab.kubectl(&["apply", "-f", "-"], value.to_string().as_bytes()) {
                Ok(_) => {}
                Err(why) if is_refused(&error_chain(&why)) => {
                    println!("  refused: {}", error_chain(&why));
                }
                Err(why) => panic!("{}", error_chain(&why)),
            }
        }
        (Place::Drawn(plural), None) => {
            let words = [
                "delete",
                plural,
                "drawn",
                "-n",
                "shop",
                "--ignore-not-found",
            ];
            kubectl(lab, &words, b"");
        }
    }
}

/// True where an API server's schema does not allow a value.
fn is_refused(why: &str) -> bool {
    ["is invalid", "decoding error", "BadRequest"]
        .iter()
        .any(|text| why.contains(text))
}

fn etcdctl(lab: &Lab, arguments: &[&str], stdin: &str) -> String {
    lab.etcdctl(arguments, stdin.as_bytes())
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

/// A value that is there or begins as `new`, with one field of its `spec` changed.
fn field(
    lab: &Lab,
    plural: &'static str,
    name: &str,
    new: Value,
    path: &str,
    to: &Value,
) -> Change {
    let before = calico_resource_if_any(lab, plural, name);
    let mut after = before.clone().unwrap_or(new);
    let mut place = &mut after["spec"];
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = to.clone();
    Change {
        what: format!("{plural} {name}: {path} = {to}"),
        writes: vec![Write {
            place: Place::Resource(plural, name.to_owned()),
            before,
            after: Some(after),
        }],
    }
}

fn whole(lab: &Lab, plural: &'static str, name: &str, after: Option<Value>) -> Change {
    let what = match &after {
        Some(value) => format!("{plural} {name} = {}", value["spec"]),
        None => format!("{plural} {name} is deleted"),
    };
    Change {
        what,
        writes: vec![Write {
            place: Place::Resource(plural, name.to_owned()),
            before: calico_resource_if_any(lab, plural, name),
            after,
        }],
    }
}

fn resource(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec})
}

/// The next change.
pub(super) fn draw(random: &mut Random, lab: &Lab) -> Change {
    let families = lab.topology().families();
    let family = *random.of(&families);
    let kinds: [fn(&mut Random, &Lab, Family) -> Change; 13] = [
        pool,
        another_pool,
        bgp,
        felix,
        peer,
        filter,
        lending,
        locked,
        service,
        slice,
        rules,
        node,
        by_hand,
    ];
    random.of(&kinds)(random, lab, family)
}

/// The pool that the pods have.
fn pool(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let name = either(family, "default-ipv4-ippool", "default-ipv6-ippool");
    let outside = either(family, "10.99.0.0/16", "fd00:99::/64");
    let (path, to) = random
        .of(&[
            ("disabled", json!(true)),
            ("nodeSelector", json!("!all()")),
            ("nodeSelector", json!("kubernetes.io/hostname == 'nobody'")),
            ("allowedUses", json!(["Tunnel"])),
            ("allowedUses", json!(["Workload"])),
            ("allowedUses", json!(["LoadBalancer"])),
            ("assignmentMode", json!("Manual")),
            ("vxlanMode", json!("Always")),
            ("vxlanMode", json!("Never")),
            ("ipipMode", json!("Always")),
            ("natOutgoing", json!(false)),
            ("disableBGPExport", json!(true)),
            ("blockSize", json!(either(family, 28, 124))),
            ("cidr", json!(outside)),
            ("cidr", json!("everything")),
            ("", json!(null)),
        ])
        .clone();
    match path {
        "" => whole(lab, "ippools", name, None),
        path => field(lab, "ippools", name, json!({}), path, &to),
    }
}

/// A pool beside it.
fn another_pool(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let cidr = *random.of(either(
        family,
        &[
            "10.99.0.0/24",
            "10.0.0.0/16",
            "10.244.0.0/20",
            "0.0.0.0/0",
            "10.0.1.0/24",
        ][..],
        &[
            "fd00:99::/112",
            "fd00:10::/32",
            "fd00:10:244::/96",
            "::/0",
            "fd00:10:0:1::/64",
        ][..],
    ));
    let mode = *random.of(&["Always", "CrossSubnet", "Never"]);
    let spec = json!({"cidr": cidr, "vxlanMode": mode, "natOutgoing": random.below(2) == 0});
    whole(
        lab,
        "ippools",
        "another",
        Some(resource("IPPool", "another", &spec)),
    )
}

fn bgp(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let wide = either(family, "10.0.0.0/8", "fd00::/16");
    let (path, to) = random
        .of(&[
            ("nodeToNodeMeshEnabled", json!(false)),
            ("asNumber", json!(64600)),
            ("asNumber", json!(0)),
            ("listenPort", json!(1179)),
            ("serviceClusterIPs", json!([{"cidr": wide}])),
            (
                "serviceExternalIPs",
                json!([{"cidr": either(family, "0.0.0.0/0", "::/0")}]),
            ),
            ("serviceLoadBalancerIPs", json!([{"cidr": "nowhere"}])),
            ("ignoredInterfaces", json!(["eth*"])),
            ("bindMode", json!("NodeIP")),
            ("communities", json!([{"name": "x", "value": "1:2:3:4"}])),
            ("nodeMeshMaxRestartTime", json!("1s")),
            ("logSeverityScreen", json!("Loud")),
        ])
        .clone();
    let name = of_all_or_one(random);
    let new = resource("BGPConfiguration", name, &json!({}));
    field(lab, "bgpconfigurations", name, new, path, &to)
}

/// The configuration of all nodes, or more rarely of one.
fn of_all_or_one(random: &mut Random) -> &'static str {
    ["default", "default", "node.node1", "node.node3"][random.below(4)]
}

fn felix(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let own = address_of(lab, "node1", family).to_string();
    let (path, to) = random
        .of(&[
            ("vxlanPort", json!(4790)),
            ("vxlanVNI", json!(1)),
            ("vxlanMTU", json!(1280)),
            ("vxlanMTUV6", json!(1280)),
            ("mtuIfacePattern", json!("^nothing$")),
            ("vxlanEnabled", json!(false)),
            ("ipipEnabled", json!(true)),
            ("routeSyncDisabled", json!(true)),
            ("deviceRouteSourceAddress", json!(own)),
            ("natOutgoingAddress", json!("192.0.2.1")),
            ("removeExternalRoutes", json!(false)),
            ("routeTableRanges", json!([{"min": 1, "max": 9}])),
            ("interfacePrefix", json!("eth")),
            ("ipForwarding", json!("Disabled")),
            ("programClusterRoutes", json!("Disabled")),
            ("wireguardEnabled", json!(true)),
            ("serviceLoopPrevention", json!("Reject")),
        ])
        .clone();
    let name = of_all_or_one(random);
    let new = resource("FelixConfiguration", name, &json!({}));
    field(lab, "felixconfigurations", name, new, path, &to)
}

fn peer(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let of = |node: &str| address_of(lab, node, family).to_string();
    let spec = random
        .of(&[
            json!({"peerIP": of("node2"), "asNumber": 65001}),
            json!({"peerIP": of("node2"), "asNumber": 64512}),
            json!({"peerIP": of("node1"), "asNumber": 64512, "node": "node1"}),
            json!({"peerIP": either(family, "10.0.1.77", "fd00:10:0:1::77"), "asNumber": 65001}),
            json!({"peerSelector": "all()", "nodeSelector": "all()"}),
            json!({"peerSelector": "all()", "asNumber": 65001}),
            json!({"peerIP": "somebody", "asNumber": 65001}),
            json!({"peerIP": either(family, "10.0.1.77", "fd00:10:0:1::77"), "asNumber": 65001,
                "password": {"secretKeyRef": {"name": "nowhere", "key": "password"}}}),
            json!({"peerSelector": "all()", "nodeSelector": "all()",
                "password": {"secretKeyRef": {"name": "nowhere", "key": "password"}}}),
            json!({"peerIP": of("node3"), "asNumber": 64512, "filters": ["nobody"]}),
        ])
        .clone();
    whole(
        lab,
        "bgppeers",
        "drawn",
        Some(resource("BGPPeer", "drawn", &spec)),
    )
}

/// A filter, and the peer that it is for: every node.
fn filter(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let rules = either(family, ["exportV4", "importV4"], ["exportV6", "importV6"]);
    let pods = either(family, "10.244.0.0/16", "fd00:10:244::/64");
    let rule = random
        .of(&[
            json!({"action": "Reject", "matchOperator": "In", "cidr": pods}),
            json!({"action": "Reject"}),
            json!({"action": "Accept", "matchOperator": "In", "cidr": pods}),
            json!({"action": "Refuse", "matchOperator": "In", "cidr": pods}),
            json!({"action": "Reject", "matchOperator": "In", "cidr": "everything"}),
        ])
        .clone();
    let spec = json!({*random.of(&rules): [rule]});
    let mut change = whole(
        lab,
        "bgpfilters",
        "drawn",
        Some(resource("BGPFilter", "drawn", &spec)),
    );
    let peer = json!({"peerSelector": "all()", "nodeSelector": "all()", "filters": ["drawn"]});
    let of_all = whole(
        lab,
        "bgppeers",
        "drawn",
        Some(resource("BGPPeer", "drawn", &peer)),
    );
    change.writes.extend(of_all.writes);
    change
}

/// What addresses are lent by.
fn lending(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let all = either(family, "10.244.0.0/16", "fd00:10:244::/64");
    let reservation = |cidr: &str| {
        let spec = json!({"reservedCIDRs": [cidr]});
        let value = resource("IPReservation", "drawn", &spec);
        whole(lab, "ipreservations", "drawn", Some(value))
    };
    match random.below(4) {
        0 => reservation(all),
        1 => reservation("nowhere"),
        2 => configuration(lab, "strictAffinity", &json!(true)),
        _ => configuration(lab, "maxBlocksPerHost", &json!(1)),
    }
}

fn configuration(lab: &Lab, path: &str, to: &Value) -> Change {
    let (kind, plural) = match is_kubernetes(lab) {
        true => ("IPAMConfig", "ipamconfigs"),
        false => ("IPAMConfiguration", "ipamconfigurations"),
    };
    let new = resource(kind, "default", &json!({}));
    field(lab, plural, "default", new, path, to)
}

/// Calico's flag of a migration.
fn locked(_random: &mut Random, lab: &Lab, _family: Family) -> Change {
    let new = resource("ClusterInformation", "default", &json!({}));
    field(
        lab,
        "clusterinformations",
        "default",
        new,
        "datastoreReady",
        &json!(false),
    )
}

/// A Service that wants what is another's, or what a rule cannot hold.
fn service(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let of_node = address_of(lab, "node2", family).to_string();
    let pods = lab.state().pods.iter();
    let pod = pods.filter_map(|pod| pod.address_of(family)).next();
    let pod = pod.expect("a pod with an address").to_string();
    let outside =
        |address: &str, port: u16| json!({"externalIPs": [address], "ports": [{"port": port}]});
    let spec = random
        .of(&[
            outside(&of_node, 179),
            outside(&of_node, 4789),
            outside(&pod, 8080),
            outside(either(family, "192.0.2.10", "2001:db8:2::10"), 80),
            outside(either(family, "127.0.0.1", "::1"), 80),
            json!({"clusterIP": either(family, "10.96.0.10", "fd00:96::10"), "ports": [{"port": 80}]}),
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 179}]}),
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["nowhere"], "ports": [{"port": 80}]}),
            json!({"ports": [{"port": 80000}]}),
        ])
        .clone();
    let what = format!("Service drawn = {spec}");
    let metadata = json!({"name": "drawn", "namespace": "shop"});
    let after = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    Change {
        what,
        writes: vec![Write {
            place: Place::Drawn("services"),
            before: None,
            after: Some(after),
        }],
    }
}

/// A slice of the Service that is served, with endpoints that cannot be ones, or of a Service that
/// is not there.
fn slice(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let of_node = address_of(lab, "node2", family).to_string();
    let others = either(family, "fd00:10:244::99", "10.244.0.99");
    let (address, port) = random
        .of(&[
            (either(family, "127.0.0.1", "::1"), json!(8080)),
            (either(family, "224.0.0.5", "ff02::5"), json!(8080)),
            (either(family, "169.254.1.1", "fe80::1"), json!(8080)),
            ("nowhere", json!(8080)),
            (others, json!(8080)),
            (of_node.as_str(), json!(179)),
            (of_node.as_str(), json!(0)),
            (of_node.as_str(), json!(80000)),
            (of_node.as_str(), json!("http")),
        ])
        .clone();
    let service = *random.of(&["web", "nowhere"]);
    let what = format!("EndpointSlice drawn of {service} = {address} port {port}");
    let after = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "drawn", "namespace": "shop",
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": family.to_string(),
        "ports": [{"name": "", "protocol": "TCP", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    });
    let write = Write {
        place: Place::Drawn("endpointslices"),
        before: None,
        after: Some(after),
    };
    Change {
        what,
        writes: vec![write],
    }
}

/// What another program would enforce.
fn rules(random: &mut Random, lab: &Lab, family: Family) -> Change {
    let own = address_of(lab, "node1", family).to_string();
    let (plural, kind, spec) = random
        .of(&[
            (
                "globalnetworkpolicies",
                "GlobalNetworkPolicy",
                json!({"selector": "all()", "types": ["Ingress"]}),
            ),
            (
                "globalnetworkpolicies",
                "GlobalNetworkPolicy",
                json!({"selector": "all(", "ingress": [{"action": "Allow"}]}),
            ),
            (
                "hostendpoints",
                "HostEndpoint",
                json!({"node": "node1", "interfaceName": "*", "expectedIPs": [own]}),
            ),
            (
                "globalnetworksets",
                "GlobalNetworkSet",
                json!({"nets": ["nowhere"]}),
            ),
        ])
        .clone();
    whole(lab, plural, "drawn", Some(resource(kind, "drawn", &spec)))
}
