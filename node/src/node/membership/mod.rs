//! This node in the datastore: its Node resource, its machine and addresses, and the last snapshot
//! that it keeps for a start without the datastore.

pub(crate) mod address;
pub(crate) mod beginning;
pub(crate) mod machine;
pub(crate) mod network_condition;
pub(crate) mod node_address;
pub(crate) mod plugin_access;
pub(crate) mod registration;
pub(crate) mod remember;
pub(crate) mod startup;
