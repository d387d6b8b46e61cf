//! `caracal topology`: what a change of the topology does to the sessions, before anybody makes it;
//! and the change, make before break.

mod apply;
mod change;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use caracal_bgp::Password;
use caracal_model::{InsertEach, NodeName, Prefix, Snapshot};
use caracal_topologies::{
    ClusterSessions, MissingPath, PlanOptions, SecretName, TopologyChoice, choose_topology,
    cluster_sessions, secret_names,
};
use serde_json::json;

use super::render::input::Source;
use super::table;
use crate::args::{Output, TopologyCommand};
use crate::exit::REFUSED;

/// Number of entries shown of a long list.
const SHOWN: usize = 10;

/// Passwords from files.
type KnownPasswords = BTreeMap<SecretName, Password>;

pub(crate) fn run(command: TopologyCommand) -> anyhow::Result<ExitCode> {
    let args = match command {
        TopologyCommand::Plan(args) => args,
        TopologyCommand::Apply(args) => return apply::run(&args),
    };
    let no_blocks: [Prefix; 0] = [];
    let before = Source::open(&args.input, None, &no_blocks)?.read()?;
    let mut after = before.snapshot.clone();
    let mut secrets = before.secrets;
    change::make(
        change::Purpose::Plan,
        &args.change,
        &mut after,
        &mut secrets,
    )?;
    Ok(compare(
        &before.snapshot,
        &after,
        &secrets,
        args.output.output,
    ))
}

/// With a password for each secret that is referred to and not among the files: passwords are on
/// the nodes, and whoever changes the topology need not have them. It is said, since a node without
/// one would not have the session.
fn with_assumed(known: &KnownPasswords, snapshots: [&Snapshot; 2]) -> KnownPasswords {
    let names: BTreeSet<SecretName> = snapshots.into_iter().flat_map(secret_names).insert_each();
    let mut secrets = known.clone();
    for name in names {
        if let Entry::Vacant(unknown) = secrets.entry(name) {
            let SecretName { name, key } = unknown.key();
            eprintln!(
                "note: the password {key:?} of secret {name:?} is taken to be on every node that needs it"
            );
            unknown.insert(Password("assumed".to_owned()));
        }
    }
    secrets
}

fn compare(
    before: &Snapshot,
    after: &Snapshot,
    secrets: &KnownPasswords,
    output: Output,
) -> ExitCode {
    let options = PlanOptions {
        secrets: with_assumed(secrets, [before, after]),
        ..PlanOptions::default()
    };
    let (old, new) = (
        cluster_sessions(before, &options),
        cluster_sessions(after, &options),
    );
    let missing = new.missing(after);
    // Paths that are missing already are listed as well: the change does not mend them.
    let known: BTreeSet<MissingPath> = old.missing(before).into_iter().insert_each();
    match output {
        Output::Json | Output::Yaml => output.print(&as_json(after, &old, &new, &missing)),
        Output::Table | Output::Wide => show(after, &old, &new),
    }
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    let also = missing.iter().filter(|m| known.contains(m)).count();
    eprintln!(
        "refused: {} pair(s) of nodes would have no path ({also} of them have none now):",
        missing.len()
    );
    for MissingPath { node, of, family } in missing.iter().take(SHOWN) {
        eprintln!("  {node} does not learn {of}'s {family} routes");
    }
    if missing.len() > SHOWN {
        eprintln!("  and {} more", missing.len() - SHOWN);
    }
    ExitCode::from(REFUSED)
}

/// Peers of a node by name, with the node at the other end where there is one.
fn names(sessions: &ClusterSessions, node: &NodeName) -> BTreeSet<String> {
    let peers = sessions.nodes.get(node).into_iter().flatten();
    peers
        .map(|(address, session)| match &session.node {
            Some(peer) => peer.to_string(),
            None => address.to_string(),
        })
        .insert_each()
}

fn count(sessions: &ClusterSessions, node: &NodeName) -> usize {
    sessions.nodes.get(node).map_or(0, BTreeMap::len)
}

fn role(choice: &TopologyChoice, node: &NodeName) -> String {
    let TopologyChoice::Reflectors(elected) = choice else {
        return String::new();
    };
    if let Some(place) = elected.top.iter().position(|name| name == node) {
        let standby = place > 0 && place + 1 == elected.top.len();
        return format!("{}top reflector", if standby { "standby " } else { "" });
    }
    for (zone, elected) in &elected.zones {
        let zone = if zone.is_empty() { "-" } else { zone };
        if let Some(place) = elected.reflectors.iter().position(|name| name == node) {
            let kind = if place > 0 && place + 1 == elected.reflectors.len() {
                "standby reflector"
            } else {
                "reflector"
            };
            return format!("{kind} of zone {zone}");
        }
        if elected.clients.contains(node) {
            return format!("client in zone {zone}");
        }
    }
    "outside the election".to_owned()
}

fn show(after: &Snapshot, old: &ClusterSessions, new: &ClusterSessions) {
    let choice = choose_topology(after);
    let mut shown = table(&["NODE", "BEFORE", "AFTER", "NEW", "GONE", "ROLE"]);
    let all: BTreeSet<&NodeName> = old.nodes.keys().chain(new.nodes.keys()).insert_each();
    for node in all {
        let (was, is) = (names(old, node), names(new, node));
        shown.add_row([
            node.to_string(),
            count(old, node).to_string(),
            count(new, node).to_string(),
            some_of(is.difference(&was)),
            some_of(was.difference(&is)),
            role(&choice, node),
        ]);
    }
    println!("{shown}");
    let most = |s: &ClusterSessions| s.nodes.values().map(BTreeMap::len).max().unwrap_or(0);
    println!(
        "\nSessions: {} before (at most {} at a node), {} after (at most {} at a node)",
        old.count(),
        most(old),
        new.count(),
        most(new)
    );
    if matches!(choice, TopologyChoice::Mesh) {
        println!("Automatic reflection is on; the nodes are few enough for a mesh.");
    }
}

fn some_of<'a>(names: impl Iterator<Item = &'a String>) -> String {
    const FEW: usize = 3;
    let names: Vec<&str> = names.map(String::as_str).collect();
    match names.len() {
        0 => "-".to_owned(),
        1..=FEW => names.join(", "),
        more => format!("{} and {} more", names[..FEW].join(", "), more - FEW),
    }
}

fn as_json(
    after: &Snapshot,
    old: &ClusterSessions,
    new: &ClusterSessions,
    missing: &[MissingPath],
) -> serde_json::Value {
    let choice = choose_topology(after);
    let all: BTreeSet<&NodeName> = old.nodes.keys().chain(new.nodes.keys()).insert_each();
    let nodes: BTreeMap<String, serde_json::Value> = all
        .into_iter()
        .map(|node| {
            let value = json!({
                "before": names(old, node),
                "after": names(new, node),
                "role": role(&choice, node),
            });
            (node.to_string(), value)
        })
        .insert_each();
    let missing: Vec<_> = missing
        .iter()
        .map(|m| json!({"node": m.node, "of": m.of, "family": m.family.as_str()}))
        .collect();
    json!({
        "sessionsBefore": old.count(),
        "sessionsAfter": new.count(),
        "nodes": nodes,
        "missing": missing,
    })
}
