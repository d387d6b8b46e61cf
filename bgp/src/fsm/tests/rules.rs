//! Rules by the RFC that sets them.

use std::time::{Duration, Instant};

use caracal_model::Family;

use super::super::negotiate::{negotiate, our_open};
use super::super::{ConnectionId, DownReason, FsmInput, FsmOutput, PeerFsm, SessionStop};
use super::{
    Bench, GracefulRestart, THEM, US, ends, established, refused, settings, their_open,
    their_plain_open,
};
use crate::config::{BgpRole, Counted, LimitPassed};
use crate::types::{Asn, RouterId, SessionState};
use crate::wire::MessageType;
use crate::wire::capability::{AfiSafi, Capability, GracefulRestartCapability};
use crate::wire::error::{DecodeError, HeaderError};
use crate::wire::format::MessageFormat;
use crate::wire::notification::{CeaseSubcode, Notification, NotificationCode, OpenSubcode};
use crate::wire::open::OpenMessage;
use crate::wire::{Message, decode_message};

const SECOND: Duration = Duration::from_secs(1);

// Timers.

#[test]
fn rfc4271_8_2_2_hold_expiry_in_established_sends_4_0() {
    let mut bench = established(their_plain_open());
    let seen = bench.pass(89 * SECOND);
    assert!(
        !seen.is_empty() && seen.iter().all(|output| output == "out KEEPALIVE"),
        "{seen:?}"
    );
    assert_eq!(
        bench.pass(SECOND),
        [
            "out 4/0",
            "close out",
            "down hold_timer_expired",
            "=Active hold_timer_expired"
        ]
    );
}

#[test]
fn rfc4271_4_4_keepalives_come_thrice_per_hold_time_and_keep_the_peer_alive() {
    let mut bench = established(their_open());
    let mut sent = 0;
    for _ in 0..60 {
        let seen = bench.pass(10 * SECOND);
        sent += seen
            .iter()
            .filter(|output| *output == "out KEEPALIVE")
            .count();
        assert_eq!(
            bench.receive(ConnectionId::Out, Message::Keepalive),
            [""; 0]
        );
    }
    // 600 s at 22.5 to 30 s each.
    assert!((20..=27).contains(&sent), "{sent}");
    assert_eq!(bench.peer.state(), SessionState::Established);
}

#[test]
fn rfc4271_10_keepalives_are_jittered_and_those_of_many_sessions_come_together() {
    let interval = 30 * SECOND;
    let step = interval / 20;
    let mut waits = Vec::new();
    for seed in 0..20 {
        let mut bench = Bench::with_seed(settings(US, THEM), seed);
        bench.feed(FsmInput::Start);
        // Sessions come up at any time.
        bench.now += Duration::from_millis(137 * seed);
        bench.establish(ConnectionId::Out, their_open());
        for _ in 0..10 {
            let due = bench.peer.next_timeout().expect("a keepalive is due");
            let wait = due - bench.now;
            assert!(wait <= interval, "{wait:?}");
            let since = due - bench.peer.settings.epoch;
            assert_eq!(since.as_nanos() % step.as_nanos(), 0, "{since:?}");
            assert_eq!(bench.pass(wait), ["out KEEPALIVE"]);
            bench.receive(ConnectionId::Out, Message::Keepalive);
            let next = bench.peer.next_timeout().expect("the next one") - bench.now;
            assert!((interval * 3 / 4..=interval).contains(&next), "{next:?}");
            waits.push(next);
        }
    }
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 2, "{waits:?}");
}

#[test]
fn rfc4724_3_a_new_restart_time_moves_nothing_and_is_in_the_next_open() {
    let said = |bench: &mut Bench| {
        bench
            .peer
            .handle(bench.now, FsmInput::Connected(ends(ConnectionId::Out)));
        let sent = std::iter::from_fn(|| bench.peer.poll()).find_map(|output| match output {
            FsmOutput::Send(ConnectionId::Out, octets) => Some(octets),
            _ => None,
        });
        let Ok(Message::Open(open)) = decode_message(&sent.unwrap(), &MessageFormat::default())
        else {
            panic!("no OPEN")
        };
        let restart = open
            .capabilities
            .iter()
            .find_map(|capability| match capability {
                Capability::GracefulRestart(restart) => Some(restart.restart_time),
                _ => None,
            });
        (restart, open.hold_time)
    };
    let mut bench = Bench::started(settings(US, THEM));
    assert_eq!(said(&mut bench), (Some(120), 90));
    bench.receive(ConnectionId::Out, Message::Open(their_open()));
    bench.receive(ConnectionId::Out, Message::Keepalive);
    let mut new = settings(US, THEM);
    let restart_time = Duration::from_secs(7);
    new.peer.graceful_restart = Some(GracefulRestart { restart_time });
    assert_eq!(bench.feed(FsmInput::Settings(Box::new(new))), [""; 0]);
    assert_eq!(bench.peer.state(), SessionState::Established);
    bench.feed(FsmInput::Closed(ConnectionId::Out, None));
    let (_, again) = bench.next();
    assert!(again.contains(&"connect".to_owned()), "{again:?}");
    assert_eq!(said(&mut bench), (Some(7), 90));
}

#[test]
fn rfc4271_4_2_hold_time_zero_turns_both_timers_off() {
    let mut open = their_open();
    open.hold_time = 0;
    let bench = established(open);
    assert_eq!(bench.peer.next_timeout(), None);
}

#[test]
fn rfc4271_4_2_the_smaller_hold_time_counts() {
    for (ours, theirs, expected) in [(90, 30, 30), (3, 30, 3), (90, 0, 0), (0, 90, 0), (1, 90, 3)] {
        let mut settings = settings(US, THEM);
        settings.peer.hold_time = Duration::from_secs(ours);
        let open = OpenMessage {
            hold_time: theirs,
            ..their_open()
        };
        let negotiated = negotiate(&settings, &open).unwrap();
        assert_eq!(
            negotiated.hold_time,
            Duration::from_secs(expected),
            "{ours} {theirs}"
        );
    }
}

#[test]
fn rfc4271_8_2_2_a_silent_peer_gets_four_minutes_for_its_open() {
    let mut bench = Bench::started(settings(US, THEM));
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    assert_eq!(bench.pass(239 * SECOND), [""; 0]);
    assert_eq!(
        bench.pass(SECOND),
        ["out 4/0", "close out", "=Active no_open"]
    );
}

#[test]
fn unread_octets_postpone_the_hold_timer() {
    let mut bench = established(their_open());
    bench.pass(89 * SECOND);
    bench.feed(FsmInput::BytesWaiting(ConnectionId::Out));
    bench.pass(9 * SECOND);
    assert_eq!(bench.peer.state(), SessionState::Established);
    let seen = bench.pass(2 * SECOND);
    assert!(seen.contains(&"out 4/0".to_owned()), "{seen:?}");
    // It never shortens what is left.
    let mut bench = established(their_open());
    bench.feed(FsmInput::BytesWaiting(ConnectionId::Out));
    bench.pass(89 * SECOND);
    assert_eq!(bench.peer.state(), SessionState::Established);
}

// Attempts.

#[test]
fn the_first_attempt_is_at_once_the_next_within_a_second_then_they_thin_out() {
    let mut bench = Bench::new(settings(US, THEM));
    assert_eq!(bench.feed(FsmInput::Start), ["connect", "=Connect"]);
    let mut waits = Vec::new();
    for _ in 0..8 {
        assert_eq!(
            bench.feed(FsmInput::ConnectFailed(refused())),
            ["=Active connect_failed"]
        );
        let (waited, seen) = bench.next();
        assert_eq!(seen, ["connect", "=Connect"]);
        waits.push(waited);
    }
    assert!(waits[0] <= SECOND && waits[0] >= SECOND / 2, "{waits:?}");
    assert!(waits[1] <= 2 * SECOND, "{waits:?}");
    assert!(
        waits[7] > 7 * SECOND && waits[7] <= 15 * SECOND,
        "{waits:?}"
    );
}

#[test]
fn a_good_session_forgives_earlier_failures() {
    let mut bench = Bench::started(settings(US, THEM));
    for _ in 0..8 {
        bench.feed(FsmInput::ConnectFailed(refused()));
        bench.next();
    }
    bench.establish(ConnectionId::Out, their_open());
    bench.pass(40 * SECOND);
    bench.feed(FsmInput::Closed(ConnectionId::Out, None));
    assert!(bench.next().0 <= SECOND);
}

#[test]
fn a_protocol_error_pauses_the_peer_and_refuses_its_connections() {
    let mut bench = Bench::started(settings(US, THEM));
    let mut open = their_open();
    open.asn = Asn(65001);
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    bench.receive(ConnectionId::Out, Message::Open(open));
    assert_eq!(bench.peer.state(), SessionState::Idle);
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        ["refuse 6/5"]
    );
    let (waited, seen) = bench.next();
    assert_eq!(seen, ["connect", "=Connect"]);
    assert!(waited >= SECOND && waited <= 2 * SECOND, "{waited:?}");
}

/// Established over a connection of the peer, which then closes it. How long the peer is refused
/// after that.
fn flap(bench: &mut Bench, lives: Duration) -> (Duration, Vec<String>) {
    bench.establish(ConnectionId::In, their_open());
    bench.pass(lives);
    let seen = bench.feed(FsmInput::Closed(ConnectionId::In, None));
    let fell = bench.now;
    while bench.peer.state() == SessionState::Idle {
        assert_eq!(
            bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
            ["refuse 6/5"]
        );
        bench.pass(SECOND / 10);
    }
    (bench.now - fell, seen)
}

#[test]
fn rfc4271_8_1_1_a_session_that_comes_and_goes_waits_longer_each_time() {
    let mut bench = Bench::started(settings(US, THEM));
    let waits: Vec<Duration> = (0..14).map(|_| flap(&mut bench, SECOND).0).collect();
    assert_eq!(waits[..3], [Duration::ZERO; 3], "restarts are no fault");
    let step = SECOND / 10;
    for (n, wait) in waits[3..].iter().enumerate() {
        let most = (SECOND * (1 << n.min(8))).min(60 * SECOND);
        assert!(
            (most * 3 / 4..=most + step).contains(wait),
            "{n}: {waits:?}"
        );
    }
    // A session that lives is forgiven what was before.
    assert_eq!(flap(&mut bench, 40 * SECOND).0, Duration::ZERO);
    assert_eq!(flap(&mut bench, SECOND).0, Duration::ZERO);
    // The status gives the wait and its reason; a second connection does not shorten it.
    for _ in 0..2 {
        flap(&mut bench, SECOND);
    }
    bench.establish(ConnectionId::In, their_open());
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    assert_eq!(
        bench.feed(FsmInput::Closed(ConnectionId::In, None)),
        [
            "down gracefully closed_by_peer",
            "pending 6/5",
            "close pending",
            "=Idle flapping"
        ]
    );
    let down = DownReason::Flapping {
        last: Box::new(DownReason::Closed(None)),
        times: 4,
        within: 30 * SECOND,
        wait: SECOND / 2,
    };
    assert_eq!(
        down.to_string(),
        "peer closed the connection; 4 sessions in a row fell within 30 s of coming up: the next one waits 0.5 s"
    );
}

#[test]
fn what_we_end_ourselves_is_no_flapping() {
    let mut bench = Bench::started(settings(US, THEM));
    for _ in 0..10 {
        bench.establish(ConnectionId::In, their_open());
        let text = String::new();
        let cease = SessionStop::Cease(CeaseSubcode::AdministrativeShutdown, text);
        bench.feed(FsmInput::Stop(cease));
        bench.feed(FsmInput::Start);
        assert_eq!(bench.peer.state(), SessionState::Connect);
    }
}

#[test]
fn new_settings_end_the_pause() {
    let mut bench = Bench::started(settings(US, THEM));
    let mut open = their_open();
    open.asn = Asn(65001);
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    bench.receive(ConnectionId::Out, Message::Open(open.clone()));
    let mut fixed = settings(US, THEM);
    fixed.peer.remote_as = Asn(65001);
    assert_eq!(
        bench.feed(FsmInput::Settings(Box::new(fixed))),
        ["connect", "=Connect"]
    );
    bench.establish(ConnectionId::Out, open);
}

#[test]
fn rfc4271_8_1_1_a_passive_peer_never_dials() {
    let mut settings = settings(US, THEM);
    settings.peer.passive = true;
    let mut bench = Bench::new(settings);
    assert_eq!(bench.feed(FsmInput::Start), ["=Active"]);
    assert_eq!(bench.peer.next_timeout(), None);
    bench.establish(ConnectionId::In, their_open());
    bench.feed(FsmInput::Closed(ConnectionId::In, None));
    assert_eq!(bench.pass(1000 * SECOND), [""; 0]);
    assert_eq!(bench.peer.state(), SessionState::Active);
}

// Checks of the OPEN.

fn refusal(open: OpenMessage) -> (Vec<String>, String) {
    let mut bench = Bench::started(settings(US, THEM));
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    bench.peer.handle(
        bench.now,
        FsmInput::Received(ConnectionId::Out, Ok(Message::Open(open))),
    );
    let outputs: Vec<FsmOutput> = std::iter::from_fn(|| bench.peer.poll()).collect();
    let sentence = outputs.iter().find_map(|output| match output {
        FsmOutput::State(_, Some(reason)) => Some(reason.to_string()),
        _ => None,
    });
    (
        outputs.iter().map(super::describe).collect(),
        sentence.unwrap(),
    )
}

#[test]
fn rfc4271_6_2_the_as_must_be_the_configured_one() {
    let (outputs, sentence) = refusal(OpenMessage {
        asn: Asn(65001),
        ..their_open()
    });
    assert_eq!(outputs, ["out 2/2", "close out", "=Idle bad_peer_as"]);
    assert_eq!(sentence, "peer announces AS 65001, expected 64512");
}

#[test]
fn rfc6286_2_2_an_internal_peer_has_another_identifier() {
    let ours = RouterId([10, 0, 0, US].into());
    let (outputs, sentence) = refusal(OpenMessage {
        router_id: ours,
        ..their_open()
    });
    assert_eq!(
        outputs,
        ["out 2/3", "close out", "=Idle router_id_conflict"]
    );
    assert!(sentence.contains("10.0.0.1"), "{sentence}");
    // Across ASes it may be the same.
    let mut external = settings(US, THEM);
    external.peer.remote_as = Asn(65001);
    let open = OpenMessage {
        router_id: ours,
        asn: Asn(65001),
        ..their_open()
    };
    assert!(negotiate(&external, &open).is_ok());
}

#[test]
fn rfc5492_5_no_common_family() {
    let mut open = their_open();
    open.capabilities = vec![Capability::Multiprotocol(Family::Ipv6.into())];
    let (outputs, sentence) = refusal(open);
    assert_eq!(outputs, ["out 2/7", "close out", "=Idle no_common_family"]);
    assert_eq!(
        sentence,
        "no common address family: ours IPv4, the peer's IPv6"
    );
}

/// Table 2: each pair of roles, and a peer that names none, two, or one that is none.
#[test]
fn rfc9234_4_2_roles_go_together_or_the_session_is_refused() {
    let agree = |ours: BgpRole, require: bool, named: &[u8]| {
        let mut settings = settings(US, THEM);
        settings.peer.remote_as = Asn(65001);
        settings.peer.role = Some(ours);
        settings.peer.require_roles = require;
        let mut open = OpenMessage {
            asn: Asn(65001),
            ..their_open()
        };
        let roles = named.iter().map(|role| Capability::Role(*role));
        open.capabilities.extend(roles);
        match negotiate(&settings, &open) {
            Ok(negotiated) => Ok(negotiated.role),
            Err((down, notification)) => {
                let code = NotificationCode::Open(OpenSubcode::RoleMismatch);
                assert_eq!(notification.code, code);
                Err(down.to_string())
            }
        }
    };
    for ours in BgpRole::ALL {
        for theirs in BgpRole::ALL {
            let agreed = agree(ours, true, &[theirs.code()]);
            assert_eq!(
                agreed.is_ok(),
                theirs == ours.counterpart(),
                "{ours} {theirs}"
            );
        }
        assert_eq!(agree(ours, false, &[]), Ok(None));
        let wanted = ours.counterpart();
        let code = wanted.code();
        assert_eq!(agree(ours, false, &[code, code]), Ok(Some(wanted)));
        for named in [&[code, 7][..], &[7], &[255]] {
            let said = agree(ours, false, named).unwrap_err();
            assert!(said.contains(&format!("must be a {wanted}")), "{said}");
        }
        let said = agree(ours, true, &[]).unwrap_err();
        assert!(said.contains("names no role"), "{said}");
    }
    // Nothing is said, and nothing is asked for, inside the AS.
    let mut internal = settings(US, THEM);
    internal.peer.role = Some(BgpRole::Customer);
    let said = our_open(&internal, Instant::now()).capabilities;
    assert!(!said.iter().any(|c| matches!(c, Capability::Role(_))));
    internal.peer.remote_as = Asn(65001);
    let said = our_open(&internal, Instant::now()).capabilities;
    assert!(said.contains(&Capability::Role(3)));
}

#[test]
fn rfc5492_3_after_2_4_one_attempt_goes_without_capabilities() {
    let sent = |bench: &mut Bench| {
        bench
            .peer
            .handle(bench.now, FsmInput::Connected(ends(ConnectionId::Out)));
        let outputs: Vec<FsmOutput> = std::iter::from_fn(|| bench.peer.poll()).collect();
        let open = outputs.iter().find_map(|output| match output {
            FsmOutput::Send(_, octets) => decode_message(octets, &MessageFormat::default()).ok(),
            _ => None,
        });
        match open {
            Some(Message::Open(open)) => open,
            other => panic!("{other:?}"),
        }
    };
    let refuse = |bench: &mut Bench| {
        let code = NotificationCode::Open(OpenSubcode::UnsupportedParameter);
        bench.receive(
            ConnectionId::Out,
            Message::Notification(Notification::new(code)),
        );
        while !bench.next().1.contains(&"connect".to_owned()) {}
    };
    let mut bench = Bench::started(settings(US, THEM));
    assert!(!sent(&mut bench).capabilities.is_empty());
    refuse(&mut bench);
    let plain = sent(&mut bench);
    assert_eq!(plain.capabilities, []);
    // Refused again, it cannot have been the capabilities.
    refuse(&mut bench);
    assert!(!sent(&mut bench).capabilities.is_empty());
    refuse(&mut bench);
    assert_eq!(sent(&mut bench), plain);
    // The session uses nothing that was not announced, although the peer announces it.
    bench.peer.handle(
        bench.now,
        FsmInput::Received(ConnectionId::Out, Ok(Message::Open(their_open()))),
    );
    bench.peer.handle(
        bench.now,
        FsmInput::Received(ConnectionId::Out, Ok(Message::Keepalive)),
    );
    let up = std::iter::from_fn(|| bench.peer.poll()).find_map(|output| match output {
        FsmOutput::Up(_, up) => Some(up.negotiated),
        _ => None,
    });
    let negotiated = up.unwrap();
    assert!(!negotiated.format.four_octet_as);
    assert_eq!(negotiated.in_use(), [""; 0]);
    assert_eq!(
        negotiated.families().iter().collect::<Vec<_>>(),
        [Family::Ipv4]
    );
}

#[test]
fn rfc4760_8_families_are_those_of_both_and_ipv4_without_capability() {
    let mut both = settings(US, THEM);
    both.peer.families = super::families(&[Family::Ipv4, Family::Ipv6]);
    let mut open = OpenMessage {
        capabilities: vec![],
        ..their_open()
    };
    let negotiated = negotiate(&both, &open).unwrap();
    assert_eq!(negotiated.families().to_string(), "IPv4");
    assert!(!negotiated.format.four_octet_as);
    assert!(!negotiated.route_refresh);
    open.capabilities = vec![
        Capability::Multiprotocol(Family::Ipv6.into()),
        Capability::Multiprotocol(AfiSafi { afi: 25, safi: 70 }),
    ];
    assert_eq!(
        negotiate(&both, &open).unwrap().families().to_string(),
        "IPv6"
    );
    open.capabilities
        .push(Capability::Multiprotocol(Family::Ipv4.into()));
    assert_eq!(
        negotiate(&both, &open).unwrap().families().to_string(),
        "IPv4, IPv6"
    );
}

#[test]
fn rfc6793_3_four_octet_numbers_end_to_end() {
    let mut settings = settings(US, THEM);
    settings.local_as = Asn(4_200_000_001);
    settings.peer.remote_as = Asn(4_200_000_002);
    let mut theirs = settings.clone();
    theirs.local_as = Asn(4_200_000_002);
    let open = our_open(&theirs, std::time::Instant::now());
    let negotiated = negotiate(&settings, &open).unwrap();
    assert!(negotiated.format.four_octet_as);
    assert!(!negotiated.format.internal);
    assert_eq!(negotiated.remote_as, Asn(4_200_000_002));
}

// Messages where they have no place.

#[test]
fn rfc4271_6_6_the_state_is_in_the_subcode_and_in_the_sentence() {
    let down = DownReason::Unexpected {
        kind: MessageType::Update,
        state: SessionState::OpenSent,
    };
    assert_eq!(down.to_string(), "peer sent UPDATE in state OpenSent");
}

#[test]
fn rfc4271_6_4_a_broken_notification_is_not_answered() {
    let mut bench = established(their_plain_open());
    let mut octets = super::notification_bytes(&Notification::cease(CeaseSubcode::Unspecific));
    octets.truncate(20);
    octets[17] = 20;
    let error = decode_message(&octets, &bench.peer.format(ConnectionId::Out)).unwrap_err();
    let seen = bench.feed(FsmInput::Received(ConnectionId::Out, Err(error)));
    assert_eq!(
        seen,
        [
            "close out",
            "down malformed_message",
            "=Idle malformed_message"
        ]
    );
}

// Collisions: RFC 4271 §6.8. We are 10.0.0.1, the peer 10.0.0.2, so what the peer dialled survives.

/// Both connections have sent our OPEN.
fn two_connections() -> Bench {
    let mut bench = Bench::started(settings(US, THEM));
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    bench
}

#[test]
fn rfc4271_6_8_loser_first() {
    let mut bench = two_connections();
    assert_eq!(
        bench.receive(ConnectionId::Out, Message::Open(their_open())),
        ["out KEEPALIVE", "=OpenConfirm"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        ["out 6/7", "close out", "in KEEPALIVE"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Keepalive),
        ["up in", "=Established"]
    );
}

#[test]
fn rfc4271_6_8_survivor_first() {
    let mut bench = two_connections();
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        ["out 6/7", "close out", "in KEEPALIVE", "=OpenConfirm"]
    );
    // Messages that were in flight are ignored.
    assert_eq!(
        bench.receive(ConnectionId::Out, Message::Open(their_open())),
        [""; 0]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Keepalive),
        ["up in", "=Established"]
    );
}

#[test]
fn rfc4271_6_8_the_higher_identifier_closes_the_incoming_one() {
    let mut bench = Bench::started(settings(9, THEM));
    bench.feed(FsmInput::Connected(ends(ConnectionId::Out)));
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    bench.receive(ConnectionId::Out, Message::Open(their_open()));
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        [""; 0]
    );
    assert_eq!(
        bench.receive(ConnectionId::Out, Message::Keepalive),
        ["up out", "=Established"]
    );
}

#[test]
fn rfc4271_6_8_an_incoming_open_stops_our_dialling() {
    let mut bench = Bench::started(settings(US, THEM));
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        ["close out", "in KEEPALIVE", "=OpenConfirm"]
    );
}

#[test]
fn rfc4271_6_8_an_established_session_wins_and_is_probed() {
    let mut bench = established(their_plain_open());
    bench.pass(20 * SECOND);
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        ["adopt in", "in OPEN"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_plain_open())),
        ["in 6/7", "close in", "out KEEPALIVE"]
    );
    assert_eq!(bench.peer.state(), SessionState::Established);
}

#[test]
fn a_second_connection_without_open_goes_away() {
    let mut bench = established(their_open());
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    assert_eq!(bench.pass(5 * SECOND), ["in 6/7", "close in"]);
}

#[test]
fn simultaneous_open_that_was_faster_on_the_loser_ends_on_the_survivor() {
    let mut bench = two_connections();
    bench.receive(ConnectionId::Out, Message::Open(their_open()));
    assert_eq!(
        bench.receive(ConnectionId::Out, Message::Keepalive),
        ["up out", "=Established"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        [
            "out 6/7",
            "close out",
            "down gracefully collision",
            "in KEEPALIVE",
            "=OpenConfirm"
        ]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Keepalive),
        ["up in", "=Established"]
    );
}

#[test]
fn a_peer_that_dials_again_gives_up_its_earlier_attempt() {
    let mut bench = Bench::started(settings(US, THEM));
    bench.feed(FsmInput::ConnectFailed(refused()));
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        [
            "in 6/7",
            "close in",
            "adopt in",
            "in OPEN",
            "=OpenSent collision"
        ]
    );
}

// Graceful restart.

#[test]
fn rfc4724_5_a_new_connection_replaces_the_established_one() {
    let mut bench = established(their_open());
    bench.pass(20 * SECOND);
    bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        [
            "close out",
            "down gracefully replaced",
            "in KEEPALIVE",
            "=OpenConfirm"
        ]
    );
    bench.receive(ConnectionId::In, Message::Keepalive);
    // Again, now over a session that the peer had dialled itself: that one goes on until the OPEN
    // is here.
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        ["adopt pending", "pending OPEN"]
    );
    assert_eq!(bench.peer.state(), SessionState::Established);
    assert_eq!(
        bench.receive(ConnectionId::Pending, Message::Open(their_open())),
        [
            "close in",
            "down gracefully replaced",
            "promote",
            "in KEEPALIVE",
            "=OpenConfirm"
        ]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Keepalive),
        ["up in", "=Established"]
    );
}

/// A session that the peer dialled, 20 s old, and another connection from its address.
fn with_pending() -> Bench {
    let mut bench = Bench::started(settings(US, THEM));
    bench.establish(ConnectionId::In, their_open());
    bench.pass(20 * SECOND);
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        ["adopt pending", "pending OPEN"]
    );
    bench
}

/// The session on the incoming connection goes on as if nothing had been.
fn unharmed(bench: &mut Bench) {
    assert_eq!(bench.peer.state(), SessionState::Established);
    assert_eq!(bench.peer.established().unwrap().0, ConnectionId::In);
    for _ in 0..10 {
        let seen = bench.pass(20 * SECOND);
        assert!(seen.iter().all(|o| o == "in KEEPALIVE"), "{seen:?}");
        assert_eq!(bench.receive(ConnectionId::In, Message::Keepalive), [""; 0]);
    }
}

#[test]
fn rfc4724_5_a_bare_connection_ends_no_session() {
    let mut bench = with_pending();
    assert_eq!(bench.pass(5 * SECOND), ["pending 6/7", "close pending"]);
    unharmed(&mut bench);
    let mut bench = with_pending();
    assert_eq!(
        bench.feed(FsmInput::Closed(ConnectionId::Pending, None)),
        [""; 0]
    );
    unharmed(&mut bench);
    // One at a time: a later one takes the place of the earlier one.
    let mut bench = with_pending();
    for _ in 0..3 {
        assert_eq!(
            bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
            [
                "pending 6/7",
                "close pending",
                "adopt pending",
                "pending OPEN"
            ]
        );
    }
    assert_eq!(bench.pass(5 * SECOND), ["pending 6/7", "close pending"]);
    unharmed(&mut bench);
}

#[test]
fn rfc4724_5_a_connection_with_a_bad_open_ends_no_session() {
    let wrong_as = OpenMessage {
        asn: Asn(1),
        ..their_open()
    };
    let wrong_id = OpenMessage {
        router_id: RouterId([10, 0, 0, 77].into()),
        ..their_open()
    };
    for (open, answer) in [(wrong_as, "2/2"), (wrong_id, "6/7")] {
        let mut bench = with_pending();
        let mut seen = vec![format!("pending {answer}"), "close pending".to_owned()];
        if answer == "6/7" {
            // If the old session is dead in truth, it shows itself.
            seen.push("in KEEPALIVE".to_owned());
        }
        assert_eq!(
            bench.receive(ConnectionId::Pending, Message::Open(open.clone())),
            seen
        );
        unharmed(&mut bench);
        // The same where we dialled the session.
        let mut bench = established(their_open());
        bench.pass(20 * SECOND);
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In)));
        let seen = bench.receive(ConnectionId::In, Message::Open(open));
        assert_eq!(seen[..2], [format!("in {answer}"), "close in".to_owned()]);
        assert_eq!(bench.peer.established().unwrap().0, ConnectionId::Out);
    }
    let mut bench = with_pending();
    let error = DecodeError::from(HeaderError::Marker);
    assert_eq!(
        bench.feed(FsmInput::Received(ConnectionId::Pending, Err(error))),
        ["pending 1/1", "close pending"]
    );
    unharmed(&mut bench);
    let mut bench = with_pending();
    assert_eq!(
        bench.receive(ConnectionId::Pending, Message::Keepalive),
        ["pending 5/1", "close pending"]
    );
    unharmed(&mut bench);
}

#[test]
fn a_pending_connection_takes_the_place_of_a_session_that_ends() {
    let mut bench = with_pending();
    assert_eq!(
        bench.feed(FsmInput::Closed(ConnectionId::In, None)),
        ["down gracefully closed_by_peer", "promote", "=OpenSent"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Open(their_open())),
        ["in KEEPALIVE", "=OpenConfirm"]
    );
    assert_eq!(
        bench.receive(ConnectionId::In, Message::Keepalive),
        ["up in", "=Established"]
    );
    // But not when we end it for good.
    let text = String::new();
    let cease = SessionStop::Cease(CeaseSubcode::AdministrativeShutdown, text);
    let mut bench = with_pending();
    assert_eq!(
        bench.feed(FsmInput::Stop(cease)),
        [
            "pending 6/2",
            "close pending",
            "in 6/9",
            "close in",
            "down stopped",
            "=Idle stopped"
        ]
    );
    let mut bench = with_pending();
    let seen = bench.feed(FsmInput::PrefixLimit(LimitPassed {
        counted: Counted::Received,
        family: Family::Ipv4,
        max: 1,
        restart: None,
    }));
    assert!(seen.contains(&"close pending".to_owned()), "{seen:?}");
    assert!(!seen.contains(&"promote".to_owned()), "{seen:?}");
    assert_eq!(bench.peer.state(), SessionState::Idle);
}

#[test]
fn an_export_limit_is_no_fault_of_the_peer() {
    for (counted, restart, cease) in [
        (Counted::Received, None, "out 6/1"),
        (Counted::Accepted, None, "out 6/1"),
        (Counted::Sent, None, "out 6/2"),
        (Counted::Sent, Some(Duration::from_secs(60)), "out 6/4"),
    ] {
        let mut bench = Bench::started(settings(US, THEM));
        bench.establish(ConnectionId::Out, their_plain_open());
        let seen = bench.feed(FsmInput::PrefixLimit(LimitPassed {
            counted,
            family: Family::Ipv4,
            max: 1,
            restart,
        }));
        assert_eq!(seen.first().map(String::as_str), Some(cease), "{seen:?}");
    }
}

#[test]
fn without_graceful_restart_a_second_incoming_connection_is_refused() {
    let mut bench = Bench::started(settings(US, THEM));
    bench.establish(ConnectionId::In, their_plain_open());
    assert_eq!(
        bench.feed(FsmInput::Incoming(ends(ConnectionId::In))),
        ["refuse 6/7", "in KEEPALIVE"]
    );
}

#[test]
fn rfc4724_4_2_routes_stay_when_the_connection_breaks_without_notification() {
    let reset = Some("Connection reset by peer".to_owned());
    for text in [None, reset] {
        let mut bench = established(their_open());
        let seen = bench.feed(FsmInput::Closed(ConnectionId::Out, text.clone()));
        assert_eq!(seen[0], "down gracefully closed_by_peer");
        let mut bench = established(their_plain_open());
        let seen = bench.feed(FsmInput::Closed(ConnectionId::Out, text));
        assert_eq!(seen[0], "down closed_by_peer");
    }
}

/// The peer's OPEN with its own graceful restart capability, perhaps without the N-bit.
fn with_restart(notification: bool, families: &[Family]) -> OpenMessage {
    let mut open = their_plain_open();
    open.capabilities
        .push(Capability::GracefulRestart(GracefulRestartCapability {
            restarting: false,
            notification,
            restart_time: 120,
            families: families
                .iter()
                .map(|family| ((*family).into(), false))
                .collect(),
        }));
    open
}

#[test]
fn rfc8538_2_notifications_are_graceful_only_with_the_n_bit_and_never_after_a_hard_reset() {
    let down = |open: OpenMessage, notification: Notification| {
        let mut bench = established(open);
        bench
            .receive(ConnectionId::Out, Message::Notification(notification))
            .remove(1)
    };
    let cease = Notification::cease(CeaseSubcode::OutOfResources);
    let ipv4 = [Family::Ipv4];
    assert_eq!(
        down(with_restart(true, &ipv4), cease.clone()),
        "down gracefully notification_received"
    );
    assert_eq!(
        down(with_restart(false, &ipv4), cease.clone()),
        "down notification_received"
    );
    assert_eq!(
        down(with_restart(true, &ipv4), cease.hard_reset()),
        "down notification_received"
    );
    // A peer that keeps no family keeps nothing.
    assert_eq!(
        down(with_restart(true, &[]), cease),
        "down notification_received"
    );
}

#[test]
fn rfc4724_4_1_the_restarting_speaker_says_so_for_a_while() {
    let bits = |bench: &Bench| {
        let open = our_open(&bench.peer.settings, bench.now);
        open.capabilities
            .into_iter()
            .find_map(|capability| match capability {
                Capability::GracefulRestart(restart) => Some((
                    restart.restarting,
                    restart.families[0].1,
                    restart.restart_time,
                )),
                _ => None,
            })
    };
    let mut bench = Bench::new(settings(US, THEM));
    assert_eq!(bits(&bench), Some((false, false, 120)));
    bench.peer.settings.restarting_until = Some(bench.now + 60 * SECOND);
    assert_eq!(bits(&bench), Some((true, true, 120)));
    bench.now += 60 * SECOND;
    assert_eq!(bits(&bench), Some((false, false, 120)));
    bench.peer.settings.had_session = true;
    assert_eq!(
        bits(&bench),
        Some((false, true, 120)),
        "the session alone was away"
    );
    bench.peer.settings.had_session = false;
    bench.peer.settings.peer.graceful_restart = Some(GracefulRestart {
        restart_time: Duration::from_secs(9999),
    });
    assert_eq!(bits(&bench), Some((false, false, 4095)));
    bench.peer.settings.peer.graceful_restart = None;
    assert_eq!(bits(&bench), None);
}

#[test]
fn a_restart_without_the_capability_is_an_administrative_reset() {
    let mut bench = established(their_plain_open());
    assert_eq!(
        bench.feed(FsmInput::Stop(SessionStop::Restart)),
        [
            "out 6/4",
            "close out",
            "down restarting",
            "=Idle restarting"
        ]
    );
}

#[test]
fn rfc9003_the_text_reaches_the_other_end() {
    let mut bench = established(their_plain_open());
    let stop = SessionStop::Cease(
        CeaseSubcode::AdministrativeShutdown,
        "new kernel".to_owned(),
    );
    bench.peer.handle(bench.now, FsmInput::Stop(stop));
    let Some(FsmOutput::Send(_, octets)) = bench.peer.poll() else {
        panic!("no NOTIFICATION")
    };
    let Ok(Message::Notification(notification)) =
        decode_message(&octets, &bench.peer.format(ConnectionId::Out))
    else {
        panic!("no NOTIFICATION")
    };
    let reason = DownReason::Notified(notification).to_string();
    assert_eq!(
        reason,
        "peer sent NOTIFICATION Cease / Administrative Shutdown: \"new kernel\""
    );
}

#[test]
fn a_stopped_peer_starts_again() {
    let mut bench = established(their_open());
    bench.feed(FsmInput::Stop(SessionStop::Cease(
        CeaseSubcode::AdministrativeShutdown,
        String::new(),
    )));
    assert_eq!(bench.peer.next_timeout(), None);
    assert_eq!(bench.feed(FsmInput::Start), ["connect", "=Connect"]);
}

#[test]
fn sentences_name_what_was_seen() {
    assert_eq!(
        DownReason::ConnectFailed(refused()).to_string(),
        "TCP 179 refused by 10.0.0.2"
    );
    assert_eq!(
        DownReason::HoldTimerExpired(90 * SECOND).to_string(),
        "hold timer expired: nothing received for 90 s"
    );
    assert_eq!(
        DownReason::Collision(ConnectionId::Out).to_string(),
        "collision: the outgoing connection lost to the other connection"
    );
}

#[test]
fn machines_with_different_seeds_do_not_retry_together() {
    let wait = |seed| {
        let now = std::time::Instant::now();
        let mut peer = PeerFsm::new(settings(US, THEM), seed);
        peer.handle(now, FsmInput::Start);
        peer.handle(now, FsmInput::ConnectFailed(refused()));
        peer.next_timeout().unwrap() - now
    };
    assert_ne!(wait(1), wait(2));
}

#[test]
fn options_are_used_only_when_both_sides_announce_them() {
    use crate::config::{AddPath, PathCount};
    let option = |which: usize| {
        let mut one = settings(US, THEM);
        match which {
            0 => one.peer.extended_next_hop = true,
            1 => one.peer.add_path.receive = true,
            2 => one.peer.add_path.send = Some(PathCount::All),
            3 => {
                one.peer.add_path = AddPath {
                    receive: true,
                    send: Some(PathCount::Best(2)),
                }
            }
            4 => one.peer.long_lived = Some(Duration::from_secs(1 << 30)),
            _ => {}
        }
        one
    };
    let used = |ours: usize, theirs: usize| {
        let open = our_open(&option(theirs), Instant::now());
        let open = OpenMessage {
            router_id: RouterId([10, 0, 0, THEM].into()),
            ..open
        };
        let negotiated = negotiate(&option(ours), &open).unwrap();
        let format = negotiated.format;
        let ids = |set: crate::wire::format::FamilySet| set.contains(Family::Ipv4);
        (
            format.extended_next_hop,
            ids(format.path_ids_in),
            ids(format.path_ids_out),
            negotiated.long_lived.is_some_and(|list| list.len() == 1),
        )
    };
    let none = (false, false, false, false);
    // RFC 8950 §4, RFC 7911 §4, RFC 9494 §4.1.
    assert_eq!(used(0, 0), (true, false, false, false));
    assert_eq!(used(1, 2), (false, true, false, false));
    assert_eq!(used(2, 1), (false, false, true, false));
    assert_eq!(used(3, 3), (false, true, true, false));
    assert_eq!(used(4, 4), (false, false, false, true));
    for which in 0..5 {
        assert_eq!(used(which, 5), none, "{which}");
        assert_eq!(used(5, which), none, "{which}");
    }
    assert_eq!(
        (used(1, 1), used(2, 2)),
        (none, none),
        "two listeners, two speakers"
    );
}
