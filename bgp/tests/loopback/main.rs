//! Speakers over real TCP on loopback addresses: two whole speakers, and a speaker's session
//! against a peer that the test plays octet by octet.
#![cfg(feature = "speaker")]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, unreachable_pub)]

mod played;
mod sockets;
mod speakers;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// Enough for a loaded machine; every wait ends as soon as its condition holds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Asks until the answer is good. On failure the last answer is shown.
async fn wait_for<T: std::fmt::Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    good: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        let answer = ask().await;
        if good(&answer) {
            return answer;
        }
        assert!(
            Instant::now() < end,
            "{what}: not within {DEADLINE:?}; last seen {answer:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A loopback address of its own for each end of each test.
const fn loopback(test: u8, end: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(127, 64, test, end))
}

/// A port that is free on all of these addresses.
fn free_port(addresses: &[IpAddr]) -> u16 {
    loop {
        let first = TcpListener::bind(SocketAddr::new(addresses[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let others = addresses[1..]
            .iter()
            .map(|address| TcpListener::bind((*address, port)));
        if others.collect::<Result<Vec<_>, _>>().is_ok() {
            return port;
        }
    }
}
