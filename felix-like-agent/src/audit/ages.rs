//! Since when something is found. The clock is the caller's.

use std::collections::BTreeMap;
use std::time::Instant;

use caracal_model::{AuditCode, Severity};
use serde::{Deserialize, Serialize};

use super::Observation;

/// Something that is wrong, with its age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditFinding {
    /// Stable code ([`AuditCode::as_str`]).
    pub code: String,
    /// Errors lose packets; notices never count.
    pub severity: Severity,
    /// Subject of the finding.
    pub subject: String,
    /// One sentence: what was seen, where, and what to do.
    pub sentence: String,
    /// Seconds since it was first found, without a break.
    pub age_seconds: u64,
    /// Seconds after which it counts.
    pub grace_seconds: u64,
    /// Older than its grace, and no notice: this makes the node's state wrong.
    pub counts: bool,
}

/// When each finding was first found. What is not found again is forgotten.
#[derive(Debug, Default)]
pub struct FindingAges {
    since: BTreeMap<(AuditCode, String), Instant>,
}

impl FindingAges {
    /// Takes in what one comparison has found; answers with the findings, those that count first,
    /// the worst first.
    pub fn update(&mut self, now: Instant, found: Vec<Observation>) -> Vec<AuditFinding> {
        let mut since = BTreeMap::new();
        let mut findings = Vec::with_capacity(found.len());
        for observation in found {
            let key = (observation.code, observation.subject);
            let first = self.since.get(&key).copied().unwrap_or(now);
            let mut finding = finding(key.0, &key.1, &observation.seen, now - first);
            finding.counts &= !observation.settling;
            findings.push(finding);
            since.insert(key, first);
        }
        self.since = since;
        findings.sort_by(|a, b| {
            let rank = |f: &AuditFinding| (!f.counts, f.severity);
            rank(a).cmp(&rank(b)).then_with(|| a.code.cmp(&b.code))
        });
        findings
    }
}

fn finding(code: AuditCode, subject: &str, seen: &str, age: std::time::Duration) -> AuditFinding {
    AuditFinding {
        code: code.as_str().to_owned(),
        severity: code.severity(),
        subject: subject.to_owned(),
        sentence: format!("{seen}; {}", code.remedy()),
        age_seconds: age.as_secs(),
        grace_seconds: code.grace().as_secs(),
        counts: code.severity() != Severity::Notice && age >= code.grace(),
    }
}
