//! `caracal topology`: what a change of the topology does to the sessions, before anybody makes it;
//! and the change, make before break.

mod apply;
mod change;
mod picture;

use std::collections::BTreeMap;
use std::process::ExitCode;

use caracal_model::{InsertEach, Prefix, Snapshot};
use caracal_topologies::{MissingPath, SecretName, TopologyChoice};
use serde_json::json;

use super::render::input::Source;
use super::table;
use crate::args::{Output, TopologyCommand};
use crate::exit::REFUSED;
use crate::node::plans::topology::{
    KnownPasswords, TopologyPlan, missing_json, most_sessions, peer_names, session_count,
};

/// Number of entries shown of a long list.
const SHOWN: usize = 10;

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

fn compare(
    before: &Snapshot,
    after: &Snapshot,
    secrets: &KnownPasswords,
    output: Output,
) -> ExitCode {
    let plan = TopologyPlan::new(before, after, secrets, false);
    for SecretName { name, key } in &plan.assumed {
        eprintln!(
            "note: the password {key:?} of secret {name:?} is taken to be on every node that needs it"
        );
    }
    match output {
        Output::Json | Output::Yaml => output.print(&as_json(&plan)),
        Output::Table | Output::Wide => show(&plan, after),
    }
    let missing = &plan.missing;
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "refused: {} pair(s) of nodes would have no path ({} of them have none now):",
        missing.len(),
        plan.missing_now
    );
    for MissingPath { node, of, family } in missing.iter().take(SHOWN) {
        eprintln!("  {node} does not learn {of}'s {family} routes");
    }
    if missing.len() > SHOWN {
        eprintln!("  and {} more", missing.len() - SHOWN);
    }
    ExitCode::from(REFUSED)
}

fn show(plan: &TopologyPlan, after: &Snapshot) {
    let (old, new) = (&plan.before, &plan.after);
    let mut shown = table(&["NODE", "BEFORE", "AFTER", "NEW", "GONE", "ROLE"]);
    for node in plan.nodes() {
        let (was, is) = (peer_names(old, node), peer_names(new, node));
        shown.add_row([
            node.to_string(),
            session_count(old, node).to_string(),
            session_count(new, node).to_string(),
            some_of(is.difference(&was)),
            some_of(was.difference(&is)),
            plan.role(node),
        ]);
    }
    println!("{shown}");
    println!(
        "\nSessions: {} before (at most {} at a node), {} after (at most {} at a node)",
        old.count(),
        most_sessions(old),
        new.count(),
        most_sessions(new)
    );
    if let Some(picture) = picture::picture(plan, after) {
        println!("\n{picture}");
    }
    if matches!(plan.choice, TopologyChoice::Mesh) {
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

fn as_json(plan: &TopologyPlan) -> serde_json::Value {
    let (old, new) = (&plan.before, &plan.after);
    let nodes: BTreeMap<String, serde_json::Value> = plan
        .nodes()
        .into_iter()
        .map(|node| {
            let value = json!({
                "before": peer_names(old, node),
                "after": peer_names(new, node),
                "role": plan.role(node),
            });
            (node.to_string(), value)
        })
        .insert_each();
    let missing: Vec<_> = plan.missing.iter().map(missing_json).collect();
    json!({
        "sessionsBefore": old.count(),
        "sessionsAfter": new.count(),
        "nodes": nodes,
        "missing": missing,
    })
}
