//! Two sessions against each other on virtual time, and packets octet by octet.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const FAST: BfdTimers = BfdTimers {
    interval: Duration::from_millis(300),
    multiplier: 3,
};

/// Two ends with a wire between them that can be cut in each direction.
struct Pair {
    now: Instant,
    ends: [BfdSession; 2],
    /// Packets from this end arrive.
    open: [bool; 2],
    events: Vec<(usize, BfdEvent)>,
    sent: [usize; 2],
}

impl Pair {
    fn new(timers: [BfdTimers; 2]) -> Self {
        let now = Instant::now();
        let end =
            |n: u32| BfdSession::new(now, n + 1, timers[usize::try_from(n).unwrap()], n.into());
        Self {
            now,
            ends: [end(0), end(1)],
            open: [true; 2],
            events: Vec::new(),
            sent: [0; 2],
        }
    }

    fn up(timers: [BfdTimers; 2]) -> Self {
        let mut pair = Self::new(timers);
        pair.pass(Duration::from_secs(5));
        assert_eq!(pair.events, [(0, BfdEvent::Up), (1, BfdEvent::Up)]);
        pair.events.clear();
        pair
    }

    /// Lets time pass; the wire takes none.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            for end in 0..2 {
                let event = self.ends[end].handle_timeout(self.now);
                self.events.extend(event.map(|event| (end, event)));
                while let Some(packet) = self.ends[end].poll(self.now) {
                    self.sent[end] += 1;
                    let packet = BfdPacket::decode(&packet.encode()).unwrap();
                    if self.open[end] {
                        let event = self.ends[1 - end].receive(self.now, &packet);
                        self.events.extend(event.map(|event| (1 - end, event)));
                    }
                }
            }
            let due = self.ends.iter().filter_map(BfdSession::next_timeout).min();
            match due {
                Some(due) if due <= until => self.now = self.now.max(due),
                _ => break,
            }
        }
        self.now = until;
    }
}

fn down(diagnostic: BfdDiagnostic) -> BfdEvent {
    BfdEvent::Down {
        diagnostic,
        control_plane_independent: false,
    }
}

#[test]
fn rfc5880_6_8_4_a_cut_is_noticed_within_three_intervals() {
    let mut pair = Pair::up([FAST; 2]);
    assert_eq!(
        pair.ends[0].detection_time(),
        Some(Duration::from_millis(900))
    );
    pair.open = [false; 2];
    let cut = pair.now;
    while pair.events.is_empty() {
        pair.pass(Duration::from_millis(1));
    }
    let took = pair.now - cut;
    assert!(took <= Duration::from_millis(901), "{took:?}");
    assert!(
        took >= Duration::from_millis(600),
        "{took:?}: not for one lost packet"
    );
    pair.pass(Duration::from_secs(1));
    let expired = down(BfdDiagnostic::TimeExpired);
    let mut ends: Vec<_> = pair.events.clone();
    ends.sort_by_key(|(end, _)| *end);
    assert_eq!(ends, [(0, expired), (1, expired)]);
    // And up again.
    pair.events.clear();
    pair.open = [true; 2];
    pair.pass(Duration::from_secs(5));
    assert_eq!(pair.events.len(), 2);
    assert!(pair.ends.iter().all(|end| end.state() == BfdState::Up));
}

#[test]
fn rfc5880_6_2_a_cut_in_one_direction_takes_both_ends_down() {
    let mut pair = Pair::up([FAST; 2]);
    pair.open[0] = false;
    pair.pass(Duration::from_millis(1300));
    assert_eq!(
        pair.events,
        [
            (1, down(BfdDiagnostic::TimeExpired)),
            (0, down(BfdDiagnostic::NeighborDown))
        ]
    );
}

#[test]
fn rfc5880_6_8_3_slow_until_up_then_the_agreed_rhythm() {
    let mut pair = Pair::new([FAST; 2]);
    pair.open = [false; 2];
    pair.pass(Duration::from_secs(60));
    // Once a second, less the jitter: at most 80.
    assert!((59..=81).contains(&pair.sent[0]), "{:?}", pair.sent);
    let slow = BfdTimers {
        interval: Duration::from_secs(2),
        multiplier: 5,
    };
    let mut pair = Pair::up([FAST, slow]);
    pair.sent = [0; 2];
    pair.pass(Duration::from_secs(60));
    assert!(
        (29..=41).contains(&pair.sent[0]),
        "the slower one decides: {:?}",
        pair.sent
    );
    assert_eq!(pair.ends[0].detection_time(), Some(Duration::from_secs(10)));
    assert_eq!(pair.ends[1].detection_time(), Some(Duration::from_secs(6)));
    assert!(pair.events.is_empty());
}

#[test]
fn rfc5880_6_8_3_other_timers_take_effect_without_a_flap() {
    let mut pair = Pair::up([FAST; 2]);
    for millis in [3000, 50, 1000] {
        let timers = BfdTimers {
            interval: Duration::from_millis(millis),
            ..FAST
        };
        pair.ends[0].set_timers(timers);
        pair.pass(Duration::from_secs(20));
        assert!(pair.events.is_empty(), "{millis}: {:?}", pair.events);
        let slower = Duration::from_millis(millis.max(300));
        assert_eq!(pair.ends[1].detection_time(), Some(slower * 3));
        assert_eq!(pair.ends[0].detection_time(), Some(slower * 3));
    }
}

#[test]
fn rfc5880_6_8_6_an_administrative_end_is_no_failure() {
    let mut pair = Pair::up([FAST; 2]);
    let farewell = pair.ends[1].farewell();
    assert_eq!(
        pair.ends[0].receive(pair.now, &farewell),
        Some(BfdEvent::RemoteAdminDown)
    );
    assert_eq!(pair.ends[0].state(), BfdState::Down);
}

#[test]
fn rfc5880_6_5_a_poll_is_confirmed_at_once() {
    let mut pair = Pair::up([FAST; 2]);
    let mut ask = pair.ends[1].farewell();
    ask.state = BfdState::Up;
    ask.poll = true;
    pair.ends[0].receive(pair.now, &ask);
    let answer = pair.ends[0].poll(pair.now).unwrap();
    assert!(answer.confirms && !answer.poll);
}

#[test]
fn rfc5880_6_8_7_who_wants_no_packets_gets_none() {
    let mut pair = Pair::up([FAST; 2]);
    let mut quiet = pair.ends[1].farewell();
    quiet.state = BfdState::Up;
    quiet.required_min_rx = 0;
    pair.ends[0].receive(pair.now, &quiet);
    pair.ends[0].poll(pair.now);
    assert_eq!(pair.ends[0].poll(pair.now + Duration::from_secs(9)), None);
}

#[test]
fn rfc5882_4_3_the_c_bit_of_the_other_end_is_in_the_event() {
    let mut pair = Pair::up([FAST; 2]);
    let mut packet = pair.ends[1].farewell();
    packet.state = BfdState::Up;
    packet.control_plane_independent = true;
    pair.ends[0].receive(pair.now, &packet);
    let event = pair.ends[0].handle_timeout(pair.now + Duration::from_secs(9));
    assert_eq!(
        event,
        Some(BfdEvent::Down {
            diagnostic: BfdDiagnostic::TimeExpired,
            control_plane_independent: true
        })
    );
}

#[test]
fn rfc5880_6_8_6_what_is_discarded() {
    let good = BfdSession::new(Instant::now(), 7, FAST, 1).packet_for_tests();
    assert!(BfdPacket::decode(&good).is_ok());
    let changed = |at: usize, value: u8| {
        let mut octets = good;
        octets[at] = value;
        BfdPacket::decode(&octets).unwrap_err()
    };
    assert_eq!(changed(0, 2 << 5), BfdPacketError::Version(2));
    assert_eq!(changed(1, 0x44), BfdPacketError::Authentication);
    assert_eq!(changed(1, 0x41), BfdPacketError::Multipoint);
    assert_eq!(
        changed(1, 0xc0),
        BfdPacketError::YourDiscriminator(BfdState::Up)
    );
    assert_eq!(changed(2, 0), BfdPacketError::Multiplier);
    assert_eq!(changed(3, 23), BfdPacketError::Length(23));
    assert_eq!(changed(3, 25), BfdPacketError::Length(24));
    assert_eq!(changed(7, 0), BfdPacketError::MyDiscriminator);
    assert_eq!(
        BfdPacket::decode(&good[..23]),
        Err(BfdPacketError::Length(23))
    );
}

impl BfdSession {
    fn packet_for_tests(mut self) -> [u8; 24] {
        let now = Instant::now();
        self.poll(now).unwrap().encode()
    }
}

proptest! {
    #[test]
    fn any_octets_are_a_packet_or_none(octets in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(packet) = BfdPacket::decode(&octets) {
            prop_assert_eq!(BfdPacket::decode(&packet.encode()), Ok(packet));
        }
    }

    /// Loss, as long as it is not three packets in a row, never takes a session down.
    #[test]
    fn two_lost_packets_in_a_row_do_no_harm(cuts in proptest::collection::vec(0u64..450, 1..40)) {
        let mut pair = Pair::up([FAST; 2]);
        for cut in cuts {
            pair.open = [false; 2];
            pair.pass(Duration::from_millis(cut));
            pair.open = [true; 2];
            pair.pass(Duration::from_millis(301));
        }
        prop_assert!(pair.events.is_empty(), "{:?}", pair.events);
    }
}
