//! The shell: a task that reads the kernel, plans, compares, and writes what differs.
//!
//! It works in the network namespace of the thread that spawns it and of the runtime's threads,
//! which must be the same one. What it does depends on the present alone: between passes it keeps
//! failures to retry, and what it knows of the kernel until something is told of it
//! (`reconciler/kernel_cache.rs`).

mod conntrack;
mod foreign;
mod netlink;
mod observe;
mod offload;
pub(crate) mod planned;
mod policy;
mod probe;
mod read;
mod reconciler;
mod retry;
mod revocation;
pub(crate) mod rule_table;
mod rules;
mod services;
pub(crate) mod table;
mod underlay;
mod uninstall;
mod write;

#[cfg(test)]
mod tests;

pub use foreign::{ForeignRules, ForeignRulesError};
pub use netlink::{KernelRefusal, NetlinkError};
pub use observe::{
    RulesReadError, ServiceReadError, observe_kernel, observe_nat, observe_service_elements,
    observe_service_hits, observe_services, read_rules,
};
pub use offload::TxChecksums;
pub use policy::{PolicyStatus, PolicyWriteError, PolicyWriter};
pub use probe::echo::{Echo, EchoError};
pub use probe::prober::KnownPaths;
#[cfg(test)]
pub(crate) use reconciler::Freezing;
pub use reconciler::status::AgentStatus;
pub use reconciler::sweep_precondition::SweepPrecondition;
pub use reconciler::{Reconciler, ReconcilerHandle, ReconcilerOptions};
pub use services::{ServiceStatus, ServiceWriteError, ServiceWriter};
pub use underlay::{PublishedUnderlay, local_networks};
pub use uninstall::Uninstall;
pub use write::chains::{IptablesError, put_iptables_chain, remove_iptables_chain};
pub use write::forward::{ForwardError, ForwardRules};

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::Netlink;

use crate::links::Links;
use crate::op::Op;
use crate::ownership::{is_flannels_vxlan, is_vxlan_device};
use crate::plan::KernelSupport;
use crate::settings::ROUTE_PROTOCOL;

/// Reads the interfaces of the calling thread's network namespace.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn read_links() -> Result<Links, NetlinkError> {
    read::links(&Netlink::open()?).await
}

/// Reads everything that the agent minds in the calling thread's network namespace, but for sysctls
/// and NAT rules.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn read_kernel() -> Result<crate::actual::Actual, NetlinkError> {
    let has_fdb = |name: &str| is_vxlan_device(name) || is_flannels_vxlan(name);
    read::actual_with(&mut Netlink::open()?, has_fdb).await
}

/// Carries out ops on routes, devices and entries in order; each with the kernel's reason when it
/// refuses. For commands; a running agent would undo what it does not want.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn apply_ops(ops: Vec<Op>) -> Result<Vec<(Op, Result<(), String>)>, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let links = read::links(&netlink).await?;
    let results = write::send(&mut netlink, &ops, &links).await?;
    Ok(ops.into_iter().zip(results).collect())
}

/// Kernel features that the settings need, found out by trying. Needs the right to make devices.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn kernel_support(
    wanted: crate::plan::WantedTunnels,
) -> Result<KernelSupport, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let links = read::links(&netlink).await?;
    let mut known = KernelSupport::default();
    probe::support(&mut netlink, &links, wanted, &mut known).await?;
    Ok(known)
}

/// True when the kernel holds routes of an earlier run of ours: forwarding has survived a restart.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn holds_our_routes() -> Result<bool, NetlinkError> {
    let actual = read::actual(&mut Netlink::open()?).await?;
    let ours = |route: &crate::actual::ActualRoute| route.protocol == ROUTE_PROTOCOL;
    Ok(actual.routes.values().flatten().any(ours))
}

/// Takes away blackholes of ours that stand between this node and its datastore
/// (`crate::lifelines`): while one is there, nothing that a plan could be made of is read.
/// Answers with those that are gone, or why one is not.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn free_lifelines(
    protocol: u8,
    lifelines: &BTreeSet<IpAddr>,
) -> Result<Vec<(String, Result<(), String>)>, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let actual = read::actual(&mut netlink).await?;
    let cuts = crate::lifelines::cut_by(&actual, protocol, lifelines);
    let ops: Vec<Op> = cuts.into_iter().map(Op::DeleteRoute).collect();
    let results = write::send(&mut netlink, &ops, &actual.links).await?;
    Ok(ops.iter().map(ToString::to_string).zip(results).collect())
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
