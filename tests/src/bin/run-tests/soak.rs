//! The same cases again and again beside a load of choice: how often, and how, each one fails.

use std::fmt::Write as _;
use std::process::{Child, Stdio};

use crate::attempt::{Attempt, bound_to_us};

/// Processes that do nothing but use a core each. They end when this goes out of scope.
#[derive(Debug)]
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// # Errors
    /// A process does not start.
    pub(crate) fn start(processes: usize) -> Result<Self, String> {
        let mut load = Self(Vec::new());
        for _ in 0..processes {
            let mut busy = bound_to_us("sh");
            busy.args(["-c", "while :; do :; done"])
                .stdin(Stdio::null());
            let child = busy.spawn().map_err(|e| format!("setpriv sh: {e}"))?;
            load.0.push(child);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// A case's runs.
#[derive(Debug)]
pub(crate) struct Endurance {
    pub(crate) name: String,
    pub(crate) runs: Vec<Attempt>,
}

impl Endurance {
    fn faults(&self) -> impl Iterator<Item = (usize, &Attempt)> {
        let numbered = (1..).zip(&self.runs);
        numbered.filter(|(_, attempt)| attempt.fault.is_some())
    }
}

/// What a run says of its failure: the line after the one that names the panic, else its fault.
fn cause(attempt: &Attempt) -> String {
    let mut lines = attempt.output.lines();
    let panicked = lines.find(|l| l.contains("thread '") && l.contains(" panicked at "));
    let said = panicked.and_then(|_| lines.next()).map(str::trim);
    let fault = attempt.fault.clone().unwrap_or_default();
    match said {
        Some(said) => format!("{fault}: {}", said.chars().take(200).collect::<String>()),
        None => fault,
    }
}

/// A row for each case, in the form of docs/testing.md's table, and each failure with its log.
pub(crate) fn report(endured: &[Endurance], load: usize) -> String {
    let mut text =
        "\n| scenario | load | runs | failures | seconds |\n|---|---|---|---|---|\n".to_owned();
    for case in endured {
        let seconds = |pick: fn(f64, f64) -> f64| {
            let all = case.runs.iter().map(|a| a.seconds);
            all.reduce(pick).unwrap_or_default()
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {load} | {} | {} | {:.1} to {:.1} |",
            case.name,
            case.runs.len(),
            case.faults().count(),
            seconds(f64::min),
            seconds(f64::max)
        );
    }
    for case in endured {
        for (run, attempt) in case.faults() {
            let _ = writeln!(
                text,
                "\n{}, run {run}: {}\n    {}",
                case.name,
                cause(attempt),
                attempt.log.display()
            );
        }
    }
    text
}

/// Runs that passed and that failed.
pub(crate) fn counts(endured: &[Endurance]) -> (usize, usize) {
    let runs: usize = endured.iter().map(|e| e.runs.len()).sum();
    let failed: usize = endured.iter().map(|e| e.faults().count()).sum();
    (runs - failed, failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::ran;

    #[test]
    fn a_failure_is_told_by_its_cause() {
        let mut bad = ran(Some("exit status: 101"), [0, 1, 0]);
        bad.output =
            "x\nthread 'a' (7) panicked at tests/tests/drain.rs:9:5:\nnode2: no route\nmore\n"
                .to_owned();
        let endured = [Endurance {
            name: "drain::a".to_owned(),
            runs: vec![ran(None, [1, 0, 0]), bad, ran(None, [1, 0, 0])],
        }];
        let text = report(&endured, 2);
        assert!(
            text.contains("| drain::a | 2 | 3 | 1 | 1.5 to 1.5 |"),
            "{text}"
        );
        let failure = "drain::a, run 2: exit status: 101: node2: no route\n    /logs/x.log";
        assert!(text.contains(failure), "{text}");
        assert_eq!(counts(&endured), (2, 1));
    }
}
