//! Block IPAM on Calico's own data: a Calico node and a Caracal node allocate from the same pools at the
//! same time.
//!
//! The core is pure. A request is a [`Machine`]: it says what to read or which compare-and-swap
//! transaction to commit, and is told the outcome, until it is done or has failed for good. It never
//! opens a connection and never reads a clock: time is an argument. A lost race is no error but
//! [`Input::Conflict`]; the machine reads again and decides anew. The feature `client` adds `Client`,
//! which drives machines against a store and is the only place with a real clock and with retries.
//!
//! * [`assign`]: as many addresses as asked for, from the node's own blocks, from new blocks, or borrowed.
//! * [`assign_ip`]: one explicit address.
//! * [`release`]: by address, by handle.
//! * [`affinity`]: gives a block back.
//! * [`tunnel`]: the addresses of a node's tunnel devices.
//! * [`leave`]: everything a deleted node held.
//! * [`check`]: what is inconsistent in the data.
//! * [`usage`]: how full pools and blocks are.
//! * [`audit`], [`repair`]: what is leaked, and how to put it right; [`summary`], [`why`], [`settings`],
//!   [`split`]: the other questions and orders of `caracal ipam`.
//! * [`gc`], [`lease`]: what may be released although nobody asked; [`Conditional`]: only while its preconditions hold.
//!
//! # The protocol
//!
//! An assignment changes its blocks and its handle in **one** transaction that compares both, so there is
//! no moment at which a handle and a block disagree. A new block takes two: the affinity is written
//! `pending`, then one transaction confirms it, creates the block with the first addresses in it, and
//! writes the handle. A host that dies in between leaves a pending affinity, which its next assignment
//! takes over or drops. Calico's nodes write the same keys one after the other, each with
//! compare-and-swap; whoever comes second notices, because every one of our transactions compares the
//! block itself.
//!
//! # Invariants, cited by tests
//!
//! * `IPAM-1`: an address is held at most once: blocks never overlap, and no ordinal of a block is both
//!   allocated and free.
//! * `IPAM-2`: at rest, a handle's count for a block equals the number of addresses held through it there.
//! * `IPAM-3`: at most one host has a confirmed affinity to a block, and the block names that host.
//! * `IPAM-4`: a block that names an owner has an affinity key of that owner.
//! * `IPAM-5`: no key is written without a comparison of its revision (or absence) in the same transaction.
//! * `IPAM-6`: every address taken for a host names the node in its attributes; without it, it gets no route.
//! * `IPAM-7`: a block without owner holds at least one address; else it is deleted.
//! * `IPAM-8`: a release that names a handle or a sequence number never frees a newer allocation.
//! * `IPAM-9`: reserved and cooling addresses are never handed out unasked.
//! * `IPAM-10`: a crash at any step, or a lost race, leaves at most an unconfirmed affinity behind, never an
//!   address. The host's next claim takes it over, or drops it when somebody else has the block.
//! * `IPAM-11`: an assignment is all or nothing: a failed one holds no address.
//! * `IPAM-12`: fields that this crate does not know survive (MODEL-1); a value that does not parse is
//!   never overwritten and never counts as absent.

pub mod affinity;
pub mod allocation;
pub mod assign;
pub mod assign_ip;
pub mod audit;
pub mod block;
pub mod check;
#[cfg(feature = "client")]
pub mod client;
pub mod error;
pub mod gc;
pub mod handle;
pub mod lease;
pub mod namespace;
pub mod order;
mod plan;
pub mod pools;
pub mod precondition;
#[cfg(feature = "client")]
pub mod rehearsal;
pub mod release;
pub mod release_node;
pub mod repair;
pub mod report;
pub mod request;
pub mod settings;
pub mod split;
pub mod step;
pub mod summary;
pub mod tunnel;
mod txn_builder;
pub mod usage;
pub mod users;
pub mod view;
pub mod why;

pub use caracal_model::time::Timestamp;
#[cfg(feature = "client")]
pub use client::{Client, ClientError};
pub use error::{AffinityError, AssignError, AssignIpError, ReleaseError, Unreadable};
pub use request::{AssignIpRequest, AssignRequest, Assigned, Assignment, Target};
pub use step::{Input, Machine, Reading, Step};
pub use tunnel::TunnelKind;
