//! Signals of the daemons: two end them, and the others that people and tools send do not.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are listened to.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The name of the signal that ends a daemon with nothing to reload. Others are logged on the
    /// way.
    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            match self.next().await {
                name @ ("SIGTERM" | "SIGINT") => return name,
                "SIGHUP" => tracing::info!(
                    "SIGHUP: nothing to reload; the environment is read at the next start"
                ),
                name => ignore(name),
            }
        }
    }

    /// The name of the next signal.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
            _ = self.quit.recv() => "SIGQUIT",
            _ = self.user1.recv() => "SIGUSR1",
            _ = self.user2.recv() => "SIGUSR2",
        }
    }
}

/// Logs that a signal changes nothing.
pub(crate) fn ignore(name: &str) {
    tracing::info!("{name}: ignored; SIGTERM ends this process");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn only_two_signals_end_the_node() {
        let mut signals = Signals::listen().unwrap();
        for (sent, name) in [
            (Signal::HUP, "SIGHUP"),
            (Signal::QUIT, "SIGQUIT"),
            (Signal::USR1, "SIGUSR1"),
            (Signal::USR2, "SIGUSR2"),
        ] {
            kill_process(getpid(), sent).unwrap();
            let heard = tokio::time::timeout(Duration::from_secs(60), signals.next()).await;
            assert_eq!(heard, Ok(name));
        }
        for sent in [Signal::HUP, Signal::QUIT, Signal::USR1, Signal::TERM] {
            kill_process(getpid(), sent).unwrap();
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), signals.end()).await;
        assert_eq!(ended, Ok("SIGTERM"));
    }
}
