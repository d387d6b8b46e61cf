//! UDP sockets of the relay: many datagrams for each call, both ways.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use caracal_flannel::LARGEST_PACKET;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::{IpMtu, RcvBufForce, ReusePort, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockFlag, SockType,
    SockaddrStorage, bind, getsockopt, recvmmsg, sendmmsg, sendmsg, setsockopt, socket,
};
use nix::{cmsg_space, getsockopt_impl, setsockopt_impl, sockopt_impl};

/// Octets that wait to be received. Linux's own value holds three datagrams of 64 segments.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Datagrams for each call.
pub(super) const RECEIVE_BATCH: usize = 16;

sockopt_impl!(
    /// Who may fragment, in IPv4 (ip(7)).
    MtuDiscover4, SetOnly, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::c_int
);
sockopt_impl!(
    /// Who may fragment, in IPv6 (ipv6(7)).
    MtuDiscover6, SetOnly, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::c_int
);
sockopt_impl!(
    /// MTU of the path of a connected socket, in IPv6.
    Ipv6Mtu, GetOnly, libc::IPPROTO_IPV6, libc::IPV6_MTU, libc::c_int
);

/// A datagram: where it goes, and its two parts.
pub(super) type Outgoing<'a> = (SocketAddr, [IoSlice<'a>; 2]);

/// A socket that sends nothing in fragments unless it is told to.
pub(super) struct RelaySocket {
    socket: UdpSocket,
    address: SocketAddr,
    /// The kernel cuts datagrams (Linux 4.18).
    pub(super) cuts: bool,
}

impl AsFd for RelaySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl RelaySocket {
    /// So many sockets with one address; the kernel gives all datagrams of a sender to one.
    ///
    /// # Errors
    /// The system call failed: `EADDRINUSE` = another process has the address.
    pub(super) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        let mut sockets = Vec::with_capacity(count);
        for place in 0..count {
            sockets.push(Self::open(address, place == 0)?);
        }
        Ok(sockets)
    }

    /// `first` shares the address only once it has it: with processes that were there before it
    /// would share their datagrams.
    fn open(address: SocketAddr, first: bool) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        if !first {
            setsockopt(&socket, ReusePort, &true)?;
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        setsockopt(&socket, ReusePort, &true)?;
        // As much as the kernel gives; less is slower and no fault.
        let _less = setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER);
        let _uncoalesced = setsockopt(&socket, UdpGroSegment, &true);
        let cuts = setsockopt(&socket, UdpGsoSegment, &0).is_ok();
        let socket = Self {
            socket: UdpSocket::from(socket),
            address,
            cuts,
        };
        socket.fragment(false)?;
        Ok(socket)
    }

    pub(super) const fn is_v4(&self) -> bool {
        self.address.is_ipv4()
    }

    fn fragment(&self, may: bool) -> nix::Result<()> {
        let mode = match may {
            true => libc::IP_PMTUDISC_WANT,
            // Too large for the path: an error that is told to the sender.
            false => libc::IP_PMTUDISC_DO,
        };
        match self.address {
            SocketAddr::V4(_) => setsockopt(&self.socket, MtuDiscover4, &mode),
            SocketAddr::V6(_) => setsockopt(&self.socket, MtuDiscover6, &mode),
        }
    }

    /// Sends a run of datagrams of `size` octets (the last one may be shorter), given as parts one
    /// behind the other.
    pub(super) fn send_run(
        &self,
        to: SocketAddr,
        parts: &[IoSlice<'_>],
        size: u16,
    ) -> nix::Result<()> {
        let size = [ControlMessage::UdpGsoSegments(&size)];
        let to = SockaddrStorage::from(to);
        let fd = self.socket.as_raw_fd();
        sendmsg(fd, parts, &size, MsgFlags::empty(), Some(&to)).map(drop)
    }

    /// Sends datagrams one by one; how many of the first ones were sent.
    ///
    /// # Errors
    /// The first one was not sent.
    pub(super) fn send_each(&self, datagrams: &[Outgoing<'_>]) -> nix::Result<usize> {
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(datagrams.len(), None);
        let addresses: Vec<Option<SockaddrStorage>> = datagrams
            .iter()
            .map(|(to, _)| Some(SockaddrStorage::from(*to)))
            .collect();
        let parts = datagrams.iter().map(|(_, parts)| parts);
        let none: [ControlMessage<'_>; 0] = [];
        let fd = self.socket.as_raw_fd();
        let sent = sendmmsg(fd, &mut headers, parts, &addresses, none, MsgFlags::empty())?;
        Ok(sent.count())
    }

    /// Sends one datagram, in fragments if it has to be.
    pub(super) fn send_fragmented(&self, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        self.fragment(true)?;
        let sent = self.socket.send_to(datagram, to);
        self.fragment(false)?;
        sent.map(drop)
    }

    /// Octets of the largest packet that the kernel would send there whole.
    pub(super) fn path_mtu(&self, to: SocketAddr) -> io::Result<u32> {
        let probe = UdpSocket::bind((self.address.ip(), 0))?;
        probe.connect(to)?;
        let mtu = match to {
            SocketAddr::V4(_) => getsockopt(&probe, IpMtu)?,
            SocketAddr::V6(_) => getsockopt(&probe, Ipv6Mtu)?,
        };
        u32::try_from(mtu).map_err(io::Error::other)
    }

    /// Takes what has come, without waiting: for each buffer that was filled, its octets and those
    /// of each datagram in it (the last one may be shorter).
    pub(super) fn receive(&self, buffers: &mut [Vec<u8>]) -> nix::Result<Vec<(usize, usize)>> {
        // The kernel leaves in a header what it has written: the next call needs a new one.
        let space = Some(cmsg_space!(libc::c_int));
        let mut headers = MultiHeaders::<()>::preallocate(buffers.len(), space);
        let mut parts: Vec<[IoSliceMut<'_>; 1]> = buffers
            .iter_mut()
            .map(|buffer| [IoSliceMut::new(buffer)])
            .collect();
        let fd = self.socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = match recvmmsg(fd, &mut headers, parts.iter_mut(), flags, None) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let sizes = received.map(|message| {
            let mut notes = message.cmsgs().into_iter().flatten();
            let size = notes.find_map(|note| match note {
                ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
                _ => None,
            });
            let size = size.filter(|size| *size > 0).unwrap_or(LARGEST_PACKET);
            (message.bytes, size)
        });
        Ok(sizes.collect())
    }
}
