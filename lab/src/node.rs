//! Programs in the nodes: `caracal node`, `caracal flannel`, BIRD 2 or GoBGP; and the faults that a
//! test injects.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use caracal_model::NodeStatus;
use rustix::process::Signal;

use crate::lab::{Lab, UnknownTarget};
use crate::netns;
use crate::plan::NodeLayout;
use crate::process::{RunningProcess, SpawnError};
use crate::program::{self, Missing, ProgramError};
use crate::state::StateError;
use crate::topology::NodeKind;
use crate::wait::{Timeout, scaled, wait_until};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(30);
/// GoBGP's API, which tells that it is up.
const GOBGP_PORT: u16 = 50051;

/// Why a node does not do as told.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no such node.
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    /// Its process does not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A program that it needs, or that was asked about it.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// It is not up, or not down, in time.
    #[error("{timeout}; the end of the log of {node}:\n{log}")]
    Late {
        /// Name of the node.
        node: String,
        /// Timeout, with the awaited condition.
        #[source]
        timeout: Timeout,
        /// The last lines of its log.
        log: String,
    },
    /// The process of the node has ended.
    #[error("the process of {node} ended ({end}); the end of its log:\n{log}")]
    Died {
        /// Name of the node.
        node: String,
        /// Exit status, or the signal that ended it.
        end: String,
        /// The last lines of its log.
        log: String,
    },
    /// Its process runs already.
    #[error("the process of {node} is running")]
    Running {
        /// Name of the node.
        node: String,
    },
    /// Its answer is not a status.
    #[error("the answer of {node} is no status: {answer}")]
    Answer {
        /// Name of the node.
        node: String,
        /// Output of the program.
        answer: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

impl From<Missing> for NodeError {
    fn from(missing: Missing) -> Self {
        Self::Program(missing.into())
    }
}

impl Lab {
    fn node_layout(&self, node: &str) -> Result<NodeLayout, UnknownTarget> {
        let found = self.layout.node(node).cloned();
        found.ok_or_else(|| UnknownTarget {
            lab: self.name().to_string(),
            target: node.to_owned(),
            known: self
                .layout
                .nodes
                .iter()
                .map(|n| n.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// A `caracal` client command for a node; it runs in the node's namespace.
    fn client(&self, node: &NodeLayout, arguments: &[&str]) -> Command {
        let mut command = self.clean_command(&self.folder.bin().join("caracal"));
        self.node_environment(node, &mut command);
        command.args(arguments);
        command
    }

    /// The command `caracal ARGUMENTS…` for a node, for callers that need its pipes; it has to be
    /// started with [`crate::netns::spawn`] in the node's namespace.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn caracal_command(
        &self,
        node: &str,
        arguments: &[&str],
    ) -> Result<Command, UnknownTarget> {
        Ok(self.client(&self.node_layout(node)?, arguments))
    }

    /// Calls `caracal ARGUMENTS…` in a node's namespace; gives what it printed.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn caracal(&self, node: &str, arguments: &[&str]) -> Result<String, NodeError> {
        self.caracal_within(node, arguments, CALL)
    }

    /// The same with a deadline, for commands that wait for something.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn caracal_within(
        &self,
        node: &str,
        arguments: &[&str],
        deadline: Duration,
    ) -> Result<String, NodeError> {
        let node = self.node_layout(node)?;
        let mut command = self.client(&node, arguments);
        Ok(program::call(
            Some(&node.netns),
            &mut command,
            b"",
            deadline,
        )?)
    }

    /// Calls `caracal ARGUMENTS…` in a node's namespace to its end, whatever its exit status.
    ///
    /// # Errors
    /// [`NodeError`] when it does not start, or not end in time.
    pub fn caracal_output(
        &self,
        node: &str,
        arguments: &[&str],
        deadline: Duration,
    ) -> Result<program::ProgramOutput, NodeError> {
        let node = self.node_layout(node)?;
        let mut command = self.client(&node, arguments);
        Ok(program::output(
            Some(&node.netns),
            &mut command,
            b"",
            deadline,
        )?)
    }

    /// Status of a Caracal node. A node that calls itself degraded by its exit status has answered
    /// all the same.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn node_status(&self, node: &str) -> Result<NodeStatus, NodeError> {
        let layout = self.node_layout(node)?;
        let mut command = self.client(&layout, &["status", "-o", "json"]);
        let output = program::output(Some(&layout.netns), &mut command, b"", CALL)?;
        serde_json::from_str(&output.stdout).map_err(|source| NodeError::Answer {
            node: node.to_owned(),
            answer: format!("{}{}", output.stdout, output.stderr)
                .trim()
                .to_owned(),
            source,
        })
    }

    /// Starts the process of a node, without waiting until it serves.
    ///
    /// # Errors
    /// [`NodeError`]; when its process runs already, [`NodeError::Running`].
    pub fn start_node(&mut self, node: &str) -> Result<(), NodeError> {
        let layout = self.node_layout(node)?;
        if self
            .running
            .get_mut(node)
            .is_some_and(|r| r.ended().is_none())
        {
            return Err(NodeError::Running {
                node: node.to_owned(),
            });
        }
        let run = self.folder.run(node);
        let mut command = match layout.kind {
            NodeKind::Caracal => {
                let mut command = self.client(&layout, &["node"]);
                self.daemon_environment(&layout, &mut command);
                command.envs(&layout.env);
                command
            }
            NodeKind::Flannel => self.client(&layout, &["flannel"]),
            NodeKind::Bird2 => {
                program::require(&["bird", "birdc"])?;
                let mut command = self.clean_command(&program::find("bird").unwrap_or_default());
                command.arg("-f").arg("-c").arg(run.join("bird.conf"));
                command
                    .arg("-s")
                    .arg(run.join("bird.ctl"))
                    .arg("-P")
                    .arg(run.join("bird.pid"));
                command
            }
            NodeKind::Gobgp => {
                program::require(&["gobgpd"])?;
                let mut command = self.clean_command(&program::find("gobgpd").unwrap_or_default());
                command.arg("-f").arg(run.join("gobgpd.toml"));
                command.arg(format!("--api-hosts=127.0.0.1:{GOBGP_PORT}"));
                command
            }
            NodeKind::Plain => return Ok(()),
        };
        command.current_dir(&run);
        let running = RunningProcess::start(&layout.netns, &mut command, &self.folder.log(node))?;
        self.register(node, running)?;
        Ok(())
    }

    /// Waits until the process of a node serves: a Caracal node is registered and answers on its
    /// admin socket; one of flannel has a lease and has written the kernel.
    ///
    /// # Errors
    /// [`NodeError`], at once when the process has ended.
    pub fn await_node(&mut self, node: &str) -> Result<(), NodeError> {
        let layout = self.node_layout(node)?;
        if layout.kind == NodeKind::Plain {
            return Ok(());
        }
        let mut running = self.running.remove(node);
        let outcome = wait_until(START, &format!("{node} to serve"), || {
            match running.as_mut().map(RunningProcess::ended) {
                Some(None) => self.serves(&layout).map(Ok),
                Some(Some(end)) => Ok(Err(end)),
                None => Ok(Err("never started".to_owned())),
            }
        });
        if let Some(running) = running {
            self.running.insert(node.to_owned(), running);
        }
        let (node, log) = (node.to_owned(), self.folder.log_tail(node, 20));
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(end)) => Err(NodeError::Died { node, end, log }),
            Err(timeout) => Err(NodeError::Late { node, timeout, log }),
        }
    }

    fn serves(&self, node: &NodeLayout) -> Result<(), String> {
        match node.kind {
            NodeKind::Caracal => {
                // A cheap look first: starting a process costs more than a connect.
                let socket = self.folder.socket(&node.name);
                UnixStream::connect(&socket).map_err(|e| format!("{}: {e}", socket.display()))?;
                let status = self.node_status(&node.name).map_err(|e| e.to_string())?;
                // A node that is not registered yet answers, but no pod can be attached to it.
                match (status.datastore.state.as_str(), status.datastore.reason) {
                    ("starting", reason) => Err(reason.unwrap_or_else(|| "starting".to_owned())),
                    _ => Ok(()),
                }
            }
            NodeKind::Flannel => self.flannel_serves(node),
            NodeKind::Bird2 => self
                .birdc(&node.name, &["show", "status"])
                .map(drop)
                .map_err(|e| e.to_string()),
            NodeKind::Gobgp => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, GOBGP_PORT));
                let connect = || TcpStream::connect_timeout(&address, scaled(CALL));
                let stream = netns::run(&node.netns, connect).map_err(|e| e.to_string())?;
                stream
                    .map(drop)
                    .map_err(|e| format!("API port {GOBGP_PORT}: {e}"))
            }
            NodeKind::Plain => Ok(()),
        }
    }

    /// Calls `birdc` on a BIRD node.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn birdc(&self, node: &str, arguments: &[&str]) -> Result<String, NodeError> {
        let layout = self.node_layout(node)?;
        let mut command = program::command("birdc")?;
        command
            .arg("-s")
            .arg(self.folder.run(node).join("bird.ctl"))
            .args(arguments);
        Ok(program::call(Some(&layout.netns), &mut command, b"", CALL)?)
    }

    /// Starts the process of a node again and waits until it serves.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn restart_node(&mut self, node: &str) -> Result<(), NodeError> {
        self.start_node(node)?;
        self.await_node(node)
    }

    /// Stops the process of a node with SIGSTOP: it lives, keeps its sockets, and does nothing.
    ///
    /// # Errors
    /// [`UnknownTarget`].
    pub fn pause_node(&self, node: &str) -> Result<(), UnknownTarget> {
        self.signal_node(node, Signal::STOP)
    }

    /// Ends [`Lab::pause_node`].
    ///
    /// # Errors
    /// [`UnknownTarget`].
    pub fn resume_node(&self, node: &str) -> Result<(), UnknownTarget> {
        self.signal_node(node, Signal::CONT)
    }

    fn signal_node(&self, node: &str, signal: Signal) -> Result<(), UnknownTarget> {
        self.node_layout(node)?;
        if let Some(running) = self.running.get(node) {
            running.identity.signal(signal);
        }
        Ok(())
    }

    /// Kills the process of a node with SIGKILL and waits for its end.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn kill9_node(&mut self, node: &str) -> Result<(), NodeError> {
        self.end_node(node, RunningProcess::kill9)
    }

    /// Ends the process of a node with SIGTERM (SIGKILL after half a minute) and waits for its end.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn stop_node(&mut self, node: &str) -> Result<(), NodeError> {
        self.end_node(node, |running| running.stop(STOP))
    }

    fn end_node(
        &mut self,
        node: &str,
        end: impl FnOnce(&mut RunningProcess) -> Result<String, Timeout>,
    ) -> Result<(), NodeError> {
        self.node_layout(node)?;
        let Some(running) = self.running.get_mut(node) else {
            return Ok(());
        };
        let late = |timeout| NodeError::Late {
            node: node.to_owned(),
            timeout,
            log: self.folder.log_tail(node, 20),
        };
        end(running).map(drop).map_err(late)
    }

    /// Is the process of a node there?
    #[must_use]
    pub fn node_runs(&self, node: &str) -> bool {
        self.state
            .processes
            .get(node)
            .is_some_and(crate::process::ProcessIdentity::alive)
    }
}
