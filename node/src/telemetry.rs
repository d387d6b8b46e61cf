//! Logs: one line an event, on standard error, text or JSON. `CARACAL_LOG` (or `RUST_LOG`) filters,
//! until [`set_filter`] replaces it while the process runs.
//!
//! What runs for long logs through a queue that drops what nobody reads ([`lines`]); a command
//! writes at once, in the order of its other words. Neither ever ends for a line that cannot be
//! written.

mod lines;

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use caracal_model::nearest_name;
use lines::{LogQueue, ROOM};
use serde::{Deserialize, Serialize};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
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

/// From nothing to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

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

/// The filter in force, and what replaces it.
struct LiveFilter {
    text: Mutex<String>,
    at_start: String,
    layer: reload::Handle<Targets, Registry>,
}

static FILTER: OnceLock<LiveFilter> = OnceLock::new();

/// What is logged, and what was at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogFilter {
    /// Levels, as `CARACAL_LOG` has them.
    pub(crate) filter: String,
    pub(crate) at_start: String,
}

/// The filter in force.
pub(crate) fn log_filter() -> LogFilter {
    let Some(live) = FILTER.get() else {
        return LogFilter {
            filter: DEFAULT.to_owned(),
            at_start: DEFAULT.to_owned(),
        };
    };
    let text = live.text.lock().unwrap_or_else(PoisonError::into_inner);
    LogFilter {
        filter: text.clone(),
        at_start: live.at_start.clone(),
    }
}

/// Replaces the filter until the process ends.
///
/// # Errors
/// The text is no filter.
pub(crate) fn set_filter(text: &str) -> Result<LogFilter, String> {
    let levels = filter(text)?;
    if let Some(live) = FILTER.get() {
        let mut now = live.text.lock().unwrap_or_else(PoisonError::into_inner);
        live.layer
            .reload(levels)
            .map_err(|error| error.to_string())?;
        text.clone_into(&mut now);
        drop(now);
        tracing::info!(filter = text, "what is logged was changed");
    }
    Ok(log_filter())
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
        let text = str::from_utf8(line).map(crate::out::in_its_words);
        let words = text.as_ref().map_or(line, |text| text.as_bytes());
        match self {
            // It takes all or drops all.
            Self::Queue(queue) => drop(queue.write(words)?),
            Self::Direct => drop(io::stderr().write_all(words)),
        }
        Ok(line.len())
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
        .find(|(_, text)| !text.trim().is_empty());
    let (text, levels, wrong) = match read.map(|(name, text)| (filter(&text), name, text)) {
        Some((Ok(levels), _, text)) => (text, levels, None),
        Some((Err(why), name, _)) => (
            DEFAULT.to_owned(),
            default_levels(),
            Some(format!("{name}: {why}")),
        ),
        None => (DEFAULT.to_owned(), default_levels(), None),
    };
    let (levels, layer) = reload::Layer::new(levels);
    let _set_once = FILTER.set(LiveFilter {
        text: Mutex::new(text.clone()),
        at_start: text,
        layer,
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(move || sink.clone());
    let registry = tracing_subscriber::registry().with(levels);
    match format {
        LogFormat::Text => {
            let ansi = std::env::var_os("NO_COLOR").is_none()
                && std::io::IsTerminal::is_terminal(&std::io::stderr());
            registry
                .with(lines.with_ansi(ansi).with_target(true))
                .init();
        }
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    if let Some(wrong) = wrong {
        tracing::warn!("{wrong}; {DEFAULT} counts");
    }
}

fn default_levels() -> Targets {
    DEFAULT.parse().expect("a level")
}

/// Levels, `LEVEL` for all and `TARGET=LEVEL` for a part, with commas between.
///
/// A word without `=` is a level: to the library another word names a part, whose lines would be
/// the only ones, so that a misspelt level turned the log off.
fn filter(text: &str) -> Result<Targets, String> {
    for part in text.split(',').map(str::trim) {
        let is_level = part.is_empty() || part.parse::<LevelFilter>().is_ok();
        if !part.contains('=') && !is_level && !part.starts_with("caracal") {
            let near = nearest_name(LEVELS, part);
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return Err(format!(
                "{part:?} is not a level ({}), nor PART=LEVEL such as caracal_bgp=debug{near}",
                LEVELS.join(", ")
            ));
        }
    }
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
        for (wrong, near) in [
            ("loud", ""),
            ("hyper", ""),
            ("info,debgu", "; did you mean debug?"),
        ] {
            let why = filter(wrong).unwrap_err();
            assert!(
                why.contains("is not a level (off, error,") && why.ends_with(near),
                "{why}"
            );
        }
        assert!(
            filter("caracal_bgp")
                .unwrap()
                .would_enable("caracal_bgp", &Level::TRACE)
        );
        let why = filter("caracal=loud").unwrap_err();
        assert!(
            why.starts_with("\"caracal=loud\" is not a list like"),
            "{why}"
        );
    }
}
