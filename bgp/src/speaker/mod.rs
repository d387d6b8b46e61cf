//! The shell: tokio tasks, sockets and timers around the pure core.
//!
//! | task | owns, alone | hears | tells |
//! |---|---|---|---|
//! | core, one | the table, the peer list | sessions, configuration, queries | feeds |
//! | session, one per peer | its state machine, its at most two connections | its peer, its feed, the core | the core |
//! | listener, at most one | the listening socket | connections | the core |

pub mod feed;
pub mod message;
