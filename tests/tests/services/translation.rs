//! Services translated by the agent: pods, nodes and a machine outside reach the endpoints of a
//! VIP, and connections outlive the agent.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use caracal_lab::{Lab, PodState, error_chain, run_in_netns, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::stack::{address_of, either, on_each_stack_and_datastore_of};
use caracal_tests::{SECOND, await_settled, ip};

use super::{Cluster, Stack};

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

fn vip(family: Family) -> IpAddr {
    either(family, "10.96.0.10", "fd00:96::10").parse().unwrap()
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
    for family in families {
        let endpoint = |pod: &&PodState| {
            let address = pod.address_of(*family).expect("ADD has answered");
            format!(
                "  - {{addresses: ['{address}'], nodeName: {}, conditions: {{ready: true}}}}\n",
                pod.node
            )
        };
        let endpoints: String = pods.iter().map(endpoint).collect();
        let endpoints = match endpoints.is_empty() {
            true => " []\n".to_owned(),
            false => format!("\n{endpoints}"),
        };
        text += &format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{}, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: '', protocol: TCP, port: {TARGET}}}]
endpoints:{endpoints}",
            family.as_str()
        );
    }
    text
}

/// A server in a pod: says who it is, and then sends back what it gets.
fn serve(pod: &PodState, families: &[Family]) {
    let any = match families {
        [Family::Ipv4] => "0.0.0.0",
        _ => "::",
    };
    let listen = || TcpListener::bind((any.parse::<IpAddr>().unwrap(), TARGET)).unwrap();
    let listener = run_in_netns(&pod.netns, listen).unwrap();
    let name = format!("{}\n", pod.label());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), name) = (stream, name.clone()) else {
                continue;
            };
            std::thread::spawn(move || {
                let _gone = stream.write_all(name.as_bytes());
                let mut octets = [0; 64];
                while let Ok(read) = stream.read(&mut octets) {
                    if read == 0 || stream.write_all(&octets[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// A connection, and who is behind it.
struct Connection {
    stream: TcpStream,
    server: String,
}

impl Connection {
    fn open(netns: &str, to: SocketAddr) -> Result<Self, ErrorKind> {
        let connect = || TcpStream::connect_timeout(&to, 5 * SECOND);
        let mut stream = run_in_netns(netns, connect)
            .unwrap()
            .map_err(|e| e.kind())?;
        stream.set_read_timeout(Some(10 * SECOND)).unwrap();
        let (mut server, mut octet) = (String::new(), [0]);
        while !server.ends_with('\n') {
            stream.read_exact(&mut octet).map_err(|e| e.kind())?;
            server.push(char::from(octet[0]));
        }
        let server = server.trim().to_owned();
        Ok(Self { stream, server })
    }

    fn works(&mut self) -> bool {
        let mut back = [0; 4];
        let sent = self.stream.write_all(b"ping");
        sent.is_ok() && self.stream.read_exact(&mut back).is_ok() && &back == b"ping"
    }
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
                let open = |_| Connection::open(&client, to).map(|c| c.server);
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
    for pod in &pods {
        serve(pod, &families);
    }
    let of = |node: &str| pods.iter().find(|pod| pod.node == node).unwrap();
    let both = [of("n1"), of("n2")];
    let api = |lab: &Lab, pods: &[&PodState]| Cluster(lab).apply(&documents(&families, pods));
    Cluster(&lab).prepare();
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
    nothing_behind(&lab, &families, &api);
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
                        match Connection::open(&client, to).map(|c| c.server) {
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
            open.push(Connection::open(&client, (vip(*family), 80).into()).unwrap());
        }
    }
    let work = |open: &mut Vec<Connection>, when: &str| {
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
                Connection::open(&client, to).is_ok(),
                "{client} without the agent"
            );
        }
    }
    // Changed while nobody looks.
    Cluster(lab).apply(&documents(families, &both[1..]));
    lab.start_node("n1").unwrap();
    for family in families {
        await_behind(lab, (vip(*family), 80).into(), &both[1..]);
    }
    work(
        &mut open,
        "after the restart, with their endpoint taken out",
    );
    Cluster(lab).apply(&documents(families, &both));
    for family in families {
        await_behind(lab, (vip(*family), 80).into(), &both);
    }
    work(&mut open, "at last");
    assert!(open.len() >= 7, "{} connections", open.len());
}
