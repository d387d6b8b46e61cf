//! Programs beside the nodes, etcd and the API server: started, recorded and awaited.

use std::process::Command;
use std::time::Duration;

use crate::lab::Lab;
use crate::process::{RunningProcess, SpawnError};
use crate::state::StateError;
use crate::wait::{Timeout, wait_until};

/// Lines of the log that an error shows.
const LOG_LINES: usize = 15;

/// Why a program beside the nodes does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// It does not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// It ended during its start.
    #[error("{name} ended ({end}); the end of its log:\n{log}")]
    Died {
        /// Name of the program, in messages.
        name: String,
        /// Exit status, or the signal that ended it.
        end: String,
        /// The last lines of its log.
        log: String,
    },
    /// It does not serve in time.
    #[error(transparent)]
    Timeout(#[from] Timeout),
}

/// A program beside the nodes.
pub(crate) struct Service<'a> {
    /// Name among the lab's processes and of its log.
    pub(crate) process: &'a str,
    /// Name in messages.
    pub(crate) name: &'a str,
    /// Condition of `ready`, in messages.
    pub(crate) awaited: &'a str,
    /// Longest time until it is ready.
    pub(crate) deadline: Duration,
}

impl Lab {
    /// Starts `command` beside the nodes and waits until `ready` succeeds; an error of `ready`
    /// means "not yet".
    pub(crate) fn start_service(
        &mut self,
        service: &Service<'_>,
        command: &mut Command,
        mut ready: impl FnMut(&str) -> Result<(), String>,
    ) -> Result<(), ServiceError> {
        let netns = self.layout.etcd_netns();
        let log = self.folder.log(service.process);
        let running = RunningProcess::start(&netns, command, &log)?;
        self.register(service.process, running)?;
        let running = self
            .running
            .get_mut(service.process)
            .expect("invariant: just registered");
        let served = wait_until(service.deadline, service.awaited, || {
            running
                .ended()
                .map_or_else(|| ready(&netns).map(Ok), |end| Ok(Err(end)))
        });
        served?.map_err(|end| ServiceError::Died {
            name: service.name.to_owned(),
            end,
            log: self.folder.log_tail(service.process, LOG_LINES),
        })
    }
}
