//! Chromium without a window, driven by its DevTools protocol over two pipes: no port, so that it
//! runs in any network namespace.

use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use caracal_lab::{scaled_time, wait_until};
use serde_json::{Value, json};

use crate::processes::Processes;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the shell starts: the protocol is spoken on the descriptors 3 and 4.
const SCRIPT: &str = "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
    --no-first-run --disable-extensions --disable-background-networking --disable-component-update \
    --disable-sync --disable-breakpad --password-store=basic --force-device-scale-factor=1 --user-data-dir=\"$PWD/profile\" \
    --remote-debugging-pipe about:blank 3<to-browser 4>from-browser";

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    processes: Processes,
    to: File,
    answers: Receiver<Value>,
    sent: u64,
    page: String,
}

impl Browser {
    /// Starts a browser in a network namespace.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn start(netns: &str) -> Self {
        let mut processes = Processes::new("browser");
        let folder = processes.folder().to_owned();
        let pipes = ["to-browser", "from-browser"].map(|name| folder.join(name));
        let made = Command::new("mkfifo").args(&pipes).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).env("HOME", &folder);
        processes.start("chromium", Some(netns), &mut command);
        // Each waits for its other end, in the order in which the shell opens them.
        let to = File::options().write(true).open(&pipes[0]).expect("a pipe");
        let answers = receive(&pipes[1]);
        let mut browser = Self {
            processes,
            to,
            answers,
            sent: 0,
            page: String::new(),
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.page = session["sessionId"].as_str().expect("a session").to_owned();
        browser.resize(1200, 900);
        browser
    }

    /// Calls a method of the protocol and waits for its result.
    ///
    /// # Panics
    /// When the browser ends, says nothing in time, or refuses.
    #[allow(clippy::expect_used)]
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if !self.page.is_empty() {
            message["sessionId"] = self.page.as_str().into();
        }
        let sent = self.to.write_all(format!("{message}\0").as_bytes());
        sent.unwrap_or_else(|e| panic!("{method}: {e}\n{}", self.processes.log("chromium")));
        loop {
            let answer = self.answers.recv_timeout(scaled_time(PATIENCE));
            let mut answer = answer.unwrap_or_else(|e| {
                panic!("{method}: {e}\n{}", self.processes.log("chromium"));
            });
            if answer["id"] == self.sent {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// Opens an address.
    pub fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", &json!({"url": address}));
        assert!(opened.get("errorText").is_none(), "{address}: {opened}");
    }

    /// The size of the page's window.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// The value of an expression of JavaScript in the page, a promise's when it is there.
    ///
    /// # Panics
    /// When it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &asked);
        let thrown = answer.get("exceptionDetails");
        assert!(thrown.is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// At the deadline, with the text of the page.
    pub fn await_true(&mut self, deadline: Duration, expression: &str) {
        let seen = wait_until(deadline, expression, || {
            match self.value(expression) == Value::Bool(true) {
                true => Ok(()),
                false => Err("not so"),
            }
        });
        if let Err(error) = seen {
            let text = self.value("document.body.innerText");
            panic!("{error}\n{}", text.as_str().unwrap_or_default());
        }
    }

    /// A picture of the page, PNG in base64.
    #[must_use]
    pub fn picture(&mut self) -> String {
        let picture = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        picture["data"].as_str().unwrap_or_default().to_owned()
    }
}

/// Reads what the browser says, each message up to its NUL.
#[allow(clippy::expect_used)]
fn receive(pipe: &Path) -> Receiver<Value> {
    let from = File::open(pipe).expect("a pipe");
    let (answer, answers) = sync_channel(1024);
    thread::spawn(move || {
        let messages = BufReader::new(from).split(0);
        for message in messages.map_while(Result::ok) {
            let value = serde_json::from_slice(&message).unwrap_or_default();
            if answer.send(value).is_err() {
                return;
            }
        }
    });
    answers
}
