//! Our table in a modelled kernel.

use super::*;

/// Our table in a kernel that refuses to add what is there otherwise and to delete what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) elements: BTreeMap<(String, String), Option<String>>,
    pub(super) chains: BTreeMap<String, Vec<String>>,
    pub(super) maps: BTreeSet<String>,
}

impl Kernel {
    /// Carries out transactions; the number of elements that were named.
    pub(super) fn run(&mut self, change: &TableChange) -> usize {
        self.run_of(&mut ServiceTable::default(), change)
    }

    /// The same for this table, which is told of its seal.
    pub(super) fn run_of(&mut self, table: &mut ServiceTable, change: &TableChange) -> usize {
        let scripts = change.transactions.iter();
        let named = scripts.map(|of| self.transaction(of)).sum();
        if change.breaks_seal {
            let seal = table.seal(&self.listing());
            self.transaction(&seal);
        }
        named
    }

    fn transaction(&mut self, transaction: &Transaction) -> usize {
        self.script(&transaction.script(SERVICES_TABLE))
    }

    fn script(&mut self, script: &str) -> usize {
        let mut named = 0;
        let mut inside = false;
        for line in script.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["table", ..] => inside = true,
                // The marks of a layout: what is inside is not modelled.
                ["chain", name, "{"] if inside => {
                    self.chains.insert(name.to_owned(), Vec::new());
                }
                ["set" | "map", name, "{", ..] if inside => _ = self.maps.insert(name.to_owned()),
                ["delete", "table", ..] => *self = Self::default(),
                [verb @ ("add" | "delete"), "element", "inet", _, set, ..] => {
                    let (_, elements) = line.split_once('{').unwrap();
                    let elements = elements.strip_suffix('}').unwrap().split(", ");
                    for element in elements {
                        named += 1;
                        self.element(verb, set, element.trim());
                    }
                }
                ["add", "chain", _, _, name] => {
                    self.chains.entry(name.to_owned()).or_default();
                }
                ["flush", "chain", _, _, name] => self.chains.get_mut(name).unwrap().clear(),
                ["add", "rule", _, _, name, ..] => {
                    let rule = words[5..].join(" ");
                    self.chains.get_mut(name).unwrap().push(rule);
                }
                ["delete", "chain", _, _, name] => {
                    let used = |data: &Option<String>| {
                        data.as_deref() == Some(format!("goto {name}").as_str())
                    };
                    assert!(!self.elements.values().any(used), "{name} is in use");
                    let goes = |rule: &String| rule.ends_with(&format!("goto {name}"));
                    assert!(
                        !self.chains.values().flatten().any(goes),
                        "{name} is in use"
                    );
                    assert!(self.chains.remove(name).is_some(), "{line}");
                }
                ["add", "map", _, _, name, ..] => _ = self.maps.insert(name.to_owned()),
                ["delete", "map", _, _, name] => assert!(self.maps.remove(name), "{line}"),
                _ => assert!(inside || line.starts_with("add table"), "{line}"),
            }
        }
        self.leads_somewhere();
        named
    }

    fn element(&mut self, verb: &str, set: &str, element: &str) {
        let (key, data) = match element.split_once(" : ") {
            Some((key, data)) => (key, Some(data.to_owned())),
            None => (element, None),
        };
        let key = (set.to_owned(), key.to_owned());
        if verb == "add" {
            let before = self.elements.insert(key.clone(), data.clone());
            assert!(
                before.is_none_or(|before| before == data),
                "{key:?} is there otherwise"
            );
        } else {
            assert_eq!(self.elements.remove(&key), Some(data), "{key:?}");
        }
    }

    /// What a verdict leads to is there, and each index below the count has its endpoint.
    fn leads_somewhere(&self) {
        for ((set, key), data) in &self.elements {
            let Some(chain) = data.as_deref().and_then(|data| data.strip_prefix("goto ")) else {
                continue;
            };
            if matches!(chain, "by-sender" | "refusal") {
                continue;
            }
            assert!(self.chains.contains_key(chain), "{chain}");
            let Some((map, count)) = chain
                .strip_prefix("pick-")
                .and_then(|rest| rest.rsplit_once('-'))
            else {
                continue;
            };
            let family = set.chars().find(char::is_ascii_digit).unwrap();
            for index in 0..count.parse::<usize>().unwrap() {
                let protocol = key.split(" . ").nth(1).unwrap();
                let map = format!("{map}{family}-{protocol}");
                let key = (map, format!("{key} . {index}"));
                assert!(self.elements.contains_key(&key), "{key:?}");
            }
        }
    }

    /// As nftables 1.0.6 prints it.
    pub(super) fn listing(&self) -> String {
        let mut text = "table inet caracal-services {\n".to_owned();
        let names = self.maps.iter().map(|name| (name.as_str(), Vec::new()));
        let mut sets: BTreeMap<&str, Vec<String>> = names.collect();
        for ((set, key), data) in &self.elements {
            let data = data.as_ref().map(|data| format!(" : {data}"));
            sets.entry(set)
                .or_default()
                .push(format!("{key}{}", data.unwrap_or_default()));
        }
        for (set, elements) in sets {
            let elements = elements.join(",\n\t\t\t     ");
            let elements = match elements.is_empty() {
                true => elements,
                false => format!("\t\telements = {{ {elements} }}\n"),
            };
            text += &format!("\tmap {set} {{\n{elements}\t}}\n");
        }
        for (chain, rules) in &self.chains {
            let printed = |rule: &String| match rule.contains(" map @clients6") {
                true => rule.replace(" : ", ":"),
                false => rule.clone(),
            };
            let rules = rules.iter().map(|rule| format!("\t\t{}\n", printed(rule)));
            let rules = rules.collect::<String>();
            text += &format!("\tchain {chain} {{\n{rules}\t}}\n");
        }
        text + "}\n"
    }

    /// Without what may differ between two histories: the order of endpoints, chains that pick.
    pub(super) fn content(&self) -> Self {
        let mut content = self.clone();
        let stays = |name: &str| !name.starts_with("pick-") && !name.starts_with("printed_");
        content.chains.retain(|name, _| stays(name));
        let targets = content.elements.extract_if(.., |(set, _), _| {
            set.starts_with("endpoints") || set.starts_with("here")
        });
        let targets: Vec<_> = targets.collect();
        for ((set, key), target) in targets {
            let address = key.rsplit_once(" . ").unwrap().0;
            let key = (set, format!("{address} -> {}", target.unwrap()));
            content.elements.insert(key, None);
        }
        content
    }
}
