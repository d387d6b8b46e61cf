#![allow(clippy::unwrap_used)]

use caracal_model::BlockOwner;

use super::*;
use crate::memory::MemoryStore;

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";
const OTHER: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.4-30";
const AFFINITY: &str = "/calico/ipam/v2/host/a/ipv4/block/10.0.0.0-30";
const HANDLE: &str = "/calico/ipam/v2/handle/h";

fn block(cidr: &str, sequence: u64) -> Vec<u8> {
    let owner = BlockOwner::Host("a".into());
    Block::new(cidr.parse().unwrap(), Some(&owner), sequence).to_json()
}

fn affinity(state: AffinityState) -> Vec<u8> {
    BlockAffinity::new(state).to_json()
}

fn handle(counts: &[(&str, u64)]) -> Vec<u8> {
    let mut handle = IpamHandle::default();
    for (cidr, count) in counts {
        handle.block.insert(cidr.parse().unwrap(), *count);
    }
    handle.to_json()
}

/// One order on a store, as a store of single keys carries it out.
fn apply(store: &MemoryStore, order: &CommitStep) -> StepResult {
    let txn = match order {
        CommitStep::Look(keys) => {
            return StepResult::Found(keys.iter().filter_map(|key| store.get(key)).collect());
        }
        CommitStep::Create(key, value) => Txn::new().create(key, value.clone()),
        CommitStep::Replace(key, revision, value) => {
            Txn::new().update(key, *revision, value.clone())
        }
        CommitStep::Delete(key, revision) => Txn::new().delete(key, *revision),
        CommitStep::Done(_) => unreachable!("the end is no order"),
    };
    match store.apply(&txn).unwrap() {
        TxnOutcome::Committed(revision) => StepResult::Written(revision),
        TxnOutcome::Conflict => StepResult::Conflict,
    }
}

/// Carries a transaction out; before each write `meddle` may do something else. Returns what was
/// written, by name of the key's last part, and the outcome.
fn execute(
    store: &MemoryStore,
    txn: Txn,
    mut meddle: impl FnMut(&CommitStep, &MemoryStore),
) -> (Vec<String>, TxnOutcome) {
    let mut commit = OrderedCommit::new(txn);
    let (mut result, mut log) = (StepResult::Start, Vec::new());
    loop {
        let order = commit.step(result);
        meddle(&order, store);
        let (verb, key) = match &order {
            CommitStep::Done(outcome) => return (log, *outcome),
            CommitStep::Look(_) => {
                result = apply(store, &order);
                continue;
            }
            CommitStep::Create(key, _) => ("create", key),
            CommitStep::Replace(key, ..) => ("replace", key),
            CommitStep::Delete(key, _) => ("delete", key),
        };
        let area = match Key::parse(key) {
            Ok(Key::Block(cidr)) => format!("block {cidr}"),
            Ok(Key::Affinity(..)) => "affinity".to_owned(),
            Ok(Key::Handle(_)) => "handle".to_owned(),
            _ => "other".to_owned(),
        };
        result = apply(store, &order);
        log.push(match result {
            StepResult::Written(_) => format!("{verb} {area}"),
            _ => format!("{verb} {area}: lost"),
        });
    }
}

fn quietly(store: &MemoryStore, txn: Txn) -> (Vec<String>, TxnOutcome) {
    execute(store, txn, |_, _| {})
}

/// A new block with its first address.
fn claim(store: &MemoryStore) -> Txn {
    let pending = store.put(AFFINITY, affinity(AffinityState::Pending));
    Txn::new()
        .update(AFFINITY, pending, affinity(AffinityState::Confirmed))
        .create(BLOCK, block("10.0.0.0/30", 7))
        .create(HANDLE, handle(&[("10.0.0.0/30", 1)]))
}

#[test]
fn order_3_and_4_a_claim_is_handle_block_confirmation() {
    let store = MemoryStore::new();
    let txn = claim(&store);
    let (log, outcome) = quietly(&store, txn);
    assert_eq!(
        log,
        [
            "create handle",
            "create block 10.0.0.0/30",
            "replace affinity"
        ]
    );
    assert_eq!(outcome, TxnOutcome::Committed(store.revision()));
}

#[test]
fn order_3_a_release_is_block_then_handle() {
    let store = MemoryStore::new();
    let at = store.put(BLOCK, block("10.0.0.0/30", 7));
    let counts = store.put(HANDLE, handle(&[("10.0.0.0/30", 1)]));
    let txn = Txn::new()
        .delete(HANDLE, counts)
        .update(BLOCK, at, block("10.0.0.0/30", 8));
    let (log, _) = quietly(&store, txn);
    assert_eq!(log, ["replace block 10.0.0.0/30", "delete handle"]);
}

#[test]
fn order_4_a_block_that_is_given_back_goes_before_its_affinity() {
    let store = MemoryStore::new();
    let at = store.put(BLOCK, block("10.0.0.0/30", 7));
    let held = store.put(AFFINITY, affinity(AffinityState::PendingDeletion));
    let txn = Txn::new().delete(AFFINITY, held).delete(BLOCK, at);
    let (log, _) = quietly(&store, txn);
    assert_eq!(log, ["delete block 10.0.0.0/30", "delete affinity"]);
}

#[test]
fn a_handle_that_moves_counts_both_in_between() {
    let store = MemoryStore::new();
    let at = store.put(BLOCK, block("10.0.0.0/30", 7));
    let counts = store.put(HANDLE, handle(&[("10.0.0.0/30", 1)]));
    let txn = Txn::new()
        .update(HANDLE, counts, handle(&[("10.0.0.4/30", 1)]))
        .update(BLOCK, at, block("10.0.0.0/30", 8))
        .create(OTHER, block("10.0.0.4/30", 1));
    let mut between = Vec::new();
    let (log, outcome) = execute(&store, txn, |order, store| {
        if matches!(order, CommitStep::Create(..)) {
            between = store.get(HANDLE).unwrap().value;
        }
    });
    assert_eq!(
        log,
        [
            "replace handle",
            "replace block 10.0.0.0/30",
            "create block 10.0.0.4/30",
            "replace handle"
        ]
    );
    assert_eq!(between, handle(&[("10.0.0.0/30", 1), ("10.0.0.4/30", 1)]));
    assert_eq!(
        store.get(HANDLE).unwrap().value,
        handle(&[("10.0.0.4/30", 1)])
    );
    assert!(matches!(outcome, TxnOutcome::Committed(_)));
}

#[test]
fn what_is_compared_and_changed_writes_nothing() {
    let store = MemoryStore::new();
    let txn = claim(&store);
    store.put(AFFINITY, affinity(AffinityState::PendingDeletion));
    assert_eq!(quietly(&store, txn), (Vec::new(), TxnOutcome::Conflict));
    // A key that is only compared counts as well.
    let at = store.put(BLOCK, block("10.0.0.0/30", 7));
    let mut txn = Txn::new().create(OTHER, block("10.0.0.4/30", 1));
    txn.compare
        .push(Compare::Unchanged(BLOCK.to_owned(), at - 1));
    assert_eq!(quietly(&store, txn), (Vec::new(), TxnOutcome::Conflict));
}

/// Addresses of two blocks, which others change meanwhile.
fn two_blocks(store: &MemoryStore) -> Txn {
    let at = store.put(OTHER, block("10.0.0.4/30", 3));
    Txn::new()
        .create(HANDLE, handle(&[("10.0.0.0/30", 1), ("10.0.0.4/30", 1)]))
        .create(BLOCK, block("10.0.0.0/30", 7))
        .update(OTHER, at, block("10.0.0.4/30", 4))
}

fn is_write_of(order: &CommitStep, wanted: &str) -> bool {
    matches!(order, CommitStep::Replace(key, ..) | CommitStep::Create(key, _) if key == wanted)
}

#[test]
fn a_race_that_is_lost_half_way_takes_back_what_was_taken() {
    let store = MemoryStore::new();
    let txn = two_blocks(&store);
    let (log, outcome) = execute(&store, txn, |order, store| {
        if is_write_of(order, OTHER) {
            store.put(OTHER, block("10.0.0.4/30", 9));
        }
    });
    assert_eq!(
        log,
        [
            "create handle",
            "create block 10.0.0.0/30",
            "replace block 10.0.0.4/30: lost",
            "delete block 10.0.0.0/30",
            "delete handle"
        ]
    );
    assert_eq!(outcome, TxnOutcome::Conflict);
    assert_eq!(store.list("/calico/ipam/").len(), 1);
}

#[test]
fn order_2_what_somebody_else_wrote_since_is_not_taken_back() {
    let store = MemoryStore::new();
    let txn = two_blocks(&store);
    let (log, _) = execute(&store, txn, |order, store| {
        if is_write_of(order, OTHER) {
            store.put(OTHER, block("10.0.0.4/30", 9));
            store.put(BLOCK, block("10.0.0.0/30", 99));
        }
    });
    assert_eq!(log.last().unwrap(), "delete block 10.0.0.0/30: lost");
    assert_eq!(store.get(BLOCK).unwrap().value, block("10.0.0.0/30", 99));
    // The block still exists, so its handle must still count it.
    assert!(store.get(HANDLE).is_some());
}

#[test]
fn an_affinity_that_another_process_changed_follows_the_block() {
    for (change, writes, state) in [
        (
            Some(AffinityState::Confirmed),
            1,
            Some(AffinityState::Confirmed),
        ),
        (
            Some(AffinityState::Pending),
            2,
            Some(AffinityState::Confirmed),
        ),
        // It is being given back: who does that goes on with what is in the block now.
        (
            Some(AffinityState::PendingDeletion),
            1,
            Some(AffinityState::PendingDeletion),
        ),
        (None, 2, Some(AffinityState::Confirmed)),
    ] {
        let store = MemoryStore::new();
        let txn = claim(&store);
        let mut meddled = false;
        let (log, outcome) = execute(&store, txn, |order, store| {
            if is_write_of(order, AFFINITY) && !std::mem::replace(&mut meddled, true) {
                match change {
                    Some(state) => store.put(AFFINITY, affinity(state)),
                    None => store.delete(AFFINITY),
                };
            }
        });
        assert_eq!(log.len(), 2 + writes, "{log:?}");
        assert!(matches!(outcome, TxnOutcome::Committed(_)));
        let stored = store
            .get(AFFINITY)
            .map(|kv| BlockAffinity::from_json(&kv.value).unwrap());
        assert_eq!(stored.map(|affinity| affinity.state), state);
    }
}

#[test]
fn a_block_that_is_taken_back_has_a_sequence_number_of_its_own() {
    let store = MemoryStore::new();
    let (one, two) = (
        store.put(BLOCK, block("10.0.0.0/30", 7)),
        store.put(OTHER, block("10.0.0.4/30", 3)),
    );
    let txn = Txn::new()
        .create(HANDLE, handle(&[("10.0.0.0/30", 1), ("10.0.0.4/30", 1)]))
        .update(BLOCK, one, block("10.0.0.0/30", 8))
        .update(OTHER, two, block("10.0.0.4/30", 4));
    execute(&store, txn, |order, store| {
        if matches!(order, CommitStep::Replace(key, ..) if key == OTHER) {
            store.put(OTHER, block("10.0.0.4/30", 9));
        }
    });
    assert_eq!(store.get(BLOCK).unwrap().value, block("10.0.0.0/30", 9));
    assert_eq!(store.get(OTHER).unwrap().value, block("10.0.0.4/30", 9));
    assert_eq!(store.get(HANDLE), None);
}

#[test]
fn a_release_that_loses_a_race_stays_where_it_is() {
    let store = MemoryStore::new();
    let one = store.put(BLOCK, block("10.0.0.0/30", 7));
    let two = store.put(OTHER, block("10.0.0.4/30", 3));
    let counts = store.put(HANDLE, handle(&[("10.0.0.0/30", 1), ("10.0.0.4/30", 1)]));
    let txn = Txn::new()
        .delete(HANDLE, counts)
        .update(BLOCK, one, block("10.0.0.0/30", 8))
        .update(OTHER, two, block("10.0.0.4/30", 4));
    let (log, outcome) = execute(&store, txn, |order, store| {
        if matches!(order, CommitStep::Replace(key, ..) if key == OTHER) {
            store.put(OTHER, block("10.0.0.4/30", 9));
        }
    });
    assert_eq!(
        log,
        [
            "replace block 10.0.0.0/30",
            "replace block 10.0.0.4/30: lost"
        ]
    );
    assert_eq!(outcome, TxnOutcome::Conflict);
    // It counts too much, not too little.
    assert!(store.get(HANDLE).is_some());
}
