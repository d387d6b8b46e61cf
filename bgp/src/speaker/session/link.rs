//! One TCP connection of a session: its stream, what was read and not yet understood, what is to be
//! written.

use std::cell::RefCell;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio_util::codec::Decoder;

use crate::fsm::ConnectionEnds;
use crate::speaker::admission::Ticket;
use crate::wire::error::{DecodeError, HeaderError};
use crate::wire::format::{MAX_EXTENDED_MESSAGE, MessageFormat};
use crate::wire::frame_len;
use crate::wire::notification::Notification;
use crate::wire::{self, Message};

/// Octets of a read: large reads cost few system calls.
const READ_CHUNK: usize = 64 * 1024;
/// Above this many octets to write, no more routes are packed.
const WRITE_HIGH: usize = 128 * 1024;
/// Limit for the last octets of a closed connection.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    /// Buffer that each thread reads into: a session keeps what it has not understood, and no room
    /// for more.
    static CHUNK: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_CHUNK].into());
}

/// A TCP connection with what is to be read and written.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    read: BytesMut,
    write: BytesMut,
    /// Since when the peer has taken nothing of what waits.
    stalled: Option<Instant>,
    /// The connection takes nothing more, for good. It is always ready to say so: who waits for it
    /// spins.
    broken: bool,
    /// The peer has ended the stream; what was read before comes first.
    pub(super) ended: Option<Option<String>>,
    /// For a connection that the peer dialled, until its session is established.
    pub(super) ticket: Option<Ticket>,
}

/// Result of one read.
#[derive(Debug)]
pub(super) enum Read {
    /// Octets have been read.
    Octets,
    /// The socket has nothing for now.
    Nothing,
    /// The connection has ended, with the operating system's error unless the end was orderly.
    End(Option<String>),
}

/// True for errors after which the next read or write may succeed.
const fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Link {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            read: BytesMut::new(),
            write: BytesMut::new(),
            stalled: None,
            broken: false,
            ended: None,
            ticket: None,
        }
    }

    pub(super) fn ends(&self) -> io::Result<ConnectionEnds> {
        Ok(ConnectionEnds {
            local: self.stream.local_addr()?,
            remote: self.stream.peer_addr()?,
        })
    }

    /// Reads one chunk without waiting.
    pub(super) fn read(&mut self) -> Read {
        CHUNK.with_borrow_mut(|chunk| self.read_into(chunk))
    }

    fn read_into(&mut self, chunk: &mut [u8]) -> Read {
        let mut count = None;
        let stream = &self.stream;
        let tried = stream.try_io(Interest::READABLE, || {
            let read = (&*SockRef::from(stream)).read(chunk)?;
            count = Some(read);
            // A short read has emptied the socket buffer; a second read would only return
            // WouldBlock.
            if read > 0 && read < chunk.len() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match (count, tried) {
            (Some(0), _) => Read::End(None),
            (Some(count), _) => {
                self.read.extend_from_slice(&chunk[..count]);
                Read::Octets
            }
            (None, Err(error)) => match error.kind() {
                kind if is_passing(kind) => Read::Nothing,
                _ => Read::End(Some(error.to_string())),
            },
            (None, Ok(())) => Read::Nothing,
        }
    }

    /// The next message, if a whole one has been read.
    pub(super) fn message(
        &mut self,
        format: &MessageFormat,
    ) -> Option<Result<Message, DecodeError>> {
        let mut framing = Framing {
            max: format.max_receive(),
        };
        match framing.decode(&mut self.read) {
            Ok(Some(message)) => Some(wire::decode_message(&message, format)),
            Ok(None) => {
                if self.read.is_empty() {
                    // An idle session needs no buffer.
                    self.read = BytesMut::new();
                }
                None
            }
            Err(FramingError::Header(error)) => {
                self.read.clear();
                Some(Err(error.into()))
            }
            Err(FramingError::Io(_)) => None,
        }
    }

    /// True when a whole message has been read that is not yet understood.
    pub(super) fn has_message(&self) -> bool {
        match frame_len(&self.read, MAX_EXTENDED_MESSAGE) {
            Ok(Some(len)) => self.read.len() >= len,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Buffer for what is to be sent.
    pub(super) const fn outbox(&mut self) -> &mut BytesMut {
        &mut self.write
    }

    /// True when there is something to write.
    pub(super) fn wants_write(&self) -> bool {
        !self.write.is_empty() && !self.broken
    }

    /// True when more routes may be packed.
    pub(super) fn has_room(&self) -> bool {
        self.write.len() < WRITE_HIGH && !self.broken
    }

    /// Since when the peer has taken nothing of what waits.
    pub(super) const fn stalled(&self) -> Option<Instant> {
        self.stalled
    }

    /// Writes what the kernel takes without waiting. After an error nothing more is written, and
    /// reading says how the connection ended.
    pub(super) fn flush(&mut self, now: Instant) {
        while self.wants_write() {
            match self.stream.try_write(&self.write) {
                Ok(written @ 1..) => {
                    self.write.advance(written);
                    self.stalled = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) => return self.stall(now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.stall(now),
                Err(_) => self.broken = true,
            }
        }
        self.stalled = None;
        self.write = BytesMut::new();
    }

    fn stall(&mut self, now: Instant) {
        self.stalled = self.stalled.or(Some(now));
    }

    /// Writes the rest, then ends the connection in order; gives up soon when the peer does not
    /// read.
    pub(super) async fn close(mut self) {
        let end = async {
            self.stream.write_all(&self.write).await?;
            self.stream.shutdown().await?;
            // Octets of the peer that are never read would turn the end into a reset, and a reset
            // can overtake the NOTIFICATION.
            let mut rest = [0; 4096];
            while self.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // It is over either way.
        let _ = tokio::time::timeout(LINGER, end).await;
    }
}

/// Answers a connection that is to become no session with this NOTIFICATION, so that the peer knows
/// why.
pub(in crate::speaker) async fn turn_away(
    stream: TcpStream,
    ticket: Ticket,
    notification: &Notification,
) {
    let mut link = Link::new(stream);
    link.ticket = Some(ticket);
    wire::encode_notification(notification, link.outbox());
    link.close().await;
}

/// The cutter of one connection.
#[derive(Clone, Copy, Debug)]
struct Framing {
    /// Largest message to accept, in octets.
    max: usize,
}

/// The stream is out of step, or the connection is gone.
#[derive(Debug, thiserror::Error)]
enum FramingError {
    /// No message starts here.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Demanded by tokio's trait; we do the reading ourselves.
    #[error("reading failed")]
    Io(#[from] std::io::Error),
}

impl Decoder for Framing {
    type Item = BytesMut;
    type Error = FramingError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FramingError> {
        match frame_len(buffer, self.max)? {
            Some(len) if buffer.len() >= len => Ok(Some(buffer.split_to(len))),
            Some(_) | None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A connection and its other end.
    async fn connection() -> (Link, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (stream, _) = listener.accept().await.unwrap();
        (Link::new(stream), other.unwrap())
    }

    #[tokio::test]
    async fn a_connection_that_breaks_with_octets_to_write_wants_to_be_read() {
        let (mut link, other) = connection().await;
        // More than both ends of the connection buffer.
        link.outbox().resize(64 << 20, 0);
        link.flush(Instant::now());
        assert!(link.wants_write() && link.stalled().is_some());
        // The kernel resets a connection that is closed with unread octets.
        drop(other);
        let end = async {
            while link.wants_write() {
                link.stream.writable().await.unwrap();
                link.flush(Instant::now());
            }
            loop {
                link.stream.readable().await.unwrap();
                if let Read::End(_) = link.read() {
                    return;
                }
            }
        };
        tokio::time::timeout(LIMIT, end).await.unwrap();
        assert_eq!(link.stalled(), None, "nothing waits");
    }

    #[tokio::test]
    async fn octets_and_the_end_are_read_whether_they_come_together_or_not() {
        for together in [true, false] {
            let (mut link, mut other) = connection().await;
            other.write_all(&[7; 19]).await.unwrap();
            let mut other = Some(other);
            if together {
                other = None;
            }
            let end = async {
                loop {
                    link.stream.readable().await.unwrap();
                    match link.read() {
                        Read::End(_) => return,
                        Read::Octets => other = None,
                        Read::Nothing => {}
                    }
                }
            };
            tokio::time::timeout(LIMIT, end).await.unwrap();
            assert_eq!(&link.read[..], [7; 19]);
        }
    }

    #[tokio::test]
    async fn more_than_a_chunk_is_read_to_the_last_octet() {
        let (mut link, mut other) = connection().await;
        let count = 3 * READ_CHUNK + 5;
        let writer = tokio::spawn(async move {
            other.write_all(&vec![1; count]).await.unwrap();
            other
        });
        let all = async {
            while link.read.len() < count {
                link.stream.readable().await.unwrap();
                assert!(!matches!(link.read(), Read::End(_)));
            }
        };
        tokio::time::timeout(LIMIT, all).await.unwrap();
        assert_eq!(link.read.len(), count);
        drop(writer.await.unwrap());
    }
}

#[cfg(test)]
mod framing_tests {
    #![allow(clippy::unwrap_used)]
    use bytes::BufMut;

    use super::*;
    use crate::wire::MessageType;
    use crate::wire::encode_keepalive;
    use crate::wire::format::{MAX_EXTENDED_MESSAGE, MAX_MESSAGE_LEN};

    #[test]
    fn messages_are_cut_whatever_the_pieces_they_come_in() {
        let mut stream = BytesMut::new();
        for _ in 0..3 {
            encode_keepalive(&mut stream);
        }
        let mut framing = Framing {
            max: MAX_MESSAGE_LEN,
        };
        let mut buffer = BytesMut::new();
        let mut cut = 0;
        for octet in stream {
            buffer.extend_from_slice(&[octet]);
            while let Some(message) = framing.decode(&mut buffer).unwrap() {
                assert_eq!(message.len(), 19);
                cut += 1;
            }
        }
        assert_eq!((cut, buffer.len()), (3, 0));
    }

    #[test]
    fn a_stream_that_is_no_bgp_is_refused() {
        let mut framing = Framing {
            max: MAX_MESSAGE_LEN,
        };
        let mut http = BytesMut::from(&b"GET / HTTP/1.1\r\nHost: x\r\n"[..]);
        assert!(matches!(
            framing.decode(&mut http),
            Err(FramingError::Header(HeaderError::Marker))
        ));
        let mut long = BytesMut::from(&[0xff; 19][..]);
        assert!(matches!(
            framing.decode(&mut long),
            Err(FramingError::Header(HeaderError::Length {
                len: 0xffff,
                ..
            }))
        ));
    }

    /// A header whose length its type cannot have is refused while nothing of what it claims is
    /// there.
    #[test]
    fn rfc4271_6_1_lengths_are_judged_as_soon_as_the_header_is_there() {
        let keepalive = MessageType::Keepalive.octet();
        let (open, update) = (MessageType::Open.octet(), MessageType::Update.octet());
        let cases = [
            (keepalive, 0xffff),
            (keepalive, 20),
            (keepalive, 18),
            // RFC 8654 §4: OPEN stays short.
            (open, 4097),
            (open, 28),
            (update, 22),
        ];
        for (kind, len) in cases {
            let mut framing = Framing {
                max: MAX_EXTENDED_MESSAGE,
            };
            let mut buffer = BytesMut::from(&[0xff; 16][..]);
            buffer.put_u16(len);
            assert!(matches!(framing.decode(&mut buffer), Ok(None)), "no type");
            buffer.put_u8(kind);
            let Err(FramingError::Header(error)) = framing.decode(&mut buffer) else {
                panic!("type {kind} of {len} octets is waited for");
            };
            assert_eq!(error, HeaderError::Length { kind, len });
            let answer = error.notification();
            assert_eq!(answer.code.octets(), (1, 2));
            assert_eq!(answer.data[..], len.to_be_bytes());
        }
        let mut framing = Framing {
            max: MAX_MESSAGE_LEN,
        };
        let mut unknown = BytesMut::from(&[0xff; 16][..]);
        unknown.put_u16(4096);
        unknown.put_u8(77);
        let Err(FramingError::Header(error)) = framing.decode(&mut unknown) else {
            panic!("a message of no type is waited for");
        };
        assert_eq!(error, HeaderError::Type(77));
    }
}
