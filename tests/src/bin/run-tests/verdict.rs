//! What became of each case, and of all of them: the table, the ends of the logs, the closing line.

use std::fmt::Write as _;

use crate::attempt::Attempt;

/// Lines of a log that the table is followed by.
const TAIL: usize = 40;

/// A case's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// Failed beside others, passed alone.
    Flaky,
    Failed,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Flaky => "flaky",
            Self::Failed => "FAILED",
        }
    }
}

/// A case and its runs: one, or two where the first one failed and had a second try.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) first: Attempt,
    pub(crate) second: Option<Attempt>,
}

impl Outcome {
    pub(crate) fn verdict(&self) -> Verdict {
        match (&self.first.fault, &self.second) {
            (None, _) => Verdict::Passed,
            (Some(_), Some(second)) if second.fault.is_none() => Verdict::Flaky,
            (Some(_), _) => Verdict::Failed,
        }
    }

    /// The run that counts.
    pub(crate) fn last(&self) -> &Attempt {
        self.second.as_ref().unwrap_or(&self.first)
    }

    pub(crate) fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        [Some(&self.first), self.second.as_ref()]
            .into_iter()
            .flatten()
    }

    /// Its tests that failed in the run that counts; a flaky one that is not forgiven counts too.
    fn failures(&self, forgiven: bool) -> u64 {
        match self.verdict() {
            Verdict::Flaky if !forgiven => self.first.counts[1].max(1),
            Verdict::Passed | Verdict::Flaky => 0,
            // A program that died has not counted the test in which it did.
            Verdict::Failed => self.last().counts[1].max(1),
        }
    }
}

/// All outcomes of one call, and how many of them may be flaky.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) flaky_allowed: usize,
}

impl Judgement {
    fn count(&self, verdict: Verdict) -> usize {
        let of_it = self.outcomes.iter().filter(|o| o.verdict() == verdict);
        of_it.count()
    }

    /// So few are flaky that none of them counts as failed.
    fn is_forgiving(&self) -> bool {
        self.count(Verdict::Flaky) <= self.flaky_allowed
    }

    pub(crate) fn is_good(&self) -> bool {
        self.count(Verdict::Failed) == 0 && self.is_forgiving()
    }

    /// Tests that passed and that failed.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let forgiven = self.is_forgiving();
        let failed = self.outcomes.iter().map(|o| o.failures(forgiven)).sum();
        let passed = self.outcomes.iter().map(|o| match o.verdict() {
            Verdict::Flaky if !forgiven => 0,
            _ => o.last().counts[0],
        });
        (passed.sum(), failed)
    }

    /// `N passed, N failed`.
    pub(crate) fn closing_line(&self) -> String {
        let (passed, failed) = self.counts();
        format!("{passed} passed, {failed} failed")
    }

    /// The table, the last lines of what did not pass at once, and the sums.
    pub(crate) fn summary(&self, elapsed: f64) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\n{:<8} {:>7} {:>6}  test",
            "verdict", "seconds", "CPU"
        );
        for outcome in &self.outcomes {
            let _ = writeln!(text, "{}", row(outcome));
        }
        for verdict in [Verdict::Flaky, Verdict::Failed] {
            for outcome in self.outcomes.iter().filter(|o| o.verdict() == verdict) {
                let _ = write!(text, "{}", ends_of_logs(outcome));
            }
        }
        let attempts = self.outcomes.iter().flat_map(Outcome::attempts);
        let (alone, cpu) = attempts.fold((0.0, 0.0), |(seconds, cpu), attempt| {
            (seconds + attempt.seconds, cpu + attempt.cpu)
        });
        let ignored: u64 = self.outcomes.iter().map(|o| o.last().counts[2]).sum();
        let _ = writeln!(
            text,
            "\n{} processes in {elapsed:.0} s (one after the other {alone:.0} s, {cpu:.0} s of CPU); {ignored} tests ignored; {} flaky, {} allowed",
            self.outcomes.len(),
            self.count(Verdict::Flaky),
            self.flaky_allowed
        );
        for outcome in &self.outcomes {
            let verdict = outcome.verdict();
            if verdict != Verdict::Passed {
                let _ = writeln!(text, "{}: {}", verdict.as_str(), outcome.name);
            }
        }
        text
    }
}

/// A row of the table: verdict, seconds of each run, CPU of the one that counts, name, tests of a
/// whole program.
fn row(outcome: &Outcome) -> String {
    let seconds: Vec<String> = outcome
        .attempts()
        .map(|a| format!("{:.1}", a.seconds))
        .collect();
    let [passed, failed, _] = outcome.last().counts;
    let tests = match passed + failed {
        0 | 1 => String::new(),
        tests => format!(" ({tests} tests)"),
    };
    let verdict = outcome.verdict().as_str();
    let seconds = seconds.join("+");
    let cpu = outcome.last().cpu;
    format!(
        "{verdict:<8} {seconds:>7} {cpu:>6.1}  {}{tests}",
        outcome.name
    )
}

fn ends_of_logs(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (run, attempt) in (1..).zip(outcome.attempts()) {
        let fault = attempt.fault.as_deref().unwrap_or("passed");
        let lines: Vec<&str> = attempt.output.lines().collect();
        let from = lines.len().saturating_sub(TAIL);
        let _ = writeln!(
            text,
            "\n{}: {}, run {run} ({:.1} s): {fault}; {} of {} lines of {}",
            outcome.verdict().as_str(),
            outcome.name,
            attempt.seconds,
            lines.len() - from,
            lines.len(),
            attempt.log.display()
        );
        for test in &attempt.failed {
            let _ = writeln!(text, "    {test}");
        }
        for line in &lines[from..] {
            let _ = writeln!(text, "  | {line}");
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ran(fault: Option<&str>, counts: [u64; 3]) -> Attempt {
        Attempt {
            fault: fault.map(str::to_owned),
            counts,
            failed: vec![],
            seconds: 1.5,
            cpu: 0.5,
            output: (1..=50).map(|n| format!("line {n}\n")).collect(),
            log: "/logs/x.log".into(),
        }
    }

    pub(crate) fn outcome(
        name: &str,
        first: Option<&str>,
        second: Option<Option<&str>>,
    ) -> Outcome {
        let count = |fault: Option<&str>| match fault {
            None => [1, 0, 0],
            Some(_) => [0, 1, 0],
        };
        Outcome {
            name: name.to_owned(),
            first: ran(first, count(first)),
            second: second.map(|fault| ran(fault, count(fault))),
        }
    }

    fn judge(outcomes: &[Outcome], flaky_allowed: usize) -> (bool, String) {
        let judgement = Judgement {
            outcomes: outcomes.to_vec(),
            flaky_allowed,
        };
        (judgement.is_good(), judgement.closing_line())
    }

    #[test]
    fn one_that_passes_alone_is_flaky_and_as_many_as_allowed_are_forgiven() {
        let good = outcome("a", None, None);
        let flaky = outcome("b", Some("exit status: 101"), Some(None));
        let bad = outcome("c", Some("exit status: 101"), Some(Some("signal: 9")));
        let not_tried_again = outcome("d", Some("exit status: 101"), None);
        let line = |text: &str| text.to_owned();
        for (outcomes, allowed, is_good, closing) in [
            (vec![good.clone()], 0, true, "1 passed, 0 failed"),
            (
                vec![good.clone(), flaky.clone()],
                1,
                true,
                "2 passed, 0 failed",
            ),
            (
                vec![good.clone(), flaky.clone()],
                0,
                false,
                "1 passed, 1 failed",
            ),
            (
                vec![flaky.clone(), flaky.clone()],
                1,
                false,
                "0 passed, 2 failed",
            ),
            (vec![good.clone(), bad], 3, false, "1 passed, 1 failed"),
            (vec![good, not_tried_again], 3, false, "1 passed, 1 failed"),
        ] {
            assert_eq!(judge(&outcomes, allowed), (is_good, line(closing)));
        }
    }

    #[test]
    fn a_program_that_dies_before_it_counts_has_failed_once() {
        let mut dead = outcome("caracal-bgp caracal_bgp", Some("signal: 11"), None);
        dead.first.counts = [0, 0, 0];
        assert_eq!(judge(&[dead], 0), (false, "0 passed, 1 failed".to_owned()));
    }

    #[test]
    fn the_summary_shows_the_ends_of_both_runs() {
        let judgement = Judgement {
            outcomes: vec![
                outcome("drain::a", None, None),
                outcome("drain::b", Some("exit status: 101"), Some(None)),
            ],
            flaky_allowed: 3,
        };
        let text = judgement.summary(10.0);
        for line in [
            "passed       1.5    0.5  drain::a\n",
            "flaky    1.5+1.5    0.5  drain::b\n",
            "flaky: drain::b, run 1 (1.5 s): exit status: 101; 40 of 50 lines of /logs/x.log\n",
            "flaky: drain::b, run 2 (1.5 s): passed; 40 of 50 lines of /logs/x.log\n",
            "  | line 11\n",
            "1 flaky, 3 allowed\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("  | line 10\n"), "{text}");
    }
}
