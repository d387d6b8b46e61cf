//! HTTP as it is: one request, and its answer to the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use super::{PATIENCE, Server};

/// Response of the server.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    head: String,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines
            .find(|(k, _)| k.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The events of a watch.
    pub(super) fn events(&self) -> Vec<Value> {
        let lines = self.body.lines();
        lines
            .map(|l| serde_json::from_str(l).expect("an event"))
            .collect()
    }

    /// Asserts the code, and gives the body.
    #[track_caller]
    pub(super) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.json()
    }

    /// Asserts an error of this code and reason; gives its message.
    #[track_caller]
    pub(super) fn refused(self, code: u16, reason: &str) -> String {
        let status = self.expect(code);
        assert_eq!(status["kind"], "Status");
        assert_eq!(
            (&status["code"], &status["reason"]),
            (&json!(code), &json!(reason)),
            "{status}"
        );
        status["message"].as_str().expect("a message").to_owned()
    }
}

impl Server {
    /// One request with these headers; `None` when the connection is cut before an answer.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Reply> {
        send_to(self.address, method, path, headers, body)
    }

    pub(super) fn request(&self, method: &str, path: &str, body: &Value) -> Reply {
        let headers = [("Content-Type", "application/json")];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send(method, path, &headers, &body).expect("an answer")
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &Value::Null)
    }

    pub(super) fn patch(&self, path: &str, kind: &str, body: &Value) -> Reply {
        let media_type = format!("application/{kind}+json");
        let headers = [("Content-Type", &*media_type)];
        self.send("PATCH", path, &headers, &body.to_string())
            .expect("an answer")
    }
}

/// The same to any server.
pub(super) fn send_to(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    // A server that refuses early may have closed already.
    let _ = stream.write_all(text.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked {
        joined(body)
    } else {
        body.to_owned()
    };
    Some(Reply {
        code,
        head: head.to_owned(),
        body,
    })
}

/// The parts of a chunked body. A cut one ends early.
fn joined(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        let Some(chunk) = more.get(..size).filter(|c| !c.is_empty()) else {
            break;
        };
        body.push_str(chunk);
        rest = more.get(size + 2..).unwrap_or_default();
    }
    body
}
