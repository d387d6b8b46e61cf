//! Addresses of Kubernetes' services, announced by the native speaker to a real BIRD outside the
//! cluster: ranges, the local policy, communities. The router is behind a gateway (`reachableBy`)
//! and has a password.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "services/balancers.rs"]
mod balancers;
#[path = "services/boot.rs"]
mod boot;
#[path = "services/loops.rs"]
mod loops;
#[path = "services/rolling.rs"]
mod rolling;
#[path = "services/takeover.rs"]
mod takeover;
#[path = "services/theirs.rs"]
mod theirs;
#[path = "services/translation.rs"]
mod translation;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::UNIX_EPOCH;

use caracal_lab::{
    Lab, PodState, call_program, error_chain, ip_batch, program_command, run_in_netns,
    spawn_in_netns, wait_until,
};
use caracal_model::{Family, Prefix, Problem};
use caracal_tests::{
    EchoServer, SECOND, Services, Stack, VipConnection, await_settled, await_status,
    calico_resource, either, focus, on_each_stack_and_datastore_of,
};

/// Names and addresses of a family's scenario.
#[derive(Clone, Copy)]
struct Site {
    /// The router's address, which is on no link of the nodes'.
    router: &'static str,
    /// The way to it.
    gateway: &'static str,
    /// Ranges of cluster addresses and of external ones.
    ranges: [&'static str; 2],
    /// A service's addresses: the cluster's, one in the external range, and one in none.
    service: [&'static str; 3],
    /// Addresses of the nodes.
    nodes: [&'static str; 2],
    /// BIRD's word.
    channel: &'static str,
}

const IPV4: Site = Site {
    router: "10.50.0.1",
    gateway: "10.0.0.31",
    ranges: ["10.96.0.0/12", "192.0.2.0/24"],
    service: ["10.96.0.10", "192.0.2.10", "203.0.113.1"],
    nodes: ["10.0.0.11", "10.0.0.12"],
    channel: "ipv4",
};

const IPV6: Site = Site {
    router: "fd00:50::1",
    gateway: "fd00:10::31",
    ranges: ["fd00:96::/108", "2001:db8:2::/64"],
    service: ["fd00:96::10", "2001:db8:2::10", "2001:db8:3::1"],
    nodes: ["fd00:10::11", "fd00:10::12"],
    channel: "ipv6",
};

/// Where load balancers ask nodes for endpoints.
const HEALTH: u16 = 32_000;
/// kube-proxy's port, where a node tells that it translates.
const PROXY_HEALTH: u16 = 10256;

const fn site(family: Family) -> Site {
    either(family, IPV4, IPV6)
}

/// Two nodes, and a namespace for a router whose address is on no link of theirs.
fn topology(stack: Stack, secrets: &str) -> String {
    let node = |n: u8| {
        format!(
            "  - {{name: n{n}, segment: lan, address: 10.0.0.1{n}, pods: 1, env: {{CARACAL_SECRETS_DIR: {secrets}, CARACAL_SERVICES: 'on'}}}}\n"
        )
    };
    let family = either(
        *stack.families().last().expect("one at least"),
        Family::Ipv4,
        Family::Ipv6,
    );
    let Site {
        router,
        gateway,
        ranges: [cluster, external],
        ..
    } = site(family);
    stack.topology(&format!(
        "name: svc
pool: {{cidr: 10.244.0.0/16, blockSize: 26}}
segments:
  - {{name: lan, cidr: 10.0.0.0/24}}
nodes:
{}{}  - {{name: tor, segment: lan, address: 10.0.0.31, kind: plain}}
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPConfiguration
    metadata: {{name: default}}
    spec:
      serviceClusterIPs: [{{cidr: '{cluster}'}}]
      serviceExternalIPs: [{{cidr: '{external}'}}]
      communities: [{{name: public, value: '64512:7'}}]
      prefixAdvertisements: [{{cidr: '{external}', communities: [public]}}]
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {{name: tor}}
    spec: {{peerIP: '{router}', asNumber: 65001, reachableBy: '{gateway}', ttlSecurity: 2, password: {{secretKeyRef: {{name: bgp, key: tor}}}}}}
",
        node(1),
        node(2)
    ))
}

/// A BIRD in the router's namespace.
struct Bird {
    child: Child,
    socket: PathBuf,
    netns: String,
}

impl Bird {
    fn start(lab: &Lab) -> Self {
        let netns = lab.netns("tor").unwrap();
        let Site {
            router,
            nodes,
            channel,
            ..
        } = site(focus(lab));
        let host = Prefix::host(router.parse().unwrap());
        ip_batch(Some(&netns), &[format!("address add {host} dev lo")]).unwrap();
        let peer = |(n, node): (usize, &str)| {
            format!(
                "protocol bgp n{n} {{ local {router} as 65001; neighbor {node} as 64512; multihop 2; ttl security on;\n\
                 password \"hunter2\"; connect retry time 1; connect delay time 1; error wait time 1, 2; {channel} {{ import all; export none; add paths off; }}; }}\n"
            )
        };
        let peers: String = (1..).zip(nodes).map(peer).collect();
        let text = format!(
            "router id 10.50.0.1;\nprotocol device {{}}\nprotocol direct {{ {channel}; }}\n\
             protocol kernel {{ {channel} {{ import none; export where source = RTS_BGP; }}; }}\n{peers}"
        );
        let folder = lab.folder().path();
        let (file, socket) = (folder.join("tor.conf"), folder.join("tor.ctl"));
        std::fs::write(&file, text).unwrap();
        let mut command = program_command("bird").unwrap();
        command
            .arg("-f")
            .arg("-c")
            .arg(&file)
            .arg("-s")
            .arg(&socket);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_in_netns(&netns, &mut command).unwrap();
        Self {
            child,
            socket,
            netns,
        }
    }

    fn ask(&self, question: &str) -> Result<String, String> {
        let mut command = program_command("birdc").unwrap();
        command
            .arg("-s")
            .arg(&self.socket)
            .args(question.split(' '));
        call_program(Some(&self.netns), &mut command, b"", 60 * SECOND).map_err(|e| e.to_string())
    }

    /// Waits until the routes to a prefix come from exactly these nodes; gives what BIRD says of
    /// them.
    fn await_from(&self, prefix: &str, nodes: &[&str]) -> String {
        let what = format!("{prefix} from {nodes:?}");
        wait_until(60 * SECOND, &what, || {
            // Without any route BIRD answers with an error.
            let output = self
                .ask(&format!("show route {prefix} all"))
                .unwrap_or_default();
            let from = |n: &&str| output.contains(&format!("[{n} "));
            let seen: Vec<&str> = ["n1", "n2"].into_iter().filter(from).collect();
            if seen == nodes {
                Ok(output)
            } else {
                Err(output)
            }
        })
        .unwrap()
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A service with the local policy whose one ready endpoint is on a node; that on the other is not
/// ready.
fn documents(site: Site, family: Family, [ready, unready]: [&PodState; 2]) -> String {
    let [cluster, external, outside] = site.service;
    let [ready_at, unready_at] =
        [ready, unready].map(|pod| pod.address_of(family).expect("ADD has answered"));
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{type: LoadBalancer, clusterIP: '{cluster}', externalIPs: ['{external}', '{outside}'], externalTrafficPolicy: Local, healthCheckNodePort: {HEALTH}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-x7, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: {family}
ports: [{{name: '', protocol: TCP, port: 8080}}]
endpoints:
  - {{addresses: ['{ready_at}'], nodeName: {}, conditions: {{ready: true}}}}
  - {{addresses: ['{unready_at}'], nodeName: {}, conditions: {{ready: false}}}}
",
        ready.node, unready.node
    )
}

#[test]
fn service_addresses_are_announced_where_their_endpoints_are() {
    let secrets = std::env::temp_dir().join(format!("caracal-services-{}", std::process::id()));
    let folder = |lab: &str| secrets.join(lab).display().to_string();
    let text = |stack: Stack, lab: &str| {
        let secrets = folder(lab);
        // Of an earlier run that failed.
        let _removed = std::fs::remove_dir_all(&secrets);
        std::fs::create_dir_all(&secrets).unwrap();
        topology(stack, &secrets)
    };
    on_each_stack_and_datastore_of(
        "service_addresses_are_announced_where_their_endpoints_are",
        &["bird", "birdc"],
        "svc",
        text,
        |mut lab| {
            let secrets = secrets.join(lab.name().as_str());
            services(&mut lab, &secrets);
        },
    );
    // Without what a run needs there is none.
    let _removed = std::fs::remove_dir_all(&secrets);
}

fn services(lab: &mut Lab, secrets: &Path) {
    let family = focus(lab);
    let site = site(family);
    let [cluster_range, external_range] = site.ranges;
    let [cluster, external, outside] = site.service;
    let [cluster, external] =
        [cluster, external].map(|a| Prefix::host(a.parse().unwrap()).to_string());
    std::fs::create_dir_all(secrets.join("bgp")).unwrap();
    let api = Services(lab);
    api.prepare();
    // Without its password the session does not exist, and says so; with the file it comes.
    for node in ["n1", "n2"] {
        await_status(
            lab,
            node,
            60 * SECOND,
            "the missing password reported",
            |s| {
                let is_reported = s.problems.iter().any(|p| p.code == "bgp.password");
                let peers = s.peers.iter().filter(|p| p.kind == "global").count();
                if is_reported && peers == 0 {
                    Ok(())
                } else {
                    Err(format!("{:?}", s.problems))
                }
            },
        );
    }
    std::fs::write(secrets.join("bgp/tor"), "hunter2\n").unwrap();
    let bird = Bird::start(lab);
    for node in ["n1", "n2"] {
        await_status(lab, node, 60 * SECOND, "the session with the router", |s| {
            let up =
                |p: &caracal_model::PeerStatusJson| p.kind == "global" && p.state == "Established";
            if s.peers.iter().any(up) {
                Ok(())
            } else {
                Err(format!("{:?}", s.peers))
            }
        });
        wait_until(60 * SECOND, "the way to the router", || {
            let routes = lab.routes(node).map_err(|e| error_chain(&e))?;
            let way = routes
                .iter()
                .find(|r| r.destination() == Some(Prefix::host(site.router.parse().unwrap())));
            match way.and_then(|r| r.gateway) {
                Some(via) if via.to_string() == site.gateway => Ok(()),
                _ => Err(format!("{routes:?}")),
            }
        })
        .unwrap();
    }
    await_settled(lab);

    // Ranges come from every node, and are nobody's kernel route.
    bird.await_from(cluster_range, &["n1", "n2"]);
    let range = bird.await_from(external_range, &["n1", "n2"]);
    assert!(range.contains("(64512,7)"), "{range}");
    let pods = lab.state().pods.clone();
    let _servers: Vec<EchoServer> = pods
        .iter()
        .map(|pod| EchoServer::start(pod, &lab.topology().families(), 8080))
        .collect();
    let of = |node: &str| pods.iter().find(|pod| pod.node == node).unwrap();
    let (first, second) = ([of("n2"), of("n1")], [of("n1"), of("n2")]);
    api.apply(&documents(site, family, first));
    let one = bird.await_from(&external, &["n2"]);
    assert!(one.contains("(64512,7)"), "{one}");
    bird.await_from(&cluster, &["n2"]);
    let kernel = lab.routes("n1").unwrap();
    let served_ranges = site.ranges.map(|range| range.parse::<Prefix>().unwrap());
    let served: Vec<_> = kernel
        .iter()
        .filter(|r| {
            r.destination()
                .is_some_and(|p| served_ranges.iter().any(|s| s.covers(&p)))
        })
        .collect();
    assert!(served.is_empty(), "{served:?}");
    // Outside of the ranges: not announced, whatever the service says.
    assert!(!bird.ask("show route").unwrap().contains(outside));
    arrives_at(lab, site, family, "n2");

    api.apply(&documents(site, family, second));
    bird.await_from(&external, &["n1"]);
    arrives_at(lab, site, family, "n1");
    let shown = lab.caracal("n1", &["services", "show"]).unwrap();
    assert!(shown.contains(&external), "{shown}");
    let address = site.service[1];
    assert!(
        shown.contains("SERVICE") && shown.contains("LoadBalancer"),
        "{shown}"
    );
    let explained = lab.caracal("n1", &["explain", address]).unwrap();
    assert!(explained.contains("shop/web"), "{explained}");
    let place = SocketAddr::new(address.parse().unwrap(), 80).to_string();
    let explained = lab.caracal("n1", &["explain", &place]).unwrap();
    assert!(explained.contains("shop/web"), "{explained}");
    let both = a_newcomer_takes_no_address(lab, &bird, site, [first, second]);
    let api = Services(lab);
    api.delete_all(&both);
    bird.await_from(&external, &[]);
    bird.await_from(external_range, &["n1", "n2"]);
    the_mesh_gets_a_password(lab, secrets);
    bird.await_from(external_range, &["n1", "n2"]);
}

/// Another Service with the same address and port, whose endpoint is on the other node: it is named
/// there, and not announced, also by a node that restarts.
/// `second` is what the older one has. Gives the documents of both.
fn a_newcomer_takes_no_address(
    lab: &mut Lab,
    bird: &Bird,
    site: Site,
    [first, second]: [[&PodState; 2]; 2],
) -> String {
    let family = focus(lab);
    let external = Prefix::host(site.service[1].parse().unwrap()).to_string();
    let older = documents(site, family, second);
    // By its name it would come before the other one.
    let newcomer = documents(site, family, first)
        .replace("name: web,", "name: a-web,")
        .replace(
            &format!("clusterIP: '{}'", site.service[0]),
            &format!("clusterIP: '{}1'", site.service[0]),
        )
        .replace("name: web-x7", "name: a-web-x7")
        .replace("service-name: web", "service-name: a-web")
        .replace(&format!(" healthCheckNodePort: {HEALTH},"), "");
    let both = format!("{older}---\n{newcomer}");
    let is_named = |lab: &Lab| {
        await_status(lab, "n2", 60 * SECOND, "the newcomer to be named", |s| {
            let named = |p: &Problem| p.code == "services.conflict" && p.reason.contains("a-web");
            match s.problems.iter().any(named) {
                true => Ok(()),
                false => Err(format!("{:?}", s.problems)),
            }
        });
        bird.await_from(&external, &["n1"]);
        arrives_at(lab, site, family, "n1");
    };
    // Kubernetes' API dates to the second, and what is as old as another one is no newcomer.
    let unix_seconds = || UNIX_EPOCH.elapsed().unwrap().as_secs();
    let older_was_there = unix_seconds();
    wait_until(5 * SECOND, "the next second", || {
        match unix_seconds() > older_was_there {
            true => Ok(()),
            false => Err("not yet".to_owned()),
        }
    })
    .unwrap();
    Services(lab).apply(&both);
    is_named(lab);
    lab.kill9_node("n2").unwrap();
    lab.start_node("n2").unwrap();
    is_named(lab);
    both
}

/// What the router sends to the external address comes to the endpoint on this node, which sees the
/// router's own address.
fn arrives_at(lab: &Lab, site: Site, family: Family, node: &str) {
    let (router, to) = (
        lab.netns("tor").unwrap(),
        (site.service[1].parse::<IpAddr>().unwrap(), 80).into(),
    );
    let own = caracal_tests::address_of(lab, "tor", family);
    let (server, client) =
        wait_until(
            60 * SECOND,
            &format!("{node} behind {to}"),
            || match VipConnection::open(&router, to) {
                Ok(c) if c.server.starts_with(&format!("{node}/")) => Ok((c.server, c.client)),
                other => Err(format!("{other:?}")),
            },
        )
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(node, 40)));
    assert_eq!(client, own, "{server} sees another client");
    // A load balancer would send it nowhere else.
    for (name, address) in ["n1", "n2"].into_iter().zip(site.nodes) {
        let verdict = if name == node { "200 OK" } else { "503 " };
        let asked: SocketAddr = (address.parse::<IpAddr>().unwrap(), HEALTH).into();
        wait_until(
            60 * SECOND,
            &format!("{verdict} from {name}"),
            || match health(&router, asked, "/anything") {
                Ok(reply) if reply.starts_with(&format!("HTTP/1.1 {verdict}")) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(name, 40)));
        // To one that sends to all nodes every node does.
        let reply = health(&router, (asked.ip(), PROXY_HEALTH).into(), "/healthz").unwrap();
        assert!(
            reply.starts_with("HTTP/1.1 200 OK") && reply.contains(r#""nodeEligible":true"#),
            "{name}: {reply}"
        );
    }
}

/// The answer to a load balancer.
fn health(netns: &str, asked: SocketAddr, path: &str) -> std::io::Result<String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&asked, 5 * SECOND)?;
        stream.set_read_timeout(Some(10 * SECOND))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).map(|_| reply)
    };
    run_in_netns(netns, ask).unwrap()
}

/// The document of docs/topologies.md that gives the mesh a password, with what the resource had.
fn documented(lab: &Lab) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/topologies.md");
    let page = std::fs::read_to_string(page).unwrap();
    let from = page.find("    apiVersion: projectcalico.org/v3\n    kind: BGPConfiguration");
    let lines = page[from.expect("the document")..].lines();
    let lines = lines.take_while(|line| line.starts_with("    "));
    let text: Vec<&str> = lines.map(str::trim_start).collect();
    let mut document: serde_json::Value = serde_saphyr::from_str(&text.join("\n")).unwrap();
    let had = calico_resource(lab, "bgpconfigurations", "default");
    let spec = document["spec"].as_object_mut().unwrap();
    for (key, value) in had["spec"].as_object().unwrap() {
        spec.insert(key.clone(), value.clone());
    }
    document.to_string()
}

/// As docs/topologies.md says: a file on every node, and one field. The sessions go on, and an
/// address alone opens none.
fn the_mesh_gets_a_password(lab: &Lab, secrets: &Path) {
    let families = lab.topology().families();
    let opens = || {
        let connects = |family: &Family| {
            let to = caracal_tests::address_of(lab, "n1", *family);
            let connect = || TcpStream::connect_timeout(&(to, 179).into(), 2 * SECOND).is_ok();
            run_in_netns(&lab.netns("n2").unwrap(), connect).unwrap()
        };
        families.iter().map(connects).collect::<Vec<_>>()
    };
    assert!(
        opens().iter().all(|open| *open),
        "before there is a password"
    );
    std::fs::write(secrets.join("bgp/mesh"), "4f1d6a90c2\n").unwrap();
    let file = lab.folder().path().join("mesh.json");
    std::fs::write(&file, documented(lab)).unwrap();
    let apply = ["topology", "apply", "--change", file.to_str().unwrap()];
    lab.caracal("n1", &apply)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let mesh = |node: &str| {
        let status = lab.node_status(node).map_err(|e| error_chain(&e))?;
        let peers = status.peers.into_iter().filter(|p| p.kind == "mesh");
        for peer in peers {
            let detail = lab.caracal(node, &["bgp", "peer", &peer.name, "-o", "json"]);
            let detail = detail.map_err(|e| error_chain(&e))?;
            let detail: serde_json::Value =
                serde_json::from_str(&detail).map_err(|e| e.to_string())?;
            if detail["md5"] != true || detail["state"] != "Established" {
                return Err(format!("{detail:#}"));
            }
        }
        Ok(())
    };
    for node in ["n1", "n2"] {
        wait_until(60 * SECOND, "the mesh with its password", || mesh(node))
            .unwrap_or_else(|e| panic!("{node}: {e}"));
    }
    wait_until(
        60 * SECOND,
        "no connection without the password",
        || match opens() {
            open if open.contains(&true) => Err(format!("{open:?}")),
            _ => Ok(()),
        },
    )
    .unwrap();
    await_settled(lab);
}
