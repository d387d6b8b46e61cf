//! What kube-proxy leaves in the kernel: recognised in the listings of `nft` and `iptables-save`,
//! and the scripts that take it away. Chains of kubelet's (`KUBE-FIREWALL`, `KUBE-KUBELET-CANARY`)
//! are not its own and stay.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use caracal_model::{Family, InsertEach};

/// Name of the tables of its nftables mode, one a family.
const TABLE: &str = "kube-proxy";
/// The chain that is there as long as it has rules in iptables.
const SERVICES: &str = "KUBE-SERVICES";
/// Its chains of iptables by their whole names.
const CHAINS: [&str; 9] = [
    SERVICES,
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
];
/// One for each table, by which it sees that somebody has flushed its rules.
const CANARY: &str = "KUBE-PROXY-CANARY";
/// Beginnings of the names of chains of a service or an endpoint; 16 characters follow.
const NUMBERED: [&str; 5] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-FW-",
    "KUBE-EXT-",
    "KUBE-SEP-",
];
const HASH: usize = 16;

const INFALLIBLE: &str = "writing to a String does not fail";

/// The word of nftables and of the names of programs for a family.
const fn word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

fn is_chain(name: &str) -> bool {
    let numbered = |start: &&str| {
        name.strip_prefix(*start).is_some_and(|rest| {
            rest.len() == HASH
                && rest
                    .chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
        })
    };
    CHAINS.contains(&name) || name == CANARY || NUMBERED.iter().any(numbered)
}

/// Families of which `nft list tables` names a table of kube-proxy's nftables mode.
pub(crate) fn nftables_families(tables: &str) -> Vec<Family> {
    let is_there = |family: &Family| {
        let line = format!("table {} {TABLE}", word(*family));
        tables.lines().any(|l| l.trim() == line)
    };
    [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter(is_there)
        .collect()
}

/// True when `nft list tables` names the table in which iptables has NAT rules of a family.
pub(crate) fn has_iptables_nat(tables: &str, family: Family) -> bool {
    let line = format!("table {} nat", word(family));
    tables.lines().any(|l| l.trim() == line)
}

/// The script of `nft` that lists its first chain of iptables; it fails where there is none.
pub(crate) fn chain_listing(family: Family) -> String {
    format!("list chain {} nat {SERVICES}\n", word(family))
}

/// Takes the table of its nftables mode away.
pub(crate) fn nftables_removal(families: &[Family]) -> String {
    let line = |family: &Family| format!("delete table {} {TABLE}\n", word(*family));
    families.iter().map(line).collect()
}

/// True when `iptables-save` shows rules of kube-proxy's.
pub(crate) fn has_rules(saved: &str) -> bool {
    let declared = |line: &str| line.strip_prefix(':')?.split(' ').next().map(str::to_owned);
    saved
        .lines()
        .filter_map(declared)
        .any(|chain| chain == SERVICES)
}

/// The input of `iptables-restore --noflush` that takes its chains away and what leads to them. A
/// table at a time, each in one transaction.
pub(crate) fn iptables_removal(saved: &str) -> String {
    let mut script = String::new();
    for table in saved
        .split("\n*")
        .map(|table| table.trim_start_matches('*'))
    {
        let Some((name, rest)) = table.split_once('\n') else {
            continue;
        };
        let declared = |line: &str| {
            let chain = line.strip_prefix(':')?.split(' ').next()?;
            is_chain(chain).then(|| chain.to_owned())
        };
        let chains: BTreeSet<String> = rest.lines().filter_map(declared).insert_each();
        if chains.is_empty() {
            continue;
        }
        writeln!(script, "*{name}").expect(INFALLIBLE);
        // Declared once more, a chain is emptied.
        for chain in &chains {
            writeln!(script, ":{chain} - [0:0]").expect(INFALLIBLE);
        }
        for line in rest.lines() {
            let Some(rule) = line.strip_prefix("-A ") else {
                continue;
            };
            let of = rule.split(' ').next().unwrap_or_default();
            let words: Vec<&str> = rule.split(' ').collect();
            let leads = words
                .windows(2)
                .any(|pair| matches!(pair[0], "-j" | "-g") && chains.contains(pair[1]));
            if leads && !chains.contains(of) {
                writeln!(script, "-D {rule}").expect(INFALLIBLE);
            }
        }
        for chain in &chains {
            writeln!(script, "-X {chain}").expect(INFALLIBLE);
        }
        script.push_str("COMMIT\n");
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "# Generated by iptables-save
*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [1:60]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SEP-ABCDEFGHIJKLMNO2 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABCDEFGHIJKLMNO2 - [0:0]
:KUBE-SVC-MINE - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A PREROUTING -s 192.0.2.0/24 -j RETURN
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -j KUBE-SVC-ABCDEFGHIJKLMNO2
-A KUBE-SVC-ABCDEFGHIJKLMNO2 -j KUBE-SEP-ABCDEFGHIJKLMNO2
COMMIT
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
COMMIT
";

    #[test]
    fn chains_of_kube_proxy_go_and_those_of_others_stay() {
        assert!(has_rules(SAVED));
        let wanted = "*mangle
:KUBE-PROXY-CANARY - [0:0]
-X KUBE-PROXY-CANARY
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-SEP-ABCDEFGHIJKLMNO2 - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABCDEFGHIJKLMNO2 - [0:0]
-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-X KUBE-MARK-MASQ
-X KUBE-SEP-ABCDEFGHIJKLMNO2
-X KUBE-SERVICES
-X KUBE-SVC-ABCDEFGHIJKLMNO2
COMMIT
";
        assert_eq!(iptables_removal(SAVED), wanted);
        assert_eq!(
            iptables_removal("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"),
            ""
        );
        assert!(!has_rules("*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n"));
    }

    #[test]
    fn tables_of_its_nftables_mode_are_known_by_name() {
        let tables = "table ip kube-proxy\ntable ip6 nat\ntable inet kube-proxy-of-somebody\n";
        assert_eq!(nftables_families(tables), [Family::Ipv4]);
        assert!(has_iptables_nat(tables, Family::Ipv6) && !has_iptables_nat(tables, Family::Ipv4));
        assert_eq!(
            nftables_removal(&[Family::Ipv4]),
            "delete table ip kube-proxy\n"
        );
    }
}
