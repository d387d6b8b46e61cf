use super::*;
use crate::nat::example;

const RESTORED: &str = "*nat
:caracal-outgoing - [0:0]
:caracal-postrouting - [0:0]
-I POSTROUTING 1 -j caracal-postrouting
-A caracal-postrouting -s 10.244.0.0/16 -j caracal-outgoing
-A caracal-postrouting ! -s 10.244.3.64/32 -o tunl0 -m addrtype --src-type LOCAL -j MASQUERADE
-A caracal-outgoing -d 10.244.0.0/16 -j RETURN
-A caracal-outgoing -d 10.245.0.0/16 -j RETURN
-A caracal-outgoing -j MASQUERADE
COMMIT
*filter
:caracal-balanced - [0:0]
:caracal-bgp - [0:0]
:caracal-forward - [0:0]
:caracal-input - [0:0]
:caracal-loops - [0:0]
:caracal-nodes - [0:0]
:caracal-output - [0:0]
:caracal-routers - [0:0]
:caracal-senders - [0:0]
:caracal-translated - [0:0]
-I FORWARD 1 -j caracal-forward
-I INPUT 1 -j caracal-input
-I OUTPUT 1 -j caracal-output
-A caracal-forward -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-input -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-input -d 127.0.0.0/8 -i cali+ -j DROP
-A caracal-forward -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-forward -p tcp -m tcp --dport 179 -j caracal-translated
-A caracal-forward -p tcp -m tcp --dport 1179 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 3784 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 4784 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 4789 -j caracal-translated
-A caracal-input -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -p tcp -m tcp --dport 179 -j caracal-translated
-A caracal-input -p tcp -m tcp --dport 1179 -j caracal-translated
-A caracal-input -p udp -m udp --dport 3784 -j caracal-translated
-A caracal-input -p udp -m udp --dport 4784 -j caracal-translated
-A caracal-input -p udp -m udp --dport 4789 -j caracal-translated
-A caracal-output -p tcp -m tcp --dport 179 -j caracal-balanced
-A caracal-output -p tcp -m tcp --dport 1179 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 3784 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 4784 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 4789 -j caracal-balanced
-A caracal-balanced -m owner --socket-exists -j RETURN
-A caracal-balanced -m conntrack --ctdir REPLY -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 179 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 1179 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 3784 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 4784 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 4789 -j RETURN
-A caracal-balanced -s 10.244.3.80/32 -j RETURN
-A caracal-balanced -s 192.0.2.1/32 -j RETURN
-A caracal-balanced -j caracal-nodes
-A caracal-balanced -d 192.0.2.1/32 -j DROP
-A caracal-nodes -m addrtype --dst-type LOCAL -j DROP
-A caracal-nodes -d 10.0.0.1/32 -j DROP
-A caracal-nodes -d 10.0.0.2/32 -j DROP
-A caracal-bgp -s 10.244.3.80/32 -j RETURN
-A caracal-bgp -i cali123 -m addrtype --dst-type LOCAL -j RETURN
-A caracal-bgp -j caracal-nodes
-A caracal-bgp -d 192.0.2.1/32 -j caracal-routers
-A caracal-routers -s 10.244.0.0/16 -j DROP
-A caracal-translated -m conntrack ! --ctstate DNAT -j RETURN
-A caracal-translated -m conntrack --ctdir REPLY -j RETURN
-A caracal-translated -i lo -j RETURN
-A caracal-translated -i cali+ -j RETURN
-A caracal-translated -s 192.0.2.1/32 -j RETURN
-A caracal-translated -j caracal-nodes
-A caracal-translated -d 192.0.2.1/32 -j DROP
-A caracal-forward -d 10.96.0.0/12 -j caracal-loops
-A caracal-forward -d 198.51.100.0/24 -j caracal-loops
-A caracal-output -d 10.96.0.0/12 ! -o lo -j caracal-loops
-A caracal-output -d 198.51.100.0/24 ! -o lo -j caracal-loops
-A caracal-loops -m conntrack --ctstate DNAT -j RETURN
-A caracal-loops -o cali+ -j RETURN
-A caracal-loops -d 10.96.0.1/32 -j RETURN
-A caracal-loops -d 10.100.0.0/16 -j RETURN
-A caracal-loops -j DROP
-A caracal-forward -i cali+ -j ACCEPT
-A caracal-forward -o cali+ -j ACCEPT
-A caracal-input -p ipencap -j caracal-senders
-A caracal-input -p udp -m udp --dport 4789 -j caracal-senders
-A caracal-senders -s 10.0.0.1/32 -j RETURN
-A caracal-senders -s 192.0.2.0/24 -j RETURN
-A caracal-senders -j DROP
COMMIT
*raw
:caracal-antispoof - [0:0]
-I PREROUTING 1 -j caracal-antispoof
-A caracal-antispoof -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-antispoof -i cali+ -p ipencap -j DROP
-A caracal-antispoof -d 127.0.0.0/8 -i cali+ -j DROP
-A caracal-antispoof -s 10.244.3.66/32 -i cali123 -j RETURN
-A caracal-antispoof -i cali123 -j DROP
COMMIT
";

/// As printed by iptables-legacy-save 1.8 after restoring the above.
const SAVED: &str = "# Generated by iptables-save v1.8.9
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:caracal-balanced - [0:0]
:caracal-bgp - [0:0]
:caracal-forward - [0:0]
:caracal-input - [0:0]
:caracal-loops - [0:0]
:caracal-nodes - [0:0]
:caracal-output - [0:0]
:caracal-routers - [0:0]
:caracal-senders - [0:0]
:caracal-translated - [0:0]
-A INPUT -j caracal-input
-A FORWARD -j caracal-forward
-A FORWARD -i docker0 -j ACCEPT
-A OUTPUT -j caracal-output
-A caracal-balanced -m owner --socket-exists -j RETURN
-A caracal-balanced -m conntrack --ctdir REPLY -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 179 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 1179 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 3784 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 4784 -j RETURN
-A caracal-balanced -m conntrack --ctorigdstport 4789 -j RETURN
-A caracal-balanced -s 10.244.3.80/32 -j RETURN
-A caracal-balanced -s 192.0.2.1/32 -j RETURN
-A caracal-balanced -j caracal-nodes
-A caracal-balanced -d 192.0.2.1/32 -j DROP
-A caracal-bgp -s 10.244.3.80/32 -j RETURN
-A caracal-bgp -i cali123 -m addrtype --dst-type LOCAL -j RETURN
-A caracal-bgp -j caracal-nodes
-A caracal-bgp -d 192.0.2.1/32 -j caracal-routers
-A caracal-forward -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-forward -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-forward -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-forward -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-forward -p tcp -m tcp --dport 179 -j caracal-translated
-A caracal-forward -p tcp -m tcp --dport 1179 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 3784 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 4784 -j caracal-translated
-A caracal-forward -p udp -m udp --dport 4789 -j caracal-translated
-A caracal-forward -d 10.96.0.0/12 -j caracal-loops
-A caracal-forward -d 198.51.100.0/24 -j caracal-loops
-A caracal-forward -i cali+ -j ACCEPT
-A caracal-forward -o cali+ -j ACCEPT
-A caracal-input -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-input -d 127.0.0.0/8 -i cali+ -j DROP
-A caracal-input -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp
-A caracal-input -i cali+ -p tcp -m tcp --dport 1179 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 3784 -j caracal-bgp
-A caracal-input -i cali+ -p udp -m udp --dport 4784 -j caracal-bgp
-A caracal-input -p tcp -m tcp --dport 179 -j caracal-translated
-A caracal-input -p tcp -m tcp --dport 1179 -j caracal-translated
-A caracal-input -p udp -m udp --dport 3784 -j caracal-translated
-A caracal-input -p udp -m udp --dport 4784 -j caracal-translated
-A caracal-input -p udp -m udp --dport 4789 -j caracal-translated
-A caracal-input -p ipencap -j caracal-senders
-A caracal-input -p udp -m udp --dport 4789 -j caracal-senders
-A caracal-loops -m conntrack --ctstate DNAT -j RETURN
-A caracal-loops -o cali+ -j RETURN
-A caracal-loops -d 10.96.0.1/32 -j RETURN
-A caracal-loops -d 10.100.0.0/16 -j RETURN
-A caracal-loops -j DROP
-A caracal-output -p tcp -m tcp --dport 179 -j caracal-balanced
-A caracal-output -p tcp -m tcp --dport 1179 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 3784 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 4784 -j caracal-balanced
-A caracal-output -p udp -m udp --dport 4789 -j caracal-balanced
-A caracal-output -d 10.96.0.0/12 ! -o lo -j caracal-loops
-A caracal-output -d 198.51.100.0/24 ! -o lo -j caracal-loops
-A caracal-routers -s 10.244.0.0/16 -j DROP
-A caracal-senders -s 10.0.0.1/32 -j RETURN
-A caracal-senders -s 192.0.2.0/24 -j RETURN
-A caracal-senders -j DROP
-A caracal-nodes -m addrtype --dst-type LOCAL -j DROP
-A caracal-nodes -d 10.0.0.1/32 -j DROP
-A caracal-nodes -d 10.0.0.2/32 -j DROP
-A caracal-translated -m conntrack ! --ctstate DNAT -j RETURN
-A caracal-translated -m conntrack --ctdir REPLY -j RETURN
-A caracal-translated -i lo -j RETURN
-A caracal-translated -i cali+ -j RETURN
-A caracal-translated -s 192.0.2.1/32 -j RETURN
-A caracal-translated -j caracal-nodes
-A caracal-translated -d 192.0.2.1/32 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:caracal-outgoing - [0:0]
:caracal-postrouting - [0:0]
-A POSTROUTING -j caracal-postrouting
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A caracal-outgoing -d 10.244.0.0/16 -j RETURN
-A caracal-outgoing -d 10.245.0.0/16 -j RETURN
-A caracal-outgoing -j MASQUERADE
-A caracal-postrouting -s 10.244.0.0/16 -j caracal-outgoing
-A caracal-postrouting ! -s 10.244.3.64/32 -o tunl0 -m addrtype --src-type LOCAL -j MASQUERADE
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:caracal-antispoof - [0:0]
-A PREROUTING -j caracal-antispoof
-A caracal-antispoof -i cali+ -p udp -m udp --dport 4789 -j DROP
-A caracal-antispoof -i cali+ -p ipencap -j DROP
-A caracal-antispoof -d 127.0.0.0/8 -i cali+ -j DROP
-A caracal-antispoof -s 10.244.3.66/32 -i cali123 -j RETURN
-A caracal-antispoof -i cali123 -j DROP
COMMIT
";

#[test]
fn a_policy_that_drops_is_seen() {
    assert!(drops_forward(SAVED));
    assert!(!drops_forward(
        &SAVED.replace("FORWARD DROP", "FORWARD ACCEPT")
    ));
    assert!(!drops_forward(""));
    let nat = example();
    let beside_nftables = SAVED
        .lines()
        .filter(|line| {
            let of_others =
                "-input -senders -bgp -routers -loops -output -nodes -translated -balanced 4789";
            !of_others.split(' ').any(|of| line.contains(of))
        })
        .fold(String::new(), |text, line| text + line + "\n");
    assert_eq!(
        compare_forward(&nat, &beside_nftables),
        RulesComparison::Wanted
    );
    let script = restore_forward(&nat, "");
    assert!(
        script.starts_with("*filter\n") && !script.contains("*nat"),
        "{script}"
    );
}

#[test]
fn the_first_restore_makes_chains_and_jumps() {
    let nat = example();
    assert_eq!(restore(&nat, &nat.ipv4, ""), RESTORED);
    let again = restore(&nat, &nat.ipv4, SAVED);
    assert!(!again.contains("-I "), "the jumps are there:\n{again}");
}

#[test]
fn what_is_there_is_compared_line_by_line() {
    let nat = example();
    let compare = |saved: &str| super::compare(&nat, &nat.ipv4, saved);
    assert_eq!(compare(SAVED), RulesComparison::Wanted);
    assert_eq!(compare(""), RulesComparison::Nothing);
    assert_eq!(
        compare("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n"),
        RulesComparison::Nothing
    );
    for gone in [
        "-A POSTROUTING -j caracal-postrouting\n",
        "-A caracal-outgoing -d 10.244.0.0/16 -j RETURN\n",
        "-A caracal-forward -i cali+ -j ACCEPT\n",
        "-A INPUT -j caracal-input\n",
        "-A caracal-senders -s 192.0.2.0/24 -j RETURN\n",
        "-A caracal-nodes -d 10.0.0.2/32 -j DROP\n",
        "-A caracal-translated -j caracal-nodes\n",
        "-A caracal-input -i cali+ -p tcp -m tcp --dport 179 -j caracal-bgp\n",
        "-A caracal-antispoof -i cali123 -j DROP\n",
    ] {
        assert_eq!(
            compare(&SAVED.replace(gone, "")),
            RulesComparison::Different,
            "{gone}"
        );
    }
    let swapped = SAVED.replace(
        "-A caracal-outgoing -d 10.245.0.0/16 -j RETURN\n-A caracal-outgoing -j MASQUERADE\n",
        "-A caracal-outgoing -j MASQUERADE\n-A caracal-outgoing -d 10.245.0.0/16 -j RETURN\n",
    );
    assert_eq!(compare(&swapped), RulesComparison::Different);
}

/// As ip6tables-legacy-save prints it.
#[test]
fn unused_addresses_of_ipv6_are_refused_in_its_own_words() {
    let nat = example();
    let text = restore(&nat, &nat.ipv6, "");
    for line in [
        "-A caracal-output -d fd00:96::/108 ! -o lo -j caracal-loops\n",
        "-A caracal-loops -m conntrack --ctstate INVALID -j DROP\n",
        "-A caracal-loops -j REJECT --reject-with icmp6-port-unreachable\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn too_many_senders_are_not_judged_one_by_one() {
    let mut nat = example();
    let senders = nat.ipv4.senders.as_mut().unwrap();
    let hosts = (0..=255u8).map(|n| Prefix::v4([10, 0, 1, n].into(), 32));
    senders.from = hosts.collect();
    let of = |nat: &Nat| restore(nat, &nat.ipv4, "");
    assert!(of(&nat).contains("-A caracal-senders -s 10.0.1.255/32 -j RETURN"));
    let senders = nat.ipv4.senders.as_mut().unwrap();
    senders.from.insert(Prefix::v4([10, 0, 2, 0].into(), 32));
    nat.ipv4.bgp = None;
    nat.no_vxlan_from_workloads = None;
    nat.ipv4.loopback = None;
    let text = of(&nat);
    assert!(!text.contains("-A caracal-input") && !text.contains("-A caracal-senders"));
    assert!(text.contains(":caracal-input - [0:0]"));
}

#[test]
fn removal_takes_ours_alone() {
    assert_eq!(
        removal(SAVED),
        "*nat\n-D POSTROUTING -j caracal-postrouting\n-F caracal-outgoing\n-F caracal-postrouting\n-X caracal-outgoing\n-X caracal-postrouting\nCOMMIT\n*filter\n-D INPUT -j caracal-input\n-D FORWARD -j caracal-forward\n-D OUTPUT -j caracal-output\n-F caracal-balanced\n-F caracal-bgp\n-F caracal-forward\n-F caracal-input\n-F caracal-loops\n-F caracal-nodes\n-F caracal-output\n-F caracal-routers\n-F caracal-senders\n-F caracal-translated\n-X caracal-balanced\n-X caracal-bgp\n-X caracal-forward\n-X caracal-input\n-X caracal-loops\n-X caracal-nodes\n-X caracal-output\n-X caracal-routers\n-X caracal-senders\n-X caracal-translated\nCOMMIT\n*raw\n-D PREROUTING -j caracal-antispoof\n-F caracal-antispoof\n-X caracal-antispoof\nCOMMIT\n"
    );
    assert_eq!(removal(""), "");
}

#[test]
fn the_guard_of_bgp_has_no_rule_of_each_pool_with_each_router() {
    let rules = |pools: u8, routers: u8| {
        let mut nat = example();
        let guard = nat.ipv4.bgp.get_or_insert_default();
        let pools = (0..pools).map(|n| format!("10.{n}.0.0/16").parse().unwrap());
        guard.masqueraded = pools.collect();
        let routers = (0..routers).map(|n| format!("192.0.2.{n}").parse().unwrap());
        guard.routers = routers.collect();
        restore(&nat, &nat.ipv4, "").lines().count()
    };
    assert_eq!(rules(100, 50) - rules(10, 50), 90);
    assert_eq!(rules(100, 50) - rules(100, 10), 5 * 40);
    assert_eq!(rules(100, 0), rules(10, 0));
}
