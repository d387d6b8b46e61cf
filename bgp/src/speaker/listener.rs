//! The listening socket: accepts, and hands each connection to the core, which knows the peers.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use caracal_model::Prefix;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::warn;

use super::log_limit::{LogKind, LogLimit, summarise};
use super::message::{FromListener, ListenPeer, ListenerStart};
use super::socket;
use crate::config::Password;

/// Pause after the first failure to listen; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: an address may take long to appear, but then we want to be there soon.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// Pause after a failed accept, which is a lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The time, as tokio has it: a test can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Listens until it is aborted or the core is gone.
pub(super) async fn run(mut start: ListenerStart) {
    let mut pause = MIN_PAUSE;
    loop {
        let bound = socket::listen(start.listen.address, start.listen.port)
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let event = match &bound {
            Ok((address, _)) => FromListener::Bound(*address),
            Err(error) => FromListener::Failed(failure(&start, error)),
        };
        if start.core.send(event).await.is_err() {
            return;
        }
        match bound {
            Ok((_, listener)) => return accept(&listener, &mut start).await,
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn failure(start: &ListenerStart, error: &io::Error) -> String {
    let port = start.listen.port;
    match start.listen.address {
        Some(address) => format!("cannot listen on TCP {port} of {address}: {error}"),
        None => format!("cannot listen on TCP {port}: {error}"),
    }
}

async fn accept(listener: &TcpListener, start: &mut ListenerStart) {
    let mut keys = Keys::default();
    keys.follow(listener, &mut start.peers);
    let mut watching = true;
    let mut log = LogLimit::default();
    loop {
        let due = log.next_timeout();
        let summary = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = summary => summarise(log.due(now())),
            changed = start.peers.changed(), if watching => {
                watching = changed.is_ok();
                keys.follow(listener, &mut start.peers);
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    let event = FromListener::Accepted { stream, remote };
                    if start.core.send(event).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if log.allows(now(), LogKind::Accept) {
                        warn!(%error, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// The MD5 keys that are set on the socket. Connections that it accepts inherit them.
#[derive(Default)]
struct Keys(HashMap<Prefix, Password>);

impl Keys {
    /// Brings the socket in line with the peers.
    fn follow(&mut self, listener: &TcpListener, peers: &mut watch::Receiver<Vec<ListenPeer>>) {
        let wanted: HashMap<Prefix, Password> = peers
            .borrow_and_update()
            .iter()
            .filter_map(|peer| Some((peer.prefix, peer.password.clone()?)))
            .collect();
        let gone: Vec<Prefix> = self
            .0
            .keys()
            .filter(|prefix| !wanted.contains_key(prefix))
            .copied()
            .collect();
        for prefix in gone {
            self.0.remove(&prefix);
            if let Err(error) = socket::set_md5(listener, prefix, None) {
                warn!(%prefix, %error, "cannot remove the TCP MD5 key");
            }
        }
        for (prefix, password) in wanted {
            if self.0.get(&prefix) == Some(&password) {
                continue;
            }
            match socket::set_md5(listener, prefix, Some(&password)) {
                Ok(()) => {
                    self.0.insert(prefix, password);
                }
                Err(error) => {
                    warn!(%prefix, %error, "cannot set the TCP MD5 key, the peer's connections will fail");
                }
            }
        }
    }
}
