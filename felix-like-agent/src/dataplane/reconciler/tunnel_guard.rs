//! Whether tunnel packets are judged by who sends them. That asks who is a node, and the datastore
//! says it: what was read long ago may lack the node whose routes are already here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::desired::Desired;
use crate::nat::Nat;

/// Whether it is known who is a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// The datastore was never read since the start, or was away for too long.
    #[default]
    Old,
    /// The datastore is fresh.
    Current,
    /// The datastore is away, for a short time yet.
    CurrentUntil(Instant),
}

/// Opens the tunnels for everybody while it is not known who is a node, and has the last rules stay
/// while those of now cannot be planned.
#[derive(Debug)]
pub(super) struct TunnelGuard {
    /// How long the datastore may be away before the tunnels open.
    patience: Duration,
    knowledge: Knowledge,
    /// The last rules that were planned in this run.
    planned: Option<Arc<Nat>>,
}

impl TunnelGuard {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            knowledge: Knowledge::Old,
            planned: None,
        }
    }

    /// Completes the rules of a pass, given whether the datastore is fresh.
    pub(super) fn judge(&mut self, desired: &mut Desired, is_fresh: bool, now: Instant) {
        self.knowledge = match (is_fresh, self.knowledge) {
            (true, _) => Knowledge::Current,
            (false, Knowledge::Current) => Knowledge::CurrentUntil(now + self.patience),
            (false, Knowledge::CurrentUntil(until)) if until <= now => Knowledge::Old,
            (false, knowledge) => knowledge,
        };
        // Without a plan a value cannot be read: the rules stay, but one who is refused may be the
        // node that it is about.
        let is_open = self.knowledge == Knowledge::Old || desired.nat.is_none();
        match &desired.nat {
            Some(nat) => self.planned = Some(Arc::clone(nat)),
            None => desired.nat.clone_from(&self.planned),
        }
        if let Some(nat) = desired.nat.as_mut().filter(|_| is_open) {
            Arc::make_mut(nat).open_tunnels();
        }
    }

    /// When the tunnels open, if the datastore stays away.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.knowledge {
            Knowledge::CurrentUntil(until) => Some(until),
            Knowledge::Old | Knowledge::Current => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    struct World {
        guard: TunnelGuard,
        start: Instant,
    }

    impl World {
        fn start() -> Self {
            Self {
                guard: TunnelGuard::new(PATIENCE),
                start: Instant::now(),
            }
        }

        fn after(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// The rules of a pass at this second. `planned`: with rules of its own.
        fn rules(&mut self, planned: bool, is_fresh: bool, second: u64) -> Option<Arc<Nat>> {
            let mut desired = Desired {
                nat: planned.then(|| Arc::new(crate::nat::example())),
                ..Desired::default()
            };
            let now = self.after(second);
            self.guard.judge(&mut desired, is_fresh, now);
            desired.nat
        }

        fn is_closed(&mut self, is_fresh: bool, second: u64) -> bool {
            let nat = self.rules(true, is_fresh, second).unwrap();
            nat.ipv4.senders.is_some()
        }
    }

    #[test]
    fn a_datastore_that_flaps_changes_no_rule() {
        let mut world = World::start();
        let before = world.rules(true, true, 0);
        for second in 1..120 {
            let is_fresh = second % 2 == 0;
            assert_eq!(world.rules(true, is_fresh, second), before, "{second}");
        }
        // The time counts from the last word, however often a pass runs meanwhile.
        assert!(world.is_closed(true, 120) && world.guard.due().is_none());
        for second in 121..151 {
            assert!(world.is_closed(false, second), "{second}");
            assert_eq!(world.guard.due(), Some(world.after(151)));
        }
        assert!(!world.is_closed(false, 151));
    }

    #[test]
    fn a_datastore_that_stays_away_opens_the_tunnels_until_it_is_back() {
        let mut world = World::start();
        assert!(world.is_closed(true, 0));
        assert!(world.is_closed(false, 10));
        assert!(!world.is_closed(false, 40) && !world.is_closed(false, 400));
        assert_eq!(world.guard.due(), None, "no pass is due for it");
        assert!(world.is_closed(true, 401));
        assert!(world.is_closed(false, 402));
    }

    #[test]
    fn a_start_without_the_datastore_opens_the_tunnels_at_once() {
        let mut world = World::start();
        assert!(!world.is_closed(false, 0) && world.guard.due().is_none());
        assert!(!world.is_closed(false, 60));
        assert!(world.is_closed(true, 61));
    }

    #[test]
    fn rules_that_cannot_be_planned_stay_with_open_tunnels() {
        let mut world = World::start();
        assert_eq!(world.rules(false, true, 0), None, "nothing was planned yet");
        let closed = world.rules(true, true, 1).unwrap();
        let open = world.rules(false, true, 2).unwrap();
        assert!(open.ipv4.senders.is_none());
        assert_eq!(open.ipv4.bgp, closed.ipv4.bgp);
        assert_eq!(world.rules(true, true, 3), Some(closed));
    }
}
