//! How long a connection lives: a while, unless who answers on it lets it live on, or closes it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Limited,
    LivesOn,
    Closed,
}

/// A connection in the hands of who answers on it: an extension of each request.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    life: watch::Sender<Life>,
    /// The client has a certificate that was verified.
    pub(crate) is_certified: bool,
}

impl Connection {
    pub(super) fn new(is_certified: bool) -> (Self, ConnectionEnd) {
        let (life, receiver) = watch::channel(Life::Limited);
        (Self { life, is_certified }, ConnectionEnd(receiver))
    }

    /// It may live on as long as its answer goes on.
    pub(crate) fn live_on(&self) {
        self.life.send_replace(Life::LivesOn);
    }

    /// It ends now, whatever its client has not read.
    pub(crate) fn close(&self) {
        self.life.send_replace(Life::Closed);
    }
}

/// When a connection ends.
pub(super) struct ConnectionEnd(watch::Receiver<Life>);

impl ConnectionEnd {
    /// Waits until it is to end: after `limit`, unless it lives on, or when it is closed.
    pub(super) async fn reached(mut self, limit: Duration) {
        let mut limit = std::pin::pin!(sleep(limit));
        loop {
            let life = *self.0.borrow_and_update();
            if life == Life::Closed {
                return;
            }
            tokio::select! {
                () = &mut limit, if life != Life::LivesOn => return,
                // Nobody holds it any more: what is left of the answer has its time.
                changed = self.0.changed() => if changed.is_err() {
                    return limit.await;
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_time_unless_it_lives_on() {
        let start = Instant::now();
        let (connection, end) = Connection::new(false);
        let answered = connection.clone();
        drop(connection);
        end.reached(LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT);
        drop(answered);

        let (connection, end) = Connection::new(false);
        connection.live_on();
        let end = tokio::spawn(end.reached(LIMIT));
        sleep(100 * LIMIT).await;
        assert!(!end.is_finished());
        connection.close();
        assert!(end.await.is_ok());
        assert_eq!(start.elapsed(), 101 * LIMIT);
    }
}
