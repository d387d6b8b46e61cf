//! The OPEN messages of a session, as monitoring shows them.

use bytes::Bytes;

/// The OPENs of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOpens {
    /// Octets of our OPEN.
    pub sent: Bytes,
    /// The peer's, as we have understood it.
    pub received: Bytes,
}
