//! Answer of a probe: each check with its reason, never a bare "no".

/// The checks of a probe, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthReport {
    checks: Vec<Check>,
    /// What is wrong beside them, and no reason to take the node out of service.
    notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Name of the check, as in the probe's answer and in `caracal_ready{check=…}`.
    pub(crate) name: &'static str,
    /// The state, or why the check fails.
    pub(crate) verdict: Result<String, String>,
}

impl HealthReport {
    /// The report with one more check.
    pub(crate) fn with(mut self, name: &'static str, verdict: Result<String, String>) -> Self {
        self.checks.push(Check { name, verdict });
        self
    }

    /// The report with these notes.
    pub(crate) fn noting(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        self.notes.extend(notes);
        self
    }

    pub(crate) fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// True when no check fails.
    pub(crate) fn is_good(&self) -> bool {
        self.checks.iter().all(|check| check.verdict.is_ok())
    }

    /// One line a check, one a note, and a last one with the verdict, as the probes of Kubernetes'
    /// own components.
    pub(crate) fn text(&self, word: &str) -> String {
        // A check is one line, whatever its reason holds.
        let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut text = String::new();
        for Check { name, verdict } in &self.checks {
            let (sign, reason) = match verdict {
                Ok(reason) => ('+', reason),
                Err(reason) => ('-', reason),
            };
            text.push_str(&format!("[{sign}] {name}: {}\n", in_one_line(reason)));
        }
        for note in &self.notes {
            text.push_str(&format!("[!] {}\n", in_one_line(note)));
        }
        let not = if self.is_good() { "" } else { "not " };
        text.push_str(&format!("{not}{word}\n"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_line_and_no_reason_to_be_unready() {
        let report = HealthReport::default()
            .with("kernel", Ok("in step".to_owned()))
            .noting(["bgp.peer x:\n  no session".to_owned()]);
        assert!(report.is_good());
        let text = "[+] kernel: in step\n[!] bgp.peer x: no session\nready\n";
        assert_eq!(report.text("ready"), text);
    }
}
