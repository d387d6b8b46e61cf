//! Judges what nodes report of a pool's data path before and after a change of its mode.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use caracal_datastore::Store;
use caracal_ipam::LEASE_PREFIX;
use caracal_model::{Family, InsertEach, KeyRange, NodeName, Snapshot};

use crate::exit::not_found;
use crate::mode_check::{ModeCheckReport, PeerAnswer, REPORTS};

/// Pairs that are named in a sentence.
const SHOWN: usize = 3;

/// Reports by the node that wrote them.
pub(super) type Reports = BTreeMap<NodeName, ModeCheckReport>;

/// The reports of one check.
pub(super) async fn reports<S: Store>(store: &S, check: &str) -> anyhow::Result<Reports> {
    let mut all = all_reports(store).await?;
    all.retain(|_, report| report.check == check);
    Ok(all)
}

pub(super) async fn all_reports<S: Store>(store: &S) -> anyhow::Result<Reports> {
    let answer = store
        .read(&[KeyRange::Prefix(REPORTS.to_owned())])
        .await
        .context("reading the nodes' reports")?;
    let report = |entry: &caracal_model::KeyValue| {
        let node = entry.key.strip_prefix(REPORTS)?;
        let report = serde_json::from_slice(&entry.value).ok()?;
        Some((NodeName::from(node), report))
    };
    Ok(answer
        .ranges
        .iter()
        .flatten()
        .filter_map(report)
        .insert_each())
}

/// The nodes that have to report: those with an address that have run Caracal, which a liveness
/// lease shows. Nodes of Calico's do not report; they are tried by the others.
pub(in crate::cli) async fn reporters<S: Store>(
    store: &S,
    snapshot: &Snapshot,
    skip: &[String],
) -> anyhow::Result<BTreeSet<NodeName>> {
    for name in skip {
        if !snapshot.nodes.contains_key(name.as_str()) {
            return Err(not_found(format!("there is no Node {name} to skip")));
        }
    }
    let answer = store
        .read(&[KeyRange::Prefix(LEASE_PREFIX.to_owned())])
        .await?;
    let leases: BTreeSet<&str> = answer
        .ranges
        .iter()
        .flatten()
        .filter_map(|entry| entry.key.strip_prefix(LEASE_PREFIX))
        .insert_each();
    let reports = |name: &NodeName| {
        let node = &snapshot.nodes[name];
        let addresses = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.address(family));
        let skipped = skip.iter().any(|skip| skip == name.as_str());
        addresses.iter().any(Option::is_some) && leases.contains(name.as_str()) && !skipped
    };
    let names = snapshot.nodes.keys().filter(|name| reports(name));
    Ok(names.cloned().insert_each())
}

/// Nodes that have not reported yet with a kernel that follows `basis`.
pub(super) fn awaited(
    reporters: &BTreeSet<NodeName>,
    reports: &Reports,
    basis: i64,
) -> Result<(), String> {
    let reported = |name: &NodeName| reports.get(name).is_some_and(|r| r.basis >= basis);
    let missing: Vec<&str> = reporters
        .iter()
        .filter(|name| !reported(name))
        .map(NodeName::as_str)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let more = missing.len().saturating_sub(SHOWN);
    let named = missing[..missing.len() - more].join(", ");
    let and = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Err(format!(
        "no report from {named}{and}: its kernel is not in step, or it does not run (then --skip it)"
    ))
}

/// Pairs that were tried, and those that the change has broken.
pub(super) fn broken(before: &Reports, after: &Reports) -> (usize, Vec<String>) {
    let mut answering = 0;
    let mut broken = Vec::new();
    for (from, report) in after {
        for (to, answer) in &report.nodes {
            let was = before.get(from).and_then(|report| report.nodes.get(to));
            match (answer, was) {
                (PeerAnswer::Answers, _) => answering += 1,
                // It was like that, of the same addresses.
                (silent @ PeerAnswer::Silent(_), Some(was)) if was == silent => {}
                (PeerAnswer::Silent(tried), _) => {
                    let tried: Vec<String> = tried.iter().map(ToString::to_string).collect();
                    broken.push(format!(
                        "{from} → {to}: no answer from {}",
                        tried.join(", ")
                    ));
                }
                (PeerAnswer::Unknown(_), _) => {}
            }
        }
    }
    (answering, broken)
}

/// The first of them, and how many more.
pub(super) fn some(broken: &[String]) -> String {
    let more = broken.len().saturating_sub(SHOWN);
    let named = broken[..broken.len() - more].join("; ");
    if more > 0 {
        format!("{named}; and {more} more")
    } else {
        named
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn reports(entries: &[(&str, &str, PeerAnswer)]) -> Reports {
        let mut reports = Reports::new();
        for (from, to, answer) in entries {
            let report = reports.entry((*from).into()).or_default();
            report.nodes.insert((*to).into(), answer.clone());
        }
        reports
    }

    fn silent(address: &str) -> PeerAnswer {
        PeerAnswer::Silent(vec![address.parse().unwrap()])
    }

    #[test]
    fn what_was_silent_before_is_not_blamed_on_the_change() {
        let unknown = || PeerAnswer::Unknown("no address".to_owned());
        let before = reports(&[
            ("a", "b", PeerAnswer::Answers),
            ("a", "c", silent("10.244.2.7")),
            ("a", "d", silent("10.244.3.7")),
            ("b", "a", unknown()),
        ]);
        let after = reports(&[
            ("a", "b", PeerAnswer::Answers),
            ("a", "c", silent("10.244.2.7")),
            ("a", "d", silent("10.244.3.1")),
            ("b", "a", silent("10.244.0.1")),
            ("b", "c", unknown()),
        ]);
        let (answering, broken) = broken(&before, &after);
        assert_eq!(answering, 1);
        assert_eq!(
            broken,
            [
                "a → d: no answer from 10.244.3.1",
                "b → a: no answer from 10.244.0.1"
            ]
        );
    }

    #[test]
    fn who_is_missing_is_named() {
        let reporters: BTreeSet<NodeName> = ["a", "b", "c", "d", "e"].map(Into::into).into();
        let answers = reports(&[("c", "a", PeerAnswer::Answers)]);
        let reason = awaited(&reporters, &answers, 0).unwrap_err();
        assert!(
            reason.starts_with("no report from a, b, d and 1 more:"),
            "{reason}"
        );
        let alone: BTreeSet<NodeName> = ["c".into()].into();
        assert_eq!(awaited(&alone, &answers, 0), Ok(()));
        assert!(
            awaited(&alone, &answers, 1).is_err(),
            "of before the last change"
        );
    }
}
