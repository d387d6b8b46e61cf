//! One TCP connection of a session: its stream, what was read and not yet understood, what is to be
//! written.

use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::codec::Decoder;

use crate::fsm::Ends;
use crate::speaker::framing::{Framing, FramingError};
use crate::wire::error::DecodeError;
use crate::wire::format::{Format, MAX_EXTENDED_MESSAGE};
use crate::wire::header::frame_len;
use crate::wire::notification::Notification;
use crate::wire::{self, Message};

/// How much is read at once: large reads cost few system calls, and a table of 64 KiB per session does not
/// hurt with a thousand of them, because an idle session gives its buffer back.
const READ_CHUNK: usize = 64 * 1024;
/// Above this many octets to write, no more routes are packed.
const WRITE_HIGH: usize = 128 * 1024;
/// How long a closed connection may take for its last octets.
const LINGER: Duration = Duration::from_secs(2);

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    read: BytesMut,
    write: BytesMut,
    /// Since when the peer has taken nothing of what waits.
    stalled: Option<Instant>,
    /// The connection takes nothing more, for good. It is always ready to say so: who waits for it spins.
    broken: bool,
    /// The peer has ended the stream; what was read before comes first.
    pub(super) ended: Option<Option<String>>,
}

/// What a read brought.
#[derive(Debug)]
pub(super) enum Read {
    /// So many octets.
    Octets,
    /// Nothing for now.
    Nothing,
    /// The connection has ended; with the operating system's words unless it was orderly.
    End(Option<String>),
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
        }
    }

    pub(super) fn ends(&self) -> io::Result<Ends> {
        Ok(Ends {
            local: self.stream.local_addr()?,
            remote: self.stream.peer_addr()?,
        })
    }

    /// Reads one chunk without waiting.
    pub(super) fn read(&mut self) -> Read {
        self.read.reserve(READ_CHUNK);
        match self.stream.try_read_buf(&mut self.read) {
            Ok(0) => Read::End(None),
            Ok(_) => Read::Octets,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Read::Nothing,
                _ => Read::End(Some(error.to_string())),
            },
        }
    }

    /// The next message, if a whole one has been read.
    pub(super) fn message(&mut self, format: &Format) -> Option<Result<Message, DecodeError>> {
        let mut framing = Framing {
            max: format.max_receive(),
        };
        match framing.decode(&mut self.read) {
            Ok(Some(message)) => Some(wire::decode(&message, format)),
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

    /// Where to append what is to be sent.
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

    /// Writes what the kernel takes without waiting. After an error nothing more is written, and reading says how the
    /// connection ended.
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

    /// Writes the rest, then ends the connection in order; gives up soon when the peer does not read.
    pub(super) async fn close(mut self) {
        let end = async {
            self.stream.write_all(&self.write).await?;
            self.stream.shutdown().await?;
            // Octets of the peer that are never read would turn the end into a reset, and a reset can
            // overtake the NOTIFICATION.
            let mut rest = [0; 4096];
            while self.stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // It is over either way.
        let _ = tokio::time::timeout(LINGER, end).await;
    }
}

/// Answers a connection that is to become no session with this NOTIFICATION, so that the peer knows why.
pub(in crate::speaker) async fn turn_away(stream: TcpStream, notification: &Notification) {
    let mut link = Link::new(stream);
    wire::encode_notification(notification, link.outbox());
    link.close().await;
}
