//! Faults of the network. Faults of processes are in [`crate::node`] and [`crate::etcd`].

use crate::ip;
use crate::lab::{Lab, UnknownTarget};
use crate::plan::InterfaceLayout;
use crate::program::ProgramError;

/// Why a fault was not made or mended.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// There is no such node or router.
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    /// `ip` failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl Lab {
    fn interfaces(&self, target: &str) -> Result<Vec<InterfaceLayout>, UnknownTarget> {
        if let Some(node) = self.layout.node(target) {
            return Ok(vec![node.uplink.clone()]);
        }
        if target == "etcd" {
            return Ok(self.layout.etcd.clone());
        }
        let router = self.layout.routers.iter().find(|r| r.name == target);
        let known = self.layout.nodes.iter().map(|n| n.name.as_str());
        let known = known.chain(self.layout.routers.iter().map(|r| r.name.as_str()));
        router.map(|r| r.legs.clone()).ok_or_else(|| UnknownTarget {
            lab: self.name().to_string(),
            target: target.to_owned(),
            known: known.chain(["etcd"]).collect::<Vec<_>>().join(", "),
        })
    }

    fn ports(
        &self,
        target: &str,
        line: impl Fn(&InterfaceLayout) -> String,
    ) -> Result<(), FaultError> {
        let lines: Vec<_> = self.interfaces(target)?.iter().map(line).collect();
        Ok(ip::batch(Some(&self.layout.switch_netns()), &lines)?)
    }

    /// Pulls the cables of a node, a router or `etcd` at the switch: it sees the loss of carrier.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn unplug(&self, target: &str) -> Result<(), FaultError> {
        self.ports(target, |i| format!("link set dev {} down", i.port))
    }

    /// Puts the cables in again.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn plug(&self, target: &str) -> Result<(), FaultError> {
        self.ports(target, |i| format!("link set dev {} up", i.port))
    }

    /// Cuts a node, a router or `etcd` off without its noticing: carrier stays, every packet is
    /// lost.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn isolate(&self, target: &str) -> Result<(), FaultError> {
        self.ports(target, |i| format!("link set dev {} nomaster", i.port))
    }

    /// Ends [`Lab::isolate`].
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn rejoin(&self, target: &str) -> Result<(), FaultError> {
        self.ports(target, |i| {
            format!("link set dev {} master br-{}", i.port, i.segment)
        })
    }
}
