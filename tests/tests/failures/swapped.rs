//! Machines that swapped their addresses while they were off: two, then a ring of three.

use caracal_lab::Lab;
use caracal_tests::{
    SECOND, Stack, assert_full_matrix, await_settled, await_status, on_each_stack_and_datastore_of,
    run_on, settled,
};

use super::far_resync;

#[test]
fn machines_that_swapped_their_addresses_are_all_back() {
    let scenario = "machines_that_swapped_their_addresses_are_all_back";
    let text = far_resync("full-mesh", ", autodetect: true");
    let of = |stack: Stack, _lab: &str| stack.topology(&text);
    on_each_stack_and_datastore_of(scenario, &[], "fail-swap", of, swapped);
}

/// A node with its addresses, as `ip` takes them.
type Machine = (&'static str, Vec<String>);

fn swapped(mut lab: Lab) {
    await_settled(&lab);
    let addresses = |node: &str| {
        let uplink = &lab.layout().node(node).unwrap().uplink;
        let all = uplink.addresses();
        all.map(|(address, len)| format!("{address}/{len}"))
            .collect()
    };
    let mut machines: Vec<Machine> = ["node1", "node2", "node3"]
        .map(|node| (node, addresses(node)))
        .into();
    for count in [2, 3] {
        for (node, _) in &machines[..count] {
            lab.kill9_node(node).unwrap();
        }
        let first = machines[0].1.clone();
        for at in 0..count {
            let next = machines.get(at + 1).filter(|_| at + 1 < count);
            machines[at].1 = next.map_or_else(|| first.clone(), |(_, next)| next.clone());
        }
        for (node, _) in &machines[..count] {
            run_on(&lab, node, "ip addr flush dev eth0 scope global");
        }
        for (node, addresses) in &machines[..count] {
            for address in addresses {
                let dad = if address.contains(':') { " nodad" } else { "" };
                run_on(&lab, node, &format!("ip addr add {address} dev eth0{dad}"));
            }
        }
        for (node, _) in &machines[..count] {
            lab.start_node(node).unwrap();
        }
        for (node, addresses) in &machines {
            let what = format!("{count} swapped: {addresses:?}");
            await_status(&lab, node, 120 * SECOND, &what, |status| {
                settled(status)?;
                match status.addresses == *addresses && status.problems.is_empty() {
                    true => Ok(()),
                    false => Err(format!("{:?}, {:?}", status.addresses, status.problems)),
                }
            });
        }
        assert_full_matrix(&lab);
    }
}
