//! What other programs leave in the kernel that this node does instead of them: rules of kube-proxy
//! and of Felix, recognised in the listings of `nft` and `iptables-save`, and the scripts that take
//! them away. Pure; `dataplane/foreign.rs` runs the programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use caracal_model::{Family, InsertEach};

/// Chains of kube-proxy in iptables by their whole names. Chains of kubelet's (`KUBE-FIREWALL`,
/// `KUBE-KUBELET-CANARY`) are not its own and stay. The canary is one in each table, by which it
/// sees that somebody has flushed its rules.
const KUBE_PROXY: [&str; 10] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
];
/// Beginnings of the names of chains of a service or an endpoint; 16 characters follow.
const NUMBERED: [&str; 5] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-FW-",
    "KUBE-EXT-",
    "KUBE-SEP-",
];
const HASH: usize = 16;
/// How the names of all of Felix's chains begin.
const FELIX: &str = "cali-";
/// How the comment of each of its rules begins, also of those that are in others' chains and lead
/// to none of its own.
const FELIX_COMMENT: &str = "cali:";
/// The end of the name of Felix's chain for what an interface of a workload sends.
const FROM_WORKLOAD: &str = "cali-fw-";

const INFALLIBLE: &str = "writing to a String does not fail";

/// Whose rules are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOwner {
    /// kube-proxy, which translates Services.
    KubeProxy,
    /// Felix, which judges packets by policy.
    Felix,
}

impl RuleOwner {
    /// Its tables of nftables, with their families.
    const fn tables(self) -> &'static [&'static str] {
        match self {
            Self::KubeProxy => &["ip kube-proxy", "ip6 kube-proxy"],
            Self::Felix => &["ip calico", "ip6 calico", "arp calico"],
        }
    }

    /// The table of iptables, and the chain in it, that is there as long as it has rules.
    pub(crate) const fn first_chain(self) -> (&'static str, &'static str) {
        match self {
            Self::KubeProxy => ("nat", "KUBE-SERVICES"),
            Self::Felix => ("filter", "cali-FORWARD"),
        }
    }

    fn is_chain(self, name: &str) -> bool {
        let numbered = |start: &&str| {
            name.strip_prefix(*start).is_some_and(|rest| {
                rest.len() == HASH
                    && rest
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
            })
        };
        match self {
            Self::KubeProxy => KUBE_PROXY.contains(&name) || NUMBERED.iter().any(numbered),
            Self::Felix => name.starts_with(FELIX),
        }
    }

    /// True when a rule of another's chain is its own by the comment alone.
    fn has_marked(self, words: &[&str]) -> bool {
        let comment = |pair: &[&str]| {
            pair[0] == "--comment" && pair[1].trim_matches('"').starts_with(FELIX_COMMENT)
        };
        self == Self::Felix && words.windows(2).any(comment)
    }

    /// Those of its tables that `nft list tables` names.
    pub(crate) fn nftables(self, tables: &str) -> Vec<&'static str> {
        let is_there = |table: &&str| tables.lines().any(|line| is_table(line, table));
        self.tables().iter().copied().filter(is_there).collect()
    }

    /// True when `nft list tables` names the table in which iptables keeps its first chain.
    pub(crate) fn has_iptables(self, tables: &str, family: Family) -> bool {
        let table = format!("{} {}", word(family), self.first_chain().0);
        tables.lines().any(|line| is_table(line, &table))
    }

    /// The script of `nft` that lists its first chain of iptables; it fails where there is none.
    pub(crate) fn chain_listing(self, family: Family) -> String {
        let (table, chain) = self.first_chain();
        format!("list chain {} {table} {chain}\n", word(family))
    }

    /// True when `iptables-save` shows rules of it.
    pub(crate) fn has_rules(self, saved: &str) -> bool {
        saved
            .lines()
            .filter_map(declared)
            .any(|chain| chain == self.first_chain().1)
    }
}

/// The word of nftables and of the names of programs for a family.
const fn word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

fn is_table(line: &str, table: &str) -> bool {
    line.trim().strip_prefix("table ") == Some(table)
}

/// The chain that a line of `iptables-save` declares.
fn declared(line: &str) -> Option<&str> {
    line.strip_prefix(':')?.split(' ').next()
}

/// Takes tables of nftables away, in one transaction.
pub(crate) fn nftables_removal(tables: &[&str]) -> String {
    let line = |table: &&str| format!("delete table {table}\n");
    tables.iter().map(line).collect()
}

/// True when Felix's rules, as `nft` or `iptables-save` lists them, know an interface of a
/// workload: packets of others are dropped as unknown.
pub(crate) fn knows_workload(listing: &str, interface: &str) -> bool {
    let chain = format!("{FROM_WORKLOAD}{interface}");
    let mut words = listing.split([' ', '\n', ':']);
    words.any(|word| word == chain || word.strip_prefix("filter-") == Some(&chain))
}

/// The input of `iptables-restore --noflush` that takes its chains away and what leads to them. A
/// table at a time, each in one transaction.
pub(crate) fn iptables_removal(owner: RuleOwner, saved: &str) -> String {
    let mut script = String::new();
    for table in saved
        .split("\n*")
        .map(|table| table.trim_start_matches('*'))
    {
        let Some((name, rest)) = table.split_once('\n') else {
            continue;
        };
        let chains = rest.lines().filter_map(declared);
        let chains: BTreeSet<&str> = chains.filter(|chain| owner.is_chain(chain)).insert_each();
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
            if (leads || owner.has_marked(&words)) && !chains.contains(of) {
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
        let owner = RuleOwner::KubeProxy;
        assert!(owner.has_rules(SAVED));
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
        assert_eq!(iptables_removal(owner, SAVED), wanted);
        assert_eq!(
            iptables_removal(owner, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"),
            ""
        );
        assert!(!owner.has_rules("*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n"));
    }

    #[test]
    fn tables_of_nftables_are_known_by_family_and_name() {
        let tables = "table ip kube-proxy\ntable ip6 nat\ntable inet kube-proxy-of-somebody\ntable ip6 calico\n";
        let (proxy, felix) = (RuleOwner::KubeProxy, RuleOwner::Felix);
        assert_eq!(proxy.nftables(tables), ["ip kube-proxy"]);
        assert_eq!(felix.nftables(tables), ["ip6 calico"]);
        assert!(proxy.has_iptables(tables, Family::Ipv6));
        assert!(!proxy.has_iptables(tables, Family::Ipv4));
        assert!(!felix.has_iptables(tables, Family::Ipv6));
        let removal = nftables_removal(&["ip calico", "arp calico"]);
        assert_eq!(removal, "delete table ip calico\ndelete table arp calico\n");
    }

    /// Rules of Felix that are in the kernel's chains lead to its own, or have its comment alone.
    #[test]
    fn rules_of_felix_go_from_others_chains_as_well() {
        let saved = "*filter
:FORWARD DROP [0:0]
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali12345678901 - [0:0]
:calico-of-somebody - [0:0]
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -s 192.0.2.0/24 -j calico-of-somebody
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -m comment --comment cali:mp77cMpurHhyjLrM -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -i cali12345678901 -g cali-fw-cali12345678901
COMMIT
";
        assert!(RuleOwner::Felix.has_rules(saved) && !RuleOwner::KubeProxy.has_rules(saved));
        let wanted = "*filter
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali12345678901 - [0:0]
-D FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-D FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x10000/0x10000 -j ACCEPT
-D FORWARD -m comment --comment cali:mp77cMpurHhyjLrM -j MARK --set-xmark 0x10000/0x10000
-X cali-FORWARD
-X cali-from-wl-dispatch
-X cali-fw-cali12345678901
COMMIT
";
        assert_eq!(iptables_removal(RuleOwner::Felix, saved), wanted);
        assert!(knows_workload(saved, "cali12345678901"));
        assert!(!knows_workload(saved, "cali1234567890"));
        let chain = "  chain filter-cali-fw-cali12345678901 {\n";
        assert!(knows_workload(chain, "cali12345678901"));
    }
}
