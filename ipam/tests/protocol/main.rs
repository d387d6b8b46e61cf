//! The IPAM protocol, as one program: machines one at a time and in every interleaving, beside
//! Calico's and the collector, on models and on real datastores.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "modules of one test program"
)]

mod assign;
mod calico;
#[cfg(feature = "client")]
mod client;
mod collector;
#[cfg(feature = "client")]
mod crash_points;
mod histories;
mod interleavings;
mod ordered;
#[cfg(feature = "client")]
mod race;
mod release;
#[cfg(feature = "client")]
mod replay;
mod take_block;
#[cfg(feature = "client")]
mod tools;
mod tunnel;
mod uses;
mod world;
