//! The loss counter: numbered UDP datagrams between two namespaces, a thousand and more per second,
//! and an account of every number that did not arrive.
//!
//! The sender is paced by the clock: after a pause it sends everything that is due, so the number
//! of datagrams depends on the time only. What the receiver's own queue dropped is reported apart,
//! so that a busy machine is never taken for a lossy network.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::netns::{self, NetnsError};
use crate::wait::scaled;

/// Room for about ten seconds of datagrams at 1000 per second.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Datagrams that a sender makes up for at once when it was not scheduled: a burst of a thousand
/// would overflow queues of the kernel's (`net.core.netdev_max_backlog`), and no network is to
/// blame for that.
const MADE_UP: u32 = 50;
/// Limit for the last datagrams.
const DRAIN: Duration = Duration::from_secs(5);
/// Gaps listed one by one in [`Loss`].
const MAX_GAPS: usize = 100;
const MAX_PAYLOAD: usize = 1400;
const HEADER: usize = 16;

/// Why a probe does not start.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A network namespace cannot be entered or changed.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A socket cannot be made or used.
    #[error("cannot open a UDP socket in network namespace {netns}")]
    Socket {
        /// Name of the network namespace.
        netns: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// Stream of datagrams between two namespaces.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Namespace of the sender.
    pub from: String,
    /// Namespace of the receiver.
    pub to: String,
    /// An address of the receiver.
    pub address: IpAddr,
    /// Datagrams per second.
    pub rate: u32,
    /// Octets of payload, 16 to 1400.
    pub size: usize,
}

/// A run of numbers that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The first number lost.
    pub first: u64,
    /// Number of datagrams in a row.
    pub count: u64,
    /// Time in which the sender sent them.
    pub duration: Duration,
}

/// Account of a stream: what was sent and what arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Number of datagrams sent.
    pub sent: u64,
    /// Different datagrams that arrived.
    pub received: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Of the lost ones, those the receiver's own socket dropped as it was not read fast enough.
    pub overflowed: u64,
    /// Arrivals of a datagram that had arrived before.
    pub duplicated: u64,
    /// Arrivals after a higher number.
    pub reordered: u64,
    /// Sends that the sender's own kernel refused (no route, for example); they count as sent and
    /// lost.
    pub refused: u64,
    /// Why the last one was refused.
    pub refusal: Option<String>,
    /// From the first to the last send.
    pub duration: Duration,
    /// Longest time without a datagram.
    pub longest_gap: Option<Gap>,
    /// The first hundred gaps, in order.
    pub gaps: Vec<Gap>,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            sent,
            received,
            lost,
            duration,
            ..
        } = self;
        write!(
            f,
            "{sent} sent in {:.1} s, {received} received, {lost} lost",
            duration.as_secs_f64()
        )?;
        if let Some(gap) = self.longest_gap {
            write!(
                f,
                " (longest gap {} datagrams, {} ms, from number {})",
                gap.count,
                gap.duration.as_millis(),
                gap.first
            )?;
        }
        for (count, what) in [
            (self.overflowed, "dropped by the receiver's own queue"),
            (self.duplicated, "duplicated"),
            (self.reordered, "reordered"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if let Some(refusal) = &self.refusal {
            write!(
                f,
                ", {} refused by the sender's kernel ({refusal})",
                self.refused
            )?;
        }
        Ok(())
    }
}

/// Counters that both threads and the owner see.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Set by the owner once the sender has ended.
    expected: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

/// A probe that runs.
pub struct Probe {
    shared: Arc<Shared>,
    sender: JoinHandle<Sent>,
    receiver: JoinHandle<Arrivals>,
    socket: UdpSocket,
    stream: Stream,
}

struct Sent {
    count: u64,
    refused: u64,
    refusal: Option<String>,
    duration: Duration,
}

impl Probe {
    /// Opens the sockets and starts to send.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn start(stream: Stream) -> Result<Self, ProbeError> {
        let any: SocketAddr = match stream.address {
            IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            IpAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let open = |netns: &str| {
            let failed = |source| ProbeError::Socket {
                netns: netns.to_owned(),
                source,
            };
            netns::run(netns, || UdpSocket::bind(any))?.map_err(failed)
        };
        let socket = open(&stream.to)?;
        widen(&socket);
        let outgoing = open(&stream.from)?;
        let failed = |source| ProbeError::Socket {
            netns: stream.to.clone(),
            source,
        };
        let incoming = socket.try_clone().map_err(failed)?;
        incoming
            .set_read_timeout(Some(Duration::from_millis(20)))
            .map_err(failed)?;
        let target = SocketAddr::new(stream.address, socket.local_addr().map_err(failed)?.port());
        // Tells this probe's datagrams from anybody else's.
        let token = token();
        let shared = Arc::new(Shared {
            expected: AtomicU64::new(UNKNOWN),
            ..Shared::default()
        });
        let receiver = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || receive(&incoming, token, &shared))
        };
        let sender = {
            let shared = Arc::clone(&shared);
            let interval = Duration::from_secs(1) / stream.rate.max(1);
            let size = stream.size.clamp(HEADER, MAX_PAYLOAD);
            std::thread::spawn(move || send(&outgoing, target, token, size, interval, &shared))
        };
        Ok(Self {
            shared,
            sender,
            receiver,
            socket,
            stream,
        })
    }

    /// Datagrams sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Datagrams received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Stops sending, waits for what is under way, and gives the account.
    #[must_use]
    pub fn stop(self) -> Loss {
        self.shared.stop.store(true, Ordering::Relaxed);
        let sent = join(self.sender);
        self.shared.expected.store(sent.count, Ordering::Relaxed);
        let arrivals = join(self.receiver);
        let overflowed = overflowed(&self.stream.to, &self.socket);
        let interval = Duration::from_secs(1) / self.stream.rate.max(1);
        let mut gaps = arrivals.gaps(sent.count, interval);
        let longest_gap = gaps.iter().max_by_key(|g| g.count).copied();
        gaps.truncate(MAX_GAPS);
        Loss {
            sent: sent.count,
            received: arrivals.distinct,
            lost: sent.count - arrivals.distinct,
            overflowed,
            duplicated: arrivals.duplicated,
            reordered: arrivals.reordered,
            refused: sent.refused,
            refusal: sent.refusal,
            duration: sent.duration,
            longest_gap,
            gaps,
        }
    }
}

fn join<T>(thread: JoinHandle<T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn token() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A large receive queue, beyond the machine's limit where we may.
fn widen(socket: &UdpSocket) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        // Overflow is counted, so a small queue is no lie.
        let _ = sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER);
    }
}

fn send(
    socket: &UdpSocket,
    target: SocketAddr,
    token: u64,
    size: usize,
    interval: Duration,
    shared: &Shared,
) -> Sent {
    let mut payload = vec![0; size];
    payload[..8].copy_from_slice(&token.to_be_bytes());
    let start = Instant::now();
    let mut sent = Sent {
        count: 0,
        refused: 0,
        refusal: None,
        duration: Duration::ZERO,
    };
    let mut due = Duration::ZERO;
    while !shared.stop.load(Ordering::Relaxed) {
        let now = start.elapsed();
        if now < due {
            std::thread::sleep(due - now);
        } else {
            due = due.max(now.saturating_sub(interval * MADE_UP));
        }
        payload[8..16].copy_from_slice(&sent.count.to_be_bytes());
        if let Err(error) = socket.send_to(&payload, target) {
            sent.refused += 1;
            sent.refusal = Some(error.to_string());
        }
        sent.count += 1;
        shared.sent.store(sent.count, Ordering::Relaxed);
        due += interval;
    }
    sent.duration = start.elapsed();
    sent
}

fn receive(socket: &UdpSocket, token: u64, shared: &Shared) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let mut buffer = [0; 2048];
    let mut last = Instant::now();
    loop {
        match socket.recv(&mut buffer) {
            Ok(n) if n >= HEADER && buffer[..8] == token.to_be_bytes() => {
                let number = buffer[8..16].try_into().map(u64::from_be_bytes);
                arrivals.add(number.expect("invariant: eight octets"));
                shared.received.store(arrivals.distinct, Ordering::Relaxed);
                last = Instant::now();
            }
            // Somebody else's datagram, or the read timeout.
            _ => {}
        }
        let expected = shared.expected.load(Ordering::Relaxed);
        if expected != UNKNOWN && (arrivals.distinct >= expected || last.elapsed() > scaled(DRAIN))
        {
            return arrivals;
        }
    }
}

/// Numbers of the datagrams that arrived.
#[derive(Default)]
struct Arrivals {
    /// One bit per number.
    seen: Vec<u64>,
    distinct: u64,
    duplicated: u64,
    reordered: u64,
    highest: Option<u64>,
}

impl Arrivals {
    fn place(number: u64) -> (usize, u64) {
        let word = usize::try_from(number / 64).expect("invariant: numbers are counted in memory");
        (word, 1 << (number % 64))
    }

    fn add(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            self.duplicated += 1;
            return;
        }
        self.seen[word] |= bit;
        self.distinct += 1;
        if self.highest.is_some_and(|highest| number < highest) {
            self.reordered += 1;
        } else {
            self.highest = Some(number);
        }
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.seen.get(word).is_some_and(|w| w & bit != 0)
    }

    fn gaps(&self, sent: u64, interval: Duration) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = Vec::new();
        for number in (0..sent).filter(|n| !self.has(*n)) {
            match gaps.last_mut() {
                Some(gap) if gap.first + gap.count == number => gap.count += 1,
                _ => gaps.push(Gap {
                    first: number,
                    count: 1,
                    duration: Duration::ZERO,
                }),
            }
        }
        for gap in &mut gaps {
            let nanos = interval.as_nanos().saturating_mul(u128::from(gap.count));
            gap.duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
        gaps
    }
}

/// The last column of `/proc/net/udp`: what the kernel dropped as our queue was full.
fn overflowed(netns: &str, socket: &UdpSocket) -> u64 {
    let Ok(port) = socket.local_addr().map(|a| a.port()) else {
        return 0;
    };
    let table = if socket.local_addr().is_ok_and(|a| a.is_ipv6()) {
        "udp6"
    } else {
        "udp"
    };
    let path = format!("/proc/thread-self/net/{table}");
    let text = netns::run(netns, || std::fs::read_to_string(path))
        .ok()
        .and_then(Result::ok);
    text.as_deref().and_then(|t| drops(t, port)).unwrap_or(0)
}

fn drops(table: &str, port: u16) -> Option<u64> {
    let wanted = format!(":{port:04X}");
    let line = table.lines().skip(1).find(|l| {
        l.split_ascii_whitespace()
            .nth(1)
            .is_some_and(|a| a.ends_with(&wanted))
    })?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_accounted_for() {
        let mut arrivals = Arrivals::default();
        for number in [0, 1, 5, 4, 4, 70, 71] {
            arrivals.add(number);
        }
        assert_eq!(
            (arrivals.distinct, arrivals.duplicated, arrivals.reordered),
            (6, 1, 1)
        );
        let gaps = arrivals.gaps(75, Duration::from_millis(1));
        let spans: Vec<_> = gaps.iter().map(|g| (g.first, g.count)).collect();
        assert_eq!(spans, [(2, 2), (6, 64), (72, 3)]);
        assert_eq!(gaps[1].duration, Duration::from_millis(64));
    }

    #[test]
    fn queue_drops_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             1: 00000000:9C40 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 17\n";
        assert_eq!(drops(table, 40000), Some(17));
        assert_eq!(drops(table, 40001), None);
    }
}
