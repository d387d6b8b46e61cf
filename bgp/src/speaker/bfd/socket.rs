//! UDP sockets as BFD wants them (RFC 5881 §4 and §5, RFC 5883 §5). The `unsafe` is in [`poll`] and
//! in reading a packet with its TTL, which no library wraps.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

use crate::bfd::BfdPacket;
use crate::speaker::socket::set_option;

/// UDP port of single-hop sessions (RFC 5881 §4).
const SINGLE_HOP: u16 = 3784;
/// UDP port of multihop sessions (RFC 5883 §5).
const MULTIHOP: u16 = 4784;
/// First source port (RFC 5881 §4).
const FIRST_SOURCE: u16 = 49152;
/// TTL of sent packets, and on one hop of received ones (RFC 5881 §5).
const TTL: u8 = 255;
/// Octets for the control messages of a packet. Of a type that converts to every C library's type
/// of a length.
const CONTROL_LEN: u8 = 64;
/// Tries to find a free source port.
const TRIES: u64 = 64;

const fn port(multihop: bool) -> u16 {
    if multihop { MULTIHOP } else { SINGLE_HOP }
}

fn open(local: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // Another BFD on this host may listen on all addresses.
    socket.set_reuse_address(share)?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&local.into())?;
    Ok(socket)
}

/// Socket by which packets of one or many sessions leave.
#[derive(Debug)]
pub(super) struct Sender {
    socket: UdpSocket,
}

impl Sender {
    pub(super) fn open(
        local: IpAddr,
        remote: IpAddr,
        multihop: bool,
        seed: u64,
    ) -> io::Result<Self> {
        let span = u64::from(u16::MAX - FIRST_SOURCE) + 1;
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for n in 0..TRIES {
            let offset = u16::try_from(seed.wrapping_add(n * 7919) % span).unwrap_or_default();
            match open((local, FIRST_SOURCE + offset).into(), false) {
                Ok(socket) => {
                    match local {
                        IpAddr::V4(_) => socket.set_ttl_v4(TTL.into())?,
                        IpAddr::V6(_) => socket.set_unicast_hops_v6(TTL.into())?,
                    }
                    let socket: UdpSocket = socket.into();
                    socket.connect((remote, port(multihop)))?;
                    return Ok(Self { socket });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Sends a packet. One that cannot be sent is a lost one.
    pub(super) fn send(&self, packet: &BfdPacket) {
        let _ = self.socket.send(&packet.encode());
    }
}

/// Socket on which packets to one of our addresses arrive.
#[derive(Debug)]
pub(super) struct Receiver {
    socket: UdpSocket,
    multihop: bool,
}

impl Receiver {
    pub(super) fn open(local: IpAddr, multihop: bool) -> io::Result<Self> {
        let socket = open((local, port(multihop)).into(), true)?;
        match local {
            IpAddr::V4(_) => set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, &1_i32)?,
            IpAddr::V6(_) => socket.set_recv_hoplimit_v6(true)?,
        }
        Ok(Self {
            socket: socket.into(),
            multihop,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next packet that waits and has come as it must, and where from.
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Option<(&'b [u8], IpAddr)> {
        loop {
            let (len, from, ttl) = receive_with_ttl(&self.socket, buffer).ok()?;
            // RFC 5881 §5: what has passed a router is not from the link.
            if self.multihop || ttl == Some(TTL) {
                return Some((&buffer[..len], from));
            }
        }
    }
}

/// Reads a datagram: its length, where it came from, and its TTL.
#[allow(
    unsafe_code,
    reason = "recvmsg with control messages has no safe wrapper"
)]
fn receive_with_ttl(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> io::Result<(usize, IpAddr, Option<u8>)> {
    let mut address = SockAddrStorage::zeroed();
    let room = address.size_of();
    let mut parts = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // Aligned for the headers in it.
    let mut control = [0_u64; CONTROL_LEN as usize / size_of::<u64>()];
    // SAFETY: all pointers are to locals that outlive the call, each with its true length; zeroes
    // are a valid `msghdr` and a valid `sockaddr_storage`. The control messages are read with the
    // kernel's macros, within the length that it has set.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = room;
        message.msg_iov = &raw mut parts;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_LEN.into();
        let len = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT);
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        let mut ttl = None;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(part) = header.as_ref() {
            let is_ttl = matches!(
                (part.cmsg_level, part.cmsg_type),
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
            );
            if is_ttl {
                let value = libc::CMSG_DATA(header)
                    .cast::<libc::c_int>()
                    .read_unaligned();
                ttl = u8::try_from(value).ok();
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        let from = SockAddr::new(address, message.msg_namelen);
        let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        Ok((len, from.ip(), ttl))
    }
}

/// Waits until one of these can be read, or for so long.
#[allow(unsafe_code, reason = "poll has no safe wrapper in std")]
pub(super) fn poll<'a>(
    wake: &'a impl AsFd,
    sockets: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Duration,
) -> io::Result<()> {
    let entry = |socket: BorrowedFd<'_>| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let all = std::iter::once(wake.as_fd()).chain(sockets);
    let mut entries: Vec<libc::pollfd> = all.map(entry).collect();
    // Rounded up: waking early would be a busy loop for the rest of the millisecond.
    let millis = timeout.as_micros().div_ceil(1000);
    let millis = i32::try_from(millis).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: `entries` is valid for `count` entries, and the descriptors are open as long as they
    // are borrowed.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), count, millis) };
    match io::Error::last_os_error() {
        error if result < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
