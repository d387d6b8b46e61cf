//! `readiness_gates` of the configuration: other programs of the node that must answer before a pod
//! is attached, as with Calico's plugin. Each is the URL of a health check; 2xx and 3xx mean ready.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Limit of an ADD's wait for all gates together; a runtime tries again later.
const LIMIT: Duration = Duration::from_secs(5);
/// Limit of an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Pause between two looks at a gate.
const PAUSE: Duration = Duration::from_millis(100);

/// A gate that is closed.
#[derive(Debug, thiserror::Error)]
#[error("the readiness gate {url} is closed; is that program running on this node?")]
pub(crate) struct GateError {
    /// As configured.
    pub url: String,
    /// Last failure.
    #[source]
    pub cause: Closed,
}

/// Failure of a closed gate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Closed {
    /// Nobody answers there.
    #[error("no answer")]
    NoAnswer(#[source] io::Error),
    /// Another answer than "ready".
    #[error("it answered {0:?}")]
    Answer(String),
}

/// A gate: where to ask, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    url: String,
    authority: String,
    path: String,
}

impl Gate {
    /// Reads a URL.
    ///
    /// # Errors
    /// A sentence: what was seen and what was expected.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let invalid = || format!("{url:?} is refused; expected http://HOST:PORT/PATH");
        let clean = |c: char| !c.is_whitespace() && !c.is_control();
        let rest = url
            .strip_prefix("http://")
            .filter(|rest| rest.chars().all(clean))
            .ok_or_else(invalid)?;
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let with_port = match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:80"),
        };
        if host.is_empty() || host.starts_with(':') || host.contains('@') {
            return Err(invalid());
        }
        Ok(Self {
            url: url.to_owned(),
            authority: with_port,
            path: path.to_owned(),
        })
    }

    /// Looks once.
    ///
    /// # Errors
    /// [`GateError`].
    pub(crate) async fn probe(&self) -> Result<(), GateError> {
        let answer = tokio::time::timeout(ANSWER, self.first_line()).await;
        let line = answer.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()));
        let cause = match line {
            Ok(line) if is_ready(&line) => return Ok(()),
            Ok(line) => Closed::Answer(line),
            Err(error) => Closed::NoAnswer(error),
        };
        Err(GateError {
            url: self.url.clone(),
            cause,
        })
    }

    async fn first_line(&self) -> io::Result<String> {
        const MAX: u64 = 1024;
        let mut stream = TcpStream::connect(&self.authority).await?;
        let (path, host) = (&self.path, &self.authority);
        let question = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await?;
        let mut answer = Vec::new();
        let mut stream = stream.take(MAX);
        while !answer.contains(&b'\n') && stream.read_buf(&mut answer).await? > 0 {}
        let line = answer.split(|c| *c == b'\n').next().unwrap_or_default();
        Ok(String::from_utf8_lossy(line).trim().to_owned())
    }
}

/// `HTTP/1.1 200 OK`
fn is_ready(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next().is_some_and(|word| word.starts_with("HTTP/"))
        && words
            .next()
            .and_then(|code| code.parse::<u16>().ok())
            .is_some_and(|code| (200..400).contains(&code))
}

/// Waits until all gates are open, a while at most.
///
/// # Errors
/// [`GateError`] of the first one that stays closed.
pub(crate) async fn wait(gates: &[Gate]) -> Result<(), GateError> {
    let end = tokio::time::Instant::now() + LIMIT;
    for gate in gates {
        while let Err(closed) = gate.probe().await {
            if tokio::time::Instant::now() >= end {
                return Err(closed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn urls_are_read_or_refused() {
        let gate = |url: &str| Gate::parse(url).map(|g| (g.authority, g.path));
        let of = |authority: &str, path: &str| (authority.to_owned(), path.to_owned());
        assert_eq!(
            gate("http://localhost:9098/readiness").unwrap(),
            of("localhost:9098", "/readiness")
        );
        assert_eq!(gate("http://[::1]:80").unwrap(), of("[::1]:80", "/"));
        assert_eq!(gate("http://h/x?y").unwrap(), of("h:80", "/x?y"));
        for bad in [
            "https://h:1/",
            "h:1",
            "http://",
            "http://:1/",
            "http:///x",
            "http://h/ x",
            "http://u@h/",
        ] {
            let error = gate(bad).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT/PATH"), "{error}");
        }
    }

    #[test]
    fn only_success_is_ready() {
        for (line, ready) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.0 204", true),
            ("HTTP/1.1 503 Service Unavailable", false),
            ("HTTP/1.1 x", false),
            ("200 OK", false),
            ("", false),
        ] {
            assert_eq!(is_ready(line), ready, "{line:?}");
        }
    }
}
