//! What a change would do, planned for every node before anybody makes it: for the commands that
//! plan and apply, and for the console. Nothing here is written.

pub(crate) mod mode;
pub(crate) mod topology;

use caracal_model::{NodeName, Snapshot};

/// The value of a node's label, or nothing: its zone and its rack say beside whom it is drawn.
pub(crate) fn label<'a>(snapshot: &'a Snapshot, node: &NodeName, name: &str) -> &'a str {
    let labels = snapshot.nodes.get(node).map(|node| &node.metadata.labels);
    let value = labels.and_then(|labels| labels.get(name));
    value.map_or("", String::as_str)
}

/// Beyond so many nodes what is between two of them is not told: nobody can draw it.
pub(crate) const DRAWN: usize = 100;
/// Beyond so many nodes a node plans nothing for its console: that is for a process of its own.
pub(crate) const MOST_NODES: usize = 500;
