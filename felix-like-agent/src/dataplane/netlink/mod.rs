//! Two rtnetlink sockets, one for dumps and one for changes. They belong to the network namespace
//! of the thread that opened them, for good, and do nothing on their own.

pub(in crate::dataplane) mod batch;
mod elements;
mod error;
mod expressions;
pub(in crate::dataplane) mod framing;
pub(in crate::dataplane) mod nftables;
pub(in crate::dataplane) mod objects;
pub(in crate::dataplane) mod routes;

pub(crate) use error::EncodeError;

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use netlink_packet_core::{
    ErrorMessage, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_proto::ConnectionHandle;
use netlink_sys::{AsyncSocket, SocketAddr};

use crate::dataplane::netlink::batch::Writer;
use crate::settings::KERNEL_TIMEOUT;

/// Octets asked for the receive buffer.
pub(in crate::dataplane) const RECEIVE_BUFFER: u32 = 1 << 20;
/// A dump that the kernel marks as interrupted by a change is read again this often.
const DUMP_ATTEMPTS: usize = 5;
/// `struct sockaddr_nl` of the kernel.
const KERNEL: (u32, u32) = (0, 0);

/// Failure of a netlink socket as a whole; refusals of single messages are [`KernelRefusal`]s.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket cannot be opened.
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    /// The task that drives the socket has ended.
    #[error("the netlink socket is closed")]
    Closed,
    /// The socket cannot be used any more.
    #[error("the netlink socket fails")]
    Io(#[source] io::Error),
    /// Answers were lost.
    #[error("the kernel lost answers on the netlink socket")]
    Overrun,
    /// No answer in time.
    #[error("no answer from the kernel within {0:?}")]
    Timeout(Duration),
    /// A dump was refused.
    #[error("the kernel refuses to list {what}")]
    Dump {
        /// Links, routes, …
        what: &'static str,
        /// Why.
        #[source]
        source: KernelRefusal,
    },
    /// The table changed during every attempt to read it.
    #[error("{what} changed during each of {DUMP_ATTEMPTS} attempts to list them")]
    Unsteady {
        /// Links, routes, …
        what: &'static str,
    },
}

impl NetlinkError {
    /// True when the same question may well be answered a moment later: no answer came in time, or
    /// changes came between.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Overrun | Self::Unsteady { .. }
        )
    }
}

/// The kernel's answer to a message that it refuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}{}", io::Error::from_raw_os_error(*.code), said(.sentence))]
pub struct KernelRefusal {
    /// An errno.
    pub code: i32,
    /// The kernel's own words (extended acknowledgement); empty where it has none.
    pub sentence: String,
}

fn said(sentence: &str) -> String {
    match sentence {
        "" => String::new(),
        words => format!(": {words}"),
    }
}

impl KernelRefusal {
    fn from_message(error: &ErrorMessage) -> Option<Self> {
        error.code.map(|code| Self {
            code: code.get().saturating_neg(),
            sentence: String::new(),
        })
    }
}

/// Request to the kernel.
#[derive(Clone, Debug)]
pub(in crate::dataplane) enum Message {
    /// A message of a kind that the crates know.
    Rtnetlink(RouteNetlinkMessage),
    /// Another one: its type, and what follows the header.
    Raw { kind: u16, body: Vec<u8> },
}

/// One message to the kernel with its flags besides REQUEST and ACK.
#[derive(Clone, Debug)]
pub(in crate::dataplane) struct Request {
    pub(in crate::dataplane) message: Message,
    pub(in crate::dataplane) flags: u16,
}

impl Request {
    /// Appends the message to a datagram.
    pub(in crate::dataplane) fn emit(self, datagram: &mut Vec<u8>, sequence: u32) {
        let flags = NLM_F_REQUEST | self.flags;
        match self.message {
            Message::Rtnetlink(message) => {
                let mut message = NetlinkMessage::from(message);
                message.header.flags = flags;
                message.header.sequence_number = sequence;
                message.finalize();
                let start = datagram.len();
                let length = message.buffer_len();
                datagram.resize(start + length.next_multiple_of(4), 0);
                message.serialize(&mut datagram[start..start + length]);
            }
            Message::Raw { kind, body } => {
                let start = framing::begin(datagram, kind, flags, sequence);
                datagram.extend_from_slice(&body);
                framing::finish(datagram, start);
            }
        }
    }
}

/// The open sockets.
#[derive(Debug)]
pub(in crate::dataplane) struct Netlink {
    handle: ConnectionHandle<RouteNetlinkMessage>,
    writer: Writer,
    driver: tokio::task::JoinHandle<()>,
    /// A kernel that does not answer for this long has lost the answer.
    patience: Duration,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub(in crate::dataplane) fn open() -> Result<Self, NetlinkError> {
        let (mut connection, handle, _unsolicited) =
            netlink_proto::new_connection::<RouteNetlinkMessage>(
                netlink_sys::protocols::NETLINK_ROUTE,
            )
            .map_err(NetlinkError::Open)?;
        let socket = connection.socket_mut().socket_mut();
        socket.bind_auto().map_err(NetlinkError::Open)?;
        // Filters in dumps are applied, not ignored.
        socket
            .set_netlink_get_strict_chk(true)
            .map_err(NetlinkError::Open)?;
        socket
            .set_rx_buf_sz(RECEIVE_BUFFER)
            .map_err(NetlinkError::Open)?;
        Ok(Self {
            handle,
            writer: Writer::open()?,
            driver: tokio::spawn(connection),
            patience: KERNEL_TIMEOUT,
        })
    }

    /// Waits for answers so long and no longer.
    pub(in crate::dataplane) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
        self.writer.patience = patience;
    }

    /// Everything of a kind.
    pub(in crate::dataplane) async fn dump(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(found) = self.dump_once(what, message.clone()).await? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Unsteady { what })
    }

    /// `None` when a change came between.
    async fn dump_once(
        &self,
        what: &'static str,
        message: RouteNetlinkMessage,
    ) -> Result<Option<Vec<RouteNetlinkMessage>>, NetlinkError> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut answers = self
            .handle
            .request(request, address())
            .map_err(|_| NetlinkError::Closed)?;
        let mut found = Vec::new();
        let mut steady = true;
        while let Some(answer) = next(&mut answers, self.patience).await? {
            steady &= answer.header.flags & NLM_F_DUMP_INTR == 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Overrun(_) => return Err(NetlinkError::Overrun),
                NetlinkPayload::Error(error) => {
                    if let Some(source) = KernelRefusal::from_message(&error) {
                        return Err(NetlinkError::Dump { what, source });
                    }
                }
                _ => {}
            }
        }
        Ok(steady.then_some(found))
    }

    /// Our address on the netlink bus: notifications about our own changes carry it.
    pub(in crate::dataplane) const fn port(&self) -> u32 {
        self.writer.port
    }

    /// The socket for changes.
    pub(in crate::dataplane) const fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Everything of a kind, read out of the messages (with their headers) as they come: nothing
    /// is kept of them but what is made of them.
    pub(in crate::dataplane) async fn dump_each<T>(
        &mut self,
        what: &'static str,
        request: Request,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let found = self.writer.dump(request.clone(), &mut read).await?;
            if let Some(found) = found.map_err(|source| NetlinkError::Dump { what, source })? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Unsteady { what })
    }

    /// Sends one message.
    pub(in crate::dataplane) async fn send(
        &mut self,
        request: Request,
    ) -> Result<Result<(), KernelRefusal>, NetlinkError> {
        self.writer.push(request);
        let results = self.writer.flush().await?;
        results.into_iter().next().ok_or(NetlinkError::Overrun)
    }
}

fn address() -> SocketAddr {
    SocketAddr::new(KERNEL.0, KERNEL.1)
}

async fn next<S: futures_util::Stream + Unpin>(
    answers: &mut S,
    patience: Duration,
) -> Result<Option<S::Item>, NetlinkError> {
    tokio::time::timeout(patience, answers.next())
        .await
        .map_err(|_| NetlinkError::Timeout(patience))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_too_long_is_given_up() {
        let patience = Duration::from_secs(17);
        let start = tokio::time::Instant::now();
        let mut silence = futures_util::stream::pending::<()>();
        let error = next(&mut silence, patience).await;
        let reason = error.err().map(|error| error.to_string());
        assert_eq!(
            reason.as_deref(),
            Some("no answer from the kernel within 17s")
        );
        assert_eq!(start.elapsed(), patience);
    }

    #[tokio::test]
    async fn both_sockets_are_as_patient_as_they_are_told() {
        let Ok(mut netlink) = Netlink::open() else {
            println!("skipped: no netlink sockets here");
            return;
        };
        assert_eq!(netlink.patience, KERNEL_TIMEOUT);
        let patience = Duration::from_secs(3);
        netlink.set_patience(patience);
        assert_eq!(
            (netlink.patience, netlink.writer.patience),
            (patience, patience)
        );
    }
}
