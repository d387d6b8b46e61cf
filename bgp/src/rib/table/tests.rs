//! Destinations, their paths and their room.

#![allow(clippy::unwrap_used)]
use super::*;

fn path(peer: u32) -> Path {
    Path::new(Arc::default(), PeerId(peer), Ok(None))
}

#[test]
fn a_destination_with_one_path_fits_in_48_octets() {
    assert_eq!(size_of::<Path>(), 24);
    assert_eq!(size_of::<Dest>(), 48);
}

#[test]
fn of_many_paths_each_is_found() {
    let mut table = Table::default();
    let id = table.find_or_insert("10.0.0.0/8".parse().unwrap());
    let dest = table.get_mut(id);
    for peer in 1..=500 {
        dest.push(path(peer));
    }
    for peer in (1..=500).filter(|peer| peer % 7 != 0) {
        assert_eq!(dest.remove(PeerId(peer)).unwrap().peer, PeerId(peer));
        assert!(dest.position(PeerId(peer)).is_none());
        for left in (7..=500).step_by(7) {
            assert_eq!(dest.path_of(PeerId(left)).unwrap().peer, PeerId(left));
        }
    }
    for peer in (7..=500).step_by(7) {
        assert!(dest.remove(PeerId(peer)).is_some());
    }
    assert!(dest.paths().is_empty());
}

#[test]
fn paths_come_and_go() {
    let mut table = Table::default();
    let id = table.find_or_insert("10.0.0.0/8".parse().unwrap());
    let dest = table.get_mut(id);
    for peer in 1..=3 {
        dest.push(path(peer));
    }
    assert!(dest.remove(PeerId(9)).is_none());
    assert_eq!(dest.remove(PeerId(1)).unwrap().peer, PeerId(1));
    assert_eq!(dest.remove(PeerId(3)).unwrap().peer, PeerId(3));
    assert_eq!(dest.paths().len(), 1);
    assert_eq!(dest.remove(PeerId(2)).unwrap().peer, PeerId(2));
    assert!(dest.paths().is_empty());
}

#[test]
fn a_table_that_is_empty_has_no_memory_and_one_that_is_nearly_empty_has_little() {
    let mut table = Table::default();
    let prefix = |n: u32| Prefix::v4(n.into(), 32);
    let ids: Vec<_> = (0..200_000u32)
        .map(|n| table.find_or_insert(prefix(n)))
        .collect();
    let full = table.room();
    for id in &ids[2000..] {
        table.release(*id);
    }
    // A part of the index shrinks when less than one of sixteen slots is used, of eight octets
    // each, and each of them has some.
    let index = 2000 * 16 * 8 + 24 * 1024;
    assert_eq!(
        table.room(),
        full,
        "it is kept until the table has come to rest"
    );
    table.shrink();
    let (part, few) = (table.room(), 2 * CHUNK * size_of::<Dest>() + index);
    assert!(part <= few && few < full / 30, "{part} of {full}");
    // It grows again, first into the slots that it had.
    for n in 500_000..700_000 {
        table.find_or_insert(prefix(n));
    }
    assert_eq!(table.len(), 202_000);
    assert!(
        (0..2000)
            .chain(500_000..700_000)
            .all(|n| table.find(&prefix(n)).is_some())
    );
    assert_eq!(table.iter().count(), 202_000);
    let all: Vec<_> = table.iter().map(|(id, _)| id).collect();
    for id in all {
        table.release(id);
    }
    table.shrink();
    assert_eq!((table.slots(), table.len()), (0, 0));
    assert!(table.room() <= 1024, "{}", table.room());
}

#[test]
fn handles_are_reused_and_lookups_stay_right() {
    let mut table = Table::default();
    let prefix = |n: u32| Prefix::v4(n.into(), 32);
    let ids: Vec<_> = (0..5000).map(|n| table.find_or_insert(prefix(n))).collect();
    for n in (0..5000).step_by(2) {
        table.release(ids[n]);
    }
    assert_eq!((table.len(), table.free.len()), (2500, 2500));
    for n in 0..5000u32 {
        assert_eq!(table.find(&prefix(n)).is_some(), n % 2 == 1);
    }
    for n in 10_000..12_500 {
        table.find_or_insert(prefix(n));
    }
    assert_eq!((table.len(), table.free.len()), (5000, 0));
    assert!((10_000..12_500).all(|n| table.find(&prefix(n)).is_some()));
    assert_eq!(table.iter().count(), 5000);
}

/// Whatever seed a process has: neighbouring prefixes, as blocks of one pool are, do not crowd.
/// The fast hash has seeds among these with which a search passes over more than a hundred slots.
#[test]
fn no_seed_of_a_process_crowds_the_index() {
    const COUNT: u32 = 3000;
    for number in 0..600 {
        let seed: &'static foldhash::SharedSeed =
            Box::leak(Box::new(foldhash::SharedSeed::from_u64(number)));
        let mut table = Table {
            hasher: foldhash::quality::SeedableRandomState::with_seed(1, seed),
            ..Table::default()
        };
        for n in 0..COUNT {
            table.find_or_insert(Prefix::v4((0x0af4_0000 + n * 64).into(), 26));
        }
        let passed = table.index.passed_over();
        assert!(
            passed < 2 * COUNT as usize,
            "seed {number}: {passed} slots for {COUNT} prefixes"
        );
    }
}
