//! The CNI plugins of Caracal: `caracal-cni`, the main plugin, and `caracal-ipam`, addresses for other main
//! plugins. One binary is both, by the name it is called under; see [`main_cni`] and [`main_ipam`].
//!
//! The pure part is [`spec`] (what runtimes ask and plugins answer) and [`attachment`] (every name that
//! follows from a call). The rest is shell: [`kernel`] touches the pod's namespace and the attachment's
//! own veth pair and nothing else; routes of the host are the agent's. What the datastore holds of an
//! attachment is in [`endpoint`] and [`addresses`].
//!
//! Specification: CNI 0.3.1, 0.4.0, 1.0.0 and 1.1.0.
//!
//! # Invariants, cited by tests
//!
//! * `CNI-1`: all names follow from the call alone; a repeated ADD gives the same answer and makes nothing
//!   twice.
//! * `CNI-2`: of an ADD that fails nothing stays, but a repeated one never takes from an attachment that
//!   works; an ADD that was killed is completed by the next ADD or removed by the next DEL or GC.
//! * `CNI-3`: only the endpoint of the caller's own container is removed.
//! * `CNI-4`: a DEL succeeds for what is gone and without the datastore; an address is never forgotten.
//! * `CNI-5`: a pending release's replay never releases what a later ADD of the same container holds.
//! * `CNI-6`: interfaces, routes and addresses of others are not touched: not the host's, not another
//!   plugin's, not another node's.

pub mod add;
pub mod addresses;
pub mod attachment;
pub mod call;
pub mod check;
pub mod del;
pub mod delegate;
pub mod endpoint;
pub mod error;
pub mod gates;
pub mod gc;
pub mod held;
pub mod host_lock;
mod in_use;
pub mod ipam_plugin;
pub mod kernel;
pub mod node_process;
pub mod pending_releases;
pub mod settings;
pub mod shell;
pub mod spec;
pub mod status;

pub use error::CniError;
pub use shell::{main_cni, main_ipam};
