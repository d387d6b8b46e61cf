//! The relay of the backend `udp`: a TUN device with several queues, and for each queue a thread
//! that passes packets on, both ways. What becomes of a packet is decided in `caracal-flannel`.
//!
//! The threads have nothing to do with the runtime: it has one thread, and packets do not wait for
//! leases. A table of leases is a snapshot that they look at when packets come.

mod counters;
mod queue;
mod socket;
mod tun;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use caracal_agent::FLANNEL_TUN_DEVICE;
use caracal_flannel::{FlannelState, RelayTable, plan_relay};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use crate::http::exposition::{MetricFamily, MetricKind};
use crate::metrics;
use counters::RelayCounters;
use queue::Queue;
use socket::RelaySocket;

/// Pauses between attempts to make the device: from the first, doubled up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A machine that has nothing but this backend has few cores; each queue has 1.3 MB of buffers.
const MOST_QUEUES: usize = 8;

/// The threads. When it is dropped they end, and the device is gone.
pub(super) struct Relay {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    observed: RelayObserver,
}

/// What can be seen of a relay.
#[derive(Clone)]
pub(super) struct RelayObserver {
    up: watch::Receiver<bool>,
    tables: watch::Receiver<Arc<RelayTable>>,
    counters: Arc<RelayCounters>,
}

impl RelayObserver {
    /// True for one of the same relay.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.counters, &other.counters)
    }

    /// Resolves when the device has come or gone.
    pub(super) async fn turned(&mut self) {
        if self.up.changed().await.is_err() {
            // Its thread has ended.
            std::future::pending().await
        }
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let gauge = |name, help, value: usize| {
            MetricFamily::new(name, MetricKind::Gauge, help).value(metrics::count(value))
        };
        let mut families = vec![
            gauge(
                "caracal_flannel_relay_up",
                "1 while the relay has its device and its sockets.",
                usize::from(*self.up.borrow()),
            ),
            gauge(
                "caracal_flannel_relay_subnets",
                "Subnets of other nodes that the relay sends to.",
                self.tables.borrow().subnets(),
            ),
        ];
        families.extend(self.counters.families());
        families
    }
}

impl Relay {
    /// Starts the threads in the calling thread's network namespace, with sockets of these
    /// addresses. The leases must have been heard, so that nobody is told that a subnet is nobody's
    /// which is somebody's.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(
        addresses: Vec<SocketAddr>,
        states: watch::Receiver<Arc<FlannelState>>,
    ) -> anyhow::Result<Self> {
        let (stop, stopped) = UnixStream::pair().context("making a pair of sockets")?;
        let (up_sender, up) = watch::channel(false);
        let tables = follow(states);
        let counters = Arc::<RelayCounters>::default();
        let keeper = Keeper {
            addresses: addresses.clone(),
            queues: thread::available_parallelism().map_or(1, |n| n.get().min(MOST_QUEUES)),
            stopped,
            up: up_sender,
            tables: tables.clone(),
            counters: Arc::clone(&counters),
        };
        let thread = thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || keeper.run())
            .context("starting the relay's thread")?;
        Ok(Self {
            stop,
            thread: Some(thread),
            addresses,
            observed: RelayObserver {
                up,
                tables,
                counters,
            },
        })
    }

    /// Addresses of its sockets.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// True while it has its device and its sockets.
    pub(super) fn is_up(&self) -> bool {
        *self.observed.up.borrow()
    }

    /// What it is now is known: who waits from here on hears of what comes after. Without this
    /// whoever waits would be told of the same again and again.
    pub(super) fn look(&mut self) {
        self.observed.up.mark_unchanged();
    }

    /// Where it is looked at.
    pub(super) fn observer(&self) -> RelayObserver {
        self.observed.clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _stopped = self.stop.shutdown(std::net::Shutdown::Both);
        let ended = self.thread.take().map(JoinHandle::join);
        tracing::info!("{FLANNEL_TUN_DEVICE} goes with its relay");
        if let Some(Err(_)) = ended {
            tracing::error!("the relay's thread has panicked");
        }
    }
}

/// The table of the leases, as they change.
fn follow(mut states: watch::Receiver<Arc<FlannelState>>) -> watch::Receiver<Arc<RelayTable>> {
    let table = |state: &FlannelState| plan_relay(&state.network, &state.view);
    let (sender, receiver) = watch::channel(Arc::new(table(&states.borrow_and_update())));
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                // The relay has ended.
                () = sender.closed() => return,
            }
            let state = Arc::clone(&states.borrow_and_update());
            let newer = table(&state);
            sender.send_if_modified(|known| {
                let next = known.follow(newer, state.view.settled);
                let is_other = **known != next;
                if is_other {
                    tracing::info!(subnets = next.subnets(), "the relay's table has changed");
                    *known = Arc::new(next);
                }
                is_other
            });
        }
    });
    receiver
}

/// The thread that makes the device, whenever it is not there.
struct Keeper {
    addresses: Vec<SocketAddr>,
    queues: usize,
    stopped: UnixStream,
    up: watch::Sender<bool>,
    tables: watch::Receiver<Arc<RelayTable>>,
    counters: Arc<RelayCounters>,
}

impl Keeper {
    fn run(self) {
        let mut pause = PAUSES.0;
        let mut told = String::new();
        loop {
            match self.open() {
                Ok(queues) => {
                    tracing::info!(
                        queues = queues.len(),
                        "{FLANNEL_TUN_DEVICE} is there, and relays to and from {:?}",
                        self.addresses
                    );
                    self.up.send_replace(true);
                    let ended = self.relay(queues);
                    self.up.send_replace(false);
                    match ended {
                        Ok(()) => return,
                        Err(error) => {
                            tracing::warn!(%error, "{FLANNEL_TUN_DEVICE} is gone; it is made again");
                        }
                    }
                    (pause, told) = (PAUSES.0, String::new());
                }
                Err(error) => {
                    let reason = format!("{error:#}");
                    if reason != told {
                        tracing::error!(%reason, "no relay: nothing reaches other nodes; tried again");
                        told = reason;
                    }
                }
            }
            if self.is_stopped_within(pause) {
                return;
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sockets first: without them the device would swallow packets.
    fn open(&self) -> anyhow::Result<Vec<Queue>> {
        let mut sockets: Vec<Vec<RelaySocket>> = (0..self.queues).map(|_| Vec::new()).collect();
        for address in &self.addresses {
            let bound = RelaySocket::bind(*address, self.queues).with_context(|| {
                format!("UDP port {address} cannot be had; if it is in use, end the flanneld or the other Caracal that has it")
            })?;
            for (queue, socket) in sockets.iter_mut().zip(bound) {
                queue.push(socket);
            }
        }
        let devices = tun::open_queues(FLANNEL_TUN_DEVICE, self.queues)
            .map_err(|error| anyhow::Error::new(error).context(device_advice()))?;
        let queue = |(device, sockets): (File, Vec<RelaySocket>)| {
            let counters = Arc::clone(&self.counters);
            Queue::new(device, sockets, self.tables.clone(), counters)
        };
        Ok(devices.into_iter().zip(sockets).map(queue).collect())
    }

    /// Relays until it is stopped.
    ///
    /// # Errors
    /// The device is gone, or a thread was not to be had.
    fn relay(&self, queues: Vec<Queue>) -> io::Result<()> {
        let (end, ended) = UnixStream::pair()?;
        let (end, ended) = (&end, &ended);
        thread::scope(|scope| {
            let work = |queue: Queue| {
                let outcome = queue.run(&[&self.stopped, ended]);
                // One that ends takes the others along.
                end.shutdown(std::net::Shutdown::Both)?;
                outcome
            };
            let start = |(place, queue)| {
                let name = format!("relay-{place}");
                let started = thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, move || work(queue));
                if started.is_err() {
                    end.shutdown(std::net::Shutdown::Both)?;
                }
                started
            };
            let threads: Vec<_> = queues.into_iter().enumerate().map(start).collect();
            let mut outcome = Ok(());
            for thread in threads {
                let ended = thread.and_then(|thread| {
                    let panicked = |_| Err(io::Error::other("a thread of the relay has panicked"));
                    thread.join().unwrap_or_else(panicked)
                });
                outcome = outcome.and(ended);
            }
            outcome
        })
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO);
        let mut waited = [PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, timeout) {
            Ok(number) => number > 0,
            Err(Errno::EINTR) => false,
            Err(error) => {
                tracing::error!(%error, "the relay cannot wait, and ends");
                true
            }
        }
    }
}

fn device_advice() -> String {
    format!(
        "the TUN device {FLANNEL_TUN_DEVICE} cannot be made; if there is one, end the flanneld that has it or `ip link delete {FLANNEL_TUN_DEVICE}`; else {} has to be there (module tun), and CAP_NET_ADMIN",
        tun::CLONE
    )
}
