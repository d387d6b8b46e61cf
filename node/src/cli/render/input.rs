//! Where the data comes from: resource files, or the datastore and its changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use caracal_bgp::Password;
use caracal_datastore::View;
use caracal_model::{NodeName, Prefix, Snapshot};
use caracal_topologies::{SecretName, assign_block, resources_from_yaml};
use tokio::runtime::Runtime;
use tokio::sync::watch::Receiver;

use crate::cli::{first_view, open_store};
use crate::exit::invalid;

/// Input of the rendering.
#[derive(Default)]
pub(in crate::cli) struct Data {
    pub(in crate::cli) snapshot: Snapshot,
    /// From files only.
    pub(in crate::cli) secrets: BTreeMap<SecretName, Password>,
}

/// A source of snapshots.
pub(in crate::cli) struct Source {
    node: Option<NodeName>,
    affinities: Vec<Prefix>,
    kind: InputKind,
    /// Problems that were reported last; the same ones are not reported again.
    shown: Vec<String>,
}

enum InputKind {
    Files(Vec<PathBuf>),
    Datastore {
        /// Goes before the runtime: a watcher that nobody listens to ends without a warning.
        view: Receiver<View>,
        runtime: Runtime,
    },
}

impl Source {
    /// Opens what the command line names; connects to the datastore when no file is named.
    pub(in crate::cli) fn open(
        input: &[PathBuf],
        node: Option<&str>,
        affinities: &[Prefix],
    ) -> anyhow::Result<Self> {
        let kind = if input.is_empty() {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()?;
            let view = runtime.block_on(async {
                let store = open_store()?;
                first_view(&store).await
            })?;
            InputKind::Datastore { runtime, view }
        } else {
            InputKind::Files(input.to_vec())
        };
        Ok(Self {
            node: node.map(NodeName::from),
            affinities: affinities.to_vec(),
            kind,
            shown: Vec::new(),
        })
    }

    /// The data as it is now.
    pub(in crate::cli) fn read(&mut self) -> anyhow::Result<Data> {
        let mut problems = Vec::new();
        let mut data = match &mut self.kind {
            InputKind::Files(files) => from_files(files, &mut problems)?,
            InputKind::Datastore { view, .. } => {
                let snapshot = view.borrow_and_update().snapshot.clone();
                let problem = |p: caracal_model::Problem| format!("{}: {}", p.subject, p.reason);
                problems.extend(snapshot.problems().into_iter().map(problem));
                Data {
                    snapshot: Snapshot::clone(&snapshot),
                    ..Data::default()
                }
            }
        };
        if let Some(node) = &self.node {
            for block in &self.affinities {
                assign_block(&mut data.snapshot, node, *block);
            }
        }
        if problems != self.shown {
            for problem in &problems {
                eprintln!("{problem}");
            }
            self.shown = problems;
        }
        Ok(data)
    }

    /// Waits for a change of the datastore, at most for `interval`: files are read again then.
    pub(super) fn wait(&mut self, interval: Duration) {
        match &mut self.kind {
            InputKind::Files(_) => std::thread::sleep(interval),
            InputKind::Datastore { runtime, view } => {
                // An ended watcher shows in the next read as data that does not change any more;
                // the daemon keeps running with it, so there is nothing to do but to go on.
                let changed = async { tokio::time::timeout(interval, view.changed()).await };
                if matches!(runtime.block_on(changed), Ok(Err(_))) {
                    std::thread::sleep(interval);
                }
            }
        }
    }
}

/// Reads resource files into one snapshot, later files over earlier ones.
fn from_files(files: &[PathBuf], problems: &mut Vec<String>) -> anyhow::Result<Data> {
    let mut data = Data::default();
    for path in files {
        let text = read(path)?;
        let resources = resources_from_yaml(&text).with_context(|| path.display().to_string());
        let resources = resources.map_err(invalid)?;
        let refused = resources.apply(&mut data.snapshot);
        problems.extend(
            refused
                .iter()
                .map(|p| format!("{}: {}: {}", path.display(), p.subject, p.reason)),
        );
        data.secrets.extend(resources.secrets);
    }
    Ok(data)
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
