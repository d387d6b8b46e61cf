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

mod capture;
mod cni;
mod commands;
mod down;
mod etcd;
mod fault;
mod ip;
mod lab;
mod matrix;
mod netns;
mod node;
mod plan;
mod probe;
mod process;
mod program;
mod report;
mod rootless;
mod state;
mod table;
mod topology;
mod trace;
mod up;
mod wait;

pub use capture::{IPIP_FILTER, VXLAN_FILTER};
pub use cni::{CniError, container_id, network_config, parse_result as parse_cni_result};
pub use commands::{
    CONVERGE, CommandError, DownCommand, ExecCommand, STATUS_PINGS, StatusCommand, TraceCommand,
    UpCommand, demo as lab_demo, down as lab_down, exec as lab_exec, list as lab_list,
    status as lab_status, trace as lab_trace, up as lab_up,
};
pub use down::{DownError, DownReport, down};
pub use ip::{Route, RouteKind, batch as ip_batch, delete_namespaces, routes as kernel_routes};
pub use lab::Lab;
pub use netns::{
    list as list_netns, path as netns_path, run as run_in_netns, spawn as spawn_in_netns,
    sysctl as netns_sysctl,
};
pub use plan::LabName;
pub use plan::{ETCD_PORT, NodeLayout, PodLayout};
pub use probe::{Loss, Probe, Stream};
pub use process::{Identity as ProcessIdentity, Running as RunningProcess};
pub use program::{
    Output as ProgramOutput, ProgramError, call as call_program, command as program_command,
    find as find_program, output as program_output, require as require_programs,
};
pub use state::{Folder as LabFolder, PodState};
pub use table::render as render_table;
pub use topology::NodeKind;
pub use topology::{Topology, TopologyError};
pub use up::{Extent, Options, Progress, UpError};
pub use wait::{in_uml, scale as time_scale, scaled as scaled_time};
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
