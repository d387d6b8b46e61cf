//! The CNI plugins of Caracal: `caracal-cni`, the main plugin, `caracal-ipam`, addresses for other
//! main plugins, and `caracal-flannel`, which leaves the work to another main plugin, on nodes of a
//! flannel network. One binary is all of them, by the name it is called under; see [`main_cni`],
//! [`main_ipam`] and [`main_flannel`].
//!
//! # Order of calls
//!
//! A program calls one of these and nothing else: the call of the runtime is in
//! the environment and on standard input (CNI specification), the answer goes to standard output.
//! The node's process beside it calls [`suggest_blocks`] when the blocks of the node change (a
//! hint: the first ADD after a boot reads less), [`forbid_addresses`] while the datastore is in
//! doubt, and [`replay_pending_releases`] when it answers again: a DEL without the datastore leaves
//! a pending release in a file, and succeeds. Before it frees an address that looks leaked, it asks
//! [`routed_addresses`].
//!
//! ```
//! let run_dir = std::env::temp_dir().join(format!("caracal-cni-example-{}", std::process::id()));
//! std::fs::create_dir_all(&run_dir)?;
//! // The datastore is another cluster's: ADD fails with this reason until it is taken back.
//! caracal_cni::forbid_addresses(&run_dir, Some("the datastore belongs to another cluster"))?;
//! caracal_cni::forbid_addresses(&run_dir, None)?;
//! # std::fs::remove_dir_all(&run_dir)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Inside, the pure part is `spec` (what runtimes ask and plugins answer) and `attachment` (every
//! name that follows from a call). The rest is shell: `kernel` touches the pod's namespace and the
//! attachment's own veth pair and nothing else; routes of the host are the agent's. What the
//! datastore holds of an attachment is in `endpoint` and `addresses`; what Kubernetes says of its
//! pod, in `kubernetes`. `flannel_plugin` has neither datastore nor routes: `spec::flannel` renders
//! the other plugin's configuration, and `flannel_files` keeps it.
//!
//! Specification: CNI 0.3.1, 0.4.0, 1.0.0 and 1.1.0.
//!
//! # Invariants, cited by tests
//!
//! * `CNI-1`: all names follow from the call alone; a repeated ADD gives the same answer and makes
//!   nothing twice (flannel's plugin, which has no endpoint to read it from, refuses it).
//! * `CNI-2`: of an ADD that fails nothing stays, but a repeated one never takes from an attachment
//!   that works; an ADD that was killed is completed by the next ADD or removed by the next DEL or
//!   GC.
//! * `CNI-3`: only the endpoint of the caller's own container is removed.
//! * `CNI-4`: a DEL succeeds for what is gone and without the datastore; an address is never
//!   forgotten.
//! * `CNI-5`: a pending release's replay never releases what a later ADD of the same container
//!   holds.
//! * `CNI-6`: interfaces, routes and addresses of others are not touched: not the host's, not
//!   another plugin's, not another node's, not those of another attachment of the same container.
//! * `CNI-7`: calls for one container take turns.

mod add;
mod addresses;
mod assignment_stop;
mod attachment;
mod call;
mod check;
mod del;
mod delegate;
mod endpoint;
mod error;
mod flannel_files;
mod flannel_plugin;
mod gates;
mod gc;
mod host_lock;
mod in_use;
mod ipam_plugin;
mod kernel;
mod kubernetes;
mod node_process;
mod pending_releases;
mod second;
mod settings;
mod shell;
mod spec;
mod standard_error;
mod status;

pub use assignment_stop::forbid_addresses;
pub use attachment::handle;
pub use call::{Milestone, PluginRole};
pub use host_lock::suggest_blocks;
pub use in_use::routed_addresses;
pub use kernel::link::KernelError;
pub use pending_releases::{
    PendingRelease, PendingReleaseError, Replayed, list_pending_releases, replay_pending_releases,
};
pub use shell::{main_cni, main_flannel, main_ipam, run_plugin};
