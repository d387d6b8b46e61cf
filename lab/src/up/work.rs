//! The steps of a bring-up, carried out.

use std::time::{Duration, Instant};

use super::{Extent, StepError, UpError, UpOptions, UpProgress};
use crate::cni;
use crate::lab::Lab;
use crate::netns;
use crate::node::NodeError;
use crate::plan::{self, Step};
use crate::program::{self, ProgramError};
use crate::state::{LabPhase, PodState, StateError};
use crate::topology::NodeKind;

/// A bring-up under way.
pub(super) struct Work<'a> {
    pub(super) lab: &'a mut Lab,
    pub(super) options: UpOptions,
    pub(super) progress: &'a (dyn Fn(UpProgress) + Sync),
    pub(super) start: Instant,
}

impl Work<'_> {
    pub(super) fn all(&mut self, steps: &[Step], text: &str) -> Result<(), UpError> {
        let failed = |step: String| {
            move |source: StepError| UpError::Step {
                step,
                source: Box::new(source),
            }
        };
        self.prepare(text)
            .map_err(StepError::from)
            .map_err(failed("make the lab's folder".into()))?;
        let mut network_done = false;
        for step in steps {
            let network = matches!(
                step,
                Step::Namespaces(_) | Step::Sysctl { .. } | Step::Ip { .. }
            );
            if !network && !network_done {
                network_done = true;
                if self.crowded() {
                    for step in plan::known_neighbours(&self.lab.layout) {
                        self.one(&step).map_err(failed(describe(&step)))?;
                    }
                }
                let layout = &self.lab.layout;
                self.report(UpProgress::Network {
                    segments: layout.bridges.len(),
                    routers: layout.routers.len(),
                    nodes: layout.nodes.len(),
                });
            }
            self.one(step).map_err(failed(describe(step)))?;
        }
        self.lab.state.phase = LabPhase::Up;
        self.lab.save()?;
        self.report(UpProgress::Done {
            took: self.start.elapsed(),
        });
        Ok(())
    }

    fn report(&self, event: UpProgress) {
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

    /// The neighbour table has one limit for all namespaces of the machine: what a lab would learn
    /// beyond it, it is told.
    fn crowded(&self) -> bool {
        const PATH: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
        let nodes = self.lab.layout.nodes.len();
        let limit = std::fs::read_to_string(PATH)
            .ok()
            .and_then(|t| t.trim().parse::<usize>().ok());
        // Everybody learns everybody; the half is for what else the machine has.
        limit.is_some_and(|limit| nodes * nodes > limit / 2)
    }

    fn one(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::Namespaces(names) => {
                let lines: Vec<_> = names.iter().map(|n| format!("netns add {n}")).collect();
                crate::ip::batch(None, &lines)?;
                self.report(UpProgress::Namespaces { count: names.len() });
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
                self.report(UpProgress::Etcd {
                    took: start.elapsed(),
                });
            }
            Step::StartEtcdProxy(number) => self.lab.start_etcd_proxy(*number)?,
            Step::StartApiServer(objects) => {
                let start = Instant::now();
                self.lab.prepare_api_server(objects)?;
                self.lab.start_api_server()?;
                self.report(UpProgress::ApiServer {
                    took: start.elapsed(),
                    objects: objects.len(),
                });
            }
            Step::Put(documents) => {
                self.lab.put(documents)?;
                let keys = documents.iter().map(|d| d.key.clone()).collect();
                self.report(UpProgress::Resources { keys });
            }
            Step::PutNetConf(config) => {
                let keys = vec![self.lab.put_net_conf(config)?];
                self.report(UpProgress::Resources { keys });
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
        self.report(UpProgress::NodeStarted {
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
        self.report(UpProgress::NodeReady {
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
                address6: None,
                host_interface: None,
            })
        };
        let pods: Vec<_> = pods.iter().filter_map(of).collect();
        // Known before the first ADD, so that a killed lab's pods get their DEL.
        self.lab.state.pods.clone_from(&pods);
        self.lab.save()?;
        let progress = self.progress;
        let results = self.lab.attach_pods(&pods, &|pod, attachment, took| {
            let address = match attachment.address6 {
                Some(second) => format!("{} and {second}", attachment.address),
                None => attachment.address.to_string(),
            };
            progress(UpProgress::Pod {
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
                    pod.address6 = attachment.address6;
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
                Duration::from_secs(30),
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
        Step::StartEtcdProxy(number) => format!("start proxy {number} of etcd"),
        Step::StartApiServer(_) => "start the API server".to_owned(),
        Step::Put(_) => "put the topology's resources into etcd".to_owned(),
        Step::PutNetConf(_) => "put flannel's configuration into etcd".to_owned(),
        Step::StartNode(node) => format!("start node {node}"),
        Step::AwaitNode(node) => format!("reach node {node}"),
        Step::AddPods(pods) => format!("attach {} pods", pods.len()),
        Step::StartSpeaker(node) => format!("start speaker {node}"),
    }
}
