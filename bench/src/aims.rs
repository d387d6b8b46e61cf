//! The aims of the project, and what a comparison says about each: ratios of medians, never numbers
//! by hand.

use std::fmt::Write as _;
use std::time::Duration;

use crate::report::{Runs, median, seconds};
use crate::speakers::Speaker;

/// Limit of the cost of one work in proportion to another.
struct Aim {
    /// Name of the row in the table.
    work: &'static str,
    scenario: &'static str,
    /// Phases that count together.
    phases: &'static [&'static str],
    /// With whose wall and CPU time it is compared: each with the best.
    anchors: &'static [Speaker],
    wall: Option<f64>,
    cpu: Option<f64>,
    /// With whose peak memory, and how much of it.
    memory: Option<(Speaker, f64)>,
}

const BIRD2: &[Speaker] = &[Speaker::Bird2];
const FRR: &[Speaker] = &[Speaker::Frr];
const MINIMAL: &[Speaker] = &[Speaker::Minimal];
const ALL: &[Speaker] = &[Speaker::Frr, Speaker::Bird2, Speaker::Bird1];

const fn aim(
    work: &'static str,
    scenario: &'static str,
    phases: &'static [&'static str],
    anchors: &'static [Speaker],
    (wall, cpu): (Option<f64>, Option<f64>),
    memory: Option<(Speaker, f64)>,
) -> Aim {
    Aim {
        work,
        scenario,
        phases,
        anchors,
        wall,
        cpu,
        memory,
    }
}

const AIMS: [Aim; 15] = [
    aim(
        "A-1M",
        "A-1M",
        &["load"],
        BIRD2,
        (Some(0.5), Some(0.6)),
        Some((Speaker::Bird2, 1.0)),
    ),
    aim(
        "F-1M: the filter of a route server",
        "F-1M",
        &["load"],
        BIRD2,
        (None, Some(0.5)),
        None,
    ),
    aim(
        "C: ten senders, ten receivers",
        "C",
        &["load"],
        &[Speaker::Bird2, Speaker::Frr],
        (Some(0.4), Some(0.5)),
        Some((Speaker::Bird2, 1.5)),
    ),
    aim(
        "C beside a minimal relay",
        "C",
        &["load"],
        MINIMAL,
        (Some(2.5), None),
        None,
    ),
    aim(
        "B-300: all announce",
        "B-300",
        &["announce"],
        FRR,
        (Some(1.0), Some(0.7)),
        Some((Speaker::Bird1, 1.5)),
    ),
    aim(
        "B-300: each moves a block",
        "B-300",
        &["churn"],
        ALL,
        (Some(1.0), Some(0.8)),
        None,
    ),
    aim(
        "B-300: half of the clients cut",
        "B-300",
        &["kill-half"],
        ALL,
        (Some(1.0), Some(0.8)),
        None,
    ),
    aim(
        "B-1000: all announce",
        "B-1000",
        &["announce"],
        FRR,
        (Some(1.0), Some(0.7)),
        Some((Speaker::Bird1, 1.5)),
    ),
    aim(
        "B-1000: each moves a block",
        "B-1000",
        &["churn"],
        ALL,
        (Some(1.0), Some(0.8)),
        None,
    ),
    aim(
        "B-1000: half of the clients cut",
        "B-1000",
        &["kill-half"],
        ALL,
        (Some(1.0), Some(0.8)),
        None,
    ),
    aim(
        "D: 100,000 withdrawn and announced again",
        "D",
        &["withdraw", "announce"],
        BIRD2,
        (Some(0.5), Some(0.6)),
        Some((Speaker::Bird2, 1.0)),
    ),
    aim(
        "D: only withdrawn",
        "D",
        &["withdraw"],
        BIRD2,
        (Some(0.5), Some(0.6)),
        None,
    ),
    aim(
        "D: only announced again",
        "D",
        &["announce"],
        BIRD2,
        (Some(0.5), Some(0.6)),
        None,
    ),
    aim(
        "D beside a minimal relay",
        "D",
        &["withdraw", "announce"],
        MINIMAL,
        (Some(2.0), None),
        None,
    ),
    aim(
        "E-300: CPU seconds per minute",
        "E-300",
        &["idle"],
        BIRD2,
        (None, Some(0.2)),
        Some((Speaker::Bird2, 1.5)),
    ),
];

const HEAD: &str = "| work | anchor | n | wall, ours / anchor | aim | CPU, ours / anchor | aim | peak memory, ours / anchor | aim |\n\
                    |---|---|---|---|---|---|---|---|---|\n";

/// Wall and CPU time of some phases together, and how often that was measured.
fn times(runs: &Runs, phases: &[&str]) -> Option<(Duration, Duration, usize)> {
    let of = |what: fn(&crate::run::PhaseCost) -> Duration| {
        let sum = |outcome: &crate::run::RunOutcome| {
            let costs = outcome.phases.iter();
            let named = costs.filter(|(name, _)| phases.contains(name));
            named.map(|(_, cost)| what(cost)).sum()
        };
        median(runs.outcomes.iter().map(sum).collect())
    };
    Some((of(|c| c.wall)?, of(|c| c.cpu)?, runs.outcomes.len()))
}

fn peak(runs: &Runs) -> Option<u64> {
    median(runs.outcomes.iter().map(|o| o.peak_kib).collect())
}

/// Ours, the best of the anchors with its name: a ratio and a judgement.
fn judged<T: PartialOrd + Copy>(
    ours: T,
    anchors: impl Iterator<Item = (Speaker, T)>,
    aim: f64,
    number: impl Fn(T) -> f64,
    show: impl Fn(T) -> String,
) -> (String, Option<Speaker>) {
    let best = anchors.min_by(|a, b| number(a.1).total_cmp(&number(b.1)));
    let Some((anchor, theirs)) = best else {
        return ("– | –".to_owned(), None);
    };
    let ratio = number(ours) / number(theirs);
    let verdict = if ratio <= aim { "**hit**" } else { "*missed*" };
    let cells = format!(
        "{ratio:.2} ({} / {}) | ≤ {aim:.1} {verdict}",
        show(ours),
        show(theirs)
    );
    (cells, Some(anchor))
}

fn row(aim: &Aim, all: &[Runs]) -> Option<String> {
    let of = |speaker: Speaker| all.iter().find(|runs| runs.speaker == speaker);
    let ours = of(Speaker::Caracal)?;
    let (wall, cpu, mut n) = times(ours, aim.phases)?;
    let anchors: Vec<_> = aim
        .anchors
        .iter()
        .filter_map(|speaker| Some((*speaker, times(of(*speaker)?, aim.phases)?)))
        .collect();
    n = anchors.iter().map(|(_, times)| times.2).fold(n, usize::min);
    let time = |aim: Option<f64>,
                ours: Duration,
                which: fn(&(Duration, Duration, usize)) -> Duration| match aim {
        Some(aim) => {
            let theirs = anchors
                .iter()
                .map(|(speaker, times)| (*speaker, which(times)));
            judged(
                ours,
                theirs,
                aim,
                |t| t.as_secs_f64(),
                |t| format!("{} s", seconds(t)),
            )
        }
        None => ("– | –".to_owned(), None),
    };
    let (wall, by_wall) = time(aim.wall, wall, |times| times.0);
    let (cpu, by_cpu) = time(aim.cpu, cpu, |times| times.1);
    let (memory, by_memory) = match aim.memory {
        Some((speaker, limit)) => {
            let theirs = of(speaker).and_then(peak).map(|peak| (speaker, peak));
            let show = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
            judged(
                peak(ours)?,
                theirs.into_iter(),
                limit,
                |kib| kib as f64,
                show,
            )
        }
        None => ("– | –".to_owned(), None),
    };
    let mut anchor = String::new();
    for (of, name) in [("wall", by_wall), ("CPU", by_cpu), ("memory", by_memory)] {
        let Some(name) = name else { continue };
        let separator = if anchor.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = write!(anchor, "{separator}{of} {}", name.title());
    }
    Some(format!(
        "| {} | {anchor} | {n} | {wall} | {cpu} | {memory} |\n",
        aim.work
    ))
}

/// The table of aims: rows of the old one, but for scenarios that have been measured now.
pub fn table(measured: &[(String, Vec<Runs>)], old: &str) -> String {
    let mut text = HEAD.to_owned();
    for aim in &AIMS {
        let now = measured.iter().find(|(name, _)| name == aim.scenario);
        let now = now.and_then(|(_, all)| row(aim, all));
        let start = format!("| {} |", aim.work);
        let before = old.lines().find(|line| line.starts_with(&start));
        match (now, before) {
            (Some(row), _) => text.push_str(&row),
            (None, Some(line)) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Counters;
    use crate::run::{PhaseCost, RunOutcome};

    fn runs(speaker: Speaker, millis: &[u64], peak_mib: u64) -> Runs {
        let outcome = |millis: &u64| {
            let time = Duration::from_millis(*millis);
            let cost = PhaseCost {
                wall: time,
                cpu: time / 2,
                faults: 0,
            };
            RunOutcome {
                phases: vec![("withdraw", cost), ("announce", cost)],
                peak_kib: peak_mib * 1024,
                left_kib: 0,
                counters: Counters::default(),
            }
        };
        Runs {
            speaker,
            outcomes: millis.iter().map(outcome).collect(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_row_is_the_ratio_of_medians_and_says_whether_the_aim_is_met() {
        let all = vec![
            runs(Speaker::Caracal, &[40, 60, 50], 20),
            runs(Speaker::Bird2, &[100, 100], 16),
        ];
        let text = table(&[("D".to_owned(), all)], "");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| D: 100,000 withdrawn and announced again | wall BIRD 2; CPU BIRD 2; memory BIRD 2 | 2 \
             | 0.50 (0.100 s / 0.200 s) | ≤ 0.5 **hit** | 0.50 (0.0500 s / 0.100 s) | ≤ 0.6 **hit** \
             | 1.25 (20.0 MiB / 16.0 MiB) | ≤ 1.0 *missed* |"
        );
        assert_eq!(lines.len(), 6, "{text}");
    }

    #[test]
    fn the_best_of_several_is_the_anchor_and_rows_of_other_scenarios_stay() {
        let reflect = |speaker, millis| {
            let mut runs = runs(speaker, &[millis], 1);
            runs.outcomes[0].phases[0].0 = "churn";
            runs
        };
        let all = vec![
            reflect(Speaker::Caracal, 10),
            reflect(Speaker::Frr, 20),
            reflect(Speaker::Bird1, 8),
        ];
        let old = "| A-1M | kept |\n| B-300: each moves a block | replaced |\n";
        let text = table(&[("B-300".to_owned(), all)], old);
        assert!(text.contains("| A-1M | kept |\n"), "{text}");
        assert!(!text.contains("replaced"), "{text}");
        let row = "| B-300: each moves a block | wall BIRD 1.6; CPU BIRD 1.6 | 1 | 1.25 (0.0100 s / 0.0080 s) | ≤ 1.0 *missed* |";
        assert!(text.contains(row), "{text}");
    }
}
