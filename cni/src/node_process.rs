//! Questions to the node's process on its admin socket: is it ready, are a pod's addresses
//! announced? One JSON object a line each way.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_model::{Announcement, AskInUse, AwaitAnnouncement, InUse, NodeStatus, Prefix};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// Longest wait for an answer that needs none of its own.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest answer in octets; a status lists all peers and blocks.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// Why the node's process gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeProcessError {
    #[error(
        "the node's process does not listen on {path:?}; is it running? \
         Without it no pod gets a route"
    )]
    Unreachable {
        /// The admin socket.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// It broke off.
    #[error("the node's process broke off the conversation on {path:?}")]
    Broken {
        /// The admin socket.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("the node's process did not answer on {path:?} in {} s", .limit.as_secs())]
    Silent {
        /// The admin socket.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// It answered something else.
    #[error("the node's process answered what is not understood; is it of another version?")]
    Answer(#[source] serde_json::Error),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

#[derive(Serialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
enum Question<'a> {
    Status,
    Announced(&'a AwaitAnnouncement),
    InUse(&'a AskInUse),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply<T> {
    Ok(T),
    Error(String),
}

/// Status of the node.
///
/// # Errors
/// [`NodeProcessError`].
pub(crate) async fn status(socket: &Path) -> Result<NodeStatus, NodeProcessError> {
    ask(socket, &Question::Status, LIMIT).await
}

/// Waits until the addresses of an endpoint that was written at `revision` are announced, `wait` at
/// most.
///
/// # Errors
/// [`NodeProcessError`].
pub(crate) async fn announced(
    socket: &Path,
    addresses: Vec<IpAddr>,
    revision: i64,
    wait: Duration,
) -> Result<Announcement, NodeProcessError> {
    let question = AwaitAnnouncement {
        addresses,
        revision,
        milliseconds: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
    };
    ask(socket, &Question::Announced(&question), wait + LIMIT).await
}

/// Addresses of these blocks that the endpoints of the node's snapshot have.
///
/// # Errors
/// [`NodeProcessError`].
pub(crate) async fn in_use(
    socket: &Path,
    blocks: Vec<Prefix>,
) -> Result<Vec<InUse>, NodeProcessError> {
    ask(socket, &Question::InUse(&AskInUse { blocks }), LIMIT).await
}

async fn ask<T: DeserializeOwned>(
    socket: &Path,
    question: &Question<'_>,
    limit: Duration,
) -> Result<T, NodeProcessError> {
    let answer = tokio::time::timeout(limit, converse(socket, question)).await;
    let line = answer.map_err(|_elapsed| NodeProcessError::Silent {
        path: socket.into(),
        limit,
    })??;
    match serde_json::from_str(&line).map_err(NodeProcessError::Answer)? {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(reason) => Err(NodeProcessError::Refused(reason)),
    }
}

async fn converse(socket: &Path, question: &Question<'_>) -> Result<String, NodeProcessError> {
    let path = || socket.to_owned();
    let mut stream =
        UnixStream::connect(socket)
            .await
            .map_err(|source| NodeProcessError::Unreachable {
                path: path(),
                source,
            })?;
    let broken = |source| NodeProcessError::Broken {
        path: path(),
        source,
    };
    let mut text = serde_json::to_vec(question).expect("a question is always valid JSON");
    text.push(b'\n');
    stream.write_all(&text).await.map_err(broken)?;
    let mut line = String::new();
    let mut answer = BufReader::new(stream.take(MAX_ANSWER));
    answer.read_line(&mut line).await.map_err(broken)?;
    if line.is_empty() {
        return Err(broken(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(line)
}
