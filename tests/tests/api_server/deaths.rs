//! Fifty clients that race for the same blocks and die in the middle of their calls, on a server
//! that loses answers: no address is ever two clients', and what a death leaves is what decision
//! 0093 names, no more, and put right without being asked about.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use caracal_datastore::{KubernetesStore, Store as _};
use caracal_ipam::{
    Client, Inconsistency, IpamData, Mender, Reading, Users, all_ranges, audit, plan_repairs,
    user_ranges,
};
use caracal_model::{BlockOwner, Timestamp};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::store::{request, runtime, started, store};

const CLIENTS: usize = 50;
const ROUNDS: usize = 4;
/// A client that is to die does so within this time: a call takes some tens of milliseconds.
const LONGEST_LIFE: u64 = 150;

/// An address that a client had for certain: from the answer until it began to give it back.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    address: IpAddr,
    from: Instant,
    /// `None`: it kept it.
    to: Option<Instant>,
}

/// What a run of one client has seen.
#[derive(Default)]
struct Seen {
    tenures: Vec<Tenure>,
    handles: Vec<String>,
    died: usize,
}

/// One client in one case of three dies, after a time that follows from its number and round.
fn life(client: usize, round: usize) -> Option<Duration> {
    let number = u64::try_from(client * ROUNDS + round).expect("small");
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    mixed
        .is_multiple_of(3)
        .then(|| Duration::from_millis(mixed / 3 % LONGEST_LIFE))
}

async fn lives(store: KubernetesStore, number: usize) -> Seen {
    let client = Client::new(store);
    let node = ["node-a", "node-b", "node-c"][number % 3];
    let mut seen = Seen::default();
    for round in 0..ROUNDS {
        let handle = format!("d.{number}.{round}");
        seen.handles.push(handle.clone());
        let death = life(number, round).unwrap_or(Duration::from_secs(60));
        let got = timeout(death, client.auto_assign(request(node, &handle))).await;
        let from = Instant::now();
        // Where the answer is lost nobody knows what was done, as after a death.
        let Ok(Ok(assigned)) = got else {
            seen.died += 1;
            continue;
        };
        // Half of them keep it until the end of the run.
        let mut to = None;
        if round % 2 == 0 {
            to = Some(Instant::now());
            // It may die on the way back, too.
            let death = life(number, round + ROUNDS).unwrap_or(Duration::from_secs(60));
            let id = handle.as_str().into();
            let release = client.release_by_handle(&id, &[]);
            let _left_to_who_comes_next = timeout(death, release).await;
        }
        let address = assigned.v4[0].address;
        seen.tenures.push(Tenure { address, from, to });
    }
    seen
}

/// All of IPAM's data, and who uses addresses.
async fn survey(store: &KubernetesStore) -> (IpamData, Users) {
    let (everything, uses) = (all_ranges(), user_ranges());
    let ranges = [everything.clone(), uses].concat();
    let mut answer = store.read(&ranges).await.expect("lists");
    let uses = answer.ranges.split_off(everything.len());
    let mut view = IpamData::default();
    let reading = Reading {
        revision: answer.revision,
        ranges: answer.ranges,
    };
    view.absorb(&everything, reading);
    (view, Users::read(uses.iter().flatten()))
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

/// What `caracal ipam check --fix` does.
async fn mend(store: &KubernetesStore) {
    let client = Client::new(store.clone());
    let (view, users) = survey(store).await;
    let found = audit(&view, &users, now());
    let plan = plan_repairs(&found, &view, &users, Duration::ZERO, now());
    assert!(plan.left.is_empty(), "{:?}", plan.left);
    for repair in plan.repairs {
        let what = repair.to_string();
        let done = client.drive(Mender::new(repair, now())).await;
        println!("{what}: {}", done.unwrap_or_else(|e| panic!("{what}: {e}")));
    }
}

/// IPAM-1, by results alone: no two clients had one address at one time.
fn never_twice(tenures: &[Tenure]) {
    let is_over = |one: &Tenure, other: &Tenure| one.to.is_some_and(|to| to <= other.from);
    for (n, one) in tenures.iter().enumerate() {
        for other in &tenures[n + 1..] {
            let apart = one.address != other.address || is_over(one, other) || is_over(other, one);
            assert!(apart, "IPAM-1: {one:?} and {other:?}");
        }
    }
}

#[test]
fn fifty_clients_that_die_never_share_an_address() {
    let Some(server) = started("deaths", &[]) else {
        return;
    };
    // Besides, some answers do not arrive although the work was done, and some work is not.
    let ipam = "/apis/crd.projectcalico.org/v1/ipam";
    for (method, fault) in [
        ("PUT", "lost"),
        ("POST", "lost"),
        ("PUT", "reset"),
        ("PUT", "500"),
    ] {
        let rule = json!({"path": ipam, "method": method, "fault": fault, "count": 5});
        server.request("POST", "/test/faults", &rule).expect(200);
    }
    runtime().block_on(async {
        let barrier = Arc::new(tokio::sync::Barrier::new(CLIENTS));
        let mut running = JoinSet::new();
        for number in 0..CLIENTS {
            let (store, barrier) = (store(&server, None), Arc::clone(&barrier));
            running.spawn(async move {
                barrier.wait().await;
                lives(store, number).await
            });
        }
        let mut all = Seen::default();
        while let Some(seen) = running.join_next().await {
            let seen = seen.expect("no panic");
            all.tenures.extend(seen.tenures);
            all.handles.extend(seen.handles);
            all.died += seen.died;
        }
        println!(
            "{} calls gave an address, {} died",
            all.tenures.len(),
            all.died
        );
        assert!(all.died > CLIENTS / 2, "{}", all.died);
        assert!(all.tenures.len() > CLIENTS, "{}", all.tenures.len());
        never_twice(&all.tenures);

        let store = store(&server, None);
        let client = Client::new(store.clone());
        let mut left = BTreeSet::new();
        for finding in client.check().await.expect("a check") {
            let of_a_death = match &finding {
                Inconsistency::Count { counted, held, .. } => counted.is_some_and(|n| n > *held),
                Inconsistency::Affinity { .. } | Inconsistency::NoAffinity(..) => true,
                finding => !finding.is_fault(),
            };
            assert!(of_a_death, "{finding}");
            left.insert(format!("{finding}"));
        }
        println!("left by deaths: {left:#?}");
        for handle in &all.handles {
            let released = client.release_by_handle(&handle.as_str().into(), &[]).await;
            released.unwrap_or_else(|e| panic!("{handle}: {e}"));
        }
        mend(&store).await;
        let (view, users) = survey(&store).await;
        let found = audit(&view, &users, now());
        assert_eq!(found.problems(), 0, "{found:?}");
        assert!(view.handles.is_empty(), "{:?}", view.handles);
        let used = view.blocks.values().map(|known| known.value.in_use());
        assert_eq!(used.sum::<usize>(), 0);
    });
}

/// The writes of a pod's life, as requests: claim, take, release, give back, each with its two
/// steps of a deletion.
const WRITES: [(&str, &str); 9] = [
    ("POST", "blockaffinities"),
    ("POST", "ipamblocks"),
    ("PUT", "blockaffinities"),
    ("POST", "ipamhandles"),
    ("PUT", "ipamblocks"),
    ("PUT", "ipamhandles"),
    ("DELETE", "ipamhandles"),
    ("DELETE", "ipamblocks"),
    ("DELETE", "blockaffinities"),
];

const HANDLE: &str = "d.one";

/// The whole of it; an error ends it where it is, as a death does.
async fn one_life(client: &Client<KubernetesStore>) -> Option<()> {
    let mut block = None;
    for _ in 0..2 {
        let got = client.auto_assign(request("node-a", HANDLE)).await.ok()?;
        block = Some(got.v4[0].block);
    }
    client.release_by_handle(&HANDLE.into(), &[]).await.ok()?;
    let owner = BlockOwner::Host("node-a".into());
    let back = client.release_block_affinity(&owner, block?, true).await;
    back.ok().map(drop)
}

#[test]
fn a_death_before_and_after_each_write_is_put_right() {
    let Some(server) = started("each-write", &[]) else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let client = Client::new(store.clone());
        for (method, kind) in WRITES {
            for fault in ["reset", "lost"] {
                let path = format!("/apis/crd.projectcalico.org/v1/{kind}");
                let rule = json!({"path": path, "method": method, "fault": fault, "count": 1});
                server.request("POST", "/test/faults", &rule).expect(200);
                let what = format!("{fault} {method} {kind}");
                assert_eq!(one_life(&client).await, None, "{what}: nobody died");
                let rules = server.get("/test/faults").expect(200);
                assert_eq!(rules[0]["left"], 0, "{what}: {rules}");
                let clear = server.request("DELETE", "/test/faults", &json!(null));
                clear.expect(200);

                // Who comes next works on, and what was left is put right.
                let next = client.auto_assign(request("node-b", "d.next")).await;
                next.unwrap_or_else(|e| panic!("{what}: {e}"));
                let (view, users) = survey(&store).await;
                let found = audit(&view, &users, now());
                for handle in [HANDLE, "d.next"] {
                    let released = client.release_by_handle(&handle.into(), &[]).await;
                    released.unwrap_or_else(|e| panic!("{what}: {e}: {found:?}"));
                }
                mend(&store).await;
                let (view, users) = survey(&store).await;
                let found = audit(&view, &users, now());
                assert_eq!(found.problems(), 0, "{what}: {found:?}");
                assert!(view.handles.is_empty(), "{what}: {:?}", view.handles);
                for node in ["node-a", "node-b"] {
                    let owner = BlockOwner::Host(node.into());
                    for block in view.blocks.keys() {
                        let back = client.release_block_affinity(&owner, *block, true).await;
                        back.unwrap_or_else(|e| panic!("{what}: {e}"));
                    }
                }
            }
        }
        let (view, _) = survey(&store).await;
        assert!(
            view.blocks.is_empty() && view.affinities.is_empty(),
            "{view:?}"
        );
    });
}
