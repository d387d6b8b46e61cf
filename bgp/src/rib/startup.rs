//! The time after the start: which peers have sent all their routes.
//!
//! Two questions, one bookkeeping. After a restart, route selection waits for the peers (RFC 4724
//! §4.1), shortly: a peer that is not there must not hold up those that are. And whoever adopted
//! forwarding state from before the start may sweep it only when every peer has sent End-of-RIB or
//! had ample time to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use caracal_model::Family;

use super::peers::PeerState;
use super::{PeerId, Rib, SessionInfo};
use crate::types::PeerName;

/// Limits of the waits at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupTimes {
    /// Selection waits this long for a peer to establish its session. Peers that are alive connect
    /// within a few connect-retry intervals.
    pub establish: Duration,
    /// Selection and sweep wait this long after the last UPDATE of an established peer that sends
    /// no End-of-RIB.
    pub idle: Duration,
    /// Selection waits no longer than this in all: the Selection_Deferral_Timer of RFC 4724 §4.1.
    pub selection: Duration,
    /// The sweep waits this long for a peer whose own restart time is unknown to establish its
    /// session.
    pub sweep: Duration,
}

impl Default for StartupTimes {
    fn default() -> Self {
        Self {
            establish: Duration::from_secs(10),
            idle: Duration::from_secs(5),
            selection: Duration::from_secs(120),
            sweep: Duration::from_secs(120),
        }
    }
}

/// A peer that has not yet sent all its routes.
#[derive(Clone, Debug)]
struct Wait {
    /// Families whose End-of-RIB is missing; `None` until the session is established.
    families: Option<BTreeSet<Family>>,
    /// Selection waits until then; `None` = it does not wait for this peer.
    selection: Option<Instant>,
    /// The sweep waits until then.
    sweep: Instant,
}

/// The bookkeeping. One per table.
#[derive(Clone, Debug)]
pub(super) struct Startup {
    times: StartupTimes,
    /// When selection goes ahead whatever is missing.
    selection_end: Instant,
    waiting: BTreeMap<PeerId, Wait>,
    /// Route selection is deferred (RFC 4724 §4.1).
    deferring: bool,
    /// Nobody is awaited any more, and nobody will be.
    over: bool,
    /// Stands for the work that was left at that moment.
    left: Option<u64>,
    /// That work is done, too.
    converged: bool,
}

impl Startup {
    pub(super) fn new(now: Instant, restarting: bool, times: StartupTimes) -> Self {
        let selection_end = now + times.selection;
        Self {
            times,
            selection_end,
            waiting: BTreeMap::new(),
            deferring: restarting,
            over: false,
            left: None,
            converged: false,
        }
    }

    /// True while route selection has to wait.
    pub(super) fn deferring(&self) -> bool {
        self.deferring
    }

    /// The peers that have not sent all their routes.
    pub(super) fn waiting(&self) -> impl Iterator<Item = PeerId> {
        self.waiting.keys().copied()
    }

    /// A peer of the first configuration, or one that was added while others were still awaited.
    pub(super) fn expect(&mut self, now: Instant, peer: PeerId, restart_time: Option<Duration>) {
        if self.over {
            return;
        }
        let wait = Wait {
            families: None,
            selection: self.deferring.then(|| now + self.times.establish),
            sweep: now + restart_time.unwrap_or(self.times.sweep),
        };
        self.waiting.insert(peer, wait);
    }

    pub(super) fn up(&mut self, now: Instant, peer: PeerId, session: &SessionInfo) {
        let (deferring, idle) = (self.deferring, self.times.idle);
        let Some(wait) = self.waiting.get_mut(&peer) else {
            return;
        };
        // RFC 4724 §4.1: do not wait for a peer that is restarting itself; it waits for nobody
        // either.
        let restarting = session
            .graceful_restart
            .as_ref()
            .is_some_and(|gr| gr.restarting);
        wait.families = Some(session.families.iter().copied().collect());
        wait.selection = (deferring && !restarting).then(|| now + idle);
        wait.sweep = wait.sweep.max(now + idle);
        if session.graceful_restart.is_none() {
            // It may never send End-of-RIB.
            wait.sweep = now + idle;
        }
    }

    /// The peer sent an UPDATE.
    pub(super) fn activity(&mut self, now: Instant, peer: PeerId) {
        if let Some(wait) = self.waiting.get_mut(&peer) {
            let until = now + self.times.idle;
            wait.selection = wait.selection.map(|old| old.max(until));
            wait.sweep = wait.sweep.max(until);
        }
    }

    pub(super) fn end_of_rib(&mut self, peer: PeerId, family: Family) {
        if let Some(wait) = self.waiting.get_mut(&peer)
            && let Some(families) = &mut wait.families
        {
            families.remove(&family);
            if families.is_empty() {
                self.waiting.remove(&peer);
            }
        }
    }

    pub(super) fn down(&mut self, now: Instant, peer: PeerId) {
        if let Some(wait) = self.waiting.get_mut(&peer) {
            wait.families = None;
            wait.selection = self.deferring.then(|| now + self.times.establish);
            wait.sweep = wait.sweep.max(now + self.times.establish);
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.waiting.remove(&peer);
    }

    /// Drops what has waited long enough. True when deferred selection is due now.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.waiting.retain(|_, wait| {
            wait.selection = wait.selection.filter(|until| *until > now);
            wait.sweep > now
        });
        self.over |= self.waiting.is_empty();
        let selection =
            now >= self.selection_end || self.waiting.values().all(|wait| wait.selection.is_none());
        let due = self.deferring && selection;
        if due {
            self.deferring = false;
            self.waiting
                .values_mut()
                .for_each(|wait| wait.selection = None);
        }
        due
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let waits = self
            .waiting
            .values()
            .flat_map(|wait| [Some(wait.sweep), wait.selection]);
        waits
            .flatten()
            .chain(self.deferring.then_some(self.selection_end))
            .min()
    }
}

impl Rib {
    /// The peers that have neither sent End-of-RIB since the start nor had ample time to.
    pub fn awaited(&self) -> impl Iterator<Item = &PeerName> {
        let name = |id| self.peers.get(id).map(|peer: &PeerState| &peer.name);
        self.startup.waiting().filter_map(name)
    }

    /// True when nobody is awaited any more, and everything is decided that was told until then:
    /// what a forwarding table holds from before the start and nobody announced may go. Never goes
    /// back to false.
    #[must_use]
    pub fn is_converged(&self) -> bool {
        self.startup.converged
    }

    /// True while route selection waits for the peers (RFC 4724 §4.1).
    #[must_use]
    pub fn is_deferring(&self) -> bool {
        self.startup.deferring()
    }

    /// Notes at the end of a call when the last End-of-RIB has come, and when all that came before
    /// it is decided: the end of a deferral leaves the whole table to be decided in slices.
    pub(super) fn note_convergence(&mut self) {
        if !self.startup.over || self.startup.converged {
            return;
        }
        let left = self.startup.left.unwrap_or_else(|| self.ticket());
        self.startup.left = Some(left);
        self.startup.converged = self.is_done(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rib::{RemoteRestart, SessionOptions};
    use crate::types::RouterId;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn session(restarting: Option<bool>) -> SessionInfo {
        let restart = |restarting| RemoteRestart {
            restarting,
            time: Duration::ZERO,
            families: vec![],
        };
        SessionInfo {
            families: vec![Family::Ipv4],
            router_id: RouterId([1, 1, 1, 1].into()),
            local_address: [10, 0, 0, 1].into(),
            remote_address: [10, 0, 0, 2].into(),
            graceful_restart: restarting.map(restart),
            options: SessionOptions::default(),
            capabilities: vec![],
        }
    }

    fn start(restarting: bool) -> (Startup, Instant) {
        let now = Instant::now();
        let mut startup = Startup::new(now, restarting, StartupTimes::default());
        startup.expect(now, A, Some(Duration::from_secs(120)));
        startup.expect(now, B, Some(Duration::from_secs(120)));
        (startup, now)
    }

    #[test]
    fn rfc4724_4_1_selection_waits_for_end_of_rib_of_all_peers() {
        let (mut startup, now) = start(true);
        startup.up(now, A, &session(Some(false)));
        startup.up(now, B, &session(Some(false)));
        startup.end_of_rib(A, Family::Ipv4);
        assert!(!startup.expire(now));
        assert!(startup.deferring());
        startup.end_of_rib(B, Family::Ipv4);
        assert!(startup.expire(now), "due at once");
        assert!(!startup.deferring());
        assert!(!startup.expire(now), "due once");
        assert_eq!(startup.next_timeout(), None);
    }

    #[test]
    fn rfc4724_4_1_selection_does_not_wait_for_a_peer_that_restarts_too() {
        let (mut startup, now) = start(true);
        startup.forget(B);
        startup.up(now, A, &session(Some(true)));
        assert!(startup.expire(now));
        assert_eq!(
            startup.waiting().collect::<Vec<_>>(),
            [A],
            "the sweep does wait for it"
        );
    }

    #[test]
    fn a_dead_peer_delays_selection_shortly_and_the_sweep_for_its_restart_time() {
        let (mut startup, now) = start(true);
        startup.up(now, A, &session(Some(false)));
        startup.end_of_rib(A, Family::Ipv4);
        let later = now + Duration::from_secs(10);
        assert_eq!(startup.next_timeout(), Some(later));
        assert!(startup.expire(later));
        assert_eq!(startup.waiting().collect::<Vec<_>>(), [B]);
        let end = now + Duration::from_secs(120);
        assert_eq!(startup.next_timeout(), Some(end));
        assert!(!startup.expire(end));
        assert_eq!(startup.waiting().count(), 0);
    }

    #[test]
    fn a_peer_that_keeps_sending_is_waited_for_until_the_deferral_timer() {
        let (mut startup, start) = start(true);
        startup.forget(B);
        let mut now = start;
        startup.up(now, A, &session(Some(false)));
        while now < start + Duration::from_secs(117) {
            now += Duration::from_secs(3);
            startup.activity(now, A);
            assert!(!startup.expire(now), "at {:?}", now - start);
        }
        assert!(startup.expire(start + Duration::from_secs(120)));
    }

    #[test]
    fn a_peer_without_graceful_restart_counts_when_it_falls_silent() {
        let (mut startup, now) = start(false);
        startup.forget(B);
        assert!(!startup.deferring());
        startup.up(now, A, &session(None));
        assert_eq!(startup.next_timeout(), Some(now + Duration::from_secs(5)));
        startup.expire(now + Duration::from_secs(5));
        assert_eq!(startup.waiting().count(), 0);
    }
}
