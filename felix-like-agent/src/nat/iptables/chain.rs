//! One chain of a network that is not Calico's, and the jump to it from a built-in chain, by the
//! names that another program has given them.

use super::{IptablesTable, RulesComparison, compare_tables, remove_tables, restore_tables};

/// A chain of one table of iptables. The same text serves both forms of iptables, and both
/// families where the rules do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesChain {
    /// Table: `filter`, `nat`.
    pub table: &'static str,
    /// Built-in chain that jumps to this one: `FORWARD`.
    pub hook: &'static str,
    /// Name of the chain.
    pub name: &'static str,
    /// Comment on the jump and on each rule.
    pub comment: &'static str,
    /// The rules, in order.
    pub rules: Vec<IptablesRule>,
}

/// A rule, in the words of `iptables-save`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesRule {
    /// Which packets: `-s 10.5.0.0/16`.
    pub packets: String,
    /// What is done with them: `ACCEPT`, with its options.
    pub target: &'static str,
}

fn commented(comment: &str) -> String {
    format!("-m comment --comment \"{comment}\" ")
}

impl IptablesChain {
    fn table(&self) -> IptablesTable {
        let (name, comment) = (self.name, commented(self.comment));
        let rule = |rule: &IptablesRule| {
            let (packets, target) = (&rule.packets, rule.target);
            format!("-A {name} {packets} {comment}-j {target}")
        };
        IptablesTable {
            name: self.table,
            ours: name,
            rules: self.rules.iter().map(rule).collect(),
            comment,
            jumps: vec![(self.hook, name)],
            chains: vec![name],
        }
    }

    /// Input for `iptables-restore --noflush`, given what `iptables-save` printed; `None` when all
    /// of it is there.
    #[must_use]
    pub(crate) fn restore(&self, saved: &str) -> Option<String> {
        let is_there = compare_tables([self.table()], saved) == RulesComparison::Wanted;
        (!is_there).then(|| restore_tables(&[self.table()], saved))
    }

    /// The same that removes the chain; `None` when it is not there.
    #[must_use]
    pub(crate) fn removal(&self, saved: &str) -> Option<String> {
        let script = remove_tables(&[self.table()], saved);
        (!script.is_empty()).then_some(script)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NOTHING: &str = "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n";
    const RULES: &str = r#"-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
"#;
    const JUMP: &str = r#"-m comment --comment "flanneld forward" -j FLANNEL-FWD"#;

    fn chain() -> IptablesChain {
        let accept = |packets: &str| IptablesRule {
            packets: packets.to_owned(),
            target: "ACCEPT",
        };
        IptablesChain {
            table: "filter",
            hook: "FORWARD",
            name: "FLANNEL-FWD",
            comment: "flanneld forward",
            rules: ["-s 10.5.0.0/16", "-d 10.5.0.0/16"].map(accept).to_vec(),
        }
    }

    fn there() -> String {
        format!(
            "*filter\n:FORWARD DROP [0:0]\n:FLANNEL-FWD - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD {JUMP}\n{RULES}COMMIT\n"
        )
    }

    #[test]
    fn it_is_written_where_it_differs() {
        let mut chain = chain();
        assert_eq!(
            chain.restore(NOTHING).unwrap(),
            format!("*filter\n:FLANNEL-FWD - [0:0]\n-I FORWARD 1 {JUMP}\n{RULES}COMMIT\n")
        );
        assert_eq!(chain.restore(&there()), None, "wherever in FORWARD it is");
        let emptied = there().replace(RULES, "");
        assert_eq!(
            chain.restore(&emptied).unwrap(),
            format!("*filter\n:FLANNEL-FWD - [0:0]\n{RULES}COMMIT\n")
        );
        chain.rules.truncate(1);
        chain.rules[0].packets = "-s 10.6.0.0/16".to_owned();
        let moved = chain.restore(&there()).unwrap();
        assert!(moved.contains("10.6.0.0/16") && !moved.contains("10.5.0.0/16"));
    }

    #[test]
    fn jumps_that_are_there_several_times_become_one() {
        let jump = format!("-A FORWARD {JUMP}\n");
        let thrice = there().replace(&jump, &jump.repeat(3));
        assert_eq!(
            chain().restore(&thrice).unwrap(),
            format!(
                "*filter\n:FLANNEL-FWD - [0:0]\n-D FORWARD {JUMP}\n-D FORWARD {JUMP}\n{RULES}COMMIT\n"
            )
        );
    }

    #[test]
    fn it_is_removed_with_whatever_leads_to_it() {
        assert_eq!(chain().removal(NOTHING), None);
        let jump = format!("-A FORWARD {JUMP}\n");
        let others = "-A FORWARD -i eth0 -g FLANNEL-FWD\n-A FORWARD -j FLANNEL-FWD-2\n";
        let saved = there().replace(&jump, &format!("{jump}{jump}{others}"));
        assert_eq!(
            chain().removal(&saved).unwrap(),
            format!(
                "*filter\n-D FORWARD {JUMP}\n-D FORWARD {JUMP}\n-D FORWARD -i eth0 -g FLANNEL-FWD\n-F FLANNEL-FWD\n-X FLANNEL-FWD\nCOMMIT\n"
            )
        );
    }
}
