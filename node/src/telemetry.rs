//! Logs: one line an event, on standard error, text or JSON. `CARACAL_LOG` (or `RUST_LOG`) filters.

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

/// Starts logging. Called once. A filter that cannot be read is told, and counts as absent.
pub(crate) fn init(format: LogFormat) {
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
        .with_writer(std::io::stderr);
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
