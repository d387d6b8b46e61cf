//! Block IPAM on Calico's own data: a Calico node and a Caracal node allocate from the same pools
//! at the same time.
//!
//! # Order of calls
//!
//! A request is a [`Machine`]: [`Assign`], [`AssignIp`], [`ReleaseIps`], [`ReleaseHandle`],
//! [`ReleaseAffinity`], [`ReleaseNode`], [`EnsureTunnel`], [`Configure`], [`Split`], [`TakeBlock`],
//! [`Mender`], [`HandleAddresses`]. Call [`Machine::step`] with [`Input::Start`], do what the
//! answer says ([`Step::Read`], [`Step::Commit`]) and call it again with the outcome, until it is
//! [`Step::Done`] or [`Step::Failed`]. A lost race is no error: tell [`Input::Conflict`], and the
//! machine reads again and decides anew. [`Conditional`] wraps a machine whose writes have
//! preconditions. `Client` (feature `client`) drives machines against a store, and is the only
//! place with a clock and with retries.
//!
//! ```
//! use caracal_ipam::{Assign, AssignRequest, Input, Machine, Step};
//! use caracal_model::Timestamp;
//!
//! let mut request = AssignRequest::workload("node1".into(), "k8s-pod-network.abc".into());
//! request.num_v4 = 1;
//! let now = Timestamp::parse_rfc3339("2026-01-01T00:00:00Z").expect("a time");
//! let mut machine = Assign::new(request, now);
//! match machine.step(Input::Start) {
//!     Step::Read(ranges) => assert!(!ranges.is_empty(), "keys to read, all at one revision"),
//!     other => panic!("an assignment begins with a read, not with {other:?}"),
//! }
//! ```
//!
//! Questions are pure functions of [`IpamData`], which holds what was read of [`all_ranges`]:
//! [`check`](fn@check) (inconsistencies), [`audit`](fn@audit) (leaks; needs [`Users`]),
//! [`plan_repairs`], [`pool_fill`], [`why`](fn@why). [`Collector`] finds what may be released
//! although nobody asked, [`DeletedNodes`] what deleted nodes left, which the node does that an
//! [`Election`] made leader; a [`Lease`] proves that a node lived.
//!
//! # The protocol
//!
//! An assignment changes its blocks and its handle in **one** transaction that compares both, so
//! there is no moment at which a handle and a block disagree. A new block takes two: the affinity
//! is written `pending`, then one transaction confirms it, creates the block with the first
//! addresses in it, and writes the handle. A host that dies in between leaves a pending affinity,
//! which its next assignment takes over or drops. Calico's nodes write the same keys one after the
//! other, each with compare-and-swap; whoever comes second notices, because every one of our
//! transactions compares the block itself.
//!
//! # Invariants, cited by tests
//!
//! * `IPAM-1`: an address is held at most once: blocks never overlap, and no ordinal of a block is
//!   both allocated and free.
//! * `IPAM-2`: at rest, a handle's count for a block equals the number of addresses held through it
//!   there.
//! * `IPAM-3`: at most one host has a confirmed affinity to a block, and the block names that host.
//! * `IPAM-4`: a block that names an owner has an affinity key of that owner.
//! * `IPAM-5`: no key is written without a comparison of its revision (or absence) in the same
//!   transaction.
//! * `IPAM-6`: every address taken for a host names the node in its attributes; without it, it gets
//!   no route.
//! * `IPAM-7`: a block without owner holds at least one address; else it is deleted.
//! * `IPAM-8`: a release that names a handle or a sequence number never frees a newer allocation.
//! * `IPAM-9`: reserved and cooling addresses are never handed out unasked.
//! * `IPAM-10`: a crash at any step, or a lost race, leaves at most an unconfirmed affinity behind,
//!   never an address. The host's next claim takes it over, or drops it when somebody else has the
//!   block.
//! * `IPAM-11`: an assignment is all or nothing: a failed one holds no address.
//! * `IPAM-12`: fields that this crate does not know survive (MODEL-1); a value that does not parse
//!   is never overwritten and never counts as absent.

mod affinity;
mod allocation;
mod assign;
mod assign_ip;
mod audit;
mod block;
mod check;
#[cfg(feature = "client")]
mod client;
mod deleted_nodes;
mod election;
mod error;
mod gc;
mod handle;
mod handle_addresses;
mod lease;
mod namespace;
mod order;
#[cfg(feature = "client")]
mod overlay;
mod plan;
mod pools;
mod precondition;
mod release;
mod release_node;
mod repair;
mod report;
mod request;
mod settings;
mod split;
mod step;
mod summary;
mod take_block;
mod tunnel;
mod txn_builder;
mod users;
mod view;
mod why;

// Machines, and how they are driven.
pub use affinity::{AffinityOutcome, ReleaseAffinity};
pub use assign::Assign;
pub use assign_ip::AssignIp;
#[cfg(feature = "client")]
pub use client::{Client, ClientError, LoggedStore};
pub use handle_addresses::{HandleAddresses, Held};
pub use precondition::{Conditional, PreconditionError};
pub use release::{ReleaseHandle, ReleaseIps};
pub use release_node::{ReleaseNode, ReleaseNodeError, ReleasedNode};
pub use repair::{Mender, Repair, RepairError, RepairPlan, plan_repairs};
pub use request::{AssignIpRequest, AssignRequest, Assigned, Assignment, ReleaseTarget, Released};
pub use settings::{Configure, Persistence, SettingsChange, SettingsError};
pub use split::{MAX_PARTS, PoolChoice, Split, SplitError};
pub use step::{Input, Machine, Reading, Step};
pub use take_block::{TakeBlock, TakeBlockError};
pub use tunnel::{EnsureTunnel, TunnelKind};

// Why a request is refused.
pub use error::{
    AffinityError, AssignError, AssignIpError, Growth, LimitSource, MAX_OPERATIONS,
    MAX_PRECONDITIONS, NoAddress, NoPool, PoolState, ReleaseError, RequestFault, Unreadable,
};
pub use pools::PoolRefusal;

// Data, and questions about it.
pub use allocation::{Allocation, Purpose};
pub use audit::{AddressUse, Audit, Counts, Leak, Unallocated, audit};
pub use check::{AffinityWord, Inconsistency, QueueFault, check};
pub use deleted_nodes::{DeletedNode, DeletedNodes};
pub use election::Election;
pub use gc::{Collector, Garbage};
pub use lease::{LEASE_PREFIX, Lease, LeaseHolder};
pub use namespace::{namespace_key, namespace_labels, namespace_named};
pub use report::{ClusterSummary, LeakReport, LeakReportError};
pub use summary::{BlockFill, Fill, PoolFill, borrowed_addresses, holder_of, pool_fill};
pub use users::{User, Users, user_ranges};
pub use view::{IpamData, KnownNode, ReadValue, all_ranges};
pub use why::{BlockAnswer, PoolAnswer, Why, why};

// Operations on blocks and handles, for tests that play another client, such as one of Calico's.
#[doc(hidden)]
pub use block::{create as create_block, take, take_address, touch};
#[doc(hidden)]
pub use handle::{add as add_to_handle, is_empty as handle_is_empty, remove as remove_from_handle};
