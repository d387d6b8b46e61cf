//! The node's process as a plugin sees it: an admin socket that answers questions with what a test
//! wants.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use super::World;

#[derive(Default)]
struct State {
    status: Value,
    /// The answer to "announced?"; the question waits until there is one.
    announcement: Option<Value>,
    /// Addresses that endpoints of other nodes have, with namespace and name.
    in_use: Vec<Value>,
    asked: Vec<Value>,
    /// It starts, and answers nothing else.
    starts: bool,
}

/// A node's process that a test plays.
#[derive(Clone)]
pub(crate) struct FakeAgent {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl FakeAgent {
    /// Listens in the world's run directory until the test's process ends.
    pub(crate) fn start(world: &World) -> Self {
        let run = world.dir.join("run");
        std::fs::create_dir_all(&run).unwrap();
        let listener = UnixListener::bind(run.join("caracal.sock")).unwrap();
        let agent = Self {
            state: Arc::default(),
        };
        agent.says("fresh", "synced");
        let server = agent.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = server.clone();
                std::thread::spawn(move || server.converse(stream.unwrap()));
            }
        });
        agent
    }

    /// Sets the status that it answers from now on.
    pub(crate) fn says(&self, datastore: &str, phase: &str) {
        self.state.0.lock().unwrap().status =
            json!({"datastore": {"state": datastore}, "kernel": {"phase": phase}});
    }

    /// Whether it is starting: then it answers no question whether a pod is announced.
    pub(crate) fn starts(&self, starts: bool) {
        self.state.0.lock().unwrap().starts = starts;
    }

    /// Answers questions whether a pod is announced, also those that wait.
    pub(crate) fn announces(&self, announcement: Value) {
        self.state.0.lock().unwrap().announcement = Some(announcement);
        self.state.1.notify_all();
    }

    /// An address that an endpoint has.
    pub(crate) fn knows_in_use(&self, address: &str, namespace: &str, name: &str) {
        let used = json!({"address": address, "namespace": namespace, "name": name});
        self.state.0.lock().unwrap().in_use.push(used);
    }

    /// The questions so far.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.state.0.lock().unwrap().asked.clone()
    }

    fn converse(&self, mut stream: UnixStream) {
        let mut line = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        reader.read_line(&mut line).unwrap();
        let question: Value = serde_json::from_str(&line).unwrap();
        let reply = match self.answer(&question) {
            Some(answer) => json!({ "ok": answer }),
            None => json!({ "error": "the node is starting" }),
        };
        // The caller may have been killed.
        let _ = writeln!(stream, "{reply}");
    }

    /// `None`: it is starting.
    fn answer(&self, question: &Value) -> Option<Value> {
        let mut state = self.state.0.lock().unwrap();
        if question["request"] == "in-use" {
            return Some(json!(state.in_use));
        }
        state.asked.push(question.clone());
        if question["request"] == "status" {
            return Some(state.status.clone());
        }
        let waiting = |state: &mut State| state.announcement.is_none() && !state.starts;
        let state = self.state.1.wait_while(state, waiting).unwrap();
        (!state.starts).then(|| state.announcement.clone().unwrap())
    }
}
