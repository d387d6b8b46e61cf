//! Bringing a lab up: the steps of the plan, one after the other, with progress.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cni::{self, CniError};
use crate::etcd::EtcdError;
use crate::lab::Lab;
use crate::netns::{self, NetnsError};
use crate::node::NodeError;
use crate::plan::{self, LabName, LabNameError, Layout, NodeLayout, Step};
use crate::program::{self, Missing, ProgramError};
use crate::state::{Folder, Phase, PodState, State, StateError};
use crate::topology::{NodeKind, Topology};

/// How much of a topology is brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    #[default]
    Full,
    /// Namespaces, links, addresses and etcd with the topology's resources, but no node and no pod.
    Network,
}

/// Gives the configuration of a foreign speaker, or `None` for the default: `config` of the file, or what
/// `caracal render` prints.
pub type SpeakerConfig = Box<dyn FnMut(&Lab, &NodeLayout) -> Option<String>>;

/// How a lab is brought up.
pub struct Options {
    /// Another name than the topology's.
    pub name: Option<String>,
    /// The `caracal` binary.
    pub binary: PathBuf,
    /// How much.
    pub extent: Extent,
    /// Configuration of foreign speakers.
    pub speaker_config: Option<SpeakerConfig>,
    /// Remove the lab when the [`Lab`] goes out of scope; for tests.
    pub down_on_drop: bool,
    /// Leave what is there when the bring-up fails, to look at it.
    pub keep_on_failure: bool,
}

impl Options {
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

/// What has just been done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The namespaces are there.
    Namespaces {
        /// How many.
        count: usize,
    },
    /// The links are up and have addresses.
    Network {
        /// How many segments.
        segments: usize,
        /// How many routers.
        routers: usize,
        /// How many nodes.
        nodes: usize,
    },
    /// etcd serves.
    Etcd {
        /// How long it took.
        took: Duration,
    },
    /// Resources are in etcd.
    Resources {
        /// Their keys.
        keys: Vec<String>,
    },
    /// A node's process is there.
    NodeStarted {
        /// The node.
        node: String,
        /// Its process.
        pid: i32,
    },
    /// A node answers on its admin socket, or a foreign speaker on its.
    NodeReady {
        /// The node.
        node: String,
        /// What it is.
        kind: NodeKind,
        /// How long after the start of the bring-up.
        after: Duration,
    },
    /// A pod has its address.
    Pod {
        /// `NODE/POD`.
        pod: String,
        /// Its address.
        address: String,
        /// How long the plugin took.
        took: Duration,
    },
    /// Something that may matter.
    Warning(String),
    /// All is done.
    Done {
        /// How long it took.
        took: Duration,
    },
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The lab's folder.
    #[error(transparent)]
    State(#[from] StateError),
    /// etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// A node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A pod.
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
        /// The file.
        path: String,
    },
    /// Namespaces of this lab are there without a folder.
    #[error(
        "namespaces of an earlier lab {lab} are left ({first}, …); remove them with: caracal lab down {lab}"
    )]
    Leftovers {
        /// The lab.
        lab: String,
        /// One of them.
        first: String,
    },
    /// A step failed; what was there has been removed, unless it was to be kept.
    #[error("cannot {step}")]
    Step {
        /// What was to be done.
        step: String,
        /// What went wrong.
        #[source]
        source: Box<StepError>,
    },
}

impl Lab {
    /// Brings a lab up. `text` is the topology's source, kept for other processes to read.
    ///
    /// # Errors
    /// [`UpError`]. After a failed step everything is removed, unless [`Options::keep_on_failure`].
    pub fn up(
        topology: Topology,
        text: &str,
        options: Options,
        progress: &(dyn Fn(Progress) + Sync),
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
        let layout = Layout::of(&topology, &name);
        let folder = Folder::of(&name);
        folder.create()?;
        if let Some(first) = netns::list(&name.prefix()).into_iter().next() {
            folder.remove()?;
            return Err(UpError::Leftovers {
                lab: name.to_string(),
                first,
            });
        }
        let state = State::new(&name, &binary, layout.namespaces());
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

/// A bring-up under way.
struct Work<'a> {
    lab: &'a mut Lab,
    options: Options,
    progress: &'a (dyn Fn(Progress) + Sync),
    start: Instant,
}

impl Work<'_> {
    fn all(&mut self, steps: &[Step], text: &str) -> Result<(), UpError> {
        let failed = |step: String| {
            move |source: StepError| UpError::Step {
                step,
                source: Box::new(source),
            }
        };
        self.prepare(text)
            .map_err(StepError::from)
            .map_err(failed("make the lab's folder".into()))?;
        self.warn_about_neighbours();
        let mut network_done = false;
        for step in steps {
            let network = matches!(
                step,
                Step::Namespaces(_) | Step::Sysctl { .. } | Step::Ip { .. }
            );
            if !network && !network_done {
                network_done = true;
                let layout = &self.lab.layout;
                self.tell(Progress::Network {
                    segments: layout.bridges.len(),
                    routers: layout.routers.len(),
                    nodes: layout.nodes.len(),
                });
            }
            self.one(step).map_err(failed(describe(step)))?;
        }
        self.lab.state.phase = Phase::Up;
        self.lab.save()?;
        self.tell(Progress::Done {
            took: self.start.elapsed(),
        });
        Ok(())
    }

    fn tell(&self, event: Progress) {
        (self.progress)(event);
    }

    /// Everything on disk, before the first namespace.
    fn prepare(&mut self, text: &str) -> Result<(), StateError> {
        let folder = self.lab.folder.clone();
        folder.write(&folder.topology(), text)?;
        self.lab.save()?;
        if self.options.extent == Extent::Full {
            folder.link_binary(&self.lab.state.binary)?;
        }
        for node in &self.lab.layout.nodes {
            folder.create_node(&node.name)?;
        }
        Ok(())
    }

    /// The ARP table is one for all namespaces of the machine.
    fn warn_about_neighbours(&self) {
        const PATH: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
        let nodes = self.lab.layout.nodes.len();
        let limit = std::fs::read_to_string(PATH)
            .ok()
            .and_then(|t| t.trim().parse::<usize>().ok());
        if let Some(limit) = limit
            && nodes * nodes > limit
        {
            self.tell(Progress::Warning(format!(
                "{nodes} meshed nodes need up to {} ARP entries, the machine has room for {limit}: raise \
                 net.ipv4.neigh.default.gc_thresh1, 2 and 3",
                nodes * nodes
            )));
        }
    }

    fn one(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::Namespaces(names) => {
                let lines: Vec<_> = names.iter().map(|n| format!("netns add {n}")).collect();
                crate::ip::batch(None, &lines)?;
                self.tell(Progress::Namespaces { count: names.len() });
            }
            Step::Sysctl {
                netns,
                key,
                value,
                optional,
            } => {
                netns::sysctl(netns, key, value, *optional)?;
            }
            Step::Ip { netns, lines } => crate::ip::batch(Some(netns), lines)?,
            Step::StartEtcd => {
                let start = Instant::now();
                self.lab.start_etcd()?;
                self.tell(Progress::Etcd {
                    took: start.elapsed(),
                });
            }
            Step::Put(documents) => {
                self.lab.put(documents)?;
                let keys = documents.iter().map(|d| d.key.clone()).collect();
                self.tell(Progress::Resources { keys });
            }
            Step::StartNode(node) => self.start(node)?,
            Step::AwaitNode(node) => self.ready(node)?,
            Step::AddPods(pods) => self.add_pods(pods)?,
            Step::StartSpeaker(node) => {
                self.configure(node)?;
                self.start(node)?;
                self.ready(node)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, node: &str) -> Result<(), NodeError> {
        self.lab.start_node(node)?;
        let pid = self.lab.state.processes[node].pid;
        self.tell(Progress::NodeStarted {
            node: node.to_owned(),
            pid,
        });
        Ok(())
    }

    fn ready(&mut self, node: &str) -> Result<(), NodeError> {
        self.lab.await_node(node)?;
        let kind = self
            .lab
            .layout
            .node(node)
            .map_or(NodeKind::Plain, |n| n.kind);
        let after = self.start.elapsed();
        self.tell(Progress::NodeReady {
            node: node.to_owned(),
            kind,
            after,
        });
        Ok(())
    }

    fn add_pods(&mut self, pods: &[(String, String)]) -> Result<(), StepError> {
        let of = |(node, name): &(String, String)| {
            let layout = self.lab.layout.node(node)?;
            let pod = layout.pods.iter().find(|p| p.name == *name)?;
            Some(PodState {
                node: node.clone(),
                name: name.clone(),
                netns: pod.netns.clone(),
                container: cni::container_id(),
                address: None,
                host_interface: None,
            })
        };
        let pods: Vec<_> = pods.iter().filter_map(of).collect();
        // Known before the first ADD, so that a killed lab's pods get their DEL.
        self.lab.state.pods.clone_from(&pods);
        self.lab.save()?;
        let progress = self.progress;
        let results = self.lab.attach_pods(&pods, &|pod, attachment, took| {
            let address = attachment.address.to_string();
            progress(Progress::Pod {
                pod: pod.label(),
                address,
                took,
            });
        });
        let mut first_error = None;
        self.lab.state.pods.clear();
        for (mut pod, result) in results {
            match result {
                Ok(attachment) => {
                    pod.address = Some(attachment.address);
                    pod.host_interface = attachment.host_interface;
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
            self.lab.state.pods.push(pod);
        }
        self.lab.save()?;
        first_error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes the configuration of a foreign speaker.
    fn configure(&mut self, name: &str) -> Result<(), StepError> {
        let lab = &*self.lab;
        let Some(layout) = lab.layout.node(name) else {
            return Ok(());
        };
        let asked = self
            .options
            .speaker_config
            .as_mut()
            .and_then(|f| f(lab, layout));
        let in_file = lab.topology.node(name).and_then(|n| n.config.clone());
        let text = match asked.or(in_file) {
            Some(text) => text,
            None => lab.caracal(name, &["render", "--node", name, "--style", "bird2"])?,
        };
        let file = match layout.kind {
            NodeKind::Gobgp => "gobgpd.toml",
            _ => "bird.conf",
        };
        let path = lab.folder.run(name).join(file);
        lab.folder.write(&path, &text)?;
        if layout.kind == NodeKind::Bird2 {
            // Its complaint names line and column, which the daemon's log would hide.
            let mut check = program::command("bird").map_err(ProgramError::from)?;
            check.arg("-p").arg("-c").arg(&path);
            program::call(
                Some(&layout.netns),
                &mut check,
                b"",
                Duration::from_secs(10),
            )?;
        }
        Ok(())
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Namespaces(names) => format!("make {} namespaces", names.len()),
        Step::Sysctl { netns, .. } | Step::Ip { netns, .. } => format!("set up namespace {netns}"),
        Step::StartEtcd => "start etcd".to_owned(),
        Step::Put(_) => "put the topology's resources into etcd".to_owned(),
        Step::StartNode(node) => format!("start node {node}"),
        Step::AwaitNode(node) => format!("reach node {node}"),
        Step::AddPods(pods) => format!("attach {} pods", pods.len()),
        Step::StartSpeaker(node) => format!("start speaker {node}"),
    }
}
