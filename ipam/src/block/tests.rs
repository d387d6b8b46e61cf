#![allow(clippy::unwrap_used)]
use super::*;

const NOW: Timestamp = Timestamp::from_nanos(1_767_607_920_500_000_000);

fn new(cidr: &str) -> Block {
    let owner = BlockOwner::Host("node-a".into());
    create(cidr.parse().unwrap(), &owner, NOW)
}

fn by(handle: &str) -> AllocationAttribute {
    AllocationAttribute {
        handle_id: Some(handle.into()),
        ..AllocationAttribute::default()
    }
}

fn addresses(taken: &[(IpAddr, u64)]) -> Vec<String> {
    taken.iter().map(|(a, _)| a.to_string()).collect()
}

#[test]
fn first_in_first_out() {
    let mut block = new("10.0.0.0/30");
    let free = Reservations::default();
    let got = take(&mut block, 3, &by("a"), &free);
    assert_eq!(addresses(&got), ["10.0.0.0", "10.0.0.1", "10.0.0.2"]);
    release(&mut block, 1, Duration::ZERO, NOW);
    release(&mut block, 0, Duration::ZERO, NOW);
    assert_eq!(block.unallocated, [3, 1, 0]);
    let got = take(&mut block, 9, &by("b"), &free);
    assert_eq!(addresses(&got), ["10.0.0.3", "10.0.0.1", "10.0.0.0"]);
    assert_eq!(block.allocations, [Some(1), Some(1), Some(0), Some(1)]);
    release(&mut block, 2, Duration::ZERO, NOW);
    // The attribute of "a" went, and "b" moved to its place.
    assert_eq!(block.allocations, [Some(0), Some(0), None, Some(0)]);
    assert_eq!(block.attributes, [by("b")]);
}

#[test]
fn ipam_1_a_damaged_queue_hands_nothing_out_twice() {
    let mut block = new("10.0.0.0/30");
    block.allocations[0] = Some(0);
    block.attributes.push(by("x"));
    block.unallocated = vec![0, 1, 1, 2];
    let free_before = free(&block, &Reservations::default(), 9);
    let got = take(&mut block, 9, &by("a"), &Reservations::default());
    assert_eq!(free_before, 2);
    assert_eq!(addresses(&got), ["10.0.0.1", "10.0.0.2"]);
    assert!(take(&mut block, 9, &by("a"), &Reservations::default()).is_empty());
}

#[test]
fn cool_down_keeps_and_collect_frees() {
    let mut block = new("10.0.0.0/31");
    take(&mut block, 2, &by("a"), &Reservations::default());
    let minute = Duration::from_secs(60);
    release(&mut block, 0, minute, NOW);
    release(&mut block, 1, minute, NOW);
    assert_eq!(block.attributes.len(), 1);
    assert_eq!((block.in_use(), is_empty(&block)), (2, false));
    let later = |seconds: u64| Timestamp::from_nanos(NOW.nanos() + seconds * 1_000_000_000);
    assert_eq!(collect(&mut block, minute, later(59)), 0);
    assert_eq!(collect(&mut block, minute, later(60)), 2);
    assert!(is_empty(&block) && block.attributes.is_empty());
    assert!(block.sequence_number_for_allocation.is_empty());
    // Switched off meanwhile, or a time that nobody can read.
    take(&mut block, 2, &by("a"), &Reservations::default());
    release(&mut block, 0, minute, NOW);
    assert_eq!(collect(&mut block, Duration::ZERO, NOW), 1);
    release(&mut block, 1, minute, NOW);
    block.attributes[0].released_at = Some("yesterday".into());
    assert_eq!(collect(&mut block, minute, later(9999)), 0);
}

#[test]
fn an_explicit_address_names_its_holder() {
    let mut block = new("10.0.0.0/30");
    let address = "10.0.0.2".parse().unwrap();
    assert_eq!(take_address(&mut block, address, &by("a")), Ok(NOW.nanos()));
    assert_eq!(block.unallocated, [0, 1, 3]);
    let holder = take_address(&mut block, address, &by("b")).unwrap_err();
    assert_eq!(*holder.unwrap(), by("a"));
    assert_eq!(
        take_address(&mut block, "10.0.0.9".parse().unwrap(), &by("b")),
        Err(None)
    );
}

#[test]
fn the_sequence_number_wraps() {
    let mut block = new("10.0.0.0/30");
    block.sequence_number = u64::MAX;
    touch(&mut block);
    assert_eq!(block.sequence_number, 0);
}

proptest::proptest! {
    #[test]
    fn ipam_1_any_sequence_keeps_ordinals_and_attributes_whole(
        steps in proptest::collection::vec((0u8..4, 0usize..8), 0..60),
        cooling: bool,
    ) {
        let mut block = new("10.0.0.0/29");
        let cool_down = Duration::from_secs(if cooling { 5 } else { 0 });
        for (round, (step, n)) in steps.into_iter().enumerate() {
            let now = Timestamp::from_nanos(NOW.nanos() + round as u64 * 1_000_000_000);
            match step {
                0 => drop(take(&mut block, n, &by(&format!("h{}", n % 3)), &Reservations::default())),
                1 => {
                    let address = block.address(n).unwrap();
                    drop(take_address(&mut block, address, &by("x")));
                }
                2 => release(&mut block, n, cool_down, now),
                _ => drop(collect(&mut block, cool_down, now)),
            }
            touch(&mut block);
            let mut all: Vec<usize> = block.unallocated.clone();
            all.extend((0..8).filter(|o| block.allocations[*o].is_some()));
            all.sort_unstable();
            proptest::prop_assert_eq!(all, (0..8).collect::<Vec<_>>());
            for index in 0..block.attributes.len() {
                proptest::prop_assert!(block.allocations.contains(&Some(index)));
            }
            for (at, attribute) in block.attributes.iter().enumerate() {
                proptest::prop_assert!(!block.attributes[at + 1..].contains(attribute));
            }
            let stored = Block::from_json(&block.to_json());
            proptest::prop_assert_eq!(stored.as_ref(), Ok(&block));
        }
    }
}
