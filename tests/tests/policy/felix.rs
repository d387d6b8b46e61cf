//! From Felix to Caracal under traffic: rules as each of its modes writes them are recognised and
//! go once this node's policies are in force; what keeps them, and whom they cut off, is told.

use caracal_lab::Lab;
use caracal_model::Family;
use caracal_tests::{
    Probes, SECOND, apply_nft, await_settled, await_status, either, exit_code, has_no_problem,
    has_problem, on_each_stack_of, put_etcd_resource, run_on,
};
use serde_json::json;

use super::await_pairs;

const TOPOLOGY: &str = "name: felix
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 2, env: {CARACAL_POLICY: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1}
";

#[test]
fn felix_is_replaced_under_traffic() {
    let programs = ["nft", "iptables-nft", "iptables-legacy"];
    let scenario = "felix_is_replaced_under_traffic";
    on_each_stack_of(scenario, &programs, TOPOLOGY, "felix", replaced);
}

/// Its nftables mode, shortened: interfaces of workloads that it does not know are dropped.
fn tables(family: Family, known: &str) -> String {
    let ip = either(family, "ip", "ip6");
    format!(
        "table {ip} calico {{
  chain filter-cali-fw-{known} {{ return; }}
  chain filter-cali-tw-{known} {{ return; }}
  chain filter-cali-from-wl-dispatch {{ iifname {known} goto filter-cali-fw-{known}; drop; }}
  chain filter-cali-to-wl-dispatch {{ oifname {known} goto filter-cali-tw-{known}; drop; }}
  chain filter-FORWARD {{
    type filter hook forward priority filter;
    iifname \"cali*\" jump filter-cali-from-wl-dispatch
    oifname \"cali*\" jump filter-cali-to-wl-dispatch
  }}
}}
table arp calico {{
  chain filter-OUTPUT {{ type filter hook output priority filter; }}
}}
"
    )
}

/// Its iptables mode, in the same words.
fn chains(lab: &Lab, node: &str, tool: &str, known: &str) {
    for rule in [
        "-N cali-FORWARD".to_owned(),
        format!("-N cali-fw-{known}"),
        format!("-N cali-tw-{known}"),
        "-N cali-from-wl-dispatch".to_owned(),
        format!("-A cali-from-wl-dispatch -i {known} -g cali-fw-{known}"),
        "-A cali-from-wl-dispatch -m comment --comment cali:Unknown -j DROP".to_owned(),
        "-N cali-to-wl-dispatch".to_owned(),
        format!("-A cali-to-wl-dispatch -o {known} -g cali-tw-{known}"),
        "-A cali-to-wl-dispatch -j DROP".to_owned(),
        "-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch".to_owned(),
        "-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch".to_owned(),
        "-I FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD".to_owned(),
        "-A FORWARD -m comment --comment cali:S93hcgKJrXEqnTfs -m mark --mark 0x10000/0x10000 -j ACCEPT"
            .to_owned(),
        "-t nat -N cali-POSTROUTING".to_owned(),
        "-t nat -A POSTROUTING -m comment --comment cali:O3lYWMrLQYEMJtB5 -j cali-POSTROUTING"
            .to_owned(),
    ] {
        run_on(lab, node, &format!("{tool} -w {rule}"));
    }
}

fn tools(family: Family) -> [&'static str; 2] {
    either(
        family,
        ["iptables-nft", "iptables-legacy"],
        ["ip6tables-nft", "ip6tables-legacy"],
    )
}

/// All of it, for all families.
fn felix(lab: &Lab, node: &str, known: &str) {
    for family in lab.topology().families() {
        for tool in tools(family) {
            chains(lab, node, tool, known);
        }
        apply_nft(lab, node, &tables(family, known));
    }
}

/// Rules of somebody else, which stay.
fn somebody(lab: &Lab, node: &str) {
    for tool in lab.topology().families().into_iter().flat_map(tools) {
        run_on(lab, node, &format!("{tool} -w -N somebody"));
        let rule = "-w -A FORWARD -m comment --comment calico -j somebody";
        run_on(lab, node, &format!("{tool} {rule}"));
    }
}

/// What there is of it, or the last of somebody else's that is not there.
fn rules(lab: &Lab, node: &str) -> Result<(), String> {
    let mut listed = vec![run_on(lab, node, "nft list ruleset")];
    for family in lab.topology().families() {
        let saved = run_on(
            lab,
            node,
            either(family, "iptables-legacy-save", "ip6tables-legacy-save"),
        );
        assert!(saved.contains("-j somebody"), "{saved}");
        listed.push(saved);
    }
    let words = ["cali-", "cali:", " calico {"];
    let found = listed.iter().flat_map(|text| text.lines());
    let found: Vec<&str> = found
        .filter(|line| words.iter().any(|word| line.contains(word)))
        .collect();
    assert!(listed[0].contains("chain somebody"), "{}", listed[0]);
    match found.is_empty() {
        true => Ok(()),
        false => Err(found.join("\n")),
    }
}

fn replaced(mut lab: Lab) {
    let open = json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]});
    put_etcd_resource(&lab, "Profile", "profiles", "kns.default", &open);
    await_settled(&lab);
    await_pairs(&lab, "all to be open", |_, _| true);
    let pods = lab.state().pods.clone();
    let on = |node: &str| pods.iter().filter(|p| p.node == node).collect::<Vec<_>>();
    let (ours, other) = (on("n1"), on("n2")[0]);
    let interface = |pod: &caracal_lab::PodState| pod.host_interface.clone().unwrap();
    let (known, unknown) = (interface(ours[0]), interface(ours[1]));
    let (first, second) = (ours[0].label(), other.label());
    let probes = Probes::start(&lab, &[(&first, &second), (&second, &first)]);
    probes.after(500);

    // Its rules, as a Felix leaves them that ended before the second pod came.
    lab.stop_node("n1").unwrap();
    for node in ["n1", "n2"] {
        somebody(&lab, node);
    }
    felix(&lab, "n1", &known);
    felix(&lab, "n2", &interface(other));
    let cut = ours[1].netns.clone();
    await_pairs(&lab, "an unknown pod to be cut off", |from, to| {
        from.netns != cut && to.netns != cut
    });
    probes.after(500);
    lab.restart_node("n1").unwrap();
    await_settled(&lab);
    await_pairs(&lab, "all to be open again", |_, _| true);
    assert_eq!(rules(&lab, "n1"), Ok(()));
    probes.after(500);

    // A Felix that goes on is not fought, and whom it cuts off is told.
    felix(&lab, "n1", &known);
    await_status(&lab, "n1", 90 * SECOND, "rules that are back", |status| {
        has_problem(status, "policy.felix", "are back")?;
        has_problem(status, "policy.felix_drops", &unknown)
    });
    assert!(
        rules(&lab, "n1").is_err(),
        "they are taken away again and again"
    );
    // Where policy is off they stay, and the node says so.
    await_status(&lab, "n2", 90 * SECOND, "rules with policy off", |status| {
        has_problem(status, "policy.felix", "CARACAL_POLICY=on")?;
        has_no_problem(status, "policy.felix_drops")
    });
    assert!(rules(&lab, "n2").is_err(), "n2 enforces nothing");
    let (code, plan) = exit_code(&lab, "n2", &["migrate", "plan"]);
    assert!(
        code == 0 && plan.contains("CARACAL_POLICY is off: they stay"),
        "{plan}"
    );

    // After the next start they go, and nothing is told any more.
    lab.kill9_node("n1").unwrap();
    lab.restart_node("n1").unwrap();
    await_status(&lab, "n1", 90 * SECOND, "nothing to tell", |status| {
        has_no_problem(status, "policy.felix")?;
        has_no_problem(status, "policy.felix_drops")
    });
    await_pairs(&lab, "all to be open at last", |_, _| true);
    assert_eq!(rules(&lab, "n1"), Ok(()));
    probes.assert_none_lost("from Felix to Caracal");
}
