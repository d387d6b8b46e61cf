//! Every state with every input, on the outgoing connection. A new state or a new event does not
//! compile until each of its cells is here.

use caracal_model::Family;

use super::super::{ConnectionId, FsmInput, SessionStop};
use super::{Bench, THEM, US, ends, refused, settings, their_open};
use crate::config::{Counted, LimitPassed};
use crate::types::{Asn, SessionState};
use crate::wire::Message;
use crate::wire::capability::AfiSafi;
use crate::wire::error::{DecodeError, HeaderError};
use crate::wire::notification::{CeaseSubcode, Notification};
use crate::wire::refresh::{RefreshKind, RouteRefresh};
use crate::wire::update::{DecodedUpdate, UpdateMessage};

const STATES: [SessionState; 6] = [
    SessionState::Idle,
    SessionState::Connect,
    SessionState::Active,
    SessionState::OpenSent,
    SessionState::OpenConfirm,
    SessionState::Established,
];

#[derive(Clone, Copy, Debug)]
enum Event {
    Start,
    StopCease,
    StopRestart,
    Settings,
    Connected,
    ConnectFailed,
    Incoming,
    Closed,
    Open,
    OpenOfWrongAs,
    Keepalive,
    Update,
    Refresh,
    RefreshBegin,
    AskRefresh,
    PrefixLimit,
    BfdDown,
    BfdDownGraceful,
    Notification,
    Malformed,
    SendHoldExpired,
    BytesWaiting,
    Timeout,
}

const EVENTS: [Event; 23] = [
    Event::Start,
    Event::StopCease,
    Event::StopRestart,
    Event::Settings,
    Event::Connected,
    Event::ConnectFailed,
    Event::Incoming,
    Event::Closed,
    Event::Open,
    Event::OpenOfWrongAs,
    Event::Keepalive,
    Event::Update,
    Event::Refresh,
    Event::RefreshBegin,
    Event::AskRefresh,
    Event::PrefixLimit,
    Event::BfdDown,
    Event::BfdDownGraceful,
    Event::Notification,
    Event::Malformed,
    Event::SendHoldExpired,
    Event::BytesWaiting,
    Event::Timeout,
];

/// A machine in `state`; Idle = stopped.
fn bench(state: SessionState) -> Bench {
    let mut bench = Bench::new(settings(US, THEM));
    if state == SessionState::Idle {
        return bench;
    }
    bench.feed(FsmInput::Start);
    match state {
        SessionState::Idle | SessionState::Connect => {}
        SessionState::Active => {
            bench.feed(FsmInput::ConnectFailed(refused()));
        }
        SessionState::OpenSent => {
            bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
        }
        SessionState::OpenConfirm => {
            bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
            bench.receive(ConnectionId::Out, Message::Open(their_open()));
        }
        SessionState::Established => bench.establish(ConnectionId::Out, their_open()),
    }
    assert_eq!(bench.peer.state(), state);
    bench
}

fn input(event: Event) -> Option<FsmInput> {
    let message = |message| Some(FsmInput::Received(ConnectionId::Out, Ok(message)));
    match event {
        Event::Start => Some(FsmInput::Start),
        Event::StopCease => {
            let stop = SessionStop::Cease(CeaseSubcode::AdministrativeShutdown, String::new());
            Some(FsmInput::Stop(stop))
        }
        Event::StopRestart => Some(FsmInput::Stop(SessionStop::Restart)),
        Event::Settings => Some(FsmInput::Settings(Box::new(settings(US, THEM)))),
        Event::Connected => Some(FsmInput::Connected(ends(ConnectionId::Out))),
        Event::ConnectFailed => Some(FsmInput::ConnectFailed(refused())),
        Event::Incoming => Some(FsmInput::Incoming(ends(ConnectionId::In))),
        Event::Closed => Some(FsmInput::Closed(ConnectionId::Out, None)),
        Event::Open => message(Message::Open(their_open())),
        Event::OpenOfWrongAs => {
            let mut open = their_open();
            open.asn = Asn(65001);
            message(Message::Open(open))
        }
        Event::Keepalive => message(Message::Keepalive),
        Event::Update => {
            let withdrawn = vec!["10.1.0.0/16".parse().unwrap()];
            let update = UpdateMessage {
                withdrawn,
                ..UpdateMessage::default()
            };
            message(Message::Update(DecodedUpdate {
                update,
                ..DecodedUpdate::default()
            }))
        }
        Event::Refresh => {
            let family = AfiSafi { afi: 1, safi: 1 };
            message(Message::RouteRefresh(RouteRefresh {
                family,
                kind: RefreshKind::Request,
            }))
        }
        Event::RefreshBegin => {
            let family = AfiSafi { afi: 1, safi: 1 };
            message(Message::RouteRefresh(RouteRefresh {
                family,
                kind: RefreshKind::Begin,
            }))
        }
        Event::AskRefresh => Some(FsmInput::AskRefresh(Family::Ipv4)),
        Event::BfdDown => Some(FsmInput::BfdDown { graceful: false }),
        Event::BfdDownGraceful => Some(FsmInput::BfdDown { graceful: true }),
        Event::PrefixLimit => Some(FsmInput::PrefixLimit(LimitPassed {
            counted: Counted::Received,
            family: Family::Ipv4,
            max: 10,
            restart: None,
        })),
        Event::Notification => message(Message::Notification(Notification::cease(
            CeaseSubcode::OutOfResources,
        ))),
        Event::Malformed => {
            let error = DecodeError::Header(HeaderError::Marker);
            Some(FsmInput::Received(ConnectionId::Out, Err(error)))
        }
        Event::SendHoldExpired => Some(FsmInput::SendHoldExpired(ConnectionId::Out)),
        Event::BytesWaiting => Some(FsmInput::BytesWaiting(ConnectionId::Out)),
        Event::Timeout => None,
    }
}

/// Expected outputs of the machine, `; ` between them.
fn expected(state: SessionState, event: Event) -> &'static str {
    use SessionState::{Active, Connect, Established, Idle, OpenConfirm, OpenSent};
    match (state, event) {
        (Idle, Event::Start) => "connect; =Connect",
        (
            Idle,
            Event::StopCease
            | Event::StopRestart
            | Event::Settings
            | Event::ConnectFailed
            | Event::Closed
            | Event::Open
            | Event::OpenOfWrongAs
            | Event::Keepalive
            | Event::Update
            | Event::Refresh
            | Event::RefreshBegin
            | Event::AskRefresh
            | Event::PrefixLimit
            | Event::BfdDown
            | Event::BfdDownGraceful
            | Event::Notification
            | Event::Malformed
            | Event::SendHoldExpired
            | Event::BytesWaiting
            | Event::Timeout,
        ) => "",
        (Idle, Event::Connected) => "close out",
        (Idle, Event::Incoming) => "refuse 6/5",
        (
            Connect,
            Event::Start
            | Event::Settings
            | Event::Open
            | Event::OpenOfWrongAs
            | Event::Keepalive
            | Event::Update
            | Event::Refresh
            | Event::RefreshBegin
            | Event::AskRefresh
            | Event::PrefixLimit
            | Event::BfdDown
            | Event::BfdDownGraceful
            | Event::Notification
            | Event::Malformed
            | Event::SendHoldExpired
            | Event::BytesWaiting,
        ) => "",
        (Connect, Event::StopCease) => "close out; =Idle stopped",
        (Connect, Event::StopRestart) => "close out; =Idle restarting",
        (Connect, Event::Connected) => "out OPEN; =OpenSent",
        (Connect, Event::ConnectFailed) => "=Active connect_failed",
        (Connect, Event::Incoming) => "adopt in; in OPEN; =OpenSent",
        (Connect, Event::Closed) => "=Active closed_by_peer",
        (Connect, Event::Timeout) => "close out; =Active connect_timeout",
        (
            Active,
            Event::Start
            | Event::ConnectFailed
            | Event::Closed
            | Event::Open
            | Event::OpenOfWrongAs
            | Event::Keepalive
            | Event::Update
            | Event::Refresh
            | Event::RefreshBegin
            | Event::AskRefresh
            | Event::PrefixLimit
            | Event::BfdDown
            | Event::BfdDownGraceful
            | Event::Notification
            | Event::Malformed
            | Event::SendHoldExpired
            | Event::BytesWaiting,
        ) => "",
        (Active, Event::StopCease) => "=Idle stopped",
        (Active, Event::StopRestart) => "=Idle restarting",
        (Active, Event::Settings | Event::Timeout) => "connect; =Connect",
        (Active, Event::Connected) => "close out",
        (Active, Event::Incoming) => "adopt in; in OPEN; =OpenSent",
        (
            OpenSent,
            Event::Start
            | Event::Settings
            | Event::Connected
            | Event::ConnectFailed
            | Event::AskRefresh
            | Event::PrefixLimit
            | Event::BfdDown
            | Event::BfdDownGraceful
            | Event::BytesWaiting,
        ) => "",
        (OpenSent, Event::StopCease) => "out 6/2; close out; =Idle stopped",
        (OpenSent, Event::StopRestart) => "out 6/4; close out; =Idle restarting",
        (OpenSent, Event::Incoming) => "adopt in; in OPEN",
        (OpenSent, Event::Closed) => "=Active closed_by_peer",
        (OpenSent, Event::Open) => "out KEEPALIVE; =OpenConfirm",
        (OpenSent, Event::OpenOfWrongAs) => "out 2/2; close out; =Idle bad_peer_as",
        (OpenSent, Event::Keepalive | Event::Update | Event::Refresh | Event::RefreshBegin) => {
            "out 5/1; close out; =Idle unexpected_message"
        }
        (OpenSent, Event::Notification) => "close out; =Active notification_received",
        (OpenSent, Event::Malformed) => "out 1/1; close out; =Idle malformed_message",
        (OpenSent, Event::SendHoldExpired) => "out 8/0; close out; =Active send_hold_timer_expired",
        (OpenSent, Event::Timeout) => "out 4/0; close out; =Active no_open",
        (
            OpenConfirm,
            Event::Start
            | Event::Settings
            | Event::Connected
            | Event::ConnectFailed
            | Event::AskRefresh
            | Event::PrefixLimit
            | Event::BfdDown
            | Event::BfdDownGraceful
            | Event::BytesWaiting,
        ) => "",
        (OpenConfirm, Event::StopCease) => "out 6/9; close out; =Idle stopped",
        (OpenConfirm, Event::StopRestart) => "close out; =Idle restarting",
        (OpenConfirm, Event::Incoming) => "adopt in; in OPEN",
        (OpenConfirm, Event::Closed) => "=Active closed_by_peer",
        (
            OpenConfirm,
            Event::Open
            | Event::OpenOfWrongAs
            | Event::Update
            | Event::Refresh
            | Event::RefreshBegin,
        ) => "out 5/2; close out; =Idle unexpected_message",
        (OpenConfirm, Event::Keepalive) => "up out; =Established",
        (OpenConfirm, Event::Notification) => "close out; =Active notification_received",
        (OpenConfirm, Event::Malformed) => "out 1/1; close out; =Idle malformed_message",
        (OpenConfirm, Event::SendHoldExpired) => {
            "out 8/0; close out; =Active send_hold_timer_expired"
        }
        (OpenConfirm, Event::Timeout) => "out KEEPALIVE",
        (
            Established,
            Event::Start
            | Event::Settings
            | Event::Connected
            | Event::ConnectFailed
            | Event::Keepalive
            | Event::BytesWaiting,
        ) => "",
        (Established, Event::StopCease) => "out 6/9; close out; down stopped; =Idle stopped",
        (Established, Event::StopRestart) => {
            "close out; down gracefully restarting; =Idle restarting"
        }
        (Established, Event::Incoming) => "adopt in; in OPEN",
        (Established, Event::Closed) => "down gracefully closed_by_peer; =Active closed_by_peer",
        (Established, Event::Open | Event::OpenOfWrongAs) => {
            "out 5/3; close out; down gracefully unexpected_message; =Idle unexpected_message"
        }
        (Established, Event::Update) => "update +0 -1",
        (Established, Event::Refresh) => "refresh IPv4",
        (Established, Event::RefreshBegin) => "refresh begins IPv4",
        (Established, Event::AskRefresh) => "out REFRESH",
        (Established, Event::BfdDown) => "out 6/9; close out; down bfd_down; =Active bfd_down",
        (Established, Event::BfdDownGraceful) => {
            "close out; down gracefully bfd_down; =Active bfd_down"
        }
        (Established, Event::PrefixLimit) => {
            "out 6/9; close out; down prefix_limit; =Idle prefix_limit"
        }
        (Established, Event::Notification) => {
            "close out; down gracefully notification_received; =Active notification_received"
        }
        (Established, Event::Malformed) => {
            "out 1/1; close out; down gracefully malformed_message; =Idle malformed_message"
        }
        (Established, Event::SendHoldExpired) => {
            "out 8/0; close out; down gracefully send_hold_timer_expired; =Active send_hold_timer_expired"
        }
        (Established, Event::Timeout) => "out KEEPALIVE",
    }
}

#[test]
fn every_state_with_every_input() {
    let mut wrong = Vec::new();
    for state in STATES {
        for event in EVENTS {
            let mut bench = bench(state);
            let seen = match input(event) {
                Some(input) => bench.feed(input),
                None if bench.peer.next_timeout().is_none() => Vec::new(),
                None => bench.next().1,
            };
            let seen = seen.join("; ");
            if seen != expected(state, event) {
                wrong.push(format!("({state}, Event::{event:?}) => {seen:?},"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
