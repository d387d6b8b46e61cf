//! The codec: octets to messages and back.
//!
//! It must never panic, read past its input or keep state between messages.
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

pub mod update;
