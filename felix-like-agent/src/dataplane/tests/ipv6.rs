//! The same for IPv6: what the kernel stores differs in small ways (metric 1024 for none,
//! blackholes on `lo`).

use super::*;

fn entries(mode: &str) -> Vec<(&'static str, &'static str, String)> {
    let node = |name: &'static str, n: u8| {
        let value = format!(
            r#"{{"metadata":{{"name":"{name}"}},"spec":{{"ipv6VXLANTunnelAddr":"fd00:10:244:{n}::1",
                "bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00:a::{n}/64"}}}}}}"#
        );
        ("nodes", name, value)
    };
    let workload = r#"{"metadata":{"name":"w","namespace":"default"},"spec":{"node":"a","interfaceName":"cali123",
        "ipNetworks":["fd00:10:244:1::5/128"],"mac":"02:00:00:00:00:05"}}"#;
    vec![
        node("a", 1),
        node("b", 2),
        pool("p", "fd00:10:244::/48", mode),
        block("fd00:10:244:1::/122", "a"),
        block("fd00:10:244:2::/122", "b"),
        ("workloadendpoints", "default/w", workload.to_owned()),
    ]
}

fn routes() -> String {
    sh("ip -6 route show proto 80 | sed 's/ *$//' | sort")
}

#[test]
fn vxlan_direct_blackhole_and_workload() {
    in_namespace("ipv6::vxlan_direct_blackhole_and_workload", || async {
        if !std::path::Path::new("/proc/sys/net/ipv6").is_dir() {
            println!("skipped: this kernel has no IPv6");
            return;
        }
        lab();
        sh(
            "ip link add cali123 type veth peer name pod; ip link set cali123 up; ip link set pod up",
        );
        let mut node = Node::start(&entries(r#","vxlanMode":"Always""#));
        let local = "blackhole fd00:10:244:1::/122 dev lo metric 1000000 pref medium
fd00:10:244:1::5 dev cali123 metric 1024 pref medium
";
        let vxlan = format!(
            "{local}fd00:10:244:2::/122 via fd00:10:244:2::1 dev vxlan-v6.calico metric 1024 onlink mtu 1430 pref medium
fd00:10:244:2::1 dev vxlan-v6.calico metric 1024 mtu 1430 pref medium\n"
        );
        wait_for("VXLAN", LIMIT, routes, |seen| seen == vxlan).await;
        let status = node.settled().await;
        assert_eq!(status.problems, []);
        assert!(sh("bridge fdb show dev vxlan-v6.calico").contains("dst fd00:a::2 self permanent"));
        assert!(
            sh("ip -6 neigh show dev vxlan-v6.calico nud permanent").contains("fd00:10:244:2::1 ")
        );
        assert!(sh("ip -6 addr show dev vxlan-v6.calico").contains("fd00:10:244:1::1/128"));
        let forwarding = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").unwrap();
        assert_eq!(forwarding.trim(), "1");
        node.assert_quiet().await;
        // To unencapsulated: replaced in place.
        node.learn(&[("fd00:10:244:2::/122", "fd00:a::2")]);
        let (kind, name, value) = pool("p", "fd00:10:244::/48", "");
        node.put(kind, name, value);
        let direct = format!(
            "{local}fd00:10:244:2::/122 via fd00:a::2 dev eth0 metric 1024 onlink pref medium\n"
        );
        wait_for("direct", LIMIT, routes, |seen| seen == direct).await;
        let links = || sh("ip -o link");
        wait_for("no device", LIMIT, links, |seen| !seen.contains("vxlan-v6")).await;
        node.settled().await;
        node.assert_quiet().await;
        // And back, over a route that leads to the very gateway: the kernel asks for the VTEP on
        // the link first.
        let (kind, name, value) = pool("p", "fd00:10:244::/48", r#","vxlanMode":"Always""#);
        node.put(kind, name, value);
        wait_for("VXLAN again", LIMIT, routes, |seen| seen == vxlan).await;
        assert_eq!(node.settled().await.problems, []);
        let (kind, name, value) = pool("p", "fd00:10:244::/48", "");
        node.put(kind, name, value);
        wait_for("direct again", LIMIT, routes, |seen| seen == direct).await;
        wait_for("no device again", LIMIT, links, |seen| {
            !seen.contains("vxlan-v6")
        })
        .await;
        node.settled().await;
        let mut multipath = SharedMap::default();
        let hops = ["fd00:a::2", "fd00:a::3"]
            .map(|h| h.parse().unwrap())
            .to_vec();
        multipath.insert(
            "fd00:10:244:2::/122".parse().unwrap(),
            Learned {
                next_hops: hops,
                gateways: Arc::default(),
                internal: true,
                stale: false,
                preferred_source: None,
            },
        );
        node.learned.send_replace(multipath);
        wait_for("multipath", LIMIT, routes, |seen| {
            seen.contains("nexthop via fd00:a::2") && seen.contains("nexthop via fd00:a::3")
        })
        .await;
        node.assert_quiet().await;
        node.learn(&[("fd00:10:244:2::/122", "fd00:a::2")]);
        wait_for("one path", LIMIT, routes, |seen| seen == direct).await;
        sh("ip -6 route flush proto 80");
        wait_for("the repair", LIMIT, routes, |seen| seen == direct).await;
        node.assert_quiet().await;
        // A source that the routes name, kept by a kernel that has no such thing for blackholes.
        let source = r#"{"metadata":{"name":"default"},"spec":{"deviceRouteSourceAddressIPv6":"fd00:a::1"}}"#;
        node.put("felixconfigurations", "default", source.to_owned());
        wait_for("a source", LIMIT, routes, |seen| {
            let mut lines = seen.lines();
            seen != direct && lines.all(|l| l.contains("src fd00:a::1") != l.contains("blackhole"))
        })
        .await;
        node.settled().await;
        node.assert_quiet().await;
        node.delete("felixconfigurations", "default");
        wait_for("no source", LIMIT, routes, |seen| seen == direct).await;
    });
}
