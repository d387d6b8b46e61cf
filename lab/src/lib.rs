//! Network-namespace clusters from topology files: nodes, segments, routers, pods, faults.
//!
//! A [`Topology`] (a YAML file) becomes a [`plan::Layout`] (every name and address) and a list of
//! [`plan::Step`]s, both pure; [`Lab::up`] carries the steps out. A [`Lab`] is then asked, hurt and
//! measured by end-to-end tests, or by the `caracal lab` commands in [`commands`]. It plays the machines,
//! the cables and the container runtime; it never does what a node should do.
//!
//! Invariants, cited by tests:
//!
//! * `LAB-1`: nothing outside namespaces with the lab's prefix and the lab's folder is touched.
//! * `LAB-2`: what a lab will make is on disk before it is made; a lab killed at any moment can be removed.
//! * `LAB-3`: a process is signalled only while its pid *and* start time are those recorded.

pub mod capture;
pub mod cni;
pub mod commands;
pub mod down;
pub mod etcd;
pub mod fault;
pub mod ip;
pub mod lab;
pub mod matrix;
pub mod netns;
pub mod node;
pub mod plan;
pub mod probe;
pub mod process;
pub mod program;
pub mod report;
pub mod rootless;
pub mod state;
pub mod table;
pub mod topology;
pub mod trace;
pub mod up;
pub mod wait;

pub use down::{DownError, DownReport, down};
pub use lab::Lab;
pub use plan::LabName;
pub use topology::{Topology, TopologyError};
pub use up::{Extent, Options, Progress, UpError};
pub use wait::{wait_for, wait_until};

/// An error with its causes, on one line.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // `transparent` errors show their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
