//! Input of a change: resource files, and the switches for the most frequent changes.

use std::path::Path;

use anyhow::Context;
use caracal_model::{Kind, ProblemCode, Snapshot};
use caracal_topologies::WRITTEN_KINDS;

use crate::args::TopologyChangeArgs;
use crate::exit::{invalid, not_found};
use crate::node::plans::topology::{KnownPasswords, TopologySwitch, check_tuning};

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
    let switch = match (args.auto, args.mesh) {
        (true, _) => Some(TopologySwitch::Auto {
            limit: args.limit,
            reflectors: args.reflectors,
            levels: args.levels,
        }),
        (false, true) => Some(TopologySwitch::Mesh),
        (false, false) => None,
    };
    let made = switch.map_or(Ok(()), |switch| switch.make(after));
    made.and_then(|()| check_tuning(after))
        .map_err(anyhow::Error::msg)
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
