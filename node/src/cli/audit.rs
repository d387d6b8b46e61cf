//! `caracal audit`: what the auditor of this node finds. Exit code 4 when something counts as
//! wrong.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use caracal_agent::AuditFinding;
use caracal_model::{InsertEach, Severity};
use serde_json::json;

use super::all_nodes::{self, Aspect};
use super::whom::Whom;
use super::{duration, table};
use crate::admin::Request;
use crate::args::{AuditArgs, Output};
use crate::exit::DEGRADED;
use crate::node::answers::auditor::AuditReport;

/// Time between questions of `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    if args.nodes.all_nodes {
        return all_nodes::run(Aspect::Audit, args.watch, output);
    }
    let whom = Whom::from(&args.nodes.one);
    if args.watch {
        return watch(&whom, output);
    }
    let value = whom.ask(&Request::Audit)?;
    let report: AuditReport = serde_json::from_value(value.clone())?;
    match output {
        Output::Json | Output::Yaml => output.print(&value),
        Output::Table | Output::Wide => print(&report),
    }
    Ok(if report.wrong {
        ExitCode::from(DEGRADED)
    } else {
        ExitCode::SUCCESS
    })
}

fn print(report: &AuditReport) {
    if report.findings.is_empty() {
        println!(
            "{}: nothing is wrong at revision {}",
            report.node, report.revision
        );
        return;
    }
    let mut shown = table(&["CODE", "SEVERITY", "AGE", "SUBJECT", "FINDING"]);
    for finding in &report.findings {
        shown.add_row([
            finding.code.clone(),
            severity(finding),
            duration(finding.age_seconds),
            finding.subject.clone(),
            finding.sentence.clone(),
        ]);
    }
    println!("{shown}");
}

fn severity(finding: &AuditFinding) -> String {
    let word = finding.severity.as_str();
    if finding.counts || finding.severity == Severity::Notice {
        word.to_owned()
    } else {
        format!("{word} (settling)")
    }
}

/// Change of a finding between two reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Found,
    Counts,
    Gone,
}

impl Event {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Counts => "counts",
            Self::Gone => "gone",
        }
    }
}

type Known = BTreeMap<(String, String), AuditFinding>;

/// Changes from one report to the next.
fn changes(known: &Known, now: &Known) -> Vec<(Event, AuditFinding)> {
    let mut events = Vec::new();
    for (key, finding) in now {
        let old = known.get(key);
        if old.is_none() {
            events.push((Event::Found, finding.clone()));
        }
        if finding.counts && old.is_none_or(|old| !old.counts) {
            events.push((Event::Counts, finding.clone()));
        }
    }
    let gone = known.iter().filter(|(key, _)| !now.contains_key(*key));
    events.extend(gone.map(|(_, finding)| (Event::Gone, finding.clone())));
    events
}

/// Asks again and again until it is interrupted. A node that restarts meanwhile is waited for.
fn watch(whom: &Whom, output: Output) -> anyhow::Result<ExitCode> {
    let mut known: Option<Known> = None;
    loop {
        match whom.ask(&Request::Audit) {
            Ok(value) => {
                let report: AuditReport = serde_json::from_value(value)?;
                let now: Known = report
                    .findings
                    .iter()
                    .map(|f| ((f.code.clone(), f.subject.clone()), f.clone()))
                    .insert_each();
                let first = known.is_none();
                let before = known.unwrap_or_default();
                for (event, finding) in changes(&before, &now) {
                    print_change(output, event, &finding);
                }
                let cleared = !before.is_empty() && now.is_empty();
                if !output.is_data() && (cleared || (first && now.is_empty())) {
                    println!(
                        "{}: nothing is wrong at revision {}",
                        report.node, report.revision
                    );
                }
                known = Some(now);
            }
            Err(error) if known.is_some() => eprintln!("caracal: {error:#}"),
            Err(error) => return Err(error),
        }
        std::thread::sleep(INTERVAL);
    }
}

fn print_change(output: Output, event: Event, finding: &AuditFinding) {
    match output {
        Output::Json => println!("{}", json!({"event": event.as_str(), "finding": finding})),
        Output::Yaml => {
            println!("---");
            output.print(&json!({"event": event.as_str(), "finding": finding}));
        }
        Output::Table | Output::Wide => println!(
            "{:6} {} {} {}: {}",
            event.as_str(),
            finding.code,
            severity(finding),
            finding.subject,
            finding.sentence
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: &str, counts: bool) -> AuditFinding {
        AuditFinding {
            code: code.to_owned(),
            severity: Severity::Error,
            subject: "x".to_owned(),
            sentence: "s".to_owned(),
            age_seconds: 0,
            grace_seconds: 10,
            counts,
        }
    }

    fn known(findings: &[AuditFinding]) -> Known {
        let keyed = findings
            .iter()
            .map(|f| ((f.code.clone(), f.subject.clone()), f.clone()));
        keyed.collect()
    }

    #[test]
    fn a_watcher_is_told_of_changes_only() {
        let before = known(&[finding("a", false), finding("b", true), finding("c", false)]);
        let now = known(&[
            finding("a", true),
            finding("c", false),
            finding("d", false),
            finding("e", true),
        ]);
        let events: Vec<(Event, String)> = changes(&before, &now)
            .into_iter()
            .map(|(event, finding)| (event, finding.code))
            .collect();
        let expected = [
            (Event::Counts, "a"),
            (Event::Found, "d"),
            (Event::Found, "e"),
            (Event::Counts, "e"),
            (Event::Gone, "b"),
        ];
        assert_eq!(
            events,
            expected.map(|(event, code)| (event, code.to_owned()))
        );
        assert_eq!(changes(&now, &now), []);
    }
}
