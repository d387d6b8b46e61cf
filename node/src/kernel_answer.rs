//! What a start has to know of the kernel before it goes on. While many devices are made and
//! removed the kernel answers nobody for half a minute: a start waits for that, as it does for the
//! datastore, and says so.

use std::time::Duration;

use caracal_agent::NetlinkError;
use caracal_datastore::Rarely;
use tokio::time::Instant;

/// Pause between two tries; one without an answer has waited for ten seconds itself.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads until the kernel answers; `report` gets what is being waited for.
///
/// # Errors
/// The kernel refuses, or there are no sockets to be had: to ask again does not help.
pub(crate) async fn await_kernel<T>(
    read: impl AsyncFn() -> anyhow::Result<T>,
    report: impl Fn(String),
) -> anyhow::Result<T> {
    let mut told = Rarely::default();
    loop {
        let error = match read().await {
            Ok(found) => {
                if told.over() {
                    tracing::info!("the kernel answers");
                }
                return Ok(found);
            }
            Err(error) => error,
        };
        let passes = error.downcast_ref::<NetlinkError>();
        if !passes.is_some_and(NetlinkError::is_passing) {
            return Err(error);
        }
        let reason = format!("waiting for the kernel: {error:#}");
        if told.is_due(Instant::now(), &reason) {
            tracing::warn!("{reason}");
        }
        report(reason);
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::{Cell, RefCell};
    use std::io;

    use anyhow::Context;
    use caracal_datastore::TestLog;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_a_kernel_that_stands_still_and_says_so() {
        let log = TestLog::capture();
        let (tries, said) = (Cell::new(0), RefCell::new(Vec::new()));
        let read = async || {
            tries.set(tries.get() + 1);
            match tries.get() {
                1..=6 => {
                    tokio::time::sleep(PATIENCE).await;
                    Err(NetlinkError::Timeout(PATIENCE)).context("reading the interfaces")
                }
                7 => Err(NetlinkError::Unsteady { what: "links" }).context("reading the routes"),
                tries => Ok(tries),
            }
        };
        let found = await_kernel(read, |reason| said.borrow_mut().push(reason)).await;
        assert_eq!(found.unwrap(), 8);
        let said = said.into_inner();
        let waits =
            "waiting for the kernel: reading the interfaces: no answer from the kernel within 10s";
        assert_eq!(said[..6], [waits; 6]);
        assert_eq!(said.len(), 7);
        // Each reason at once, and the lasting one once more after half a minute.
        assert_eq!(log.lines("waiting for the kernel").len(), 3);
        assert_eq!(log.lines("the kernel answers").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_ends_the_start() {
        let read = async || -> anyhow::Result<()> {
            let none = io::Error::from(io::ErrorKind::PermissionDenied);
            Err(NetlinkError::Open(none)).context("reading the interfaces")
        };
        let error = await_kernel(read, |reason| panic!("{reason}")).await;
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("cannot open a netlink socket"), "{text}");
    }
}
