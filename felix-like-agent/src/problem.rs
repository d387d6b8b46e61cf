//! Makes a problem that the agent reports.

use caracal_model::Problem;
use caracal_model::code::ProblemCode;

/// A [`Problem`] from its parts.
#[must_use]
pub(crate) fn problem(code: ProblemCode, subject: &str, reason: String) -> Problem {
    Problem {
        code,
        subject: subject.to_owned(),
        reason,
    }
}
