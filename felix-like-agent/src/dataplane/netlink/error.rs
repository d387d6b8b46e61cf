//! Why something has no netlink message.

use caracal_model::IfName;

/// Why an op has no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    /// A device is not there.
    #[error("there is no device {0}")]
    NoDevice(IfName),
}
