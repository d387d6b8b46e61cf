//! Answer of a probe: each check with its reason, never a bare "no".

/// The checks of a probe, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthReport {
    checks: Vec<Check>,
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

    pub(crate) fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// True when no check fails.
    pub(crate) fn is_good(&self) -> bool {
        self.checks.iter().all(|check| check.verdict.is_ok())
    }

    /// One line a check and a last one with the verdict, as the probes of Kubernetes' own
    /// components.
    pub(crate) fn text(&self, word: &str) -> String {
        let mut text = String::new();
        for Check { name, verdict } in &self.checks {
            let (sign, reason) = match verdict {
                Ok(reason) => ('+', reason),
                Err(reason) => ('-', reason),
            };
            // A check is one line, whatever its reason holds.
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            text.push_str(&format!("[{sign}] {name}: {reason}\n"));
        }
        let not = if self.is_good() { "" } else { "not " };
        text.push_str(&format!("{not}{word}\n"));
        text
    }
}
