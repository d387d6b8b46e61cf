//! Nodes of a flannel network: `caracal flannel` in each, and pods that flannel's plugin attaches
//! to a bridge by the plugins of the CNI project.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use caracal_flannel::SubnetEnv;
use serde::Serialize;
use serde_json::{Value, json};

use crate::http;
use crate::lab::Lab;
use crate::plan::{FLANNEL_HEALTH_PORT, NodeLayout};
use crate::program::ProgramError;
use crate::topology::NodeKind;
use crate::wait::{Timeout, wait_until};

/// Flannel's place in etcd.
const PREFIX: &str = "/coreos.com/network";
/// The name of the network in flannel's own manifest.
const NETWORK: &str = "cbr0";
/// Our plugin, as configurations call it.
pub(crate) const PLUGIN: &str = "caracal-flannel";
/// Patience with a daemon on this machine.
const ANSWER: Duration = Duration::from_secs(5);

/// What a node of a flannel network says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlannelReport {
    /// Subnets of the node's pods.
    pub subnets: Vec<String>,
    /// Flannel's name of the backend.
    pub backend: &'static str,
    /// MTU of pods in octets.
    pub mtu: u32,
    /// Leases that the daemon knows, its own included.
    pub leases: usize,
    /// What the daemon calls wrong, by code and number.
    pub problems: Vec<(String, usize)>,
}

impl Lab {
    /// Puts the network's configuration into etcd; gives its key.
    pub(crate) fn put_net_conf(&self, config: &Value) -> Result<String, ProgramError> {
        let key = format!("{PREFIX}/config");
        self.etcdctl(&["put", &key], config.to_string().as_bytes())?;
        Ok(key)
    }

    /// The file that a node's daemon writes and its plugin reads.
    pub(crate) fn subnet_file(&self, node: &str) -> PathBuf {
        self.folder.run(node).join("subnet.env")
    }

    /// Variables of the node's daemon that are folders.
    pub(crate) fn flannel_environment(&self, node: &NodeLayout, command: &mut Command) {
        if node.kind == NodeKind::Flannel {
            command.env("FLANNELD_SUBNET_FILE", self.subnet_file(&node.name));
        }
    }

    /// The network configuration of flannel's plugin on a node, with its own folders.
    pub(crate) fn flannel_config(&self, node: &str) -> Value {
        let lib = self.folder.lib(node);
        json!({
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": PLUGIN,
            "subnetFile": self.subnet_file(node),
            "dataDir": lib.join("flannel"),
            "delegate": { "hairpinMode": true, "isDefaultGateway": true },
            "ipam": { "dataDir": lib.join("networks") },
        })
    }

    /// Has a node's daemon a lease, and has it written kernel and file? Else why not.
    pub(crate) fn flannel_serves(&self, node: &NodeLayout) -> Result<(), String> {
        let answer = http::get(&node.netns, FLANNEL_HEALTH_PORT, "/readyz", ANSWER)
            .map_err(|e| format!("port {FLANNEL_HEALTH_PORT}: {e}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => {}
            _ => return Err(format!("not ready: {}", body.trim())),
        }
        self.read_subnet_file(&node.name).map(drop)
    }

    fn read_subnet_file(&self, node: &str) -> Result<SubnetEnv, String> {
        let path = self.subnet_file(node);
        let text = fs::read_to_string(&path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        SubnetEnv::parse(&text).map_err(|e| format!("{} {e}", path.display()))
    }

    pub(crate) fn flannel_report(&self, node: &NodeLayout) -> Result<FlannelReport, String> {
        self.flannel_serves(node)?;
        let file = self.read_subnet_file(&node.name)?;
        let metrics = http::get(&node.netns, FLANNEL_HEALTH_PORT, "/metrics", ANSWER)
            .map_err(|e| format!("port {FLANNEL_HEALTH_PORT}: {e}"))?;
        Ok(FlannelReport {
            subnets: file.subnets().map(|subnet| subnet.to_string()).collect(),
            backend: self.topology.flannel().map_or("", |f| f.backend()),
            mtu: file.mtu,
            leases: leases(&metrics).ok_or("its metrics name no leases")?,
            problems: problems(&metrics),
        })
    }

    /// Waits until every node of a flannel network knows the leases of all; gives their number.
    ///
    /// # Errors
    /// [`Timeout`], with what was missing last.
    pub fn await_leases(&self, deadline: Duration) -> Result<usize, Timeout> {
        let all = self.layout.nodes.iter();
        let nodes: Vec<_> = all.filter(|n| n.kind == NodeKind::Flannel).collect();
        wait_until(deadline, "all nodes to know all leases", || {
            let missing = nodes.iter().filter_map(|node| {
                let name = &node.name;
                match self.flannel_report(node) {
                    Ok(report) if report.leases >= nodes.len() => None,
                    Ok(report) => Some(format!("{name} knows {}", report.leases)),
                    Err(error) => Some(format!("{name}: {error}")),
                }
            });
            let missing: Vec<_> = missing.collect();
            match missing.is_empty() {
                true => Ok(nodes.len()),
                false => Err(missing.join(", ")),
            }
        })
    }
}

/// Samples of a metric: labels and value.
fn samples<'a>(metrics: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, usize)> {
    metrics.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_this = labels.is_empty() || labels.starts_with('{');
        let value = value.split('.').next()?.parse().ok()?;
        is_this.then_some((labels, value))
    })
}

fn leases(metrics: &str) -> Option<usize> {
    Some(samples(metrics, "caracal_flannel_leases").next()?.1)
}

/// Codes of problems that there are.
fn problems(metrics: &str) -> Vec<(String, usize)> {
    let of_code = |(labels, count): (&str, usize)| {
        let code = labels.split_once("code=\"")?.1.split('"').next()?;
        (count > 0).then(|| (code.to_owned(), count))
    };
    samples(metrics, "caracal_problems")
        .filter_map(of_code)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_problems_are_read_of_the_metrics() {
        let text = "HTTP/1.1 200 OK\r\n\r\n\
            # HELP caracal_flannel_leases Leases of all nodes.\n\
            caracal_flannel_leases_unreadable 7\n\
            caracal_flannel_leases 3\n\
            caracal_problems{code=\"flannel.lease\"} 2\n\
            caracal_problems{code=\"agent.foreign_route\"} 0\n";
        assert_eq!(leases(text), Some(3));
        assert_eq!(problems(text), [("flannel.lease".to_owned(), 2)]);
        assert_eq!(leases("caracal_flannel_leases_unreadable 7\n"), None);
    }
}
