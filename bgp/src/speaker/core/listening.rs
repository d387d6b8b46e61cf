//! Assigns incoming connections to peers.

use std::net::{IpAddr, SocketAddr};

use caracal_model::{IfName, Prefix};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::Core;
use super::ranges::NamedRange;
use crate::config::{PeerConfig, SpeakerConfig};
use crate::speaker::counters::ErrorKind;
use crate::speaker::message::{ACCEPT_DEPTH, FromListener, ListenPeer, ListenerStart, ToSession};
use crate::speaker::session::turn_away;
use crate::speaker::socket::link_of;
use crate::types::{PeerName, SessionState};
use crate::wire::notification::{CeaseSubcode, Notification};

/// Core's record of the listener.
pub(super) struct Listening {
    /// Address and port that are bound.
    pub(super) address: Option<SocketAddr>,
    /// Why it does not.
    pub(super) error: Option<String>,
    pub(super) events: mpsc::Receiver<FromListener>,
    to_core: mpsc::Sender<FromListener>,
    peers: watch::Sender<Vec<ListenPeer>>,
    /// One for each socket.
    tasks: Vec<AbortHandle>,
}

impl Listening {
    pub(super) fn new() -> Self {
        let (to_core, events) = mpsc::channel(ACCEPT_DEPTH);
        let (peers, _) = watch::channel(Vec::new());
        Self {
            address: None,
            error: None,
            events,
            to_core,
            peers,
            tasks: Vec::new(),
        }
    }

    /// Ends the listeners; their sockets are closed soon.
    pub(super) fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.address = None;
        self.error = None;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The peers whose connections the listening socket must be ready for.
fn listen_peers(config: &SpeakerConfig, ranges: &[NamedRange]) -> Vec<ListenPeer> {
    let of_peer = |peer: &PeerConfig| ListenPeer {
        prefix: peer.range.unwrap_or_else(|| Prefix::host(peer.address)),
        password: peer.password.clone(),
    };
    let ranges = ranges.iter().map(|(_, range)| of_peer(range));
    config.peers.values().map(of_peer).chain(ranges).collect()
}

impl Core {
    /// Listens where the configuration says, instead of where it listened before.
    pub(super) fn start_listening(&mut self) {
        self.listening.stop();
        self.update_listener();
        let Some(listen) = self.config.listen else {
            return;
        };
        for listen in listen.sockets() {
            let start = ListenerStart {
                listen,
                peers: self.listening.peers.subscribe(),
                core: self.listening.to_core.clone(),
            };
            let task = tokio::spawn((self.starts.listener)(start));
            self.listening.tasks.push(task.abort_handle());
        }
    }

    /// Gives the listener the peers of the configuration.
    pub(super) fn update_listener(&mut self) {
        let peers = listen_peers(&self.config, &self.ranges);
        self.listening.peers.send_if_modified(|known| {
            let changed = *known != peers;
            *known = peers;
            changed
        });
    }

    /// An event of the task that listens.
    pub(super) fn on_listener_event(&mut self, event: FromListener) {
        match event {
            FromListener::Bound(address) => {
                info!(%address, "listening");
                self.listening.address = Some(address);
                self.listening.error = None;
            }
            FromListener::Failed(reason) => {
                warn!(reason, "cannot listen, will try again");
                self.listening.address = None;
                self.listening.error = Some(reason);
            }
            FromListener::Accepted { stream, remote } => self.accept(stream, remote),
        }
    }

    /// Hands a connection to the session of the peer that it comes from; closes it when there is
    /// none.
    fn accept(&mut self, stream: TcpStream, remote: SocketAddr) {
        let local = stream
            .local_addr()
            .ok()
            .map(|local| local.ip().to_canonical());
        let address = remote.ip().to_canonical();
        let known = self.peer_of(address, link_of(remote), local);
        let Some(name) = known.or_else(|| self.welcome(address)) else {
            debug!(%remote, "connection from an address that is no peer's: closed");
            return;
        };
        let Some(peer) = self.peers.named(&name) else {
            return;
        };
        let ticket = match self.admission.admit(&peer.admission) {
            Ok(ticket) => ticket,
            Err(refusal) => {
                // It dials again.
                debug!(peer = %name, %remote, %refusal, "connection is closed");
                peer.history.counters.error(ErrorKind::ConnectionLimit);
                return;
            }
        };
        let disabled = peer.disabled.as_ref().map(|disabled| &disabled.text);
        if let Some(text) = self.disabled.as_ref().or(disabled) {
            debug!(peer = %name, %remote, "connection while the peer is shut down: turned away");
            let cease = CeaseSubcode::AdministrativeShutdown;
            let cease = Notification::shutdown(cease, text);
            tokio::spawn(async move { turn_away(stream, ticket, &cease).await });
            return;
        }
        let ticket = Some(ticket);
        let message = ToSession::Stream {
            stream,
            remote,
            ticket,
        };
        if peer
            .control
            .as_ref()
            .is_none_or(|control| control.try_send(message).is_err())
        {
            // It dials again.
            debug!(peer = %name, %remote, "connection came while the session was busy: closed");
            peer.history.counters.error(ErrorKind::ConnectionRejected);
        }
    }

    /// The peer with this address. If several peers share the address (their ports differ when we
    /// dial), one that is bound to our end of the connection and has no session yet.
    fn peer_of(
        &self,
        remote: IpAddr,
        link: Option<IfName>,
        local: Option<IpAddr>,
    ) -> Option<PeerName> {
        let of_address = self
            .config
            .peers
            .iter()
            .filter(|(_, peer)| peer.address == remote && peer.interface == link);
        let best = of_address.min_by_key(|(name, peer)| {
            let bound = peer.source.is_some() && peer.source == local;
            let state = self.peers.named(name).map(|peer| peer.state);
            (!bound, state == Some(SessionState::Established))
        });
        best.map(|(name, _)| name.clone())
    }
}
