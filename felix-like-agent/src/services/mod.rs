//! Services in the kernel: the plan of Kubernetes' Services and EndpointSlices for this node, and
//! the text that changes our nftables table by element. Pure; the shell runs `nft`.
//!
//! * `document` reads Services and slices, `endpoints` chooses, `entry` says what an address does,
//!   `health` what load balancers are told. `settings` is what an operator says of all of them.
//! * `reserved` knows what is not the Services': what a node needs to be a node. `refusals` says
//!   so.
//! * `claims` says which of several Services has an address.
//! * `planner` keeps the plan by Service; `parts` makes elements of entries; `written` compares
//!   them with what was written, and `script` makes transactions of the difference; `listing` reads
//!   the table back after a start, and `clients` who keeps which endpoint; `inspection` compares
//!   the table with what it has to hold.
//!
//! Invariants, cited by tests:
//!
//! * `SVC-1`: after any history of Services the table is the same as that of a new plan, but for
//!   the order of endpoints, chains that pick among a number of endpoints that no service has, and
//!   clients.
//! * `SVC-2`: one endpoint more or less is a change of at most two elements and a verdict in each
//!   of the service port's maps.
//! * `SVC-3`: a table that was listed is adopted: nothing that is as planned is written again.
//! * `SVC-4`: nothing that is `reserved` is translated, dropped or refused, and nobody is sent
//!   there.

mod address;
mod claims;
mod clients;
mod document;
mod endpoints;
mod entry;
mod health;
mod inspection;
mod layout;
mod listing;
mod order;
mod parts;
mod planner;
mod refusals;
mod reserved;
mod script;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod written;

pub use address::{ServiceAddress, ServiceTarget};
pub(crate) use clients::{Client, clients, strays};
pub use entry::{Affinity, ServiceEntry};
pub use health::ServiceHealth;
pub(crate) use inspection::{NeededElements, differences};
pub use inspection::{ServiceDifferences, ServiceElement};
pub(crate) use layout::SERVICES_TABLE;
pub(crate) use listing::hits;
pub(crate) use script::{removal, spare};
pub(crate) use settings::ServiceNode;
pub use settings::{NodePortAddresses, NodePortAddressesError, ServiceSettings};
pub(crate) use table::{ServiceTable, TableChange};
