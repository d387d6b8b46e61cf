//! Desired kernel state: sorted maps with kernel keys, and problems with the reason. A copy shares
//! what it has in common with the next plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{IfName, Mac, Prefix, Problem, SharedMap};

use crate::held::Held;
use crate::kernel_objects::{FdbKey, NeighbourKey, PlannedRoute, Tunnel};
use crate::nat::Nat;
use crate::ownership::Ownership;

/// Desired kernel state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// Revision of the snapshot that this was planned from.
    pub revision: i64,
    /// Routes, one a prefix (AGENT-1).
    pub routes: SharedMap<Prefix, PlannedRoute>,
    /// Prefixes whose far end (its address is the value) does not say yet that it can receive what
    /// the pool's mode sends: a route of ours that leads there already stays as it is; the planned
    /// one, if any, is written only where there is none.
    pub deferred: SharedMap<Prefix, IpAddr>,
    /// Routes with one gateway lead through next-hop objects.
    pub objects: bool,
    /// Tunnel devices by name.
    pub tunnels: BTreeMap<IfName, Tunnel>,
    /// Permanent neighbours.
    pub neighbours: SharedMap<NeighbourKey, Mac>,
    /// Permanent FDB entries: the underlay address of each remote VTEP.
    pub fdb: SharedMap<FdbKey, IpAddr>,
    /// MAC addresses of the host side interfaces of workloads that have another one.
    pub macs: BTreeMap<IfName, Mac>,
    /// Values below `/proc/sys`, by path.
    pub sysctls: BTreeMap<String, String>,
    /// NAT and forwarding rules; `None` = not known, leave what is there.
    pub nat: Option<Arc<Nat>>,
    /// Problems: wanted things that cannot be done.
    pub problems: BTreeSet<Problem>,
    /// MTU for interfaces of workloads, in octets; zero before the first plan.
    pub workload_mtu: u32,
    /// Signs by which our objects are recognised.
    pub ownership: Ownership,
    /// What stays although nothing here wants it.
    pub held: Arc<Held>,
    /// Prefixes that were looked at and got no route although nothing is wrong, with the reason.
    pub skipped: SharedMap<Prefix, String>,
}

impl Desired {
    /// Number of routes by kind.
    #[cfg(test)]
    pub(crate) fn count_by_kind(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for planned in self.routes.values() {
            *counts.entry(planned.kind.as_str()).or_insert(0) += 1;
        }
        counts
    }
}
