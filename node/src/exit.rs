//! Exit codes beside 0 (success), 1 (an error, with its reason on standard error) and 2 (a command
//! line that cannot be read), for every command: docs/cli.md.

use std::fmt;

/// The requested object does not exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// The answer is there, and says that something is wrong.
pub(crate) const DEGRADED: u8 = 4;
/// A safety check refuses, or a file is not valid; nothing was changed.
pub(crate) const REFUSED: u8 = 5;
/// Somebody else changed the same thing at the same time; trying again may succeed.
pub(crate) const CONFLICT: u8 = 6;

/// An error with its exit code: what a command that fails ends with.
#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) code: u8,
    pub(crate) reason: String,
}

impl ExitError {
    pub(crate) fn new(code: u8, reason: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }
}

/// An error like any other.
impl From<String> for ExitError {
    fn from(reason: String) -> Self {
        Self::new(1, reason)
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ExitError {}

/// What was asked for does not exist.
pub(crate) fn not_found(reason: impl Into<String>) -> anyhow::Error {
    ExitError::new(NOT_FOUND, reason).into()
}

/// Somebody else was faster.
pub(crate) fn conflict(reason: impl Into<String>) -> anyhow::Error {
    ExitError::new(CONFLICT, reason).into()
}

/// What is wrong with a file. One that cannot be read at all stays an error as any other.
pub(crate) fn invalid(error: anyhow::Error) -> anyhow::Error {
    match error.chain().any(|cause| cause.is::<std::io::Error>()) {
        true => error,
        false => ExitError::new(REFUSED, format!("{error:#}")).into(),
    }
}

/// The exit code that an error ends its command with.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ExitError>() {
        return error.code;
    }
    #[cfg(feature = "lab")]
    if let Some(error) = error.downcast_ref::<caracal_lab::CommandError>() {
        return error.status();
    }
    1
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_error_keeps_its_code_under_what_is_said_of_it() {
        let missing = Err::<(), _>(not_found("no pool a")).context("planning");
        assert_eq!(code_of(&missing.unwrap_err()), NOT_FOUND);
        assert_eq!(code_of(&anyhow::anyhow!("no answer")), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_an_invalid_one() {
        let gone = std::fs::read_to_string("/nonexistent/file").context("reading");
        assert_eq!(code_of(&invalid(gone.unwrap_err())), 1);
        let bad = serde_json::from_str::<u8>("").context("file.json is no JSON");
        let bad = invalid(bad.unwrap_err());
        assert_eq!(code_of(&bad), REFUSED);
        assert!(format!("{bad:#}").starts_with("file.json is no JSON: EOF"));
    }
}
