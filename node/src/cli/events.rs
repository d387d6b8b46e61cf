//! `caracal events`: what is not well now, then what changes. Exit code 4 when something is not
//! well. It asks the daemon of this machine twice a second, also where no console is served.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use caracal_console::{ConsoleEvent, EventDiff};
use caracal_model::{NodeStatus, Timestamp};
use clap::Args;

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::{Output, OutputArgs};
use crate::console::dated;
use crate::exit::DEGRADED;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// `caracal events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Keep running; print events as they happen.
    #[arg(short, long)]
    follow: bool,
    /// Output format.
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let mut diff = EventDiff::default();
    let mut silent = String::new();
    loop {
        let is_first = diff.is_new();
        match ask(&run_dir(), &Request::Status) {
            Ok(value) => {
                silent.clear();
                let status: NodeStatus = serde_json::from_value(value)?;
                let events = diff.update(status, Instant::now());
                let at = Timestamp::from(SystemTime::now()).rfc3339();
                for event in &events {
                    print(event, &at, output);
                }
                if is_first && events.is_empty() && !output.is_data() {
                    println!("{at} nothing is wrong");
                }
                if !args.follow {
                    return Ok(match events.is_empty() {
                        true => ExitCode::SUCCESS,
                        false => ExitCode::from(DEGRADED),
                    });
                }
            }
            Err(error) if is_first => return Err(error),
            // A node that restarts is waited for.
            Err(error) => {
                let reason = format!("{error:#}");
                if reason != silent {
                    eprintln!("caracal: {reason}");
                    silent = reason;
                }
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

fn print(event: &ConsoleEvent, at: &str, output: Output) {
    match output {
        Output::Json => println!("{}", dated(event, at)),
        Output::Yaml => {
            println!("---");
            output.print(&dated(event, at));
        }
        Output::Table | Output::Wide => println!("{at} {}", sentence(event)),
    }
}

fn sentence(event: &ConsoleEvent) -> String {
    let because = |reason: &Option<String>| match reason {
        Some(reason) => format!(": {reason}"),
        None => String::new(),
    };
    match event {
        ConsoleEvent::Session {
            peer,
            before,
            state,
            reason,
        } => {
            let before = before.as_ref().map(|before| format!("{before} → "));
            let before = before.unwrap_or_default();
            format!("session {peer} {before}{state}{}", because(reason))
        }
        ConsoleEvent::Problem {
            change,
            code,
            subject,
            reason,
            remedy,
        } => format!(
            "problem {} {code} {subject}: {reason} (what to do: {remedy})",
            change.as_str()
        ),
        ConsoleEvent::Datastore { state, reason } => {
            format!("datastore {state}{}", because(reason))
        }
        ConsoleEvent::Routes { peer, before, now } => format!(
            "routes {peer} received {} → {}, accepted {} → {}, advertised {} → {}",
            before.received,
            now.received,
            before.accepted,
            now.accepted,
            before.advertised,
            now.advertised
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = ConsoleEvent::Session {
            peer: "Mesh_10_0_0_2".to_owned(),
            before: Some("Established".to_owned()),
            state: "Active".to_owned(),
            reason: Some("connection refused".to_owned()),
        };
        assert_eq!(
            sentence(&event),
            "session Mesh_10_0_0_2 Established → Active: connection refused"
        );
    }
}
