//! The connections that are open, and which of them has to go when there are too many.
//!
//! A new connection is always taken: one that is refused may be the only honest one. The client
//! that holds the most connections loses its oldest, so that a client with many connections takes
//! them from itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use tokio::task::AbortHandle;

/// Connections at a time.
pub(super) const CONNECTIONS: usize = 64;

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Slots {
    open: Vec<(IpAddr, AbortHandle)>,
}

impl Slots {
    /// Makes room for one more connection.
    pub(super) fn free_slot(&mut self, client: IpAddr) {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() < CONNECTIONS {
            return;
        }
        let clients: Vec<IpAddr> = self.open.iter().map(|(client, _)| *client).collect();
        if let Some(at) = victim(&clients, network(client)) {
            let (loser, task) = self.open.remove(at);
            tracing::debug!(client = %loser, "too many HTTP connections; its oldest is closed");
            task.abort();
        }
    }

    /// Remembers a connection by its client and the task that serves it.
    pub(super) fn add(&mut self, client: IpAddr, task: AbortHandle) {
        self.open.push((network(client), task));
    }
}

/// Position of the connection that has to go for one of `newcomer`: the oldest of the client with
/// the most connections, the new one counted; among several of those the one whose oldest is the
/// oldest.
fn victim(clients: &[IpAddr], newcomer: IpAddr) -> Option<usize> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::from([(newcomer, 1)]);
    for client in clients {
        *counts.entry(*client).or_default() += 1;
    }
    let most = clients.iter().map(|client| counts[client]).max()?;
    clients.iter().position(|client| counts[client] == most)
}

/// A client of IPv6 has 2^64 addresses at hand: its network counts.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|t| network(t.parse().unwrap())).collect()
    }

    fn loser(open: &[&str], newcomer: &str) -> Option<usize> {
        victim(&of(open), of(&[newcomer])[0])
    }

    #[test]
    fn who_holds_most_loses_its_oldest() {
        let open = ["10.0.0.1", "10.0.0.9", "10.0.0.9", "10.0.0.2"];
        assert_eq!(loser(&open, "10.0.0.3"), Some(1));
        assert_eq!(loser(&open, "10.0.0.9"), Some(1));
        assert_eq!(loser(&["10.0.0.1", "10.0.0.2"], "10.0.0.2"), Some(1));
        assert_eq!(loser(&["10.0.0.1", "10.0.0.2"], "10.0.0.3"), Some(0));
        assert_eq!(loser(&[], "10.0.0.3"), None);
        let one_network = ["10.0.0.1", "2001:db8::1", "2001:db8::2"];
        assert_eq!(loser(&one_network, "10.0.0.3"), Some(1));
        assert_eq!(
            loser(&["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"], "10.0.0.1"),
            Some(0)
        );
    }
}
