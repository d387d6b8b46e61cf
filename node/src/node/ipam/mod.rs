//! IPAM duties of a node beside the CNI plugin: it collects leaked addresses and what deleted nodes
//! left, replays pending releases, stops assignments, and claims the addresses of its tunnels.

pub(crate) mod assignment_stop;
pub(crate) mod block_hints;
pub(crate) mod collector;
pub(crate) mod deleted_nodes;
pub(crate) mod pending_releases;
pub(crate) mod tunnels;
