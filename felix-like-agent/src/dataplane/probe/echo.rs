//! One ICMP echo (RFC 792, RFC 4443 §4.1), never fragmented, of a given size. It blocks its thread
//! until the answer is there or is no longer expected; it never writes anything but that packet.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use caracal_model::Family;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Octets of an echo's own header.
const ECHO_HEADER: usize = 8;
/// Octets of data in a small echo.
const SMALL: usize = 56;

/// Octets of an IP header without options.
const fn ip_header(family: Family) -> usize {
    match family {
        Family::Ipv4 => 20,
        Family::Ipv6 => 40,
    }
}

/// Types of the request and of the reply.
const fn types(family: Family) -> (u8, u8) {
    match family {
        Family::Ipv4 => (8, 0),
        Family::Ipv6 => (128, 129),
    }
}

/// An echo to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    to: IpAddr,
    from: Option<IpAddr>,
    size: usize,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    /// No socket, or it cannot send.
    #[error("no echo could be sent")]
    Socket(#[source] std::io::Error),
    /// The machine's own interface cannot send it.
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
    #[must_use]
    pub const fn to(to: IpAddr) -> Self {
        let size = ip_header(Family::of(to)) + ECHO_HEADER + SMALL;
        Self {
            to,
            from: None,
            size,
        }
    }

    /// From one address of this machine.
    #[must_use]
    pub const fn from(mut self, from: Option<IpAddr>) -> Self {
        self.from = from;
        self
    }

    /// The whole packet, headers included, has so many octets.
    #[must_use]
    pub fn of_size(mut self, octets: u32) -> Self {
        let least = ip_header(Family::of(self.to)) + ECHO_HEADER;
        self.size = usize::try_from(octets).unwrap_or(usize::MAX).max(least);
        self
    }

    /// Octets of the whole packet.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.size).unwrap_or(u32::MAX)
    }

    /// Sends it, up to twice: the first packet may be lost to an address that is not resolved yet.
    ///
    /// # Errors
    /// [`EchoError`]; silence only after the whole of `patience`.
    pub fn send(&self, patience: Duration) -> Result<(), EchoError> {
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

    /// Sends it from a thread of its own, and says whether it was answered. Nobody waits for the
    /// thread at the end.
    pub async fn is_answered(self, patience: Duration) -> bool {
        let (sender, sent) = tokio::sync::oneshot::channel();
        let ask = move || {
            // The caller may have gone.
            let _ = sender.send(self.send(patience).is_ok());
        };
        let name = "echo".to_owned();
        match std::thread::Builder::new().name(name).spawn(ask) {
            Ok(_) => sent.await.unwrap_or(false),
            Err(error) => {
                tracing::warn!(%error, "no thread for an echo");
                false
            }
        }
    }

    fn attempt(&self, patience: Duration) -> Result<(), EchoError> {
        let family = Family::of(self.to);
        let mut socket = open(family)?;
        if let Some(from) = self.from {
            socket.bind(&SockAddr::from(SocketAddr::from((from, 0))))?;
        }
        let id = unique();
        let request = request(family, id, self.size - ip_header(family));
        let to = SockAddr::from(SocketAddr::from((self.to, 0)));
        socket.send_to(&request, &to)?;
        let deadline = Instant::now() + patience;
        loop {
            // Replies that have come are read even when this thread was not scheduled until after
            // the deadline.
            let mut left = deadline.saturating_duration_since(Instant::now());
            // Less than a microsecond would be a timeout of zero, which is none.
            if left < Duration::from_millis(1) {
                left = Duration::ZERO;
            }
            socket.set_nonblocking(left.is_zero())?;
            socket.set_read_timeout((!left.is_zero()).then_some(left))?;
            let mut buffer = [0; 128];
            // A raw socket hears all ICMP of the machine; the rest of a long packet is not needed.
            match socket.read(&mut buffer) {
                Ok(length) if is_reply(family, &buffer[..length], id) => return Ok(()),
                Ok(_) => {}
                Err(e) if is_silence(&e) && left.is_zero() => return Err(EchoError::Silence),
                Err(e) if is_silence(&e) || e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut)
}

fn open(family: Family) -> std::io::Result<Socket> {
    let socket = match family {
        Family::Ipv4 => Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?,
        Family::Ipv6 => Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?,
    };
    match family {
        Family::Ipv4 => set(
            &socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?,
        Family::Ipv6 => {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
        }
    }
    Ok(socket)
}

/// `PMTUDISC_PROBE`: don't fragment, and don't believe what is known of the path.
#[allow(
    unsafe_code,
    reason = "no safe wrapper among our crates sets these options"
)]
fn set(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> std::io::Result<()> {
    let length = libc::socklen_t::try_from(std::mem::size_of_val(&value)).unwrap_or(4);
    // SAFETY: the descriptor is open while `socket` lives; the value is an int as ip(7) and ipv6(7)
    // want it, with its own size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
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

/// An echo request of so many octets, its own header included. For IPv6 the kernel makes the
/// checksum (RFC 3542 §3.1).
fn request(family: Family, id: [u8; 4], size: usize) -> Vec<u8> {
    let mut packet = vec![0; size];
    packet[0] = types(family).0;
    packet[4..8].copy_from_slice(&id);
    if family == Family::Ipv4 {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
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

/// True for the reply to our echo; raw sockets of IPv4 get the IP header too.
fn is_reply(family: Family, packet: &[u8], id: [u8; 4]) -> bool {
    let header = match (family, packet.first()) {
        (_, None) => return false,
        (Family::Ipv4, Some(first)) => usize::from(first & 0xf) * 4,
        (Family::Ipv6, Some(_)) => 0,
    };
    packet.get(header) == Some(&types(family).1)
        && packet.get(header + 4..header + 8) == Some(&id[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc1071_the_sum_over_a_packet_with_its_checksum_is_zero() {
        for size in [8, 9, 64, 1480] {
            let packet = request(Family::Ipv4, [1, 2, 3, 4], size);
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
        let ours = |packet: &[u8], id| is_reply(Family::Ipv4, packet, id);
        let mut packet = vec![0x45; 1];
        packet.resize(20, 0);
        packet.extend([0, 0, 0, 0, 1, 2, 3, 4, 0, 0]);
        assert!(ours(&packet, [1, 2, 3, 4]));
        assert!(!ours(&packet, [1, 2, 3, 5]));
        packet[20] = 8;
        assert!(!ours(&packet, [1, 2, 3, 4]), "our own request");
        assert!(!ours(&packet[..22], [1, 2, 3, 4]));
        assert!(!ours(&[], [1, 2, 3, 4]));
        let reply = [129, 0, 0, 0, 1, 2, 3, 4];
        assert!(is_reply(Family::Ipv6, &reply, [1, 2, 3, 4]));
        let request = [128, 0, 0, 0, 1, 2, 3, 4];
        assert!(!is_reply(Family::Ipv6, &request, [1, 2, 3, 4]));
    }

    #[test]
    fn sizes_are_those_of_whole_packets() {
        let to = |text: &str| Echo::to(text.parse().expect("an address"));
        assert_eq!(to("192.0.2.1").size(), 84);
        assert_eq!(to("2001:db8::1").size(), 104);
        assert_eq!(to("2001:db8::1").of_size(1).size(), 48, "its headers");
    }
}
