//! Whole speakers over TCP on loopback addresses, as they run in production: real sockets, real
//! timers, several tasks. Nothing here touches the kernel's tables.
#![cfg(feature = "speaker")]
#![allow(clippy::unwrap_used)]

mod bfd;
mod bmp;
mod families;
mod interop;
mod mesh;
mod net;
mod options;
