//! A BGP speaker for container clusters: sessions, the routing table, the choice of the best path.
//!
//! The crate is a pure core and one thin shell. The core has no clock, no socket and no task: time
//! and octets enter as arguments, and what has to be done comes back as values. The shell, behind
//! the feature `speaker`, adds tokio: `speaker::Speaker` owns a table and one task per
//! session, `speaker::SpeakerHandle` asks and commands it,
//! `speaker::FibFeed` hands over the routes for the forwarding table.
//!
//! In the core, a session is a [`fsm::Peer`] (octets and timers in, octets and events out), a
//! table is a [`rib::Rib`]. The calls to a table, in their order:
//!
//! 1. [`rib::Rib::new`] with a [`config::SpeakerConfig`]; later configurations go to
//!    [`rib::Rib::reconfigure`].
//! 2. [`rib::Rib::set_underlay`] with the links and routes over which next hops are reached. Before
//!    the first call every next hop counts as reached.
//! 3. [`rib::Rib::peer_up`] when a session is established, [`rib::Rib::apply`] for each UPDATE (or
//!    [`rib::Rib::receive`] for several and then [`rib::Rib::decide`]), [`rib::Rib::peer_down`] at
//!    the end of the session.
//! 4. After each call, what its [`rib::Changes`] say: `out` goes to peers, in this order; for each
//!    of `prefixes`, [`rib::Rib::learned`] is the route for the forwarding table.
//! 5. [`rib::Rib::work`] as long as [`rib::Rib::has_work`]: changes of large tables are made in
//!    slices.
//! 6. [`rib::Rib::handle_timeout`] when [`rib::Rib::next_timeout`] has come.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Instant;
//!
//! use caracal_bgp::config::{Origination, SpeakerConfig};
//! use caracal_bgp::rib::{Rib, RibOptions};
//! use caracal_bgp::types::{Asn, RouterId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SpeakerConfig {
//!     local_as: Asn(64512),
//!     router_id: RouterId([192, 0, 2, 1].into()),
//!     listen: None,
//!     peers: BTreeMap::new(),
//!     originate: BTreeMap::new(),
//!     filters: BTreeMap::new(),
//!     stations: BTreeMap::new(),
//! };
//! let now = Instant::now();
//! let (mut rib, _) = Rib::new(now, &config, RibOptions::default());
//! let changes = rib.originate(now, "198.51.100.0/24".parse()?, &Origination::default());
//! assert_eq!(changes.prefixes, ["198.51.100.0/24".parse()?]);
//! assert_eq!(rib.counts().paths, 1);
//! assert!(!rib.has_work());
//! # Ok(())
//! # }
//! ```
//!
//! | layer | module | what it is |
//! |---|---|---|
//! | vocabulary | [`types`], [`config`], [`policy`] | newtypes, the typed configuration, route policy |
//! | values | [`attrs`] | path attributes, AS path |
//! | rules | [`martian`] | prefixes that are never routed |
//! | | [`origin`] | who may announce what |
//! | codec | [`wire`] | octets to messages and back |
//! | session | [`fsm`] | the state machine of a peer |
//! | table | [`rib`] | Adj-RIB-In, decision process, Adj-RIB-Out, graceful restart |
//! | liveness | [`bfd`] | is the other end there |
//! | monitoring | [`bmp`] | what a monitoring station is told |
//! | shell | `speaker` | tokio tasks and sockets |

pub mod attrs;
pub mod bfd;
pub mod bmp;
pub mod config;
pub mod fsm;
pub mod martian;
mod opens;
pub mod origin;
pub mod policy;
mod ranges;
pub mod rib;
#[cfg(feature = "speaker")]
pub mod speaker;
pub mod types;
pub mod wire;
