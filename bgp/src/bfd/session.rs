//! One session: its state machine (RFC 5880 §6.2, §6.8) and its timers.

use std::time::{Duration, Instant};

use super::packet::{BfdDiagnostic, BfdPacket, BfdState};

/// Shortest interval of packets while the session is not up (RFC 5880 §6.8.3).
const SLOW: Duration = Duration::from_secs(1);

/// Configured timers of a session (RFC 5880 §6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdTimers {
    /// Interval at which we want to send and can receive.
    pub interval: Duration,
    /// Detection multiplier: packets in a row that may be lost.
    pub multiplier: u8,
}

/// State change of a session that its owner must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BfdEvent {
    /// Both ends see each other.
    Up,
    /// The other end, or the way to it, is gone.
    Down {
        /// Reason of the state change.
        diagnostic: BfdDiagnostic,
        /// The other end's BFD does not share the fate of its control plane (C bit).
        control_plane_independent: bool,
    },
    /// The operator of the other end has ended the session; that says nothing about the way (RFC
    /// 5880 §6.8.6).
    RemoteAdminDown,
}

/// Fields of the last packet received (RFC 5880 §6.8.1, `bfd.Remote…`).
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: u32,
    state: BfdState,
    desired_min_tx: Duration,
    required_min_rx: Duration,
    multiplier: u8,
    demand: bool,
    control_plane_independent: bool,
}

/// A session with one other end.
#[derive(Clone, Debug)]
pub struct BfdSession {
    timers: BfdTimers,
    discriminator: u32,
    state: BfdState,
    diagnostic: BfdDiagnostic,
    remote: Option<Remote>,
    /// A poll sequence is under way: every packet asks until one confirms (§6.5).
    polling: bool,
    /// The interval that the other end still counts on until it has confirmed a longer one
    /// (§6.8.3).
    confirmed_interval: Duration,
    /// The answer to a poll is due.
    confirm: bool,
    next_send: Instant,
    /// End of the detection time, unless a packet comes.
    detection: Option<Instant>,
    seed: u64,
}

fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl BfdSession {
    /// A session that is down and starts to call. `discriminator` is unique among those of this
    /// system and not 0; `seed` makes its jitter differ from that of others.
    #[must_use]
    pub const fn new(now: Instant, discriminator: u32, timers: BfdTimers, seed: u64) -> Self {
        Self {
            timers,
            discriminator,
            state: BfdState::Down,
            diagnostic: BfdDiagnostic::None,
            remote: None,
            polling: false,
            confirmed_interval: timers.interval,
            confirm: false,
            next_send: now,
            detection: None,
            seed,
        }
    }

    /// Present state of our end.
    #[must_use]
    pub const fn state(&self) -> BfdState {
        self.state
    }

    /// Our number for the session.
    #[must_use]
    pub const fn discriminator(&self) -> u32 {
        self.discriminator
    }

    /// Changes the timers; a poll sequence makes the other end confirm them (RFC 5880 §6.8.3).
    pub fn set_timers(&mut self, timers: BfdTimers) {
        if timers != self.timers {
            self.timers = timers;
            self.polling = self.state == BfdState::Up;
            if !self.polling {
                self.confirmed_interval = timers.interval;
            }
        }
    }

    /// Interval at which we would like to send now (bfd.DesiredMinTxInterval).
    fn desired_min_tx(&self) -> Duration {
        if self.state == BfdState::Up {
            self.timers.interval
        } else {
            self.timers.interval.max(SLOW)
        }
    }

    /// Interval at which we do send; `None`: not periodically.
    fn send_interval(&self) -> Option<Duration> {
        // §6.8.3: a longer interval holds when it is confirmed.
        let own = if self.state == BfdState::Up && self.polling {
            self.timers.interval.min(self.confirmed_interval)
        } else {
            self.desired_min_tx()
        };
        let Some(remote) = &self.remote else {
            return Some(own);
        };
        let demand = remote.demand && self.state == BfdState::Up && remote.state == BfdState::Up;
        let silent = remote.required_min_rx.is_zero() || (demand && !self.polling);
        (!silent).then(|| own.max(remote.required_min_rx))
    }

    /// Time without a packet after which the session is down (§6.8.4). While a shorter interval is
    /// not confirmed, the longer one counts.
    #[must_use]
    pub(crate) fn detection_time(&self) -> Option<Duration> {
        let remote = self.remote.as_ref()?;
        let own = if self.polling {
            self.timers.interval.max(self.confirmed_interval)
        } else {
            self.timers.interval
        };
        Some(own.max(remote.desired_min_tx) * u32::from(remote.multiplier))
    }

    /// Takes in a packet that belongs to this session (§6.8.6).
    pub fn receive(&mut self, now: Instant, packet: &BfdPacket) -> Option<BfdEvent> {
        if self.state == BfdState::AdminDown {
            return None;
        }
        self.remote = Some(Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            desired_min_tx: Duration::from_micros(packet.desired_min_tx.into()),
            required_min_rx: Duration::from_micros(packet.required_min_rx.into()),
            multiplier: packet.multiplier,
            demand: packet.demand,
            control_plane_independent: packet.control_plane_independent,
        });
        if packet.confirms {
            self.polling = false;
            self.confirmed_interval = self.timers.interval;
        }
        self.confirm |= packet.poll;
        let event = self.react(now, packet.state);
        self.detection = self.detection_time().map(|time| now + time);
        // A faster rhythm holds from now on, not after the next slow packet.
        if let Some(interval) = self.send_interval() {
            self.next_send = self.next_send.min(now + interval);
        }
        event
    }

    fn react(&mut self, now: Instant, remote: BfdState) -> Option<BfdEvent> {
        match (self.state, remote) {
            (BfdState::Down, BfdState::AdminDown) => None,
            (was, BfdState::AdminDown) => {
                self.enter(now, BfdState::Down, BfdDiagnostic::NeighborDown);
                (was == BfdState::Up).then_some(BfdEvent::RemoteAdminDown)
            }
            (BfdState::Down, BfdState::Down) => {
                self.enter(now, BfdState::Init, self.diagnostic);
                None
            }
            (BfdState::Down, BfdState::Init) | (BfdState::Init, BfdState::Init | BfdState::Up) => {
                self.enter(now, BfdState::Up, BfdDiagnostic::None);
                Some(BfdEvent::Up)
            }
            (BfdState::Up, BfdState::Down) => {
                self.enter(now, BfdState::Down, BfdDiagnostic::NeighborDown);
                Some(self.down())
            }
            _ => None,
        }
    }

    fn down(&self) -> BfdEvent {
        BfdEvent::Down {
            diagnostic: self.diagnostic,
            control_plane_independent: self
                .remote
                .is_some_and(|remote| remote.control_plane_independent),
        }
    }

    fn enter(&mut self, now: Instant, state: BfdState, diagnostic: BfdDiagnostic) {
        // §6.8.3: the transmit interval changes with Up; a poll sequence announces it.
        self.polling = state == BfdState::Up;
        self.confirmed_interval = self.timers.interval;
        self.state = state;
        self.diagnostic = diagnostic;
        // News go out at once.
        self.next_send = now;
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<BfdEvent> {
        if self.detection.is_none_or(|due| due > now) {
            return None;
        }
        self.detection = None;
        let was = self.state;
        let event = self.down();
        // §6.8.1: its number is forgotten, whatever our state.
        self.remote = None;
        if !matches!(was, BfdState::Init | BfdState::Up) {
            return None;
        }
        self.enter(now, BfdState::Down, BfdDiagnostic::TimeExpired);
        match event {
            BfdEvent::Down {
                control_plane_independent,
                ..
            } if was == BfdState::Up => Some(BfdEvent::Down {
                diagnostic: BfdDiagnostic::TimeExpired,
                control_plane_independent,
            }),
            _ => None,
        }
    }

    /// The packet that is due, if one is.
    pub fn poll(&mut self, now: Instant) -> Option<BfdPacket> {
        if std::mem::take(&mut self.confirm) {
            // §6.5: at once, whatever the rhythm; and it does not ask.
            return Some(self.packet(true));
        }
        if self.next_send > now {
            return None;
        }
        let interval = self.send_interval()?;
        self.next_send = now + self.jittered(interval);
        Some(self.packet(false))
    }

    /// The last packet: we are taken down, which is no failure.
    pub fn farewell(&mut self) -> BfdPacket {
        self.state = BfdState::AdminDown;
        self.diagnostic = BfdDiagnostic::AdministrativelyDown;
        self.packet(false)
    }

    fn packet(&self, confirms: bool) -> BfdPacket {
        BfdPacket {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: self.polling && !confirms,
            confirms,
            // We run inside the BGP process.
            control_plane_independent: false,
            demand: false,
            multiplier: self.timers.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.map_or(0, |remote| remote.discriminator),
            desired_min_tx: microseconds(self.desired_min_tx()),
            required_min_rx: microseconds(self.timers.interval),
        }
    }

    /// When to call [`BfdSession::handle_timeout`] and [`BfdSession::poll`] at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let send = self.send_interval().map(|_| self.next_send);
        send.into_iter().chain(self.detection).min()
    }

    /// §6.8.7: between 75 and 100 % of the interval; at most 90 % when one lost packet already
    /// means down.
    fn jittered(&mut self, interval: Duration) -> Duration {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let high = u32::try_from(self.seed >> 32).unwrap_or(u32::MAX);
        let fraction = f64::from(high) / f64::from(u32::MAX);
        let span = if self.timers.multiplier == 1 {
            0.15
        } else {
            0.25
        };
        interval.mul_f64(0.75 + span * fraction)
    }
}
