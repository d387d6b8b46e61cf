//! From kube-proxy to Caracal and back, under connections: rules as each mode of kube-proxy writes
//! them are recognised, two never translate at once, and nothing is cut.

use std::net::{IpAddr, SocketAddr};

use caracal_lab::{Lab, PodState, error_chain, wait_until};
use caracal_model::Family;
use caracal_tests::{
    ConnectionLoad, EchoServer, PodEndpoint, SECOND, VipConnection, address_of, apply_nft,
    await_settled, either, endpoint_slices, exit_code, ip, on_each_stack_of, run_on,
};

use super::Services;
use super::translation::{vip, web_service};

/// Two nodes with two pods each; somebody must be the nodes' way to service addresses.
const TOPOLOGY: &str = "name: takeover
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 2, env: {CARACAL_SERVICES: auto}}
  - {name: out, segment: lan, address: 10.0.0.31, kind: plain}
";
const TARGET: u16 = 8080;

#[test]
fn services_change_hands_and_no_connection_is_cut() {
    on_each_stack_of(
        "services_change_hands_and_no_connection_is_cut",
        &["nft", "iptables-nft-save"],
        TOPOLOGY,
        "takeover",
        change_hands,
    );
}

/// Rules of a family as kube-proxy's nftables mode writes them, shortened: a map of services, a
/// chain for each.
pub(super) fn proxy_table(family: Family, server: IpAddr) -> String {
    let ip = either(family, "ip", "ip6");
    let addr = either(family, "ipv4_addr", "ipv6_addr");
    let to = SocketAddr::new(server, TARGET);
    format!(
        "table {ip} kube-proxy {{
  map service-ips {{ type {addr} . inet_proto . inet_service : verdict; }}
  chain endpoint {{ meta l4proto tcp dnat to {to}; }}
  chain services {{ {ip} daddr . meta l4proto . th dport vmap @service-ips; }}
  chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}
  chain nat-output {{ type nat hook output priority -100; jump services; }}
}}
add element {ip} kube-proxy service-ips {{ {} . tcp . 80 : goto endpoint }}
",
        vip(family)
    )
}

/// Chains as its iptables mode writes them.
fn proxy_chains(lab: &Lab, family: Family) {
    let tool = either(family, "iptables-nft", "ip6tables-nft");
    for rule in [
        "-t nat -N KUBE-SERVICES",
        "-t nat -N KUBE-SVC-ABCDEFGHIJKLMNO2",
        "-t nat -A PREROUTING -m comment --comment portals -j KUBE-SERVICES",
        "-t nat -A OUTPUT -m comment --comment portals -j KUBE-SERVICES",
        "-t nat -A KUBE-SERVICES -p tcp --dport 81 -j KUBE-SVC-ABCDEFGHIJKLMNO2",
        "-t mangle -N KUBE-KUBELET-CANARY",
    ] {
        run_on(lab, "n1", &format!("{tool} {rule}"));
    }
}

fn change_hands(mut lab: Lab) {
    await_settled(&lab);
    let families = lab.topology().families();
    for family in &families {
        let via = address_of(&lab, "out", *family);
        let way = format!(
            "route replace {} via {via}",
            either(*family, "default", "::/0")
        );
        ip(&lab, "n1", &[&way]);
    }
    let pods = lab.state().pods.clone();
    let (server, client) = (&pods[0], &pods[1]);
    let _server = EchoServer::start(server, &families, TARGET);
    place(&lab, &families, server);
    // kube-proxy has no rules: this node translates.
    await_shown(&lab, "shop/web");

    // It gets some, and so this node does not translate.
    lab.stop_node("n1").unwrap();
    for family in &families {
        apply_nft(
            &lab,
            "n1",
            &proxy_table(*family, server.address_of(*family).unwrap()),
        );
        proxy_chains(&lab, *family);
    }
    let clients = [
        (client.label(), client.netns.clone()),
        ("n1".to_owned(), lab.netns("n1").unwrap()),
    ];
    let targets: Vec<SocketAddr> = families.iter().map(|f| (vip(*f), 80).into()).collect();
    let load = ConnectionLoad::start(&clients, &targets, 50);
    lab.restart_node("n1").unwrap();
    await_shown(&lab, "kube-proxy has rules");
    assert!(!has_table(&lab), "two translators");
    let mut open: Vec<VipConnection> = Vec::new();
    let more = |open: &mut Vec<VipConnection>| {
        for (_, netns) in &clients {
            open.extend(
                targets
                    .iter()
                    .map(|to| VipConnection::open(netns, *to).unwrap()),
            );
        }
    };
    let work = |open: &mut Vec<VipConnection>, when: &str| {
        for connection in open {
            assert_eq!(
                connection.exchange(),
                Ok(()),
                "{} {when}",
                connection.server
            );
        }
    };
    more(&mut open);
    load.after(50);
    let (code, plan) = exit_code(&lab, "n1", &["migrate", "services", "plan"]);
    assert!(
        code == 0 && plan.contains("nftables") && plan.contains("iptables"),
        "{plan}"
    );
    assert!(!has_table(&lab), "a plan changes nothing");

    // To Caracal: its rules are gone, ours are there, kubelet's stay.
    let (code, said) = exit_code(&lab, "n1", &["migrate", "services", "apply"]);
    assert_eq!(code, 0, "{said}");
    assert!(has_table(&lab), "{said}");
    let rules = run_on(&lab, "n1", "nft list ruleset");
    assert!(
        !rules.contains("kube-proxy") && !rules.contains("KUBE-S"),
        "{rules}"
    );
    assert!(rules.contains("KUBE-KUBELET-CANARY"), "{rules}");
    work(&mut open, "with Caracal");
    more(&mut open);
    load.after(50);
    // It is remembered.
    lab.kill9_node("n1").unwrap();
    lab.restart_node("n1").unwrap();
    await_shown(&lab, "shop/web");

    // And back, but not to nobody.
    let (code, said) = exit_code(&lab, "n1", &["migrate", "services", "undo"]);
    assert_eq!(code, 5, "{said}");
    for family in &families {
        apply_nft(
            &lab,
            "n1",
            &proxy_table(*family, server.address_of(*family).unwrap()),
        );
    }
    let (code, said) = exit_code(&lab, "n1", &["migrate", "services", "undo"]);
    assert_eq!(code, 0, "{said}");
    assert!(!has_table(&lab), "{said}");
    work(&mut open, "with kube-proxy again");
    load.after(50);
    load.assert_none_lost("from kube-proxy and back");
}

fn place(lab: &Lab, families: &[Family], server: &PodState) {
    let endpoint = PodEndpoint {
        pod: server,
        port: TARGET,
        terminates: false,
    };
    let text = web_service(families) + &endpoint_slices("web", families, &[TARGET], &[endpoint]);
    Services(lab).caracal(&text, &["--wait"]);
}

fn await_shown(lab: &Lab, words: &str) {
    wait_until(60 * SECOND, words, || {
        let shown = lab.caracal("n1", &["services", "show", "--here"]);
        match shown.map_err(|e| error_chain(&e))? {
            shown if shown.contains(words) => Ok(()),
            shown => Err(shown),
        }
    })
    .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("n1", 40)));
}

fn has_table(lab: &Lab) -> bool {
    run_on(lab, "n1", "nft list tables").contains("table inet caracal-services")
}
