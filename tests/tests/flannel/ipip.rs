//! The backend `ipip`, in a kernel that has it.

use std::time::Duration;

use caracal_lab::wait_for;
use caracal_tests::{await_datagrams, in_ipip_kernel};

use super::site::{PATIENCE, Site};
use super::{assert_none_lost, probe, subnet};

const IPIP: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0","Backend":{"Type":"ipip"}}"#;
/// A guest is slow; no lease is to end while it is busy.
const LEASE: Duration = Duration::from_secs(600);

#[test]
fn beside_a_foreign_node_and_through_a_kill() {
    in_ipip_kernel("ipip::beside_a_foreign_node_and_through_a_kill", scenario);
}

fn scenario() {
    let mut site = Site::new(&[1, 2, 3]);
    site.lease = LEASE;
    site.configure(IPIP);
    site.put_lease(
        "10.5.72.0-24",
        r#"{"PublicIP":"10.200.0.3","PublicIPv6":null,"BackendType":"ipip"}"#,
    );
    site.ip(
        "n3",
        &[
            "link add flannel.ipip type ipip local 10.200.0.3".to_owned(),
            "link set flannel.ipip mtu 1480 up".to_owned(),
            "addr add 10.5.72.0/32 dev flannel.ipip".to_owned(),
        ],
    );
    site.start_node(1, &[]);
    site.start_node(2, &[]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    for (node, bridge) in (1..).zip(&bridges) {
        let subnet = subnet(bridge);
        let way = format!("via 10.200.0.{node} dev flannel.ipip onlink");
        site.ip("n3", &[format!("route replace {subnet}/24 {way}")]);
    }
    assert!(site.subnet_env(1).contains("\nFLANNEL_MTU=1480\n"));
    let pods = [
        site.start_pod(1, &bridges[0], 1480),
        site.start_pod(2, &bridges[1], 1480),
        site.start_pod(3, "10.5.72.1/24", 1480),
    ];
    for (from, to) in [(1u8, 2u8), (2, 1), (1, 3), (3, 1)] {
        site.await_ping(from, &pods[usize::from(to) - 1], 1480);
    }
    looks_like_flannelds(&site, &bridges);
    dies_and_comes_back(&mut site, &pods);
    // Somebody deletes the device.
    site.ip("n1", &["link del flannel.ipip".to_owned()]);
    site.await_ping(1, &pods[1], 1480);
    site.await_ping(3, &pods[0], 1480);
    changes_and_comes_back(&mut site, &pods);
    // The foreign node leaves.
    let prefix = super::PREFIX;
    site.etcdctl(&["del", &format!("{prefix}/subnets/10.5.72.0-24")]);
    let gone = |lines: &[String]| !lines.iter().any(|l| l.contains("10.5.72.0"));
    site.await_lines("n1", &["route"], "no route to it", gone);
    site.await_ping(1, &pods[1], 1480);
}

/// The foreign node stays what it is, and is reached as before.
fn changes_and_comes_back(site: &mut Site, pods: &[String; 3]) {
    let pairs = [(1u8, 2u8), (2, 1), (1, 3), (3, 1)];
    let flows = pairs.map(|(from, to)| probe(site, from, to, &pods[usize::from(to) - 1]));
    for (backend, name) in [("host-gw", "host-gw"), ("udp", ""), ("ipip", "ipip")] {
        site.configure(&IPIP.replace("\"ipip\"", &format!("\"{backend}\"")));
        for node in [1u8, 2] {
            let lease = || site.lease(node).unwrap().1;
            let is_it = |lease: &serde_json::Value| {
                lease["BackendType"].as_str().unwrap_or_default() == name
            };
            wait_for(PATIENCE, backend, lease, is_it).unwrap();
        }
        await_datagrams(&flows[0], 5000);
        let way = "10.5.72.0/24 via 10.200.0.3 dev flannel.ipip";
        let leads = |lines: &[String]| lines.iter().any(|line| line.contains(way));
        site.await_lines("n1", &["route"], way, leads);
    }
    for flow in flows {
        assert_none_lost("IPIP, host-gw, udp, IPIP beside a node of IPIP", flow);
    }
}

/// Device, address, routes and lease of node 1.
fn looks_like_flannelds(site: &Site, bridges: &[String; 2]) {
    let device = site.show("n1", &["link", "show", "flannel.ipip"]).join(" ");
    for says in [
        "mtu 1480",
        "link/ipip 10.200.0.1",
        "ipip remote any local 10.200.0.1",
    ] {
        assert!(device.contains(says), "{says}: {device}");
    }
    let own = format!("inet {}/32", subnet(&bridges[0]));
    let addresses = site.show("n1", &["addr", "show", "flannel.ipip"]).join(" ");
    assert!(addresses.contains(&own), "{own}: {addresses}");
    let routes = site.show("n1", &["route"]).join("\n");
    for (subnet, node) in [(subnet(&bridges[1]), 2), ("10.5.72.0".to_owned(), 3)] {
        let route = format!("{subnet}/24 via 10.200.0.{node} dev flannel.ipip proto 82 ");
        let is_it = |line: &str| line.contains(&route) && line.contains("onlink");
        assert!(routes.lines().any(is_it), "{route}: {routes}");
    }
    let (_, lease) = site.lease(1).unwrap();
    assert_eq!(
        lease.to_string(),
        r#"{"PublicIP":"10.200.0.1","PublicIPv6":null,"BackendType":"ipip"}"#
    );
}

/// Node 1 is killed; what comes back finds its device and leaves it as it is.
fn dies_and_comes_back(site: &mut Site, pods: &[String; 3]) {
    let index = |site: &Site| site.show("n1", &["link", "show", "flannel.ipip"])[0].clone();
    let before = index(site);
    let flows = [probe(site, 2, 1, &pods[0]), probe(site, 1, 3, &pods[2])];
    site.end("n1", "-KILL");
    await_datagrams(&flows[0], 500);
    site.start_again(1, &[]);
    let taken = || site.log(1).matches("lease: own lease").count();
    wait_for(PATIENCE, "its lease", taken, |n| *n >= 1).unwrap();
    await_datagrams(&flows[0], 500);
    for flow in flows {
        assert_none_lost("IPIP, a node that was killed and started", flow);
    }
    let number = |line: &str| line.split(':').next().unwrap().to_owned();
    assert_eq!(number(&index(site)), number(&before), "the same device");
}
