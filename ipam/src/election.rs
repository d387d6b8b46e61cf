//! Which node clears up after deleted ones: one at a time, by a key that names it.
//!
//! Candidates stand for it while there is something to clear up. The leader rewrites the key, and
//! gives it up when nothing is left. Others take it over once it stood still for its term, each on
//! its own clock, as with a [`Lease`](crate::Lease): no time stamp is ever compared. A leader
//! counts its term from before its write, and so it has stopped before anybody can take over.
//!
//! No release depends on that: each compares its preconditions (GC-5). With one leader the others
//! read one key, and neither all leases nor what a lost race would have them read again.

use std::time::{Duration, Instant};

use caracal_model::{KeyValue, NodeName, Timestamp, Txn};
use serde::{Deserialize, Serialize};

/// Shortest term. Anything shorter would take a busy leader for a dead one.
const SHORTEST: Duration = Duration::from_secs(5);

/// Value of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Leader {
    node: NodeName,
    /// Since when, and when renewed, on the leader's clock: for people.
    acquired: String,
    renewed: String,
    /// The term, in seconds.
    seconds: u64,
    /// How often another took over.
    #[serde(default)]
    transitions: u64,
}

impl Leader {
    fn read(stored: &KeyValue) -> Option<Self> {
        serde_json::from_slice(&stored.value).ok()
    }
}

/// A candidate's view of the election.
#[derive(Clone, Debug)]
pub struct Election {
    me: NodeName,
    term: Duration,
    /// The key's revision while somebody else leads, and since when it is that.
    still: Option<(i64, Instant)>,
    /// Until when this node leads.
    until: Option<Instant>,
}

impl Election {
    /// The key. In Kubernetes' API a Lease.
    pub const KEY: &str = "/caracal/leader/deleted-nodes";

    /// A candidate that knows of no leader. `grace`: how long nodes have to be gone; the term is
    /// half of it.
    #[must_use]
    pub fn new(me: NodeName, grace: Duration) -> Self {
        Self {
            me,
            // Whole seconds, as they are written down.
            term: Duration::from_secs(grace.as_secs() / 2).max(SHORTEST),
            still: None,
            until: None,
        }
    }

    /// True while nobody else can have taken over.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// What to write in order to lead, or to go on leading; `None` while somebody else leads.
    /// `stored` is the key as just read, `clock` the time for people.
    #[must_use]
    pub fn stand(
        &mut self,
        now: Instant,
        stored: Option<&KeyValue>,
        clock: Timestamp,
    ) -> Option<Txn> {
        let leader = stored.and_then(Leader::read);
        let is_mine = leader.as_ref().is_some_and(|l| l.node == self.me);
        if let Some(stored) = stored.filter(|_| !is_mine) {
            self.until = None;
            let since = match self.still {
                Some((revision, since)) if revision == stored.mod_revision => since,
                _ => now,
            };
            self.still = Some((stored.mod_revision, since));
            let term = leader.as_ref().map_or(0, |leader| leader.seconds);
            if now.duration_since(since) < self.term.max(Duration::from_secs(term)) {
                return None;
            }
        }
        let next = Leader {
            node: self.me.clone(),
            renewed: clock.rfc3339(),
            acquired: match &leader {
                Some(leader) if is_mine => leader.acquired.clone(),
                _ => clock.rfc3339(),
            },
            seconds: self.term.as_secs(),
            transitions: leader.map_or(0, |l| l.transitions + u64::from(!is_mine)),
        };
        let value = serde_json::to_vec(&next).expect("a leader is always valid JSON");
        Some(match stored {
            Some(stored) => Txn::new().update(Self::KEY, stored.mod_revision, value),
            None => Txn::new().create(Self::KEY, value),
        })
    }

    /// The write of [`Election::stand`] took effect; `begun` is when it was begun. True when this
    /// node did not lead before.
    pub fn won(&mut self, begun: Instant) -> bool {
        self.still = None;
        let new = !self.leads(begun);
        self.until = Some(begun + self.term);
        new
    }

    /// Nothing is left to clear up: what to write in order to lead no longer. `stored` is the key
    /// as just read.
    #[must_use]
    pub fn resign(&mut self, stored: Option<&KeyValue>) -> Option<Txn> {
        self.still = None;
        self.until = None;
        let own = stored.filter(|kv| Leader::read(kv).is_some_and(|l| l.node == self.me))?;
        Some(Txn::new().delete(Self::KEY, own.mod_revision))
    }

    /// True between the first write of this node and [`Election::resign`], or until another leads.
    #[must_use]
    pub const fn has_led(&self) -> bool {
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests;
