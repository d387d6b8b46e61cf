//! Kernel state of a node, and the only writer of it: routes, tunnel devices, neighbours, FDB
//! entries, sysctls and NAT.
//!
//! The core is two pure functions. [`plan::plan`] turns a [`Snapshot`](caracal_model::Snapshot),
//! the routes learned by BGP and the machine's interfaces into [`Desired`]; [`diff::diff`] compares
//! that with the kernel's [`Actual`] and answers with [`Op`]s in dependency order. The shell,
//! `dataplane` (a feature), reads and writes the kernel. The core imports no tokio and no netlink.
//!
//! Invariants, cited by tests:
//!
//! * `AGENT-1`: [`Desired`] holds at most one route a prefix.
//! * `AGENT-2`: `diff(d, a)` is empty when `a` already is what `d` asks for.
//! * `AGENT-3`: applying `diff(d, a)` to `a` gives what `d` asks for, but for what a foreign object
//!   occupies.
//! * `AGENT-4`: in [`Phase::Learning`] nothing is deleted; in [`Phase::Frozen`] nothing is done.
//! * `AGENT-5`: an object that [`ownership`] does not call ours is never changed and never deleted.
//! * `AGENT-6`: an object that stays wanted is replaced, never deleted and added.
//! * `AGENT-7`: tunnels exist on every node as soon as any pool uses the encapsulation: receive
//!   before send.

pub mod actual;
pub mod adoption;
pub mod audit;
#[cfg(feature = "dataplane")]
pub mod dataplane;
pub mod desired;
pub mod diff;
pub mod forecast;
pub mod learned;
pub mod lifelines;
pub mod links;
pub mod nat;
pub mod op;
pub mod ownership;
pub mod paths;
pub mod plan;
pub mod settings;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod underlay;

pub use actual::Actual;
pub use desired::Desired;
pub use diff::{Phase, diff};
pub use learned::Learned;
pub use links::Links;
pub use op::Op;
pub use plan::{Inputs, KernelSupport, plan};
pub use settings::Settings;
pub use underlay::{Gateway, Underlay, UnderlayRoute};
