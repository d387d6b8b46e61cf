//! Services in the kernel: the plan of Kubernetes' Services and EndpointSlices for this node, and
//! the text that changes our nftables table by element. Pure; the shell runs `nft`.
//!
//! * `document` reads Services and slices, `endpoints` chooses, `entry` says what an address does.
//! * `planner` keeps the plan by Service; `parts` makes elements of entries; `script` compares them
//!   with what was written and makes transactions; `listing` reads the table back after a start.
//!
//! Invariants, cited by tests:
//!
//! * `SVC-1`: after any history of Services the table is the same as that of a new plan, but for
//!   the order of endpoints, chains that pick among a number of endpoints that no service has, and
//!   clients.
//! * `SVC-2`: one endpoint more or less is a change of at most two elements and a verdict in each
//!   of the service port's maps.
//! * `SVC-3`: a table that was listed is adopted: nothing that is as planned is written again.

mod address;
mod document;
mod endpoints;
mod entry;
mod layout;
mod listing;
mod order;
mod parts;
mod planner;
mod script;
mod table;
#[cfg(test)]
mod tests;

pub use address::{ServiceAddress, ServiceTarget, Transport};
pub use entry::{Affinity, ServiceAddressKind, ServiceEntry};
pub(crate) use layout::SERVICES_TABLE;
pub(crate) use listing::stray_clients;
pub(crate) use table::{ServiceTable, TableChange};
