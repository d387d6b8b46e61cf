//! The admin socket: one JSON object a line in, one out. `caracal status` and `caracal bgp` are clients.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use caracal_model::announcement::AwaitAnnouncement;
use caracal_model::net::Prefix;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A question.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// [`caracal_model::status::Status`].
    Status,
    /// Best routes.
    Routes,
    /// Routes received from a peer.
    Received {
        /// Name or address.
        peer: String,
    },
    /// Routes advertised to a peer.
    Advertised {
        /// Name or address.
        peer: String,
    },
    /// All paths of a prefix with reasons.
    Explain {
        /// The destination.
        prefix: Prefix,
    },
    /// Have a peer announce everything again (RFC 2918).
    Refresh {
        /// Name or address.
        peer: String,
    },
    /// Write the table to a file (RFC 6396).
    Mrt {
        /// Where to, absolute.
        file: PathBuf,
    },
    /// [`caracal_model::announcement::Announcement`], when it is complete.
    Announced(AwaitAnnouncement),
    /// What the auditor finds now.
    Audit,
    /// A destination from the datastore to the kernel.
    ExplainPath {
        /// The destination.
        prefix: Prefix,
    },
    /// Take the node out of service.
    Drain {
        /// For the operators of peers.
        text: String,
        /// Seconds that receivers get to take another path.
        wait: u64,
        /// Although workloads are left.
        force: bool,
    },
    /// Take the node back into service.
    Undrain,
    /// How far a drain is.
    DrainStatus,
    /// Follow what the datastore holds although it looks like a fault.
    DatastoreAccept,
    /// Read the file again, and move what differs. Standalone speakers only.
    Reload,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// The value asked for.
    Ok(Value),
    /// Why there is none.
    Error(String),
}

/// Longest question, in octets.
const MAX_REQUEST: u64 = 64 * 1024;

/// Who answers.
pub(crate) trait Answer: Clone + Send + Sync + 'static {
    /// Answers one question.
    fn answer(&self, request: Request) -> impl Future<Output = Result<Value, String>> + Send;
}

/// The socket's path inside the run directory.
pub(crate) fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("caracal.sock")
}

/// Another process answers on the socket.
pub(crate) fn is_taken(run_dir: &Path) -> bool {
    StdUnixStream::connect(socket_path(run_dir)).is_ok()
}

/// Opens the socket. A stale file of a killed process is replaced; a living one is an error.
pub(crate) fn listen(run_dir: &Path) -> anyhow::Result<UnixListener> {
    let path = socket_path(run_dir);
    std::fs::create_dir_all(run_dir)
        .with_context(|| format!("creating {}; set CARACAL_RUN_DIR", run_dir.display()))?;
    if is_taken(run_dir) {
        anyhow::bail!(
            "another caracal answers on {}; stop it first",
            path.display()
        );
    }
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("removing the stale socket {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Serves for ever.
pub(crate) async fn serve(listener: UnixListener, answer: impl Answer) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, answer).await {
                        tracing::debug!(%error, "admin connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the admin socket");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, answer: impl Answer) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = tokio::io::BufReader::new(read.take(MAX_REQUEST)).lines();
    while let Some(line) = lines.next_line().await? {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => match answer.answer(request).await {
                Ok(value) => Reply::Ok(value),
                Err(reason) => Reply::Error(reason),
            },
            Err(error) => Reply::Error(format!("not a request: {error}")),
        };
        let mut text = serde_json::to_vec(&reply).expect("a reply is always valid JSON");
        text.push(b'\n');
        write.write_all(&text).await?;
    }
    Ok(())
}

/// Asks the node or speaker of this run directory.
pub(crate) fn ask(run_dir: &Path, request: &Request) -> anyhow::Result<Value> {
    let path = socket_path(run_dir);
    let mut stream = StdUnixStream::connect(&path).with_context(|| {
        format!(
            "no caracal answers on {}: is it running, and is CARACAL_RUN_DIR the same?",
            path.display()
        )
    })?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .context("no answer in 10 s")?;
    match serde_json::from_str(&line).context("the answer is not valid")? {
        Reply::Ok(value) => Ok(value),
        Reply::Error(reason) => anyhow::bail!("{reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Echo;

    impl Answer for Echo {
        async fn answer(&self, request: Request) -> Result<Value, String> {
            match request {
                Request::Status => Ok(Value::from("fine")),
                Request::Received { peer } => Err(format!("no peer {peer}")),
                other => Ok(serde_json::to_value(other).expect("valid")),
            }
        }
    }

    #[tokio::test]
    async fn questions_and_answers() {
        let dir = std::env::temp_dir().join(format!("caracal-admin-{}", std::process::id()));
        let listener = listen(&dir).unwrap();
        let server = tokio::spawn(serve(listener, Echo));
        let answers = tokio::task::spawn_blocking({
            let dir = dir.clone();
            move || {
                let ask = |request| ask(&dir, &request).map_err(|e| e.to_string());
                let prefix = "10.0.0.0/26".parse().unwrap();
                let again = listen(&dir).map(|_| ()).map_err(|e| e.to_string());
                (
                    ask(Request::Status),
                    ask(Request::Received { peer: "x".into() }),
                    ask(Request::Explain { prefix }),
                    again,
                )
            }
        });
        let (status, received, explain, again) = answers.await.unwrap();
        assert_eq!(status.unwrap(), "fine");
        assert_eq!(received.unwrap_err(), "no peer x");
        assert_eq!(explain.unwrap()["prefix"], "10.0.0.0/26");
        assert!(again.unwrap_err().contains("another caracal answers"));
        server.abort();
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = ask(&dir, &Request::Status).unwrap_err().to_string();
        assert!(gone.contains("is it running"), "{gone}");
    }
}
