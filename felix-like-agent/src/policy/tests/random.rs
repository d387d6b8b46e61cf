//! Random policies, endpoints and packets. The world is small, so that much of it meets.

use std::net::IpAddr;

use caracal_model::Packet;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

/// What happens to a path: its value, or `None` when it goes.
pub(crate) type Step = (String, Option<Value>);

const TYPES: &[&[&str]] = &[&["Ingress"], &["Egress"], &["Ingress", "Egress"]];
/// Of host endpoints.
const PROFILES: &[&[&str]] = &[&[], &["projectcalico-default-allow"], &["missing"]];
const NAMESPACES: [&str; 2] = ["a", "b"];

pub(crate) fn profile(namespace: &str) -> Step {
    let value = json!({"spec": {
        "ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}],
        "labelsToApply": {
            "pcns.team": format!("t{namespace}"), "pcns.projectcalico.org/name": namespace,
        },
    }});
    (format!("profiles/kns.{namespace}"), Some(value))
}

pub(crate) fn policy(path: &str, spec: Value) -> Step {
    (path.to_owned(), Some(json!({"spec": spec})))
}

pub(crate) fn pod(n: u8, namespace: &str, node: &str, own: &[(&str, &str)]) -> Step {
    let mut labels = json!({
        "projectcalico.org/namespace": namespace, "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "default",
    });
    for (key, value) in own {
        labels[*key] = (*value).into();
    }
    let value = json!({"metadata": {"labels": labels}, "spec": {
        "node": node, "interfaceName": format!("cali{n}"),
        "ipNetworks": [format!("10.0.0.{n}/32"), format!("fd00::{n}/128")],
        "profiles": [format!("kns.{namespace}")],
        "ports": [
            {"name": "web", "protocol": "TCP", "port": 80 + u16::from(n % 2)},
            {"name": "dns", "protocol": "UDP", "port": 53},
        ],
    }});
    (format!("workloadendpoints/{namespace}/p{n}"), Some(value))
}

/// Of each number there is one on this node at most, and perhaps another one that has its address.
fn any_pod() -> impl Strategy<Value = Step> {
    let label = select(&["x", "y", "z"][..]);
    let node = select(&["me", "me", "other"][..]);
    let [twin, goes, has_no_profile] = [0.1, 0.2, 0.1].map(prop::bool::weighted);
    (1..7_u8, node, label, twin, goes, has_no_profile).prop_map(
        |(n, node, app, is_twin, goes, has_no_profile)| {
            let node = if is_twin { "other" } else { node };
            let mut step = pod(n, namespace_of(n), node, &[("app", app)]);
            if is_twin {
                step.0 = step.0.replace("/p", "/q");
            }
            if let Some(value) = &mut step.1
                && has_no_profile
            {
                value["spec"]["profiles"] = json!(["missing"]);
            }
            if goes {
                step.1 = None;
            }
            step
        },
    )
}

/// The namespace of a pod's number.
fn namespace_of(n: u8) -> &'static str {
    if n > 3 { "b" } else { "a" }
}

fn selector() -> impl Strategy<Value = Value> {
    select(
        &[
            "app == 'x'",
            "app in {'x', 'y'}",
            "!has(app)",
            "has(app) && app != 'z'",
            "all()",
            "site == 'office'",
            "pcns.team == 'ta'",
        ][..],
    )
    .prop_map(Value::from)
}

fn net() -> impl Strategy<Value = Value> {
    select(
        &[
            "10.0.0.0/30",
            "10.0.0.4/32",
            "192.0.2.0/24",
            "0.0.0.0/0",
            "10.0.0.0/8",
        ][..],
    )
    .prop_map(Value::from)
}

fn net6() -> impl Strategy<Value = Value> {
    select(&["fd00::/126", "::/0", "fd00::5/128", "2001:db8::/32"][..]).prop_map(Value::from)
}

fn nets() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::collection::vec(net(), 1..3),
        prop::collection::vec(net6(), 1..3),
        // More than fit into rules.
        Just(
            (1..12)
                .map(|n| Value::from(format!("10.0.0.{n}")))
                .collect::<Vec<_>>()
        ),
    ]
    .prop_map(Value::from)
}

fn ports() -> impl Strategy<Value = Value> {
    let port = prop_oneof![
        Just(json!(80)),
        Just(json!("80:81")),
        Just(json!("web")),
        Just(json!("dns")),
    ];
    prop::collection::vec(port, 1..3).prop_map(Value::from)
}

fn side() -> impl Strategy<Value = Value> {
    let field = |s: BoxedStrategy<Value>| prop::option::weighted(0.25, s);
    (
        field(selector().boxed()),
        field(selector().boxed()),
        field(prop_oneof![selector(), Just("global()".into())].boxed()),
        field(nets().boxed()),
        field(nets().boxed()),
        field(ports().boxed()),
        field(ports().boxed()),
    )
        .prop_map(
            |(selector, not, namespaces, nets, not_nets, ports, not_ports)| {
                let mut side = json!({});
                let namespaces = namespaces.map(|of| match of.as_str() {
                    Some("pcns.team == 'ta'") => "team == 'ta'".into(),
                    _ => of,
                });
                for (field, value) in [
                    ("selector", selector),
                    ("notSelector", not),
                    ("namespaceSelector", namespaces),
                    ("nets", nets),
                    ("notNets", not_nets),
                    ("ports", ports),
                    ("notPorts", not_ports),
                ] {
                    if let Some(value) = value {
                        side[field] = value;
                    }
                }
                side
            },
        )
}

fn rule() -> impl Strategy<Value = Value> {
    let action = select(&["Allow", "Allow", "Deny", "Pass", "Log"][..]);
    let protocol = select(&["TCP", "TCP", "UDP", "ICMP", "ICMPv6", "47", ""][..]);
    let icmp = prop::option::weighted(0.2, (0..3_u8, prop::option::of(0..2_u8)));
    let family = prop::option::weighted(0.2, select(&[4, 6][..]));
    (
        action,
        protocol,
        icmp,
        any::<bool>(),
        family,
        prop::option::of(side()),
        prop::option::of(side()),
    )
        .prop_map(
            |(action, protocol, icmp, not, family, source, destination)| {
                let mut rule = json!({"action": action});
                if !protocol.is_empty() {
                    rule["protocol"] = protocol.into();
                }
                if let Some(family) = family {
                    rule["ipVersion"] = family.into();
                }
                if let Some((kind, code)) = icmp {
                    let field = if not { "notICMP" } else { "icmp" };
                    rule[field] = json!({"type": kind});
                    if let Some(code) = code {
                        rule[field]["code"] = code.into();
                    }
                }
                for (field, side) in [("source", source), ("destination", destination)] {
                    if let Some(side) = side {
                        rule[field] = side;
                    }
                }
                rule
            },
        )
}

fn calico() -> impl Strategy<Value = Step> {
    let place = select(
        &[
            "networkpolicies/a/p1",
            "networkpolicies/b/p1",
            "networkpolicies/a/p2",
        ][..],
    );
    let place = prop_oneof![
        place,
        select(&["globalnetworkpolicies/g1", "globalnetworkpolicies/g2"][..])
    ];
    let rules = || prop::collection::vec(rule(), 0..4);
    let tier = select(&["", "", "first", "second", "missing"][..]);
    let order = prop::option::of(select(&[1.0, 2.0, 1000.0][..]));
    let types = select(TYPES);
    (
        place,
        prop::option::of(selector()),
        rules(),
        rules(),
        tier,
        order,
        types,
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(place, selector, ingress, egress, tier, order, types, goes)| {
                let mut spec = json!({"ingress": ingress, "egress": egress, "types": types});
                spec["selector"] = selector.unwrap_or_default();
                if !tier.is_empty() {
                    spec["tier"] = tier.into();
                }
                if let Some(order) = order {
                    spec["order"] = order.into();
                }
                match goes {
                    true => (place.to_owned(), None),
                    false => policy(place, spec),
                }
            },
        )
}

fn kubernetes() -> impl Strategy<Value = Step> {
    let labels = || select(&["x", "y"][..]).prop_map(|app| json!({"matchLabels": {"app": app}}));
    let expressions = Just(json!({"matchExpressions": [
        {"key": "app", "operator": "NotIn", "values": ["x"]},
        {"key": "app", "operator": "Exists"},
    ]}));
    let pods = move || prop_oneof![Just(json!({})), labels(), expressions.clone()];
    let spaces = || {
        prop_oneof![
            Just(json!({})),
            Just(json!({"matchLabels": {"team": "ta"}}))
        ]
    };
    let peer = prop_oneof![
        pods().prop_map(|pods| json!({"podSelector": pods})),
        spaces().prop_map(|of| json!({"namespaceSelector": of})),
        (pods(), spaces())
            .prop_map(|(pods, of)| json!({"podSelector": pods, "namespaceSelector": of})),
        Just(json!({"ipBlock": {"cidr": "10.0.0.0/29", "except": ["10.0.0.2/32"]}})),
        Just(json!({"ipBlock": {"cidr": "::/0"}})),
    ];
    let port = prop_oneof![
        Just(json!({"port": 80})),
        Just(json!({"port": 80, "endPort": 81, "protocol": "TCP"})),
        Just(json!({"port": "web"})),
        Just(json!({"protocol": "UDP"})),
        Just(json!({"port": 53, "protocol": "UDP"})),
    ];
    let rule = (
        prop::collection::vec(peer, 0..3),
        prop::collection::vec(port, 0..3),
    );
    let rules = || prop::collection::vec(rule.clone(), 0..3);
    let types = select(TYPES);
    (select(&NAMESPACES[..]), pods(), rules(), rules(), types).prop_map(
        |(namespace, pods, ingress, egress, types)| {
            let rules = |rules: Vec<(Vec<Value>, Vec<Value>)>, peers: &str| {
                let rules = rules.into_iter();
                let rules = rules.map(|(of, ports)| json!({peers: of, "ports": ports}));
                rules.collect::<Vec<_>>()
            };
            let value = json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "spec": {
                    "podSelector": pods, "policyTypes": types,
                    "ingress": rules(ingress, "from"), "egress": rules(egress, "to"),
                },
            });
            (
                format!("networkpolicies/{namespace}/knp.default.k"),
                Some(value),
            )
        },
    )
}

fn set() -> impl Strategy<Value = Step> {
    let nets = prop::option::of(prop::collection::vec(prop_oneof![net(), net6()], 0..3));
    let place = select(&["globalnetworksets/office", "networksets/a/office"][..]);
    (place, nets).prop_map(|(place, nets)| {
        let value = nets.map(
            |nets| json!({"metadata": {"labels": {"site": "office"}}, "spec": {"nets": nets}}),
        );
        (place.to_owned(), value)
    })
}

fn tier() -> impl Strategy<Value = Step> {
    let name = select(&["first", "second", "default"][..]);
    let order = prop::option::of(select(&[1.0, 2.0][..]));
    (name, order, select(&["Pass", "Deny"][..])).prop_map(|(name, order, action)| {
        let mut spec = json!({"defaultAction": action});
        if let Some(order) = order {
            spec["order"] = order.into();
        }
        policy(&format!("tiers/{name}"), spec)
    })
}

pub(crate) fn host(name: &str, (node, interface): (&str, &str), app: &str) -> Step {
    let value = json!({"metadata": {"labels": {"app": app}}, "spec": {
        "node": node, "interfaceName": interface, "expectedIPs": ["10.0.0.7", "fd00::7"],
        "ports": [{"name": "web", "protocol": "TCP", "port": 8080}],
    }});
    (format!("hostendpoints/{name}"), Some(value))
}

fn any_host() -> impl Strategy<Value = Step> {
    let place = (
        select(&["me", "me", "me", "other"][..]),
        select(&["eth0", "eth1", "*", "*", ""][..]),
    );
    let profiles = select(PROFILES);
    let app = select(&["x", "y", "z"][..]);
    let goes = prop::bool::weighted(0.1);
    (1..4_u8, place, app, profiles, goes).prop_map(|(n, place, app, profiles, goes)| {
        let mut step = host(&format!("h{n}"), place, app);
        match &mut step.1 {
            Some(value) if !goes => value["spec"]["profiles"] = json!(profiles),
            _ => step.1 = None,
        }
        step
    })
}

/// The same with host endpoints, and policies of which some are for what passes through their node.
pub(crate) fn steps_with_hosts() -> impl Strategy<Value = Vec<Step>> {
    let places = (any::<bool>(), prop::bool::weighted(0.3));
    let policy = (calico(), places).prop_map(|(mut step, (on_forward, is_early))| {
        if let Some(value) = &mut step.1 {
            value["spec"]["applyOnForward"] = on_forward.into();
            value["spec"]["preDNAT"] = is_early.into();
        }
        step
    });
    let more = prop::collection::vec(prop_oneof![any_host(), policy], 1..12);
    (steps(), more).prop_map(|(mut steps, more)| {
        steps.extend(more);
        steps
    })
}

/// A cluster with pods, and changes to it.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = prop_oneof![
        3 => any_pod(),
        3 => calico(),
        2 => kubernetes(),
        1 => set(),
        1 => tier(),
    ];
    prop::collection::vec(any, 1..24).prop_map(|more| {
        let mut all = vec![profile("a"), profile("b")];
        for (n, app) in [(1, "x"), (2, "y"), (3, "z"), (4, "x"), (5, "y")] {
            all.push(pod(n, namespace_of(n), "me", &[("app", app)]));
        }
        all.extend(more);
        all
    })
}

pub(crate) fn packet() -> impl Strategy<Value = Packet> {
    let address = |v6: bool| {
        let own = (1..8_u8).prop_map(move |n| match v6 {
            true => format!("fd00::{n}"),
            false => format!("10.0.0.{n}"),
        });
        let strange = select(match v6 {
            true => &["2001:db8::1", "fd01::1"][..],
            false => &["192.0.2.7", "198.51.100.1"][..],
        });
        let strange = strange.prop_map(str::to_owned);
        prop_oneof![4 => own, 1 => strange].prop_map(|text| text.parse::<IpAddr>().unwrap())
    };
    let port = || select(&[80, 81, 53, 8080][..]);
    let icmp = (0..3_u8, 0..2_u8);
    any::<bool>().prop_flat_map(move |v6| {
        let protocol = select(&[6, 6, 17, 1, 58, 47, 132][..]);
        (
            address(v6),
            address(v6),
            protocol,
            (port(), port()),
            icmp.clone(),
        )
            .prop_map(|(source, destination, protocol, ports, icmp)| Packet {
                source,
                destination,
                protocol,
                ports,
                icmp,
            })
    })
}
