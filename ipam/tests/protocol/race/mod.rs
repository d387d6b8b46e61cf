//! Many tasks on several nodes take and release addresses of one small pool at the same time.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caracal_datastore::Store;
use caracal_ipam::{AffinityOutcome, AssignRequest, Client};
use caracal_model::{BlockOwner, HandleId};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::world::{node, pool};

const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// A pool of 16 blocks of 16 addresses, and the nodes.
pub fn stage() -> Vec<(String, Vec<u8>)> {
    let mut entries = vec![pool("p", "10.0.0.0/24", 28), pool("q", "fd00::/120", 124)];
    entries.extend(NODES.map(node));
    entries
}

/// Holder of each address, by the results alone.
type Table = Arc<Mutex<HashMap<IpAddr, HandleId>>>;

/// Each of `tasks` tasks a node makes `rounds` rounds; then everything is released and checked.
pub async fn run<S: Store>(store: S, tasks: usize, rounds: usize) {
    let client = Client::new(store);
    let table = Table::default();
    let start = Instant::now();
    let mut running = JoinSet::new();
    for name in NODES {
        for task in 0..tasks {
            running.spawn(one(client.clone(), name, task, rounds, Arc::clone(&table)));
        }
    }
    let limit = Duration::from_secs(120);
    let all = async {
        while let Some(result) = running.join_next().await {
            result.unwrap()
        }
    };
    tokio::time::timeout(limit, all)
        .await
        .expect("all tasks end");
    let count = NODES.len() * tasks * rounds;
    println!(
        "{count} assignments by {} tasks in {:?}",
        NODES.len() * tasks,
        start.elapsed()
    );
    let mut findings = client.check().await.unwrap();
    findings.retain(caracal_ipam::Inconsistency::is_fault);
    assert_eq!(findings, []);
    let view = client.view().await.unwrap();
    let allocated = view.blocks.values().flat_map(|b| b.value.allocated());
    let held = allocated
        .filter(|(_, _, a)| a.released_at.is_none())
        .count();
    assert_eq!(held, table.lock().unwrap().len());
    for name in NODES {
        client.release_node(&name.into()).await.unwrap();
    }
    let view = client.view().await.unwrap();
    assert!(view.blocks.is_empty() && view.handles.is_empty() && view.affinities.is_empty());
}

async fn one<S: Store>(client: Client<S>, name: &str, task: usize, rounds: usize, table: Table) {
    let mut mine: VecDeque<HandleId> = VecDeque::new();
    for round in 0..rounds {
        let handle = HandleId::from(format!("{name}.{task}.{round}"));
        let mut request = AssignRequest::workload(name.into(), handle.clone());
        request.num_v6 = usize::from(task.is_multiple_of(4));
        let got = client.auto_assign(request).await.unwrap();
        for assignment in got.all() {
            let before = table
                .lock()
                .unwrap()
                .insert(assignment.address, handle.clone());
            assert_eq!(before, None, "IPAM-1: {} is held twice", assignment.address);
        }
        mine.push_back(handle);
        // Keep one or two, and now and then give an empty block back.
        if mine.len() > task % 3 {
            let handle = mine.pop_front().unwrap();
            table.lock().unwrap().retain(|_, holder| *holder != handle);
            client.release_by_handle(&handle, &[]).await.unwrap();
        }
        if task == 0 {
            let owner = BlockOwner::Host(name.into());
            let block = got.v4[0].block;
            match client.release_block_affinity(&owner, block, true).await {
                Ok(
                    AffinityOutcome::Deleted | AffinityOutcome::NotHeld | AffinityOutcome::Stale(_),
                ) => {}
                Ok(AffinityOutcome::Disowned) => panic!("it had to be empty"),
                Err(error) => assert!(!error.is_transient(), "{error}"),
            }
        }
    }
}
