#![allow(clippy::unwrap_used)]
use super::*;

fn reservations(cidrs: &[&str]) -> Reservations {
    let mut reserved = Reservations::default();
    reserved.extend(cidrs.iter().map(|c| c.parse().unwrap()));
    reserved
}

#[test]
fn overlapping_reservations_count_once() {
    let block = "10.0.0.0/26".parse().unwrap();
    for (cidrs, count) in [
        (&[][..], 0),
        (
            &["10.0.0.0/28", "10.0.0.0/30", "10.0.0.0/28", "10.0.0.62/32"][..],
            17,
        ),
        (&["10.0.0.0/8"][..], 64),
        (&["10.0.1.0/26"][..], 0),
    ] {
        assert_eq!(reservations(cidrs).count_in(&block), count, "{cidrs:?}");
    }
    assert!(reservations(&["10.0.0.0/26"]).covering(&block).is_some());
    assert!(reservations(&["10.0.0.0/27"]).covering(&block).is_none());
}

proptest::proptest! {
    #[test]
    fn counting_agrees_with_looking_at_each_address(
        cidrs in proptest::collection::vec((0u8..80, 24u8..=32), 0..6),
    ) {
        let texts: Vec<String> = cidrs.iter().map(|(n, len)| format!("10.0.0.{n}/{len}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let reserved = reservations(&texts);
        let block: Prefix = "10.0.0.0/26".parse().unwrap();
        let one_by_one = (0..64).filter(|n| reserved.contains(block.nth(*n).unwrap())).count();
        proptest::prop_assert_eq!(reserved.count_in(&block), one_by_one as u128);
    }
}

#[test]
fn no_namespace_is_selected_by_pools_for_all_namespaces_only() {
    let mut pool = IpPool::new("p", Default::default());
    for (selector, without, with) in [
        ("", true, true),
        ("all()", true, true),
        ("team == 'red'", false, true),
        ("!has(team)", false, false),
    ] {
        pool.spec.namespace_selector = selector.into();
        let red = [("team".to_owned(), "red".to_owned())].into();
        assert_eq!(selects_namespace(&pool, None), without, "{selector}");
        assert_eq!(selects_namespace(&pool, Some(&red)), with, "{selector}");
    }
}
