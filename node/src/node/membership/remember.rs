//! Last snapshot of the datastore, in a file of the library directory: a node that starts while the
//! datastore does not answer begins with it. Written when something that plans need has changed,
//! seldom, when the process ends, and at once when the datastore turns out to be restored from a
//! backup: the doubt outlives the process.
//!
//! A first line says what it is, lines of values follow ([`Snapshot::write_lines`]), and
//! the last one has their number and the SHA-256 of everything before it. What is cut off or
//! differs by an octet is refused with the reason.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caracal_datastore::{
    Accepted, DatastoreFault, SECRET_MODE, StoreId, View, create_file, make_folder, read_file,
};
use caracal_model::{
    NodeName, Prefix, Problem, ProblemCode, Snapshot, StoredEndpoints, StoredLineError,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::node::problems::ProblemReporter;

const FILE: &str = "last-snapshot";
/// The longest file that is read, in octets: many times that of the largest cluster.
const LONGEST: u64 = 1 << 30;
/// Octets that are summed up and written at once.
const BUFFER: usize = 64 << 10;
/// Raised when an older program could not read it.
const VERSION: u32 = 1;
/// Shortest time between two writes.
const REST: Duration = Duration::from_secs(60);
/// The same when something of this node's own has changed.
const OWN_REST: Duration = Duration::from_secs(15);
/// For these at most this part of the time is spent.
const PART: u32 = 500;
/// The same when this node has another block: a node that starts without knowing one of its blocks
/// does not announce it, and its peers drop their routes to it.
const BLOCKS_REST: Duration = Duration::from_secs(1);

/// Why the file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecallError {
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// It has no first or no last line.
    #[error("it is cut off")]
    CutOff,
    /// An octet differs.
    #[error("its checksum does not match: it was damaged or edited")]
    Checksum,
    /// Another program's file, or a newer format.
    #[error("its first line is not understood: {0}")]
    Header(String),
    /// Another node's.
    #[error("it is the file of node {0}")]
    OtherNode(String),
    /// A line is refused.
    #[error("line {0} is refused")]
    Line(usize, #[source] StoredLineError),
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    caracal: String,
    version: u32,
    node: NodeName,
    revision: i64,
    /// etcd's cluster id.
    store: u64,
    /// The datastore was restored from a backup, and what it lacks was not accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    restored: bool,
}

/// The file's place.
pub(crate) fn path(lib_dir: &Path) -> PathBuf {
    lib_dir.join(FILE)
}

/// Reads the last accepted snapshot, if there is a file.
pub(crate) fn recall(lib_dir: &Path, me: &NodeName) -> Result<Option<Accepted>, RecallError> {
    let text = match read_file(&path(lib_dir), LONGEST) {
        Ok(text) => text,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    read(&text, me).map(Some)
}

/// Removes the file, as when a machine leaves its cluster; `None`: there is none.
pub(crate) fn forget(lib_dir: &Path, dry_run: bool) -> io::Result<Option<PathBuf>> {
    let path = path(lib_dir);
    if !path.exists() {
        return Ok(None);
    }
    if !dry_run {
        fs::remove_file(&path)?;
    }
    Ok(Some(path))
}

/// There is no such file, or no such directory.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn read(text: &[u8], me: &NodeName) -> Result<Accepted, RecallError> {
    let whole = text.strip_suffix(b"\n").ok_or(RecallError::CutOff)?;
    let at = whole.iter().rposition(|c| *c == b'\n');
    let (body, end) = text.split_at(at.ok_or(RecallError::CutOff)? + 1);
    let end = std::str::from_utf8(end).map_err(|_| RecallError::CutOff)?;
    let (count, sum) = end
        .trim_end()
        .strip_prefix("end\t")
        .and_then(|rest| rest.split_once('\t'))
        .ok_or(RecallError::CutOff)?;
    if sum != hex(&Sha256::digest(body)) {
        return Err(RecallError::Checksum);
    }
    let body = std::str::from_utf8(body).map_err(|_| RecallError::Checksum)?;
    let mut lines = body.lines();
    let first = lines.next().unwrap_or_default();
    let header: Header =
        serde_json::from_str(first).map_err(|e| RecallError::Header(e.to_string()))?;
    if header.caracal != "snapshot" || header.version != VERSION {
        let reason = format!("{} of version {}", header.caracal, header.version);
        return Err(RecallError::Header(reason));
    }
    if header.node != *me {
        return Err(RecallError::OtherNode(header.node.to_string()));
    }
    let mut snapshot = Snapshot {
        whole_blocks_of: Some(me.clone()),
        ..Snapshot::default()
    };
    let mut read = 0_usize;
    for (line, number) in lines.zip(2..) {
        let taken = snapshot.read_line(line);
        taken.map_err(|error| RecallError::Line(number, error))?;
        read += 1;
    }
    if count != read.to_string() {
        return Err(RecallError::CutOff);
    }
    snapshot.revision = header.revision;
    Ok(Accepted {
        snapshot: Arc::new(snapshot),
        store: StoreId(header.store),
        restored: header.restored,
    })
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Counts octets into a checksum on their way.
struct Summed<W> {
    out: W,
    sum: Sha256,
    octets: u64,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.sum.update(&buffer[..written]);
        self.octets += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the file, atomically; says how long it is.
fn write(
    lib_dir: &Path,
    me: &NodeName,
    accepted: &Accepted,
    endpoints: StoredEndpoints<'_>,
) -> io::Result<u64> {
    make_folder(lib_dir)?;
    let draft = lib_dir.join(format!(".{FILE}.new"));
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Names of nodes and pods, and who peers with whom: nobody else's business.
    let file = create_file(&draft, SECRET_MODE)?;
    // Summed up in large pieces: a value is written in many small ones.
    let summed = Summed {
        out: file,
        sum: Sha256::new(),
        octets: 0,
    };
    let mut out = BufWriter::with_capacity(BUFFER, summed);
    let header = Header {
        caracal: "snapshot".to_owned(),
        version: VERSION,
        node: me.clone(),
        revision: accepted.snapshot.revision,
        store: accepted.store.0,
        restored: accepted.restored,
    };
    serde_json::to_writer(&mut out, &header)?;
    out.write_all(b"\n")?;
    let count = accepted.snapshot.write_lines(endpoints, &mut out)?;
    let Summed {
        out: mut file,
        sum,
        octets,
    } = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    let end = format!("end\t{count}\t{}\n", hex(&sum.finalize()));
    file.write_all(end.as_bytes())?;
    // Renamed before its octets are on the disk, it would be an empty file after a power failure.
    file.sync_data()?;
    fs::rename(&draft, path(lib_dir))?;
    Ok(octets + end.len() as u64)
}

/// Dependencies of the task.
pub(crate) struct Parts {
    pub(crate) lib_dir: PathBuf,
    pub(crate) me: NodeName,
    pub(crate) view: watch::Receiver<View>,
    /// Endpoints of other nodes have routes of their own.
    pub(crate) all_endpoints: Box<dyn Fn(&Snapshot) -> bool + Send + Sync>,
    pub(crate) problems: ProblemReporter,
}

/// Handle of the task.
pub(crate) struct Rememberer {
    finish: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Rememberer {
    /// Writes what has changed since the last time, and ends the task.
    pub(crate) async fn finish(self) {
        let _ended = self.finish.send(());
        if self.task.await.is_err() {
            tracing::error!("the task that remembers the snapshot has ended in a panic");
        }
    }
}

/// Starts the task.
pub(crate) fn spawn(parts: Parts) -> Rememberer {
    let (finish, finished) = oneshot::channel();
    let task = tokio::spawn(parts.run(finished));
    Rememberer { finish, task }
}

/// Data of a snapshot about this node itself: a change of it is written sooner.
#[derive(PartialEq)]
struct OwnRevisions {
    node: Option<i64>,
    blocks: Vec<(Prefix, i64, Option<i64>)>,
}

impl OwnRevisions {
    fn from_snapshot(snapshot: &Snapshot, me: &NodeName) -> Self {
        let block = |(cidr, affinity): (Prefix, &caracal_model::Versioned<_>)| {
            let block = snapshot.blocks.get(&cidr).map(|block| block.revision);
            (cidr, affinity.revision, block)
        };
        Self {
            node: snapshot.nodes.get(me).map(|node| node.revision),
            blocks: snapshot.affinities_of(me).map(block).collect(),
        }
    }

    /// The same blocks with the same affinities, whatever was assigned in them.
    fn has_the_blocks_of(&self, other: &Self) -> bool {
        let affinities = |own: &[(Prefix, i64, Option<i64>)]| -> Vec<(Prefix, i64)> {
            own.iter().map(|(cidr, rev, _)| (*cidr, *rev)).collect()
        };
        affinities(&self.blocks) == affinities(&other.blocks)
    }
}

/// True while the view keeps what was accepted before the datastore was restored: a new process
/// could not tell, where the backup's revision is higher.
const fn is_restored(view: &View) -> bool {
    matches!(view.fault, Some(DatastoreFault::Restored(_)))
}

/// A write.
struct Written {
    /// Of the last one that succeeded.
    revision: i64,
    /// Which view it was of; `None` = it failed, and is tried again after a rest also when nothing
    /// changes.
    wakes: Option<u64>,
    own: OwnRevisions,
    /// It says that the datastore was restored from a backup.
    restored: bool,
    ended: Instant,
    took: Duration,
}

impl Parts {
    async fn run(mut self, mut finished: oneshot::Receiver<()>) {
        let mut last: Option<Written> = None;
        loop {
            let view = self.view.borrow_and_update().clone();
            let due = self.due(&view, last.as_ref());
            let over = tokio::select! {
                biased;
                _ = &mut finished => true,
                changed = self.view.changed() => {
                    if changed.is_err() { return }
                    false
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    last = self.write(view, last).await;
                    false
                }
            };
            if over {
                let view = self.view.borrow().clone();
                if self.due(&view, last.as_ref()).is_some() {
                    self.write(view, last).await;
                }
                return;
            }
        }
    }

    /// When this snapshot is to be written; `None` = it is, or is not to be.
    fn due(&self, view: &View, last: Option<&Written>) -> Option<Instant> {
        let restored = is_restored(view);
        if !view.is_current() && !restored {
            return None;
        }
        let Some(last) = last else {
            return Some(Instant::now());
        };
        if last.restored != restored {
            return Some(last.ended + BLOCKS_REST.max(last.took));
        }
        if last.wakes == Some(view.wakes) {
            return None;
        }
        let own = OwnRevisions::from_snapshot(&view.snapshot, &self.me);
        let rest = match own == last.own {
            true => REST,
            false if own.has_the_blocks_of(&last.own) => OWN_REST,
            false => return Some(last.ended + BLOCKS_REST.max(last.took)),
        };
        Some(last.ended + rest.max(last.took * PART))
    }

    async fn write(&self, view: View, last: Option<Written>) -> Option<Written> {
        let begun = Instant::now();
        let (lib_dir, me) = (self.lib_dir.clone(), self.me.clone());
        let all = (self.all_endpoints)(&view.snapshot);
        let accepted = Accepted {
            snapshot: Arc::clone(&view.snapshot),
            store: view.store,
            restored: is_restored(&view),
        };
        let restored = accepted.restored;
        let writing = tokio::task::spawn_blocking(move || {
            let endpoints = match all {
                true => StoredEndpoints::All,
                false => StoredEndpoints::Of(&me),
            };
            write(&lib_dir, &me, &accepted, endpoints)
        });
        let result = writing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        let took = begun.elapsed();
        let mut found = Vec::new();
        match result {
            Ok(octets) => {
                tracing::debug!(octets, ?took, rev = view.snapshot.revision, "remembered");
            }
            Err(error) => found.push(self.unwritten(&error, last.as_ref())),
        }
        let written = found.is_empty();
        self.problems.warn(found);
        let own = OwnRevisions::from_snapshot(&view.snapshot, &self.me);
        Some(Written {
            revision: match written {
                true => view.snapshot.revision,
                false => last.as_ref().map_or(0, |last| last.revision),
            },
            wakes: written.then_some(view.wakes),
            own,
            restored: match written {
                true => restored,
                false => last.is_some_and(|last| last.restored),
            },
            ended: Instant::now(),
            took,
        })
    }

    fn unwritten(&self, error: &io::Error, last: Option<&Written>) -> Problem {
        let known = match last.map_or(0, |last| last.revision) {
            0 => "without it".to_owned(),
            revision => format!("with what it held at revision {revision}"),
        };
        Problem {
            code: ProblemCode::NodeLibDir,
            subject: path(&self.lib_dir).display().to_string(),
            reason: format!(
                "cannot write the last good snapshot: {error}; a restart while the datastore does not answer would \
                 begin {known}; make room, or make the directory writable (CARACAL_LIB_DIR)"
            ),
        }
    }
}

/// The problem of a file that is not used.
pub(crate) fn unused(lib_dir: &Path, error: &RecallError) -> Problem {
    let reason = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Problem {
        code: ProblemCode::NodeLastSnapshot,
        subject: path(lib_dir).display().to_string(),
        reason: format!(
            "the last good snapshot is not used: {reason}; the node started without it, and writes it anew once the \
             datastore answers"
        ),
    }
}

#[cfg(test)]
mod tests;
