//! `caracal mode plan` and `caracal mode apply`: a pool's encapsulation, changed with open eyes.
//! Exit code 5 when a node would be stranded; nothing is written then.

mod apply;
mod verify;

use std::process::ExitCode;
use std::time::Duration;

use caracal_agent::{Assumed, FALLBACK_MTU, WantedTunnels, host_mtu, kernel_support, read_links};
use caracal_datastore::Store;
use caracal_model::{EncapMode, KeyRange, Kind, Snapshot, ipam_prefix, kind_prefix};

use crate::args::{ModeArgs, ModeCommand, Output};
use crate::exit::{REFUSED, not_found};
use crate::node::plans::mode::{ModeError, ModePlan, Modes};
pub(super) use verify::reporters;

pub(crate) fn run(command: &ModeCommand) -> anyhow::Result<ExitCode> {
    // One thread: netlink sockets belong to the network namespace of the thread that opens them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = super::open_store()?;
        let (args, apply) = match command {
            ModeCommand::Plan { args } => (args, None),
            ModeCommand::Apply {
                args,
                timeout,
                run_dirs,
                skip,
            } => {
                let options = apply::ModeOptions {
                    output: args.output.output,
                    timeout: Duration::from_secs(*timeout),
                    run_dirs,
                    skip,
                };
                (args, Some(options))
            }
        };
        let snapshot = read(&store).await?;
        let plan = match planned(&snapshot, args).await {
            Ok(plan) => plan,
            Err(error @ ModeError::NoPool { .. }) => return Err(not_found(error.to_string())),
            Err(error) => {
                eprintln!("{error}");
                return Ok(ExitCode::from(REFUSED));
            }
        };
        let output = args.output.output;
        match output {
            Output::Json | Output::Yaml => output.print(&plan.json()),
            Output::Table | Output::Wide => print!("{plan}"),
        }
        let stranded = plan.stranded();
        for (node, reason) in &stranded {
            eprintln!("refused: {node}: {reason}");
        }
        if !stranded.is_empty() {
            return Ok(ExitCode::from(REFUSED));
        }
        match apply {
            None => Ok(ExitCode::SUCCESS),
            Some(options) => apply::run(&store, &snapshot, &plan, &options).await,
        }
    })
}

/// Resources and IPAM at one revision.
pub(super) async fn read<S: Store>(store: &S) -> anyhow::Result<Snapshot> {
    // In Kubernetes' API profiles are namespaces and service accounts, which nodes may not list.
    let kinds = Kind::ALL.into_iter().filter(|kind| !kind.is_of_others());
    let mut ranges: Vec<_> = kinds
        .map(|kind| KeyRange::Prefix(kind_prefix(kind)))
        .collect();
    ranges.push(KeyRange::Prefix(ipam_prefix()));
    let answer = store.read(&ranges).await?;
    let mut snapshot = Snapshot::default();
    for entry in answer.ranges.iter().flatten() {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    snapshot.revision = answer.revision;
    Ok(snapshot)
}

/// The plan. Every kernel is taken to be able to do what this machine's can.
async fn planned(snapshot: &Snapshot, args: &ModeArgs) -> Result<ModePlan, ModeError> {
    let modes = Modes {
        ipip: args.ipip,
        vxlan: args.vxlan,
    };
    let wants = |mode: Option<EncapMode>| mode.is_some_and(|mode| mode != EncapMode::Never);
    let wanted = WantedTunnels {
        ipip: wants(modes.ipip),
        vxlan: wants(modes.vxlan),
        objects: false,
    };
    let kernel = kernel_support(wanted).await.unwrap_or_else(|error| {
        eprintln!(
            "this kernel cannot be asked what it can do ({error}); taken to be able to do all"
        );
        Default::default()
    });
    let mtu = match (args.mtu, read_links().await) {
        (Some(mtu), _) => mtu,
        (None, Ok(links)) => host_mtu(&links, None, &caracal_agent::InterfacePattern::default()),
        (None, Err(_)) => FALLBACK_MTU,
    };
    ModePlan::new(snapshot, &args.pool, modes, &Assumed { mtu, kernel })
}
