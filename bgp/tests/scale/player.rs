//! A peer that the test plays: it parses no more of an UPDATE than which prefixes it names.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use caracal_bgp::{
    FamilySet, MESSAGE_HEADER_LEN, Message, MessageFormat, PathAttrs, RouterId, decode_message,
    encode_announce, encode_keepalive, encode_open, frame_len,
};
use caracal_model::{Family, Prefix};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};

/// Longest wait for anything on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;

pub(crate) fn format() -> MessageFormat {
    MessageFormat {
        four_octet_as: true,
        internal: true,
        families: FamilySet::ALL,
        extended_receive: true,
        ..MessageFormat::default()
    }
}

/// Prefix number `n`.
pub(crate) fn prefix(n: u32) -> Prefix {
    Prefix::v4((0x1000_0000 + (n << 8)).into(), 24)
}

/// Messages that announce these prefixes.
pub(crate) fn announcement(
    numbers: std::ops::Range<u32>,
    med: u32,
    next_hop: Ipv4Addr,
) -> BytesMut {
    let attrs = PathAttrs {
        next_hop: Some(next_hop.into()),
        local_pref: Some(100),
        med: Some(med),
        ..PathAttrs::default()
    };
    let prefixes: Vec<Prefix> = numbers.map(prefix).collect();
    let mut out = BytesMut::new();
    encode_announce(Family::Ipv4, &attrs, &prefixes, &format(), &mut out).unwrap();
    out
}

/// The reading end.
pub(crate) struct Reader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// The longest time without a message.
    pub(crate) silence: Duration,
    last_message: Instant,
}

/// The writing end.
pub(crate) struct Writer(OwnedWriteHalf);

/// Dials until the speaker listens, and goes through the OPENs.
pub(crate) async fn establish(from: Ipv4Addr, to: SocketAddr, hold: u16) -> (Reader, Writer) {
    establish_with(from, to, hold, None).await
}

/// The same with so many octets for what was received and not read.
pub(crate) async fn establish_with(
    from: Ipv4Addr,
    to: SocketAddr,
    hold: u16,
    buffer: Option<u32>,
) -> (Reader, Writer) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt(from, to, hold, buffer).await {
            Ok(ends) => return ends,
            Err(error) => assert!(Instant::now() < deadline, "{from}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn attempt(
    from: Ipv4Addr,
    to: SocketAddr,
    hold: u16,
    buffer: Option<u32>,
) -> std::io::Result<(Reader, Writer)> {
    let socket = TcpSocket::new_v4()?;
    if let Some(octets) = buffer {
        socket.set_recv_buffer_size(octets)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(from.into(), 0))?;
    let stream: TcpStream = socket.connect(to).await?;
    let (read, write) = stream.into_split();
    let mut reader = Reader {
        stream: read,
        buffer: BytesMut::new(),
        silence: Duration::ZERO,
        last_message: Instant::now(),
    };
    let mut writer = Writer(write);
    let closed = || std::io::Error::other("the speaker closed the connection");
    let first = reader.next().await.ok_or_else(closed)?;
    let Ok(Message::Open(mut open)) = decode_message(&first, &format()) else {
        return Err(closed());
    };
    open.router_id = RouterId(from);
    open.hold_time = hold;
    let mut answer = BytesMut::new();
    encode_open(&open, &mut answer);
    encode_keepalive(&mut answer);
    writer.send(&answer).await;
    let second = reader.next().await.ok_or_else(closed)?;
    if second[MESSAGE_HEADER_LEN - 1] == NOTIFICATION {
        return Err(closed());
    }
    reader.silence = Duration::ZERO;
    Ok((reader, writer))
}

impl Writer {
    pub(crate) async fn send(&mut self, octets: &[u8]) {
        // The reader notices the end.
        let _closed = self.0.write_all(octets).await;
    }

    /// Sends a KEEPALIVE `every` so long until the connection ends.
    pub(crate) async fn keep_alive(mut self, every: Duration) {
        let mut keepalive = BytesMut::new();
        encode_keepalive(&mut keepalive);
        loop {
            self.send(&keepalive).await;
            tokio::time::sleep(every).await;
        }
    }
}

impl Reader {
    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<BytesMut> {
        loop {
            if let Some(len) = frame_len(&self.buffer, 65535).unwrap()
                && self.buffer.len() >= len
            {
                let now = Instant::now();
                self.silence = self.silence.max(now - self.last_message);
                self.last_message = now;
                return Some(self.buffer.split_to(len));
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Reads until it holds all prefixes below `count` but its own, each with the MED that `med`
    /// says.
    pub(crate) async fn until_complete(
        &mut self,
        count: u32,
        own: Option<u32>,
        med: impl Fn(u32) -> u32,
    ) {
        let mut held = vec![false; usize::try_from(count).unwrap()];
        let mut missing = held.len() - usize::from(own.is_some());
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while missing > 0 {
            let next = tokio::time::timeout_at(deadline, self.next()).await;
            let message = next
                .unwrap_or_else(|_| panic!("{missing} of {count} prefixes did not come"))
                .expect("the session stays");
            let kind = message[MESSAGE_HEADER_LEN - 1];
            assert_ne!(kind, NOTIFICATION, "{message:?}");
            if kind != UPDATE {
                continue;
            }
            let (withdrawn, announced, with) = parts(&message);
            for n in withdrawn {
                missing += usize::from(std::mem::replace(&mut held[n], false));
            }
            for n in announced {
                let right = with == u32::try_from(n).ok().map(&med);
                let before = std::mem::replace(&mut held[n], right);
                missing = missing + usize::from(before) - usize::from(right);
            }
        }
    }
}

/// Withdrawn and announced numbers of an UPDATE, and its MED.
fn parts(message: &[u8]) -> (Vec<usize>, Vec<usize>, Option<u32>) {
    let mut body = &message[MESSAGE_HEADER_LEN..];
    let withdrawn = usize::from(body.get_u16());
    let (gone, mut body) = body.split_at(withdrawn);
    let attributes = usize::from(body.get_u16());
    let (mut attributes, nlri) = body.split_at(attributes);
    let mut med = None;
    while attributes.len() > 2 {
        let flags = attributes.get_u8();
        let kind = attributes.get_u8();
        let len = if flags & 0x10 == 0 {
            usize::from(attributes.get_u8())
        } else {
            usize::from(attributes.get_u16())
        };
        let mut value = &attributes[..len];
        if kind == 4 {
            med = Some(value.get_u32());
        }
        attributes.advance(len);
    }
    (numbers(gone), numbers(nlri), med)
}

fn numbers(mut nlri: &[u8]) -> Vec<usize> {
    let mut numbers = Vec::new();
    while nlri.has_remaining() {
        assert_eq!(nlri.get_u8(), 24);
        let upper = nlri.get_uint(3);
        numbers.push(usize::try_from(upper - 0x10_0000).unwrap());
    }
    numbers
}
