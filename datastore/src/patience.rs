//! How long a client waits.

use std::time::Duration;

/// How long a client waits for a datastore that does not answer, to connect and for each request:
/// one time for every command, for the CNI plugin and for the daemon, whose tries follow one
/// another. Long enough for a member that loses its leader (an election takes about 1 s), short
/// enough for somebody who waits at a terminal.
pub const PATIENCE: Duration = Duration::from_secs(5);
