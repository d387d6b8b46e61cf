//! Thirty days of churn in fast-forward: machines join, leave and crash, pods come and go, pools
//! change their mode, the datastore and lines fail, others meddle with the kernel; on virtual time,
//! through the product's own pipeline from the datastore's values to the requests to the kernel. At
//! every rest each kernel is what its process wants and routes of others are untouched; while a
//! process is not sure, it deletes nothing.
//!
//! The periodic comparisons in between are left out: a pass depends on nothing but what it reads,
//! and the one at rest, which is made, finds nothing to do (AGENT-2).
//!
//! `CARACAL_CHURN_SEED=n` plays one month, `CARACAL_CHURN_MONTHS=n` other than eight. A month that
//! fails is cut down to what still fails, and that is printed.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod agent;
mod cluster;
mod dice;
mod history;
mod kernel;
mod rest;

use std::time::Duration;

use history::{Dated, Event, MACHINES, MONTH, World, month};

/// Events of a month.
const EVENTS: usize = 500;
/// Months without a seed given.
const MONTHS: u64 = 8;
/// After so long without an event everything is at rest: restart and deferral timers take two
/// minutes each.
const REST: Duration = Duration::from_secs(600);

/// Outcome of a month.
#[derive(Default)]
struct Tally {
    rests: usize,
    walks: usize,
    passes: usize,
    applied: usize,
    by_key: usize,
}

/// Lives through a history.
fn live(seed: u64, history: &[Dated]) -> Result<Tally, String> {
    let mut world = World::new(seed);
    let mut tally = Tally::default();
    let begin = world.cluster.now;
    let fail = |world: &World, what: String| format!("after {:?}: {what}", world.cluster.age());
    for (n, dated) in history.iter().enumerate() {
        let now = world.cluster.now;
        let at = begin + dated.at;
        let step = world.cluster.pass_time(at);
        step.map_err(|e| fail(&world, e))?;
        if at - now >= REST {
            check_world(&world, &mut tally)
                .map_err(|e| fail(&world, format!("before event {n}: {e}")))?;
        }
        count(&world, dated.event, &mut tally);
        world.happen(dated.event);
    }
    // Everything is made whole, and all must be well.
    world.happen(Event::EtcdUp);
    for machine in 0..MACHINES {
        for event in [
            Event::LinkUp(machine),
            Event::Start(machine),
            Event::Join(machine),
        ] {
            world.happen(event);
        }
    }
    let end = (begin + MONTH).max(world.cluster.now + 2 * REST);
    let step = world.cluster.pass_time(end);
    step.map_err(|e| fail(&world, e))?;
    check_world(&world, &mut tally).map_err(|e| fail(&world, format!("at the end: {e}")))?;
    for machine in 0..MACHINES {
        count(&world, Event::Crash(machine), &mut tally);
    }
    Ok(tally)
}

/// Takes down what a process did before it goes.
fn count(world: &World, event: Event, tally: &mut Tally) {
    if let Event::Crash(n) | Event::Leave(n) = event
        && let Some(agent) = world
            .cluster
            .machines
            .get(&n)
            .and_then(|m| m.agent.as_ref())
    {
        tally.passes += agent.passes;
        tally.applied += agent.applied;
        tally.by_key += agent.compared_by_key();
    }
}

fn check_world(world: &World, tally: &mut Tally) -> Result<(), String> {
    tally.rests += 1;
    rest::check(world)?;
    if rest::is_calm(world) {
        tally.walks += rest::reach(world)?;
    }
    Ok(())
}

/// The shortest beginning that fails, without the events that it does not need.
fn shrink(seed: u64, history: &[Dated]) -> (Vec<Dated>, String) {
    let fails = |part: &[Dated]| live(seed, part).err();
    let mut short = history.to_vec();
    let mut reason = fails(&short).unwrap_or_default();
    let (mut lives, mut dies) = (0, short.len());
    while lives + 1 < dies {
        let middle = usize::midpoint(lives, dies);
        match fails(&short[..middle]) {
            Some(why) => (dies, reason) = (middle, why),
            None => lives = middle,
        }
    }
    short.truncate(dies);
    let mut chunk = short.len() / 2;
    while chunk > 0 {
        let mut start = 0;
        while start < short.len() {
            let end = (start + chunk).min(short.len());
            let without = [&short[..start], &short[end..]].concat();
            match fails(&without) {
                Some(why) => (short, reason) = (without, why),
                None => start = end,
            }
        }
        chunk /= 2;
    }
    (short, reason)
}

fn play(seed: u64) -> Tally {
    let history = month(seed, EVENTS);
    match live(seed, &history) {
        Ok(tally) => tally,
        Err(why) => {
            eprintln!(
                "CARACAL_CHURN_SEED={seed}: {why}; looking for the shortest month that fails so"
            );
            let (short, reason) = shrink(seed, &history);
            let events: Vec<String> = short
                .iter()
                .map(|d| format!("{:?}: {:?}", d.at, d.event))
                .collect();
            panic!(
                "CARACAL_CHURN_SEED={seed}: {why}\nthe same in {} events: {reason}\n{}",
                short.len(),
                events.join("\n")
            );
        }
    }
}

#[test]
fn a_month_of_churn_ends_with_the_kernel_as_desired() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds: Vec<u64> = match number("CARACAL_CHURN_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("CARACAL_CHURN_MONTHS").unwrap_or(MONTHS)).collect(),
    };
    for seed in seeds {
        let started = std::time::Instant::now();
        let tally = play(seed);
        println!(
            "seed {seed}: {} rests, {} packets walked, {} passes, {} of them by key, {} changes of kernels, {:?}",
            tally.rests,
            tally.walks,
            tally.passes,
            tally.by_key,
            tally.applied,
            started.elapsed()
        );
        assert!(tally.rests > EVENTS / 4 && tally.walks > 100 && tally.applied > EVENTS);
        assert!(tally.by_key > 50);
    }
}
