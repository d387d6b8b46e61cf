//! IPAM on a store that changes one object at a time: every interleaving of every call of every
//! scenario, with a crash at any of them, under `OrderedCommit`.
//!
//! Differences from a store with transactions, complete:
//! * IPAM-2: a handle may count too much, never too little, also at rest;
//! * IPAM-3: a host may have a confirmed affinity to a block that names nobody, when one of its
//!   processes claims what another gives back. Its next request drops the affinity;
//! * IPAM-4: a block may name an owner whose affinity is gone, between two writes and after a crash
//!   there: when one process of a host claims what another gives back. The host's next claim has
//!   the block by its name alone; at rest without a crash there is no such block.

use crate::histories::{SCENARIOS, Scenario, Search};

/// With so many crashes at most.
fn search(name: &str, crashes: usize) {
    let scenario = SCENARIOS.iter().find(|s| s.name == name).unwrap();
    let scenario = Scenario {
        crashes: scenario.crashes.min(crashes),
        ..*scenario
    };
    let search = Search::object_by_object(&scenario);
    let ends = search.histories.len();
    println!("{name}: {} states, {ends} ends", search.states());
    assert!(ends > 1);
}

#[test]
fn two_hosts_on_one_block() {
    search("two hosts on one block, two crashes", 1);
    search("two hosts that borrow from each other", 1);
}

#[test]
fn claim_give_back_and_reclaim() {
    search("claim, give back and reclaim, two crashes", 1);
}

#[test]
fn two_processes_of_one_host() {
    search("two processes of one host", 1);
}

#[test]
fn chosen_addresses() {
    search("a chosen address against any address, two crashes", 1);
    search("the same chosen address wanted by two hosts", 1);
}

#[test]
fn a_node_that_is_deleted() {
    search("a node deleted twice at once while another assigns", 1);
}

#[test]
fn processes_that_ensure_a_tunnel() {
    search("an old and a new process ensure one tunnel address", 2);
}

#[test]
#[ignore = "ten minutes: cargo test -p caracal-ipam --test ordered -- --ignored"]
fn with_two_crashes() {
    search("two hosts on one block, two crashes", 2);
    search("claim, give back and reclaim, two crashes", 2);
    search("three clients claim one block, two crashes", 2);
    search("a chosen address against any address, two crashes", 2);
}
