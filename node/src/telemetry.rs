//! Logs: one line an event, on standard error, text or JSON. `CARACAL_LOG` (or `RUST_LOG`) filters.

use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Starts logging. Called once.
pub(crate) fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_env("CARACAL_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let ansi = std::env::var_os("NO_COLOR").is_none()
                && std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(ansi).with_target(true).init();
        }
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
