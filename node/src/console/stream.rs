//! Events for clients that follow them (server-sent events). While nobody follows, nobody looks.
//! The node is looked at twice a second for all clients together, and less often where a look takes
//! long. A client that does not read is dropped; it sees by the status what it has missed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use caracal_console::{ConsoleEvent, EventDiff};
use caracal_model::{NodeStatus, Timestamp};
use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use crate::admin::{AnswerRequests, Answered, Request};
use crate::http;
use crate::http::connection::Connection;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(500);
/// And of the time between two, so small a part is spent on one.
const PART: u32 = 20;
/// Silence after which a client is told that the node still lives.
const SILENCE: Duration = Duration::from_secs(15);
/// Clients at a time.
const CLIENTS: usize = 32;
/// Parts that wait for a client to read.
const WAITING: usize = 32;
/// What a client hears first. A connection that ends is tried again after two seconds.
const HELLO: &str = "retry: 2000\nevent: hello\ndata: {\"api\":\"v1\"}\n\n";
const ALIVE: &str = ": alive\n\n";

struct Client {
    parts: mpsc::Sender<Bytes>,
    connection: Connection,
}

/// The clients that follow events.
#[derive(Default)]
pub(super) struct EventHub {
    clients: Mutex<Vec<Client>>,
    joined: Notify,
    /// How many events there were.
    number: AtomicU64,
}

impl EventHub {
    fn clients(&self) -> MutexGuard<'_, Vec<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more client; `None`: there are too many.
    pub(super) fn join(&self, connection: Connection) -> Option<mpsc::Receiver<Bytes>> {
        let mut clients = self.clients();
        clients.retain(|client| !client.parts.is_closed());
        if clients.len() >= CLIENTS {
            return None;
        }
        let (parts, receiver) = mpsc::channel(WAITING);
        parts.try_send(Bytes::from_static(HELLO.as_bytes())).ok()?;
        connection.live_on();
        clients.push(Client { parts, connection });
        self.joined.notify_one();
        Some(receiver)
    }

    /// How many events there were.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// How many follow.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.clients().len()
    }

    /// Hands a part to every client. Who has not read what came before is dropped.
    pub(super) fn tell(&self, part: &Bytes) {
        self.clients().retain(|client| {
            let told = client.parts.try_send(part.clone()).is_ok();
            if !told {
                client.connection.close();
            }
            told
        });
    }

    /// Looks for ever, while somebody follows.
    pub(super) async fn run(self: Arc<Self>, answers: impl AnswerRequests) {
        let mut diff = EventDiff::default();
        let mut told = Instant::now();
        loop {
            self.clients().retain(|client| !client.parts.is_closed());
            if self.clients().is_empty() {
                self.joined.notified().await;
                // What happened before anybody followed is no event.
                diff = EventDiff::default();
            }
            let begin = Instant::now();
            let is_first = diff.is_new();
            let mut events = look(&mut diff, &answers).await;
            if is_first {
                events.clear();
            }
            if !events.is_empty() {
                let text = text_of(&events, self.number());
                self.number
                    .fetch_add(events.len() as u64, Ordering::Release);
                self.tell(&Bytes::from(text));
                told = begin;
            } else if told.elapsed() >= SILENCE {
                self.tell(&Bytes::from_static(ALIVE.as_bytes()));
                told = begin;
            }
            let pause = (PART * begin.elapsed()).max(INTERVAL);
            tokio::time::sleep(pause).await;
        }
    }
}

/// What has changed since the last look; nothing where the node does not answer.
async fn look(diff: &mut EventDiff, answers: &impl AnswerRequests) -> Vec<ConsoleEvent> {
    let answer = http::in_time(answers.answer(Request::Status)).await;
    let Ok(Ok(Answered::Value(value))) = answer else {
        return Vec::new();
    };
    match serde_json::from_value::<NodeStatus>(value) {
        Ok(status) => diff.update(status, Instant::now()),
        Err(error) => {
            tracing::debug!(%error, "the status cannot be compared");
            Vec::new()
        }
    }
}

/// Events as they go over the wire, each with its number and time.
fn text_of(events: &[ConsoleEvent], mut number: u64) -> String {
    let at = Timestamp::from(SystemTime::now()).rfc3339();
    let mut text = String::new();
    for event in events {
        number += 1;
        let value = dated(event, &at);
        let name = value["event"].as_str().unwrap_or_default();
        text.push_str(&format!("id: {number}\nevent: {name}\ndata: {value}\n\n"));
    }
    text
}

/// An event with its time.
pub(crate) fn dated(event: &ConsoleEvent, at: &str) -> Value {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    value["at"] = at.into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_number_a_name_and_one_line() {
        let event = ConsoleEvent::Datastore {
            state: "stale".to_owned(),
            reason: Some("etcd\ndoes not answer".to_owned()),
        };
        let text = text_of(&[event], 7);
        let (head, data) = text.split_once("data: ").expect("data");
        assert_eq!(head, "id: 8\nevent: datastore\n");
        assert_eq!(data.lines().count(), 2, "{data}");
        assert!(data.contains("etcd\\ndoes"), "{data}");
    }
}
