//! The rules as nft has them.

use super::super::example;
use super::*;

#[test]
fn the_script_replaces_the_table() {
    let fingerprint = example().fingerprint();
    let expected = r#"table inet caracal
delete table inet caracal
table inet caracal {
	chain fingerprint_FP {
	}
	chain ip_outgoing {
		ip daddr 10.244.0.0/16 return
		ip daddr 10.245.0.0/16 return
		masquerade
	}
	set ip_workloads {
		type ifname
		elements = { "cali123" }
	}
	set ip_sources {
		type ifname . ipv4_addr
		elements = { "cali123" . 10.244.3.66 }
	}
	chain ip_from_workloads {
		iifname . ip saddr @ip_sources return
		counter drop
	}
	set ip_bgp_peers {
		type ipv4_addr
		elements = { 10.244.3.80 }
	}
	set ip_bgp_nodes {
		type ipv4_addr
		elements = { 10.0.0.1, 10.0.0.2 }
	}
	set ip_bgp_routers {
		type ipv4_addr
		elements = { 192.0.2.1 }
	}
	chain ip_bgp_guard {
		ip saddr @ip_bgp_peers return
		iifname "cali123" fib daddr type local return
		fib daddr type local counter drop
		ip daddr @ip_bgp_nodes counter drop
		ip saddr 10.244.0.0/16 ip daddr @ip_bgp_routers counter drop
	}
	set ip_senders {
		type ipv4_addr
		elements = { 10.0.0.1 }
	}
	chain ip_tunnel_senders {
		ip saddr @ip_senders return
		ip saddr 192.0.2.0/24 return
		counter drop
	}
	chain antispoof {
		type filter hook prerouting priority -300; policy accept;
		iifname "cali*" udp dport 4789 drop
		iifname "cali*" meta l4proto 4 drop
		meta nfproto ipv4 iifname @ip_workloads jump ip_from_workloads
	}
	chain input {
		type filter hook input priority 0; policy accept;
		meta nfproto ipv4 iifname "cali*" tcp dport { 179, 1179 } jump ip_bgp_guard
		meta nfproto ipv4 iifname "cali*" udp dport { 3784, 4784 } jump ip_bgp_guard
		ip saddr 10.244.0.0/16 tcp dport { 179, 1179 } jump ip_bgp_guard
		ip saddr 10.244.0.0/16 udp dport { 3784, 4784 } jump ip_bgp_guard
		meta nfproto ipv4 meta l4proto 4 jump ip_tunnel_senders
		meta nfproto ipv4 udp dport 4789 jump ip_tunnel_senders
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		ip saddr 10.244.0.0/16 jump ip_outgoing
		oifname "tunl0" ip saddr != 10.244.3.64 fib saddr type local masquerade
	}
	chain forward {
		type filter hook forward priority 0; policy accept;
		meta nfproto ipv4 iifname "cali*" tcp dport { 179, 1179 } jump ip_bgp_guard
		meta nfproto ipv4 iifname "cali*" udp dport { 3784, 4784 } jump ip_bgp_guard
		ip saddr 10.244.0.0/16 tcp dport { 179, 1179 } jump ip_bgp_guard
		ip saddr 10.244.0.0/16 udp dport { 3784, 4784 } jump ip_bgp_guard
		iifname "cali*" accept
		oifname "cali*" accept
	}
}
"#;
    let script = script(&example());
    assert_eq!(script, expected.replace("FP", &fingerprint));
    assert_eq!(super::fingerprint(&script), Some(fingerprint.as_str()));
    // Decision 0040: a lookup in a set of intervals can fail while rules are replaced.
    assert!(!script.contains("flags interval"));
    assert_eq!(super::fingerprint("table inet caracal {\n}\n"), None);
}

#[test]
fn a_checksum_tells_what_somebody_changed() {
    let written = script(&example());
    let written_with = |text: &str, checksum: &str| {
        let chain = format!("chain {CHECKSUM}{checksum} {{\n\t}}\n\n\tchain antispoof");
        text.replacen("chain antispoof", &chain, 1)
    };
    let whole = written_with(&written, &checksum(&written));
    assert!(checksum_chain(&written).ends_with(&format!("{}\n", checksum(&written))));
    assert!(is_untouched(&whole));
    assert!(!is_untouched(&written), "nobody says how it was");
    for gone in [
        "\t\tmeta nfproto ipv4 iifname @ip_workloads jump ip_from_workloads\n",
        "\t\tmeta nfproto ipv4 udp dport 4789 jump ip_tunnel_senders\n",
        "192.0.2.0/24",
        "counter",
    ] {
        assert!(whole.contains(gone));
        assert!(!is_untouched(&whole.replacen(gone, "", 1)), "{gone}");
    }
    let counted = |n: u32| {
        let counter = format!("counter packets {n} bytes {n}0");
        written.replace("counter", &counter)
    };
    let checksum = checksum(&counted(0));
    for n in [0, 7] {
        let seen = written_with(&counted(n), &checksum);
        assert!(is_untouched(&seen), "what it counts is no change: {seen}");
    }
    let twice = whole.replace("\tchain input", "\tchain printed_0 {\n\t}\n\tchain input");
    assert!(!is_untouched(&twice));
}

#[test]
fn tunnels_that_are_open_have_no_rules() {
    let mut nat = example();
    nat.open_tunnels();
    let text = rules(&nat);
    assert!(!text.contains("senders"), "{text}");
    assert!(
        text.contains("hook input"),
        "the guard of BGP stays: {text}"
    );
    nat.ipv4.bgp = None;
    assert!(!rules(&nat).contains("hook input"));
}

#[test]
fn without_masqueraded_pools_nothing_is_masqueraded() {
    let mut nat = example();
    nat.ipv4.masquerade.clear();
    assert!(!rules(&nat).contains("ip_outgoing"));
    nat.ipv4.outgoing = Some("192.0.2.7".parse().unwrap());
    nat.ipv4.masquerade = example().ipv4.masquerade;
    let exempt = "\t\tip daddr 10.245.0.0/16 return\n";
    assert!(rules(&nat).contains(&format!("{exempt}\t\tsnat ip to 192.0.2.7\n")));
    nat.ipv4.ports = Some((40_000, 40_999));
    nat.ipv4.leaving_by = Interfaces::from_text("eth+");
    let text = rules(&nat);
    let rules_of =
        "meta l4proto { tcp, udp } snat ip to 192.0.2.7:40000-40999\n\t\tsnat ip to 192.0.2.7\n";
    assert!(text.contains(&format!("{exempt}\t\t{rules_of}")), "{text}");
    let rule = "oifname \"eth*\" ip saddr 10.244.0.0/16 jump ip_outgoing\n";
    assert!(text.contains(rule), "{text}");
    nat.ipv4.outgoing = None;
    let text = rules(&nat);
    let masquerade = "meta l4proto { tcp, udp } masquerade to :40000-40999\n";
    assert!(text.contains(masquerade), "{text}");
    assert!(rules(&nat).contains("oifname \"tunl0\""));
}

#[test]
fn chains_that_drop_by_policy_are_found() {
    let listing = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"chain": {"family": "inet", "table": "caracal", "name": "forward", "hook": "forward", "policy": "accept"}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}},
            {"chain": {"family": "inet", "table": "fw", "name": "fwd", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "user"}}]}"#;
    let found = blockers(listing);
    let names: Vec<_> = found
        .iter()
        .map(|b| (b.table.as_str(), b.is_iptables("ip")))
        .collect();
    assert_eq!(names, [("filter", true), ("fw", false)]);
    assert_eq!(blockers("nonsense"), []);
}
