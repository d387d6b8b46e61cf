//! Every write of every operation on a real etcd, hit: the process dies just before it or just
//! after it, with or without a rival that acts at that very moment. Then recovery, by release or by
//! a second try; the invariants hold at each point, and nothing is lost for ever (IPAM-10).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::world::{after, node, pool_with};
use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, ReadAnswer, Store, StoreError};
use caracal_ipam::{
    Assign, AssignIp, AssignIpRequest, AssignRequest, Client, ClientError, EnsureTunnel,
    Inconsistency, Machine, ReleaseAffinity, ReleaseHandle, ReleaseIps, ReleaseNode, ReleaseTarget,
    TunnelKind, check,
};
use caracal_model::{
    AllowedUse, BlockOwner, EncapMode, KeyRange, Prefix, Txn, TxnOutcome, TxnWrite,
};

/// Four blocks of four addresses.
const POOL: &str = "10.0.0.0/28";
const SIZE: usize = 16;
const HOSTS: [&str; 2] = ["node-a", "node-b"];

/// Operation of a host. Handles are named by text.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Assign(&'static str, usize),
    AssignIp(&'static str, u8),
    Release(&'static str),
    ReleaseIp(&'static str, u8),
    GiveBack(u8, bool),
    Tunnel,
    Leave,
}

/// A host, its deed, and the hour at which it does it.
type Act = (usize, Deed, u64);

fn address(n: u8) -> IpAddr {
    let pool: Prefix = POOL.parse().unwrap();
    pool.nth(u128::from(n)).unwrap()
}

/// True when the deed came to an end, also to a refusal; false when the datastore failed.
async fn drive<S: Store, M: Machine>(client: &Client<S>, machine: M) -> bool
where
    M::Error: std::error::Error + 'static,
{
    match client.drive(machine).await {
        Ok(_) | Err(ClientError::Refused(_)) => true,
        Err(ClientError::Store(_)) => false,
        Err(ClientError::Contended { attempts }) => panic!("lost {attempts} races against nobody"),
    }
}

async fn perform<S: Store>(client: &Client<S>, (host, deed, hour): Act) -> bool {
    let name = HOSTS[host];
    let now = after(hour * 3600);
    match deed {
        Deed::Assign(handle, count) => {
            let mut request = AssignRequest::workload(name.into(), handle.into());
            request.num_v4 = count;
            drive(client, Assign::new(request, now)).await
        }
        Deed::AssignIp(handle, n) => {
            let request = AssignIpRequest {
                address: address(n),
                node: name.into(),
                handle: handle.into(),
                attributes: BTreeMap::new(),
                usage: AllowedUse::Workload,
            };
            drive(client, AssignIp::new(request, now)).await
        }
        Deed::Release(handle) => {
            let machine = ReleaseHandle::new(handle.into(), Vec::new(), now);
            drive(client, machine).await
        }
        Deed::ReleaseIp(handle, n) => {
            let target = ReleaseTarget {
                address: address(n),
                handle: Some(handle.into()),
                sequence: None,
            };
            drive(client, ReleaseIps::new(vec![target], now)).await
        }
        Deed::GiveBack(n, must_be_empty) => {
            let block = Prefix::truncated(address(n), 30);
            let owner = BlockOwner::Host(name.into());
            let machine = ReleaseAffinity::new(owner, block, must_be_empty, now);
            drive(client, machine).await
        }
        Deed::Tunnel => {
            let machine = EnsureTunnel::new(TunnelKind::Ipip, name.into(), now);
            drive(client, machine).await
        }
        Deed::Leave => drive(client, ReleaseNode::new(name.into(), now)).await,
    }
}

/// Where the process dies, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Before,
    After,
    Lives,
}

/// A store whose nth commit meets a rival, and is the process's last.
#[derive(Clone)]
struct Fatal {
    store: EtcdStore,
    fate: Fate,
    at: usize,
    rival: Option<Act>,
    commits: Arc<AtomicUsize>,
}

fn died() -> StoreError {
    StoreError::Unavailable {
        endpoints: "here".to_owned(),
        reason: "the process died".to_owned(),
    }
}

impl Store for Fatal {
    type Watch = <EtcdStore as Store>::Watch;

    async fn read(&self, ranges: &[KeyRange]) -> Result<ReadAnswer, StoreError> {
        self.store.read(ranges).await
    }

    async fn commit(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let is_it = self.commits.fetch_add(1, Ordering::Relaxed) + 1 == self.at;
        if is_it && let Some(rival) = self.rival {
            perform(&Client::new(self.store.clone()), rival).await;
        }
        if is_it && self.fate == Fate::Before {
            return Err(died());
        }
        let outcome = self.store.commit(txn).await;
        if is_it && self.fate == Fate::After {
            return Err(died());
        }
        outcome
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Self::Watch, StoreError> {
        self.store.watch(prefix, revision).await
    }
}

/// Next operation of the dead process's host.
#[derive(Clone, Copy, Debug)]
enum Recovery {
    Release,
    Again,
}

/// Deeds that set the stage, and the one that is hit.
struct History {
    name: &'static str,
    stage: &'static [Act],
    deed: Act,
}

const HISTORIES: [History; 13] = [
    History {
        name: "the first block",
        stage: &[],
        deed: (0, Deed::Assign("x", 2), 1),
    },
    History {
        name: "an own block",
        stage: &[(0, Deed::Assign("w", 1), 0)],
        deed: (0, Deed::Assign("x", 1), 1),
    },
    History {
        name: "an own block and two new ones",
        stage: &[(0, Deed::Assign("w", 1), 0)],
        deed: (0, Deed::Assign("x", 9), 1),
    },
    History {
        name: "borrowing",
        stage: &[(1, Deed::Assign("v", 13), 0)],
        deed: (0, Deed::Assign("x", 2), 1),
    },
    History {
        name: "an empty block of another host, long unused",
        stage: &[(1, Deed::Assign("v", 16), 0), (1, Deed::Release("v"), 0)],
        deed: (0, Deed::Assign("x", 3), 5),
    },
    History {
        name: "an explicit address of a new block",
        stage: &[],
        deed: (0, Deed::AssignIp("x", 6), 1),
    },
    History {
        name: "an explicit address of another host's block",
        stage: &[(1, Deed::AssignIp("v", 5), 0)],
        deed: (0, Deed::AssignIp("x", 6), 1),
    },
    History {
        name: "release by handle from three blocks",
        stage: &[(0, Deed::Assign("x", 9), 0)],
        deed: (0, Deed::Release("x"), 1),
    },
    History {
        name: "release of the last address of a block without owner",
        stage: &[
            (0, Deed::AssignIp("x", 4), 0),
            (0, Deed::GiveBack(4, false), 0),
        ],
        deed: (0, Deed::ReleaseIp("x", 4), 1),
    },
    History {
        name: "an empty block given back",
        stage: &[(0, Deed::AssignIp("x", 4), 0), (0, Deed::Release("x"), 0)],
        deed: (0, Deed::GiveBack(4, true), 1),
    },
    History {
        name: "a used block disowned",
        stage: &[(0, Deed::AssignIp("x", 4), 0)],
        deed: (0, Deed::GiveBack(4, false), 1),
    },
    History {
        name: "a node gone for good",
        stage: &[
            (1, Deed::AssignIp("v", 1), 0),
            (0, Deed::AssignIp("x", 2), 0),
            (0, Deed::Assign("w", 5), 0),
            (0, Deed::Tunnel, 0),
        ],
        deed: (0, Deed::Leave, 1),
    },
    History {
        name: "a tunnel address",
        stage: &[],
        deed: (0, Deed::Tunnel, 1),
    },
];

/// The rival wants addresses, and by then the others' empty blocks are old enough to be taken.
const RIVALS: [Option<Act>; 3] = [
    None,
    Some((1, Deed::Assign("r", 5), 9)),
    Some((0, Deed::Assign("r", 3), 9)),
];

async fn reset(store: &EtcdStore) {
    let all = [KeyRange::Prefix("/calico/".to_owned())];
    let stored = store.read(&all).await.unwrap().ranges.remove(0);
    let mut txn = Txn::new();
    for key_value in stored {
        let compare =
            caracal_model::Compare::Unchanged(key_value.key.clone(), key_value.mod_revision);
        txn.compare.push(compare);
        txn.writes.push(TxnWrite::Delete(key_value.key));
    }
    let ipip = |p: &mut caracal_model::IpPool| p.spec.ipip_mode = EncapMode::Always;
    if !txn.writes.is_empty() {
        assert!(matches!(
            store.commit(&txn).await.unwrap(),
            TxnOutcome::Committed(_)
        ));
    }
    let mut txn = Txn::new();
    for (key, value) in [
        pool_with("p", POOL, 30, ipip),
        node(HOSTS[0]),
        node(HOSTS[1]),
    ] {
        txn = txn.create(key, value);
    }
    assert!(matches!(
        store.commit(&txn).await.unwrap(),
        TxnOutcome::Committed(_)
    ));
}

async fn assert_sound(client: &Client<EtcdStore>, what: &str) {
    let view = client.view().await.unwrap();
    let mut findings = check(&view, after(1_000_000));
    findings.retain(Inconsistency::is_fault);
    assert_eq!(findings, [], "{what}");
}

/// All that is held is released; then one host gets every address of the pool.
async fn assert_nothing_lost(client: &Client<EtcdStore>, what: &str) {
    for host in HOSTS {
        let machine = ReleaseNode::new(host.into(), after(40_000));
        client.drive(machine).await.unwrap();
    }
    let mut request = AssignRequest::workload(HOSTS[1].into(), "all".into());
    request.num_v4 = SIZE;
    let all = client.drive(Assign::new(request, after(50_000))).await;
    let all = all.unwrap_or_else(|e| panic!("IPAM-10: {what}: {e}"));
    let all: BTreeSet<_> = all.all().map(|a| a.address).collect();
    assert_eq!(all.len(), SIZE, "{what}");
    assert_sound(client, what).await;
}

/// One run. False when the deed ended before its nth commit: there are no more points.
async fn run(
    store: &EtcdStore,
    history: &History,
    at: usize,
    fate: Fate,
    rival: Option<Act>,
    recovery: Recovery,
) -> bool {
    let what = format!(
        "{}, commit {at}, {fate:?}, {rival:?}, {recovery:?}",
        history.name
    );
    reset(store).await;
    let client = Client::new(store.clone());
    for act in history.stage {
        assert!(perform(&client, *act).await, "{what}");
    }
    let commits = Arc::new(AtomicUsize::new(0));
    let fatal = Fatal {
        store: store.clone(),
        fate,
        at,
        rival,
        commits: Arc::clone(&commits),
    };
    let ended = perform(&Client::new(fatal), history.deed).await;
    let hit = commits.load(Ordering::Relaxed) >= at;
    assert_eq!(ended, !hit || fate == Fate::Lives, "{what}");
    assert_sound(&client, &what).await;
    match recovery {
        Recovery::Release => {
            assert!(perform(&client, (0, Deed::Release("x"), 6)).await);
            let held = client.addresses_of(&"x".into()).await.unwrap();
            assert!(held.is_empty(), "{what}: {held:?}");
        }
        Recovery::Again => assert!(perform(&client, history.deed).await, "{what}"),
    }
    assert_sound(&client, &what).await;
    assert_nothing_lost(&client, &what).await;
    hit
}

#[tokio::test]
async fn ipam_10_a_death_at_any_write_loses_nothing() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = EtcdStore::new(EtcdConfig::new([server.endpoint()])).unwrap();
    let (mut runs, mut points) = (0, 0);
    for history in &HISTORIES {
        for at in 1.. {
            runs += 1;
            if !run(&store, history, at, Fate::Lives, None, Recovery::Again).await {
                break;
            }
            points += 1;
            for fate in [Fate::Before, Fate::After, Fate::Lives] {
                for rival in RIVALS {
                    for recovery in [Recovery::Release, Recovery::Again] {
                        runs += 1;
                        let hit = run(&store, history, at, fate, rival, recovery).await;
                        assert!(hit, "{}: the same steps each time", history.name);
                    }
                }
            }
        }
    }
    println!(
        "{points} writes of {} histories hit in {runs} runs",
        HISTORIES.len()
    );
    assert!(
        points > HISTORIES.len(),
        "each history writes at least once"
    );
}
