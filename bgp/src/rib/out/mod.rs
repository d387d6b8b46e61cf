//! Outwards: what is advertised to each peer (Adj-RIB-Out), and the export rules that decide it.
//!
//! Peers for which the rules come out the same form an update group ([`Group`]): the export of a
//! route is computed once per group, stored once, and shared as one `Arc`. What differs inside a
//! group is only that nobody gets back what it sent itself: which members get a route is a function
//! of the advertisement and of the member, and nothing is stored per member (RIB-3).
//!
//! The files build on each other in this order: `advertised` (advertisement of a path, and which
//! members see it) → `change` (before and after) → `single_path` and `add_path` (advertisements of
//! each destination, to members that take one path or several, RFC 7911) → `rules` (export) →
//! `group`; `packing` puts the changes of a group into buckets that are encoded once. A peer that
//! takes one path gets what one with ADD-PATH would get with a limit of one, without the
//! identifier.

mod add_path;
mod advertised;
mod change;
mod group;
mod packing;
mod rules;
mod sent;
mod single_path;

pub use self::advertised::{Member, Withheld};
pub use self::change::{GroupRoute, GroupUpdate, PathId, RouteChange};
pub(in crate::rib) use self::group::Group;
#[cfg(feature = "speaker")]
pub(crate) use self::packing::Packer;
pub use self::packing::{Buckets, MemberUpdate, PackingBucket};
pub(in crate::rib) use self::rules::{ExportCache, ExportRoute, GroupKey, PathSource, Senders};
pub(in crate::rib) use self::sent::SentLimit;
