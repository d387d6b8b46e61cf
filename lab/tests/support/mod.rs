//! Helpers of the namespace tests: the check for root, names, and a network without `caracal`.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_lab::{
    Extent, Lab, LabFolder as Folder, LabName, Topology, UpOptions, call_program, list_netns,
    program_command, require_programs,
};

pub const SECOND: Duration = Duration::from_secs(1);

/// Namespaces need root, and some programs. Prints why a test is skipped.
pub fn possible(test: &str, programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("{test}: skipped, it needs root");
        return false;
    }
    let all: Vec<_> = ["ip", "etcd", "etcdctl", "ping"]
        .iter()
        .chain(programs)
        .copied()
        .collect();
    if let Err(missing) = require_programs(&all) {
        println!("{test}: skipped, {missing}");
        return false;
    }
    true
}

pub fn example(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/examples");
    Path::new(folder).join(format!("{name}.yaml"))
}

pub fn unique(name: &str) -> String {
    format!("t{}-{name}", std::process::id())
}

/// The network of an example and its etcd, without nodes.
pub fn network(topology: &str, name: &str) -> Lab {
    let (topology, text) = Topology::load_text(&example(topology)).unwrap();
    let mut options = UpOptions::test("/nonexistent", &unique(name));
    options.extent = Extent::Network;
    Lab::up(topology, &text, options, &|_| {})
        .unwrap_or_else(|e| panic!("{}", caracal_lab::error_chain(&e)))
}

pub fn ping(lab: &Lab, from: &str, to: &str) -> String {
    let mut command = program_command("ping").unwrap();
    command.args(["-n", "-c1", "-W2", to]);
    let netns = lab.netns(from).unwrap();
    call_program(Some(&netns), &mut command, b"", 10 * SECOND).unwrap()
}

pub fn assert_nothing_left(name: &LabName) {
    assert_eq!(list_netns(&name.prefix()), Vec::<String>::new());
    assert!(!Folder::new(name).path().exists());
}
