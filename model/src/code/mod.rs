//! The table of codes: every code that Caracal prints for something that is wrong, with severity,
//! grace, meaning and remedy. Four parts of the program report faults, each with an enum of its
//! own: [`ProblemCode`] (owners of state, in `caracal status`), [`AuditCode`] (`caracal audit`),
//! [`DoctorCode`] (`caracal doctor`) and [`IpamCode`] (`caracal ipam check`). [`code_entries`] is
//! the whole table; `caracal explain-code` prints it, and the tables of `docs/troubleshooting.md`
//! are generated from it.
//!
//! A code never changes its meaning; a code that is given up is not used again.

mod audit;
mod doctor;
mod ipam;
mod problem;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use audit::AuditCode;
pub use doctor::DoctorCode;
pub use ipam::IpamCode;
pub use problem::ProblemCode;

/// Severity of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Packets are lost, or will be with the next change.
    Error,
    /// Something is left over or not as asked for; traffic goes on.
    Warning,
    /// A state that somebody asked for. Does not count as wrong.
    Notice,
}

impl Severity {
    /// The severity as it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
        }
    }
}

/// The part of the program that prints a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Reporter {
    /// `caracal audit`.
    #[serde(rename = "caracal audit")]
    Audit,
    /// `caracal status`, the log and the metric `caracal_problems`.
    #[serde(rename = "caracal status")]
    Status,
    /// `caracal doctor`.
    #[serde(rename = "caracal doctor")]
    Doctor,
    /// `caracal ipam check`.
    #[serde(rename = "caracal ipam check")]
    IpamCheck,
}

impl Reporter {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Audit, Self::Status, Self::Doctor, Self::IpamCheck];

    /// The command that prints the code.
    #[must_use]
    pub const fn command(self) -> &'static str {
        match self {
            Self::Audit => "caracal audit",
            Self::Status => "caracal status",
            Self::Doctor => "caracal doctor",
            Self::IpamCheck => "caracal ipam check",
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeEntry {
    /// The code as it is printed.
    pub code: &'static str,
    /// Component that prints it.
    pub reporter: Reporter,
    /// Its severity; of several, the worst.
    pub severity: Severity,
    /// Age from which the fault counts: the node repairs it by itself within this time, or it is a
    /// normal step of a change. Zero where the reporter does not age faults.
    pub grace: Duration,
    /// Description of the fault.
    pub meaning: &'static str,
    /// Remedy: the command or change that repairs it.
    pub remedy: &'static str,
}

/// The table, in the order of the documentation.
pub fn code_entries() -> impl Iterator<Item = CodeEntry> {
    let audit = AuditCode::ALL.iter().map(|code| code.entry());
    let problems = ProblemCode::ALL.iter().map(|code| code.entry());
    let doctor = DoctorCode::ALL.iter().map(|code| code.entry());
    let ipam = IpamCode::ALL.iter().map(|code| code.entry());
    audit.chain(problems).chain(doctor).chain(ipam)
}

/// The row of a code; upper and lower case are the same.
#[must_use]
pub fn find_code(code: &str) -> Option<CodeEntry> {
    code_entries().find(|entry| entry.code.eq_ignore_ascii_case(code))
}

/// The codes nearest to one that does not exist: those that contain it, or the one with the fewest
/// edits, which are at most one for two letters.
#[must_use]
pub fn nearest_codes(code: &str) -> Vec<CodeEntry> {
    let typed = code.to_ascii_lowercase();
    let containing = |entry: &CodeEntry| entry.code.to_ascii_lowercase().contains(&typed);
    let found: Vec<CodeEntry> = code_entries().filter(containing).take(5).collect();
    if !found.is_empty() && typed.len() > 2 {
        return found;
    }
    let edits = |entry: &CodeEntry| strsim::osa_distance(&typed, &entry.code.to_ascii_lowercase());
    let nearest = code_entries().min_by_key(edits);
    nearest
        .filter(|e| edits(e) <= typed.len() / 2)
        .into_iter()
        .collect()
}

/// Defines an enum of codes from rows: variant, code, severity, grace in seconds, meaning, remedy.
macro_rules! codes {
    (
        $(#[$about:meta])* $name:ident by $reporter:ident
        $($variant:ident $text:literal $severity:ident $grace:literal $meaning:literal $remedy:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $meaning] #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All codes, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The row of the table.
            #[must_use]
            pub const fn entry(self) -> $crate::code::CodeEntry {
                match self {
                    $(Self::$variant => $crate::code::CodeEntry {
                        code: $text,
                        reporter: $crate::code::Reporter::$reporter,
                        severity: $crate::code::Severity::$severity,
                        grace: std::time::Duration::from_secs($grace),
                        meaning: $meaning,
                        remedy: $remedy,
                    },)*
                }
            }

            /// The code as it is printed.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                self.entry().code
            }

            /// The code that is printed like this.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }
    };
}
use codes;
