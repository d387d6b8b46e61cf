#![allow(clippy::unwrap_used)]

mod hosts;
mod kernel;
pub(crate) mod random;

use caracal_model::{Family, NodeName, Packet, PolicyData, PolicyDirection, Prefix};
use proptest::prelude::*;

use self::kernel::Kernel;
use self::random::{Step, packet, steps};
use super::layout::{FROM, FROM_TO_NODE, TO};
use super::*;
use crate::links::Links;
use crate::nft::{Field, InterfaceName};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

pub(crate) fn apply(data: &mut PolicyData, (path, value): &Step) {
    let path = format!("{RESOURCES}{path}");
    let value = value.as_ref().map(|value| value.to_string().into_bytes());
    assert!(data.apply(&path, value.as_deref()).is_some(), "{path}");
}

fn plan(data: &PolicyData) -> PolicyTable {
    let (me, settings) = (NodeName::from("me"), PolicySettings::default());
    PolicyTable::plan(data, &me, &settings, &Links::default())
}

/// What the chain of an interface does with a packet; `None` = there is none.
fn decides(table: &PolicyTable, map: &'static str, interface: &str, p: &Packet) -> Option<bool> {
    table.decides(
        map,
        Field::Interface(InterfaceName::new(interface).unwrap()),
        p,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// POL-1, and its sense: where this fails, the kernel lets through what it should not.
    #[test]
    fn the_table_decides_as_the_policies_say(
        steps in steps(),
        packets in proptest::collection::vec(packet(), 20),
    ) {
        let mut data = PolicyData::default();
        for step in &steps {
            apply(&mut data, step);
        }
        let table = plan(&data);
        for (name, endpoint) in data.endpoints().filter(|(_, e)| e.node == "me") {
            for p in &packets {
                for (map, direction) in [
                    (FROM, PolicyDirection::Egress),
                    (FROM_TO_NODE, PolicyDirection::Egress),
                    (TO, PolicyDirection::Ingress),
                ] {
                    let judged = data.judge(endpoint, direction, p);
                    let decided = decides(&table, map, &endpoint.interface, p);
                    prop_assert_eq!(
                        decided, Some(judged.allowed),
                        "{} {} {:?}: {:?}", name, map, p, judged.by
                    );
                }
            }
        }
    }

    /// POL-2, POL-3, POL-4, and a table that was listed is known again.
    #[test]
    fn changes_make_what_a_new_plan_makes(
        steps in steps(),
        cuts in proptest::collection::vec(0..3_usize, 40),
    ) {
        let mut data = PolicyData::default();
        let mut kernel = Kernel::default();
        let mut written: Option<PolicyTable> = None;
        for (at, step) in steps.iter().enumerate() {
            apply(&mut data, step);
            match cuts.get(at) {
                Some(0) => continue,
                Some(1) if written.is_some() => {
                    let (adopted, strays) = PolicyTable::adopt(&kernel.listing());
                    prop_assert!(strays.0.is_empty());
                    written = Some(adopted);
                }
                _ => {}
            }
            let table = plan(&data);
            kernel.run(&table.since(written.as_ref()), written.as_ref());
            written = Some(table);
            let mut anew = Kernel::default();
            anew.run(&plan(&data).since(None), None);
            prop_assert_eq!(&kernel, &anew);
            // Nothing is left to do.
            let nothing = plan(&data).since(written.as_ref());
            prop_assert!(nothing.iter().all(|of| of.0.is_empty()), "{:?}", nothing);
        }
    }
}

/// One more pod is one element a set and its own two verdicts, without a program.
#[test]
fn one_pod_more_is_an_element() {
    let mut data = PolicyData::default();
    for step in [
        random::profile("a"),
        random::policy(
            "networkpolicies/a/open",
            serde_json::json!({
                "selector": "app == 'x'",
                "types": ["Ingress"],
                "ingress": [{"action": "Allow", "source": {"selector": "app == 'y'"}}],
            }),
        ),
        random::pod(1, "a", "me", &[("app", "x")]),
        random::pod(2, "a", "other", &[("app", "y")]),
    ] {
        apply(&mut data, &step);
    }
    let before = plan(&data);
    apply(&mut data, &random::pod(3, "a", "other", &[("app", "y")]));
    let [first, second, last] = plan(&data).since(Some(&before));
    assert!(first.0.is_empty() && last.0.is_empty());
    assert!(second.is_data());
    assert_eq!(second.0.len(), 2, "one element a family: {second:?}");
    // One of this node that is judged like another has no chains of its own.
    let before = plan(&data);
    apply(&mut data, &random::pod(4, "a", "me", &[("app", "x")]));
    let [first, second, last] = plan(&data).since(Some(&before));
    assert!(first.0.is_empty() && last.0.is_empty() && second.is_data());
}

/// What a set may hold has a form there.
#[test]
fn ranges_of_a_set_do_not_lie_over_each_other() {
    let data = PolicyData::default();
    let mut maker = sets::SetMaker::new(&data);
    let nets = ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32"].map(|n| n.parse::<Prefix>().unwrap());
    let name = maker.ranges(Family::Ipv4, &nets);
    let all = maker.ranges(Family::Ipv6, &["::/0".parse().unwrap()]);
    let sets = maker.finish();
    let of = |set: &crate::nft::SetName| {
        let (_, elements) = sets.iter().find(|(name, _)| *name == set).unwrap();
        elements.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(of(&name), ["192.0.2.1", "10.0.0.0/8"]);
    assert_eq!(of(&all), ["::/1", "8000::/1"]);
}
