//! A relay of BGP routes with one table and nothing else: what the work of a scenario costs a
//! program that neither checks, nor filters, nor keeps what it sent, nor survives an error. It is a
//! lower bound for a speaker, in one thread.
//!
//! It takes every neighbour that comes as external, prefers the shortest AS_PATH and then the
//! neighbour that came first, puts its own AS in front and itself as the next hop.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use caracal_hot_paths::routes::DUT;
use caracal_hot_paths::routes::DUT_AS;
use caracal_hot_paths::wire::{self, Attrs, HEADER, Net};

/// Octets that are read at once.
const READ: usize = 1 << 18;
/// Prefixes that go into one UPDATE, beside its attributes.
const NETS: usize = 700;
const LISTENER: Token = Token(usize::MAX);

struct Session {
    stream: TcpStream,
    rx: Vec<u8>,
    tx: VecDeque<Arc<[u8]>>,
    /// Octets of the first of `tx` that are gone.
    sent: usize,
}

/// A set of attributes as it is sent on.
struct Set {
    list: Vec<u8>,
    path_len: usize,
}

#[derive(Default)]
struct Destination {
    /// Neighbour and set of attributes, by neighbour.
    paths: Vec<(u16, u32)>,
    /// What the neighbours have.
    sent: Option<(u16, u32)>,
    dirty: bool,
}

struct Relay {
    sessions: Vec<Session>,
    sets: Vec<Set>,
    /// By the attributes as received.
    set_of: HashMap<Vec<u8>, u32, foldhash::fast::RandomState>,
    index: HashMap<(u32, u8), u32, foldhash::fast::RandomState>,
    nets: Vec<Net>,
    table: Vec<Destination>,
    dirty: Vec<u32>,
}

/// Serves whoever connects, until it is killed.
pub fn serve() -> Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(256);
    let mut listener = TcpListener::bind(SocketAddr::from((DUT, 179))).context("port 179")?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut relay = Relay {
        sessions: Vec::new(),
        sets: Vec::new(),
        set_of: HashMap::default(),
        index: HashMap::default(),
        nets: Vec::new(),
        table: Vec::new(),
        dirty: Vec::new(),
    };
    let mut buffer = vec![0; READ];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                relay.accept(&listener, &poll)?;
            } else if event.is_readable() {
                relay.read(event.token().0, &mut buffer)?;
            }
        }
        relay.send_changes();
        for session in &mut relay.sessions {
            session.write()?;
        }
    }
}

impl Session {
    fn write(&mut self) -> Result<()> {
        while let Some(first) = self.tx.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(n) if self.sent + n == first.len() => {
                    self.tx.pop_front();
                    self.sent = 0;
                }
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("writing to a neighbour"),
            }
        }
        Ok(())
    }
}

impl Relay {
    fn accept(&mut self, listener: &TcpListener, poll: &Poll) -> Result<()> {
        loop {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("accepting a neighbour"),
            };
            stream.set_nodelay(true)?;
            poll.registry().register(
                &mut stream,
                Token(self.sessions.len()),
                Interest::READABLE | Interest::WRITABLE,
            )?;
            let mut hello = Vec::new();
            wire::open(DUT_AS, 240, DUT, &[], &mut hello);
            wire::keepalive(&mut hello);
            self.sessions.push(Session {
                stream,
                rx: Vec::new(),
                tx: VecDeque::from([hello.into()]),
                sent: 0,
            });
        }
    }

    fn read(&mut self, from: usize, buffer: &mut [u8]) -> Result<()> {
        loop {
            let session = &mut self.sessions[from];
            match session.stream.read(buffer) {
                Ok(0) => bail!("neighbour {from} has gone"),
                Ok(n) => session.rx.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("reading from a neighbour"),
            }
            let rx = std::mem::take(&mut session.rx);
            let mut rest = &rx[..];
            while let Some(header) = rest.get(..HEADER) {
                let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
                let Some(body) = rest.get(HEADER..length) else {
                    break;
                };
                match header[18] {
                    wire::UPDATE => self.update(from as u16, body)?,
                    wire::KEEPALIVE => {
                        let mut answer = Vec::new();
                        wire::keepalive(&mut answer);
                        self.sessions[from].tx.push_back(answer.into());
                    }
                    _ => {}
                }
                rest = &rest[length..];
            }
            self.sessions[from].rx = rest.to_vec();
        }
    }

    fn update(&mut self, from: u16, body: &[u8]) -> Result<()> {
        let (withdrawn, list, announced) = wire::split_update(body)?;
        wire::each_net(withdrawn, |net| {
            let at = self.destination(net);
            self.table[at]
                .paths
                .retain(|(neighbour, _)| *neighbour != from);
        })?;
        if announced.is_empty() {
            return Ok(());
        }
        let set = self.intern(list)?;
        wire::each_net(announced, |net| {
            let at = self.destination(net);
            let paths = &mut self.table[at].paths;
            match paths.iter_mut().find(|(neighbour, _)| *neighbour == from) {
                Some(path) => path.1 = set,
                None => paths.push((from, set)),
            }
        })
    }

    /// The place of a destination that changes.
    fn destination(&mut self, net: Net) -> usize {
        let next = self.table.len() as u32;
        let at = *self.index.entry((net.bits, net.len)).or_insert(next);
        if at == next {
            self.table.push(Destination::default());
            self.nets.push(net);
        }
        let destination = &mut self.table[at as usize];
        if !destination.dirty {
            destination.dirty = true;
            self.dirty.push(at);
        }
        at as usize
    }

    fn intern(&mut self, list: &[u8]) -> Result<u32> {
        if let Some(set) = self.set_of.get(list) {
            return Ok(*set);
        }
        let mut attrs = Attrs::decode(list)?;
        attrs.as_path.insert(0, DUT_AS);
        attrs.next_hop = Some(DUT);
        let mut sent = Vec::new();
        attrs.encode(&mut sent);
        let set = self.sets.len() as u32;
        self.sets.push(Set {
            list: sent,
            path_len: attrs.as_path.len(),
        });
        self.set_of.insert(list.to_vec(), set);
        Ok(set)
    }

    /// Sends every neighbour the new best path of each destination that has changed, but for the
    /// one that it comes from.
    fn send_changes(&mut self) {
        let mut withdrawn = Vec::new();
        let mut by_set: HashMap<(u16, u32), Vec<Net>, foldhash::fast::RandomState> =
            HashMap::default();
        for at in self.dirty.drain(..) {
            let destination = &mut self.table[at as usize];
            destination.dirty = false;
            let sets = &self.sets;
            let best = destination.paths.iter().copied();
            let best =
                best.min_by_key(|(neighbour, set)| (sets[*set as usize].path_len, *neighbour));
            if best == destination.sent {
                continue;
            }
            destination.sent = best;
            let net = self.nets[at as usize];
            match best {
                Some(best) => by_set.entry(best).or_default().push(net),
                None => withdrawn.push(net),
            }
        }
        let mut out = Vec::new();
        for nets in withdrawn.chunks(NETS) {
            wire::update(nets, None, &[], &mut out);
        }
        if !out.is_empty() {
            let octets: Arc<[u8]> = out.into();
            for session in &mut self.sessions {
                session.tx.push_back(octets.clone());
            }
        }
        // One buffer for each neighbour that paths come from, for all others.
        let mut from: HashMap<u16, Vec<u8>> = HashMap::new();
        for ((neighbour, set), nets) in by_set {
            let out = from.entry(neighbour).or_default();
            for nets in nets.chunks(NETS) {
                wire::update_with(&[], &self.sets[set as usize].list, nets, out);
            }
        }
        for (neighbour, octets) in from {
            let octets: Arc<[u8]> = octets.into();
            for (index, session) in self.sessions.iter_mut().enumerate() {
                if index != usize::from(neighbour) {
                    session.tx.push_back(octets.clone());
                }
            }
        }
    }
}
