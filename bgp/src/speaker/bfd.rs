//! BFD's shell: one thread of its own with all sessions, so that nothing the routing tasks do
//! delays a packet.
//!
//! The caller sets all targets at once, and the thread publishes the state of all targets at once:
//! latest wins in both directions, and neither side waits for the other.

mod socket;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use super::log_limit::{LogKind, LogLimit, summarise_peers};
use super::message::PeerKey;
use crate::bfd::{BfdEvent, BfdPacket, BfdSession, BfdState, BfdTimers};
use crate::config::BfdOptions;
use crate::types::PeerName;
use socket::{Receiver, Sender, poll};

/// Sleep of the thread when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
/// Pause before a socket that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Target of a BFD session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdTarget {
    /// The peer's label, for the log.
    pub name: PeerName,
    /// Local address, from which packets leave.
    pub local: IpAddr,
    /// Address of the other end.
    pub remote: IpAddr,
    /// Not on a common link: RFC 5883 instead of 5881.
    pub multihop: bool,
    /// Intervals and multiplier as configured.
    pub options: BfdOptions,
}

/// State of the BFD session with a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdStatus {
    /// `Up`, `Down`, `Init`; or why there is no session.
    pub state: String,
    /// Number of times that it went down.
    pub downs: u64,
    /// Diagnostic of the last time that it went down.
    pub diagnostic: Option<String>,
    /// The other end's BFD outlives its control plane (C bit of its last packets before that).
    pub control_plane_independent: bool,
}

type Targets = BTreeMap<PeerKey, BfdTarget>;
type BfdStatuses = BTreeMap<PeerKey, BfdStatus>;

/// Handle of the BFD thread. When it is dropped the thread ends and sends no AdminDown.
#[derive(Debug)]
pub struct BfdHandle {
    wanted: Arc<Mutex<Targets>>,
    wake: UnixStream,
    seen: watch::Receiver<BfdStatuses>,
}

impl BfdHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system call failed.
    pub fn spawn() -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let wanted = Arc::<Mutex<Targets>>::default();
        let (publish, seen) = watch::channel(BfdStatuses::new());
        let thread = Thread {
            wanted: wanted.clone(),
            woken,
            publish,
            sessions: BTreeMap::new(),
            receivers: HashMap::new(),
            random: RandomState::new(),
            created: 0,
            log: LogLimit::default(),
        };
        std::thread::Builder::new()
            .name("bfd".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self { wanted, wake, seen })
    }

    /// Watches these from now on, and nobody else.
    pub fn set(&self, targets: Targets) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = targets;
        // A full socket has a wake-up pending.
        let _ = (&self.wake).write(&[1]);
    }

    /// Published state of all targets.
    #[must_use]
    pub fn seen(&self) -> watch::Receiver<BfdStatuses> {
        self.seen.clone()
    }
}

/// One target with its session.
struct Watched {
    target: BfdTarget,
    session: BfdSession,
    sender: Option<Sender>,
    /// Time at which opening the sockets is tried again.
    retry: Option<Instant>,
    seen: BfdStatus,
}

struct Thread {
    wanted: Arc<Mutex<Targets>>,
    woken: UnixStream,
    publish: watch::Sender<BfdStatuses>,
    sessions: BTreeMap<PeerKey, Watched>,
    /// By our address and multihop.
    receivers: HashMap<(IpAddr, bool), Receiver>,
    /// Keys differ from process to process: discriminators and ports cannot be guessed from afar.
    random: RandomState,
    created: u64,
    log: LogLimit<(PeerName, LogKind)>,
}

impl Thread {
    fn run(mut self) {
        loop {
            self.follow();
            let now = Instant::now();
            let due = self.work(now);
            self.publish();
            let timeout = due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
            let sockets = self.receivers.values().map(Receiver::socket);
            if let Err(error) = poll(&self.woken, sockets, timeout) {
                warn!(%error, "BFD cannot wait for packets");
                std::thread::sleep(RETRY);
            }
            let mut octets = [0; 64];
            if let Ok(0) = (&self.woken).read(&mut octets) {
                // The handle is gone.
                return;
            }
            self.receive();
        }
    }

    /// Brings the sessions in line with what is wanted. A target with another name is the same.
    fn follow(&mut self) {
        let wanted = self
            .wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let same = |watched: &Watched, target: &BfdTarget| {
            let ends = |target: &BfdTarget| (target.local, target.remote, target.multihop);
            ends(&watched.target) == ends(target)
        };
        self.sessions.retain(|key, watched| {
            let stays = wanted.get(key).is_some_and(|target| same(watched, target));
            if !stays && let Some(sender) = &watched.sender {
                sender.send(&watched.session.farewell());
            }
            stays
        });
        for (key, target) in wanted {
            let timers = BfdTimers {
                interval: target.options.interval,
                multiplier: target.options.multiplier,
            };
            if let Some(watched) = self.sessions.get_mut(&key) {
                watched.session.set_timers(timers);
                watched.target = target;
                continue;
            }
            let now = Instant::now();
            let seed = self.draw();
            let session = BfdSession::new(now, self.discriminator(), timers, seed);
            let watched = Watched {
                target,
                session,
                sender: None,
                retry: Some(now),
                seen: BfdStatus::default(),
            };
            self.sessions.insert(key, watched);
        }
        let sessions = &self.sessions;
        self.receivers.retain(|(local, multihop), _| {
            let uses = |watched: &Watched| {
                watched.target.local == *local && watched.target.multihop == *multihop
            };
            sessions.values().any(uses)
        });
    }

    fn draw(&mut self) -> u64 {
        self.created += 1;
        self.random.hash_one(self.created)
    }

    /// A number that is not 0 and that no session has.
    fn discriminator(&mut self) -> u32 {
        loop {
            let new = u32::try_from(self.draw() >> 32).unwrap_or(1);
            let used = |watched: &Watched| watched.session.discriminator() == new;
            if new != 0 && !self.sessions.values().any(used) {
                return new;
            }
        }
    }

    /// Sends and notes what is due. The result: when something is next.
    fn work(&mut self, now: Instant) -> Option<Instant> {
        summarise_peers(self.log.due(now));
        let mut next: Option<Instant> = None;
        for watched in self.sessions.values_mut() {
            if watched.retry.is_some_and(|due| due <= now) {
                let seed = u64::from(watched.session.discriminator());
                watched.open(now, &mut self.receivers, seed);
            }
            if let Some(event) = watched.session.handle_timeout(now) {
                watched.note(event, now, &mut self.log);
            }
            if let Some(sender) = &watched.sender {
                while let Some(packet) = watched.session.poll(now) {
                    sender.send(&packet);
                }
                watched.seen.state = watched.session.state().to_string();
            }
            let open = watched.sender.is_some();
            let session = watched.session.next_timeout().filter(|_| open);
            let due = session.into_iter().chain(watched.retry).min();
            next = next.into_iter().chain(due).min();
        }
        next.into_iter().chain(self.log.next_timeout()).min()
    }

    /// Takes in all packets that wait.
    fn receive(&mut self) {
        let now = Instant::now();
        let mut buffer = [0; 128];
        for ((local, multihop), receiver) in &self.receivers {
            while let Some((octets, from)) = receiver.receive(&mut buffer) {
                let Ok(packet) = BfdPacket::decode(octets) else {
                    continue;
                };
                let ours = self.sessions.values_mut().find(|watched| {
                    let target = &watched.target;
                    let known = packet.your_discriminator;
                    // RFC 5880 §6.8.6, RFC 5881 §4: by our number, which must come from where it
                    // belongs; the first packets by their addresses.
                    target.local == *local
                        && target.multihop == *multihop
                        && target.remote == from
                        && (known == 0 || known == watched.session.discriminator())
                });
                if let Some(watched) = ours {
                    watched.seen.control_plane_independent = packet.control_plane_independent;
                    if let Some(event) = watched.session.receive(now, &packet) {
                        watched.note(event, now, &mut self.log);
                    }
                }
            }
        }
    }

    fn publish(&self) {
        let view = self.sessions.iter().map(|(key, w)| (*key, w.seen.clone()));
        let view: BfdStatuses = view.collect();
        self.publish.send_if_modified(|known| {
            let changed = *known != view;
            *known = view;
            changed
        });
    }
}

impl Watched {
    /// Opens the sockets that the session sends and receives with.
    fn open(&mut self, now: Instant, receivers: &mut HashMap<(IpAddr, bool), Receiver>, seed: u64) {
        let BfdTarget {
            local,
            remote,
            multihop,
            ..
        } = self.target;
        let opened = (|| {
            if let Entry::Vacant(place) = receivers.entry((local, multihop)) {
                place.insert(Receiver::open(local, multihop)?);
            }
            Sender::open(local, remote, multihop, seed)
        })();
        match opened {
            Ok(sender) => {
                self.sender = Some(sender);
                self.retry = None;
            }
            Err(error) => {
                let text = format!("no BFD on {local}: {error}");
                if self.seen.state != text {
                    warn!(%remote, "{text}");
                    self.seen.state = text;
                }
                self.retry = Some(now + RETRY);
            }
        }
    }

    fn note(&mut self, event: BfdEvent, now: Instant, log: &mut LogLimit<(PeerName, LogKind)>) {
        let name = &self.target.name;
        let mut allows = |kind| log.allows(now, (name.clone(), kind));
        match event {
            BfdEvent::Up if allows(LogKind::BfdUp) => info!(peer = %name, "BFD is up"),
            BfdEvent::RemoteAdminDown if allows(LogKind::BfdEnded) => {
                info!(peer = %name, "the peer has ended BFD");
            }
            BfdEvent::Up | BfdEvent::RemoteAdminDown => {}
            BfdEvent::Down {
                diagnostic,
                control_plane_independent,
            } => {
                if allows(LogKind::BfdDown) {
                    warn!(peer = %name, %diagnostic, control_plane_independent, "BFD is down");
                }
                self.seen.downs += 1;
                self.seen.diagnostic = Some(diagnostic.to_string());
                self.seen.control_plane_independent = control_plane_independent;
            }
        }
        if self.session.state() != BfdState::Up {
            self.seen.state = self.session.state().to_string();
        }
    }
}
