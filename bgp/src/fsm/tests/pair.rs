//! Two machines against each other on virtual time, over a network that delays each event as chance
//! wants: whatever the order of connections and messages, the session comes up, stays up, and both
//! agree on the connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{ConnectionEnds, ConnectionId, FsmInput, FsmOutput, PeerFsm};
use super::{address, refused, settings};
use crate::types::SessionState;
use crate::wire::decode_message;
use crate::wire::frame_len;

/// One TCP connection: who dialled it, and what is on its way to each end.
struct Link {
    dialler: usize,
    /// Still open, by end.
    open: [bool; 2],
    /// On the way to each end; `None` is the end of the stream.
    wire: [VecDeque<Option<Bytes>>; 2],
    /// The acceptor knows of it.
    accepted: bool,
    /// The acceptor has it beside an established session.
    pending: bool,
    /// The dialler knows that it is up.
    connected: bool,
}

/// Something that can happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connected(usize),
    Accept(usize),
    Deliver(usize, usize),
}

struct Pair {
    peers: [PeerFsm; 2],
    now: Instant,
    links: Vec<Link>,
    ups: [u32; 2],
    downs: [u32; 2],
}

fn conn(link: &Link, node: usize) -> ConnectionId {
    if link.dialler == node {
        ConnectionId::Out
    } else if link.pending {
        ConnectionId::Pending
    } else {
        ConnectionId::In
    }
}

fn ends() -> ConnectionEnds {
    ConnectionEnds {
        local: (address(1), 179).into(),
        remote: (address(2), 179).into(),
    }
}

impl Pair {
    fn new(seeds: [u64; 2]) -> Self {
        let peers = [
            PeerFsm::new(settings(1, 2), seeds[0]),
            PeerFsm::new(settings(2, 1), seeds[1]),
        ];
        Self {
            peers,
            now: Instant::now(),
            links: Vec::new(),
            ups: [0; 2],
            downs: [0; 2],
        }
    }

    fn feed(&mut self, node: usize, input: FsmInput) {
        self.peers[node].handle(self.now, input);
        self.drain(node, None);
    }

    /// The connection that `node` calls `which`: of those it still has open, the latest.
    fn find(&mut self, node: usize, which: ConnectionId) -> Option<usize> {
        self.links.iter().rposition(|link| {
            link.open[node]
                && conn(link, node) == which
                && (which == ConnectionId::Out || link.accepted)
        })
    }

    /// Carries out what the machine wants; `incoming` is the link that it is asked to adopt.
    fn drain(&mut self, node: usize, incoming: Option<usize>) {
        while let Some(output) = self.peers[node].poll() {
            match output {
                FsmOutput::Connect => self.links.push(Link {
                    dialler: node,
                    open: [node == 0, node == 1],
                    wire: Default::default(),
                    accepted: false,
                    pending: false,
                    connected: false,
                }),
                FsmOutput::Adopt(which) => {
                    let link = &mut self.links[incoming.unwrap()];
                    link.accepted = true;
                    link.pending = which == ConnectionId::Pending;
                }
                FsmOutput::Promote => {
                    let link = self
                        .find(node, ConnectionId::Pending)
                        .expect("promotes what it has");
                    self.links[link].pending = false;
                }
                FsmOutput::Refuse(octets) => {
                    let link = &mut self.links[incoming.unwrap()];
                    link.wire[1 - node].extend([Some(octets), None]);
                    link.open[node] = false;
                }
                FsmOutput::Send(which, octets) => {
                    let link = self.find(node, which).expect("sends on what it has");
                    self.links[link].wire[1 - node].push_back(Some(octets));
                }
                FsmOutput::Close(which) => {
                    if let Some(link) = self.find(node, which) {
                        let link = &mut self.links[link];
                        link.open[node] = false;
                        link.wire[1 - node].push_back(None);
                    }
                }
                FsmOutput::Up(..) => self.ups[node] += 1,
                FsmOutput::Down { .. } => self.downs[node] += 1,
                FsmOutput::State(..)
                | FsmOutput::Update(_)
                | FsmOutput::RouteRefresh(_)
                | FsmOutput::RefreshBegin(_)
                | FsmOutput::RefreshEnd(_)
                | FsmOutput::Fault(_) => {}
            }
        }
    }

    /// Everything that the network could do now.
    fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, link) in self.links.iter().enumerate() {
            let acceptor = 1 - link.dialler;
            if !link.connected && link.open[link.dialler] {
                steps.push(Step::Connected(at));
            }
            // The acceptor's kernel completes the handshake before or after the dialler is
            // notified.
            if !link.accepted && !link.open[acceptor] && link.wire[link.dialler].is_empty() {
                steps.push(Step::Accept(at));
            }
            for node in [0, 1] {
                if link.open[node]
                    && !link.wire[node].is_empty()
                    && (node == acceptor || link.connected)
                {
                    steps.push(Step::Deliver(at, node));
                }
            }
        }
        steps
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Connected(at) => {
                self.links[at].connected = true;
                let node = self.links[at].dialler;
                self.feed(node, FsmInput::Connected(ends()));
            }
            Step::Accept(at) => {
                let node = 1 - self.links[at].dialler;
                self.links[at].open[node] = true;
                self.peers[node].handle(self.now, FsmInput::Incoming(ends()));
                self.drain(node, Some(at));
                // Adopted or refused: it is out of the kernel's queue.
                self.links[at].accepted = true;
            }
            Step::Deliver(at, node) => {
                let which = conn(&self.links[at], node);
                match self.links[at].wire[node].pop_front().unwrap() {
                    None => {
                        self.links[at].open[node] = false;
                        self.feed(node, FsmInput::Closed(which, None));
                    }
                    Some(octets) => {
                        assert_eq!(frame_len(&octets, 4096), Ok(Some(octets.len())));
                        let format = self.peers[node].format(which);
                        let message = decode_message(&octets, &format);
                        self.feed(node, FsmInput::Received(which, message));
                    }
                }
            }
        }
    }

    /// Lets the network work, each step chosen by `choices`, until nothing is on its way.
    fn settle(&mut self, choices: &mut impl Iterator<Item = usize>) {
        for _ in 0..10_000 {
            let steps = self.possible();
            let Some(choice) = choices.next().filter(|_| !steps.is_empty()) else {
                return;
            };
            self.step(steps[choice % steps.len()]);
        }
        panic!("the two never come to rest");
    }

    fn state(&self) -> [SessionState; 2] {
        [self.peers[0].state(), self.peers[1].state()]
    }

    /// Lets time pass to the next deadline of either.
    fn tick(&mut self) {
        let due = self
            .peers
            .iter()
            .filter_map(PeerFsm::next_timeout)
            .min()
            .expect("a deadline");
        self.now = self.now.max(due);
        for node in [0, 1] {
            self.peers[node].handle_timeout(self.now);
            self.drain(node, None);
        }
    }

    /// Until both are established; the time it took.
    fn converge(&mut self, choices: &mut impl Iterator<Item = usize>) -> Duration {
        let start = self.now;
        for _ in 0..100 {
            self.settle(choices);
            if self.state() == [SessionState::Established; 2] {
                return self.now - start;
            }
            self.tick();
        }
        panic!(
            "no session after {:?}: {:?}",
            self.now - start,
            self.state()
        );
    }

    /// Both ends speak on the same connection.
    fn agree(&self) -> bool {
        let [Some((a, _)), Some((b, _))] = [0, 1].map(|node| self.peers[node].established()) else {
            return false;
        };
        a == b.other()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_the_order_the_session_comes_up_and_stays(
        choices in vec(any::<usize>(), 1..60),
        seeds: [u64; 2],
        first in 0usize..3,
    ) {
        let mut pair = Pair::new(seeds);
        match first {
            2 => {
                // At the same moment.
                pair.peers[0].handle(pair.now, FsmInput::Start);
                pair.peers[1].handle(pair.now, FsmInput::Start);
                pair.drain(0, None);
                pair.drain(1, None);
            }
            node => {
                pair.feed(node, FsmInput::Start);
                pair.feed(1 - node, FsmInput::Start);
            }
        }
        let mut choices = choices.into_iter().cycle();
        let took = pair.converge(&mut choices);
        prop_assert!(took.is_zero(), "took {took:?}");
        prop_assert!(pair.agree());
        // A flap at most, and then it holds.
        prop_assert!(pair.downs.iter().all(|downs| *downs <= 2), "{:?}", pair.downs);
        let (ups, until) = (pair.ups, pair.now + Duration::from_secs(600));
        while pair.now < until {
            pair.tick();
            pair.settle(&mut choices);
        }
        prop_assert_eq!(pair.ups, ups);
        prop_assert_eq!(pair.state(), [SessionState::Established; 2]);
        prop_assert_eq!(pair.links.iter().filter(|link| link.open == [true, true]).count(), 1);
    }

    /// One end starts late: refused at first.
    #[test]
    fn a_peer_that_comes_later_is_found(
        choices in vec(any::<usize>(), 1..30),
        seeds: [u64; 2],
        refusals in 0usize..12,
    ) {
        let mut pair = Pair::new(seeds);
        pair.feed(0, FsmInput::Start);
        for _ in 0..refusals {
            if pair.peers[0].state() == SessionState::Connect {
                pair.links.pop();
                pair.feed(0, FsmInput::ConnectFailed(refused()));
            }
            pair.tick();
        }
        pair.feed(1, FsmInput::Start);
        let took = pair.converge(&mut choices.into_iter().cycle());
        prop_assert!(took < Duration::from_secs(5), "took {took:?}");
        prop_assert!(pair.agree());
    }

    /// One process is killed and starts again with empty hands; the other end may not have noticed.
    #[test]
    fn a_peer_that_restarts_is_found_again(
        choices in vec(any::<usize>(), 1..30),
        seeds: [u64; 2],
        noticed: bool,
    ) {
        let mut choices = choices.into_iter().cycle();
        let mut pair = Pair::new(seeds);
        pair.feed(0, FsmInput::Start);
        pair.feed(1, FsmInput::Start);
        pair.converge(&mut choices);
        pair.now += Duration::from_secs(20);
        pair.peers[1] = PeerFsm::new(settings(2, 1), seeds[1]);
        for at in 0..pair.links.len() {
            let link = &mut pair.links[at];
            if !link.open[1] {
                continue;
            }
            link.open[1] = false;
            link.wire = Default::default();
            if noticed {
                link.wire[0].push_back(None);
            }
        }
        pair.feed(1, FsmInput::Start);
        let took = pair.converge(&mut choices);
        prop_assert!(took < Duration::from_secs(5), "took {took:?}");
        prop_assert!(pair.agree());
        prop_assert!(pair.downs[0] >= 1);
    }
}
