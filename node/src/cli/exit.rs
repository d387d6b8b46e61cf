//! Exit codes beside 0 (success), 1 (an error, with its reason on standard error) and 2 (a command
//! line that cannot be read), for every command: docs/cli.md.

/// The requested object does not exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// The answer is there, and says that something is wrong.
pub(crate) const DEGRADED: u8 = 4;
/// A safety check refuses; nothing was changed.
pub(crate) const REFUSED: u8 = 5;
/// Somebody else changed the same thing at the same time; trying again may succeed.
pub(crate) const CONFLICT: u8 = 6;
