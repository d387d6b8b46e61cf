//! What the scenarios in `tests/tests/` share: labs in namespaces on a real kernel with real etcd
//! and real peers, other people's nodes beside ours, and counters that tolerate no loss. Rules that
//! no single crate can hold (`tests/tests/architecture.rs`) need nothing of it.
//!
//! 1. [`possible`] says whether a scenario can run here. It needs root, a few Debian packages and
//!    the built program; without one of them it says so and passes. `CARACAL_E2E_REQUIRED=1` turns
//!    such a skip into a failure: `make test` sets it.
//! 2. [`up`] (an example) or [`up_text`] bring a lab up, [`on_each_stack`] one for IPv4, IPv6 and
//!    dual stack each, [`on_each_stack_and_datastore`] one more on Kubernetes' API.
//! 3. [`await_settled`] waits for sessions, kernels and ways to all pods.
//! 4. [`Probes`] and [`RouteMonitor`] watch while something happens: to a node, to the datastore
//!    ([`stop_datastore`]), to the kernel ([`run_on`]), to the data ([`set_pool_modes`]).
//! 5. [`Probes::assert_none_lost`], [`assert_full_matrix`], [`await_status`] and [`agents_state`]
//!    say what became of it. The lab is removed when it goes out of scope.
//!
//! ```no_run
//! use caracal_tests::{Probes, await_settled, on_each_stack};
//!
//! on_each_stack("a restart", &[], "full-mesh", "rst", |mut lab| {
//!     await_settled(&lab);
//!     let probes = Probes::start(&lab, &[("node1/p1", "node2/p1")]);
//!     lab.kill9_node("node1").expect("it runs");
//!     lab.restart_node("node1").expect("it starts");
//!     await_settled(&lab);
//!     probes.assert_none_lost("a killed node");
//! });
//! ```

mod backup;
mod browser;
mod calico;
mod datastore;
mod foreign;
mod ipip_kernel;
mod kernel;
mod log_lines;
mod loss;
mod next_hops;
mod oci;
mod processes;
mod program;
mod python;
mod random;
mod scenario;
mod services;
mod stack;
mod uninstall;
mod vip;

use std::time::Duration;

pub use backup::{copy_folder, etcd_revision};
pub use browser::Browser;
pub use calico::{
    device_index, hand_routes_to_calico, remove_liveness_leases, routes_with_protocol,
};
pub use datastore::{
    bind_pods, calico_resource, calico_resource_if_any, datastore_port, delete_calico_resource,
    is_kubernetes, kubectl, kubernetes_object, kubernetes_object_if_any, kubernetes_objects,
    on_kubernetes_datastore, put_calico_resource, start_datastore, stop_datastore,
    try_put_calico_resource, unbind_pod,
};
pub use foreign::{
    Bird, Foreign, Tunnel, await_output, await_route_on_node_a, blocks_of_node, put_etcd_resource,
    set_route_programmers,
};
pub use ipip_kernel::in_ipip_kernel;
pub use kernel::{agents_state, apply_nft, flush_routes, run_on, try_run_on};
pub use log_lines::LogLines;
pub use loss::{
    PROBE_RATE, Probes, RouteMonitor, await_datagrams, count_routes, has_device, routes_by_kind,
};
pub use next_hops::{
    BLOCKS_PER_NODE, await_nexthop_objects, kernel_has_nexthop_objects, set_nexthop_objects,
    with_two_blocks,
};
pub use oci::{Mount, crun, with_one_cgroup_version, write_bundle};
pub use processes::{Processes, full_pipe};
pub use program::{
    binary, binary_with_labs, is_static_built, possible, possible_without_root, static_binary,
    wrap_program,
};
pub use python::{
    KUBERNETES_VERSIONS, has_python_packages, python_packages, python_script, schema_faults,
};
pub use random::Random;
pub use scenario::{
    NOTHING_NEW, assert_full_matrix, assert_gone, await_remembered, await_settled, await_status,
    caracals, example, exit_code, get_http, has_no_problem, has_problem, ip, logs, more_pods,
    routed, set_pool_modes, set_pools, settled, up, up_text, with_ipam,
};
pub use services::Services;
pub use stack::{
    Stack, address_of, addresses, either, family_count, focus, ipam_why, late_pool,
    on_each_datastore, on_each_stack, on_each_stack_and_datastore, on_each_stack_and_datastore_of,
    on_each_stack_of, on_stacks, speaks,
};
pub use uninstall::{Installation, exec_caracal, install_and_uninstall};
pub use vip::{ConnectionLoad, EchoServer, PodEndpoint, VipConnection, endpoint_slices};

/// What scenarios count time in.
pub const SECOND: Duration = Duration::from_secs(1);
