//! Events of a watch as they come: one a line.

use http::{Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// The longest event: an object is at most 1.5 MB in etcd, and JSON escapes some of it.
const LONGEST_EVENT: usize = 8 << 20;

/// The lines of a body.
#[derive(Debug)]
pub(super) struct Lines {
    body: Incoming,
    rest: Vec<u8>,
    are_pinged: bool,
}

impl Lines {
    /// The lines of an answer.
    pub(super) fn of(answer: Response<Incoming>) -> Self {
        Self {
            are_pinged: answer.version() == Version::HTTP_2,
            body: answer.into_body(),
            rest: Vec::new(),
        }
    }

    /// Their connection is pinged while they are open, and they end when nothing is answered.
    pub(super) const fn are_pinged(&self) -> bool {
        self.are_pinged
    }

    /// The next line; `None` at the end, also where the connection broke. Dropping the future loses
    /// nothing.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.rest.iter().position(|octet| *octet == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=end).collect();
                line.pop();
                return Some(line);
            }
            if self.rest.len() > LONGEST_EVENT {
                tracing::warn!("an event of a watch is too long; the watch is opened again");
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}
