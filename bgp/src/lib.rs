//! A BGP speaker for container clusters.
//!
//! The crate is a pure core and one thin shell. The core has no clock, no socket and no task: time and
//! bytes enter as arguments. The shell, behind the feature `speaker`, adds tokio.
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
