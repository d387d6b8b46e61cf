//! Ends this process's own TCP connections whose local address no interface carries any more: to etcd and to peers. Nothing
//! can arrive on them, and without this only their keepalives would notice, many seconds later. Sockets of other processes
//! are never touched.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::dataplane::AgentStatus;
use caracal_agent::links::Links;
use socket2::{SockRef, Type};
use tokio::sync::watch;

/// An address that comes back within this time was not gone: a change of address is a deletion and an addition.
const SETTLE: Duration = Duration::from_millis(500);

/// Looks whenever the interfaces have changed, for ever.
pub(super) async fn keep(mut kernel: watch::Receiver<Arc<AgentStatus>>) {
    let mut before = BTreeSet::new();
    loop {
        let now = addresses(&kernel.borrow_and_update().links);
        if before.difference(&now).next().is_some() {
            tokio::time::sleep(SETTLE).await;
            // Read anew: the agent may be resting.
            match caracal_agent::dataplane::links().await {
                Ok(links) => end(&addresses(&links)),
                Err(error) => tracing::warn!(%error, "cannot read the interfaces"),
            }
        }
        before = now;
        if kernel.changed().await.is_err() {
            return;
        }
    }
}

fn addresses(links: &Links) -> BTreeSet<IpAddr> {
    let all = links.iter().flat_map(|link| &link.addresses);
    all.map(|cidr| cidr.address).collect()
}

fn end(there: &BTreeSet<IpAddr>) {
    for (local, peer) in shut_down(|address| !there.contains(&address)) {
        tracing::info!(%local, %peer, "connection ended: its own address is gone");
    }
}

/// Shuts down the connections from addresses that are gone; tells both ends of each.
fn shut_down(is_gone: impl Fn(IpAddr) -> bool) -> Vec<(IpAddr, IpAddr)> {
    let descriptors = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers = descriptors
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut ended = Vec::new();
    // First all numbers: the folder's own descriptor is among them.
    for number in numbers.collect::<Vec<RawFd>>() {
        let Some(socket) = duplicate(number) else {
            continue;
        };
        let socket = SockRef::from(&socket);
        let ends = [socket.local_addr(), socket.peer_addr()].map(|end| {
            let address = end.ok()?.as_socket()?.ip();
            Some(address.to_canonical())
        });
        let [Some(local), Some(peer)] = ends else {
            continue;
        };
        if socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
            && !local.is_loopback()
            && is_gone(local)
            && socket.shutdown(std::net::Shutdown::Both).is_ok()
        {
            ended.push((local, peer));
        }
    }
    ended
}

/// Another descriptor of the same open file, so that the number may be closed and used anew meanwhile.
#[allow(unsafe_code, reason = "the descriptor is another task's")]
fn duplicate(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow lasts for one system call, which answers EBADF when the number is closed by then; whatever file it
    // is, nothing is done to it but that it is duplicated.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_connections_from_addresses_that_are_gone_end() {
        // Not loopback, as far as the check goes, would need a namespace: the machine's own first address is asked instead.
        let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if probe.connect("192.0.2.1:9").is_err() {
            return;
        }
        let own = probe.local_addr().unwrap().ip();
        let listener = TcpListener::bind((own, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(shut_down(|_| false), []);
        // Both ends are in this process and have this address; others' tests may have more of them.
        let ended = shut_down(|address| address == own);
        assert!(ended.len() >= 2, "{ended:?}");
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(server);
        // The listener lives on.
        assert!(TcpStream::connect(listener.local_addr().unwrap()).is_ok());
    }
}
