//! Chains that `nft` does not take. One of them must not hold back the table: it is closed, and the
//! endpoints that it judges are named.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use caracal_model::ALL_INTERFACES;

use super::layout::{EARLY, FROM_TO_NODE, HOST_IN, POLICY_TABLE, THROUGH_IN, TO};
use super::rule::Action;
use super::table::PolicyTable;
use crate::nft::Field;

const INFALLIBLE: &str = "writing to a String does not fail";

/// A chain that is closed because `nft` does not take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedChain {
    /// Its name.
    pub chain: String,
    /// The policy that it is of, where it is of one alone.
    pub policy: Option<String>,
    /// Interfaces of the endpoints that it judges, with the directions.
    pub judges: Vec<(String, &'static str)>,
    /// What `nft` says.
    pub reason: String,
}

impl PolicyTable {
    /// The chains that have to be written, those first that lead to no other one of policies.
    pub(crate) fn unwritten(&self, before: Option<&Self>) -> Vec<Box<str>> {
        let is_new = |chain: &str, rules: &Option<_>| {
            rules.is_some() && before.and_then(|before| before.chains.get(chain)) != Some(rules)
        };
        let chains = self.chains.iter();
        let chains = chains.filter(|(chain, rules)| is_new(chain, rules));
        chains.map(|(chain, _)| chain.clone()).collect()
    }

    /// A script that makes some of these chains as they are to be, and all others without rules.
    pub(crate) fn trial(&self, all: &[Box<str>], tried: &[Box<str>]) -> String {
        let mut script = self.base.clone();
        for chain in all {
            writeln!(script, "add chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
        }
        for chain in tried {
            writeln!(script, "flush chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
            for rule in self.chains.get(chain).into_iter().flatten().flatten() {
                writeln!(script, "add rule inet {POLICY_TABLE} {chain} {rule}").expect(INFALLIBLE);
            }
        }
        script
    }

    /// Lets nothing through a chain. False: there is no such chain.
    pub(crate) fn close_chain(&mut self, chain: &str) -> bool {
        let rules = self.chains.get_mut(chain);
        rules
            .map(|rules| *rules = Some(vec![Action::Refuse.into()]))
            .is_some()
    }

    /// What is to be said of a chain that is closed.
    pub(crate) fn refused(&self, chain: &str, reason: &str) -> RefusedChain {
        let mut judges = Vec::new();
        for ((map, key), first) in &self.leads {
            if *map == FROM_TO_NODE || !self.leads_to(first, chain, &mut BTreeSet::new()) {
                continue;
            }
            let interface = match key.iter().next() {
                Some(Field::Interface(interface)) => interface.to_string(),
                _ => ALL_INTERFACES.to_owned(),
            };
            let ingress = [[TO; 2], HOST_IN, THROUGH_IN, EARLY];
            let is_ingress = ingress.iter().flatten().any(|of| of == map);
            let judged = (interface, if is_ingress { "ingress" } else { "egress" });
            if !judges.contains(&judged) {
                judges.push(judged);
            }
        }
        RefusedChain {
            chain: chain.to_owned(),
            policy: self.policies.get(chain).cloned(),
            judges,
            reason: reason.to_owned(),
        }
    }

    fn leads_to<'a>(&'a self, from: &'a str, to: &str, seen: &mut BTreeSet<&'a str>) -> bool {
        if from == to {
            return true;
        }
        if !seen.insert(from) {
            return false;
        }
        let rules = self.chains.get(from).into_iter().flatten().flatten();
        let mut next = rules.filter_map(|rule| match &rule.action {
            Action::Goto(next) | Action::Jump(next) => Some(&**next),
            _ => None,
        });
        next.any(|next| self.leads_to(next, to, seen))
    }
}
