//! An etcd of some lines, processes that take steps, and the search through all their orders.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caracal_flannel::{
    Acquire, AcquireError, AcquireInput, AcquireRequest, AcquireStep, DeviceMac, FlannelConfig,
    FlannelKeys, NodeSubnets, OwnLease, SubnetLease,
};
use caracal_model::{Compare, KeyRange, KeyValue, LeasedTxn, LeasedValue, TxnOutcome, TxnWrite};

pub const PREFIX: &str = "/coreos.com/network";

pub fn config(text: &str) -> FlannelConfig {
    FlannelConfig::parse(text.as_bytes()).unwrap()
}

pub fn subnets(key: &str) -> NodeSubnets {
    NodeSubnets::parse_key(key).unwrap()
}

/// What a node with this address wants at its first start.
pub fn request(config: &FlannelConfig, public_ip: [u8; 4]) -> AcquireRequest {
    AcquireRequest {
        keys: FlannelKeys::new(PREFIX),
        config: config.clone(),
        public_ip: Some(public_ip.into()),
        public_ipv6: None,
        macs: [DeviceMac::Fresh([2, 0, 0, 0, 0, public_ip[3]]); 2],
        devices_stand: true,
        previous: None,
        written: None,
        ttl: Duration::from_secs(86_400),
        seed: 0,
    }
}

/// Value, revision, and whether it goes with a lease of etcd's.
type Stored = (Vec<u8>, i64, bool);

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    pub keys: BTreeMap<String, Stored>,
    pub revision: i64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (key, (value, revision, leased)) in &self.keys {
            let value = String::from_utf8_lossy(value);
            writeln!(f, "{key} @{revision} leased={leased} {value}")?;
        }
        Ok(())
    }
}

impl World {
    pub fn put(&mut self, key: &str, value: &str, leased: bool) {
        self.revision += 1;
        let key = format!("{PREFIX}/subnets/{key}");
        self.keys.insert(key, (value.into(), self.revision, leased));
    }

    pub fn read(&self, range: &KeyRange) -> AcquireInput {
        let KeyRange::Prefix(prefix) = range else {
            panic!("the machine reads all leases")
        };
        let below = self
            .keys
            .iter()
            .filter(|(key, _)| key.starts_with(prefix.as_str()));
        let values = below.map(|(key, (value, mod_revision, leased))| LeasedValue {
            stored: KeyValue {
                key: key.clone(),
                value: value.clone(),
                mod_revision: *mod_revision,
            },
            lease: i64::from(*leased),
        });
        AcquireInput::Read {
            revision: self.revision,
            values: values.collect(),
        }
    }

    pub fn commit(&mut self, leased: &LeasedTxn) -> TxnOutcome {
        let txn = &leased.txn;
        for write in &txn.writes {
            let compared = txn.compare.iter().any(|c| c.key() == write.key());
            assert!(
                compared,
                "FLANNEL-6: {} is written without comparison",
                write.key()
            );
        }
        let holds = txn.compare.iter().all(|compare| match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Unchanged(key, revision) => {
                self.keys.get(key).is_some_and(|(_, r, _)| r == revision)
            }
        });
        let quiet = leased
            .unchanged_below
            .as_ref()
            .is_none_or(|(prefix, revision)| {
                let mut below = self
                    .keys
                    .iter()
                    .filter(|(key, _)| key.starts_with(prefix.as_str()));
                below.all(|(_, (_, r, _))| r <= revision)
            });
        if !holds || !quiet {
            return TxnOutcome::Conflict;
        }
        self.revision += 1;
        for write in &txn.writes {
            match write {
                TxnWrite::Put(key, value) => {
                    let before = self.keys.get(key).map(|(_, _, leased)| *leased);
                    assert!(
                        before != Some(false) || leased.ttl.is_none(),
                        "FLANNEL-5: {key}"
                    );
                    let stored = (value.clone(), self.revision, leased.ttl.is_some());
                    self.keys.insert(key.clone(), stored);
                }
                TxnWrite::Delete(key) => {
                    drop(self.keys.remove(key).expect("deletes what is there"))
                }
            }
        }
        TxnOutcome::Committed(self.revision)
    }

    pub fn leases(&self) -> impl Iterator<Item = (NodeSubnets, SubnetLease)> {
        let keys = FlannelKeys::new(PREFIX);
        self.keys.iter().filter_map(move |(key, (value, ..))| {
            Some((keys.subnets(key)?, SubnetLease::parse(value).ok()?))
        })
    }

    /// FLANNEL-1.
    pub fn assert_disjoint(&self) {
        let all: Vec<NodeSubnets> = self.leases().map(|(subnets, _)| subnets).collect();
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert!(
                    !one.overlap(other),
                    "FLANNEL-1: {one} and {other}\n{self:?}"
                );
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Has(Box<OwnLease>),
    Refused(AcquireError),
    Crashed,
}

/// A process that takes its lease, step by step.
#[derive(Clone, Debug)]
pub struct Actor {
    machine: Acquire,
    /// What it does next.
    next: AcquireStep,
    pub end: Option<End>,
}

impl Actor {
    pub fn new(request: AcquireRequest) -> Self {
        let mut machine = Acquire::new(request);
        let next = machine.step(AcquireInput::Start);
        Self {
            machine,
            next,
            end: None,
        }
    }

    /// One question or order to etcd, and what the machine makes of the answer.
    pub fn go(&mut self, world: &mut World) {
        let seen = match &self.next {
            AcquireStep::Read(range) => world.read(range),
            AcquireStep::Commit(txn) => match world.commit(txn) {
                TxnOutcome::Committed(revision) => AcquireInput::Committed(revision),
                TxnOutcome::Conflict => AcquireInput::Conflict,
            },
            _ => panic!("it has ended"),
        };
        self.next = self.machine.step(seen);
        match &self.next {
            AcquireStep::Done(lease) => self.end = Some(End::Has(Box::new(lease.clone()))),
            AcquireStep::Failed(error) => self.end = Some(End::Refused(error.clone())),
            _ => {}
        }
    }

    /// To the end, alone.
    pub fn run(mut self, world: &mut World) -> End {
        while self.end.is_none() {
            self.go(world);
        }
        self.end.unwrap()
    }
}

/// All orders of the steps of some processes.
#[derive(Default)]
pub struct Search {
    pub histories: usize,
    /// How the processes ended, each combination once.
    pub ends: Vec<Vec<End>>,
    /// What was in etcd then.
    pub worlds: BTreeSet<World>,
}

impl Search {
    pub fn run(&mut self, world: World, actors: Vec<Actor>, crashes: usize, expiries: usize) {
        world.assert_disjoint();
        let live: Vec<usize> = (0..actors.len())
            .filter(|i| actors[*i].end.is_none())
            .collect();
        if live.is_empty() {
            self.histories += 1;
            let ends: Vec<End> = actors.into_iter().filter_map(|a| a.end).collect();
            if !self.ends.contains(&ends) {
                self.ends.push(ends);
            }
            self.worlds.insert(world);
            return;
        }
        for turn in live {
            let (mut world, mut actors) = (world.clone(), actors.clone());
            if crashes > 0 {
                let mut crashed = actors.clone();
                crashed[turn].end = Some(End::Crashed);
                self.run(world.clone(), crashed, crashes - 1, expiries);
            }
            actors[turn].go(&mut world);
            self.run(world, actors, crashes, expiries);
        }
        if expiries == 0 {
            return;
        }
        for key in world
            .keys
            .iter()
            .filter(|(_, (.., leased))| *leased)
            .map(|(key, _)| key)
        {
            let mut world = world.clone();
            world.keys.remove(key);
            world.revision += 1;
            self.run(world, actors.clone(), crashes, expiries - 1);
        }
    }
}
