//! IPAM and CNI while everything around them is killed: 200 pods come and go on three nodes, and
//! plugins, nodes and the datastore (etcd, or the API server and its etcd) die by SIGKILL at random
//! moments. Afterwards nothing may be left, and by
//! the log of results no address may ever have been held twice (IPAM-1).
//!
//! `CARACAL_CHAOS_SEED=n` repeats the choices of a run; the timing remains the machine's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caracal_datastore::Store;
use caracal_ipam::Inconsistency;
use caracal_lab::{
    CniError, Lab, PodState, ProgramError, RouteKind, container_id, error_chain, parse_cni_result,
    run_in_netns, time_scale, wait_for, wait_until,
};
use caracal_model::{Family, KeyRange, Kind, kind_prefix};
use caracal_tests::{
    SECOND, Stack, assert_gone, await_settled, bind_pods, caracals, datastore_port, either,
    family_count, is_kubernetes, more_pods, on_each_stack_and_datastore_of, start_datastore,
    stop_datastore, with_ipam,
};
use serde_json::json;

const PODS: usize = 200;
/// On the other stacks and the other datastore: the same, smaller, beside the first.
const FEWER_PODS: usize = 90;
/// Runtimes that work at the same time on each node.
const WORKERS: usize = 3;
/// Pods that a worker keeps before it deletes the oldest.
const KEPT: usize = 8;
/// A blow to a node or to etcd after so many pods.
const BLOW_EVERY: usize = 24;
/// A plugin that is to die does so within so many hundredths of the time that calls took so far:
/// most die half-way, on a fast machine and on a busy one.
const LONGEST_LIFE: u64 = 120;
/// Duration of a call, before one was measured.
const FIRST_LIFE: Duration = Duration::from_millis(100);

/// Blocks of eight addresses, so that blocks are claimed, borrowed from and given back all the
/// time.
const TOPOLOGY: &str = "
name: chaos
description: three nodes, small blocks
pool: {}
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 0}
  - {name: node2, segment: lan, address: 10.0.0.2, pods: 0}
  - {name: node3, segment: lan, address: 10.0.0.3, pods: 0}
";

fn topology(stack: Stack) -> String {
    stack.with_pools(TOPOLOGY, |family| {
        let (cidr, block) = either(family, ("10.244.0.0/24", 29), ("fd00:10:244::/120", 125));
        json!({"cidr": cidr, "blockSize": block})
    })
}

/// The addresses of a pod, one of each family.
type Addresses = Vec<IpAddr>;

/// SplitMix64: the choices of a run follow from its seed.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn seed() -> u64 {
    let clock = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_micros()
    };
    std::env::var("CARACAL_CHAOS_SEED").map_or_else(
        |_| u64::try_from(clock()).unwrap(),
        |text| text.parse().unwrap(),
    )
}

/// A span of time in which a pod had an address for certain: from the answer to its ADD to the
/// first attempt to delete it.
#[derive(Clone, Debug)]
struct Tenure {
    address: IpAddr,
    #[expect(dead_code, reason = "read by its Debug, in the failure")]
    pod: String,
    from: Instant,
    to: Instant,
}

#[derive(Default)]
struct Tally {
    added: AtomicUsize,
    refused: AtomicUsize,
    killed: AtomicUsize,
    done: AtomicUsize,
    /// Calls that came to their end, and the microseconds that they took.
    ended: AtomicUsize,
    spent: AtomicU64,
}

impl Tally {
    /// Usual duration of a call.
    fn usual(&self) -> Duration {
        match u64::try_from(self.ended.load(Ordering::Relaxed)).unwrap() {
            0 => FIRST_LIFE,
            n => Duration::from_micros(self.spent.load(Ordering::Relaxed) / n),
        }
    }

    fn took(&self, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap();
        self.spent.fetch_add(microseconds, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

struct Storm<'a> {
    lab: Lab,
    tally: &'a Tally,
    log: &'a Mutex<Vec<Tenure>>,
    refusals: &'a Mutex<BTreeMap<String, usize>>,
    /// Every container there ever was.
    containers: &'a Mutex<Vec<PodState>>,
}

fn was_killed(error: &CniError) -> bool {
    matches!(
        error,
        CniError::Program {
            source: ProgramError::Hung { .. },
            ..
        }
    )
}

impl Storm<'_> {
    /// One call, in one case of four killed at a random moment.
    fn call(&self, dice: &mut Dice, verb: &'static str, pod: &PodState) -> Option<String> {
        let mortal = dice.one_in(4);
        let life = if mortal {
            let percent = u32::try_from(dice.below(LONGEST_LIFE)).unwrap();
            (self.tally.usual() * percent / 100).div_f64(time_scale())
        } else {
            60 * SECOND
        };
        let start = Instant::now();
        match self.lab.cni_within(verb, pod, life) {
            Ok(answer) => {
                self.tally.took(start.elapsed());
                Some(answer)
            }
            Err(error) if was_killed(&error) => {
                assert!(mortal, "{verb} of {} hangs", pod.label());
                self.tally.killed.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(error) => {
                self.tally.refused.fetch_add(1, Ordering::Relaxed);
                let text = error_chain(&error).replace(&pod.label(), "POD");
                let is_away = text.contains("does not answer");
                *self.refusals.lock().unwrap().entry(text).or_default() += 1;
                if is_away {
                    self.await_datastore();
                }
                None
            }
        }
    }

    /// Runtimes try again after a while, and not at once while nobody answers.
    fn await_datastore(&self) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, datastore_port(&self.lab)));
        let connect = || TcpStream::connect(address);
        let netns = self.lab.layout().etcd_netns();
        wait_until(60 * SECOND, "the datastore to listen", || {
            let connected = run_in_netns(&netns, connect).unwrap();
            connected.map(drop).map_err(|e| e.to_string())
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }

    /// ADD as a runtime does it: what failed is tried again, with the same container.
    fn add(&self, dice: &mut Dice, pod: &PodState) -> Option<(Addresses, Instant)> {
        let mut held: Option<(Addresses, Instant)> = None;
        for _ in 0..3 {
            let Some(answer) = self.call(dice, "ADD", pod) else {
                if held.is_some() || dice.one_in(3) {
                    break;
                }
                continue;
            };
            let at = Instant::now();
            let attachment = parse_cni_result(&answer).unwrap();
            let second = attachment.address6.map(IpAddr::V6);
            let addresses: Addresses = std::iter::once(attachment.address).chain(second).collect();
            assert_eq!(addresses.len(), family_count(&self.lab), "{answer}");
            if let Some((before, _)) = &held {
                assert_eq!(
                    *before,
                    addresses,
                    "a repeated ADD of {} differs",
                    pod.label()
                );
            }
            held = held.or(Some((addresses, at)));
            if !dice.one_in(8) {
                break;
            }
        }
        self.tally
            .added
            .fetch_add(usize::from(held.is_some()), Ordering::Relaxed);
        held
    }

    fn delete(&self, dice: &mut Dice, pod: &PodState, held: Option<(Addresses, Instant)>) {
        if let Some((addresses, from)) = held {
            let to = Instant::now();
            let tenures = addresses.into_iter().map(|address| Tenure {
                address,
                pod: pod.label(),
                from,
                to,
            });
            self.log.lock().unwrap().extend(tenures);
        }
        let _cleaned_up_after_the_storm = self.call(dice, "DEL", pod);
    }

    fn worker(&self, mut dice: Dice, pods: &[PodState]) {
        let mut kept = VecDeque::new();
        for pod in pods {
            kept.push_back(self.create(&mut dice, pod));
            if kept.len() > KEPT {
                let (pod, held) = kept.pop_front().unwrap();
                self.delete(&mut dice, &pod, held);
                if dice.one_in(4) {
                    // The pod is restarted: another container of the same name in the same
                    // namespace, though its predecessor's DEL may have been killed half-way.
                    kept.push_back(self.create(&mut dice, &pod));
                }
            }
            self.tally.done.fetch_add(1, Ordering::Relaxed);
        }
        for (pod, held) in kept {
            self.delete(&mut dice, &pod, held);
        }
    }

    fn create(&self, dice: &mut Dice, pod: &PodState) -> (PodState, Option<(Addresses, Instant)>) {
        let container = container_id();
        let pod = PodState {
            container,
            ..pod.clone()
        };
        self.containers.lock().unwrap().push(pod.clone());
        let held = self.add(dice, &pod);
        (pod, held)
    }
}

/// Kills the datastore and starts it again: etcd, or the API server or the etcd below it.
fn hit_datastore(lab: &mut Lab, dice: &mut Dice) -> &'static str {
    let server = is_kubernetes(lab) && dice.one_in(2);
    if server {
        stop_datastore(lab);
        start_datastore(lab);
        return "the API server";
    }
    lab.kill9_etcd().unwrap();
    lab.start_etcd().unwrap();
    "etcd"
}

/// Kills a node, the datastore, or both, and starts them again, each time that so many pods are
/// done.
fn blows(lab: &mut Lab, pods: usize, mut dice: Dice, done: &AtomicUsize) -> usize {
    let mut blows = 0;
    let nodes = caracals(lab);
    for threshold in (BLOW_EVERY..pods).step_by(BLOW_EVERY) {
        let seen = || done.load(Ordering::Relaxed);
        wait_for(300 * SECOND, "pods done", seen, |n| *n >= threshold).unwrap();
        let node = &nodes[usize::try_from(dice.below(3)).unwrap()];
        let (hit_node, hit_store) = match dice.below(4) {
            0 => (true, true),
            1 => (false, true),
            _ => (true, false),
        };
        let mut hit = Vec::new();
        if hit_node {
            lab.kill9_node(node).unwrap();
            hit.push(node.as_str());
        }
        if hit_store {
            hit.push(hit_datastore(lab, &mut dice));
        }
        if hit_node {
            lab.start_node(node).unwrap();
        }
        println!(
            "{}: after {threshold} pods: kill -9 {}",
            lab.name(),
            hit.join(", ")
        );
        blows += hit.len();
    }
    blows
}

/// IPAM-1, by results alone: no two pods had one address at one time.
fn assert_never_twice(log: &[Tenure]) {
    for (n, a) in log.iter().enumerate() {
        for b in &log[n + 1..] {
            let apart = a.address != b.address || a.to <= b.from || b.to <= a.from;
            assert!(apart, "IPAM-1: {a:?} and {b:?}");
        }
    }
}

/// No interface and no route of a pod on any node.
fn assert_nodes_clean(lab: &Lab) {
    for node in caracals(lab) {
        let look = || {
            let local = RouteKind::Local;
            let routes = lab.routes(&node).unwrap();
            let left: Vec<_> = routes
                .into_iter()
                .filter(|r| r.classify(&[]) == local)
                .collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        };
        wait_until(60 * SECOND, "no route of a pod", look)
            .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(&node, 40)));
        let links = run_in_netns(&lab.netns(&node).unwrap(), || {
            std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
        });
        let links = links.unwrap();
        let left: Vec<_> = links
            .lines()
            .filter(|l| l.trim().starts_with("cali"))
            .collect();
        assert!(left.is_empty(), "{node}: {left:?}");
        let pending_releases = lab.folder().lib(&node).join("cni-tombstones");
        let names = std::fs::read_dir(pending_releases)
            .into_iter()
            .flatten()
            .flatten();
        let left: Vec<_> = names
            .map(|e| e.file_name())
            .filter(|n| n.to_string_lossy().ends_with(".json"))
            .collect();
        assert!(left.is_empty(), "{node}: pending releases {left:?}");
    }
}

/// Ordered writes leave more behind than transactions do (decision 0093): affinities without their
/// block, blocks without their affinity, handles that count too much. Nothing else, and each is put
/// right without being asked about.
fn mend(lab: &Lab) {
    let findings = with_ipam(lab, async |client, _| client.check().await.unwrap());
    for finding in findings.iter().filter(|finding| finding.is_fault()) {
        let of_a_death = match finding {
            Inconsistency::Affinity { .. } | Inconsistency::NoAffinity(..) => true,
            Inconsistency::Count { counted, held, .. } => counted.is_some_and(|n| n > *held),
            _ => false,
        };
        assert!(of_a_death, "{finding:?}");
        println!("left by a death: {finding}");
    }
    let node = &caracals(lab)[0];
    let fixed = lab.caracal(node, &["ipam", "check", "--fix", "--min-age", "0"]);
    println!(
        "{}",
        fixed.unwrap_or_else(|e| panic!("{}", error_chain(&e)))
    );
}

/// IPAM's data is in order, and holds nothing any more; no WorkloadEndpoint is left.
fn assert_datastore_clean(lab: &Lab) {
    if is_kubernetes(lab) {
        mend(lab);
    }
    let (findings, view, endpoints) = with_ipam(lab, async |client, store| {
        let endpoints = KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint));
        let endpoints = store.read(&[endpoints]).await.unwrap().ranges.remove(0);
        (
            client.check().await.unwrap(),
            client.view().await.unwrap(),
            endpoints,
        )
    });
    let (faults, unfinished): (Vec<_>, Vec<_>) = findings.iter().partition(|f| f.is_fault());
    assert!(faults.is_empty(), "{faults:?}");
    for finding in unfinished {
        println!("left for the next claim: {finding}");
    }
    let handles: Vec<_> = view.handles.keys().collect();
    assert!(handles.is_empty(), "{handles:?}");
    let held: Vec<_> = view
        .blocks
        .values()
        .filter(|b| b.value.in_use() > 0)
        .collect();
    assert!(held.is_empty(), "{held:?}");
    let keys: Vec<_> = endpoints.iter().map(|e| &e.key).collect();
    assert!(keys.is_empty(), "{keys:?}");
    println!("{} blocks, none with an address in use", view.blocks.len());
    // An operator would see this: any other exit status than success is an error here.
    let node = &caracals(lab)[0];
    let checked = lab.caracal(node, &["ipam", "check"]);
    println!(
        "{}",
        checked.unwrap_or_else(|e| panic!("{}", error_chain(&e)))
    );
}

#[test]
fn two_hundred_pods_while_plugins_nodes_and_datastores_are_killed() {
    let scenario = "two_hundred_pods_while_plugins_nodes_and_datastores_are_killed";
    let text = |stack, _lab: &str| topology(stack);
    on_each_stack_and_datastore_of(scenario, &[], "e2e-chaos", text, |lab| {
        let first = lab.topology().families() == [Family::Ipv4] && !is_kubernetes(&lab);
        storm(lab, if first { PODS } else { FEWER_PODS });
    });
}

fn storm(mut lab: Lab, count_of_pods: usize) {
    let seed = seed();
    println!("{}: CARACAL_CHAOS_SEED={seed}", lab.name());
    let start = Instant::now();
    let nodes = caracals(&lab);
    let pods = more_pods(
        &lab,
        (0..count_of_pods).map(|n| nodes[n % nodes.len()].as_str()),
    );
    bind_pods(&lab, &pods);
    let (tally, log, refusals) = (Tally::default(), Mutex::default(), Mutex::default());
    let containers = Mutex::default();
    let hits = std::thread::scope(|scope| {
        for (n, (node, part)) in nodes
            .iter()
            .flat_map(|node| (0..WORKERS).map(move |part| (node, part)))
            .enumerate()
        {
            let mine = pods.iter().filter(|pod| pod.node == *node);
            let mine: Vec<_> = mine.skip(part).step_by(WORKERS).cloned().collect();
            // A handle of its own on the same lab: it never starts or ends anything but plugins.
            let storm = Storm {
                lab: Lab::attach(lab.name()).unwrap(),
                tally: &tally,
                log: &log,
                refusals: &refusals,
                containers: &containers,
            };
            let dice = Dice(seed ^ (u64::try_from(n).unwrap() << 32));
            scope.spawn(move || storm.worker(dice, &mine));
        }
        blows(&mut lab, count_of_pods, Dice(seed), &tally.done)
    });
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{}: {count_of_pods} pods, some restarted, in {:.1?}: {} attached, {} plugins killed, {} calls refused, {hits} nodes and datastores killed",
        lab.name(),
        start.elapsed(),
        count(&tally.added),
        count(&tally.killed),
        count(&tally.refused),
    );
    for (text, times) in refusals.into_inner().unwrap() {
        println!("{times} x {text}");
    }
    for node in &nodes {
        lab.await_node(node).unwrap();
    }
    await_settled(&lab);
    let containers = containers.into_inner().unwrap();
    std::thread::scope(|scope| {
        for node in &nodes {
            let (lab, containers) = (&lab, &containers);
            scope.spawn(move || {
                for pod in containers.iter().filter(|pod| pod.node == *node) {
                    let deleted = lab.cni("DEL", pod);
                    assert!(deleted.is_ok(), "{}", error_chain(&deleted.unwrap_err()));
                }
                let collected = lab.cni_gc(node, &[]);
                assert!(
                    collected.is_ok(),
                    "{}",
                    error_chain(&collected.unwrap_err())
                );
            });
        }
    });
    let log = log.into_inner().unwrap();
    assert!(
        log.len() > count_of_pods / 2,
        "most pods were attached: {}",
        log.len()
    );
    assert!(count(&tally.killed) > count_of_pods / 10);
    assert_never_twice(&log);
    assert_nodes_clean(&lab);
    assert_datastore_clean(&lab);
    println!("clean after {:.1?}", start.elapsed());
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}
