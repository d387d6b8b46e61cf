//! A router's end of the protocol by which a validator tells it who may originate what (RPKI to
//! router: RFC 8210, version 1; RFC 6810, version 0).
//!
//! | module | what it is |
//! |---|---|
//! | `pdu` | octets to protocol data units and back |
//! | `session` | one router's end as a state machine, and the entries that it holds |
//! | `client` | the shell: a connection, times, and who is told of new entries |
//!
//! A state machine has neither clock nor socket. What was agreed stays over lost connections until
//! it expires; a new set takes its place at once, and never in parts.

mod client;
mod pdu;
mod session;

pub(super) use client::{RtrHandle, RtrState, RtrStatus};
