//! Input of a change: resource files, and the switches for the most frequent changes.

use std::path::Path;

use anyhow::Context;
use caracal_model::{Applied, BgpConfiguration, Key, Kind, ProblemCode, Resource, Snapshot};
use caracal_topologies::{
    LEVELS_ANNOTATION, MESH_LIMIT_ANNOTATION, REFLECTORS_ANNOTATION, TOPOLOGY_ANNOTATION,
    WRITTEN_KINDS, reflector_tuning,
};

use super::KnownPasswords;
use crate::args::TopologyChangeArgs;
use crate::exit::{invalid, not_found};

impl TopologyChangeArgs {
    /// True when nothing is asked.
    pub(super) fn is_empty(&self) -> bool {
        self.change.is_empty() && self.delete.is_empty() && !self.auto && !self.mesh
    }
}

/// Purpose of the command: plan only, or apply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is looked at.
    Plan,
    /// It is written: what would not be is refused.
    Apply,
}

/// Changes the snapshot as asked. Secrets of the files are added.
pub(super) fn make(
    purpose: Purpose,
    args: &TopologyChangeArgs,
    after: &mut Snapshot,
    secrets: &mut KnownPasswords,
) -> anyhow::Result<()> {
    for path in &args.change {
        of_file(purpose, path, after, secrets).map_err(invalid)?;
    }
    for name in &args.delete {
        if after.bgp_peers.remove(name).is_none() {
            return Err(not_found(format!("there is no BGPPeer {name} to delete")));
        }
    }
    if args.auto || args.mesh {
        configure(after, args)?;
    }
    if let Err(reason) = reflector_tuning(after) {
        anyhow::bail!("BGPConfiguration default: {reason}");
    }
    Ok(())
}

/// Changes the snapshot as a file says.
fn of_file(
    purpose: Purpose,
    path: &Path,
    after: &mut Snapshot,
    secrets: &mut KnownPasswords,
) -> anyhow::Result<()> {
    let mut faults = Vec::new();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut resources = caracal_topologies::resources_from_yaml(&text)
        .with_context(|| path.display().to_string())?;
    if purpose == Purpose::Apply {
        let others = resources.not_written();
        anyhow::ensure!(
            others.is_empty(),
            "{}: `topology apply` writes {} only; take these out, and write them with `caracal apply`: {}",
            path.display(),
            WRITTEN_KINDS.map(Kind::as_str).join(", "),
            others.join("; ")
        );
    }
    for problem in [resources.replace(after), resources.apply(after)].concat() {
        let text = format!("{}: {}", problem.subject, problem.reason);
        match problem.code == ProblemCode::DatastoreFieldWithoutEffect {
            true => eprintln!("{}: {text}", path.display()),
            false => faults.push(text),
        }
    }
    anyhow::ensure!(
        faults.is_empty(),
        "{}: {}",
        path.display(),
        faults.join("; ")
    );
    secrets.extend(resources.secrets);
    Ok(())
}

/// Sets the BGPConfiguration `default`, as the user would.
fn configure(snapshot: &mut Snapshot, args: &TopologyChangeArgs) -> anyhow::Result<()> {
    let mut configuration: BgpConfiguration = snapshot.bgp_default().map_or_else(
        || Resource::new("default", Default::default()),
        |c| (**c).clone(),
    );
    let annotations = &mut configuration.metadata.annotations;
    let numbers = [
        (MESH_LIMIT_ANNOTATION, args.limit),
        (REFLECTORS_ANNOTATION, args.reflectors),
        (LEVELS_ANNOTATION, args.levels),
    ];
    if args.auto {
        annotations.insert(TOPOLOGY_ANNOTATION.to_owned(), "auto".to_owned());
        for (name, value) in numbers {
            if let Some(value) = value {
                annotations.insert(name.to_owned(), value.to_string());
            }
        }
    } else {
        annotations.remove(TOPOLOGY_ANNOTATION);
        configuration.spec.node_to_node_mesh_enabled = Some(true);
    }
    let path = Key::resource(Kind::BgpConfiguration, "default").to_path();
    let revision = snapshot
        .bgp_default()
        .map_or(snapshot.revision, |c| c.revision);
    match snapshot.apply(&path, Some(&configuration.to_json()), revision) {
        Applied::Invalid(reason) => anyhow::bail!("{path}: {reason}"),
        Applied::Changed | Applied::Quiet | Applied::Ignored => Ok(()),
    }
}
