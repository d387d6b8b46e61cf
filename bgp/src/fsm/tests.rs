//! Tests of the state machine: every state with every input, the RFC's rules by name, and two
//! machines against each other on virtual time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod pair;
mod rules;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use caracal_model::Family;

use super::{
    ConnectFailure, ConnectionEnds, ConnectionId, FsmInput, FsmOutput, PeerFsm, SessionSettings,
};
use crate::config::{GracefulRestart, PeerConfig};
use crate::types::{Asn, RouterId, SessionState};
use crate::wire::capability::Capability;
use crate::wire::frame_len;
use crate::wire::notification::Notification;
use crate::wire::open::OpenMessage;
use crate::wire::{Message, decode_message};

const US: u8 = 1;
const THEM: u8 = 2;

fn address(node: u8) -> IpAddr {
    [10, 0, 0, node].into()
}

fn ends(conn: ConnectionId) -> ConnectionEnds {
    let (local, remote) = match conn {
        ConnectionId::Out => (40000, 179),
        ConnectionId::In | ConnectionId::Pending => (179, 40000),
    };
    ConnectionEnds {
        local: SocketAddr::new(address(US), local),
        remote: SocketAddr::new(address(THEM), remote),
    }
}

/// All peers of all tests count from here.
static EPOCH: OnceLock<Instant> = OnceLock::new();

/// Node `node`'s settings for its peer `other`: both in AS 64512.
fn settings(node: u8, other: u8) -> SessionSettings {
    SessionSettings {
        local_as: Asn(64512),
        router_id: RouterId([10, 0, 0, node].into()),
        peer: PeerConfig::new(address(other), Asn(64512)),
        restarting_until: None,
        had_session: false,
        epoch: *EPOCH.get_or_init(Instant::now),
    }
}

/// OPEN of the simulated peer.
fn their_open() -> OpenMessage {
    super::negotiate::our_open(&settings(THEM, US), Instant::now())
}

/// The peer's OPEN without graceful restart.
fn their_plain_open() -> OpenMessage {
    let mut open = their_open();
    open.capabilities
        .retain(|c| !matches!(c, Capability::GracefulRestart(_)));
    open
}

/// One machine on virtual time.
struct Bench {
    peer: PeerFsm,
    now: Instant,
}

impl Bench {
    fn new(settings: SessionSettings) -> Self {
        Self::with_seed(settings, 42)
    }

    fn with_seed(settings: SessionSettings, seed: u64) -> Self {
        Self {
            peer: PeerFsm::new(settings, seed),
            now: Instant::now(),
        }
    }

    /// Started, without output.
    fn started(settings: SessionSettings) -> Self {
        let mut bench = Self::new(settings);
        bench.feed(FsmInput::Start);
        bench
    }

    fn feed(&mut self, input: FsmInput) -> Vec<String> {
        self.peer.handle(self.now, input);
        self.drain()
    }

    fn receive(&mut self, conn: ConnectionId, message: Message) -> Vec<String> {
        self.feed(FsmInput::Received(conn, Ok(message)))
    }

    /// Goes to the next deadline and fires it; returns how long that took.
    fn next(&mut self) -> (Duration, Vec<String>) {
        let due = self.peer.next_timeout().unwrap();
        let waited = due.saturating_duration_since(self.now);
        self.now = self.now.max(due);
        self.peer.handle_timeout(self.now);
        (waited, self.drain())
    }

    /// Fires everything that is due until `wait` has passed.
    fn pass(&mut self, wait: Duration) -> Vec<String> {
        let until = self.now + wait;
        let mut seen = Vec::new();
        while self.peer.next_timeout().is_some_and(|due| due <= until) {
            seen.extend(self.next().1);
        }
        self.now = until;
        seen
    }

    fn drain(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.peer.poll())
            .map(|output| describe(&output))
            .collect()
    }

    /// Brings `conn` up to Established against a peer that sends `open`.
    fn establish(&mut self, conn: ConnectionId, open: OpenMessage) {
        match conn {
            ConnectionId::Out => self.feed(FsmInput::Connected(ends(conn))),
            ConnectionId::In | ConnectionId::Pending => self.feed(FsmInput::Incoming(ends(conn))),
        };
        self.receive(conn, Message::Open(open));
        self.receive(conn, Message::Keepalive);
        assert_eq!(self.peer.state(), SessionState::Established);
    }
}

/// A started machine whose outgoing connection is established.
fn established(open: OpenMessage) -> Bench {
    let mut bench = Bench::started(settings(US, THEM));
    bench.establish(ConnectionId::Out, open);
    bench
}

fn refused() -> ConnectFailure {
    ConnectFailure {
        remote: SocketAddr::new(address(THEM), 179),
        cause: std::io::ErrorKind::ConnectionRefused,
        text: "Connection refused (os error 111)".to_owned(),
    }
}

/// An output in a few words.
fn describe(output: &FsmOutput) -> String {
    let conn = |conn: &ConnectionId| match conn {
        ConnectionId::Out => "out",
        ConnectionId::In => "in",
        ConnectionId::Pending => "pending",
    };
    match output {
        FsmOutput::Connect => "connect".to_owned(),
        FsmOutput::Adopt(c) => format!("adopt {}", conn(c)),
        FsmOutput::Promote => "promote".to_owned(),
        FsmOutput::Refuse(octets) => format!("refuse {}", message_words(octets)),
        FsmOutput::Send(c, octets) => format!("{} {}", conn(c), message_words(octets)),
        FsmOutput::Close(c) => format!("close {}", conn(c)),
        FsmOutput::State(state, None) => format!("={state}"),
        FsmOutput::State(state, Some(reason)) => format!("={state} {}", reason.code()),
        FsmOutput::Up(c, _) => format!("up {}", conn(c)),
        FsmOutput::Down {
            reason,
            graceful: true,
            ..
        } => format!("down gracefully {}", reason.code()),
        FsmOutput::Down {
            reason,
            graceful: false,
            ..
        } => format!("down {}", reason.code()),
        FsmOutput::Update(update) => {
            format!(
                "update +{} -{}",
                update.announced.len(),
                update.withdrawn.len()
            )
        }
        FsmOutput::RouteRefresh(family) => format!("refresh {family}"),
        FsmOutput::RefreshBegin(family) => format!("refresh begins {family}"),
        FsmOutput::RefreshEnd(family) => format!("refresh ends {family}"),
        FsmOutput::Fault(fault) => format!("fault {fault}"),
    }
}

fn message_words(octets: &[u8]) -> String {
    assert_eq!(
        frame_len(octets, 4096),
        Ok(Some(octets.len())),
        "one whole message per Send"
    );
    match decode_message(octets, &crate::wire::format::MessageFormat::default()).unwrap() {
        Message::Open(_) => "OPEN".to_owned(),
        Message::Keepalive => "KEEPALIVE".to_owned(),
        Message::RouteRefresh(_) => "REFRESH".to_owned(),
        Message::Notification(notification) => {
            let (code, subcode) = notification.code.octets();
            format!("{code}/{subcode}")
        }
        other => panic!("the machine sends no {other:?}"),
    }
}

fn families(list: &[Family]) -> Vec<Family> {
    list.to_vec()
}

fn notification_bytes(notification: &Notification) -> BytesMut {
    let mut out = BytesMut::new();
    crate::wire::encode_notification(notification, &mut out);
    out
}
