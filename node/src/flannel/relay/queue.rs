//! One queue: packets of the TUN device to other nodes, and theirs to the device.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_flannel::{
    AnswerLimit, DropReason, IcmpError, IpHeader, LARGEST_PACKET, Offload, RelayTable,
    complete_checksum, icmp_answer, may_be_fragmented, merge_segments, relay_inbound,
    relay_outbound, relay_overhead, run_of_segments, split_segments,
};
use caracal_model::Family;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use super::counters::{RelayCounters, add};
use super::socket::{Outgoing, RECEIVE_BATCH, RelaySocket};

/// Packets that are read before any is sent.
const BATCH: usize = 64;
/// Octets for one packet with its offload header.
const ROOM: usize = LARGEST_PACKET + Offload::LEN;
/// Octets for all that are read.
const BATCH_OCTETS: usize = 4 * ROOM;
/// No line about refused packets for so long after one.
const LOG_PAUSE: Duration = Duration::from_secs(30);
/// The smallest MTU of IPv6 (RFC 8200 §5).
const V6_LEAST_MTU: u32 = 1280;

/// A queue of the device with the sockets that belong to it.
pub(super) struct Queue {
    device: File,
    /// One of each family.
    sockets: Vec<RelaySocket>,
    tables: watch::Receiver<Arc<RelayTable>>,
    table: Arc<RelayTable>,
    counters: Arc<RelayCounters>,
    limit: AnswerLimit,
    started: Instant,
    logged: Option<Instant>,
}

/// A packet on its way out.
struct Datagram {
    to: SocketAddr,
    /// Its header among the headers; empty where the whole packet is in `body`.
    header: Range<usize>,
    /// Place of the rest among the octets that were read.
    body: Range<usize>,
}

impl Datagram {
    const fn len(&self) -> usize {
        (self.header.end - self.header.start) + (self.body.end - self.body.start)
    }
}

/// What was read of the device.
struct Batch {
    octets: Vec<u8>,
    headers: Vec<u8>,
    datagrams: Vec<Datagram>,
}

impl Batch {
    fn parts<'a>(&'a self, datagram: &Datagram) -> [IoSlice<'a>; 2] {
        [
            IoSlice::new(&self.headers[datagram.header.clone()]),
            IoSlice::new(&self.octets[datagram.body.clone()]),
        ]
    }

    fn packet(&self, datagram: &Datagram) -> Vec<u8> {
        let header = &self.headers[datagram.header.clone()];
        [header, &self.octets[datagram.body.clone()]].concat()
    }
}

impl Queue {
    pub(super) fn new(
        device: File,
        sockets: Vec<RelaySocket>,
        mut tables: watch::Receiver<Arc<RelayTable>>,
        counters: Arc<RelayCounters>,
    ) -> Self {
        let table = Arc::clone(&tables.borrow_and_update());
        Self {
            device,
            sockets,
            tables,
            table,
            counters,
            limit: AnswerLimit::default(),
            started: Instant::now(),
            logged: None,
        }
    }

    /// Works until something happens to one of `stops`.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn run(mut self, stops: &[&UnixStream]) -> io::Result<()> {
        let mut batch = Batch {
            octets: vec![0; BATCH_OCTETS],
            headers: Vec::new(),
            datagrams: Vec::new(),
        };
        let mut buffers = vec![vec![0; LARGEST_PACKET]; RECEIVE_BATCH];
        loop {
            let mut waited: Vec<PollFd<'_>> = stops
                .iter()
                .map(|stop| stop.as_fd())
                .chain([self.device.as_fd()])
                .chain(self.sockets.iter().map(RelaySocket::as_fd))
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            match poll(&mut waited, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let happened: Vec<bool> = waited.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            let (stopped, happened) = happened.split_at(stops.len());
            if stopped.contains(&true) {
                return Ok(());
            }
            for (place, _) in happened.iter().enumerate().filter(|(_, any)| **any) {
                match place.checked_sub(1) {
                    None => self.outgoing(&mut batch)?,
                    Some(socket) => self.incoming(socket, &mut buffers)?,
                }
            }
        }
    }

    /// Reads a batch of the device and sends it.
    fn outgoing(&mut self, batch: &mut Batch) -> io::Result<()> {
        if self.tables.has_changed().unwrap_or(false) {
            self.table = Arc::clone(&self.tables.borrow_and_update());
        }
        batch.headers.clear();
        batch.datagrams.clear();
        let mut used = 0;
        for _ in 0..BATCH {
            let Some(room) = batch.octets.get_mut(used..used + ROOM) else {
                break;
            };
            match self.device.read(room) {
                Ok(len) => {
                    self.decide(batch, used..used + len);
                    used += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut rest = &batch.datagrams[..];
        while !rest.is_empty() {
            rest = &rest[self.send_some(batch, rest)..];
        }
        Ok(())
    }

    /// Says of a packet that was read where it goes.
    fn decide(&mut self, batch: &mut Batch, read: Range<usize>) {
        let start = read.start + Offload::LEN;
        let Some((offload, packet)) = Offload::parse(&mut batch.octets[read.clone()]) else {
            return self.counters.count_drop(DropReason::Malformed, 1);
        };
        let to = match relay_outbound(packet, &self.table) {
            Ok(to) => to,
            Err(reason) => {
                self.counters.count_drop(reason, 1);
                if reason == DropReason::NoNextHop {
                    self.tell(packet, IcmpError::Unreachable);
                }
                return;
            }
        };
        if !offload.is_uncut() {
            if !complete_checksum(packet, &offload) {
                return self.counters.count_drop(DropReason::Malformed, 1);
            }
            let body = start..read.end;
            let header = 0..0;
            return batch.datagrams.push(Datagram { to, header, body });
        }
        let Some(segments) = split_segments(packet, &offload, &mut batch.headers) else {
            return self.counters.count_drop(DropReason::Malformed, 1);
        };
        batch.datagrams.extend(segments.into_iter().map(|segment| {
            let body = start + segment.data.start..start + segment.data.end;
            let header = segment.header;
            Datagram { to, header, body }
        }));
    }

    fn socket(&self, to: SocketAddr) -> Option<&RelaySocket> {
        let is_v4 = to.is_ipv4();
        self.sockets.iter().find(|socket| socket.is_v4() == is_v4)
    }

    /// Sends some of the first datagrams in one call; how many were dealt with.
    fn send_some(&mut self, batch: &Batch, datagrams: &[Datagram]) -> usize {
        let run = |from: usize| {
            let rest = datagrams[from..].iter();
            run_of_segments(rest.map(|datagram| (datagram.to, datagram.len())))
        };
        let count = run(0);
        if count > 1 {
            if !self.send_run(batch, &datagrams[..count]) {
                self.send_each(batch, &datagrams[..count]);
            }
            return count;
        }
        let is_v4 = datagrams[0].to.is_ipv4();
        let more = (1..datagrams.len())
            .take_while(|place| datagrams[*place].to.is_ipv4() == is_v4 && run(*place) == 1);
        let count = 1 + more.count();
        self.send_each(batch, &datagrams[..count]);
        count
    }

    /// False when the kernel does not take them together.
    fn send_run(&self, batch: &Batch, datagrams: &[Datagram]) -> bool {
        let to = datagrams[0].to;
        let size = u16::try_from(datagrams[0].len());
        let (Some(socket), Ok(size)) = (self.socket(to).filter(|s| s.cuts), size) else {
            return false;
        };
        let parts: Vec<IoSlice<'_>> = datagrams.iter().flat_map(|d| batch.parts(d)).collect();
        let sent = socket.send_run(to, &parts, size).is_ok();
        if sent {
            self.count_sent(datagrams);
        }
        sent
    }

    fn count_sent(&self, datagrams: &[Datagram]) {
        let octets = datagrams.iter().map(Datagram::len).sum();
        self.counters.sent.add(datagrams.len(), octets);
    }

    fn send_each(&mut self, batch: &Batch, datagrams: &[Datagram]) {
        let all: Vec<Outgoing<'_>> = datagrams.iter().map(|d| (d.to, batch.parts(d))).collect();
        let mut done = 0;
        while let Some(datagram) = datagrams.get(done) {
            let sent = match self.socket(datagram.to) {
                Some(socket) => socket.send_each(&all[done..]),
                None => Err(Errno::EAFNOSUPPORT),
            };
            match sent {
                Ok(count) => {
                    let (sent, _) = datagrams[done..].split_at(count.max(1));
                    self.count_sent(sent);
                    done += sent.len();
                }
                Err(Errno::EINTR) => {}
                Err(error) => {
                    self.refused(&batch.packet(datagram), datagram.to, error);
                    done += 1;
                }
            }
        }
    }

    /// What becomes of a packet that the kernel did not send.
    fn refused(&mut self, packet: &[u8], to: SocketAddr, error: Errno) {
        let outcome = match error {
            Errno::EMSGSIZE => self.too_big(packet, to),
            error => Err(error.into()),
        };
        if let Err(error) = outcome {
            self.counters.count_drop(DropReason::NotSent, 1);
            self.log(&format!("a packet to {to} is not sent"), &error);
            let gone = [libc::ENETUNREACH, libc::EHOSTUNREACH];
            if error
                .raw_os_error()
                .is_some_and(|code| gone.contains(&code))
            {
                self.tell(packet, IcmpError::Unreachable);
            }
        }
    }

    /// The path is narrower than the interface: its sender is told, or it goes in fragments.
    fn too_big(&mut self, packet: &[u8], to: SocketAddr) -> io::Result<()> {
        let socket = self.socket(to).ok_or(Errno::EAFNOSUPPORT)?;
        let mtu = socket.path_mtu(to)?;
        let mtu = mtu.saturating_sub(relay_overhead(Family::of(to.ip())));
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        if may_be_fragmented(packet) || (is_v6 && mtu < V6_LEAST_MTU) {
            socket.send_fragmented(to, packet)?;
            self.counters.sent.add(1, packet.len());
            return Ok(());
        }
        self.counters.count_drop(DropReason::TooBig, 1);
        self.tell(packet, IcmpError::TooBig { mtu });
        Ok(())
    }

    /// Answers the sender of a packet, unless there were many answers just now.
    fn tell(&mut self, packet: &[u8], error: IcmpError) {
        let source = IpHeader::parse(packet)
            .and_then(|header| self.table.answer_source(Family::of(header.source)));
        let Some(told) = source.and_then(|source| icmp_answer(packet, source, error)) else {
            return;
        };
        if !self.limit.allows(self.started.elapsed()) {
            return;
        }
        add(
            match error {
                IcmpError::Unreachable => &self.counters.unreachable,
                IcmpError::TooBig { .. } => &self.counters.too_big,
            },
            1,
        );
        // A device that is gone is found out at the next read.
        let _gone = self.write(Offload::default(), &told, &[]);
    }

    /// Takes a batch of datagrams and writes what they hold to the device.
    fn incoming(&mut self, socket: usize, buffers: &mut [Vec<u8>]) -> io::Result<()> {
        let received = match self.sockets[socket].receive(buffers) {
            Ok(received) => received,
            Err(error) => {
                self.log("datagrams of other nodes cannot be received", &error.into());
                return Ok(());
            }
        };
        let mut packets: Vec<&[u8]> = Vec::new();
        let mut octets = 0;
        for (buffer, (len, size)) in buffers.iter_mut().zip(received) {
            for datagram in buffer[..len].chunks_mut(size) {
                match relay_inbound(datagram) {
                    Ok(len) => {
                        octets += len;
                        packets.push(&datagram[..len]);
                    }
                    Err(reason) => self.counters.count_drop(reason, 1),
                }
            }
        }
        self.counters.received.add(packets.len(), octets);
        let mut outcome = Ok(());
        merge_segments(&packets, |offload, header, data| {
            let written = self.write(offload, header, data);
            if outcome.is_ok() {
                outcome = written;
            }
        });
        outcome
    }

    /// Writes a packet to the device.
    ///
    /// # Errors
    /// The device is gone.
    fn write(&mut self, offload: Offload, header: &[u8], data: &[&[u8]]) -> io::Result<()> {
        let offload = offload.to_octets();
        let mut parts = vec![IoSlice::new(&offload), IoSlice::new(header)];
        parts.extend(data.iter().map(|data| IoSlice::new(data)));
        match self.device.write_vectored(&parts) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(error),
            Err(error) => {
                self.counters
                    .count_drop(DropReason::NotWritten, data.len().max(1));
                self.log(
                    "a packet of another node is not taken by the device",
                    &error,
                );
                Ok(())
            }
        }
    }

    /// Says it, unless something was said a moment ago.
    fn log(&mut self, what: &str, error: &io::Error) {
        if self.logged.is_none_or(|at| at.elapsed() > LOG_PAUSE) {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "{what}; more of the kind are counted only (caracal_flannel_relay_dropped)");
        }
    }
}
