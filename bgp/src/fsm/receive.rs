//! Handling of received messages: RFC 4271 §8.2.2, and the collision of two connections (§6.8).

use std::time::Instant;

use bytes::BytesMut;

use super::connection::{Connection, ConnectionPhase};
use super::negotiate::negotiate;
use super::peer::{COLLISION_WINDOW, PeerFsm};
use super::{ConnectionId, DownReason, FsmOutput, SessionUp, survivor};
use crate::types::SessionState;
use crate::wire::error::DecodeError;
use crate::wire::notification::{CeaseSubcode, FsmSubcode, Notification, NotificationCode};
use crate::wire::open::OpenMessage;
use crate::wire::refresh::{RefreshKind, RouteRefresh};
use crate::wire::update::DecodedUpdate;
use crate::wire::{Message, MessageType, encode_open};

impl PeerFsm {
    pub(super) fn received(
        &mut self,
        now: Instant,
        conn: ConnectionId,
        message: Result<Message, DecodeError>,
    ) {
        let Some(connection) = self.slot(conn) else {
            // It was on its way when we closed.
            return;
        };
        let state = connection.state();
        if state == SessionState::Connect {
            return;
        }
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                // RFC 4271 §6.4: a NOTIFICATION is never answered. AfiSafiDisable is raised to a
                // reset, as RFC 7606 §2 allows.
                let answer = (!error.is_in_notification()).then(|| error.notification());
                return self.end(now, conn, DownReason::Malformed(error), answer);
            }
        };
        match react(state, message) {
            Reaction::Open(open) => self.opened(now, conn, &open),
            Reaction::Establish => self.establish(now, conn),
            Reaction::Alive => connection.alive(now),
            Reaction::Update(decoded) => {
                connection.alive(now);
                self.updated(decoded);
            }
            Reaction::Refresh(refresh) => {
                connection.alive(now);
                self.refresh(conn, refresh);
            }
            Reaction::Notified(notification) => {
                self.end(now, conn, DownReason::Notified(notification), None);
            }
            Reaction::Unexpected(kind, subcode) => {
                let answer = Notification::new(NotificationCode::Fsm(subcode));
                self.end(
                    now,
                    conn,
                    DownReason::Unexpected { kind, state },
                    Some(answer),
                );
            }
        }
    }

    fn updated(&mut self, decoded: DecodedUpdate) {
        for fault in &decoded.faults {
            self.outputs.push_back(FsmOutput::Fault(fault.clone()));
        }
        self.outputs.extend(
            decoded
                .into_updates()
                .filter(|update| !update.is_empty())
                .map(FsmOutput::Update),
        );
    }

    fn refresh(&mut self, conn: ConnectionId, refresh: RouteRefresh) {
        let Some(negotiated) = self.connection(conn).and_then(Connection::negotiated) else {
            return;
        };
        let Some(family) = refresh.family.family() else {
            return;
        };
        if !negotiated.families().contains(family) {
            return;
        }
        // RFC 7313 §5: marks are for those who agreed on them, and unknown subtypes are ignored.
        let marked = negotiated.enhanced_refresh;
        match refresh.kind {
            RefreshKind::Request => self.outputs.push_back(FsmOutput::RouteRefresh(family)),
            RefreshKind::Begin if marked => self.outputs.push_back(FsmOutput::RefreshBegin(family)),
            RefreshKind::End if marked => self.outputs.push_back(FsmOutput::RefreshEnd(family)),
            RefreshKind::Begin | RefreshKind::End | RefreshKind::Other(_) => {}
        }
    }

    /// The peer's OPEN: is it the peer we expect, and is this the connection to keep?
    fn opened(&mut self, now: Instant, conn: ConnectionId, open: &OpenMessage) {
        // A capability that we did not announce must not be used, even if the peer announces it.
        let theirs = if self.plain {
            let capabilities = Vec::new();
            &OpenMessage {
                capabilities,
                ..open.clone()
            }
        } else {
            open
        };
        let negotiated = match negotiate(&self.settings, theirs) {
            Ok(negotiated) => negotiated,
            Err((down, answer)) => return self.end(now, conn, down, Some(answer)),
        };
        let conn = if conn == ConnectionId::Pending {
            if !self.replaces(now, open) {
                return;
            }
            ConnectionId::In
        } else {
            conn
        };
        if !self.wins(now, conn, open) {
            return;
        }
        let hold = negotiated.hold_time;
        let Some(connection) = self.slot(conn) else {
            return;
        };
        let ConnectionPhase::OpenSent(ends) = connection.phase else {
            return;
        };
        connection.phase = ConnectionPhase::OpenConfirm(ends, Box::new(negotiated));
        let mut octets = BytesMut::new();
        encode_open(open, &mut octets);
        connection.opens.received = octets.freeze();
        connection.hold = (!hold.is_zero()).then(|| now + hold);
        self.send_keepalive(now, conn);
    }

    /// The OPEN on the pending connection is good: the peer has lost the session that it had
    /// before, and goes on here as [`ConnectionId::In`] (RFC 4724 §5). False when this is not the
    /// speaker of that session.
    fn replaces(&mut self, now: Instant, open: &OpenMessage) -> bool {
        if self.is_the_same(ConnectionId::In, open) {
            self.end(now, ConnectionId::In, DownReason::Replaced, None);
            return true;
        }
        self.keep_established(now, ConnectionId::In, ConnectionId::Pending);
        false
    }

    /// True when the identifier is that of the session.
    fn is_the_same(&self, session: ConnectionId, open: &OpenMessage) -> bool {
        self.connection(session)
            .and_then(Connection::negotiated)
            .is_some_and(|negotiated| negotiated.remote_router_id == open.router_id)
    }

    /// RFC 4271 §6.8: an established connection wins. If it is dead in truth, a KEEPALIVE finds
    /// out.
    fn keep_established(&mut self, now: Instant, session: ConnectionId, other: ConnectionId) {
        let cease = Notification::cease(CeaseSubcode::CollisionResolution);
        self.end(now, other, DownReason::Collision(other), Some(cease));
        self.send_keepalive(now, session);
    }

    /// Collision detection. True when `conn` goes on; the loser is closed.
    fn wins(&mut self, now: Instant, conn: ConnectionId, open: &OpenMessage) -> bool {
        let other = conn.other();
        let Some((state, since)) = self
            .connection(other)
            .map(|other| (other.state(), other.established_at()))
        else {
            return true;
        };
        let local = (self.settings.router_id, self.settings.local_as());
        let survivor = survivor(local, (open.router_id, open.asn));
        let cease = Some(Notification::cease(CeaseSubcode::CollisionResolution));
        let young = since.is_some_and(|since| now.duration_since(since) < COLLISION_WINDOW);
        match state {
            SessionState::Connect | SessionState::Idle | SessionState::Active => {
                self.end(now, other, DownReason::Collision(other), None);
                true
            }
            // RFC 4271 §6.8 compares when the other is in OpenConfirm, and may when it is in
            // OpenSent. There we only ever close it: if it is to survive, that is settled when its
            // OPEN comes.
            SessionState::OpenSent | SessionState::OpenConfirm if survivor == conn => {
                self.end(now, other, DownReason::Collision(other), cease);
                true
            }
            SessionState::OpenSent => true,
            SessionState::OpenConfirm => {
                self.end(now, conn, DownReason::Collision(conn), cease);
                false
            }
            // Both were dialled at the same time and the peer may still be in OpenConfirm on the
            // other, where it decides by the identifiers: so do we, or both connections would end.
            SessionState::Established if young && survivor == conn => {
                self.end(now, other, DownReason::Collision(other), cease);
                true
            }
            SessionState::Established
                if !young && self.peer_may_restart(other) && self.is_the_same(other, open) =>
            {
                // RFC 4724 §5: the peer has lost the old session.
                self.end(now, other, DownReason::Replaced, None);
                true
            }
            SessionState::Established => {
                self.keep_established(now, other, conn);
                false
            }
        }
    }

    fn establish(&mut self, now: Instant, conn: ConnectionId) {
        let Some(Connection {
            phase: phase @ ConnectionPhase::OpenConfirm(..),
            opens,
            ..
        }) = self.slot(conn)
        else {
            return;
        };
        let ConnectionPhase::OpenConfirm(ends, negotiated) =
            std::mem::replace(phase, ConnectionPhase::Connecting)
        else {
            return;
        };
        let up = SessionUp {
            negotiated: (*negotiated).clone(),
            ends,
            opens: std::mem::take(opens),
        };
        *phase = ConnectionPhase::Established(negotiated, now);
        if let Some(connection) = self.slot(conn) {
            connection.alive(now);
        }
        // A connection that is still without OPEN has lost or is about to win; it need not take
        // minutes.
        if let Some(other) = self.slot(conn.other()) {
            other.hold = Some(now + COLLISION_WINDOW);
        }
        self.settings.had_session = true;
        self.outputs.push_back(FsmOutput::Up(conn, Box::new(up)));
    }
}

/// Classification of a message by phase.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "UPDATEs are the many; boxing them would cost an allocation each"
)]
enum Reaction {
    /// The peer's OPEN, to be checked.
    Open(OpenMessage),
    /// The KEEPALIVE that answers our OPEN.
    Establish,
    /// The peer is alive; nothing else.
    Alive,
    /// Routes that the peer announces or withdraws.
    Update(DecodedUpdate),
    /// A request for routes.
    Refresh(RouteRefresh),
    /// The peer ends the session.
    Notified(Notification),
    /// Finite State Machine Error.
    Unexpected(MessageType, FsmSubcode),
}

/// RFC 4271 §8.2.2, events 19 to 27, for the states that have a connection.
fn react(state: SessionState, message: Message) -> Reaction {
    use SessionState::{Active, Connect, Established, Idle, OpenConfirm, OpenSent};
    let kind = message.kind();
    match (state, message) {
        (_, Message::Notification(notification)) => Reaction::Notified(notification),
        (OpenSent, Message::Open(open)) => Reaction::Open(open),
        (OpenConfirm, Message::Keepalive) => Reaction::Establish,
        (Established, Message::Keepalive) => Reaction::Alive,
        (Established, Message::Update(decoded)) => Reaction::Update(decoded),
        (Established, Message::RouteRefresh(refresh)) => Reaction::Refresh(refresh),
        (OpenSent, Message::Keepalive | Message::Update(_) | Message::RouteRefresh(_)) => {
            Reaction::Unexpected(kind, FsmSubcode::InOpenSent)
        }
        (OpenConfirm, Message::Open(_) | Message::Update(_) | Message::RouteRefresh(_)) => {
            Reaction::Unexpected(kind, FsmSubcode::InOpenConfirm)
        }
        (Established, Message::Open(_)) => Reaction::Unexpected(kind, FsmSubcode::InEstablished),
        // Without a connection nothing can be received.
        (
            Idle | Connect | Active,
            Message::Open(_) | Message::Keepalive | Message::Update(_) | Message::RouteRefresh(_),
        ) => Reaction::Unexpected(kind, FsmSubcode::Unspecific),
    }
}
