//! Status of the agent, and the problems that come of a pass and not of the plan.

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{KernelStatus, Problem, ProblemCode};

use crate::dataplane::probe::prober::KnownPaths;
use crate::desired::Desired;
use crate::diff::Phase;
use crate::kernel_objects::IPIP_DEVICE;
use crate::links::Links;
use crate::nat::iptables;
use crate::plan::KernelSupport;
use crate::problem::problem;

/// Status of the agent after each pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentStatus {
    /// The kernel's part of `caracal status`.
    pub kernel: KernelStatus,
    /// Faults that the last pass found.
    pub problems: Vec<Problem>,
    /// Passes since the start.
    pub passes: u64,
    /// Changes made in the kernel since the start.
    pub applied: u64,
    /// Time spent in passes since the start.
    pub spent: Duration,
    /// The last plan.
    pub desired: Arc<Desired>,
    /// The interfaces as they were read for it.
    pub links: Arc<Links>,
    /// What this kernel was found to be able to do; what nothing wanted is not tried.
    pub support: KernelSupport,
    /// Known path MTUs to other nodes.
    pub paths: KnownPaths,
    /// Rules of the last plan that are neither written nor refused yet.
    pub rules_pending: bool,
}

/// How a pass went.
pub(in crate::dataplane) struct Report {
    pub(in crate::dataplane) phase: Phase,
    pub(in crate::dataplane) reason: Option<String>,
    pub(in crate::dataplane) failures: usize,
}

/// Senders of tunnel packets that iptables does not judge.
pub(in crate::dataplane) fn too_many_senders(desired: &Desired) -> impl Iterator<Item = Problem> {
    let families = desired.nat.iter().flat_map(|nat| [&nat.ipv4, &nat.ipv6]);
    let counts = families.filter_map(|rules| Some(rules.senders.as_ref()?.from.len()));
    let many = counts.filter(|count| *count > iptables::MOST_SENDERS).max();
    many.into_iter().map(|count| {
        let reason = format!(
            "tunnel packets are taken from anybody: iptables compares each packet with one address after the other, and {count} are more than {}; with nftables they would be judged",
            iptables::MOST_SENDERS
        );
        problem(ProblemCode::AgentTunnelSenders, "iptables", reason)
    })
}

/// The devices of ours that are up.
pub(in crate::dataplane) fn tunnels_up(desired: &Desired, links: &Links) -> Vec<String> {
    // The fallback device is there, and may be up, without being ours.
    let wanted = |name: &str| name != IPIP_DEVICE || desired.tunnels.contains_key(IPIP_DEVICE);
    let mut names: Vec<String> = links
        .iter()
        .filter(|l| l.up && desired.ownership.tunnel(l) && wanted(l.name.as_str()))
        .map(|l| l.name.to_string())
        .collect();
    names.sort_unstable();
    names
}
