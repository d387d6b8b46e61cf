//! Bringing a lab up: the steps of the plan, one after the other, with progress.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cni::CniError;
use crate::etcd::EtcdError;
use crate::kubernetes::KubernetesError;
use crate::lab::Lab;
use crate::netns::{self, NetnsError};
use crate::node::NodeError;
use crate::plan::{self, LabName, LabNameError, Layout, NodeLayout};
use crate::program::{self, Missing, ProgramError};
use crate::state::{LabFolder, LabState, StateError};
use crate::topology::{NodeKind, Topology};

mod work;

use work::Work;

/// Part of a topology that is brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// Network, datastore, nodes and pods.
    #[default]
    Full,
    /// Namespaces, links, addresses and etcd with the topology's resources, but no node and no pod.
    Network,
}

/// Gives the configuration of a foreign speaker, or `None` for the default: `config` of the file,
/// or what `caracal render` prints.
pub(crate) type SpeakerConfig = Box<dyn FnMut(&Lab, &NodeLayout) -> Option<String>>;

/// Options of a bring-up.
pub struct UpOptions {
    /// Another name than the topology's.
    pub name: Option<String>,
    /// Path of the `caracal` binary.
    pub binary: PathBuf,
    /// Part of the lab that is brought up.
    pub extent: Extent,
    /// Configuration of foreign speakers.
    pub speaker_config: Option<SpeakerConfig>,
    /// Remove the lab when the [`Lab`] goes out of scope; for tests.
    pub down_on_drop: bool,
    /// Leave what is there when the bring-up fails, to look at it.
    pub keep_on_failure: bool,
}

impl UpOptions {
    /// Everything, under the topology's name, until somebody takes it down.
    #[must_use]
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            name: None,
            binary: binary.into(),
            extent: Extent::Full,
            speaker_config: None,
            down_on_drop: false,
            keep_on_failure: false,
        }
    }

    /// For a test: under a name of its own, removed when it goes out of scope.
    #[must_use]
    pub fn test(binary: impl Into<PathBuf>, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            down_on_drop: true,
            ..Self::new(binary)
        }
    }
}

/// Step that has just been done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpProgress {
    /// The namespaces are there.
    Namespaces {
        /// Number of namespaces.
        count: usize,
    },
    /// The links are up and have addresses.
    Network {
        /// Number of segments.
        segments: usize,
        /// Number of routers.
        routers: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// etcd answers.
    Etcd {
        /// Duration of the start.
        took: Duration,
    },
    /// The API server serves.
    ApiServer {
        /// Duration of the start.
        took: Duration,
        /// Number of objects at the start.
        objects: usize,
    },
    /// Resources are in etcd.
    Resources {
        /// Keys of the resources.
        keys: Vec<String>,
    },
    /// A node's process is there.
    NodeStarted {
        /// Name of the node.
        node: String,
        /// Process ID.
        pid: i32,
    },
    /// A node answers on its admin socket, or a foreign speaker on its.
    NodeReady {
        /// Name of the node.
        node: String,
        /// Program of the node.
        kind: NodeKind,
        /// Time since the bring-up began.
        after: Duration,
    },
    /// A pod has its address.
    Pod {
        /// The pod, as `NODE/POD`.
        pod: String,
        /// Address of the pod.
        address: String,
        /// Duration of the plugin's call.
        took: Duration,
    },
    /// The lab is up.
    Done {
        /// Duration of the bring-up.
        took: Duration,
    },
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A network namespace cannot be entered or changed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The lab's folder cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A pod cannot be attached.
    #[error(transparent)]
    Cni(#[from] CniError),
}

/// Why a lab was not brought up.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// Programs are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The name asked for.
    #[error(transparent)]
    Name(#[from] LabNameError),
    /// The lab's folder; above all, that it is there already.
    #[error(transparent)]
    State(#[from] StateError),
    /// The binary is no program.
    #[error("{path} is no program; the lab needs the caracal binary")]
    Binary {
        /// Path of the file.
        path: String,
    },
    /// Namespaces of this lab are there without a folder.
    #[error(
        "namespaces of an earlier lab {lab} are left ({first}, …); remove them with: caracal lab down {lab}"
    )]
    Leftovers {
        /// Name of the lab.
        lab: String,
        /// Name of one of them.
        first: String,
    },
    /// A step failed; what was there has been removed, unless it was to be kept.
    #[error("cannot {step}")]
    Step {
        /// Step that failed.
        step: String,
        /// Error of the step.
        #[source]
        source: Box<StepError>,
    },
}

impl Lab {
    /// Brings a lab up. `text` is the topology's source, kept for other processes to read.
    ///
    /// # Errors
    /// [`UpError`]. After a failed step everything is removed, unless
    /// [`UpOptions::keep_on_failure`].
    pub fn up(
        topology: Topology,
        text: &str,
        options: UpOptions,
        progress: &(dyn Fn(UpProgress) + Sync),
    ) -> Result<Self, UpError> {
        let name = LabName::new(options.name.as_deref().unwrap_or(&topology.name.value))?;
        program::require(&program::needed(&topology))?;
        let binary =
            std::path::absolute(&options.binary).unwrap_or_else(|_| options.binary.clone());
        if options.extent == Extent::Full && !binary.is_file() {
            return Err(UpError::Binary {
                path: binary.display().to_string(),
            });
        }
        let layout = Layout::new(&topology, &name);
        let folder = LabFolder::new(&name);
        folder.create()?;
        if let Some(first) = netns::list(&name.prefix()).into_iter().next() {
            folder.remove()?;
            return Err(UpError::Leftovers {
                lab: name.to_string(),
                first,
            });
        }
        let state = LabState::new(&name, &binary, layout.namespaces());
        let steps = match options.extent {
            Extent::Full => plan::steps(&topology, &layout),
            Extent::Network => plan::network_and_etcd(&topology, &layout),
        };
        let running = std::collections::BTreeMap::new();
        let down_on_drop = options.down_on_drop;
        let mut lab = Self {
            topology,
            layout,
            folder,
            state,
            running,
            down_on_drop,
        };
        let keep = options.keep_on_failure;
        let mut work = Work {
            lab: &mut lab,
            options,
            progress,
            start: Instant::now(),
        };
        match work.all(&steps, text) {
            Ok(()) => Ok(lab),
            Err(error) => {
                lab.down_on_drop = false;
                if !keep {
                    lab.tear_down();
                }
                Err(error)
            }
        }
    }
}
