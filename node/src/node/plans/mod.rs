//! What a change would do, planned for every node before anybody makes it: for the commands that
//! plan and apply, and for the console. Nothing here is written.

pub(crate) mod mode;
pub(crate) mod topology;

/// Beyond so many nodes what is between two of them is not told: nobody can draw it.
pub(crate) const DRAWN: usize = 100;
/// Beyond so many nodes a node plans nothing for its console: that is for a process of its own.
pub(crate) const MOST_NODES: usize = 500;
