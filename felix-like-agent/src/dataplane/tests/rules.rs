//! Programs that hang: rules wait for them, and nothing else does.

use std::os::unix::fs::PermissionsExt;

use super::routes::{WANTED, routes, up};
use super::*;

/// Far less than the time after which a program that hangs is ended.
const AT_ONCE: Duration = Duration::from_secs(5);

/// An `nft` that is found first and does nothing for an hour.
fn hang() {
    std::fs::create_dir_all(programs()).unwrap();
    let (nft, new) = (programs().join("nft"), programs().join("new"));
    std::fs::write(&new, "#!/bin/sh\nexec sleep 3600\n").unwrap();
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(new, nft).unwrap();
}

fn heal() {
    std::fs::remove_dir_all(programs()).unwrap();
}

fn table() -> String {
    sh("PATH=/usr/sbin:/usr/bin:/sbin:/bin nft list table inet caracal 2>&1 || true")
}

#[test]
fn a_program_that_hangs_delays_no_route() {
    in_namespace("rules::a_program_that_hangs_delays_no_route", || async {
        let mut node = up().await;
        if node.settled().await.kernel.nat != "nft" {
            skip("it", "nftables");
            return;
        }
        let written = table();
        hang();
        // Somebody takes everything away, the rules last, so that they are being read meanwhile.
        sh(
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin nft delete table inet caracal
            ip route flush proto 80
            ip neigh flush dev cali123 nud permanent",
        );
        wait_for("the routes", AT_ONCE, routes, |seen| seen == WANTED).await;
        let neighbours = || sh("ip neigh show dev cali123 nud permanent");
        wait_for("the neighbours", AT_ONCE, neighbours, |seen| {
            seen.contains("10.244.0.5")
        })
        .await;
        // What changes the rules, too: a pod comes, in both families.
        sh(
            "ip link add cali456 type veth peer name pod2; ip link set cali456 up; ip link set pod2 up",
        );
        node.put(
            "workloadendpoints",
            "default/v",
            r#"{"metadata":{"name":"v","namespace":"default"},"spec":{"node":"a","interfaceName":"cali456",
                "ipNetworks":["10.244.0.6/32","fd00:10:244:1::6/128"],"mac":"02:00:00:00:00:06"}}"#
                .to_owned(),
        );
        let to_pod = || sh("ip route show dev cali456; ip -6 route show dev cali456 proto 80");
        wait_for("the pod's routes", AT_ONCE, to_pod, |seen| {
            seen.contains("10.244.0.6 ") && seen.contains("fd00:10:244:1::6 ")
        })
        .await;
        // What waits for its rules is not said to be in the kernel.
        node.put("ippools", "q", pool("q", "10.250.0.0/16", "").2);
        let revision = node.data.revision;
        let planned = |status: &AgentStatus| status.desired.revision == revision;
        let status = node.status_when("the plan", planned).await;
        assert!(status.kernel.revision < revision, "{status:#?}");
        assert!(status.rules_pending);
        // It is named, and tried again.
        let named = |status: &AgentStatus| {
            let mut problems = status.problems.iter();
            problems
                .any(|p| p.code == "agent.rules_unwritten" && p.reason.contains("did not finish"))
        };
        let status = node.status_when("the problem", named).await;
        assert!(status.kernel.revision < revision, "{status:#?}");
        sh("ip route flush proto 80");
        wait_for("the routes again", AT_ONCE, to_pod, |seen| {
            seen.contains("10.244.0.6 ")
        })
        .await;
        heal();
        let whole = |seen: &str| seen.contains("cali456") && seen.contains("chain antispoof");
        wait_for("the rules", LIMIT, table, whole).await;
        let healed = |status: &AgentStatus| status.kernel.revision == revision && !named(status);
        node.status_when("in step", healed).await;
        node.delete("workloadendpoints", "default/v");
        node.delete("ippools", "q");
        // Where its mark stands among the chains tells how it was written.
        let in_any_order = |table: &str| -> Vec<String> {
            let mut lines: Vec<_> = table.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        wait_for("as before", LIMIT, table, |seen| {
            in_any_order(seen) == in_any_order(&written)
        })
        .await;
    });
}

#[test]
fn a_freeze_does_not_wait_for_a_program_that_hangs() {
    let test = "rules::a_freeze_does_not_wait_for_a_program_that_hangs";
    in_namespace(test, || async {
        hang();
        let node = up().await;
        assert!(node.agent.status().borrow().rules_pending);
        let frozen = tokio::time::timeout(AT_ONCE, node.agent.freeze()).await;
        assert_eq!(frozen, Ok(Freezing::Frozen));
        heal();
        // A tool is not chosen because another one hangs.
        assert_eq!(node.agent.status().borrow().kernel.nat, "none");
        assert!(!table().contains("chain"), "{}", table());
        node.end().await;
    });
}
