//! The rules as nft has them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::example;
use super::blockers::blockers;
use super::written::{Written, is_of};
use super::*;
use crate::nft::{CHECKSUM, Listing};

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
	chain ip_to_nodes {
		fib daddr type local counter drop
		ip daddr @ip_bgp_nodes counter drop
	}
	chain ip_bgp_guard {
		ip saddr @ip_bgp_peers return
		iifname "cali123" fib daddr type local return
		jump ip_to_nodes
		ip saddr 10.244.0.0/16 ip daddr @ip_bgp_routers counter drop
	}
	chain ip_translated {
		iifname "lo" return
		iifname "cali*" return
		ip saddr @ip_bgp_routers return
		jump ip_to_nodes
		ip daddr @ip_bgp_routers counter drop
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
	set ip_in_ranges {
		type ipv4_addr
		elements = { 10.96.0.1 }
	}
	chain ip_loops {
		ct status dnat return
		oifname "cali*" return
		ip daddr @ip_in_ranges return
		ip daddr 10.100.0.0/16 return
		counter drop
	}
	chain ip6_loops {
		ct status dnat return
		oifname "cali*" return
		ct state invalid counter drop
		counter reject
	}
	chain antispoof {
		type filter hook prerouting priority -300; policy accept;
		iifname "cali*" udp dport 4789 drop
		iifname "cali*" meta l4proto 4 drop
		iifname "cali*" ip daddr 127.0.0.0/8 drop
		meta nfproto ipv4 iifname @ip_workloads jump ip_from_workloads
	}
	chain input {
		type filter hook input priority 0; policy accept;
		iifname "cali*" udp dport 4789 drop
		iifname "cali*" ip daddr 127.0.0.0/8 drop
		meta nfproto ipv4 iifname "cali*" tcp dport { 179, 1179 } jump ip_bgp_guard
		meta nfproto ipv4 iifname "cali*" udp dport { 3784, 4784 } jump ip_bgp_guard
		meta nfproto ipv4 tcp dport { 179, 1179 } ct direction original ct status dnat jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ct direction original ct status dnat jump ip_translated
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
		iifname "cali*" udp dport 4789 drop
		meta nfproto ipv4 iifname "cali*" tcp dport { 179, 1179 } jump ip_bgp_guard
		meta nfproto ipv4 iifname "cali*" udp dport { 3784, 4784 } jump ip_bgp_guard
		meta nfproto ipv4 tcp dport { 179, 1179 } ct direction original ct status dnat jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ct direction original ct status dnat jump ip_translated
		iifname "cali*" accept
		oifname "cali*" accept
	}
	chain balanced_input {
		type filter hook input priority 110; policy accept;
		iifname "cali*" udp dport 4789 drop
		iifname "cali*" ip daddr 127.0.0.0/8 drop
		meta nfproto ipv4 iifname "cali*" tcp dport { 179, 1179 } jump ip_bgp_guard
		meta nfproto ipv4 iifname "cali*" udp dport { 3784, 4784 } jump ip_bgp_guard
		meta nfproto ipv4 tcp dport { 179, 1179 } ct direction original ct original proto-dst != 179 ct original proto-dst != 1179 jump ip_translated
		meta nfproto ipv4 tcp dport { 179, 1179 } ip daddr @ip_bgp_nodes ct direction original ct original ip daddr != @ip_bgp_nodes jump ip_translated
		meta nfproto ipv4 tcp dport { 179, 1179 } ip daddr @ip_bgp_routers ct direction original ct original ip daddr != @ip_bgp_routers jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ct direction original ct original proto-dst != 3784 ct original proto-dst != 4784 ct original proto-dst != 4789 jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ip daddr @ip_bgp_nodes ct direction original ct original ip daddr != @ip_bgp_nodes jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ip daddr @ip_bgp_routers ct direction original ct original ip daddr != @ip_bgp_routers jump ip_translated
	}
	chain balanced_output {
		type filter hook output priority 0; policy accept;
		meta skuid != 4294967295 return
		ip saddr @ip_bgp_peers return
		meta nfproto ipv4 tcp dport { 179, 1179 } ct direction original ct original proto-dst != 179 ct original proto-dst != 1179 jump ip_translated
		meta nfproto ipv4 tcp dport { 179, 1179 } ip daddr @ip_bgp_nodes ct direction original ct original ip daddr != @ip_bgp_nodes jump ip_translated
		meta nfproto ipv4 tcp dport { 179, 1179 } ip daddr @ip_bgp_routers ct direction original ct original ip daddr != @ip_bgp_routers jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ct direction original ct original proto-dst != 3784 ct original proto-dst != 4784 ct original proto-dst != 4789 jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ip daddr @ip_bgp_nodes ct direction original ct original ip daddr != @ip_bgp_nodes jump ip_translated
		meta nfproto ipv4 udp dport { 3784, 4784, 4789 } ip daddr @ip_bgp_routers ct direction original ct original ip daddr != @ip_bgp_routers jump ip_translated
	}
	chain loops_forward {
		type filter hook forward priority 10; policy accept;
		ip daddr 10.96.0.0/12 jump ip_loops
		ip daddr 198.51.100.0/24 jump ip_loops
		ip6 daddr fd00:96::/108 jump ip6_loops
	}
	chain loops_output {
		type filter hook output priority 10; policy accept;
		oifname "lo" return
		ip daddr 10.96.0.0/12 jump ip_loops
		ip daddr 198.51.100.0/24 jump ip_loops
		ip6 daddr fd00:96::/108 jump ip6_loops
	}
}
"#;
    let script = script(&example());
    assert_eq!(script, expected.replace("FP", &fingerprint));
    assert_eq!(
        Listing::parse(&script).fingerprint(),
        Some(fingerprint.as_str())
    );
    // Decision 0040: a lookup in a set of intervals can fail while rules are replaced.
    assert!(!script.contains("flags interval"));
    assert_eq!(
        Listing::parse("table inet caracal {\n}\n").fingerprint(),
        None
    );
}

/// The table that a script writes, as nftables lists it, with this mark.
fn listed(script: &str, mark: &str) -> String {
    let (_, table) = script.rsplit_once("table inet caracal {").unwrap();
    let chain = format!("chain {CHECKSUM}{mark} {{\n\t}}\n\n\tchain antispoof");
    // Two elements stand on a line.
    let table = table.replace(", 10.", ",\n\t\t\t     10.");
    format!("table inet caracal {{{table}").replacen("chain antispoof", &chain, 1)
}

fn mark_of(listing: &str) -> String {
    Listing::parse(listing).checksum().to_string()
}

#[test]
fn a_checksum_tells_what_somebody_changed() {
    let written = script(&example());
    let plain = written.replace(" { 179, 1179 }", " { 179 }");
    let mark = mark_of(&listed(&plain, "x"));
    let whole = listed(&plain, &mark);
    let is_untouched = |listing: &str| Listing::parse(listing).is_untouched();
    assert!(is_untouched(&whole), "{whole}");
    assert!(!is_untouched(&plain), "nobody says how it was");
    for gone in [
        "\t\tmeta nfproto ipv4 iifname @ip_workloads jump ip_from_workloads\n",
        "\t\tmeta nfproto ipv4 udp dport 4789 jump ip_tunnel_senders\n",
        "192.0.2.0/24",
        "counter",
        "10.0.0.2",
        "\"cali123\"",
        "chain fingerprint_",
    ] {
        assert!(whole.contains(gone));
        assert!(!is_untouched(&whole.replacen(gone, "", 1)), "{gone}");
    }
    for (was, is) in [
        ("10.0.0.1", "10.0.0.3"),
        ("10.0.0.1", "10.0.0.1, 10.0.0.3"),
        ("10.0.0.1", "10.0.0.1 timeout 9s"),
        ("set ip_senders", "set ip_others"),
    ] {
        assert!(!is_untouched(&whole.replacen(was, is, 1)), "{is}");
    }
    let counted = |n: u32| whole.replace("counter", &format!("counter packets {n} bytes {n}0"));
    let checksum = mark_of(&counted(0));
    for n in [0, 7] {
        let seen = counted(n).replace(&mark, &checksum);
        assert!(is_untouched(&seen), "what it counts is no change: {seen}");
    }
    let twice = whole.replace("\tchain input", "\tchain printed_0 {\n\t}\n\tchain input");
    assert!(!is_untouched(&twice));
    let twice = whole.replace(
        "\tchain input",
        "\tchain fingerprint_0 {\n\t}\n\tchain input",
    );
    assert!(!is_untouched(&twice));
}

#[test]
fn tunnels_that_are_open_have_no_rules() {
    let mut nat = example();
    nat.open_tunnels();
    let text = NftTable::new(&nat).to_string();
    assert!(!text.contains("senders"), "{text}");
    assert!(
        text.contains("hook input"),
        "the guard of BGP stays: {text}"
    );
    nat.ipv4.bgp = None;
    nat.no_vxlan_from_workloads = None;
    nat.ipv4.loopback = None;
    assert!(!NftTable::new(&nat).to_string().contains("hook input"));
}

#[test]
fn without_masqueraded_pools_nothing_is_masqueraded() {
    let mut nat = example();
    nat.ipv4.masquerade.clear();
    assert!(!NftTable::new(&nat).to_string().contains("ip_outgoing"));
    nat.ipv4.outgoing = Some("192.0.2.7".parse().unwrap());
    nat.ipv4.masquerade = example().ipv4.masquerade;
    let exempt = "\t\tip daddr 10.245.0.0/16 return\n";
    assert!(
        NftTable::new(&nat)
            .to_string()
            .contains(&format!("{exempt}\t\tsnat ip to 192.0.2.7\n"))
    );
    nat.ipv4.ports = Some((40_000, 40_999));
    nat.ipv4.leaving_by = Interfaces::from_text("eth+");
    let text = NftTable::new(&nat).to_string();
    let rules_of =
        "meta l4proto { tcp, udp } snat ip to 192.0.2.7:40000-40999\n\t\tsnat ip to 192.0.2.7\n";
    assert!(text.contains(&format!("{exempt}\t\t{rules_of}")), "{text}");
    let rule = "oifname \"eth*\" ip saddr 10.244.0.0/16 jump ip_outgoing\n";
    assert!(text.contains(rule), "{text}");
    nat.ipv4.outgoing = None;
    let text = NftTable::new(&nat).to_string();
    let masquerade = "meta l4proto { tcp, udp } masquerade to :40000-40999\n";
    assert!(text.contains(masquerade), "{text}");
    assert!(
        NftTable::new(&nat)
            .to_string()
            .contains("oifname \"tunl0\"")
    );
}

#[test]
fn there_are_as_many_rules_with_ten_pools_as_with_thousands() {
    let with = |pools: u16| {
        let mut nat = example();
        let v4 = (0..pools)
            .map(|n| Prefix::v4(Ipv4Addr::from_bits(0x0a00_0000 | u32::from(n) << 8), 24));
        let v6 = (0..pools).map(|n| format!("fd00:{n:x}::/48").parse().unwrap());
        for (rules, pools) in [
            (&mut nat.ipv4, v4.collect::<BTreeSet<Prefix>>()),
            (&mut nat.ipv6, v6.collect()),
        ] {
            rules.masquerade = pools.clone();
            rules.exempt = pools.clone();
            let guard = rules.bgp.get_or_insert_default();
            guard.masqueraded = pools;
            guard.routers = ["192.0.2.1", "192.0.2.2"]
                .map(|a| a.parse().unwrap())
                .into();
        }
        nat
    };
    let text = |pools| NftTable::new(&with(pools)).text;
    assert_eq!(text(10), text(10_000));
    let lines = text(10);
    for line in [
        "\t\tip saddr & 255.255.255.0 @ip_masquerade_24 jump ip_outgoing\n",
        "\t\tip daddr & 255.255.255.0 @ip_exempt_24 return\n",
        "\t\tip6 saddr & ffff:ffff:ffff:: @ip6_bgp_masqueraded_48 ip6 daddr @ip6_bgp_routers counter drop\n",
    ] {
        assert!(lines.contains(line), "{line}{lines}");
    }
    // One more is an element, and no new table.
    let changed = |was: &Nat, is: Nat| {
        let mark = mark_of(&listed(&script(was), "x"));
        let listing = listed(&script(was), &mark);
        let written = Written::found(&Listing::parse(&listing), &Arc::new(was.clone())).unwrap();
        written.change(&Arc::new(is)).unwrap().0.script(TABLE)
    };
    let script = changed(&with(10), with(11));
    assert!(
        script.contains("add element inet caracal ip_exempt_24 { 10.0.10.0 }\n"),
        "{script}"
    );
    assert!(!script.contains("table"), "{script}");
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

/// The table in the kernel, as our scripts change it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kernel {
    /// Chains and rules; of each set the first line.
    lines: Vec<String>,
    sets: BTreeMap<String, BTreeSet<String>>,
    marks: BTreeSet<String>,
}

fn split(elements: &str) -> impl Iterator<Item = String> {
    let elements = elements
        .trim()
        .trim_start_matches('{')
        .trim_end_matches('}');
    elements.split(',').map(|element| element.trim().to_owned())
}

impl Kernel {
    /// Runs a script, as the kernel does: all of it or nothing.
    fn run(&mut self, script: &str) -> Result<(), String> {
        let mut next = self.clone();
        if let Some((_, whole)) = script.split_once("table inet caracal {\n") {
            next = Self::default();
            next.replace(whole.strip_suffix("}\n").unwrap());
        } else {
            script.lines().try_for_each(|line| next.change(line))?;
        }
        *self = next;
        Ok(())
    }

    fn replace(&mut self, whole: &str) {
        let mut set = String::new();
        for line in whole.lines().map(str::trim) {
            let chain = line.strip_prefix("chain ");
            let mark = chain.filter(|c| c.starts_with(FINGERPRINT) || c.starts_with(CHECKSUM));
            if let Some(name) = line.strip_prefix("set ") {
                name.trim_end_matches(" {").clone_into(&mut set);
                self.sets.insert(set.clone(), BTreeSet::new());
            }
            match (mark, line.strip_prefix("elements = ")) {
                (Some(mark), _) => drop(self.marks.insert(mark.trim_end_matches(" {").to_owned())),
                (_, Some(elements)) => self.sets.get_mut(&set).unwrap().extend(split(elements)),
                _ => self.lines.push(line.to_owned()),
            }
        }
    }

    /// One command; what is there cannot be added, and what is not there cannot be deleted.
    fn change(&mut self, line: &str) -> Result<(), String> {
        let refused = || Err(format!("{line}: the kernel refuses"));
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let (marks, sets) = (&mut self.marks, &mut self.sets);
        match words[..] {
            ["add", "chain", "inet", TABLE, mark] if marks.insert(mark.to_owned()) => Ok(()),
            ["delete", "chain", "inet", TABLE, mark] if marks.remove(mark) => Ok(()),
            [verb, "element", "inet", TABLE, set, elements] => {
                let Some(there) = sets.get_mut(set) else {
                    return refused();
                };
                let is_done = split(elements).all(|element| match verb {
                    "add" => there.insert(element),
                    _ => there.remove(&element),
                });
                if is_done { Ok(()) } else { refused() }
            }
            _ => refused(),
        }
    }

    /// As nftables lists it, the order of chains apart.
    fn listing(&self) -> String {
        let mut text = "table inet caracal {\n".to_owned();
        for mark in &self.marks {
            text.push_str(&format!("\tchain {mark} {{\n\t}}\n\n"));
        }
        let mut set = "";
        for line in &self.lines {
            let name = line.strip_prefix("set ").and_then(|l| l.strip_suffix(" {"));
            set = name.unwrap_or(set);
            text.push_str(&format!("\t{line}\n"));
            let elements: Vec<&str> = self
                .sets
                .get(set)
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            if line.starts_with("type ") && !elements.is_empty() {
                let elements = elements.chunks(2).map(|two| two.join(", "));
                let elements = elements.collect::<Vec<_>>().join(",\n\t\t\t     ");
                text.push_str(&format!("\t\telements = {{ {elements} }}\n"));
                set = "";
            }
        }
        text + "}\n"
    }

    /// Writes rules as the shell does; true when it was by element.
    fn write(&mut self, written: &mut Option<Written>, nat: &Arc<Nat>) -> bool {
        let change = written.take().and_then(|written| written.change(nat));
        if let Some((transaction, next)) = change {
            self.run(&transaction.script(TABLE)).unwrap();
            *written = Some(next);
            return true;
        }
        self.run(&script(nat)).unwrap();
        let (next, mark) = Written::just_now(&Listing::parse(&self.listing()), nat);
        assert!(next.has_all_elements());
        self.run(&mark.script(TABLE)).unwrap();
        *written = Some(next);
        false
    }
}

/// Rules with some nodes, workloads and peers.
fn any_nat() -> impl Strategy<Value = Nat> {
    let some = |of: u8| proptest::collection::btree_set(0..of, 0..6);
    let address = |v6: bool, n: u8| -> IpAddr {
        let text = if v6 {
            format!("fd00::{n:x}")
        } else {
            format!("10.0.0.{n}")
        };
        text.parse().unwrap()
    };
    (
        some(20),
        some(20),
        some(8),
        some(3),
        any::<bool>(),
        0..20_u8,
    )
        .prop_map(move |(nodes, senders, workloads, peers, v6, odd)| {
            let mut nat = example();
            if v6 {
                nat.ipv6 = nat.ipv4.clone();
            }
            if odd == 0 {
                nat.ipv4.exempt.clear();
            }
            for (v6, rules) in [(false, &mut nat.ipv4), (v6, &mut nat.ipv6)] {
                let hosts = |of: &BTreeSet<u8>| of.iter().map(|n| address(v6, *n)).collect();
                if let Some(guard) = &mut rules.bgp {
                    guard.nodes = hosts(&nodes);
                    guard.peers = hosts(&peers);
                }
                if let Some(of) = &mut rules.senders {
                    of.from
                        .extend(senders.iter().map(|n| Prefix::host(address(v6, *n))));
                }
                for n in &workloads {
                    let name = crate::nat::name::PlainName::new(&format!("cali{n}")).unwrap();
                    let own = Prefix::host(address(v6, 100 + *n));
                    rules.sources.insert(name, [own].into());
                }
            }
            nat
        })
}

proptest! {
    /// After any history of changes the table is what writing the last rules anew makes of it, a
    /// new process knows it again, and changes it further by element.
    #[test]
    fn changed_by_element_the_table_is_as_written_anew(
        history in proptest::collection::vec((any_nat(), any::<bool>()), 1..12),
    ) {
        let (mut kernel, mut written) = (Kernel::default(), None);
        for (nat, restarts) in history {
            let nat = Arc::new(nat);
            kernel.write(&mut written, &nat);
            let mut anew = Kernel::default();
            anew.write(&mut None, &nat);
            prop_assert_eq!(&kernel, &anew);
            let listing = kernel.listing();
            let listing = Listing::parse(&listing);
            prop_assert!(listing.is_untouched() && is_of(&listing, &nat));
            if restarts {
                written = Written::found(&listing, &nat);
                prop_assert!(written.is_some());
            }
        }
    }
}

/// Marked as it is listed, such a table would pass for untouched.
#[test]
fn a_table_that_somebody_changed_before_it_was_marked_is_not_taken_for_ours() {
    let mut kernel = Kernel::default();
    let nat = Arc::new(example());
    kernel.run(&script(&nat)).unwrap();
    let sets: Vec<String> = kernel.sets.keys().cloned().collect();
    let mut changed = 0;
    for set in sets {
        let Some(element) = kernel.sets.get_mut(&set).unwrap().pop_first() else {
            continue;
        };
        changed += 1;
        let (written, _) = Written::just_now(&Listing::parse(&kernel.listing()), &nat);
        assert!(!written.has_all_elements(), "{element} of {set} is gone");
        kernel.sets.get_mut(&set).unwrap().insert(element);
        let (written, _) = Written::just_now(&Listing::parse(&kernel.listing()), &nat);
        assert!(written.has_all_elements());
    }
    assert!(changed > 1, "the rules have sets with elements");
}

#[test]
fn one_node_more_is_two_elements() {
    let (mut kernel, mut written) = (Kernel::default(), None);
    let nat = example();
    assert!(!kernel.write(&mut written, &Arc::new(nat.clone())));
    let mut next = nat.clone();
    let address: IpAddr = "10.0.0.3".parse().unwrap();
    next.ipv4.bgp.as_mut().unwrap().nodes.insert(address);
    let senders = next.ipv4.senders.as_mut().unwrap();
    senders.from.insert(Prefix::host(address));
    let change = written.as_ref().unwrap().change(&Arc::new(next.clone()));
    let script = change.unwrap().0.script(TABLE);
    assert_eq!(script.lines().count(), 6, "{script}");
    assert!(kernel.write(&mut written, &Arc::new(next)), "by element");
    assert!(
        kernel.write(&mut written, &Arc::new(nat.clone())),
        "and back"
    );
    // The first range that is exempt is a rule.
    let mut other = nat;
    other.ipv4.exempt.clear();
    assert!(
        !kernel.write(&mut written, &Arc::new(other)),
        "another structure"
    );
}
