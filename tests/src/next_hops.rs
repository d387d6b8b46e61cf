//! Labs whose nodes have several blocks each, so that routes to one node share a next-hop object,
//! and what of it `ip` shows.

use std::fs;

use caracal_lab::{Lab, wait_until};

use crate::SECOND;
use crate::kernel::try_run_on;
use crate::program::wrap_program;
use crate::scenario::{caracals, example};

/// Blocks of each node in [`with_two_blocks`].
pub const BLOCKS_PER_NODE: usize = 2;

/// An example with blocks of two addresses and three pods on each node: two blocks, and an address
/// for a tunnel.
///
/// # Panics
/// When the example is not what it was.
#[must_use]
pub fn with_two_blocks(topology: &str) -> String {
    let text = fs::read_to_string(example(topology)).expect("an example");
    assert!(text.contains("blockSize: 26") && text.contains("pods: "));
    let text = text.replace("blockSize: 26", "blockSize: 31");
    text.replace("pods: 1", "pods: 3")
        .replace("pods: 2", "pods: 3")
}

/// Programs that the lab starts as `caracal` from now on have this value of
/// `CARACAL_NEXTHOP_OBJECTS`.
///
/// # Panics
/// When the lab's folder cannot be written.
pub fn set_nexthop_objects(lab: &Lab, setting: &str) {
    wrap_program(lab, &format!("export CARACAL_NEXTHOP_OBJECTS={setting}"));
}

/// True, with a word when not, where the kernel has such objects.
///
/// # Panics
/// When the lab has no node.
#[must_use]
pub fn kernel_has_nexthop_objects(lab: &Lab) -> bool {
    let node = caracals(lab).into_iter().next().expect("a node");
    let has = try_run_on(lab, &node, "ip nexthop list").is_ok();
    if !has {
        println!("skipped: this kernel has no next-hop objects");
    }
    has
}

/// Objects of ours on a node, and routes of ours that lead through one, of both families.
#[must_use]
pub(crate) fn count_nexthop_objects(lab: &Lab, node: &str) -> (usize, usize) {
    let lines = |words: &str| -> Vec<String> {
        let text = try_run_on(lab, node, words).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let objects = lines("ip nexthop list protocol 80").len();
    let routes = ["ip -4 route show proto 80", "ip -6 route show proto 80"].map(lines);
    let through = |r: &&String| r.contains(" nhid ");
    (objects, routes.iter().flatten().filter(through).count())
}

/// Waits until each node has so many objects, and so many routes through them.
///
/// # Panics
/// When that does not come.
pub fn await_nexthop_objects(lab: &Lab, wanted: (usize, usize)) {
    for node in caracals(lab) {
        let what = "objects and routes through them";
        wait_until(60 * SECOND, what, || {
            match count_nexthop_objects(lab, &node) {
                seen if seen == wanted => Ok(()),
                seen => Err(format!("{node}: {seen:?}, not {wanted:?}")),
            }
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(&node, 60)));
    }
}
