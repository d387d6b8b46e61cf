//! Makes a problem that the agent reports.

use caracal_model::{Problem, ProblemCode};

/// A [`Problem`] from its parts.
#[must_use]
pub(crate) fn problem(code: ProblemCode, subject: &str, reason: String) -> Problem {
    Problem {
        code,
        subject: subject.to_owned(),
        reason,
    }
}
