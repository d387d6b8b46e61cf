//! The admin socket: one JSON object a line in, one out. `caracal status` and `caracal bgp` are
//! clients.
//!
//! Routes come as many lines: an object for each, and `{"end":{"count":N}}` after the last. They
//! are read from their owner as fast as the client takes them, and a client that hangs up ends it.
//! An answer that takes long has lines `{"progress":"…"}` before it, each when something has moved.

pub(crate) mod mrt;
pub(crate) mod routes;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use caracal_agent::Transport;
use caracal_datastore::make_folder;
use caracal_model::{AskInUse, AwaitAnnouncement, EncapMode, Prefix};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

use self::routes::Rows;
use crate::config::group::AdminGroup;
use crate::exit::{ExitError, REFUSED};

/// A question about an address of a service.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AskService {
    /// Address and port.
    pub(crate) address: SocketAddr,
    /// `None` = whichever there is.
    pub(crate) protocol: Option<Transport>,
}

/// A question about the encapsulation of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AskMode {
    /// The pool.
    pub(crate) pool: String,
    /// Its new `ipipMode`.
    pub(crate) ipip: EncapMode,
    /// Its new `vxlanMode`.
    pub(crate) vxlan: EncapMode,
}

/// A question about the topology.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AskTopology {
    /// Elected reflectors; else the mesh.
    pub(crate) auto: bool,
    /// Up to so many nodes there is a mesh.
    pub(crate) limit: Option<usize>,
    /// Reflectors of a zone besides the standby.
    pub(crate) reflectors: Option<usize>,
    /// Levels of reflectors.
    pub(crate) levels: Option<usize>,
}

/// A question.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// [`caracal_model::NodeStatus`].
    Status,
    /// [`crate::metrics::process::Figures`].
    Figures,
    /// Routes, a line each.
    Routes {
        /// Which of them.
        #[serde(default)]
        filter: RouteFilter,
    },
    /// Routes received from a peer, a line each.
    Received {
        /// Name or address.
        peer: String,
        /// Which of them.
        #[serde(default)]
        filter: RouteFilter,
    },
    /// Routes advertised to a peer, a line each.
    Advertised {
        /// Name or address.
        peer: String,
        /// Which of them.
        #[serde(default)]
        filter: RouteFilter,
    },
    /// All paths of a prefix with reasons.
    Explain {
        /// The destination.
        prefix: Prefix,
    },
    /// Everything about a peer, or null.
    Peer {
        /// Name or address.
        peer: String,
    },
    /// Do something to a peer; the answer is an [`OrderOutcome`].
    Operate {
        /// Name or address.
        peer: String,
        /// Operation on the peer.
        order: PeerOrder,
    },
    /// Have a peer announce everything again (RFC 2918).
    Refresh {
        /// Name or address.
        peer: String,
    },
    /// Write the table to a file (RFC 6396).
    Mrt {
        /// Below the folder of such files, absolute or in that folder.
        file: PathBuf,
    },
    /// [`caracal_model::Announcement`], when it is complete.
    Announced(AwaitAnnouncement),
    /// [`caracal_model::InUse`] of all endpoints in these blocks.
    InUse(AskInUse),
    /// Policies of this node's endpoints, or what becomes of a packet; a text with the reason where
    /// none is enforced.
    Policy {
        /// The packet.
        #[serde(default)]
        packet: Option<AskPacket>,
    },
    /// [`caracal_agent::ServiceStatus`] as rows of addresses; a text with the reason where services
    /// are not translated, and null while that is not known.
    Services,
    /// Translate services although kube-proxy has rules, or leave them to it again.
    TakeServicesOver {
        /// To this node.
        over: bool,
    },
    /// An address of a service from the datastore to the kernel.
    ExplainService(AskService),
    /// The auditor's findings now.
    Audit,
    /// The cluster's pools, and how full they are.
    Pools,
    /// The cluster's nodes as they have published themselves, and the sessions between them.
    Nodes,
    /// What a pool's new modes would do on each node; nothing is written.
    PlanMode(AskMode),
    /// What a switch of the topology would do to the sessions; nothing is written.
    PlanTopology(AskTopology),
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
    /// [`crate::telemetry::LogFilter`], after it was replaced where that is asked for.
    LogFilter {
        /// Until the process ends.
        #[serde(default)]
        set: Option<String>,
    },
}

impl Request {
    /// The peer that it is about.
    pub(crate) fn peer_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Received { peer, .. }
            | Self::Advertised { peer, .. }
            | Self::Peer { peer }
            | Self::Operate { peer, .. }
            | Self::Refresh { peer } => Some(peer),
            Self::Routes { filter } => filter.peer.as_mut(),
            _ => None,
        }
    }
}

/// The first packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AskPacket {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
}

/// Operation on a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PeerOrder {
    /// No session until it is enabled.
    Disable {
        /// For the peer's operator.
        text: String,
    },
    /// Sessions may run again.
    Enable,
    /// A new session.
    Reset {
        /// For the peer's operator.
        text: String,
    },
    /// Ask for all routes again.
    SoftIn,
    /// Announce all routes again.
    SoftOut,
}

/// Result of an operation; each with a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum OrderOutcome {
    /// It is carried out.
    Done(String),
    /// It is not, for a reason.
    Refused(String),
    /// There is no such peer.
    NoPeer(String),
}

/// Which routes are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteFilter {
    /// Only this prefix.
    pub(crate) prefix: Option<Prefix>,
    /// And those inside it.
    pub(crate) longer: bool,
    /// Only from this peer; name or address.
    pub(crate) peer: Option<String>,
    /// Only best paths.
    pub(crate) best: bool,
    /// Only what comes behind this prefix, in the order of the table.
    pub(crate) after: Option<Prefix>,
    /// No routes, only their number.
    pub(crate) count: bool,
}

/// A line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// The value asked for.
    Ok(Value),
    /// Why there is none.
    Error(String),
    /// Why there is none, and the exit code of the command that asked.
    Refused { code: u8, reason: String },
    /// How far the answer is.
    Progress(String),
    /// All routes have been told.
    End { count: u64 },
}

/// Answer of an owner of state.
pub(crate) enum Answered {
    Value(Value),
    /// Many routes.
    Rows(Box<Rows>),
    /// Something is not there, or not valid.
    Refused(ExitError),
}

impl From<Value> for Answered {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// Longest question, in octets.
const MAX_REQUEST: u64 = 64 * 1024;

/// Limit of a client's wait without progress.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval of progress reports to a client that waits.
const PROGRESS: Duration = Duration::from_secs(1);

/// Longest time that the socket of a killed process stays open: a program that it was starting
/// has a copy of the descriptor until it runs.
const STILL_OPEN: Duration = Duration::from_secs(2);

/// Interval of looks at a socket that is taken.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Between two looks whether the socket's file is there: cleaners of temporary files come seldom.
const SOCKET_LOOK: Duration = Duration::from_secs(2);

/// Source of the answers.
pub(crate) trait AnswerRequests: Clone + Send + Sync + 'static {
    /// Answers one question.
    fn answer(&self, request: Request) -> impl Future<Output = Result<Answered, String>> + Send;

    /// State of the work that an answer waits for, when it makes progress by itself.
    fn progress(&self) -> impl Future<Output = Option<String>> + Send {
        std::future::ready(None)
    }
}

/// The socket's path inside the run directory.
pub(crate) fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("caracal.sock")
}

/// Another process answers on the socket.
pub(crate) fn is_taken(run_dir: &Path) -> bool {
    StdUnixStream::connect(socket_path(run_dir)).is_ok()
}

/// Whether the socket is free, or comes free in [`STILL_OPEN`].
async fn comes_free(run_dir: &Path) -> bool {
    let until = Instant::now() + STILL_OPEN;
    while is_taken(run_dir) {
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    true
}

/// Opens the socket, for root and for a group. A stale file of a killed process is replaced; a
/// living one is an error.
pub(crate) async fn listen(
    run_dir: &Path,
    group: Option<AdminGroup>,
) -> anyhow::Result<UnixListener> {
    let path = socket_path(run_dir);
    make_folder(run_dir)
        .with_context(|| format!("creating {}; set CARACAL_RUN_DIR", run_dir.display()))?;
    if !comes_free(run_dir).await {
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
    if let Some(group) = group {
        std::os::unix::fs::chown(&path, None, Some(group.number()))
            .with_context(|| format!("giving {} to group {}", path.display(), group.number()))?;
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Serves until the socket's file is gone: nobody finds it any more, and it has to be made again.
/// Conversations that have begun go on.
pub(crate) async fn serve(listener: UnixListener, run_dir: PathBuf, answer: impl AnswerRequests) {
    let path = socket_path(&run_dir);
    let mut looks = tokio::time::interval(SOCKET_LOOK);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = looks.tick() => match path.symlink_metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), "the admin socket was removed; making it again");
                    return;
                }
                _ => continue,
            },
        };
        match accepted {
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

async fn converse(stream: UnixStream, answer: impl AnswerRequests) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = tokio::io::BufReader::new(read.take(MAX_REQUEST)).lines();
    while let Some(line) = lines.next_line().await? {
        let answered = match serde_json::from_str(&line) {
            Ok(request) => in_time(&answer, request, &mut write).await?,
            Err(error) => Err(format!("not a request: {error}")),
        };
        let last = match answered {
            Ok(Answered::Value(value)) => Reply::Ok(value),
            Ok(Answered::Rows(rows)) => write_rows(*rows, &mut write).await?,
            Ok(Answered::Refused(ExitError { code, reason })) => Reply::Refused { code, reason },
            Err(reason) => Reply::Error(reason),
        };
        write.write_all(&line_of(&last)).await?;
    }
    Ok(())
}

/// Answers [`Request::LogFilter`], for every daemon alike.
///
/// # Errors
/// The answer is no JSON.
pub(crate) fn log_filter(set: Option<&str>) -> Result<Answered, String> {
    let now = match set {
        Some(text) => match crate::telemetry::set_filter(text) {
            Ok(now) => now,
            Err(reason) => return Ok(Answered::Refused(ExitError::new(REFUSED, reason))),
        },
        None => crate::telemetry::log_filter(),
    };
    let value = serde_json::to_value(now).map_err(|error| error.to_string())?;
    Ok(Answered::Value(value))
}

fn line_of(reply: &Reply) -> Vec<u8> {
    let mut text = serde_json::to_vec(reply).expect("a reply is always valid JSON");
    text.push(b'\n');
    text
}

/// Answers, and says how far it is as long as that moves.
async fn in_time(
    answer: &impl AnswerRequests,
    request: Request,
    write: &mut OwnedWriteHalf,
) -> std::io::Result<Result<Answered, String>> {
    let mut wanted = std::pin::pin!(answer.answer(request));
    let mut sent = None;
    loop {
        tokio::select! {
            biased;
            answered = &mut wanted => return Ok(answered),
            () = tokio::time::sleep(PROGRESS) => {
                let now = answer.progress().await;
                if now != sent
                    && let Some(text) = &now
                {
                    write.write_all(&line_of(&Reply::Progress(text.clone()))).await?;
                }
                sent = now;
            }
        }
    }
}

/// Writes a line for each route, as fast as the client reads. What comes last.
async fn write_rows(mut rows: Rows, write: &mut OwnedWriteHalf) -> std::io::Result<Reply> {
    loop {
        match rows.next().await {
            Ok(Some(lines)) => write.write_all(&lines).await?,
            Ok(None) => {
                return Ok(Reply::End {
                    count: rows.count(),
                });
            }
            Err(reason) => return Ok(Reply::Error(reason)),
        }
    }
}

/// Puts a question to the node or speaker of this run directory.
fn connect(run_dir: &Path, request: &Request) -> anyhow::Result<BufReader<StdUnixStream>> {
    let path = socket_path(run_dir);
    let mut stream = StdUnixStream::connect(&path).with_context(|| {
        format!(
            "no caracal answers on {}: is it running, and is CARACAL_RUN_DIR the same?",
            path.display()
        )
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    Ok(BufReader::with_capacity(READ, stream))
}

/// Octets that a client reads at once.
const READ: usize = 256 * 1024;

/// The next line. An error when nothing comes for [`PATIENCE`], or the daemon ends.
fn next_line<'l>(
    reader: &mut BufReader<StdUnixStream>,
    line: &'l mut String,
) -> anyhow::Result<&'l str> {
    line.clear();
    let read = reader
        .read_line(line)
        .with_context(|| format!("no progress in {} s", PATIENCE.as_secs()))?;
    anyhow::ensure!(
        read > 0 && line.ends_with('\n'),
        "the daemon ended before its answer was complete"
    );
    Ok(line.trim_end())
}

/// Asks the node or speaker of this run directory. How far it is goes to standard error.
pub(crate) fn ask(run_dir: &Path, request: &Request) -> anyhow::Result<Value> {
    ask_told(run_dir, request, |text| eprintln!("{text}"))
}

/// The same where nobody may write to the terminal.
pub(crate) fn ask_quietly(run_dir: &Path, request: &Request) -> anyhow::Result<Value> {
    ask_told(run_dir, request, |_| {})
}

fn ask_told(run_dir: &Path, request: &Request, tell: impl Fn(&str)) -> anyhow::Result<Value> {
    let mut reader = connect(run_dir, request)?;
    let mut line = String::new();
    loop {
        let text = next_line(&mut reader, &mut line)?;
        match serde_json::from_str(text).context("the answer is not valid")? {
            Reply::Ok(value) => return Ok(value),
            Reply::Error(reason) => anyhow::bail!("{reason}"),
            Reply::Refused { code, reason } => return Err(ExitError { code, reason }.into()),
            Reply::Progress(text) => tell(&text),
            Reply::End { .. } => anyhow::bail!("the answer is not a value"),
        }
    }
}

/// Asks for routes. Each is given as its line of JSON; the result is their number.
pub(crate) fn ask_rows(
    run_dir: &Path,
    request: &Request,
    mut each: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut reader = connect(run_dir, request)?;
    let mut line = String::new();
    loop {
        let text = next_line(&mut reader, &mut line)?;
        if text.starts_with(ROW) {
            each(text)?;
            continue;
        }
        match serde_json::from_str(text).context("the answer is not valid")? {
            Reply::End { count } => return Ok(count),
            Reply::Error(reason) => anyhow::bail!("{reason}"),
            Reply::Refused { code, reason } => return Err(ExitError { code, reason }.into()),
            Reply::Progress(_) => {}
            Reply::Ok(_) => anyhow::bail!("the answer is not a list of routes"),
        }
    }
}

/// Start of the line of a route, and of no other one.
const ROW: &str = "{\"prefix\":";

#[cfg(test)]
mod tests;
