//! Logs: one line an event, on standard error, text or JSON. `CARACAL_LOG` (or `RUST_LOG`) filters.
//!
//! What runs for long logs through a queue that drops what nobody reads ([`lines`]); a command
//! writes at once, in the order of its other words. Neither ever ends for a line that cannot be
//! written.

mod lines;

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use lines::{LogQueue, ROOM};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// What is logged where nobody says.
const DEFAULT: &str = "info";

/// The end of the process, or of one that panics, waits so long for lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The queue of a process that runs for long.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Number of log lines that were dropped since the start.
pub(crate) fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// Gives lines that wait some time to be written, before the process ends.
pub(crate) fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(LAST_WORDS);
    }
}

/// Where lines go.
#[derive(Clone)]
enum LogSink {
    Queue(LogQueue),
    /// Standard error; what it does not take is lost.
    Direct,
}

impl Write for LogSink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::Queue(queue) => queue.write(line),
            Self::Direct => {
                let _lost = io::stderr().write_all(line);
                Ok(line.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogSink {
    /// A queue with its thread; without one where no thread can be had.
    fn queue() -> Self {
        let queue = LogQueue::new(ROOM);
        let writer = queue.clone();
        let write = move || {
            writer.write_to(io::stderr(), |lines| {
                tracing::warn!(
                    lines,
                    "log lines were dropped: nobody read standard error, or it could not be written"
                );
            })
        };
        let thread = std::thread::Builder::new().name("log".to_owned());
        if thread.spawn(write).is_err() {
            return Self::Direct;
        }
        let queue = QUEUE.get_or_init(|| queue).clone();
        std::panic::set_hook(Box::new(|panic| {
            tracing::error!("{}", panic.to_string().replace('\n', " "));
            finish();
        }));
        Self::Queue(queue)
    }
}

/// Starts logging. Called once. A filter that cannot be read is told, and counts as absent.
/// `serves`: the process runs for long.
pub(crate) fn init(format: LogFormat, serves: bool) {
    let sink = match serves {
        true => LogSink::queue(),
        false => LogSink::Direct,
    };
    let read = ["CARACAL_LOG", "RUST_LOG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok().map(|text| (name, text)))
        .find(|(_, text)| !text.trim().is_empty())
        .map(|(name, text)| filter(&text).map_err(|why| format!("{name}: {why}")));
    let (filter, wrong) = match read.transpose() {
        Ok(filter) => (filter, None),
        Err(wrong) => (None, Some(wrong)),
    };
    let filter = filter.unwrap_or_else(|| DEFAULT.parse().expect("a level"));
    let builder = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || sink.clone());
    match format {
        LogFormat::Text => {
            let ansi = std::env::var_os("NO_COLOR").is_none()
                && std::io::IsTerminal::is_terminal(&std::io::stderr());
            let lines = builder.with_ansi(ansi).with_target(true);
            lines.finish().with(filter).init();
        }
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .finish()
            .with(filter)
            .init(),
    }
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}; {DEFAULT} counts");
    }
}

/// Levels, `LEVEL` for all and `TARGET=LEVEL` for a part, with commas between.
fn filter(text: &str) -> Result<Targets, String> {
    text.parse().map_err(|why| {
        format!("{text:?} is not a list like info,caracal_bgp=debug with levels from error to trace: {why}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tracing::Level;

    use super::filter;

    #[test]
    fn a_filter_is_a_list_of_levels_and_targets() {
        let filtered = filter("warn,caracal_bgp=debug,hyper=off").unwrap();
        assert!(filtered.would_enable("caracal_agent", &Level::WARN));
        assert!(!filtered.would_enable("caracal_agent", &Level::INFO));
        assert!(filtered.would_enable("caracal_bgp::rib", &Level::DEBUG));
        assert!(!filtered.would_enable("hyper", &Level::ERROR));
        let why = filter("caracal=loud").unwrap_err();
        assert!(
            why.starts_with("\"caracal=loud\" is not a list like"),
            "{why}"
        );
    }
}
