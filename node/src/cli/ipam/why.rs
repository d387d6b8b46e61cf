//! `caracal ipam why NODE`: the decision chain, and a dry run of the assignment itself.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_ipam::{
    AssignError, AssignRequest, Assigned, Client, ClientError, LoggedStore, Why, namespace_key,
    namespace_labels, namespace_named, why,
};
use caracal_model::{Family, KeyRange, LOCKED, NodeName};
use serde_json::{Value, json};

use super::args::WhyArgs;
use super::{NOT_FOUND, survey};
use crate::cli::table;

pub(super) async fn run(store: &Datastore, args: &WhyArgs) -> anyhow::Result<ExitCode> {
    let node = NodeName::from(args.node.as_str());
    let family = if args.ipv6 {
        Family::Ipv6
    } else {
        Family::Ipv4
    };
    let survey = survey(store).await?;
    let namespace = match &args.namespace {
        Some(namespace) => Some(labels(store, namespace).await?),
        None => None,
    };
    let Some(why) = why(&survey.view, &node, family, namespace.as_ref()) else {
        let known: Vec<&str> = survey.view.nodes.keys().map(NodeName::as_str).collect();
        eprintln!(
            "caracal: there is no Node {node}; known: {}",
            known.join(", ")
        );
        return Ok(ExitCode::from(NOT_FOUND));
    };
    let mut request = AssignRequest::workload(node, "caracal-ipam-why".into());
    request.namespace_labels = namespace;
    if args.ipv6 {
        (request.num_v4, request.num_v6) = (0, 1);
    }
    let dry_run = Client::new(LoggedStore::dry_run(store.clone(), |_| {}));
    let tried = dry_run.auto_assign(request).await;
    let (sentence, next) = match survey.cluster.locked {
        true => (format!("There is no next address: {LOCKED}."), json!(null)),
        false => next_address(tried, &why)?,
    };
    let output = args.output.output;
    if output.is_data() {
        let mut value = serde_json::to_value(&why)?;
        value["next"] = next;
        value["sentence"] = sentence.into();
        output.print(&value);
    } else {
        print(&why);
        println!("{sentence}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome of the dry run: a sentence, and the same for programs.
fn next_address(
    tried: Result<Assigned, ClientError<AssignError>>,
    why: &Why,
) -> anyhow::Result<(String, Value)> {
    Ok(match tried {
        Ok(assigned) => {
            let Some(next) = assigned.all().next() else {
                anyhow::bail!("the dry run assigned nothing and gave no reason");
            };
            let own = why.blocks.iter().any(|block| block.cidr == next.block);
            let source = match (next.borrowed, own) {
                (true, _) => "borrowed",
                (false, true) => "the node's own",
                (false, false) => "newly claimed",
            };
            let sentence = format!(
                "The next address is {} from block {} ({source}) of pool {}.",
                next.address, next.block, next.pool
            );
            let next = json!({"address": next.address, "block": next.block, "pool": next.pool,
                "borrowed": next.borrowed, "ownBlock": own});
            (sentence, next)
        }
        Err(ClientError::Refused(error)) => {
            (format!("There is no next address: {error}."), json!(null))
        }
        Err(error) => return Err(error).context("trying an assignment"),
    })
}

/// The labels of a namespace, as an assignment for a pod in it would see them.
async fn labels(store: &Datastore, namespace: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let profile = KeyRange::Key(namespace_key(namespace).to_path());
    let answer = store.read(&[profile]).await?;
    let Some(stored) = answer.ranges.iter().flatten().next() else {
        return Ok(namespace_named(namespace));
    };
    let labels = namespace_labels(namespace, &stored.value);
    labels.with_context(|| format!("{} does not parse", stored.key))
}

const fn yes(usable: bool) -> &'static str {
    if usable { "yes" } else { "no" }
}

fn print(why: &Why) {
    let mut pools = table(&["POOL", "CIDR", "USABLE", "REASON"]);
    for pool in &why.pools {
        pools.add_row([
            pool.pool.as_str(),
            &pool.cidr.to_string(),
            yes(pool.usable),
            &pool.reason,
        ]);
    }
    println!("{pools}\n");
    let mut blocks = table(&["OWN BLOCK", "POOL", "FREE", "USABLE", "REASON"]);
    for block in &why.blocks {
        blocks.add_row([
            block.cidr.to_string().as_str(),
            block.pool.as_ref().map_or("-", |pool| pool.as_str()),
            &block.free.to_string(),
            yes(block.usable),
            &block.reason,
        ]);
    }
    println!("{blocks}\n");
    println!("Claiming a further block: {}", why.growth);
    println!("Borrowing from other nodes' blocks: {}", why.borrowing);
}
