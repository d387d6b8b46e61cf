//! `caracal render`: a node's speaker configuration as text, from the datastore or from files.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{EtcdConfig, EtcdStore, Store};
use caracal_model::txn::Range;
use caracal_model::{NodeName, Snapshot, keys};
use caracal_templates::{Options, Role, Tunnelled};
use caracal_topologies::tunnels::tunnelled_pools;
use caracal_topologies::{PlanOptions, plan, resources};

use crate::args::{RenderArgs, Style};

/// Name of the file that `--out` writes.
const FILE: &str = "bird.conf";

pub(super) fn run(args: &RenderArgs) -> anyhow::Result<ExitCode> {
    let node = NodeName::from(args.node.as_str());
    let mut snapshot = if args.input.is_empty() {
        from_datastore()?
    } else {
        from_files(&args.input)?
    };
    for block in &args.affinity {
        resources::claim(&mut snapshot, &node, *block);
    }
    for problem in snapshot.problems() {
        eprintln!("{}: {}", problem.subject, problem.reason);
    }
    if !snapshot.nodes.contains_key(&node) {
        let known: Vec<&str> = snapshot.nodes.keys().map(NodeName::as_str).collect();
        anyhow::bail!("there is no Node {node}; known: {}", known.join(", "));
    }
    let planned = plan(&snapshot, &node, &PlanOptions::default());
    for problem in &planned.problems {
        eprintln!("{}: {}", problem.subject, problem.reason);
    }
    let options = Options {
        role: match args.style {
            Style::Bird2 => Role::Daemon {
                tunnelled: tunnelled(&snapshot, &node),
            },
            Style::View => Role::View,
        },
        show_passwords: args.show_passwords || args.out.is_some(),
        ..Options::default()
    };
    let text = caracal_templates::render(&planned.config, &options)?;
    match &args.out {
        None => print!("{text}"),
        Some(folder) => write(folder, &text)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Pools whose routes a BIRD daemon cannot program.
fn tunnelled(snapshot: &Snapshot, node: &NodeName) -> Vec<Tunnelled> {
    tunnelled_pools(snapshot, node)
        .into_iter()
        .map(|pool| Tunnelled {
            prefix: pool.prefix,
            encap: pool.encap,
            direct_within: pool.direct_within,
        })
        .collect()
}

/// Writes atomically: a reader sees the old file or the new one.
fn write(folder: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(FILE);
    let draft = folder.join(format!(".{FILE}.new"));
    std::fs::write(&draft, text)
        .and_then(|()| std::fs::rename(&draft, &path))
        .with_context(|| format!("writing {}", path.display()))?;
    eprintln!("{}", path.display());
    Ok(())
}

fn from_files(files: &[std::path::PathBuf]) -> anyhow::Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    for path in files {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let resources = resources::from_yaml(&text).with_context(|| path.display().to_string())?;
        for problem in resources.apply(&mut snapshot) {
            eprintln!(
                "{}: {}: {}",
                path.display(),
                problem.subject,
                problem.reason
            );
        }
    }
    Ok(snapshot)
}

fn from_datastore() -> anyhow::Result<Snapshot> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = EtcdStore::new(EtcdConfig::from_env()?)?;
        let ranges = [
            Range::Prefix(keys::resources_prefix()),
            Range::Prefix(keys::ipam_prefix()),
        ];
        let answer = store.read(&ranges).await?;
        let mut snapshot = Snapshot::default();
        for entry in answer.ranges.iter().flatten() {
            snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
        }
        snapshot.revision = answer.revision;
        Ok(snapshot)
    })
}
