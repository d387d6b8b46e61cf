//! The audit log: a line of JSON for each right that an account of a role asked for. Whoever wants
//! to know which rights a program needs reads it; administrators are not in it.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde_json::Value;

/// A file that only grows; nothing without one.
#[derive(Debug, Default)]
pub(super) struct AuditLog(Option<File>);

impl AuditLog {
    /// Opens the file. The error says what is wrong.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(Some(file)))
    }

    /// Adds a line.
    pub(super) fn write(&self, entry: &Value) {
        let Some(mut file) = self.0.as_ref() else {
            return;
        };
        // One write for each line: lines of requests at the same time do not mix.
        if let Err(error) = file.write_all(format!("{entry}\n").as_bytes()) {
            eprintln!("the audit log: {error}");
        }
    }
}
