//! Services translated by the agent: pods, nodes and a machine outside reach the endpoints of a
//! VIP, and connections outlive the agent.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use caracal_lab::{Lab, PodState, error_chain, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, VipConnection, address_of, await_settled, either,
    endpoint_slices, ip, on_each_stack_and_datastore_of,
};
use serde_json::Value;

use super::{Services, Stack};

/// Two nodes with two pods each, and a machine outside.
const TOPOLOGY: &str = "name: vip
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 2, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 2, env: {CARACAL_SERVICES: 'on'}}
  - {name: out, segment: lan, address: 10.0.0.31, kind: plain}
";
const NODE_PORT: u16 = 30_080;
/// Endpoints listen here; the service's port is 80.
const TARGET: u16 = 8080;
/// As many connections as let chance pick each of two endpoints (2^-29 that it does not).
const MANY: usize = 30;

pub(super) fn vip(family: Family) -> IpAddr {
    either(family, "10.96.0.10", "fd00:96::10").parse().unwrap()
}

/// A service at [`vip`] of each family, port 80.
pub(super) fn web_service(families: &[Family]) -> String {
    let vips: Vec<String> = families.iter().map(|f| format!("'{}'", vip(*f))).collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: {}, clusterIPs: [{}], ports: [{{port: 80}}]}}
",
        vips[0],
        vips.join(", ")
    )
}

/// The service, and a slice a family with these pods.
fn documents(families: &[Family], pods: &[&PodState]) -> String {
    let vips: Vec<String> = families.iter().map(|f| format!("'{}'", vip(*f))).collect();
    let mut text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{type: NodePort, clusterIP: {}, clusterIPs: [{}], ipFamilyPolicy: PreferDualStack, ports: [{{port: 80, targetPort: {TARGET}, nodePort: {NODE_PORT}}}]}}
",
        vips[0],
        vips.join(", ")
    );
    let endpoints: Vec<PodEndpoint<'_>> = pods
        .iter()
        .map(|pod| PodEndpoint {
            pod,
            port: TARGET,
            terminates: false,
        })
        .collect();
    text += &endpoint_slices("web", families, &[TARGET], &endpoints);
    text
}

/// Everybody who may want the service, by namespace.
fn clients(lab: &Lab) -> Vec<String> {
    let pods = lab.state().pods.iter().map(|pod| pod.netns.clone());
    let machines = ["n1", "n2", "out"].map(|name| lab.netns(name).unwrap());
    pods.chain(machines).collect()
}

/// Waits until all clients see exactly these pods behind an address.
fn await_behind(lab: &Lab, to: SocketAddr, pods: &[&PodState]) {
    let wanted: BTreeSet<String> = pods.iter().map(|pod| pod.label()).collect();
    for client in clients(lab) {
        wait_until(
            120 * SECOND,
            &format!("{wanted:?} behind {to} from {client}"),
            || {
                let open = |_| VipConnection::open(&client, to).map(|c| c.server);
                match (0..MANY).map(open).collect::<Result<BTreeSet<_>, _>>() {
                    Ok(seen) if seen == wanted => Ok(()),
                    seen => Err(format!("{seen:?}")),
                }
            },
        )
        .unwrap_or_else(|e| panic!("{e}\n{}", shown(lab)));
    }
}

fn shown(lab: &Lab) -> String {
    let shown = lab.caracal("n1", &["services", "show", "--here"]);
    shown.unwrap_or_else(|e| error_chain(&e))
}

#[test]
fn a_vip_reaches_its_endpoints() {
    let text = |stack: Stack, _lab: &str| stack.topology(TOPOLOGY);
    on_each_stack_and_datastore_of(
        "a_vip_reaches_its_endpoints",
        &["nft"],
        "vip",
        text,
        |lab| {
            translation(lab);
        },
    );
}

fn translation(mut lab: Lab) {
    await_settled(&lab);
    let families = lab.topology().families();
    // The node's processes need some way towards the address; the machine outside knows one.
    for family in &families {
        let (out, n1) = (
            address_of(&lab, "out", *family),
            address_of(&lab, "n1", *family),
        );
        let way = |via: IpAddr, to: &str| format!("route replace {to} via {via}");
        for node in ["n1", "n2"] {
            ip(&lab, node, &[&way(out, either(*family, "default", "::/0"))]);
        }
        ip(
            &lab,
            "out",
            &[&way(n1, &Prefix::host(vip(*family)).to_string())],
        );
    }
    let pods = lab.state().pods.clone();
    let _servers: Vec<EchoServer> = pods
        .iter()
        .map(|pod| EchoServer::start(pod, &families, TARGET))
        .collect();
    let of = |node: &str| pods.iter().find(|pod| pod.node == node).unwrap();
    let both = [of("n1"), of("n2")];
    let api = |lab: &Lab, pods: &[&PodState]| Services(lab).apply(&documents(&families, pods));
    Services(&lab).prepare();
    api(&lab, &both);
    for family in &families {
        // Endpoints are among the clients: who picks itself is answered, too.
        await_behind(&lab, (vip(*family), 80).into(), &both);
        for node in ["n1", "n2"] {
            await_behind(
                &lab,
                (address_of(&lab, node, *family), NODE_PORT).into(),
                &both,
            );
        }
    }
    connections_stay(&mut lab, &families, both);
    // An endpoint that nobody has placed on a node is outside the cluster, or a pod here: it
    // reaches itself, too.
    let of_no_node = documents(&families, &both[1..]).replace("nodeName: n2, ", "");
    assert!(!of_no_node.contains("nodeName"), "{of_no_node}");
    Services(&lab).apply(&of_no_node);
    for family in &families {
        await_behind(&lab, (vip(*family), 80).into(), &both[1..]);
    }
    // One endpoint less.
    api(&lab, &both[..1]);
    for family in &families {
        await_behind(&lab, (vip(*family), 80).into(), &both[..1]);
    }
    let table = shown(&lab);
    assert!(
        table.contains("shop/web") && table.contains("NodePort"),
        "{table}"
    );
    it_is_explained(&lab, &families, both);
    nothing_behind(&lab, &families, &api);
}

/// From the Service to the elements in the kernel, with what is counted; and nothing is wrong.
fn it_is_explained(lab: &Lab, families: &[Family], both: [&PodState; 2]) {
    for family in families {
        let to = SocketAddr::from((vip(*family), 80)).to_string();
        let explained = || -> Value {
            let said = lab.caracal("n1", &["explain", &to, "-o", "json"]);
            serde_json::from_str(&said.unwrap_or_else(|e| panic!("{}", error_chain(&e)))).unwrap()
        };
        let before = explained();
        assert_eq!(before["inStep"], true, "{before:#}");
        let sets = before["elements"].as_array().unwrap();
        let of_endpoint = format!("{} . 8080", both[0].address_of(*family).unwrap());
        let leads = |e: &Value| e["element"].as_str().unwrap().ends_with(&of_endpoint);
        assert!(sets.iter().any(leads), "{before:#}");
        let what = |r: &Value| r["what"].as_str().unwrap().to_owned();
        let revisions: Vec<String> = before["revisions"]
            .as_array()
            .unwrap()
            .iter()
            .map(what)
            .collect();
        for document in ["Service shop/web", "EndpointSlice shop/web"] {
            assert!(
                revisions.iter().any(|r| r.starts_with(document)),
                "{revisions:?}"
            );
        }
        let netns = lab.netns("n1").unwrap();
        VipConnection::open(&netns, (vip(*family), 80).into()).unwrap();
        let hits = |v: &Value| v["service"]["hits"].as_u64().unwrap();
        assert!(hits(&explained()) > hits(&before), "{before:#}");
        let text = lab.caracal("n1", &["explain", &to]).unwrap();
        assert!(text.contains("Service:    shop/web"), "{text}");
    }
    let audit = lab.caracal("n1", &["audit"]);
    let audit = audit.unwrap_or_else(|e| error_chain(&e));
    assert!(!audit.contains("CRL-V"), "{audit}");
}

/// No endpoint, and ports that the service has not: refused, and at once.
fn nothing_behind(lab: &Lab, families: &[Family], api: &dyn Fn(&Lab, &[&PodState])) {
    api(lab, &[]);
    for family in families {
        for (port, client) in [80, 81].into_iter().zip([clients(lab), clients(lab)]) {
            for client in client {
                wait_until(
                    120 * SECOND,
                    &format!("{client} refused at port {port}"),
                    || {
                        let to = (vip(*family), port).into();
                        match VipConnection::open(&client, to).map(|c| c.server) {
                            Err(ErrorKind::ConnectionRefused) => Ok(()),
                            other => Err(format!("{other:?}")),
                        }
                    },
                )
                .unwrap_or_else(|e| panic!("{e}\n{}", shown(lab)));
            }
        }
    }
}

/// The agent is killed and started again, endpoints change meanwhile: who is connected stays so.
fn connections_stay(lab: &mut Lab, families: &[Family], both: [&PodState; 2]) {
    let mut open = Vec::new();
    for family in families {
        for client in clients(lab) {
            open.push(VipConnection::open(&client, (vip(*family), 80).into()).unwrap());
        }
    }
    let work = |open: &mut Vec<VipConnection>, when: &str| {
        for connection in open {
            assert!(connection.works(), "{} {when}", connection.server);
        }
    };
    work(&mut open, "at first");
    lab.kill9_node("n1").unwrap();
    work(&mut open, "without the agent");
    // New ones, too: the table is the kernel's.
    for family in families {
        let to = (vip(*family), 80).into();
        for client in clients(lab) {
            assert!(
                VipConnection::open(&client, to).is_ok(),
                "{client} without the agent"
            );
        }
    }
    // Changed while nobody looks.
    Services(lab).apply(&documents(families, &both[1..]));
    lab.start_node("n1").unwrap();
    for family in families {
        await_behind(lab, (vip(*family), 80).into(), &both[1..]);
    }
    work(
        &mut open,
        "after the restart, with their endpoint taken out",
    );
    Services(lab).apply(&documents(families, &both));
    for family in families {
        await_behind(lab, (vip(*family), 80).into(), &both);
    }
    work(&mut open, "at last");
    assert!(open.len() >= 7, "{} connections", open.len());
}
