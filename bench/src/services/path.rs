//! What a client waits for: TCP connections from one pod to another, one after the other, to its
//! address and to a service's, by turns.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use caracal_lab::run_in_netns;

use crate::report;

/// Turns of each way.
const TURNS: usize = 31;
/// Connections of a turn.
const CONNECTIONS: usize = 300;

/// Connections of one way.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Of each: from the call until it was established. Its packets are the first of their flow.
    established: Vec<Duration>,
    /// Of each turn: from the first call to the last close.
    turns: Vec<Duration>,
}

impl Way {
    /// A percentile.
    pub(super) fn established(&self, percent: usize) -> Duration {
        let mut times = self.established.clone();
        times.sort_unstable();
        let index = times.len().saturating_sub(1) * percent / 100;
        times.get(index).copied().unwrap_or_default()
    }

    /// Connections in a second, in the median of the turns.
    pub(super) fn per_second(&self) -> f64 {
        let turn = report::median(self.turns.clone()).unwrap_or_default();
        CONNECTIONS as f64 / turn.as_secs_f64()
    }
}

/// Connects from a pod's namespace to a server in another one, which listens at `direct`; `vip` is
/// translated to it.
pub(super) fn compare(
    client: &str,
    server: &str,
    direct: SocketAddr,
    vip: SocketAddr,
) -> Result<[Way; 2]> {
    let listener = run_in_netns(server, || TcpListener::bind(direct))??;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok((mut connection, _)) = listener.accept() {
                    // The client counts what fails.
                    let _sent = connection.write_all(b".");
                }
            }
        });
        let ways = run_in_netns(client, || -> Result<[Way; 2]> {
            let mut ways = [Way::default(), Way::default()];
            // Neighbours and caches are found once.
            connect(direct)?;
            connect(vip)?;
            for turn in 0..TURNS {
                let mut order = [(0, direct), (1, vip)];
                order.rotate_left(turn % 2);
                for (way, to) in order {
                    let way = &mut ways[way];
                    let begun = Instant::now();
                    for _ in 0..CONNECTIONS {
                        way.established.push(connect(to)?);
                    }
                    way.turns.push(begun.elapsed());
                }
            }
            Ok(ways)
        });
        stop.store(true, Ordering::Relaxed);
        // Wakes the server for the last time.
        let _woken = run_in_netns(client, || connect(direct))?;
        ways?
    })
}

/// One connection with an octet of the server, so that it keeps up. Ends with a reset: no port
/// waits.
fn connect(to: SocketAddr) -> Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    let established = begun.elapsed();
    stream.read_exact(&mut [0])?;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(established)
}
