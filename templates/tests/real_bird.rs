//! Three real BIRD 2 daemons in network namespaces: two run what we render, the third is a router
//! outside of the cluster. Routes flow, the kernel has them, and nothing else gets out.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caracal_model::Snapshot;
use caracal_templates::{Daemon, Options, Role, Tunnelled, parse, render};
use caracal_topologies::{PlanOptions, assign_block, plan, resources_from_yaml, tunnelled_pools};

const CLUSTER: &str = "
kind: IPPool
metadata: {name: plain}
spec: {cidr: 10.244.0.0/16}
---
kind: IPPool
metadata: {name: tunnelled}
spec: {cidr: 10.245.0.0/16, vxlanMode: Always}
---
kind: IPPool
metadata: {name: six}
spec: {cidr: 'fd00:10::/48'}
---
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64'}}
---
kind: Node
metadata: {name: b}
spec: {bgp: {ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64'}}
---
kind: BGPConfiguration
metadata: {name: default}
spec: {prefixAdvertisements: [{cidr: 10.244.0.0/16, communities: ['64512:50']}]}
---
kind: BGPPeer
metadata: {name: tor}
spec: {peerIP: 10.0.0.254, asNumber: 65100, filters: [blocks-only]}
---
kind: BGPFilter
metadata: {name: blocks-only}
spec:
  exportV4:
  - {cidr: 10.244.0.0/16, matchOperator: In, prefixLength: {max: 26}, action: Accept,
     operations: [{addCommunity: {value: '65000:7'}}, {prependASPath: {prefix: [64999, 64998]}}]}
  - {action: Reject}
";

/// A router that knows nothing of us; it offers one route.
const TOR: &str = "
router id 10.0.0.254;
log stderr all;
protocol device { scan time 2; }
protocol static { ipv4; route 10.99.0.0/24 blackhole; }
protocol bgp a { local 10.0.0.254 as 65100; neighbor 10.0.0.1 as 64512; multihop; connect delay time 1; ipv4 { import all; export where source = RTS_STATIC; }; }
protocol bgp b { local 10.0.0.254 as 65100; neighbor 10.0.0.2 as 64512; multihop; connect delay time 1; ipv4 { import all; export where source = RTS_STATIC; }; }
";

fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let file = resources_from_yaml(CLUSTER).unwrap();
    assert_eq!(file.apply(&mut snapshot), []);
    for (node, block) in [
        ("a", "10.244.0.0/26"),
        ("a", "10.245.0.0/26"),
        ("a", "fd00:10::/122"),
        ("b", "10.244.1.0/26"),
        ("b", "10.245.1.0/26"),
        ("b", "fd00:10::1:0/122"),
    ] {
        assign_block(&mut snapshot, &node.into(), block.parse().unwrap());
    }
    // A workload of a has an address out of b's block.
    let known = &snapshot.blocks[&"10.244.1.0/26".parse().unwrap()];
    let mut block = known.whole().unwrap().clone();
    block.allocations[5] = Some(0);
    block.unallocated.retain(|ordinal| *ordinal != 5);
    block.attributes.push(
        serde_json::from_str(r#"{"handle_id":"h","secondary":{"node":"a","pod":"p"}}"#).unwrap(),
    );
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26";
    snapshot.apply(path, Some(&block.to_json()), 99);
    snapshot
}

fn daemon_text(snapshot: &Snapshot, node: &str) -> String {
    let planned = plan(snapshot, &node.into(), &PlanOptions::default());
    assert_eq!(planned.problems, []);
    let tunnelled = tunnelled_pools(snapshot, &node.into())
        .into_iter()
        .map(|pool| Tunnelled {
            prefix: pool.prefix,
            encap: pool.encap,
            direct_within: pool.direct_within,
        })
        .collect();
    let options = Options {
        role: Role::Daemon(Daemon {
            tunnelled,
            ..Daemon::default()
        }),
        ..Options::default()
    };
    let text = render(&planned.config, &options).unwrap();
    assert_eq!(parse(&text).unwrap(), planned.config);
    text
}

/// Namespaces and daemons; both go when this goes.
struct Lab {
    tag: String,
    folder: PathBuf,
    namespaces: Vec<String>,
    daemons: Vec<Child>,
}

fn run(command: &str) -> Result<String, String> {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .map_err(|e| format!("{command}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        let why = String::from_utf8_lossy(&output.stderr);
        Err(format!("{command}: {why}"))
    }
}

impl Lab {
    /// A segment; `Err` when this machine does not let us.
    fn new() -> Result<Self, String> {
        run("bird --version").map_err(|e| format!("{e} (apt-get install bird2)"))?;
        let tag = format!("ctb{}", std::process::id());
        let folder = std::env::temp_dir().join(&tag);
        std::fs::create_dir_all(&folder).unwrap();
        let mut lab = Self {
            tag,
            folder,
            namespaces: Vec::new(),
            daemons: Vec::new(),
        };
        lab.namespace("lan")?;
        let lan = lab.name("lan");
        run(&format!("ip -n {lan} link add br0 type bridge"))?;
        run(&format!("ip -n {lan} link set br0 up"))?;
        Ok(lab)
    }

    fn name(&self, short: &str) -> String {
        format!("{}{short}", self.tag)
    }

    fn namespace(&mut self, short: &str) -> Result<(), String> {
        let name = self.name(short);
        run(&format!("ip netns add {name}"))?;
        run(&format!("ip -n {name} link set lo up"))?;
        self.namespaces.push(name);
        Ok(())
    }

    fn node(&mut self, short: &str, addresses: &[&str]) -> Result<(), String> {
        self.namespace(short)?;
        let (name, lan) = (self.name(short), self.name("lan"));
        run(&format!(
            "ip link add eth0 netns {name} type veth peer name {short} netns {lan}"
        ))?;
        run(&format!("ip -n {lan} link set dev {short} master br0 up"))?;
        run(&format!("ip -n {name} link set eth0 up"))?;
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            run(&format!("ip -n {name} addr add {address} dev eth0 {nodad}"))?;
        }
        Ok(())
    }

    fn bird(&mut self, short: &str, text: &str) {
        let name = self.name(short);
        let path = |end: &str| self.folder.join(format!("{short}.{end}"));
        std::fs::write(path("conf"), text).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &name, "bird", "-f", "-c"])
            .arg(path("conf"))
            .arg("-s")
            .arg(path("ctl"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        self.daemons.push(child);
    }

    fn birdc(&self, short: &str, command: &str) -> String {
        let socket = self.folder.join(format!("{short}.ctl"));
        run(&format!("birdc -r -s {} {command}", socket.display())).unwrap_or_else(|e| e)
    }

    fn routes(&self, short: &str) -> String {
        let name = self.name(short);
        let mut text = run(&format!("ip -n {name} route")).unwrap();
        text += &run(&format!("ip -n {name} -6 route")).unwrap();
        text
    }

    /// Polls until a text holds all of `parts`; on failure prints the last text seen and the logs.
    fn wait_for(&self, what: &str, parts: &[&str], look: impl Fn() -> String) -> String {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let text = look();
            let missing = parts.iter().find(|part| !text.contains(**part));
            let Some(missing) = missing else { return text };
            if Instant::now() > deadline {
                let mut logs = String::new();
                for node in ["a", "b", "tor"] {
                    let log = self.folder.join(format!("{node}.log"));
                    let log = std::fs::read_to_string(log).unwrap_or_default();
                    writeln!(logs, "--- {node}\n{log}").unwrap();
                }
                panic!("{what}: {missing:?} is not in\n{text}\n{logs}");
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for namespace in &self.namespaces {
            let _ = run(&format!("ip netns del {namespace}"));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn text_2_real_birds_exchange_routes_and_program_the_kernel() {
    let mut lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let snapshot = cluster();
    lab.node("a", &["10.0.0.1/24", "fd00::1/64"]).unwrap();
    lab.node("b", &["10.0.0.2/24", "fd00::2/64"]).unwrap();
    lab.node("tor", &["10.0.0.254/24"]).unwrap();
    for node in ["a", "b"] {
        lab.bird(node, &daemon_text(&snapshot, node));
    }
    lab.bird("tor", TOR);

    let at_b = lab.wait_for(
        "the kernel of b",
        &[
            "10.244.0.0/26 via 10.0.0.1 dev eth0 proto bird",
            "10.244.1.5 via 10.0.0.1 dev eth0 proto bird",
            "10.99.0.0/24 via 10.0.0.254 dev eth0 proto bird",
            "blackhole 10.244.1.0/26 proto bird",
            "fd00:10::/122 via fd00::1 dev eth0 proto bird",
            "blackhole fd00:10::1:0/122",
        ],
        || lab.routes("b"),
    );
    // The borrowed address has a workload on a: no blackhole there. Tunnelled ranges stay out of
    // the kernel.
    assert!(!at_b.contains("10.245.0.0/26"), "{at_b}");
    let at_a = lab.wait_for("the kernel of a", &["10.244.1.0/26 via 10.0.0.2"], || {
        lab.routes("a")
    });
    assert!(!at_a.contains("10.244.1.5"), "{at_a}");

    // A Calico node would read the same attributes.
    lab.wait_for(
        "attributes at b",
        &[
            "BGP.next_hop: 10.0.0.1",
            "BGP.local_pref: 2147482623",
            "BGP.community: (64512,50)",
        ],
        || lab.birdc("b", "show route all 10.244.0.0/26"),
    );
    lab.wait_for("b learns what it cannot program", &["10.0.0.1"], || {
        lab.birdc("b", "show route all 10.245.0.0/26")
    });

    // The router outside gets blocks with what the BGPFilter adds, from both nodes, and nothing
    // else.
    lab.wait_for(
        "the router",
        &[
            "BGP.as_path: 64512 64999 64998",
            "(65000,7)",
            "BGP.next_hop: 10.0.0.1",
            "BGP.next_hop: 10.0.0.2",
        ],
        || lab.birdc("tor", "show route all 10.244.0.0/26"),
    );
    let table = lab.birdc("tor", "show route");
    for absent in ["10.244.1.5/32", "10.245.0.0/26", "10.0.0.0/24"] {
        assert!(!table.contains(absent), "{table}");
    }
    // An external route is not passed on inside: it lies in no pool.
    let outside = lab.birdc("b", "show route all 10.99.0.0/24 protocol Mesh_10_0_0_1");
    assert!(!outside.contains("BGP.as_path"), "{outside}");
}
