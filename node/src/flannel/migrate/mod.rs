//! `caracal flannel migrate`: a node of a flannel network becomes one of a Calico network, and goes
//! back. Its containers keep their addresses: the lease becomes a block, and what host-local has
//! given out is held in it. `caracal flannel` goes on, behind the agent: what the agent does not
//! reach yet is reached as before (decision 0200).

mod end;
mod host_local;
mod steps;
mod undo;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{Datastore, Store, read_text_file};
use caracal_ipam::{Configure, IpamData, SettingsChange, TakeBlock};
use caracal_model::{
    DELEGATED_ATTRIBUTE, HandleId, InsertEach, IpPool, Key, Kind, NodeName, Prefix, Timestamp, Txn,
    TxnOutcome,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::args::FlannelArgs;
use super::facts::Facts;
use crate::admin::{Request, ask};
use crate::args::OutputArgs;
use crate::cli::ipam::{announced, now, refuse};
use crate::cli::{conflists, open_store};
use crate::config::run_dir;
use crate::exit::conflict;
use host_local::{HostLocal, LocalHolder};
use steps::{CniConfiguration, MigrationStep, POOL, Seen, StepState, pool_spec, steps};

/// Attribute of addresses that were flannel's.
const FROM_FLANNEL: &str = "caracal-flannel";

/// `caracal flannel migrate COMMAND`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Show the steps by which this node goes over, and how far it is. Exit code 5 if it cannot.
    Plan {
        #[command(flatten)]
        args: MigrateArgs,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Make this node's lease a block of a pool, with the addresses that its containers have. May
    /// be repeated. Exit code 5 if something has to be done first.
    Apply(MigrateArgs),
    /// End flannel on this node, once every lease is a block and `caracal flannel` has ended here:
    /// its lease, routes, devices, rules and `subnet.env` go, and with the first node the
    /// network's configuration in etcd. May be repeated. Exit code 5 if something has to be done
    /// first.
    End(MigrateArgs),
    /// Give the block back to flannel. Exit code 5 while something has to be done by hand; repeat
    /// it then.
    Undo(MigrateArgs),
}

/// Where things are.
#[derive(Clone, Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    args: Box<FlannelArgs>,
    /// The folder in which host-local keeps the addresses of flannel's network.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni/networks/cbr0")]
    networks_dir: PathBuf,
    /// The folder of CNI configurations.
    #[arg(
        long,
        env = "CNI_CONF_DIR",
        value_name = "DIR",
        default_value = "/etc/cni/net.d"
    )]
    cni_conf_dir: PathBuf,
}

impl MigrateCommand {
    /// True for what only looks.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(self, Self::Plan { .. })
    }
}

/// Everything that a command goes by.
struct Site {
    facts: Facts,
    node: NodeName,
    cni: Option<CniConfiguration>,
    local: HostLocal,
    store: Datastore,
    data: IpamData,
    runs: bool,
}

impl Site {
    async fn read(line: &MigrateArgs) -> anyhow::Result<Self> {
        let node = crate::node::read_config()?.node;
        let facts = Facts::read(&line.args).await?;
        let store = open_store()?;
        let data = caracal_ipam::Client::new(store.clone()).view().await;
        let data = data.context(store.advice())?;
        Ok(Self {
            facts,
            node,
            cni: cni(&line.cni_conf_dir)?,
            local: HostLocal(line.networks_dir.clone()),
            store,
            data,
            runs: ask(&run_dir(), &Request::Status).is_ok(),
        })
    }

    fn seen(&self) -> anyhow::Result<Seen<'_>> {
        Ok(Seen {
            facts: &self.facts,
            node: &self.node,
            cni: self.cni.clone(),
            held: self.local.read()?,
            data: &self.data,
            runs: self.runs,
        })
    }

    fn steps(&self) -> anyhow::Result<Vec<MigrationStep>> {
        Ok(steps(&self.seen()?))
    }
}

/// The first configuration of a folder: runtimes take it.
fn cni(dir: &Path) -> anyhow::Result<Option<CniConfiguration>> {
    let Some(file) = conflists(dir).into_iter().next() else {
        return Ok(None);
    };
    let path = dir.join(&file);
    let text = read_text_file(&path).with_context(|| path.display().to_string())?;
    let conf: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    let plugins = conf["plugins"].as_array().cloned();
    let mut plugins = plugins.unwrap_or_else(|| vec![conf.clone()]).into_iter();
    let is_ours = plugins.any(|plugin| {
        let kind = plugin["type"].as_str().unwrap_or_default();
        ["caracal-cni", "calico"].contains(&kind)
    });
    let ours = conf["name"].as_str().filter(|_| is_ours).map(str::to_owned);
    Ok(Some(CniConfiguration { file, ours }))
}

pub(super) async fn run(command: &MigrateCommand) -> anyhow::Result<ExitCode> {
    match command {
        MigrateCommand::Plan { args, output } => plan(&Site::read(args).await?, *output),
        MigrateCommand::Apply(args) => apply(&Site::read(args).await?).await,
        MigrateCommand::End(args) => end::end(&Site::read(args).await?, args).await,
        MigrateCommand::Undo(args) => undo::undo(&Site::read(args).await?).await,
    }
}

fn plan(site: &Site, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let steps = site.steps()?;
    let rows = steps
        .iter()
        .map(|step| json!({"step": step.name, "state": step.state.as_str(), "text": step.text}));
    let output = output.output;
    if output.is_data() {
        output.print(&json!({"node": site.node, "steps": rows.collect::<Vec<_>>()}));
    } else {
        let mut table = output.table(&["STEP", "STATE", ""]);
        for step in &steps {
            table.add_row([step.name, step.state.as_str(), &step.text]);
        }
        println!("{table}");
    }
    Ok(match steps.iter().find(|s| s.state == StepState::Refused) {
        Some(step) => refuse(&format!("{}: {}", step.name, step.text)),
        None => ExitCode::SUCCESS,
    })
}

async fn apply(site: &Site) -> anyhow::Result<ExitCode> {
    // What a plugin of host-local's is at ends first; none begins while our plugin is configured.
    let _lock = site.local.lock()?;
    let steps = site.steps()?;
    let stops = |s: &&MigrationStep| matches!(s.state, StepState::Before | StepState::Refused);
    if let Some(step) = steps.iter().find(stops) {
        return Ok(refuse(&format!("{}: {}", step.name, step.text)));
    }
    let network = site.cni.as_ref().and_then(|cni| cni.ours.clone());
    let (network, config) = network
        .zip(site.facts.config.clone().ok())
        .context("the steps have changed meanwhile; try again")?;
    let own = site.facts.own().and_then(|(own, _)| own.v4);
    let subnet = own.context("the lease is gone; try again")?;
    let client = announced(&site.store, false, false);
    let is_due = |name| {
        let mut steps = steps.iter();
        steps.any(|s| s.name == name && s.state == StepState::Apply)
    };
    if is_due("ipam") {
        let change = SettingsChange {
            strict_affinity: Some(true),
            auto_allocate_blocks: Some(false),
            ..SettingsChange::default()
        };
        client.drive(Configure::new(change)).await?;
    }
    if is_due("pool") {
        let masquerades = site.facts.env.as_ref().is_ok_and(|env| env.masquerades);
        let range = config.v4.as_ref();
        let range = range.context("the network has changed meanwhile; try again")?;
        let mut pool = IpPool::new(POOL, pool_spec(&config.backend, range, masquerades));
        pool.metadata.uid = Some(crate::register::uuid());
        pool.metadata.creation_timestamp = Some(now().rfc3339());
        let key = Key::resource(Kind::IpPool, POOL).to_path();
        let txn = Txn::new().create(&key, pool.to_json());
        if site.store.commit(&txn).await? == TxnOutcome::Conflict {
            return Err(conflict(format!(
                "somebody else has written {key}; try again"
            )));
        }
        println!("put {key}");
    }
    let held = addresses(&site.local, subnet, &network, &site.node)?;
    let bridge = steps::bridge(&site.facts, subnet);
    if let Some(bridge) = &bridge {
        answer_for_others(bridge.as_str(), true)?;
    }
    let taken = client.drive(take(site, subnet, held, now())).await?;
    println!("block {subnet} is this node's; {taken} more addresses are held");
    for step in steps.iter().filter(|s| s.state == StepState::Later) {
        println!("{}: {}", step.name, step.text);
    }
    Ok(ExitCode::SUCCESS)
}

fn take(
    site: &Site,
    subnet: Prefix,
    held: BTreeMap<IpAddr, HandleId>,
    now: Timestamp,
) -> TakeBlock {
    let yes = || "true".to_owned();
    let attributes = [
        // Nobody here can say whether it is in use: a DEL does.
        (DELEGATED_ATTRIBUTE.to_owned(), yes()),
        (FROM_FLANNEL.to_owned(), yes()),
    ];
    TakeBlock::new(site.node.clone(), subnet, held, attributes.into(), now)
}

/// What host-local has given out, under the handles by which our plugin frees it; the first address
/// (flannel's device), the second one (the bridge) and the last one (broadcast) are nobody's.
fn addresses(
    local: &HostLocal,
    subnet: Prefix,
    network: &str,
    node: &NodeName,
) -> anyhow::Result<BTreeMap<IpAddr, HandleId>> {
    let reserved = HandleId::from(format!("flannel-reserved-{node}"));
    let kept = [0, 1, subnet.size() - 1]
        .into_iter()
        .filter_map(|n| subnet.nth(n));
    let mut held: BTreeMap<IpAddr, HandleId> = kept.map(|a| (a, reserved.clone())).insert_each();
    for (address, holder) in local.read()?.unwrap_or_default() {
        if !subnet.contains(address) {
            continue;
        }
        if let LocalHolder::Container(id, ifname) = holder {
            held.insert(address, caracal_cni::handle(network, &id, &ifname));
        }
    }
    Ok(held)
}

/// Containers on the bridge look for each address of the subnet on their link: this machine answers
/// for those that are elsewhere, and leads the packets there.
fn answer_for_others(bridge: &str, on: bool) -> anyhow::Result<()> {
    let flag = if on { "1" } else { "0" };
    // Else the answer is late by up to 0.8 s; 80 is Linux's own.
    let delay = if on { "0" } else { "80" };
    for (key, value) in [
        (format!("conf/{bridge}/proxy_arp"), flag),
        (format!("neigh/{bridge}/proxy_delay"), delay),
    ] {
        let path = format!("/proc/sys/net/ipv4/{key}");
        std::fs::write(&path, value).with_context(|| path.clone())?;
        println!("{path} = {value}");
    }
    Ok(())
}
