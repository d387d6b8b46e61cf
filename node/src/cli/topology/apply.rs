//! `caracal topology apply`: make before break. The change is written together with what was there
//! before ([`caracal_topologies::begin_transition`]), so every node has the sessions of both; when
//! every node reports that it would miss nothing without the old ones, the second write lets them
//! go. Whoever is interrupted in between leaves both in place.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_model::{Family, InsertEach, KeyRange, NodeName, Snapshot, Txn, TxnOutcome};
use caracal_topologies::{
    REPORT_PREFIX, TransitionReport, begin_transition, changed_resources, end_transition,
    transition_under_way,
};

use super::super::ipam::{on_store, refuse};
use super::super::mode;
use super::{KnownPasswords, change, compare};
use crate::args::TopologyApplyArgs;
use crate::exit::{conflict, not_found};

/// Pause between two looks at the reports.
const LOOK: Duration = Duration::from_millis(200);

/// Nodes that are named in a line of progress.
const SHOWN: usize = 3;

pub(super) fn run(args: &TopologyApplyArgs) -> anyhow::Result<ExitCode> {
    on_store(async |store| apply(&store, args).await)
}

async fn apply(store: &Datastore, args: &TopologyApplyArgs) -> anyhow::Result<ExitCode> {
    let before = mode::read(store).await?;
    // Whom nobody knows is told before anything is written.
    Watched::new(&before, &args.skip)?;
    let under_way = transition_under_way(&before)?;
    if let Some(under_way) = &under_way {
        if !args.change.is_empty() {
            return Ok(refuse(
                "a transition is under way: wait for it (`caracal topology apply`), end it (--finish) or take it back (--abort)",
            ));
        }
        if args.abort {
            let old = under_way.before(&before);
            commit(store, &before, &old).await?;
            println!("taken back");
            return gone(store, args).await;
        }
        return conduct(store, &before, &under_way.id, args).await;
    }
    anyhow::ensure!(!args.abort && !args.finish, "no transition is under way");
    anyhow::ensure!(
        !args.change.is_empty(),
        "what is to change? give --auto, --mesh, --change FILE or --delete-peer NAME"
    );
    let mut after = before.clone();
    let mut secrets = KnownPasswords::new();
    change::make(
        change::Purpose::Apply,
        &args.change,
        &mut after,
        &mut secrets,
    )?;
    let refused = compare(&before, &after, &secrets, args.output.output);
    if refused != ExitCode::SUCCESS {
        return Ok(refused);
    }
    if changed_resources(&before, &after).is_empty() {
        args.output.output.progress("nothing changes");
        return Ok(ExitCode::SUCCESS);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let id = format!("{:x}", now.unwrap_or_default().as_nanos());
    begin_transition(&id, &before, &mut after)?;
    let revision = commit(store, &before, &after).await?;
    args.output.output.progress(format_args!(
        "written at revision {revision}: the new sessions come, the old ones stay"
    ));
    conduct(store, &after, &id, args).await
}

/// Writes what differs, if nobody has changed it since it was read.
async fn commit(store: &Datastore, before: &Snapshot, after: &Snapshot) -> anyhow::Result<i64> {
    let mut txn = Txn::new();
    for change in changed_resources(before, after) {
        txn = match (change.old, change.new) {
            (Some((revision, _)), Some(value)) => txn.update(change.path, revision, value),
            (Some((revision, _)), None) => txn.delete(change.path, revision),
            (None, Some(value)) => txn.create(change.path, value),
            (None, None) => txn,
        };
    }
    match store.commit(&txn).await? {
        TxnOutcome::Committed(revision) => Ok(revision),
        TxnOutcome::Conflict => Err(conflict(
            "the topology was changed meanwhile; nothing is written; try again",
        )),
    }
}

/// Waits until nobody needs the old sessions, and lets them go.
async fn conduct(
    store: &Datastore,
    snapshot: &Snapshot,
    id: &str,
    args: &TopologyApplyArgs,
) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    if !args.finish && !nobody_needs(store, snapshot, id, args).await? {
        return Ok(ExitCode::FAILURE);
    }
    args.output.output.progress(format_args!(
        "nobody needs the old sessions after {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    let current = mode::read(store).await?;
    let mut done = current.clone();
    end_transition(&mut done);
    commit(store, &current, &done).await?;
    gone(store, args).await
}

/// Waits until every node would miss nothing; false when that does not come in time.
async fn nobody_needs(
    store: &Datastore,
    snapshot: &Snapshot,
    id: &str,
    args: &TopologyApplyArgs,
) -> anyhow::Result<bool> {
    let watched = Watched::new(snapshot, &args.skip)?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let mut shown = String::new();
    loop {
        let needs = watched.needs(&reports(store).await?, id);
        if needs.is_empty() {
            return Ok(true);
        }
        let line = summary(&needs);
        if line != shown {
            eprintln!("{line}");
            shown = line;
        }
        if Instant::now() >= deadline {
            for (node, reason) in &needs {
                eprintln!("{node}: {reason}");
            }
            eprintln!(
                "{} node(s) would miss something after {} s; the sessions of both topologies stay. Wait on with `caracal topology apply`, \
                 pass dead nodes over with --skip NODE, end it with --finish, take it back with --abort",
                needs.len(),
                args.timeout
            );
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until every report of a living node is gone: it has the new topology alone.
async fn gone(store: &Datastore, args: &TopologyApplyArgs) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    loop {
        let left = reports(store).await?;
        if left.is_empty() {
            args.output.output.progress(format_args!(
                "the old sessions are gone on all nodes after {:.1} s",
                start.elapsed().as_secs_f64()
            ));
            return Ok(ExitCode::SUCCESS);
        }
        if start.elapsed() >= Duration::from_secs(args.timeout) {
            let names: Vec<&str> = left.keys().map(NodeName::as_str).collect();
            eprintln!("these nodes have not taken it over: {}", names.join(", "));
            return Ok(ExitCode::FAILURE);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn reports(store: &Datastore) -> anyhow::Result<BTreeMap<NodeName, TransitionReport>> {
    let answer = store
        .read(&[KeyRange::Prefix(REPORT_PREFIX.to_owned())])
        .await
        .context("reading the nodes' reports")?;
    let report = |entry: &caracal_model::KeyValue| {
        let node = entry.key.strip_prefix(REPORT_PREFIX)?;
        Some((
            NodeName::from(node),
            serde_json::from_slice(&entry.value).ok()?,
        ))
    };
    Ok(answer
        .ranges
        .iter()
        .flatten()
        .filter_map(report)
        .insert_each())
}

/// Nodes that have to report.
struct Watched {
    nodes: BTreeSet<NodeName>,
    /// Addresses of nodes that are passed over: nobody waits for sessions with them.
    passed_over: BTreeSet<std::net::IpAddr>,
}

impl Watched {
    fn new(snapshot: &Snapshot, skip: &[String]) -> anyhow::Result<Self> {
        for name in skip {
            if !snapshot.nodes.contains_key(&NodeName::from(name.as_str())) {
                return Err(not_found(format!("there is no Node {name} to skip")));
            }
        }
        let mut watched = Self {
            nodes: BTreeSet::new(),
            passed_over: BTreeSet::new(),
        };
        for (name, node) in &snapshot.nodes {
            let addresses = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.address(family));
            if skip.iter().any(|skip| skip == name.as_str()) {
                watched.passed_over.extend(addresses.iter().flatten());
            } else if addresses.iter().any(Option::is_some) {
                watched.nodes.insert(name.clone());
            }
        }
        Ok(watched)
    }

    /// The nodes that are not ready, with the reason.
    fn needs(
        &self,
        reports: &BTreeMap<NodeName, TransitionReport>,
        id: &str,
    ) -> BTreeMap<NodeName, String> {
        let need = |name: &NodeName| match reports.get(name).filter(|r| r.transition == id) {
            None => Some("has not taken it over yet".to_owned()),
            Some(report) => reason(report, &self.passed_over),
        };
        self.nodes
            .iter()
            .filter_map(|name| Some((name.clone(), need(name)?)))
            .insert_each()
    }
}

/// Routes and sessions that a node would miss, as a sentence.
fn reason(report: &TransitionReport, passed_over: &BTreeSet<std::net::IpAddr>) -> Option<String> {
    let awaited: Vec<String> = report
        .incomplete
        .difference(passed_over)
        .map(ToString::to_string)
        .collect();
    if !awaited.is_empty() {
        return Some(format!("no End-of-RIB from {}", some(&awaited)));
    }
    let examples: Vec<String> = report.examples.iter().map(ToString::to_string).collect();
    (report.uncovered > 0).then(|| {
        format!(
            "{} prefix(es) only known from peers that go: {}",
            report.uncovered,
            some(&examples)
        )
    })
}

fn summary(needs: &BTreeMap<NodeName, String>) -> String {
    let named: Vec<String> = needs
        .iter()
        .map(|(node, reason)| format!("{node}: {reason}"))
        .collect();
    format!("waiting for {} node(s): {}", needs.len(), some(&named))
}

fn some(all: &[String]) -> String {
    match all.len() {
        0..=SHOWN => all.join(", "),
        more => format!("{} and {} more", all[..SHOWN].join(", "), more - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn snapshot() -> Snapshot {
        let text = "kind: Node\nmetadata: {name: a}\nspec: {bgp: {ipv4Address: 10.0.0.1/24}}\n---\n\
                    kind: Node\nmetadata: {name: b}\nspec: {bgp: {ipv4Address: 10.0.0.2/24}}\n---\n\
                    kind: Node\nmetadata: {name: c}\nspec: {}\n";
        let mut snapshot = Snapshot::default();
        let resources = caracal_topologies::resources_from_yaml(text).unwrap();
        assert_eq!(resources.apply(&mut snapshot), []);
        snapshot
    }

    fn report(id: &str) -> TransitionReport {
        TransitionReport {
            transition: id.to_owned(),
            ..TransitionReport::default()
        }
    }

    #[test]
    fn everybody_with_an_address_has_to_report_on_this_transition() {
        let watched = Watched::new(&snapshot(), &[]).unwrap();
        let told = BTreeMap::from([("a".into(), report("1")), ("b".into(), report("2"))]);
        let needs = watched.needs(&told, "1");
        assert_eq!(needs.keys().collect::<Vec<_>>(), [&NodeName::from("b")]);
        let told = BTreeMap::from([("a".into(), report("1")), ("b".into(), report("1"))]);
        assert_eq!(watched.needs(&told, "1"), BTreeMap::new());
    }

    #[test]
    fn sessions_with_nodes_that_are_passed_over_are_not_waited_for() {
        let watched = Watched::new(&snapshot(), &["b".to_owned()]).unwrap();
        let mut told = report("1");
        told.incomplete.insert([10, 0, 0, 2].into());
        let told = |report: TransitionReport| BTreeMap::from([(NodeName::from("a"), report)]);
        assert_eq!(watched.needs(&told(report("1")), "1"), BTreeMap::new());
        let mut missing = report("1");
        missing.uncovered = 7;
        missing.examples = vec!["10.244.1.0/26".parse().unwrap()];
        assert_eq!(
            summary(&watched.needs(&told(missing), "1")),
            "waiting for 1 node(s): a: 7 prefix(es) only known from peers that go: 10.244.1.0/26"
        );
        assert!(Watched::new(&snapshot(), &["x".to_owned()]).is_err());
    }
}
