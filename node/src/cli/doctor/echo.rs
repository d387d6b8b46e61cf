//! One ICMP echo (RFC 792), never fragmented, of a given size.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Octets of an IPv4 header without options and an echo's header.
pub(super) const HEADERS: usize = 28;
const IPV4_HEADER: usize = 20;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// An echo to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Echo {
    to: Ipv4Addr,
    size: usize,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum EchoError {
    /// No socket, or it cannot send.
    #[error("no echo could be sent: {0}")]
    Socket(std::io::Error),
    /// The kernel knows that the path is narrower.
    #[error("too large for this machine's interface")]
    TooLarge,
    /// Nothing came back.
    #[error("no answer")]
    Silence,
}

impl From<std::io::Error> for EchoError {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Self::TooLarge,
            _ => Self::Socket(error),
        }
    }
}

impl Echo {
    /// A small one.
    pub(super) const fn to(to: Ipv4Addr) -> Self {
        Self {
            to,
            size: HEADERS + 56,
        }
    }

    /// The whole packet, headers included, has so many octets.
    pub(super) fn of_size(mut self, octets: usize) -> Self {
        self.size = octets.max(HEADERS);
        self
    }

    /// Sends it, up to twice: the first packet may be lost to an address that is not resolved yet.
    pub(super) fn send(&self, patience: Duration) -> Result<(), EchoError> {
        let mut last = EchoError::Silence;
        for _ in 0..2 {
            match self.attempt(patience / 2) {
                Ok(()) => return Ok(()),
                Err(error @ EchoError::Silence) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn attempt(&self, patience: Duration) -> Result<(), EchoError> {
        let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
        never_fragment(&socket)?;
        let id = unique();
        let request = request(id, self.size - IPV4_HEADER);
        let to = SockAddr::from(SocketAddr::from((self.to, 0)));
        socket.send_to(&request, &to)?;
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(EchoError::Silence);
            }
            socket.set_read_timeout(Some(left))?;
            let mut buffer = [0; 128];
            // A raw socket hears all ICMP of the machine; the rest of a long packet is not needed.
            match socket.read(&mut buffer) {
                Ok(length) if is_reply(&buffer[..length], id) => return Ok(()),
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return Err(EchoError::Silence);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Identifies our reply among all: of this process, and of this echo.
fn unique() -> [u8; 4] {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = (std::process::id() & 0xffff) as u16;
    let [a, b] = process.to_be_bytes();
    let [c, d] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    [a, b, c, d]
}

/// IP_PMTUDISC_PROBE: don't fragment, and don't believe what is known of the path.
#[allow(
    unsafe_code,
    reason = "no safe wrapper among our crates sets this option"
)]
fn never_fragment(socket: &Socket) -> std::io::Result<()> {
    let value: libc::c_int = libc::IP_PMTUDISC_PROBE;
    let length = libc::socklen_t::try_from(std::mem::size_of_val(&value)).unwrap_or(4);
    // SAFETY: the descriptor is open while `socket` lives; the value is an int as ip(7) wants it, with its own size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            std::ptr::from_ref(&value).cast(),
            length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// An echo request of so many octets, header included.
fn request(id: [u8; 4], size: usize) -> Vec<u8> {
    let mut packet = vec![0; size];
    packet[0] = ECHO_REQUEST;
    packet[4..8].copy_from_slice(&id);
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// RFC 1071.
fn checksum(packet: &[u8]) -> u16 {
    let mut sum: u32 = packet
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(u16::try_from(sum).unwrap_or(u16::MAX))
}

/// True for the reply to our echo; raw sockets get the IPv4 header too.
fn is_reply(packet: &[u8], id: [u8; 4]) -> bool {
    let Some(first) = packet.first() else {
        return false;
    };
    let header = usize::from(first & 0xf) * 4;
    packet.get(header) == Some(&ECHO_REPLY) && packet.get(header + 4..header + 8) == Some(&id[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc1071_the_sum_over_a_packet_with_its_checksum_is_zero() {
        for size in [8, 9, 64, 1480] {
            let packet = request([1, 2, 3, 4], size);
            assert_eq!(packet.len(), size);
            assert_eq!(checksum(&packet), 0, "{size}");
        }
        assert_eq!(
            checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            !0xddf2
        );
    }

    #[test]
    fn a_reply_is_ours_by_its_identifier() {
        let mut packet = vec![0x45; 1];
        packet.resize(IPV4_HEADER, 0);
        packet.extend([ECHO_REPLY, 0, 0, 0, 1, 2, 3, 4, 0, 0]);
        assert!(is_reply(&packet, [1, 2, 3, 4]));
        assert!(!is_reply(&packet, [1, 2, 3, 5]));
        packet[IPV4_HEADER] = ECHO_REQUEST;
        assert!(!is_reply(&packet, [1, 2, 3, 4]), "our own request");
        assert!(!is_reply(&packet[..22], [1, 2, 3, 4]));
        assert!(!is_reply(&[], [1, 2, 3, 4]));
    }
}
