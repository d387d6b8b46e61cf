//! One simulation.

use anyhow::Result;

use crate::cluster::{PlannedCluster, Shape};
use crate::network::{ClusterOutcome, Network};

/// Simulates a cluster from nothing to the last route at the last node.
///
/// # Errors
/// When a node does not learn every route: then the topology, or the simulation, is wrong.
pub fn simulate(shape: Shape, nodes: usize) -> Result<ClusterOutcome> {
    let cluster = PlannedCluster::new(shape, nodes)?;
    Network::new(&cluster).run(&cluster)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_topology_converges_with_the_sessions_that_it_should_have() {
        // 40 nodes; with zones, four of ten, each with three reflectors.
        let sessions = |shape| simulate(shape, 40).unwrap().sessions;
        assert_eq!(sessions(Shape::Mesh), 40 * 39 / 2);
        assert_eq!(sessions(Shape::Flat), 37 * 3 + 3);
        assert_eq!(sessions(Shape::Zones), 4 * 7 * 3 + 12 * 11 / 2);
        // Three at the top; 37 others, twelve of them zone reflectors.
        let two = simulate(Shape::TwoLevels, 40).unwrap();
        assert_eq!(two.sessions, 25 * 3 + 12 * 3 + 3 + 4 * 3);
        assert!(two.converged > Duration::from_millis(1));
    }

    #[test]
    fn a_run_is_like_the_last() {
        let first = simulate(Shape::Zones, 30).unwrap();
        let second = simulate(Shape::Zones, 30).unwrap();
        // Hash tables differ from run to run in where they put things, not in how much they take.
        assert_eq!(first.messages, second.messages);
        assert_eq!(
            (first.octets, first.converged),
            (second.octets, second.converged)
        );
    }

    #[test]
    fn what_a_mesh_costs_grows_with_the_square() {
        let (small, large) = (
            simulate(Shape::Mesh, 20).unwrap(),
            simulate(Shape::Mesh, 40).unwrap(),
        );
        let growth = large.messages as f64 / small.messages as f64;
        assert!((3.9..4.3).contains(&growth), "{growth}");
        // A node of a mesh has a session with everybody, a client with three.
        let client = simulate(Shape::Flat, 40).unwrap();
        assert_eq!((large.busiest, client.busiest), (39, 39));
        assert!(client.heap_client < large.heap_client);
    }
}
