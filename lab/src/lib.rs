//! Network-namespace clusters from topology files: nodes, segments, routers, pods, faults.

pub mod plan;
pub mod topology;
pub mod netns;
pub mod process;
pub mod program;
pub mod wait;
