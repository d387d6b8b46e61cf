//! Bidirectional Forwarding Detection (RFC 5880): is the other end there, asked several times a
//! second.
//!
//! A core like that of BGP: packets and the time come in as arguments, packets and events come out.
//! It never reads a clock or a socket, and draws no random number but from its seed. Asynchronous
//! mode without echo and without authentication; single hop (RFC 5881) and multihop (RFC 5883)
//! differ in ports and in the TTL check, which are the shell's.

mod packet;
mod session;

pub use packet::{BfdDiagnostic, BfdPacket, BfdPacketError, BfdState};
pub use session::{BfdEvent, BfdSession, BfdTimers};

#[cfg(test)]
mod tests;
