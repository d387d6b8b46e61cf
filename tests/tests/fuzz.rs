//! A bounded, deterministic run of the fuzz targets on stable: every file of the corpus as it is,
//! and mutations of it from a seeded generator. `fuzz/` runs the same functions without a bound.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use caracal_tests::Random;

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "public in the crate that cargo-fuzz builds")]
mod targets;

/// Mutations of each target.
const ROUNDS: usize = 20_000;

fn octet(random: &mut Random) -> u8 {
    // Lengths and flags live at the edges.
    const EDGES: [u8; 8] = [0, 1, 2, 4, 0x40, 0x7f, 0x80, 0xff];
    let pick = random.number();
    if pick.is_multiple_of(3) {
        *random.of(&EDGES)
    } else {
        pick.to_le_bytes()[7]
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("a corpus")
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len());
        match random.below(6) {
            0 if !data.is_empty() => data[at] = octet(random),
            1 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            2 => data.insert(at.min(data.len()), octet(random)),
            3 if !data.is_empty() => drop(data.remove(at)),
            4 => data.truncate(at),
            // A piece of another seed, in place of what was here.
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = from + random.below(other.len() - from + 1);
                let end = (at + random.below(16)).min(data.len());
                data.splice(at.min(end)..end, other[from..to].iter().copied());
            }
        }
    }
    data
}

fn run(target: &str, entry: fn(&[u8]), rounds: usize) {
    let seeds = corpus(target);
    for seed in &seeds {
        entry(seed);
    }
    let mut random = Random::new(0x00ca_7aca_1000_0001);
    for round in 0..rounds {
        let data = mutate(&mut random, &seeds);
        let outcome = std::panic::catch_unwind(|| entry(&data));
        assert!(
            outcome.is_ok(),
            "{target}, round {round}: {}",
            data.escape_ascii()
        );
    }
}

#[test]
fn message() {
    run("message", targets::message, ROUNDS);
}

#[test]
fn update() {
    run("update", targets::update, ROUNDS);
}

#[test]
fn open() {
    run("open", targets::open, ROUNDS);
}

#[test]
fn update_in_every_form() {
    // The first octet says which capabilities the session has.
    for seed in corpus("update") {
        for form in 0..=u8::MAX {
            let mut data = seed.clone();
            data[0] = form;
            targets::update(&data);
        }
    }
}

#[test]
fn notification() {
    run("notification", targets::notification, ROUNDS);
}

#[test]
fn keepalive() {
    run("keepalive", targets::keepalive, ROUNDS);
}

#[test]
fn refresh() {
    run("refresh", targets::refresh, ROUNDS);
}

#[test]
fn stream() {
    run("stream", targets::stream, ROUNDS);
}

#[test]
fn bfd() {
    run("bfd", targets::bfd, ROUNDS);
}

#[test]
fn attributes() {
    run("attributes", targets::attributes, ROUNDS);
}

#[test]
fn grammar() {
    // A text takes longer to read than a message.
    run("grammar", targets::grammar, ROUNDS / 4);
}

#[test]
fn selector() {
    run("selector", targets::selector, ROUNDS);
}
