//! `caracal node delete`: everything of a node that is gone for good, in Calico's order: addresses, endpoints,
//! blocks, resources that name it, and the Node last, so that whoever is interrupted can repeat it.

use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{EtcdStore, Store};
use caracal_ipam::lease;
use caracal_model::keys::{Key, kind_prefix};
use caracal_model::names::NodeName;
use caracal_model::resource::Kind;
use caracal_model::time::Timestamp;
use caracal_model::txn::{KeyValue, Range, Txn, TxnOutcome, Write};
use clap::Subcommand;
use serde_json::{Value, json};

use super::ipam::{announced, now, on_store, refuse};
use crate::args::{Output, OutputArgs};
use crate::cli::exit::{CONFLICT, NOT_FOUND};

/// `caracal node COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Removes a node that is gone for good: its addresses, blocks, endpoints and resources.
    Delete {
        /// The node.
        name: String,
        /// Remove it although it seems to be alive.
        #[arg(long)]
        force: bool,
        /// Print the writes and make none.
        #[arg(long)]
        dry_run: bool,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(super) fn run(command: NodeCommand) -> anyhow::Result<ExitCode> {
    let NodeCommand::Delete {
        name,
        force,
        dry_run,
        output,
    } = command;
    let order = Order {
        node: NodeName::from(name),
        force,
        dry_run,
        output: output.output,
    };
    on_store(async |store| delete(&store, &order).await)
}

/// What was ordered.
struct Order {
    node: NodeName,
    force: bool,
    dry_run: bool,
    output: Output,
}

impl Order {
    /// For people on standard output; beside JSON and YAML on standard error.
    fn say(&self, line: &str) {
        self.output.progress(line);
    }
}

async fn delete(store: &EtcdStore, order: &Order) -> anyhow::Result<ExitCode> {
    let node = &order.node;
    let ranges = [
        Range::Key(Key::node(node).to_path()),
        Range::Key(lease::path(node)),
    ];
    let answer = store.read(&ranges).await?;
    let [stored, leases] = &answer.ranges[..] else {
        anyhow::bail!("the datastore answered {} of 2 ranges", answer.ranges.len());
    };
    if let Some(reason) = leases.first().and_then(|kv| alive(kv, now()))
        && !order.force
    {
        return Ok(refuse(&format!(
            "{node} seems to be alive: {reason}; stop it first, or add --force"
        )));
    }
    let client = announced(store, order.dry_run, order.output.is_data());
    let left = client.release_node(node).await?;
    order.say(&format!(
        "Released {} addresses and {} blocks of {node}",
        left.addresses.len(),
        left.blocks.len()
    ));
    let mut doomed = belongings(store, node).await?;
    doomed.extend(leases.iter().cloned());
    doomed.extend(stored.iter().cloned());
    for kv in &doomed {
        let path = &kv.key;
        let note = if order.dry_run {
            " (dry run: not written)"
        } else {
            ""
        };
        order.say(&format!("delete {path}{note}"));
        if order.dry_run {
            continue;
        }
        let txn = Txn::new().delete(path.clone(), kv.mod_revision);
        debug_assert!(matches!(txn.writes[..], [Write::Delete(_)]));
        if store.commit(&txn).await.with_context(|| path.clone())? == TxnOutcome::Conflict {
            eprintln!(
                "caracal: {path} changed at the same time; is {node} still running? Try again"
            );
            return Ok(ExitCode::from(CONFLICT));
        }
    }
    if stored.is_empty() && doomed.is_empty() && left.addresses.is_empty() && left.blocks.is_empty()
    {
        eprintln!("caracal: there is no Node {node}, and nothing of it is left");
        return Ok(ExitCode::from(NOT_FOUND));
    }
    if order.output.is_data() {
        let keys: Vec<&String> = doomed.iter().map(|kv| &kv.key).collect();
        order.output.print(&json!({
            "node": node,
            "dryRun": order.dry_run,
            "addresses": left.addresses,
            "blocks": left.blocks,
            "deleted": keys,
        }));
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a lease says that its node lives.
fn alive(stored: &KeyValue, now: Timestamp) -> Option<String> {
    let lease = lease::read(stored)?;
    let renewed = Timestamp::parse_rfc3339(&lease.renewed)?;
    let age = now.since(renewed).as_secs();
    (age < lease.seconds).then(|| format!("it renewed its lease {age} s ago"))
}

/// Endpoints on the node and resources for it alone.
async fn belongings(store: &EtcdStore, node: &NodeName) -> anyhow::Result<Vec<KeyValue>> {
    let own = format!("node.{node}");
    let ranges = [
        Range::Prefix(kind_prefix(Kind::WorkloadEndpoint)),
        Range::Prefix(kind_prefix(Kind::BgpPeer)),
        Range::Prefix(kind_prefix(Kind::HostEndpoint)),
        Range::Key(Key::resource(Kind::FelixConfiguration, own.clone()).to_path()),
        Range::Key(Key::resource(Kind::BgpConfiguration, own).to_path()),
        Range::Key(Key::IpamHost(node.clone()).to_path()),
    ];
    let answer = store.read(&ranges).await?;
    let names = |kv: &KeyValue| {
        let value: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
        value["spec"]["node"].as_str() == Some(node.as_str())
    };
    let lists = answer.ranges.into_iter().enumerate();
    Ok(lists
        .flat_map(|(number, list)| list.into_iter().filter(move |kv| number > 2 || names(kv)))
        .collect())
}
