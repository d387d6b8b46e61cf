//! The routing information base.

mod session;

pub use session::{RemoteRestart, SessionInfo};
