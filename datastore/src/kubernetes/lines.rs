//! Events of a watch as they come: one a line.

use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// The longest event: an object is at most 1.5 MB in etcd, and JSON escapes some of it.
const LONGEST_EVENT: usize = 8 << 20;

/// The lines of a body.
#[derive(Debug)]
pub(super) struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            body,
            rest: Vec::new(),
        }
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
