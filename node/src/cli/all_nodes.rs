//! `--all-nodes`: what the nodes have published of themselves ([`crate::cluster_status`]), read
//! from the datastore and not from the nodes, so that it can be asked from anywhere. A summary
//! first; then the nodes that somebody has to look at, or with `-o wide` all. Exit code 4 when
//! there is one.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::Value;

use super::output::watch;
use super::{duration, open_store};
use crate::args::Output;
use crate::cluster_nodes::{ClusterNode, gather};
use crate::cluster_status::{NodeState, PublishedStatus};
use crate::exit::DEGRADED;

/// What is shown of the nodes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Aspect {
    /// `caracal status`
    Status,
    /// `caracal bgp peers`
    Sessions,
    /// `caracal audit`
    Audit,
}

pub(super) fn run(aspect: Aspect, goes_on: bool, output: Output) -> anyhow::Result<ExitCode> {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(published())
    };
    let show = |value: &Value| show(aspect, value, output);
    if goes_on {
        return watch(output, ask, show);
    }
    show(&ask()?)
}

/// All nodes, as `caracal status --all-nodes -o json` prints them.
pub(super) async fn published() -> anyhow::Result<Value> {
    Ok(serde_json::to_value(gather(&open_store()?).await?)?)
}

fn show(aspect: Aspect, value: &Value, output: Output) -> anyhow::Result<ExitCode> {
    let nodes: Vec<ClusterNode> = serde_json::from_value(value.clone())?;
    if output.is_data() {
        output.print(value);
    } else {
        match aspect {
            Aspect::Status => print_status(&nodes, output),
            Aspect::Sessions => print_sessions(&nodes, output),
            Aspect::Audit => print_audit(&nodes, output),
        }
    }
    Ok(match nodes.iter().any(|node| aspect.is_wrong(node)) {
        true => ExitCode::from(DEGRADED),
        false => ExitCode::SUCCESS,
    })
}

impl Aspect {
    /// As for one node: `bgp peers` judges nothing.
    fn is_wrong(self, node: &ClusterNode) -> bool {
        match self {
            Self::Status => node.state.is_wrong(),
            Self::Sessions => false,
            Self::Audit => node.status.as_ref().is_some_and(|s| !s.findings.is_empty()),
        }
    }
}

/// `57 healthy, 2 degraded, 1 silent`.
fn states(nodes: &[ClusterNode]) -> String {
    let mut counts: BTreeMap<NodeState, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.state).or_default() += 1;
    }
    let counts = counts.iter().rev();
    let words = counts.map(|(state, n)| format!("{n} {}", state.as_str()));
    words.collect::<Vec<_>>().join(", ")
}

/// `a ×2, b`.
fn counted(counts: &BTreeMap<String, usize>) -> String {
    let word = |(code, n): (&String, &usize)| match n {
        1 => code.clone(),
        n => format!("{code} ×{n}"),
    };
    counts.iter().map(word).collect::<Vec<_>>().join(", ")
}

fn sum<'a>(
    nodes: &'a [ClusterNode],
    counts: impl Fn(&'a PublishedStatus) -> &'a BTreeMap<String, usize>,
) -> BTreeMap<String, usize> {
    let mut total = BTreeMap::new();
    let published = nodes.iter().filter_map(|node| node.status.as_ref());
    for (code, n) in published.flat_map(counts) {
        *total.entry(code.clone()).or_default() += n;
    }
    total
}

fn seen(node: &ClusterNode) -> String {
    node.last_seen_seconds
        .map_or_else(|| "–".to_owned(), duration)
}

fn print_status(nodes: &[ClusterNode], output: Output) {
    println!("{} nodes: {}", nodes.len(), states(nodes));
    let mut versions = BTreeMap::new();
    for status in nodes.iter().filter_map(|node| node.status.as_ref()) {
        *versions.entry(status.version.clone()).or_default() += 1;
    }
    println!("Versions: {}", none_or(counted(&versions)));
    println!(
        "Sessions: {}",
        none_or(counted(&sum(nodes, |s| &s.sessions)))
    );
    println!(
        "Problems: {}",
        none_or(counted(&sum(nodes, |s| &s.problems)))
    );
    let shown = |node: &&ClusterNode| output == Output::Wide || node.state.is_wrong();
    let mut table = output.table(&[
        "NODE",
        "STATE",
        "SEEN",
        "SESSIONS",
        "VERSION",
        "WHAT IS WRONG",
    ]);
    for node in nodes.iter().filter(shown) {
        let status = node.status.clone().unwrap_or_default();
        let (up, all) = status.established();
        table.add_row([
            node.node.clone(),
            node.state.as_str().to_owned(),
            seen(node),
            format!("{up} of {all}"),
            status.version.clone(),
            what_is_wrong(node, &status),
        ]);
    }
    if table.row_count() > 0 {
        println!("\n{table}");
    }
}

fn none_or(text: String) -> String {
    match text.is_empty() {
        true => "none".to_owned(),
        false => text,
    }
}

fn what_is_wrong(node: &ClusterNode, status: &PublishedStatus) -> String {
    let mut words = Vec::new();
    if node.state == NodeState::Silent {
        words.push(
            "it no longer renews its lease: it does not reach the datastore, or is gone".to_owned(),
        );
    }
    if !["fresh", "none", ""].contains(&status.datastore.as_str()) {
        words.push(format!("datastore {}", status.datastore));
    }
    words.extend(Some(counted(&status.problems)).filter(|text| !text.is_empty()));
    words.extend(status.drain.as_ref().map(|why| format!("drained: {why}")));
    if status.omitted > 0 {
        words.push(format!("and {} more", status.omitted));
    }
    words.join("; ")
}

fn print_sessions(nodes: &[ClusterNode], output: Output) {
    let all = sum(nodes, |s| &s.sessions);
    println!(
        "{} nodes, sessions: {}",
        nodes.len(),
        none_or(counted(&all))
    );
    if output == Output::Wide {
        let mut table = output.table(&["NODE", "ESTABLISHED", "BY STATE"]);
        for node in nodes {
            let Some(status) = &node.status else { continue };
            let (up, all) = status.established();
            let by_state = counted(&status.sessions);
            table.add_row([node.node.clone(), format!("{up} of {all}"), by_state]);
        }
        println!("\n{table}");
    }
    let mut table = output.table(&["NODE", "PEER", "STATE", "REASON"]);
    let mut omitted = 0;
    for (node, status) in nodes.iter().filter_map(|n| Some((n, n.status.as_ref()?))) {
        omitted += status.omitted;
        for down in &status.down {
            table.add_row([&node.node, &down.peer, &down.state, &down.reason]);
        }
    }
    if table.row_count() > 0 {
        println!("\n{table}");
    }
    if omitted > 0 {
        println!("{omitted} more are not named; ask `caracal bgp peers` on the node");
    }
}

fn print_audit(nodes: &[ClusterNode], output: Output) {
    let all = sum(nodes, |s| &s.findings);
    println!("{} nodes: {}", nodes.len(), states(nodes));
    println!("Findings that count: {}", none_or(counted(&all)));
    let mut table = output.table(&["NODE", "STATE", "FINDINGS"]);
    for node in nodes {
        let Some(status) = &node.status else { continue };
        if output == Output::Wide || !status.findings.is_empty() {
            let findings = none_or(counted(&status.findings));
            table.add_row([node.node.clone(), node.state.as_str().to_owned(), findings]);
        }
    }
    if table.row_count() > 0 {
        println!("\n{table}");
        println!(
            "Each with its sentence: `caracal audit` on the node; `caracal explain-code CODE`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: NodeState, problems: &[(&str, usize)]) -> ClusterNode {
        let problems = problems.iter().map(|(code, n)| ((*code).to_owned(), *n));
        ClusterNode {
            node: name.to_owned(),
            state,
            last_seen_seconds: None,
            status: Some(PublishedStatus {
                problems: problems.collect(),
                ..PublishedStatus::default()
            }),
        }
    }

    #[test]
    fn states_and_problems_are_counted() {
        let nodes = [
            node("c", NodeState::Silent, &[]),
            node("b", NodeState::Degraded, &[("bgp.listen", 2)]),
            node("a", NodeState::Healthy, &[]),
            node("calico", NodeState::Foreign, &[]),
        ];
        assert_eq!(states(&nodes), "1 foreign, 1 healthy, 1 degraded, 1 silent");
        assert_eq!(counted(&sum(&nodes, |s| &s.problems)), "bgp.listen ×2");
        assert!(Aspect::Status.is_wrong(&nodes[0]) && !Aspect::Status.is_wrong(&nodes[2]));
    }
}
