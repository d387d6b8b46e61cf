//! Network-namespace clusters from topology files: nodes, segments, routers, pods, faults.
//!
//! Read a [`Topology`], bring it up with [`Lab::up`], ask and hurt the [`Lab`], and let it fall:
//! dropping it removes what it made; [`down`] removes a lab that another process made. Programs run
//! inside by [`spawn_in_netns`] and [`call_program`]; [`wait_until`] waits for what is to come
//! true.
//!
//! ```
//! use caracal_lab::Topology;
//!
//! let text = "\
//! name: two
//! segments: [{name: lan, cidr: 10.0.0.0/24}]
//! nodes:
//!   - {name: n1, segment: lan, address: 10.0.0.1, pods: 1}
//!   - {name: n2, segment: lan, address: 10.0.0.2, pods: 1}";
//! let topology = Topology::parse(text, "two.yaml").expect("a topology");
//! assert_eq!(topology.nodes.len(), 2);
//! ```
//!
//! A [`Topology`] (a YAML file) becomes a layout (every name and address) and a list of
//! steps, both pure; [`Lab::up`] carries the steps out. A [`Lab`] is then asked, hurt and
//! measured by end-to-end tests, or by the `caracal lab` commands in the functions `lab_*`. It
//! plays the machines, the cables and the container runtime; it never does what a node should do.
//!
//! Invariants, cited by tests:
//!
//! * `LAB-1`: nothing outside namespaces with the lab's prefix and the lab's folder is touched.
//! * `LAB-2`: what a lab will make is on disk before it is made; a lab killed at any moment can be
//!   removed.
//! * `LAB-3`: a process is signalled only while its pid *and* start time are those recorded.

#[cfg(feature = "api-server")]
mod api_server;
mod capture;
mod cni;
mod commands;
mod down;
mod etcd;
mod fault;
mod fault_by_hand;
mod flannel;
mod http;
mod ip;
mod kubernetes;
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
mod service;
mod sessions;
mod state;
mod table;
mod topology;
mod trace;
mod up;
mod wait;

#[cfg(feature = "api-server")]
pub use api_server::{ApiServerError, ApiServerOptions, DEFINITION_FILES, run_api_server};
pub use capture::{CaptureError, IPIP_FILTER, VXLAN_FILTER};
pub use cni::{CniError, container_id, network_config, parse_result as parse_cni_result};
pub use commands::{
    CONVERGE, CommandError, DownCommand, ExecCommand, FaultCommand, STATUS_PINGS, StatusCommand,
    TraceCommand, UpCommand, demo as lab_demo, down as lab_down, exec as lab_exec,
    fault as lab_fault, list as lab_list, status as lab_status, trace as lab_trace, up as lab_up,
};
pub use down::{DownError, DownReport, down};
pub use etcd::EtcdError;
pub use fault::FaultError;
pub use fault_by_hand::{LabFault, LabFaultError};
pub use flannel::FlannelReport;
pub use ip::{Route, RouteKind, batch as ip_batch, delete_namespaces, routes as kernel_routes};
pub use kubernetes::KubernetesError;
pub use lab::{AttachError, ExecError, Lab, UnknownTarget};
pub use netns::{
    list as list_netns, path as netns_path, run as run_in_netns, spawn as spawn_in_netns,
    sysctl as netns_sysctl,
};
pub use node::NodeError;
pub use plan::{API_PORT, ETCD_PORT, LabName, LabNameError, NodeLayout, PodLayout};
pub use probe::{Loss, Probe, ProbeError, Stream};
pub use process::{ProcessIdentity, RunningProcess, SpawnError};
pub use program::{
    Missing, ProgramError, ProgramOutput, call as call_program, command as program_command,
    find as find_program, output as program_output, require as require_programs,
};
pub use service::ServiceError;
pub use state::{LabFolder, PodState, StateError};
pub use table::{TableForm, render as render_table};
pub use topology::{Datastore, NodeKind, Topology, TopologyError};
pub use trace::TraceError;
pub use up::{Extent, UpError, UpOptions, UpProgress};
pub use wait::{Timeout, in_uml, scale as time_scale, scaled as scaled_time, wait_for, wait_until};

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
