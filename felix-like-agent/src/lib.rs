//! Kernel state of a node, and the only writer of it: routes, tunnel devices, neighbours, FDB
//! entries, sysctls and NAT.
//!
//! The core is two pure functions. [`plan()`] turns a [`Snapshot`](caracal_model::Snapshot),
//! the routes learned by BGP and the machine's interfaces into [`Desired`]; [`diff()`] compares
//! that with the kernel's [`Actual`] and answers with [`Op`]s in dependency order. The shell,
//! `dataplane` (a feature), reads and writes the kernel. The core imports no tokio and no netlink.
//!
//! # Order of calls
//!
//! A daemon spawns the `Reconciler`, which reads, plans and writes by itself: its inputs are the
//! snapshot, the learned routes and the sweep precondition; its outputs the `AgentStatus` and the
//! `PublishedUnderlay`, over which the speaker resolves next hops. Commands do the steps one by
//! one:
//!
//! 1. `read_kernel` and `kernel_support`: what is there, and what this kernel can do.
//! 2. [`Settings::resolve`], then [`plan()`]: what should be there.
//! 3. [`diff()`] by [`Phase`]: the operations, in dependency order; `apply_ops` writes them.
//!
//! ```
//! use std::collections::BTreeSet;
//!
//! use caracal_agent::{
//!     Actual, HostRoutes, KernelSupport, Links, Phase, PlanInputs, Settings, diff, plan,
//! };
//! use caracal_model::{NodeName, SharedMap, Snapshot};
//!
//! let desired = plan(&PlanInputs {
//!     snapshot: &Snapshot::default(),
//!     me: &NodeName::from("a"),
//!     learned: &SharedMap::default(),
//!     links: &Links::default(),
//!     host_routes: &HostRoutes::default(),
//!     settings: &Settings::default(),
//!     kernel: &KernelSupport::default(),
//!     lifelines: &BTreeSet::new(),
//! });
//! // An empty datastore wants no routes; in the phase *learning* nothing would be deleted either.
//! assert!(desired.routes.is_empty());
//! let ops = diff(&desired, &Actual::default(), Phase::Learning);
//! assert!(ops.iter().all(|op| !op.is_delete()));
//! ```
//!
//! # Invariants, cited by tests
//!
//! * `AGENT-1`: [`Desired`] holds at most one route a prefix.
//! * `AGENT-2`: `diff(d, a)` is empty when `a` already is what `d` asks for.
//! * `AGENT-3`: applying `diff(d, a)` to `a` gives what `d` asks for, but for what a foreign object
//!   occupies.
//! * `AGENT-4`: in [`Phase::Learning`] nothing is deleted; in [`Phase::Frozen`] nothing is done.
//! * `AGENT-5`: an object that [`Ownership`] does not call ours is never changed and never deleted.
//! * `AGENT-6`: an object that stays wanted is replaced, never deleted and added.
//! * `AGENT-7`: tunnels exist on every node as soon as any pool uses the encapsulation: receive
//!   before send.

#![cfg_attr(
    not(feature = "dataplane"),
    allow(
        dead_code,
        unused_imports,
        reason = "the shell alone calls some parts of the core"
    )
)]

mod actual;
mod adoption;
mod audit;
#[cfg(feature = "dataplane")]
mod dataplane;
mod desired;
mod diff;
mod forecast;
#[cfg(feature = "dataplane")]
mod foreign;
mod held;
mod kernel_objects;
mod learned;
mod lifelines;
mod links;
mod nat;
mod nft;
mod op;
mod ownership;
mod paths;
mod plan;
mod policy;
mod problem;
mod services;
mod settings;
mod slice;
mod table;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod transport;
mod underlay;

pub use actual::{Actual, ActualNeighbour, ActualRoute, ActualTarget};
pub use adoption::{AdoptionItem, Fate, adoption_report, hand_back_ops};
pub use audit::{
    AuditFinding, AuditInputs, AuditJob, AuditPeer, AuditRib, FindingAges, OwnBlock, audit,
};
#[cfg(feature = "dataplane")]
pub use dataplane::planned::{PlannedStatus, Sweep, spawn_planned};
#[cfg(feature = "dataplane")]
pub use dataplane::rule_table::{RuleTable, RuleTableError};
#[cfg(feature = "dataplane")]
pub use dataplane::table::{TableHandle, TableInput, TableStatus, spawn_table, table_holds_routes};
#[cfg(feature = "dataplane")]
pub use dataplane::{
    AgentStatus, Echo, EchoError, ForeignRules, ForeignRulesError, ForwardError, ForwardRules,
    IptablesError, KernelRefusal, KnownPaths, NetlinkError, PolicyStatus, PolicyWriteError,
    PolicyWriter, PublishedUnderlay, Reconciler, ReconcilerHandle, ReconcilerOptions,
    RulesReadError, ServiceReadError, ServiceStatus, ServiceWriteError, ServiceWriter,
    SweepPrecondition, TxChecksums, Uninstall, apply_ops, free_lifelines, holds_our_routes,
    kernel_support, local_networks, observe_kernel, observe_nat, observe_service_elements,
    observe_service_hits, observe_services, put_iptables_chain, read_kernel, read_links,
    read_rules, remove_iptables_chain,
};
pub use desired::Desired;
pub use diff::{Comparing, Comparison, Phase, diff, unused_objects, unused_objects_after};
pub use forecast::{Assumed, PlanChange, compare_plans, forecast};
#[cfg(feature = "dataplane")]
pub use foreign::RuleOwner;
pub use held::Held;
pub use kernel_objects::{
    BLACKHOLE_METRIC, FdbKey, ForwardingTarget, IPIP_DEVICE, NeighbourKey, NextHop, NextHopObject,
    PlannedRoute, Route, RouteKey, RouteKind, Tunnel, TunnelDevice, vxlan_device,
};
pub use learned::Learned;
pub use links::{Link, Links, VxlanParameters};
pub use nat::Nat;
pub use nat::iptables::chain::{IptablesChain, IptablesRule};
pub use op::Op;
pub use ownership::{
    FIRST_OBJECT, FLANNEL_IPIP_DEVICE, FLANNEL_PROTOCOL, FLANNEL_TUN_DEVICE, Owner, Ownership,
    is_flannels_vxlan, is_tunnel_device,
};
pub use paths::{MtuSearch, PathMtus, PathVerdict, SearchStep};
pub use plan::encap::{IPIP_OVERHEAD, VXLAN_OVERHEAD, VXLAN_V6_OVERHEAD};
pub use plan::mtu::{FALLBACK_MTU, host_mtu};
pub use plan::{
    Changed, ChangedKeys, HostRoutes, KernelPlan, KernelPlanner, KernelSupport, PlanInputs,
    PlanJob, WantedTunnels, plan, wanted_tunnels,
};
pub use policy::{FailsafePorts, PolicyCounts, PolicySettings, RefusedChain};
pub use services::{
    Affinity, NodePortAddresses, NodePortAddressesError, ServiceAddress, ServiceDifferences,
    ServiceElement, ServiceEntry, ServiceHealth, ServiceSettings, ServiceTarget,
};
pub use settings::keys::setting_effect;
pub use settings::{InterfacePattern, Overrides, ServiceLoops, Settings};
pub use slice::SLICE;
pub use table::{Foreign, LearnScope, TABLE_PROTOCOL, TableSettings, Tables};
#[cfg(any(test, feature = "testing"))]
pub use testing::{Refused, apply_op, leads_elsewhere, next_index};
pub use transport::Transport;
