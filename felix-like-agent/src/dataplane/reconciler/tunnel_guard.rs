//! Whether tunnel packets are judged by who sends them. That asks who is a node, and the datastore
//! says it: what was read long ago may lack the node whose routes are already here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::desired::Desired;
use crate::plan::nat::UnreadRules;

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

/// Opens the tunnels for everybody while it is not known who is a node, and says whether rules of
/// before this run are better than those that can be planned.
#[derive(Debug)]
pub(super) struct TunnelGuard {
    /// How long the datastore may be away before the tunnels open.
    patience: Duration,
    knowledge: Knowledge,
    /// In this run rules were planned from ranges that are all known. Those of a value that was
    /// good stay known.
    is_planned: bool,
}

impl TunnelGuard {
    pub(super) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            knowledge: Knowledge::Old,
            is_planned: false,
        }
    }

    /// Completes the rules of a pass, given whether the datastore is fresh and what of it cannot be
    /// read. True when rules that are there stay as they are: those planned may lack some of them.
    pub(super) fn judge(
        &mut self,
        desired: &mut Desired,
        (is_fresh, unread): (bool, UnreadRules),
        now: Instant,
    ) -> bool {
        self.knowledge = match (is_fresh, self.knowledge) {
            (true, _) => Knowledge::Current,
            (false, Knowledge::Current) => Knowledge::CurrentUntil(now + self.patience),
            (false, Knowledge::CurrentUntil(until)) if until <= now => Knowledge::Old,
            (false, knowledge) => knowledge,
        };
        self.is_planned |= !unread.ranges;
        // One who is refused may be the node that a value is about.
        let is_open = self.knowledge == Knowledge::Old || unread.nodes || unread.ranges;
        if let Some(nat) = desired.nat.as_mut().filter(|_| is_open) {
            Arc::make_mut(nat).open_tunnels();
        }
        !self.is_planned
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
    use crate::nat::Nat;

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

        /// The rules of a pass at this second.
        fn rules(&mut self, is_fresh: bool, second: u64) -> Option<Arc<Nat>> {
            self.judge((is_fresh, UnreadRules::default()), second).0
        }

        /// The same, and whether those that are there stay.
        fn judge(&mut self, known: (bool, UnreadRules), second: u64) -> (Option<Arc<Nat>>, bool) {
            let mut desired = Desired {
                nat: Some(Arc::new(crate::nat::example())),
                ..Desired::default()
            };
            let now = self.after(second);
            let stays = self.guard.judge(&mut desired, known, now);
            (desired.nat, stays)
        }

        fn is_closed(&mut self, is_fresh: bool, second: u64) -> bool {
            let nat = self.rules(is_fresh, second).unwrap();
            nat.ipv4.senders.is_some()
        }
    }

    #[test]
    fn a_datastore_that_flaps_changes_no_rule() {
        let mut world = World::start();
        let before = world.rules(true, 0);
        for second in 1..120 {
            let is_fresh = second % 2 == 0;
            assert_eq!(world.rules(is_fresh, second), before, "{second}");
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
    fn what_cannot_be_read_opens_the_tunnels_and_spares_older_rules_at_a_start() {
        let unread = |ranges, nodes| (true, UnreadRules { ranges, nodes });
        let is_open = |nat: Option<Arc<Nat>>| nat.unwrap().ipv4.senders.is_none();
        let mut world = World::start();
        let (nat, stays) = world.judge(unread(true, false), 0);
        assert!(is_open(nat) && stays, "the kernel may have a pool's rules");
        let (nat, stays) = world.judge(unread(false, true), 1);
        assert!(is_open(nat) && !stays);
        let (nat, stays) = world.judge(unread(false, false), 2);
        assert!(!is_open(nat) && !stays);
        // From now on a pool that was known is, whatever its value.
        let (nat, stays) = world.judge(unread(true, false), 3);
        assert!(is_open(nat) && !stays);
    }
}
