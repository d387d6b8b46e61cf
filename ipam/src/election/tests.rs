#![allow(clippy::unwrap_used)]

use caracal_model::{Compare, TxnWrite};
use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(900);
const TERM: Duration = Duration::from_secs(450);

fn two() -> (Election, Election) {
    let election = |name: &str| Election::new(name.into(), GRACE);
    (election("a"), election("b"))
}

fn clock() -> Timestamp {
    Timestamp::parse_rfc3339("2026-01-05T10:11:12Z").unwrap()
}

/// The one key that matters.
#[derive(Default)]
struct Stored {
    key: Option<KeyValue>,
    revision: i64,
}

impl Stored {
    /// Carries a transaction out; false = a comparison did not hold.
    fn apply(&mut self, txn: &Txn) -> bool {
        let here = self.key.as_ref().map(|kv| kv.mod_revision);
        let holds = txn.compare.iter().all(|compare| match compare {
            Compare::Absent(_) => here.is_none(),
            Compare::Unchanged(_, revision) => here == Some(*revision),
        });
        if holds {
            self.revision += 1;
            self.key = match &txn.writes[..] {
                [TxnWrite::Put(key, value)] => Some(KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    mod_revision: self.revision,
                }),
                [TxnWrite::Delete(_)] => None,
                other => panic!("one write: {other:?}"),
            };
        }
        holds
    }

    fn leader(&self) -> Leader {
        Leader::read(self.key.as_ref().unwrap()).unwrap()
    }

    /// A candidate stands, and its write arrives at once.
    fn stand(&mut self, candidate: &mut Election, now: Instant) -> bool {
        let Some(txn) = candidate.stand(now, self.key.as_ref(), clock()) else {
            return false;
        };
        assert!(self.apply(&txn));
        candidate.won(now);
        true
    }
}

#[test]
fn the_first_leads_and_another_takes_over_when_it_stands_still() {
    let (mut a, mut b) = two();
    let (mut stored, now) = (Stored::default(), Instant::now());
    assert!(stored.stand(&mut a, now) && a.leads(now));
    assert!(!stored.stand(&mut b, now));
    // Renewed: the time starts anew, for both.
    let later = now + TERM - Duration::from_secs(1);
    assert!(stored.stand(&mut a, later));
    assert!(!stored.stand(&mut b, now + TERM));
    assert!(a.leads(now + TERM));
    let after = now + TERM * 2;
    assert!(!a.leads(after), "its term is over");
    assert!(stored.stand(&mut b, after) && b.leads(after));
    let leader = stored.leader();
    assert_eq!((leader.node.as_str(), leader.transitions), ("b", 1));
    assert!(!stored.stand(&mut a, after));
    assert!(!a.leads(after) && !a.has_led());
}

#[test]
fn who_has_nothing_to_do_gives_it_up_and_the_next_need_not_wait() {
    let (mut a, mut b) = two();
    let (mut stored, now) = (Stored::default(), Instant::now());
    assert!(stored.stand(&mut a, now));
    assert_eq!(b.resign(stored.key.as_ref()), None, "it is another's");
    let txn = a.resign(stored.key.as_ref()).unwrap();
    assert!(stored.apply(&txn) && !a.leads(now));
    assert!(stored.stand(&mut b, now));
}

#[test]
fn the_longer_of_two_terms_counts_and_what_nobody_can_read_is_taken_over() {
    let mut hasty = Election::new("b".into(), Duration::from_secs(4));
    let (mut slow, _) = two();
    let (mut stored, now) = (Stored::default(), Instant::now());
    assert!(stored.stand(&mut slow, now));
    assert!(!stored.stand(&mut hasty, now));
    assert!(!stored.stand(&mut hasty, now + TERM - Duration::from_secs(1)));
    assert!(stored.stand(&mut hasty, now + TERM));
    stored.key.as_mut().unwrap().value = b"x".to_vec();
    assert!(!stored.stand(&mut slow, now));
    assert!(stored.stand(&mut slow, now + TERM));
}

/// What a candidate does next.
#[derive(Clone, Debug)]
enum Act {
    /// Reads and decides; its write is on its way.
    Stand,
    /// The write arrives.
    Arrive,
    /// The write arrives, and its candidate is never told.
    Vanish,
    Resign,
    /// Another process of the same node.
    Restart,
}

proptest! {
    /// Whatever is late, lost or killed, two never lead at one time; and once all but one are gone,
    /// that one leads within its own and the longest term.
    #[test]
    fn never_two_at_a_time_and_never_none_for_ever(
        graces in prop::collection::vec(0_u64..40, 3),
        steps in prop::collection::vec((0_usize..3, 0_u64..9, prop_oneof![
            4 => Just(Act::Stand), 4 => Just(Act::Arrive), 1 => Just(Act::Vanish),
            1 => Just(Act::Resign), 1 => Just(Act::Restart),
        ]), 0..80),
    ) {
        let new = |at: usize| {
            Election::new(format!("n{at}").as_str().into(), Duration::from_secs(graces[at]))
        };
        let mut candidates: Vec<_> = (0..3).map(|at| (new(at), None::<(Txn, Option<Instant>)>)).collect();
        let (mut stored, mut now) = (Stored::default(), Instant::now());
        for (at, seconds, act) in steps {
            now += Duration::from_secs(seconds);
            let (candidate, pending) = &mut candidates[at];
            match act {
                Act::Stand if pending.is_none() => {
                    *pending = candidate.stand(now, stored.key.as_ref(), clock()).map(|txn| (txn, Some(now)));
                }
                Act::Resign if pending.is_none() => {
                    *pending = candidate.resign(stored.key.as_ref()).map(|txn| (txn, None));
                }
                Act::Stand | Act::Resign => {}
                Act::Arrive => if let Some((txn, begun)) = pending.take()
                    && stored.apply(&txn)
                    && let Some(begun) = begun
                {
                    candidate.won(begun);
                },
                Act::Vanish => if let Some((txn, _)) = pending.take() {
                    stored.apply(&txn);
                },
                Act::Restart => *candidate = new(at),
            }
            let leaders = candidates.iter().filter(|(candidate, _)| candidate.leads(now)).count();
            prop_assert!(leaders <= 1, "{leaders} lead");
        }
        let last = &mut candidates[0].0;
        stored.stand(last, now);
        now += Duration::from_secs(20);
        prop_assert!(stored.stand(last, now) && last.leads(now));
    }
}
