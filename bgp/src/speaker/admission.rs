//! How many connections of others may be open that are no session: one that has said nothing yet,
//! one that waits for its OPEN, one that gets its last octets.
//!
//! Each costs a file and some memory, and whoever has a peer's address can open them. A ticket goes
//! with each and is given back when the connection ends or its session is established.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of one peer. One that follows the rules has two: what it dials, and an earlier one
/// that is about to end.
const PER_PEER: usize = 8;
/// Connections of all peers together: more than the kernel keeps for us while a whole cluster dials
/// in the same moment.
const IN_ALL: usize = 4096;

/// The bound of all peers together.
#[derive(Clone, Debug)]
pub(super) struct Admission(Arc<Semaphore>);

/// The bound of one peer.
#[derive(Clone, Debug)]
pub(super) struct PeerAdmission(Arc<Semaphore>);

/// One connection may be open. It is given back by dropping it.
#[derive(Debug)]
pub struct Ticket {
    _of_peer: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Why a connection may not be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The peer has too many.
    #[error("{PER_PEER} connections of the peer are open that are no session")]
    OfPeer,
    /// All together have too many.
    #[error("{IN_ALL} connections are open that are no session")]
    OfAll,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(IN_ALL)))
    }

    /// # Errors
    /// Which bound is reached.
    pub(super) fn admit(&self, peer: &PeerAdmission) -> Result<Ticket, Refusal> {
        let of_peer = peer.0.clone().try_acquire_owned();
        let of_peer = of_peer.map_err(|_| Refusal::OfPeer)?;
        let of_all = self.0.clone().try_acquire_owned();
        let of_all = of_all.map_err(|_| Refusal::OfAll)?;
        Ok(Ticket {
            _of_peer: of_peer,
            _of_all: of_all,
        })
    }
}

impl PeerAdmission {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(PER_PEER)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn connections_are_bounded_by_peer_and_in_all() {
        let all = Admission::new();
        let one = PeerAdmission::new();
        let mut tickets: Vec<Ticket> = (0..PER_PEER).map(|_| all.admit(&one).unwrap()).collect();
        assert_eq!(all.admit(&one).unwrap_err(), Refusal::OfPeer);
        let other = PeerAdmission::new();
        drop(all.admit(&other).unwrap());
        tickets.pop();
        tickets.push(all.admit(&one).unwrap());
        let peers: Vec<PeerAdmission> = (0..IN_ALL / PER_PEER)
            .map(|_| PeerAdmission::new())
            .collect();
        let admitted = peers
            .iter()
            .flat_map(|peer| (0..PER_PEER).map(|_| all.admit(peer)))
            .filter_map(Result::ok);
        tickets.extend(admitted);
        assert_eq!(tickets.len(), IN_ALL);
        assert_eq!(all.admit(&other).unwrap_err(), Refusal::OfAll);
        tickets.clear();
        assert!(all.admit(&other).is_ok());
    }
}
