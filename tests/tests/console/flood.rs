//! More questions than a console answers: who asks too much is told so, and routes come as fast as
//! they did.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caracal_lab::{Lab, scaled_time, wait_until};
use caracal_model::{AffinityState, Block, BlockAffinity, BlockOwner, Key, Prefix};
use caracal_tests::{SECOND, get_http, run_on};

use super::{PORT, ask};

/// Clients that ask again as soon as they have an answer.
const CLIENTS: usize = 6;
/// A route is in the kernel of another node after this time at most.
const LATE: Duration = SECOND;
/// Questions that cost much, and some that cost little.
const PATHS: [&str; 4] = ["routes?limit=1000", "audit", "nodes", "status"];

/// Blocks of the lab's pool that nobody has: the last ones.
fn free_blocks(lab: &Lab) -> Vec<Prefix> {
    let taken = lab.etcdctl(&["get", "--prefix", "--keys-only", "/calico/ipam"], b"");
    let taken = taken.unwrap();
    let blocks = (0..16).rev().map(|n| format!("10.244.0.{}/28", 16 * n));
    let free = blocks.filter(|cidr| !taken.contains(&cidr.replace('/', "-")));
    free.map(|cidr| cidr.parse().unwrap()).collect()
}

/// How long a block of node2 takes from the datastore to node1's kernel.
fn latency(lab: &Lab, cidr: Prefix) -> Duration {
    let owner = BlockOwner::Host("node2".into());
    let block = Block::new(cidr, Some(&owner), 1).to_json();
    let confirmed = BlockAffinity::new(AffinityState::Confirmed).to_json();
    let keys = [Key::Block(cidr), Key::Affinity(owner, cidr)].map(|key| key.to_path());
    lab.etcdctl(&["put", &keys[0]], &block).unwrap();
    let begin = Instant::now();
    lab.etcdctl(&["put", &keys[1]], &confirmed).unwrap();
    let is_it = |line: &str| line.starts_with(&cidr.to_string()) && line.contains("via 10.0.0.2");
    let seen = wait_until(60 * SECOND, &format!("the route to {cidr}"), || {
        let routes = run_on(lab, "node1", "ip route");
        routes.lines().any(is_it).then_some(()).ok_or(routes)
    });
    seen.unwrap_or_else(|e| panic!("{e}"));
    begin.elapsed()
}

/// What became of the questions, by status.
#[derive(Default)]
struct Told {
    answered: AtomicUsize,
    too_many: AtomicUsize,
    busy: AtomicUsize,
}

fn ask_on(lab: &Lab, told: &Told, end: &AtomicBool) {
    for path in PATHS.iter().cycle() {
        if end.load(Ordering::Relaxed) {
            return;
        }
        let count = match get_http(lab, "node1", PORT, &format!("/api/v1/{path}")) {
            Ok((200, _)) => &told.answered,
            Ok((429, _)) => &told.too_many,
            Ok((503, _)) => &told.busy,
            other => panic!("{path}: {other:?}"),
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the clients, also when something else fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Routes come while six clients ask as fast as they can, and no session notices.
pub(crate) fn slows_nobody(lab: &Lab) {
    let free = free_blocks(lab);
    assert!(free.len() >= 6, "{free:?}");
    let quiet = free[..2].iter().map(|cidr| latency(lab, *cidr)).min();
    let (told, end) = (Told::default(), AtomicBool::new(false));
    let asked = std::thread::scope(|scope| {
        let _end = End(&end);
        for _ in 0..CLIENTS {
            scope.spawn(|| ask_on(lab, &told, &end));
        }
        let refused = wait_until(60 * SECOND, "a question too many", || {
            match told.too_many.load(Ordering::Relaxed) {
                0 => Err("none yet"),
                _ => Ok(()),
            }
        });
        refused.unwrap_or_else(|e| panic!("{e}"));
        let times = free[2..6].iter().map(|cidr| latency(lab, *cidr));
        times.collect::<Vec<_>>()
    });
    println!(
        "a block was in another kernel after {quiet:?}, and after {asked:?} beside {} questions answered, {} too many, {} busy",
        told.answered.load(Ordering::Relaxed),
        told.too_many.load(Ordering::Relaxed),
        told.busy.load(Ordering::Relaxed),
    );
    assert!(told.answered.load(Ordering::Relaxed) > 0);
    let best = asked.iter().min().unwrap();
    assert!(*best < scaled_time(LATE), "{asked:?}");
    // The console answers again as soon as nobody asks too much.
    let again = wait_until(30 * SECOND, "an answer", || {
        match ask(lab, "node1", "/api/v1/sessions") {
            (200, value) => Ok(value),
            (status, value) => Err(format!("{status}: {value}")),
        }
    });
    let sessions = again.unwrap_or_else(|e| panic!("{e}"));
    for peer in sessions["sessions"].as_array().unwrap() {
        if ["10.0.0.2", "10.0.0.3"].contains(&peer["address"].as_str().unwrap_or_default()) {
            assert_eq!(peer["state"], "Established", "{peer}");
        }
    }
}
