//! Network-namespace clusters from topology files: nodes, segments, routers, pods, faults.

pub mod plan;
pub mod topology;
