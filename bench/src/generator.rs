//! The load generator: many sessions in one thread, non-blocking, with a record of what each
//! receiver holds.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use socket2::{Domain, Socket, Type};

use caracal_hot_paths::routes::Universe;
use caracal_hot_paths::wire::{self, Attrs, HEADER, Net};

/// Sessions that are being established at the same time: less than any speaker's backlog.
const DIALLING: usize = 32;
/// Limit for all sessions together to come up, on a machine that has other work.
const DIAL_LIMIT: Duration = Duration::from_secs(300);
/// One UPDATE in this many is compared with what was announced.
const CHECK: u64 = 8;

/// One end of a session, to be played by the generator.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Its address and BGP Identifier.
    pub address: Ipv4Addr,
    pub asn: u32,
    /// It must end up with all routes that the scenario wants it to have.
    pub receives: bool,
    /// Capabilities in its OPEN beyond those that all have, as octets.
    pub capabilities: &'static [u8],
}

/// Routes that the receivers must hold, with their attributes.
pub trait Expectation {
    /// A mark for the origin of a route, not 0, as far as the attribute list tells.
    fn tag(&self, list: &[u8]) -> u8;
    /// The receiver announced the prefix itself: whether a reflector sends it back is up to the
    /// reflector.
    fn own(&self, receiver: usize, index: u32) -> bool;
    /// The mark that a receiver must see for a prefix; 0 = it must not have it.
    fn wanted(&self, receiver: usize, index: u32) -> u8;
    /// The attributes that a receiver must see for a prefix that it holds.
    fn attrs(&self, index: u32) -> Attrs;
}

#[derive(Debug, Default)]
struct Session {
    stream: Option<TcpStream>,
    up: bool,
    rx: Vec<u8>,
    tx: VecDeque<Vec<u8>>,
    /// Octets of the first of `tx` that are gone.
    sent: usize,
    held: Vec<u8>,
    correct: usize,
    updates: u64,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// UPDATEs that receivers got.
    pub updates: u64,
    /// Octets that receivers got.
    pub octets: u64,
    /// UPDATEs compared with what was announced.
    pub checked: u64,
    /// Number of compared UPDATEs that differed.
    pub bad: u64,
}

/// All sessions of a scenario.
pub struct Generator {
    poll: Poll,
    events: Events,
    roles: Vec<Role>,
    sessions: Vec<Session>,
    universe: Universe,
    /// Receivers that hold exactly what they must.
    complete: usize,
    waited_for: usize,
    hold: u16,
    keepalive: Instant,
    buffer: Vec<u8>,
    /// Counters since the start.
    pub counters: Counters,
    first_bad: Option<String>,
}

impl Generator {
    /// Establishes one session per role with the speaker at `dut`.
    pub fn connect(
        dut: Ipv4Addr,
        roles: Vec<Role>,
        universe: Universe,
        hold: u16,
        expect: &dyn Expectation,
        mut alive: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let session = |role: &Role| Session {
            held: vec![
                0;
                if role.receives {
                    universe.nets.len()
                } else {
                    0
                }
            ],
            ..Session::default()
        };
        let mut generator = Self {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            sessions: roles.iter().map(session).collect(),
            roles,
            universe,
            complete: 0,
            waited_for: 0,
            hold,
            keepalive: Instant::now(),
            buffer: vec![0; 1 << 20],
            counters: Counters::default(),
            first_bad: None,
        };
        generator.establish(dut, expect, &mut alive, Instant::now() + DIAL_LIMIT)?;
        Ok(generator)
    }

    /// Dials until all sessions are up.
    fn establish(
        &mut self,
        dut: Ipv4Addr,
        expect: &dyn Expectation,
        alive: &mut dyn FnMut() -> Result<()>,
        limit: Instant,
    ) -> Result<()> {
        let mut refused: Option<String> = None;
        loop {
            alive()?;
            let down: Vec<usize> = (0..self.sessions.len())
                .filter(|i| !self.sessions[*i].up)
                .collect();
            if down.is_empty() {
                return Ok(());
            }
            let dialling = down
                .iter()
                .filter(|i| self.sessions[**i].stream.is_some())
                .count();
            let free: Vec<usize> = down
                .into_iter()
                .filter(|i| self.sessions[*i].stream.is_none())
                .take(DIALLING.saturating_sub(dialling))
                .collect();
            for index in free {
                if let Err(error) = self.dial(dut, index) {
                    refused = Some(format!("{error:#}"));
                }
            }
            if Instant::now() > limit {
                let up = self.sessions.iter().filter(|s| s.up).count();
                bail!(
                    "{up} of {} sessions came up; the last refusal: {refused:?}",
                    self.sessions.len()
                );
            }
            self.pump(Duration::from_millis(20), expect, true)?;
        }
    }

    /// Serves the sessions until all have been up for `time`. FRR ends some of a thousand that come
    /// at once; they are dialled again, as a real client would.
    pub fn warm_up(
        &mut self,
        dut: Ipv4Addr,
        time: Duration,
        expect: &dyn Expectation,
        mut alive: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let limit = Instant::now() + DIAL_LIMIT;
        'all_up: loop {
            self.establish(dut, expect, &mut alive, limit)?;
            let until = Instant::now() + time;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                self.pump(left.min(Duration::from_millis(500)), expect, true)?;
                if self.sessions.iter().any(|session| !session.up) {
                    continue 'all_up;
                }
            }
            return Ok(());
        }
    }

    fn dial(&mut self, dut: Ipv4Addr, index: usize) -> Result<()> {
        let role = self.roles[index];
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((role.address, 0)).into())?;
        socket.set_tcp_nodelay(true)?;
        socket.set_recv_buffer_size(1 << 20)?;
        // Loopback or one veth away: this does not wait for long.
        socket.connect_timeout(
            &SocketAddr::V4(SocketAddrV4::new(dut, 179)).into(),
            Duration::from_secs(1),
        )?;
        socket.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(socket.into());
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(index), interest)?;
        let mut open = Vec::new();
        wire::open(
            role.asn,
            self.hold,
            role.address,
            role.capabilities,
            &mut open,
        );
        let session = &mut self.sessions[index];
        session.stream = Some(stream);
        session.rx.clear();
        session.tx.clear();
        session.sent = 0;
        self.send(index, open);
        Ok(())
    }

    /// Queues octets for the peer and writes what the kernel takes.
    pub fn send(&mut self, index: usize, octets: Vec<u8>) {
        if !octets.is_empty() {
            self.sessions[index].tx.push_back(octets);
            self.sessions[index].flush();
        }
    }

    /// Ends a session without a word.
    pub fn cut(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        session.stream = None;
        session.up = false;
        if self.roles[index].receives && session.correct == self.universe.nets.len() {
            self.complete -= 1;
        }
        session.correct = usize::MAX;
    }

    /// A receiver is to get everything again.
    pub fn forget(&mut self, index: usize) {
        self.sessions[index].held.fill(0);
    }

    /// Says what is to be held from now on.
    pub fn expect(&mut self, expect: &dyn Expectation) {
        self.complete = 0;
        self.waited_for = 0;
        for (receiver, session) in self.sessions.iter_mut().enumerate() {
            if !self.roles[receiver].receives || session.stream.is_none() {
                continue;
            }
            self.waited_for += 1;
            let right =
                |(index, held): (usize, &u8)| expect.wanted(receiver, index as u32) == *held;
            session.correct = session
                .held
                .iter()
                .enumerate()
                .filter(|i| right(*i))
                .count();
            self.complete += usize::from(session.correct == self.universe.nets.len());
        }
    }

    /// Runs until every receiver holds exactly what it must.
    pub fn converge(&mut self, expect: &dyn Expectation, limit: Duration) -> Result<()> {
        let limit = Instant::now() + limit;
        while self.complete < self.waited_for {
            if Instant::now() > limit {
                bail!(
                    "{} of {} receivers have all routes; {}",
                    self.complete,
                    self.waited_for,
                    self.worst()
                );
            }
            self.pump(Duration::from_millis(100), expect, false)?;
        }
        Ok(())
    }

    fn worst(&self) -> String {
        let receivers = self.sessions.iter().enumerate();
        let alive = receivers.filter(|(i, s)| self.roles[*i].receives && s.stream.is_some());
        match alive.min_by_key(|(_, session)| session.correct) {
            Some((index, session)) => format!(
                "{} is right about {} of {} prefixes",
                self.roles[index].address,
                session.correct,
                self.universe.nets.len()
            ),
            None => "no receiver is left".to_owned(),
        }
    }

    /// Serves the sessions for a while.
    pub fn idle(&mut self, time: Duration, expect: &dyn Expectation) -> Result<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.pump(left.min(Duration::from_millis(500)), expect, false)?;
        }
        Ok(())
    }

    /// Fault of the first faulty UPDATE.
    pub fn first_bad(&self) -> Option<&str> {
        self.first_bad.as_deref()
    }

    fn pump(&mut self, wait: Duration, expect: &dyn Expectation, dialling: bool) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other?,
        }
        let ready: Vec<(usize, bool, bool)> = self
            .events
            .iter()
            .map(|e| (e.token().0, e.is_readable(), e.is_writable()))
            .collect();
        for (index, readable, writable) in ready {
            if writable {
                self.sessions[index].flush();
            }
            if readable && let Err(error) = self.read(index, expect) {
                let address = self.roles[index].address;
                if !dialling {
                    return Err(error.context(format!("session of {address}")));
                }
                let session = &mut self.sessions[index];
                session.stream = None;
                session.up = false;
                session.held.fill(0);
            }
        }
        self.keep_alive();
        Ok(())
    }

    fn keep_alive(&mut self) {
        let interval = Duration::from_secs(u64::from(self.hold / 4));
        if self.keepalive.elapsed() < interval {
            return;
        }
        self.keepalive = Instant::now();
        for index in 0..self.sessions.len() {
            if self.sessions[index].up {
                let mut octets = Vec::new();
                wire::keepalive(&mut octets);
                self.send(index, octets);
            }
        }
    }

    fn read(&mut self, index: usize, expect: &dyn Expectation) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.read_into(index, expect, &mut buffer);
        self.buffer = buffer;
        result
    }

    fn read_into(
        &mut self,
        index: usize,
        expect: &dyn Expectation,
        buffer: &mut [u8],
    ) -> Result<()> {
        loop {
            let session = &mut self.sessions[index];
            let left = session.rx.len();
            buffer[..left].copy_from_slice(&session.rx);
            session.rx.clear();
            let Some(stream) = &mut session.stream else {
                return Ok(());
            };
            let read = match stream.read(&mut buffer[left..]) {
                Ok(0) => bail!("lost: closed by the peer"),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    session.rx.extend_from_slice(&buffer[..left]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("lost"),
            };
            if self.roles[index].receives {
                self.counters.octets += read as u64;
            }
            let mut input = &buffer[..left + read];
            while let Some(len) = input.get(16..18) {
                let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
                if input.len() < len.max(HEADER) {
                    break;
                }
                let (message, rest) = input.split_at(len.max(HEADER));
                self.message(index, message, expect)?;
                input = rest;
            }
            self.sessions[index].rx.extend_from_slice(input);
        }
    }

    fn message(&mut self, index: usize, message: &[u8], expect: &dyn Expectation) -> Result<()> {
        let body = &message[HEADER..];
        match message[18] {
            wire::OPEN => {
                let mut octets = Vec::new();
                wire::keepalive(&mut octets);
                self.send(index, octets);
            }
            wire::KEEPALIVE => self.sessions[index].up = true,
            wire::UPDATE => {
                self.sessions[index].up = true;
                if self.roles[index].receives {
                    self.update(index, body, expect)?;
                }
            }
            wire::NOTIFICATION => bail!("NOTIFICATION {:?}", body.get(..2)),
            _ => {}
        }
        Ok(())
    }

    fn update(&mut self, receiver: usize, body: &[u8], expect: &dyn Expectation) -> Result<()> {
        let (withdrawn, list, announced) = wire::split_update(body)?;
        if withdrawn.is_empty() && list.is_empty() && announced.is_empty() {
            return Ok(());
        }
        self.counters.updates += 1;
        let session = &mut self.sessions[receiver];
        session.updates += 1;
        let universe = &self.universe;
        let was = session.correct == universe.nets.len();
        let mut unknown: Option<Net> = None;
        let mut set = |net: Net, tag: u8| {
            let Some(index) = universe.index(net) else {
                unknown = Some(net);
                return;
            };
            if expect.own(receiver, index) {
                return;
            }
            let want = expect.wanted(receiver, index);
            let held = &mut session.held[index as usize];
            let before = std::mem::replace(held, tag);
            session.correct += usize::from(tag == want);
            session.correct -= usize::from(before == want);
        };
        wire::each_net(withdrawn, |net| set(net, 0))?;
        if !announced.is_empty() {
            let tag = expect.tag(list);
            wire::each_net(announced, |net| set(net, tag))?;
        }
        if let Some(net) = unknown {
            bail!(
                "{}/{} was never announced",
                Ipv4Addr::from(net.bits),
                net.len
            );
        }
        let now = session.correct == universe.nets.len();
        let check = session.updates % CHECK == 1 && !announced.is_empty();
        self.complete = self.complete + usize::from(now) - usize::from(was);
        if check {
            self.check(list, announced, expect)?;
        }
        Ok(())
    }

    fn check(&mut self, list: &[u8], announced: &[u8], expect: &dyn Expectation) -> Result<()> {
        let got = Attrs::decode(list)?;
        let tag = expect.tag(list);
        let mut wrong = None;
        let universe = &self.universe;
        wire::each_net(announced, |net| {
            if let Some(index) = universe.index(net)
                && expect.wanted(usize::MAX, index) == tag
                && expect.attrs(index) != got
            {
                wrong = Some(index);
            }
        })?;
        self.counters.checked += 1;
        if let Some(index) = wrong {
            self.counters.bad += 1;
            self.first_bad
                .get_or_insert_with(|| format!("got {got:?}, announced {:?}", expect.attrs(index)));
        }
        Ok(())
    }
}

impl Session {
    fn flush(&mut self) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        while let Some(first) = self.tx.front() {
            match stream.write(&first[self.sent..]) {
                Ok(written) => {
                    self.sent += written;
                    if self.sent == first.len() {
                        self.tx.pop_front();
                        self.sent = 0;
                    }
                }
                // An error shows itself on the next read.
                Err(_) => return,
            }
        }
    }
}
