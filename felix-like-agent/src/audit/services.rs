//! Plan of services ↔ their table in the kernel.

use super::{AuditCode, AuditInputs, Observation};

pub(super) fn compare(inputs: &AuditInputs<'_>, found: &mut Vec<Observation>) {
    let Some(differences) = inputs.services else {
        return;
    };
    let mut add = |code, subject: &str, seen: String| {
        found.push(Observation::new(code, subject, seen));
    };
    if let Some(reason) = &differences.unreadable {
        add(AuditCode::ServicesMissing, "table", reason.clone());
    }
    for element in &differences.missing {
        let seen = "the kernel has not this element, or another in its place".to_owned();
        add(AuditCode::ServicesMissing, element, seen);
    }
    for element in &differences.unwanted {
        let seen = "no Service asks for this element".to_owned();
        add(AuditCode::ServicesLeftover, element, seen);
    }
}
