//! The one room for nftables: what an element is, what nftables lists, by what a table is known
//! again, and what changes it. Those who have tables say what has to be there, and the shell
//! carries it out.
//!
//! * `element`: a key with or without data, as typed fields; its text, and its octets.
//! * `listing`: reads what nftables prints.
//! * `mark`: fingerprints and checksums, in names of empty chains.
//! * `rule`: the one form of rule that is data.
//! * `change`: transactions, and the difference of sets.

mod change;
mod element;
mod listing;
mod mark;
mod rule;

pub(crate) use change::{Edit, Sets, Transaction, by_set};
pub(crate) use element::{Element, ElementData, Field, Fields, InterfaceName, SetName};
pub(crate) use listing::{Listing, Section};
pub(crate) use mark::{CHECKSUM, Checksum, FINGERPRINT, digest};
pub(crate) use rule::PickRule;
