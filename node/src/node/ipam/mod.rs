//! IPAM duties of a node beside the CNI plugin: it collects leaked addresses, replays pending
//! releases, stops assignments, and claims the addresses of its tunnels.

pub(crate) mod assignment_stop;
pub(crate) mod block_hints;
pub(crate) mod collector;
pub(crate) mod pending_releases;
pub(crate) mod tunnels;
