//! A lab that exists: its topology, names, folder, and the processes in it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::netns::{self, NetnsError};
use crate::plan::kubernetes::plugin_kubeconfig;
use crate::plan::{LabName, LabNameError, Layout, NodeLayout, PLUGIN_ACCOUNT};
use crate::process::RunningProcess;
use crate::program;
use crate::state::{LabFolder, LabState, StateError};
use crate::topology::{Datastore, Topology, TopologyError};

/// Why a lab cannot be picked up.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its copy of the topology file.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The text is no name of a lab.
    #[error(transparent)]
    Name(#[from] LabNameError),
}

/// A namespace, node, pod or router that the lab does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lab {lab} has no {target:?}; it has: {known}")]
pub struct UnknownTarget {
    /// Name of the lab, as in its topology file.
    pub lab: String,
    /// Name that was asked for.
    pub target: String,
    /// Names of the lab's nodes, routers and pods.
    pub known: String,
}

/// Why a command did not start in a namespace.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// There is no such place.
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    /// The namespace or the program.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// No command was given.
    #[error("no command to run; use: caracal lab exec NODE -- COMMAND")]
    Empty,
    /// Waiting for its end failed.
    #[error("lost track of the command")]
    Wait(#[source] std::io::Error),
}

/// A lab that is up, or being brought up.
#[derive(Debug)]
pub struct Lab {
    pub(crate) topology: Topology,
    pub(crate) layout: Layout,
    pub(crate) folder: LabFolder,
    pub(crate) state: LabState,
    pub(crate) running: BTreeMap<String, RunningProcess>,
    pub(crate) down_on_drop: bool,
}

/// Variables of our own environment that processes of a lab keep; all others could change what is
/// tested.
const KEPT_ENVIRONMENT: [&str; 9] = [
    "CARACAL_LAB_TIME_SCALE",
    "CARACAL_LOG",
    "CARACAL_UML",
    "ETCD_UNSAFE_NO_FSYNC",
    "HOME",
    "LANG",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "TERM",
];

impl Lab {
    /// Picks up a lab that this or another process brought up.
    ///
    /// # Errors
    /// [`AttachError`] when it is not there or its folder cannot be read.
    pub fn attach(name: &LabName) -> Result<Self, AttachError> {
        let folder = LabFolder::new(name);
        let state = folder.load()?;
        let topology = Topology::load(&folder.topology())?;
        let layout = Layout::new(&topology, name);
        let running = state
            .processes
            .iter()
            .map(|(name, id)| (name.clone(), RunningProcess::known(*id)))
            .collect();
        Ok(Self {
            topology,
            layout,
            folder,
            state,
            running,
            down_on_drop: false,
        })
    }

    /// Name of the lab.
    #[must_use]
    pub fn name(&self) -> &LabName {
        &self.layout.lab
    }

    /// Topology that the lab was made from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Its names and addresses.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Folder with the state of the lab.
    #[must_use]
    pub fn folder(&self) -> &LabFolder {
        &self.folder
    }

    /// State of the lab on disk; pods and their addresses are here.
    #[must_use]
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// A namespace by the name of a node, router or pod (`NODE/POD`), or `etcd` or `switch`.
    ///
    /// # Errors
    /// [`UnknownTarget`], which lists them all.
    pub fn netns(&self, target: &str) -> Result<String, UnknownTarget> {
        let mut targets: BTreeMap<String, &str> = BTreeMap::new();
        for router in &self.layout.routers {
            targets.insert(router.name.clone(), &router.netns);
        }
        for node in &self.layout.nodes {
            targets.insert(node.name.clone(), &node.netns);
            for pod in &node.pods {
                targets.insert(format!("{}/{}", node.name, pod.name), &pod.netns);
            }
        }
        let (etcd, switch) = (self.layout.etcd_netns(), self.layout.switch_netns());
        targets.insert("etcd".to_owned(), &etcd);
        targets.insert("switch".to_owned(), &switch);
        if let Some(netns) = targets.get(target) {
            return Ok((*netns).to_owned());
        }
        let known: Vec<_> = targets.into_keys().collect();
        Err(UnknownTarget {
            lab: self.name().to_string(),
            target: target.to_owned(),
            known: known.join(", "),
        })
    }

    /// A command with the environment that processes of the lab get, and none of ours.
    pub(crate) fn clean_command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear();
        for name in KEPT_ENVIRONMENT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("PATH", self.path());
        command
    }

    /// Our search path with the lab's own binaries in front.
    fn path(&self) -> OsString {
        let mut path = self.folder.bin().into_os_string();
        path.push(":");
        path.push(program::search_path());
        path
    }

    /// The environment of a node's `caracal`, daemon, client or plugin.
    pub(crate) fn node_environment(&self, node: &NodeLayout, command: &mut Command) {
        command
            .envs(&node.env)
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", &node.etcd_endpoint)
            .env("CARACAL_RUN_DIR", self.folder.run(&node.name))
            .env("CARACAL_LIB_DIR", self.folder.lib(&node.name));
        self.flannel_environment(node, command);
        if node.datastore() == Datastore::Kubernetes {
            // Who gives orders on a node is the administrator; the daemon has an account of its
            // own.
            let administrator = self.folder.kubeconfig(&format!("{}-admin", node.name));
            command.env("KUBECONFIG", administrator);
        }
    }

    /// Has all nodes use another datastore: commands at once, daemons from their next start on. For
    /// a lab with the test API server, which has its etcd beside it.
    pub fn use_datastore(&mut self, datastore: Datastore) {
        for node in &mut self.layout.nodes {
            let kind = match datastore {
                Datastore::Etcd => "etcdv3",
                Datastore::Kubernetes => "kubernetes",
            };
            let endpoint = node.etcd_endpoint.clone();
            node.env
                .insert("DATASTORE_TYPE".to_owned(), kind.to_owned());
            node.env.insert("ETCD_ENDPOINTS".to_owned(), endpoint);
            // What it remembers is another datastore's.
            let accept = "CARACAL_DATASTORE_ACCEPT".to_owned();
            node.env.insert(accept, "always".to_owned());
        }
    }

    /// The daemon's account, and where it keeps the kubeconfig of the CNI plugin, which reads pods
    /// by it also when the datastore is etcd.
    pub(crate) fn daemon_environment(&self, node: &NodeLayout, command: &mut Command) {
        if self.topology.datastore == Datastore::Kubernetes {
            let plugin = plugin_kubeconfig(&node.name);
            command
                .env("KUBECONFIG", self.folder.kubeconfig(&node.name))
                .env("CALICO_CNI_SERVICE_ACCOUNT", PLUGIN_ACCOUNT)
                .env("CNI_CONF_DIR", self.folder.kubernetes())
                .env("KUBECONFIG_FILE_NAME", format!("{plugin}.kubeconfig"));
        }
    }

    /// Runs a command in the namespace of a node, pod (`NODE/POD`) or router, or of `etcd` or
    /// `switch`, with our own streams, to its end. Gives its exit status, 128+n for a death by
    /// signal n.
    ///
    /// # Errors
    /// [`ExecError`] when it does not start.
    pub fn exec(&self, target: &str, arguments: &[OsString]) -> Result<i32, ExecError> {
        use std::os::unix::process::ExitStatusExt;
        let netns = self.netns(target)?;
        let Some((program, rest)) = arguments.split_first() else {
            return Err(ExecError::Empty);
        };
        let mut command = Command::new(program);
        command.args(rest).env("PATH", self.path());
        let node = target.split('/').next().and_then(|n| self.layout.node(n));
        if let Some(node) = node {
            self.node_environment(node, &mut command);
        }
        let mut child = netns::spawn(&netns, &mut command)?;
        let status = child.wait().map_err(ExecError::Wait)?;
        Ok(status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
    }

    pub(crate) fn save(&self) -> Result<(), StateError> {
        self.folder.save(&self.state)
    }

    /// Records a process before anything else is done with it.
    pub(crate) fn register(
        &mut self,
        name: &str,
        running: RunningProcess,
    ) -> Result<(), StateError> {
        self.state
            .processes
            .insert(name.to_owned(), running.identity);
        self.running.insert(name.to_owned(), running);
        self.save()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.down_on_drop {
            self.down_on_drop = false;
            let report = self.tear_down();
            if std::thread::panicking() {
                for warning in report.warnings {
                    eprintln!("lab {}: {warning}", self.name());
                }
            }
        }
    }
}
