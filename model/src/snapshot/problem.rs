//! A fault that the owner of some state has found.

use serde::{Deserialize, Serialize};

use crate::Key;
use crate::code::ProblemCode;

/// A fault that the owner of some state has found, as logs, status and probes show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "ProblemText")]
pub struct Problem {
    /// The kind of fault; its severity, grace and remedy follow from it.
    pub code: ProblemCode,
    /// Subject: an etcd key, a peer's name, a device.
    pub subject: String,
    /// One sentence: what was seen and what follows.
    pub reason: String,
}

impl Problem {
    /// The problem in the words of a datastore that has objects and no keys.
    #[must_use]
    pub fn spoken(self) -> Self {
        Self {
            subject: Key::spoken_in(&self.subject),
            reason: Key::spoken_in(&self.reason),
            ..self
        }
    }
}

/// A problem as it was received, perhaps from a node of another version.
#[derive(Deserialize)]
struct ProblemText {
    code: String,
    subject: String,
    reason: String,
}

impl From<ProblemText> for Problem {
    fn from(text: ProblemText) -> Self {
        let (code, reason) = match ProblemCode::from_text(&text.code) {
            Some(code) => (code, text.reason),
            None => (
                ProblemCode::NodeOtherVersion,
                format!("{}: {}", text.code, text.reason),
            ),
        };
        Self {
            code,
            subject: text.subject,
            reason,
        }
    }
}
