#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn gateways() -> Gateways {
    [("10.0.0.2", "n2"), ("10.244.9.0", "n3")]
        .map(|(address, node)| (address.parse().unwrap(), node.to_owned()))
        .into()
}

/// What n1 says of 10.244.1.5, with some of it replaced.
fn said(other: Value) -> Explained {
    let mut value = json!({
        "node": "n1", "destination": "10.244.1.5/32", "owner": null, "pool": null, "allocation": null,
        "block": {"cidr": "10.244.1.0/26", "affinity": "host:n2"},
        "source": "BGP", "mode": "direct", "bgp": {"prefix": null, "paths": [], "advertised": [], "learned": null},
        "planned": null, "skipped": null, "inStep": true, "revisions": [], "problems": [],
        "kernel": {"route": "10.244.1.0/26 via 10.0.0.2 dev eth0", "owner": "ours", "vtep": null,
            "devices": [{"name": "eth0", "up": true, "mtu": 1500, "gateway": "10.0.0.2"}]},
    });
    for (key, replaced) in other.as_object().unwrap() {
        value[key] = replaced.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn kernel(device: &Value) -> Value {
    json!({"kernel": {"route": "r", "owner": "ours", "vtep": null, "devices": [device]}})
}

#[test]
fn each_answer_says_who_is_asked_next() {
    let next = |node: &str, by: &str| Step::Next {
        node: node.to_owned(),
        by: by.to_owned(),
    };
    let tunnel = json!({"name": "vxlan.calico", "up": true, "mtu": 1450, "gateway": "10.244.9.0"});
    let router = json!({"name": "eth0", "up": true, "mtu": 1500, "gateway": "10.0.0.254"});
    let old = json!({"name": "eth0", "up": true, "mtu": 1500});
    let down = json!({"name": "eth0", "up": false, "mtu": 1500, "gateway": "10.0.0.2"});
    let mut of_nobody = kernel(&router);
    of_nobody["block"] = Value::Null;
    let mut workload = kernel(&json!({"name": "cali1", "up": true, "mtu": 1500}));
    workload["mode"] = json!("local");
    workload["owner"] = json!("workload a/b on node n1");
    for (explained, wanted) in [
        (json!({}), next("n2", "by 10.0.0.2 on eth0")),
        (kernel(&tunnel), next("n3", "by 10.244.9.0 on vxlan.calico")),
        (
            kernel(&router),
            next("n2", "by 10.0.0.254 on eth0, a router,"),
        ),
        (
            of_nobody,
            Step::Leaves("by 10.0.0.254 on eth0, which is no node".to_owned()),
        ),
        (
            kernel(&old),
            Step::Leaves("it is on the link of eth0".to_owned()),
        ),
        (kernel(&down), Step::Broken("eth0 is down".to_owned())),
        (
            json!({"kernel": null, "mode": null, "source": "none"}),
            Step::Broken("its kernel has no route: none".to_owned()),
        ),
        (
            json!({"mode": "blackhole", "source": "own block: the address is not in use"}),
            Step::Broken("own block: the address is not in use".to_owned()),
        ),
        (
            workload,
            Step::Arrives("it is there: workload a/b on node n1".to_owned()),
        ),
        (
            json!({"kernel": null, "mode": "local", "source": "this node: an address of eth0"}),
            Step::Arrives("it is there: this node: an address of eth0".to_owned()),
        ),
    ] {
        assert_eq!(step(&said(explained), &gateways()), wanted);
    }
}
