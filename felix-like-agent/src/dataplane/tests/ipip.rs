//! IPIP: in a kernel that has the module (`CARACAL_UML=1`), and what is said in one that has not.

use super::*;

fn entries(mode: &str) -> Vec<(&'static str, &'static str, String)> {
    vec![
        node("a", "10.0.0.1/24", "10.244.0.1"),
        node("b", "10.0.0.2/24", "10.244.1.1"),
        node("c", "10.0.1.3/24", "10.244.2.1"),
        pool("p", "10.244.0.0/16", &format!(r#","ipipMode":"{mode}""#)),
        block("10.244.0.0/26", "a"),
        block("10.244.1.0/26", "b"),
        block("10.244.2.0/26", "c"),
    ]
}

fn routes() -> String {
    sh("ip route show proto 80 | sed 's/ *$//' | sort")
}

fn has_ipip() -> bool {
    Command::new("sh")
        .args(["-c", "ip link show tunl0 || (ip link add caraprobe type ipip remote 192.0.2.9 && ip link del caraprobe)"])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn tunl0_routes_and_address() {
    if std::env::var("CARACAL_UML").as_deref() != Ok("1") {
        println!("skipped: needs a kernel with the ipip module (CARACAL_UML=1)");
        return;
    }
    in_namespace("ipip::tunl0_routes_and_address", || async {
        lab();
        let mut node = Node::start(&entries("Always"));
        let always = "10.244.1.0/26 via 10.0.0.2 dev tunl0 onlink mtu 1480
10.244.2.0/26 via 10.0.1.3 dev tunl0 onlink mtu 1480
blackhole 10.244.0.0/26 metric 1000000
";
        wait_for("always", LIMIT, routes, |seen| seen == always).await;
        let status = node.settled().await;
        assert_eq!(status.problems, []);
        assert_eq!(status.kernel.tunnels, ["tunl0"]);
        assert!(sh("ip link show tunl0").contains("mtu 1480"));
        assert!(sh("ip addr show tunl0").contains("inet 10.244.0.1/32"));
        node.assert_quiet().await;
        // A route that BIRD left on tunl0 is ours to sweep.
        sh("ip route add 10.244.77.0/26 via 10.0.0.7 dev tunl0 onlink proto bird");
        let bird = || sh("ip route show proto bird");
        wait_for("the sweep", LIMIT, bird, str::is_empty).await;
        let (kind, name, value) = entries("CrossSubnet").swap_remove(3);
        node.put(kind, name, value);
        let cross = always.replace(
            "via 10.0.0.2 dev tunl0 onlink mtu 1480",
            "via 10.0.0.2 dev eth0 onlink",
        );
        wait_for("cross-subnet", LIMIT, routes, |seen| seen == cross).await;
        let (kind, name, value) = pool("p", "10.244.0.0/16", "");
        node.put(kind, name, value);
        let all = || routes() + &sh("ip addr show tunl0");
        wait_for("off", LIMIT, all, |seen| {
            !seen.contains("dev tunl0") && !seen.contains("10.244.0.1/32")
        })
        .await;
        node.settled().await;
        node.assert_quiet().await;
    });
}

#[test]
fn a_kernel_without_ipip_says_so() {
    in_namespace("ipip::a_kernel_without_ipip_says_so", || async {
        if has_ipip() {
            println!("skipped: this kernel has the ipip module");
            return;
        }
        lab();
        let node = Node::start(&entries("Always"));
        let status = node.settled().await;
        let reasons: Vec<_> = status.problems.iter().map(|p| p.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "pool p wants IPIP, but this kernel has no ipip module (Operation not supported (os error 95): Unknown device type): routes to b stay unencapsulated; load the module or use VXLAN",
                "pool p wants IPIP, but this kernel has no ipip module (Operation not supported (os error 95): Unknown device type): routes to c are not installed; load the module or use VXLAN",
            ]
        );
        assert_eq!(
            routes(),
            "10.244.1.0/26 via 10.0.0.2 dev eth0 onlink\nblackhole 10.244.0.0/26 metric 1000000\n"
        );
        assert!(!sh("ip -o link").contains("caracal-probe"));
        node.assert_quiet().await;
    });
}
