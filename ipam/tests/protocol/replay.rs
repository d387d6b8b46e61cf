//! The histories of the exhaustive search, replayed on a real etcd: the same machines in the same
//! order, one I/O at a time, beside the model. Whatever the model says, etcd must say: each
//! transaction takes effect in both or in neither, and at the end both hold the same data. Then the
//! same histories again with a death injected before and after each write, after which nothing may
//! be lost (IPAM-10).

use std::collections::BTreeMap;

use crate::histories::{Branch, SCENARIOS, Scenario, Search, Turn, advance, stage, start};
use crate::world::actor::{Actor, Wish};
use crate::world::{World, after};
use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, Store};
use caracal_ipam::Assign;
use caracal_ipam::ReleaseNode;
use caracal_ipam::{AssignRequest, Client, Input, Reading};
use caracal_ipam::{Inconsistency, check};
use caracal_model::{Compare, KeyRange, Prefix, Txn, TxnOutcome, TxnWrite};

const ALL: &str = "/calico/";

/// Histories of a scenario that are replayed as they are.
const REPLAYED: usize = 40;

/// Crash-free histories of a scenario that deaths are injected into.
const INJECTED: usize = 3;

/// The data that etcd holds.
async fn stored(store: &EtcdStore) -> BTreeMap<String, (i64, Vec<u8>)> {
    let answer = store
        .read(&[KeyRange::Prefix(ALL.to_owned())])
        .await
        .unwrap();
    let all = answer.ranges.into_iter().flatten();
    all.map(|kv| (kv.key, (kv.mod_revision, kv.value)))
        .collect()
}

fn values(keys: &BTreeMap<String, (i64, Vec<u8>)>) -> BTreeMap<&str, String> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    keys.iter()
        .map(|(key, (_, value))| (key.as_str(), text(value)))
        .collect()
}

/// Makes etcd hold what the scenario starts with, in one transaction.
async fn reset(store: &EtcdStore, world: &World) {
    let mut txn = Txn::new();
    for (key, (revision, _)) in stored(store).await {
        txn.compare.push(Compare::Unchanged(key.clone(), revision));
        if !world.keys.contains_key(&key) {
            txn.writes.push(TxnWrite::Delete(key));
        }
    }
    for (key, (_, value)) in &world.keys {
        txn.writes.push(TxnWrite::Put(key.clone(), value.clone()));
    }
    let outcome = store.commit(&txn).await.unwrap();
    assert!(matches!(outcome, TxnOutcome::Committed(_)));
}

/// The model and etcd, side by side.
struct Lockstep<'a> {
    store: &'a EtcdStore,
    model: Branch,
    /// The clients' machines as they talk to etcd.
    actors: Vec<Option<Actor>>,
}

impl<'a> Lockstep<'a> {
    async fn start(store: &'a EtcdStore, scenario: &Scenario) -> Self {
        reset(store, &stage(scenario)).await;
        let model = start(scenario);
        Self {
            store,
            actors: vec![None; model.clients.len()],
            model,
        }
    }

    /// One I/O of a client in both. True when it was a transaction that took effect.
    async fn go(&mut self, index: usize) -> bool {
        if self.actors[index].is_none() {
            self.model.begin(index);
            self.actors[index] = self.model.clients[index].actor.clone();
        }
        let actor = self.actors[index].as_mut().unwrap();
        let (seen, wrote) = match actor.wish() {
            Wish::Read(ranges) => {
                let answer = self.store.read(ranges).await.unwrap();
                let reading = Reading {
                    revision: answer.revision,
                    ranges: answer.ranges,
                };
                (Input::Read(reading), false)
            }
            Wish::Commit(txn) => match self.store.commit(txn).await.unwrap() {
                TxnOutcome::Committed(revision) => (Input::Committed(revision), true),
                TxnOutcome::Conflict => (Input::Conflict, false),
            },
            Wish::End(_) => (Input::Start, false),
        };
        actor.answer(seen);
        let ended = actor.end().is_some();
        let before = self.model.world.revision;
        advance(&mut self.model, index);
        let took_effect = self.model.world.revision != before;
        assert_eq!(took_effect, wrote, "etcd and the model differ");
        assert_eq!(ended, self.model.clients[index].actor.is_none());
        if ended {
            self.actors[index] = None;
        }
        wrote
    }

    fn kill(&mut self, index: usize) {
        self.actors[index] = None;
        self.model.kill(index);
    }

    async fn assert_same(&self, what: &str) {
        let real = stored(self.store).await;
        assert_eq!(values(&real), values(&self.model.world.keys), "{what}");
    }

    /// Everybody who lives goes on to the end, one after the other.
    async fn finish(&mut self) {
        while let Some(index) = self.model.clients.iter().position(|client| {
            let behind = client.script.behind.iter();
            let may = behind.clone().all(|i| self.model.clients[*i].is_over());
            !client.is_over() && may
        }) {
            self.go(index).await;
        }
    }
}

async fn assert_nothing_lost(store: &EtcdStore, scenario: &Scenario, what: &str) {
    let client = Client::new(store.clone());
    let sound = async || {
        let mut findings = check(&client.view().await.unwrap(), after(1_000_000));
        findings.retain(Inconsistency::is_fault);
        assert_eq!(findings, [], "{what}");
    };
    sound().await;
    for host in ["node-0", "node-1"] {
        let machine = ReleaseNode::new(host.into(), after(40_000));
        client.drive(machine).await.unwrap();
    }
    let mut request = AssignRequest::workload("node-1".into(), "all".into());
    let pool: Prefix = scenario.pool.parse().unwrap();
    request.num_v4 = usize::try_from(pool.size()).unwrap();
    let all = client.drive(Assign::new(request, after(50_000))).await;
    assert!(all.is_ok(), "IPAM-10: {what}: {all:?}");
    sound().await;
}

/// The schedule, up to its nth write; that client dies before or after it, and the others go on.
/// False when there are fewer writes.
async fn inject(
    store: &EtcdStore,
    scenario: &Scenario,
    turns: &[Turn],
    at: usize,
    before: bool,
) -> bool {
    let what = format!("{}, death at write {at}, before: {before}", scenario.name);
    let mut both = Lockstep::start(store, scenario).await;
    let (mut writes, mut victim) = (0, None);
    for turn in turns {
        let Turn::Goes(index) = *turn else {
            continue;
        };
        if victim == Some(index) || both.model.clients[index].is_over() {
            continue;
        }
        if victim.is_some() {
            both.go(index).await;
            continue;
        }
        if both.actors[index].is_none() {
            both.model.begin(index);
            both.actors[index] = both.model.clients[index].actor.clone();
        }
        let is_write = matches!(both.actors[index].as_ref().unwrap().wish(), Wish::Commit(_));
        writes += usize::from(is_write);
        let is_it = is_write && writes == at;
        if !(is_it && before) {
            both.go(index).await;
        }
        if is_it {
            both.kill(index);
            victim = Some(index);
        }
    }
    if victim.is_none() {
        return false;
    }
    both.finish().await;
    both.assert_same(&what).await;
    assert_nothing_lost(store, scenario, &what).await;
    true
}

#[tokio::test]
async fn etcd_does_what_the_model_does_and_a_death_at_any_write_loses_nothing() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = EtcdStore::new(EtcdConfig::new([server.endpoint()])).unwrap();
    let (mut replays, mut deaths) = (0, 0);
    for scenario in SCENARIOS {
        let search = Search::through(scenario);
        let few = search.histories.len().div_ceil(REPLAYED);
        for history in search.histories.iter().step_by(few) {
            let mut both = Lockstep::start(&store, scenario).await;
            for turn in &history.turns {
                match *turn {
                    Turn::Goes(index) => drop(both.go(index).await),
                    Turn::Dies(index) => both.kill(index),
                }
            }
            let what = format!("{}: {:?}", scenario.name, history.turns);
            assert_eq!(values(&both.model.world.keys), values(&history.end.keys));
            both.assert_same(&what).await;
            replays += 1;
        }
        let is_calm = |turn: &Turn| matches!(turn, Turn::Goes(_));
        let calm = search.histories.iter().map(|h| &h.turns);
        let calm: Vec<_> = calm.filter(|turns| turns.iter().all(is_calm)).collect();
        assert!(!calm.is_empty());
        for turns in calm.iter().step_by(calm.len().div_ceil(INJECTED)) {
            for before in [true, false] {
                for at in 1.. {
                    if !inject(&store, scenario, turns, at, before).await {
                        break;
                    }
                    deaths += 1;
                }
            }
        }
    }
    println!("{replays} histories replayed, {deaths} deaths injected");
    assert!(replays > 100 && deaths > 100);
}
