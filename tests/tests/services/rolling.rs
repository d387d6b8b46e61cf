//! Many short connections through a VIP while everything about it changes: a rolling update of ten
//! pods, agents killed and restarted, another mode of the pool, the datastore away. None is refused
//! or reset, and no packet leaves a node with the VIP's address.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use caracal_lab::{Lab, PodState, RouteKind, error_chain, wait_for, wait_until};
use caracal_model::{Family, PeerStatusJson};
use caracal_tests::{
    ConnectionLoad, EchoServer, PodEndpoint, SECOND, VipConnection, address_of, await_settled,
    await_status, count_routes, either, endpoint_slices, ip, on_each_stack_of, set_pool_modes,
};
use serde_json::Value;

use super::Services;
use super::translation::{vip, web_service};

/// Two nodes with six pods each; somebody must be the nodes' way to service addresses.
const TOPOLOGY: &str = "name: roll
pool: {cidr: 10.244.0.0/16, blockSize: 26, natOutgoing: true}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 6, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 6, env: {CARACAL_SERVICES: 'on'}}
  - {name: out, segment: lan, address: 10.0.0.31, kind: plain}
";
const NODES: [&str; 2] = ["n1", "n2"];
/// Ports of the old and of the new release, which run side by side in the same pods.
const OLD: u16 = 8080;
const NEW: u16 = 8081;
/// Connections a second of each of the four clients, in each family: 1,000 a second on the three
/// stacks together, where the machine can serve them.
const RATE: u32 = 63;

#[test]
fn a_rolling_update_loses_no_connection() {
    on_each_stack_of(
        "a_rolling_update_loses_no_connection",
        &["nft", "tcpdump"],
        TOPOLOGY,
        "roll",
        rolling_update,
    );
}

/// The service, behind which are these.
struct Web<'a> {
    families: Vec<Family>,
    lab: &'a mut Lab,
}

impl Web<'_> {
    /// Places the endpoints; both nodes have them in force when this returns.
    fn put(&self, endpoints: &[PodEndpoint<'_>]) {
        let text = web_service(&self.families)
            + &endpoint_slices("web", &self.families, &[OLD, NEW], endpoints);
        let said = Services(self.lab).caracal(&text, &["--wait"]);
        assert!(said.contains("in force on 2 node(s)"), "{said}");
        let ready = endpoints.iter().filter(|e| !e.terminates);
        let targets = |e: &PodEndpoint<'_>| -> Vec<SocketAddr> {
            self.families.iter().map(|f| e.target(*f)).collect()
        };
        let wanted: BTreeSet<SocketAddr> = ready.flat_map(targets).collect();
        for node in NODES {
            assert_eq!(in_force(self.lab, node).as_ref(), Ok(&wanted), "{node}");
        }
    }
}

/// The endpoints that a node translates to.
fn in_force(lab: &Lab, node: &str) -> Result<BTreeSet<SocketAddr>, String> {
    let shown = lab.caracal(node, &["services", "show", "--here", "-o", "json"]);
    let shown: Value =
        serde_json::from_str(&shown.map_err(|e| error_chain(&e))?).map_err(|e| e.to_string())?;
    let rows = shown["rows"].as_array().into_iter().flatten();
    let endpoints = rows.flat_map(|row| [&row["here"], &row["elsewhere"]]);
    let endpoints = endpoints.filter_map(Value::as_array).flatten();
    Ok(endpoints.filter_map(|e| e.as_str()?.parse().ok()).collect())
}

/// The last pod of each node is a client, and so is each node.
fn clients(lab: &Lab, pods: &[PodState]) -> Vec<(String, String)> {
    let pods = NODES.map(|node| {
        let pod = pods.iter().rfind(|pod| pod.node == node).unwrap();
        (pod.label(), pod.netns.clone())
    });
    let nodes = NODES.map(|node| (node.to_owned(), lab.netns(node).unwrap()));
    pods.into_iter().chain(nodes).collect()
}

fn rolling_update(mut lab: Lab) {
    await_settled(&lab);
    let families = lab.topology().families();
    for (family, node) in families.iter().flat_map(|f| NODES.map(|node| (*f, node))) {
        let via = address_of(&lab, "out", family);
        let way = format!(
            "route replace {} via {via}",
            either(family, "default", "::/0")
        );
        ip(&lab, node, &[&way]);
    }
    let pods = lab.state().pods.clone();
    let clients = clients(&lab, &pods);
    let served: Vec<&PodState> = pods
        .iter()
        .filter(|pod| clients.iter().all(|(name, _)| *name != pod.label()))
        .collect();
    assert_eq!(served.len(), 10);
    let old: Vec<EchoServer> = served
        .iter()
        .map(|pod| EchoServer::start(pod, &families, OLD))
        .collect();
    let mut web = Web {
        families: families.clone(),
        lab: &mut lab,
    };
    let all = |port| {
        served
            .iter()
            .map(|pod| endpoint(pod, port))
            .collect::<Vec<_>>()
    };
    web.put(&all(OLD));
    let untranslated: Vec<String> = families
        .iter()
        .map(|f| format!("dst host {}", vip(*f)))
        .collect();
    let capture = web
        .lab
        .capture_segment("lan", &untranslated.join(" or "))
        .unwrap();
    let targets: Vec<SocketAddr> = families.iter().map(|f| (vip(*f), 80).into()).collect();
    let (pod_clients, node_clients) = clients.split_at(NODES.len());
    let load = ConnectionLoad::start(pod_clients, &targets, RATE);
    let of_nodes = ConnectionLoad::start(node_clients, &targets, RATE);
    load.after(200);
    let new = replace_all(&mut web, &served, old, &load);
    sources_are_kept(web.lab, &families, &pods);
    // Nodes' own connections are masqueraded, and the kernel ends those that are under way when
    // their route moves to another interface.
    of_nodes.assert_none_lost("rolling update, nodes");

    // From no encapsulation to VXLAN.
    set_pool_modes(web.lab, "Never", "Always");
    for node in NODES {
        let tunnelled = || count_routes(web.lab, node, RouteKind::Vxlan);
        wait_for(60 * SECOND, "VXLAN", tunnelled, |n| *n >= families.len()).unwrap();
    }
    load.after(200);
    sources_are_kept(web.lab, &families, &pods);
    without_the_datastore(&mut web, &load, || {
        ConnectionLoad::start(node_clients, &targets, RATE)
    });
    // What changed meanwhile is followed: the last one goes.
    web.put(&all(NEW)[..9]);
    load.after(200);
    load.assert_none_lost("rolling update, another mode, without the datastore");
    let seen = capture.stop();
    assert!(
        seen.packets.is_empty(),
        "not translated: {:?}",
        seen.packets
    );
    drop(new);
}

const fn endpoint(pod: &PodState, port: u16) -> PodEndpoint<'_> {
    PodEndpoint {
        pod,
        port,
        terminates: false,
    }
}

/// One after the other: the new one is ready while the old one terminates and still serves; then
/// the old one is gone, and its server takes no connection any more.
fn replace_all(
    web: &mut Web<'_>,
    pods: &[&PodState],
    old: Vec<EchoServer>,
    load: &ConnectionLoad,
) -> Vec<EchoServer> {
    let mut new = Vec::new();
    for (n, (pod, old)) in pods.iter().zip(old).enumerate() {
        match n {
            3 => {
                web.lab.kill9_node("n1").unwrap();
                web.lab.start_node("n1").unwrap();
            }
            6 => {
                web.lab.stop_node("n2").unwrap();
                web.lab.start_node("n2").unwrap();
            }
            _ => {}
        }
        new.push(EchoServer::start(pod, &web.families, NEW));
        let mut endpoints: Vec<PodEndpoint<'_>> =
            pods[..=n].iter().map(|p| endpoint(p, NEW)).collect();
        endpoints.extend(pods[n + 1..].iter().map(|p| endpoint(p, OLD)));
        let gone = endpoints.clone();
        endpoints.push(PodEndpoint {
            terminates: true,
            ..endpoint(pod, OLD)
        });
        web.put(&endpoints);
        load.after(20);
        web.put(&gone);
        old.stop();
    }
    new
}

/// The pool has `natOutgoing`, and all of this is inside: an endpoint sees its client's address.
fn sources_are_kept(lab: &Lab, families: &[Family], pods: &[PodState]) {
    for (family, node) in families.iter().flat_map(|f| NODES.map(|node| (*f, node))) {
        let pod = pods.iter().rfind(|pod| pod.node == node).unwrap();
        for _ in 0..10 {
            let connection = VipConnection::open(&pod.netns, (vip(family), 80).into());
            let connection =
                connection.unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(node, 20)));
            assert_eq!(Some(connection.client), pod.address_of(family));
        }
    }
}

/// The datastore is away, and an agent starts without it: the table is the kernel's.
fn without_the_datastore(
    web: &mut Web<'_>,
    load: &ConnectionLoad,
    load_of_nodes: impl Fn() -> ConnectionLoad,
) {
    // One from before the change of mode would have routes move once more.
    let last = web.lab.folder().lib("n1").join("last-snapshot");
    wait_until(120 * SECOND, "the mode in the last snapshot", || {
        let text = std::fs::read_to_string(&last).map_err(|e| e.to_string())?;
        match text.contains(r#""vxlanMode":"Always""#) {
            true => Ok(()),
            false => Err(text.lines().next().unwrap_or_default().to_owned()),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
    web.lab.kill9_etcd().unwrap();
    web.lab.kill9_node("n1").unwrap();
    web.lab.restart_node("n1").unwrap();
    for node in NODES {
        await_status(web.lab, node, 120 * SECOND, "no datastore", |s| {
            let is_up = |peer: &PeerStatusJson| peer.state == "Established";
            let in_step = s.kernel.revision == s.datastore.revision;
            match s.datastore.state.as_str() {
                "stale" if in_step && s.peers.iter().all(is_up) => Ok(()),
                _ => Err(format!("{:?} {:?} {:?}", s.datastore, s.kernel, s.peers)),
            }
        });
    }
    let of_nodes = load_of_nodes();
    load.after(200);
    of_nodes.assert_none_lost("without the datastore, nodes");
    web.lab.start_etcd().unwrap();
    await_settled(web.lab);
}
