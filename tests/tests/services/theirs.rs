//! What nodes need is no Service's: its addresses may be written by a tenant, and neither a node's
//! way to its datastore nor its sessions lead to a pod, also after a restart.

use std::net::{IpAddr, SocketAddr};

use caracal_lab::{Lab, PodState};
use caracal_model::{Family, NodeStatus};
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, VipConnection, address_of, apply_nft, assert_full_matrix,
    await_settled, await_status, datastore_port, either, endpoint_slices, has_no_problem,
    has_problem, is_kubernetes, kubectl, on_each_stack_and_datastore_of,
};

use super::{Services, Stack};

/// Two nodes with a pod each; routes to blocks come by BGP.
const TOPOLOGY: &str = "name: theirs
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_SERVICES: 'on'}}
";
const NODES: [&str; 2] = ["n1", "n2"];
const CODE: &str = "services.refused";
/// Where the tenant's pod listens.
const TARGET: u16 = 8080;

/// A Service of a tenant for an address and port of somebody else's, with its slices; `last` ends
/// its cluster addresses.
fn service(name: &str, last: u16, to: &[IpAddr], port: u16, tenant: &PodState) -> String {
    let families: Vec<Family> = to.iter().map(|address| Family::of(*address)).collect();
    let external: Vec<String> = to.iter().map(|address| format!("'{address}'")).collect();
    let names: Vec<&str> = families.iter().map(|family| family.as_str()).collect();
    let cluster = |family: &Family| either(*family, "10.96.0.", "fd00:96::");
    let cluster: Vec<String> = families
        .iter()
        .map(|family| format!("'{}{last}'", cluster(family)))
        .collect();
    let mut text = format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{clusterIP: {}, clusterIPs: [{}], ipFamilyPolicy: PreferDualStack, ipFamilies: [{}], externalIPs: [{}], ports: [{{port: {port}, targetPort: {TARGET}}}]}}
",
        cluster[0],
        cluster.join(", "),
        names.join(", "),
        external.join(", ")
    );
    let endpoint = PodEndpoint {
        pod: tenant,
        port: TARGET,
        terminates: false,
    };
    text += &endpoint_slices(name, &families, &[TARGET], &[endpoint]);
    text
}

fn remove(lab: &Lab, text: &str) {
    if is_kubernetes(lab) {
        kubectl(lab, &["delete", "-f", "-"], text.as_bytes());
    } else {
        let nothing = "apiVersion: v1\nkind: List\nitems: []\n";
        Services(lab).caracal(nothing, &["--prune", "--force"]);
    }
}

fn await_refused(lab: &Lab, services: &[&str]) {
    for node in NODES {
        let named = |status: &NodeStatus| match services {
            [] => has_no_problem(status, CODE),
            all => all
                .iter()
                .try_for_each(|name| has_problem(status, CODE, name)),
        };
        let what = format!("{services:?} to be refused");
        await_status(lab, node, 60 * SECOND, &what, named);
    }
}

/// n1 is started with a table that leads it to a tenant's pod instead of its datastore, as one that
/// knew no better has left it.
fn freed_at_the_start(lab: &mut Lab, datastore: SocketAddr, tenant: &PodState) {
    lab.kill9_node("n1").unwrap();
    let (family, port) = (Family::of(datastore.ip()), datastore.port());
    let digit = either(family, '4', '6');
    let target = PodEndpoint {
        pod: tenant,
        port: TARGET,
        terminates: false,
    };
    let (from, to) = (datastore.ip(), target.target(family));
    let (table, chain) = ("inet caracal-services", "pick-endpoints-1");
    let ip = either(family, "ip", "ip6");
    let script = format!(
        "add chain {table} {chain}
flush chain {table} {chain}
add rule {table} {chain} meta l4proto tcp dnat {ip} to {to}
flush set {table} spared{digit}
add element {table} services{digit} {{ {from} . tcp . {port} : goto {chain} }}
"
    );
    apply_nft(lab, "n1", &script);
    let netns = lab.netns("n1").unwrap();
    let is_astray = || VipConnection::open(&netns, datastore).is_ok();
    assert!(is_astray(), "the tenant has the datastore's place");
    lab.restart_node("n1").unwrap();
    await_settled(lab);
    assert!(!is_astray());
}

#[test]
fn what_nodes_need_is_no_services() {
    let text = |stack: Stack, _lab: &str| stack.topology(TOPOLOGY);
    let scenario = "what_nodes_need_is_no_services";
    on_each_stack_and_datastore_of(scenario, &["nft"], "theirs", text, |mut lab| {
        await_settled(&lab);
        let families = lab.topology().families();
        let pod = lab.state().pods[0].clone();
        let _tenant = EchoServer::start(&pod, &families, TARGET);
        let datastore: IpAddr = {
            let url = &lab.layout().node("n1").unwrap().etcd_endpoint;
            let authority = url.trim_start_matches("http://");
            let at: SocketAddr = authority.parse().unwrap();
            at.ip()
        };
        let nodes: Vec<IpAddr> = families
            .iter()
            .map(|family| address_of(&lab, "n2", *family))
            .collect();
        let text = service("etcd", 21, &[datastore], datastore_port(&lab), &pod)
            + &service("bgp", 22, &nodes, 179, &pod);
        Services(&lab).prepare();
        Services(&lab).apply(&text);
        await_refused(&lab, &["shop/etcd", "shop/bgp"]);
        for node in NODES {
            lab.kill9_node(node).unwrap();
            lab.restart_node(node).unwrap();
            await_settled(&lab);
        }
        await_refused(&lab, &["shop/etcd", "shop/bgp"]);
        let at = (datastore, datastore_port(&lab)).into();
        freed_at_the_start(&mut lab, at, &pod);
        assert_full_matrix(&lab);
        remove(&lab, &text);
        await_refused(&lab, &[]);
        assert_full_matrix(&lab);
    });
}
