//! The connection to a monitoring station (RFC 7854 §3.2): one task for each station, which
//! connects, writes what is queued, and begins anew when the connection is lost.
//!
//! It never parses the octets that it writes. The queue towards it is bounded: a station that reads
//! too slowly loses its connection, never delays the peers, and gets everything again on the next
//! one.

mod queue;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::Station;
pub(super) use queue::{Next, Queue};

/// Limit of an attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The pause after the first failure. RFC 7854 §3.2 suggests 30 s, growing up to 720 s; a restart
/// of a station is over sooner.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const LAST_PAUSE: Duration = Duration::from_secs(120);
/// After a connection of this length, the next failure counts as the first.
const STABLE: Duration = Duration::from_secs(60);
/// Limit for a station to take anything at all; then it is gone.
const STALLED: Duration = Duration::from_secs(90);

/// Everything the task is born with.
pub(super) struct StationStart {
    /// Names this task, and no other before or after it.
    pub(super) id: u64,
    /// The station's name in the configuration.
    pub(super) name: String,
    pub(super) config: Station,
    pub(super) core: mpsc::Sender<FromStation>,
    /// The task ends when the other half is dropped, or when a closed queue is written.
    pub(super) stop: oneshot::Receiver<()>,
}

/// Message of the station's task to the core.
#[derive(Debug)]
pub(super) enum FromStation {
    /// Connected: all messages to the station go into this queue, from Initiation on.
    Connected {
        id: u64,
        local: SocketAddr,
        queue: Arc<Queue>,
    },
    /// Everything in the queue is written: there is room for another piece of the table.
    Written { id: u64, queue: Arc<Queue> },
    /// Not connected, for this reason.
    Lost { id: u64, reason: String },
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("no answer within {} s", CONNECT_LIMIT.as_secs())]
    ConnectTimeout,
    #[error("the station closed the connection")]
    Closed,
    #[error("connection lost: {0}")]
    Failed(io::Error),
    #[error(
        "the station reads too slowly: more than {limit} octets waited for it, and it gets everything again on a new connection"
    )]
    Overrun { limit: usize },
    #[error("the station has taken nothing for {} s", STALLED.as_secs())]
    Stalled,
}

/// Runs until it is stopped.
pub(super) async fn run(start: StationStart) {
    let StationStart {
        id,
        name,
        config,
        core,
        mut stop,
    } = start;
    let address = SocketAddr::new(config.address, config.port);
    let mut pause = FIRST_PAUSE;
    loop {
        let lost = tokio::select! {
            biased;
            lost = connected((id, &name), &config, &core, &mut pause) => lost,
            _ = &mut stop => return,
        };
        let Some(lost) = lost else { return };
        let reason = lost.to_string();
        warn!(station = name, %address, reason, again_in = ?pause, "no connection to the monitoring station");
        let lost = FromStation::Lost { id, reason };
        if core.send(lost).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = &mut stop => return,
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// One connection, from dialling to its end. `None`: everything is said, and nobody wants another
/// one.
async fn connected(
    (id, name): (u64, &str),
    config: &Station,
    core: &mpsc::Sender<FromStation>,
    pause: &mut Duration,
) -> Option<Lost> {
    let address = SocketAddr::new(config.address, config.port);
    let stream = match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Some(Lost::Connect(error)),
        Err(_) => return Some(Lost::ConnectTimeout),
    };
    let local = match stream.local_addr() {
        Ok(local) => local,
        Err(error) => return Some(Lost::Failed(error)),
    };
    info!(station = name, %address, "connected to the monitoring station");
    let since = tokio::time::Instant::now();
    let queue = Arc::new(Queue::new(config.buffer));
    let message = FromStation::Connected {
        id,
        local,
        queue: queue.clone(),
    };
    if core.send(message).await.is_err() {
        return None;
    }
    let (read, write) = stream.into_split();
    let lost = tokio::select! {
        biased;
        () = queue.overrun() => Some(Lost::Overrun { limit: config.buffer }),
        lost = listen(read) => Some(lost),
        lost = write_all(id, &queue, write, core) => lost,
    };
    if since.elapsed() >= STABLE {
        *pause = FIRST_PAUSE;
    }
    lost
}

/// RFC 7854 §3.2: a station says nothing; what it says all the same is of no interest.
async fn listen(mut read: OwnedReadHalf) -> Lost {
    let mut octets = [0; 256];
    loop {
        match read.read(&mut octets).await {
            Ok(0) => return Lost::Closed,
            Ok(_) => {}
            Err(error) => return Lost::Failed(error),
        }
    }
}

/// Writes what is queued. `None`: the queue is closed and written.
async fn write_all(
    id: u64,
    queue: &Arc<Queue>,
    mut write: OwnedWriteHalf,
    core: &mpsc::Sender<FromStation>,
) -> Option<Lost> {
    loop {
        match queue.next().await {
            Next::Octets(mut octets) => {
                while !octets.is_empty() {
                    match timeout(STALLED, write.write_buf(&mut octets)).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => return Some(Lost::Failed(error)),
                        Err(_) => return Some(Lost::Stalled),
                    }
                }
            }
            Next::Drained => {
                let queue = queue.clone();
                let message = FromStation::Written { id, queue };
                if core.send(message).await.is_err() {
                    return None;
                }
            }
            Next::Closed => {
                // The Termination message has announced the end; we do not wait until the station
                // reads it.
                let _ = write.shutdown().await;
                return None;
            }
        }
    }
}
