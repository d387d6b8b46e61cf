//! Many changes in one send. The kernel works through a datagram of messages one after the other,
//! inside the send, and answers for those that it refuses; only the last one asks for an
//! acknowledgement, which says that all are done. Answers are matched to requests by sequence
//! number.
//!
//! A datagram never holds more messages than the receive buffer holds answers, so that no answer is
//! ever lost.

use std::future::poll_fn;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use netlink_sys::{AsyncSocket, SocketAddr, TokioSocket};

use crate::dataplane::netlink::framing::{self, HEADER};
use crate::dataplane::netlink::{KernelRefusal, NetlinkError, RECEIVE_BUFFER, Request};
use crate::settings::KERNEL_TIMEOUT;

/// Most messages in one send: more do not make it faster.
const MESSAGES: usize = 256;
/// Octets after which a datagram is sent: a quarter of the default send buffer, which refuses
/// longer ones.
const OCTETS: usize = 48 << 10;
/// Space that one answer takes of the receive buffer: header, code, the request's header, a
/// sentence, and the kernel's bookkeeping for a packet; 1,280 octets were seen.
const ANSWER_OCTETS: usize = 2048;
/// `NLMSG_ERROR`: a refusal, or, with code 0, an acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const DONE: u16 = 3;
/// `NLM_F_CAPPED`: only the header of the request is in the answer.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow.
const EXTENDED: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: a sentence.
const SENTENCE: u16 = 1;

/// A socket that writes.
pub(in crate::dataplane) struct Writer {
    socket: TokioSocket,
    /// Our address on the netlink bus.
    pub(in crate::dataplane) port: u32,
    /// How long the kernel may take for the answers to one send.
    pub(in crate::dataplane) patience: Duration,
    /// Most messages in one send.
    most: usize,
    /// Sequence number of the last message.
    sequence: u32,
    /// Messages that wait to be sent, and how many they are.
    buffer: Vec<u8>,
    waiting: usize,
    /// Where the last of them begins.
    last: usize,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("port", &self.port)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Opens a socket in the calling thread's namespace.
    pub(in crate::dataplane) fn open() -> Result<Self, NetlinkError> {
        let mut socket =
            TokioSocket::new(netlink_sys::protocols::NETLINK_ROUTE).map_err(NetlinkError::Open)?;
        let inner = socket.socket_mut();
        let port = inner.bind_auto().map_err(NetlinkError::Open)?.port_number();
        // Refusals carry a sentence, and not the message.
        inner.set_cap_ack(true).map_err(NetlinkError::Open)?;
        inner.set_ext_ack(true).map_err(NetlinkError::Open)?;
        // Filters in dumps are applied, not ignored.
        inner
            .set_netlink_get_strict_chk(true)
            .map_err(NetlinkError::Open)?;
        inner
            .set_rx_buf_sz(RECEIVE_BUFFER)
            .map_err(NetlinkError::Open)?;
        // The kernel gives less than was asked for where `rmem_max` says so.
        let room = inner.get_rx_buf_sz().map_err(NetlinkError::Open)?;
        Ok(Self {
            socket,
            port,
            patience: KERNEL_TIMEOUT,
            most: (room / ANSWER_OCTETS).clamp(1, MESSAGES),
            sequence: 0,
            buffer: Vec::new(),
            waiting: 0,
            last: 0,
        })
    }

    /// Puts a message behind those that wait; true = now they have to be sent.
    pub(in crate::dataplane) fn push(&mut self, request: Request) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        self.last = self.buffer.len();
        request.emit(&mut self.buffer, self.sequence);
        self.counted()
    }

    /// The same with a message whose body is written in its place. One that cannot be written does
    /// not wait.
    pub(in crate::dataplane) fn compose<E>(
        &mut self,
        (kind, flags): (u16, u16),
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let sequence = self.sequence.wrapping_add(1);
        let start = framing::begin(&mut self.buffer, kind, NLM_F_REQUEST | flags, sequence);
        if let Err(error) = body(&mut self.buffer) {
            self.buffer.truncate(start);
            return Err(error);
        }
        framing::finish(&mut self.buffer, start);
        (self.sequence, self.last) = (sequence, start);
        Ok(self.counted())
    }

    fn counted(&mut self) -> bool {
        self.waiting += 1;
        self.waiting == self.most || self.buffer.len() >= OCTETS
    }

    /// Sends what waits, in order; answers with one result each, in the same order. A refused
    /// message does not stop those behind it.
    pub(in crate::dataplane) async fn flush(
        &mut self,
    ) -> Result<Vec<Result<(), KernelRefusal>>, NetlinkError> {
        let mut results = vec![Ok(()); self.waiting];
        if self.waiting > 0 {
            // Sent or given up, nothing of it waits any more.
            self.waiting = 0;
            if let Some(flags) = self.buffer.get_mut(self.last + 6..self.last + 8) {
                let with_ack = u16::from_ne_bytes([flags[0], flags[1]]) | NLM_F_ACK;
                flags.copy_from_slice(&with_ack.to_ne_bytes());
            }
            let mut datagram = std::mem::take(&mut self.buffer);
            let exchange = self.exchange(&datagram, &mut results);
            let answered = tokio::time::timeout(self.patience, exchange).await;
            datagram.clear();
            self.buffer = datagram;
            answered.map_err(|_| NetlinkError::Timeout(self.patience))??;
        }
        Ok(results)
    }

    /// Asks for everything of a kind; `None` when a change came between. Nothing may wait to be
    /// sent.
    pub(in crate::dataplane) async fn dump<T>(
        &mut self,
        request: Request,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Result<Option<Vec<T>>, KernelRefusal>, NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        let flags = request.flags | NLM_F_DUMP;
        Request { flags, ..request }.emit(&mut datagram, self.sequence);
        let kernel = SocketAddr::new(0, 0);
        poll_fn(|cx| self.socket.poll_send_to(cx, &datagram, &kernel))
            .await
            .map_err(NetlinkError::Io)?;
        let (mut found, mut steady) = (Vec::new(), true);
        loop {
            let answer = tokio::time::timeout(self.patience, self.receive());
            let answer = answer
                .await
                .map_err(|_| NetlinkError::Timeout(self.patience))??;
            let ours = |message: &&[u8]| framing::word(message, 8) == Some(self.sequence);
            for message in framing::messages(&answer).filter(ours) {
                steady &= framing::half(message, 6).unwrap_or(0) & NLM_F_DUMP_INTR == 0;
                match framing::half(message, 4) {
                    Some(DONE) => return Ok(Ok(steady.then_some(found))),
                    Some(ERROR) => {
                        if let Some((_, Err(refusal))) = answers(message).next() {
                            return Ok(Err(refusal));
                        }
                    }
                    _ => found.extend(read(message)),
                }
            }
            // The kernel answers at once: without this, all of a long list is one step of the task.
            tokio::task::yield_now().await;
        }
    }

    async fn receive(&self) -> Result<Vec<u8>, NetlinkError> {
        let received = poll_fn(|cx| self.socket.poll_recv_from_full(cx)).await;
        let (datagram, _) = received.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS) => NetlinkError::Overrun,
            _ => NetlinkError::Io(error),
        })?;
        Ok(datagram)
    }

    /// Sends a datagram whose last message bears the present sequence number, and gathers the
    /// answers.
    async fn exchange(
        &self,
        datagram: &[u8],
        results: &mut [Result<(), KernelRefusal>],
    ) -> Result<(), NetlinkError> {
        let kernel = SocketAddr::new(0, 0);
        poll_fn(|cx| self.socket.poll_send_to(cx, datagram, &kernel))
            .await
            .map_err(NetlinkError::Io)?;
        loop {
            let answer = self.receive().await?;
            for (number, result) in answers(&answer) {
                // Answers to a batch that was given up are older.
                let back =
                    usize::try_from(self.sequence.wrapping_sub(number)).unwrap_or(usize::MAX);
                if let Some(slot) = results.iter_mut().rev().nth(back) {
                    *slot = result;
                }
                if back == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// Answers in a datagram to the requests with these sequence numbers.
fn answers(datagram: &[u8]) -> impl Iterator<Item = (u32, Result<(), KernelRefusal>)> {
    framing::messages(datagram).filter_map(|message| {
        if framing::half(message, 4)? != ERROR {
            return None;
        }
        let number = framing::word(message, 8)?;
        let code = framing::word(message, HEADER)?.cast_signed();
        let answer = match code {
            0 => Ok(()),
            code => Err(KernelRefusal {
                code: code.saturating_neg(),
                sentence: sentence(message).unwrap_or_default(),
            }),
        };
        Some((number, answer))
    })
}

/// The kernel's own words in a refusal.
fn sentence(message: &[u8]) -> Option<String> {
    let flags = framing::half(message, 6)?;
    if flags & EXTENDED == 0 {
        return None;
    }
    let request = HEADER + 4;
    let length = match flags & CAPPED {
        0 => usize::try_from(framing::word(message, request)?).ok()?,
        _ => HEADER,
    };
    let attributes = message.get(request + length.next_multiple_of(4)..)?;
    let (_, text) = framing::attributes(attributes).find(|(kind, _)| *kind == SENTENCE)?;
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// An answer to the request `number`, with a sentence behind the request or its header.
    fn answer(kind: u16, number: u32, code: i32, request: usize, text: &str) -> Vec<u8> {
        let mut message = vec![0; HEADER + 4 + request];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = if request == HEADER { CAPPED } else { 0 } | EXTENDED;
        message[6..8].copy_from_slice(&flags.to_ne_bytes());
        message[8..12].copy_from_slice(&number.to_ne_bytes());
        message[16..20].copy_from_slice(&code.to_ne_bytes());
        let length = u32::try_from(request).unwrap();
        message[20..24].copy_from_slice(&length.to_ne_bytes());
        if !text.is_empty() {
            let length = u16::try_from(text.len() + 5).unwrap();
            message.extend(length.to_ne_bytes());
            message.extend(SENTENCE.to_ne_bytes());
            message.extend(text.as_bytes());
            message.push(0);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let length = u32::try_from(message.len()).unwrap();
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    fn refusal(code: i32, sentence: &str) -> Result<(), KernelRefusal> {
        Err(KernelRefusal {
            code,
            sentence: sentence.to_owned(),
        })
    }

    #[test]
    fn answers_are_told_by_number_and_say_why() {
        let datagram = [
            answer(2, 7, -17, HEADER, ""),
            answer(24, 8, -1, HEADER, ""),
            answer(2, 9, -101, HEADER, "Nexthop has invalid gateway"),
            answer(2, 10, -22, 60, "Invalid prefix"),
            answer(2, 11, 0, HEADER, ""),
        ]
        .concat();
        let expected = [
            (7, refusal(17, "")),
            (9, refusal(101, "Nexthop has invalid gateway")),
            (10, refusal(22, "Invalid prefix")),
            (11, Ok(())),
        ];
        assert_eq!(answers(&datagram).collect::<Vec<_>>(), expected);
        for cut in 0..datagram.len() {
            assert!(answers(&datagram[..cut]).count() < 4);
        }
        // A length that leads out of the message.
        let mut wrong = answer(2, 9, -101, HEADER, "Nexthop has invalid gateway");
        wrong[36] = 255;
        assert_eq!(answers(&wrong).next(), Some((9, refusal(101, ""))));
    }
}
