//! Tables: medians of runs, and their place in a Markdown file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::RunOutcome;
use crate::speakers::Speaker;

/// The runs of one speaker in one scenario.
#[derive(Debug)]
pub struct Runs {
    pub speaker: Speaker,
    pub outcomes: Vec<RunOutcome>,
    /// Why a run failed.
    pub failures: Vec<String>,
}

impl Runs {
    /// No run of the speaker yet.
    pub const fn new(speaker: Speaker) -> Self {
        Self {
            speaker,
            outcomes: Vec::new(),
            failures: Vec::new(),
        }
    }
}

/// The middle one of values, or the upper one of two.
pub fn median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// A time in seconds with three digits.
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s < 0.1 {
        format!("{s:.4}")
    } else {
        format!("{s:.3}")
    }
}

/// Wall time as median (minimum–maximum), CPU time as median.
pub fn cells(times: &[(Duration, Duration)]) -> (String, String) {
    let walls: Vec<Duration> = times.iter().map(|t| t.0).collect();
    let cpus = times.iter().map(|t| t.1).collect();
    let (low, high) = (walls.iter().min(), walls.iter().max());
    match (median(walls.clone()), median(cpus), low, high) {
        (Some(wall), Some(cpu), Some(low), Some(high)) => (
            format!("{} ({}–{})", seconds(wall), seconds(*low), seconds(*high)),
            seconds(cpu),
        ),
        _ => ("–".to_owned(), "–".to_owned()),
    }
}

/// The table of a scenario.
pub fn table(all: &[Runs]) -> String {
    let phases: Vec<&str> = all
        .iter()
        .find_map(|runs| runs.outcomes.first())
        .map(|outcome| outcome.phases.iter().map(|(name, _)| *name).collect())
        .unwrap_or_default();
    let mut text = "| speaker | runs |".to_owned();
    for phase in &phases {
        // Writing to a String cannot fail.
        let _ = write!(text, " {phase} wall s | {phase} CPU s | {phase} faults |");
    }
    text.push_str(" peak MiB | left MiB | UPDATEs | MB | checked |\n|---|---|");
    text.push_str(&"---|".repeat(phases.len() * 3 + 5));
    text.push('\n');
    for runs in all {
        row(runs, phases.len(), &mut text);
    }
    for runs in all {
        for failure in &runs.failures {
            let _ = writeln!(text, "\n{}: {failure}", runs.speaker.name());
        }
    }
    text
}

fn row(runs: &Runs, phases: usize, text: &mut String) {
    let _ = write!(
        text,
        "| {} | {} |",
        runs.speaker.name(),
        runs.outcomes.len()
    );
    for phase in 0..phases {
        let times: Vec<_> = runs
            .outcomes
            .iter()
            .filter_map(|outcome| outcome.phases.get(phase))
            .map(|(_, cost)| (cost.wall, cost.cpu))
            .collect();
        let (wall, cpu) = cells(&times);
        let costs = runs.outcomes.iter().filter_map(|o| o.phases.get(phase));
        let faults = median(costs.map(|(_, cost)| cost.faults).collect()).unwrap_or(0);
        let _ = write!(text, " {wall} | {cpu} | {faults} |");
    }
    let of = |value: &dyn Fn(&RunOutcome) -> u64| {
        median(runs.outcomes.iter().map(value).collect()).unwrap_or(0)
    };
    let _ = writeln!(
        text,
        " {} | {} | {} | {:.1} | {} |",
        of(&|o| o.peak_kib).div_ceil(1024),
        of(&|o| o.left_kib).div_ceil(1024),
        of(&|o| o.counters.updates),
        of(&|o| o.counters.octets) as f64 / 1e6,
        of(&|o| o.counters.checked),
    );
}

fn read(file: &Path) -> Result<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).context(format!("cannot read {}", file.display())),
    }
}

/// Text between the marks of this name in a file.
pub fn block(file: &Path, name: &str) -> Result<String> {
    let text = read(file)?;
    let (begin, end) = marks(name);
    let found = text
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once(&end));
    Ok(found.map_or("", |(block, _)| block).to_owned())
}

/// Replaces the table of a scenario in a file, between its two marks; appends it when there are
/// none.
pub fn write(file: &Path, scenario: &str, table: &str) -> Result<()> {
    let text = read(file)?;
    let text = replaced(&text, scenario, table);
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Lines before and after a table.
fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- begin {name} -->\n"),
        format!("<!-- end {name} -->\n"),
    )
}

fn replaced(text: &str, scenario: &str, table: &str) -> String {
    let (begin, end) = marks(scenario);
    let block = format!("{begin}{table}{end}");
    match (text.find(&begin), text.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{block}{}", &text[..from], &text[to + end.len()..])
        }
        _ => format!("{text}\n### {scenario}\n\n{block}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_its_predecessor_and_nothing_else() {
        let first = replaced("# Title\n", "A-1M", "old\n");
        let second = replaced(&format!("{first}text\n"), "A-1M", "new\n");
        assert!(second.starts_with("# Title\n\n### A-1M\n"));
        assert!(second.contains("new\n") && !second.contains("old\n"));
        assert!(second.ends_with("text\n"));
    }

    #[test]
    fn medians_are_medians() {
        assert_eq!(median(vec![3, 1, 2]), Some(2));
        assert_eq!(median(Vec::<u8>::new()), None);
        assert_eq!(
            table(&[]),
            "| speaker | runs | peak MiB | left MiB | UPDATEs | MB | checked |\n|---|---|---|---|---|---|---|\n"
        );
    }
}
