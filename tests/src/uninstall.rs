//! One life of an installation: nothing, nodes, pods, no pods, no nodes, `caracal uninstall
//! --node`; and the kernel is, byte for byte, as it was.

use std::ffi::OsString;

use caracal_lab::{
    Extent, Lab, LabName, PodState, Topology, UpOptions, container_id, error_chain, wait_for,
};

use crate::SECOND;
use crate::kernel::{run_on, whole_state};
use crate::program::binary;
use crate::scenario::{await_settled, caracals};

/// Parameters of a scenario.
pub struct Installation<'a> {
    /// Name of the lab.
    pub lab: &'a str,
    /// The topology's text.
    pub topology: &'a str,
    /// Commands that make what is somebody else's, beside ours and alike.
    pub foreign: &'a [&'a str],
    /// Kernel state while the nodes run.
    pub during: &'a [&'a str],
}

/// Exit status of `caracal ARGUMENTS…` in the namespace of a node.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn exec_caracal(lab: &Lab, node: &str, arguments: &[&str]) -> i32 {
    let mut words: Vec<OsString> = vec!["caracal".into()];
    words.extend(arguments.iter().map(Into::into));
    lab.exec(node, &words)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

fn pods(lab: &Lab, node: &str) -> Vec<PodState> {
    let layout = lab.layout().node(node).expect("a node of the lab");
    let of = |pod: &caracal_lab::PodLayout| PodState {
        node: node.to_owned(),
        name: pod.name.clone(),
        netns: pod.netns.clone(),
        container: container_id(),
        address: None,
        address6: None,
        host_interface: None,
    };
    layout.pods.iter().map(of).collect()
}

/// The whole state, once the kernel itself is done with its link-local addresses: the routes to
/// them come some time after them.
fn state_at_rest(lab: &Lab) -> String {
    let has_ipv6 = std::path::Path::new("/proc/sys/net/ipv6").is_dir();
    let state = || whole_state(lab, "node1");
    let at_rest = |s: &String| {
        let count = |words| s.matches(words).count();
        let addresses = count("inet6 fe80");
        addresses == count("local fe80") && (addresses > 0) == has_ipv6 && count("tentative") == 0
    };
    wait_for(60 * SECOND, "addresses in use", state, at_rest).expect("at rest")
}

/// Lives it on `node1`.
///
/// # Panics
/// When anything is left, or anything of others' is gone.
pub fn install_and_uninstall(life: &Installation<'_>) {
    let topology =
        Topology::parse(life.topology, life.lab).unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let _leftovers = caracal_lab::down(&LabName::new(life.lab).expect("a valid name"));
    let mut options = UpOptions::test(binary(), life.lab);
    options.extent = Extent::Network;
    let up = Lab::up(topology, life.topology, options, &|_| {});
    let mut lab = up.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.folder()
        .link_binary(&binary())
        .expect("the lab's folder");
    for node in caracals(&lab) {
        lab.folder().create_node(&node).expect("the lab's folder");
    }
    for command in life.foreign {
        run_on(&lab, "node1", command);
    }
    let before = state_at_rest(&lab);
    for node in caracals(&lab) {
        lab.start_node(&node)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    }
    for node in caracals(&lab) {
        lab.await_node(&node)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    }
    let nodes = caracals(&lab);
    let pods: Vec<PodState> = nodes.iter().flat_map(|node| pods(&lab, node)).collect();
    for pod in &pods {
        lab.cni("ADD", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    }
    await_settled(&lab);
    let there = |s: &String| life.during.iter().all(|ours| s.contains(ours));
    let state = || whole_state(&lab, "node1");
    wait_for(60 * SECOND, "what the agent makes", state, there).expect("all of it");
    // A new process, after one that could not say goodbye, knows what there was before the first.
    lab.kill9_node("node1")
        .and_then(|()| lab.restart_node("node1"))
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    await_settled(&lab);
    for pod in &pods {
        lab.cni("DEL", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    }
    let refused = exec_caracal(&lab, "node1", &["uninstall", "--node"]);
    assert_eq!(refused, 5, "a node that runs would put everything back");
    lab.stop_node("node1")
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let installed = state_at_rest(&lab);
    assert_eq!(
        exec_caracal(&lab, "node1", &["uninstall", "--node", "--dry-run"]),
        0
    );
    assert!(
        whole_state(&lab, "node1") == installed,
        "a dry run changes nothing"
    );
    assert_eq!(exec_caracal(&lab, "node1", &["uninstall", "--node"]), 0);
    let left = whole_state(&lab, "node1");
    let only = |a: &str, b: &str| -> Vec<String> {
        let there: std::collections::BTreeSet<&str> = b.lines().collect();
        let missing = a.lines().filter(|l| !there.contains(l));
        missing.map(str::to_owned).collect()
    };
    assert!(
        left == before,
        "gone: {:#?}\nleft: {:#?}\nbefore:\n{before}\nleft:\n{left}",
        only(&before, &left),
        only(&left, &before)
    );
    let nothing_left = lab.caracal("node1", &["uninstall", "--node", "--dry-run"]);
    assert_eq!(nothing_left.expect("it answers"), "");
}
