//! Our table in a modelled kernel, which carries out text.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{POLICY_TABLE, PolicyTable};
use crate::nft::Transaction;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kernel {
    chains: BTreeMap<String, Vec<String>>,
    /// Sets and maps, with their declaration.
    sets: BTreeMap<String, (String, BTreeMap<String, Option<String>>)>,
}

impl Kernel {
    /// Carries transactions out. `known` is what the writer took for what is there.
    pub(super) fn run(&mut self, transactions: &[Transaction], known: Option<&PolicyTable>) {
        for transaction in transactions {
            let filled_here = self.transaction(&transaction.script(POLICY_TABLE), known);
            for rule in self.chains.values().flatten() {
                for set in &filled_here {
                    assert!(!rule.contains(&format!("@{set}")), "POL-3: {rule}");
                }
            }
        }
    }

    /// The sets of intervals that it filled.
    fn transaction(&mut self, script: &str, known: Option<&PolicyTable>) -> BTreeSet<String> {
        let mut filled = BTreeSet::new();
        for line in script.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words[1] == "table" || words[3] == POLICY_TABLE, "{line}");
            match words[..] {
                ["add", "table", ..] => {}
                ["add", "map", _, _, name, ..] if self.sets.contains_key(name) => {}
                ["add", "set" | "map", _, _, name, ..] => {
                    let declared = line.split_once('{').unwrap().1.to_owned();
                    let before = self
                        .sets
                        .insert(name.to_owned(), (declared, BTreeMap::new()));
                    assert!(before.is_none(), "{line}");
                }
                [verb @ ("add" | "delete"), "element", _, _, set, ..] => {
                    let (declared, elements) = self.sets.get_mut(set).unwrap();
                    if declared.contains("interval") {
                        filled.insert(set.to_owned());
                    }
                    let text = line.split_once('{').unwrap().1.strip_suffix(" }").unwrap();
                    for element in text.split(", ").map(str::trim) {
                        let (key, data) = match element.split_once(" : ") {
                            Some((key, data)) => (key, Some(data.to_owned())),
                            None => (element, None),
                        };
                        let was = match verb {
                            "add" => elements.insert(key.to_owned(), data).is_none(),
                            _ => elements.remove(key) == Some(data),
                        };
                        assert!(was, "{line}");
                    }
                }
                ["add", "chain", _, _, name, ..] => {
                    self.chains.entry(name.to_owned()).or_default();
                }
                ["flush", "chain", _, _, name] => {
                    let goes = script.contains(&format!("delete chain inet {POLICY_TABLE} {name}"));
                    let is_known = known.and_then(|known| known.chains.get(name));
                    let is_known = is_known.is_some_and(Option::is_some);
                    let is_base = known.is_none_or(|known| !known.chains.contains_key(name));
                    assert!(goes || !is_known || is_base, "POL-4: {line}");
                    self.chains.get_mut(name).unwrap().clear();
                }
                ["add", "rule", _, _, name, ..] => {
                    let rule = words[5..].join(" ");
                    self.chains.get_mut(name).unwrap().push(rule);
                }
                ["delete", "chain", _, _, name] => {
                    assert_eq!(self.chains.remove(name), Some(Vec::new()), "{line}");
                }
                ["delete", "set", _, _, name] => {
                    assert!(self.sets.remove(name).is_some(), "{line}");
                }
                _ => panic!("{line}"),
            }
        }
        self.leads_somewhere();
        filled
    }

    /// What is named is there.
    fn leads_somewhere(&self) {
        let leads = self
            .sets
            .values()
            .flat_map(|(_, elements)| elements.values().flatten());
        for text in self.chains.values().flatten().chain(leads) {
            let mut words = text.split(' ');
            while let Some(word) = words.next() {
                if let Some(set) = word.strip_prefix('@') {
                    assert!(self.sets.contains_key(set), "{text}");
                }
                if ["goto", "jump"].contains(&word) {
                    assert!(self.chains.contains_key(words.next().unwrap()), "{text}");
                }
            }
        }
    }

    /// As nftables prints it.
    pub(super) fn listing(&self) -> String {
        let mut text = format!("table inet {POLICY_TABLE} {{\n");
        for (name, (declared, elements)) in &self.sets {
            let kind = if declared.contains("verdict") {
                "map"
            } else {
                "set"
            };
            text += &format!("\t{kind} {name} {{\n\t\ttype x\n");
            let elements: Vec<String> = elements
                .iter()
                .map(|(key, data)| match data {
                    Some(data) => format!("{key} : {data}"),
                    None => key.clone(),
                })
                .collect();
            if !elements.is_empty() {
                text += &format!("\t\telements = {{ {} }}\n", elements.join(",\n\t\t\t     "));
            }
            text += "\t}\n";
        }
        for (name, rules) in &self.chains {
            text += &format!("\tchain {name} {{\n");
            for rule in rules {
                text += &format!("\t\t{rule}\n");
            }
            text += "\t}\n";
        }
        text + "}\n"
    }
}
