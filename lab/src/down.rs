//! Removing a lab, also one whose process was killed half-way: by its state, by its prefix, and by
//! what runs inside its namespaces. Removing what is not there is fine.

use std::time::Duration;

use rustix::process::Signal;

use crate::lab::Lab;
use crate::netns;
use crate::plan::LabName;
use crate::process::{ProcessIdentity, RunningProcess};
use crate::state::{LabFolder, LabPhase, StateError};
use crate::wait::wait_until;

const GRACE: Duration = Duration::from_secs(20);

/// Report of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownReport {
    /// Pods that went through CNI DEL.
    pub pods: usize,
    /// Processes that were ended.
    pub processes: usize,
    /// Namespaces that were deleted.
    pub namespaces: usize,
    /// Failures that did not stop the removal.
    pub warnings: Vec<String>,
}

impl DownReport {
    /// True when nothing of the lab was there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a lab was not removed.
#[derive(Debug, thiserror::Error)]
pub enum DownError {
    /// Somebody is bringing it up.
    #[error("lab {lab} is being brought up by process {pid}; end that process first")]
    Busy {
        /// Name of the lab.
        lab: String,
        /// Process ID.
        pid: i32,
    },
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// Namespaces are still there after the removal.
    #[error("namespaces of lab {lab} are still there: {names}")]
    Remains {
        /// Name of the lab.
        lab: String,
        /// Names of the namespaces.
        names: String,
    },
}

/// Removes a lab by name.
///
/// # Errors
/// [`DownError`] when another process is bringing it up, or when something cannot be removed.
pub fn down(name: &LabName) -> Result<DownReport, DownError> {
    let folder = LabFolder::new(name);
    if let Ok(state) = folder.load() {
        let creator = state.creator;
        if state.phase == LabPhase::Building && creator != ProcessIdentity::own() && creator.alive()
        {
            return Err(DownError::Busy {
                lab: name.to_string(),
                pid: creator.pid,
            });
        }
    }
    let report = match Lab::attach(name) {
        Ok(mut lab) => lab.tear_down(),
        // Killed before its state was whole, or made by another version: the prefix finds the rest.
        Err(_) => sweep(name),
    };
    folder.remove()?;
    let left = netns::list(&name.prefix());
    if left.is_empty() {
        return Ok(report);
    }
    Err(DownError::Remains {
        lab: name.to_string(),
        names: left.join(", "),
    })
}

impl Lab {
    /// Removes the lab.
    ///
    /// # Errors
    /// [`DownError`].
    pub fn down(mut self) -> Result<DownReport, DownError> {
        self.down_on_drop = false;
        let report = self.tear_down();
        let left = netns::list(&self.name().prefix());
        if left.is_empty() {
            return Ok(report);
        }
        Err(DownError::Remains {
            lab: self.name().to_string(),
            names: left.join(", "),
        })
    }

    /// Removes everything; what goes wrong becomes a warning.
    pub(crate) fn tear_down(&mut self) -> DownReport {
        let mut report = DownReport::default();
        self.delete_pods(&mut report);
        self.stop_processes(&mut report);
        report.absorb(sweep(self.name()));
        if let Err(error) = self.folder.remove() {
            report.warn(&error);
        }
        report
    }

    fn delete_pods(&self, report: &mut DownReport) {
        let pods = &self.state.pods;
        // Without etcd the addresses are gone as it is, and the plugin would only wait for it.
        // Flannel's plugin does not ask etcd.
        if pods.is_empty() || (self.topology.flannel().is_none() && !self.etcd_healthy()) {
            return;
        }
        for (_, result) in self.detach_pods(pods) {
            match result {
                Ok(_) => report.pods += 1,
                Err(error) => report.warn(&error),
            }
        }
    }

    /// SIGTERM to all at once, etcd last, so that no node logs its loss.
    fn stop_processes(&mut self, report: &mut DownReport) {
        let mut all: Vec<(String, RunningProcess)> =
            std::mem::take(&mut self.running).into_iter().collect();
        all.retain_mut(|(_, running)| running.ended().is_none());
        let etcd = |(name, _): &(String, RunningProcess)| crate::etcd::is_of_etcd(name);
        let (etcd, nodes): (Vec<_>, Vec<_>) = all.into_iter().partition(etcd);
        for group in [nodes, etcd] {
            for (_, running) in &group {
                running.identity.signal(Signal::TERM);
            }
            for (name, mut running) in group {
                match running.stop(GRACE) {
                    Ok(_) => report.processes += 1,
                    Err(error) => report.warnings.push(format!("{name}: {error}")),
                }
            }
        }
    }
}

impl DownReport {
    fn warn(&mut self, error: &dyn std::error::Error) {
        self.warnings.push(crate::error_chain(error));
    }

    fn absorb(&mut self, other: Self) {
        self.pods += other.pods;
        self.processes += other.processes;
        self.namespaces += other.namespaces;
        self.warnings.extend(other.warnings);
    }
}

/// Ends what runs in the namespaces of a lab and deletes them, knowing nothing but the prefix.
fn sweep(name: &LabName) -> DownReport {
    let mut report = DownReport::default();
    let names = netns::list(&name.prefix());
    if names.is_empty() {
        return report;
    }
    let own = rustix::process::getpid().as_raw_pid();
    let inside = || -> Vec<ProcessIdentity> {
        let pids = netns::processes(&names)
            .into_keys()
            .filter(|pid| *pid != own);
        pids.filter_map(ProcessIdentity::read)
            .filter(ProcessIdentity::alive)
            .collect()
    };
    let found = inside();
    report.processes += found.len();
    for signal in [Signal::TERM, Signal::KILL] {
        for process in inside() {
            process.signal(signal);
        }
        let gone = wait_until(GRACE, "processes in the lab's namespaces to end", || {
            let left: Vec<_> = inside().iter().map(|p| p.pid.to_string()).collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("pids {}", left.join(", ")))
            }
        });
        match gone {
            Ok(()) => break,
            Err(timeout) if signal == Signal::KILL => report.warn(&timeout),
            Err(_) => {}
        }
    }
    if let Err(error) = crate::ip::delete_namespaces(&names) {
        report.warn(&error);
    }
    report.namespaces = names.len() - netns::list(&name.prefix()).len();
    report
}
