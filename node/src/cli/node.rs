//! `caracal node takeover`: gives a name to this machine. `caracal node delete`: everything of a
//! node that is gone for good, in Calico's order: addresses, endpoints, blocks, resources that name
//! it, and the Node last, so that whoever is interrupted can repeat it.

use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_ipam::{Lease, ReleasedNode};
use caracal_model::{
    Key, KeyRange, KeyValue, Kind, NodeName, Timestamp, Txn, TxnOutcome, TxnWrite, kind_prefix,
};
use clap::Subcommand;
use serde_json::{Value, json};

use super::ipam::{announced, now, on_store, refuse};
use crate::args::{Output, OutputArgs};
use crate::cluster_status::status_path;
use crate::completion;
use crate::exit::{CONFLICT, NOT_FOUND};
use crate::node::membership::machine;

/// `caracal node COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Delete a node that is gone for good, with its addresses, blocks, endpoints and resources.
    Delete {
        /// The node.
        #[arg(add = completion::names_of_kind(Kind::Node))]
        name: String,
        /// Delete it although it seems to be alive.
        #[arg(long)]
        force: bool,
        /// Print the writes without making them.
        #[arg(long)]
        dry_run: bool,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a node's name to this machine although another machine holds its lease. A process that
    /// still runs there stops.
    Takeover {
        /// The node; default: this machine's.
        #[arg(add = completion::names_of_kind(Kind::Node))]
        name: Option<String>,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(command: NodeCommand) -> anyhow::Result<ExitCode> {
    let (name, force, dry_run, output) = match command {
        NodeCommand::Takeover { name, output } => return take_over(name, output.output),
        NodeCommand::Delete {
            name,
            force,
            dry_run,
            output,
        } => (name, force, dry_run, output),
    };
    let output = output.output;
    let order = NodeDeletion {
        node: NodeName::from(name),
        force,
        dry_run,
        printed_to: if output.is_data() {
            PrintedTo::Aside
        } else {
            PrintedTo::Here
        },
    };
    on_store(async |store| delete(&store, &order, output).await)
}

fn take_over(name: Option<String>, output: Output) -> anyhow::Result<ExitCode> {
    let config = crate::node::read_config()?;
    let node = name.map_or(config.node, NodeName::from);
    let own = machine::this(&config.lib_dir);
    let term = config.ipam_grace.unwrap_or(machine::TERM);
    on_store(async |store| {
        let found = machine::take_over(&store, &node, &own, term, now()).await?;
        let was = match &found {
            machine::Takeover::Free => None,
            machine::Takeover::Taken(taken) => Some(taken.other()),
            machine::Takeover::NoNode(known) => {
                eprintln!(
                    "caracal: there is no Node {node}, so nobody has its name; nothing was written. Known: {}",
                    known.join(", ")
                );
                return Ok(ExitCode::from(NOT_FOUND));
            }
        };
        if output.is_data() {
            output.print(&json!({"node": node, "machine": own.machine, "was": was}));
            return Ok(ExitCode::SUCCESS);
        }
        match was {
            None => println!("{node} was no other machine's; it is this one's"),
            Some(was) => println!("{node} is this machine's now; it was {was}'s"),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Arguments of a removal.
pub(super) struct NodeDeletion {
    pub(super) node: NodeName,
    pub(super) force: bool,
    pub(super) dry_run: bool,
    pub(super) printed_to: PrintedTo,
}

/// Where each write is said.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PrintedTo {
    /// On standard output.
    Here,
    /// On standard error, beside data.
    Aside,
}

impl NodeDeletion {
    fn say(&self, line: &str) {
        match self.printed_to {
            PrintedTo::Here => println!("{line}"),
            PrintedTo::Aside => eprintln!("{line}"),
        }
    }
}

/// Result of a removal.
pub(super) enum Removed {
    /// All of the node is gone.
    Done(Remains),
    /// It seems to be alive; nothing was changed.
    Alive(String),
    /// Somebody has changed what was about to go; some of it is gone.
    Changed(String),
}

/// Remains of a removed node.
pub(super) struct Remains {
    pub(super) left: ReleasedNode,
    /// Keys of resources, endpoints and leases.
    keys: Vec<String>,
    existed: bool,
}

async fn delete(
    store: &Datastore,
    order: &NodeDeletion,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let node = &order.node;
    let remains = match remove(store, order).await? {
        Removed::Done(remains) => remains,
        Removed::Alive(reason) => return Ok(refuse(&reason)),
        Removed::Changed(reason) => {
            eprintln!("caracal: {reason}");
            return Ok(ExitCode::from(CONFLICT));
        }
    };
    let left = &remains.left;
    let nothing = left.addresses.is_empty() && left.blocks.is_empty() && remains.keys.is_empty();
    if !remains.existed && nothing {
        eprintln!("caracal: there is no Node {node}, and nothing of it is left");
        return Ok(ExitCode::from(NOT_FOUND));
    }
    if output.is_data() {
        output.print(&json!({
            "node": node,
            "dryRun": order.dry_run,
            "addresses": left.addresses,
            "blocks": left.blocks,
            "deleted": remains.keys,
        }));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything of a node, and says each write.
pub(super) async fn remove(store: &Datastore, order: &NodeDeletion) -> anyhow::Result<Removed> {
    let node = &order.node;
    let ranges = [
        KeyRange::Key(Key::node(node).to_path()),
        KeyRange::Key(Lease::path(node)),
    ];
    let answer = store.read(&ranges).await?;
    let [stored, leases] = &answer.ranges[..] else {
        anyhow::bail!("the datastore answered {} of 2 ranges", answer.ranges.len());
    };
    if let Some(reason) = leases.first().and_then(|kv| alive(kv, now()))
        && !order.force
    {
        return Ok(Removed::Alive(format!(
            "{node} seems to be alive: {reason}; stop it first, or add --force"
        )));
    }
    let client = announced(store, order.dry_run, order.printed_to == PrintedTo::Aside);
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
        debug_assert!(matches!(txn.writes[..], [TxnWrite::Delete(_)]));
        if store.commit(&txn).await.with_context(|| path.clone())? == TxnOutcome::Conflict {
            return Ok(Removed::Changed(format!(
                "{path} changed at the same time; is {node} still running? Try again"
            )));
        }
    }
    Ok(Removed::Done(Remains {
        left,
        keys: doomed.into_iter().map(|kv| kv.key).collect(),
        existed: !stored.is_empty(),
    }))
}

/// Why a lease says that its node lives.
fn alive(stored: &KeyValue, now: Timestamp) -> Option<String> {
    let age = Lease::read(stored)?.alive(now)?.as_secs();
    Some(format!("it renewed its lease {age} s ago"))
}

/// Endpoints on the node, resources for it alone, and its status record.
async fn belongings(store: &Datastore, node: &NodeName) -> anyhow::Result<Vec<KeyValue>> {
    let own = node.configuration();
    let ranges = [
        KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint)),
        KeyRange::Prefix(kind_prefix(Kind::BgpPeer)),
        KeyRange::Prefix(kind_prefix(Kind::HostEndpoint)),
        KeyRange::Key(Key::resource(Kind::FelixConfiguration, own.clone()).to_path()),
        KeyRange::Key(Key::resource(Kind::BgpConfiguration, own).to_path()),
        KeyRange::Key(Key::IpamHost(node.clone()).to_path()),
        KeyRange::Key(status_path(node)),
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
