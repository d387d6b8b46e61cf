//! Sockets as BGP wants them: source address, time to live, GTSM (RFC 5082), TCP MD5 (RFC 2385).
//!
//! The only `unsafe` of the crate is in [`set_option`] and [`saved_syn`]: options that no library
//! wraps.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use caracal_model::{IfName, Prefix};
use nix::net::if_::{if_indextoname, if_nametoindex};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::config::{Password, PeerConfig};

/// Connections that the kernel holds for us: a thousand peers may dial in the same moment.
const BACKLOG: i32 = 1024;
/// The longest key that Linux takes.
const MAX_KEY: usize = 80;
/// The time to live of GTSM (RFC 5082 §3).
const MAX_TTL: u8 = 255;
/// Linux: `TCP_MD5SIG`.
const TCP_MD5SIG: i32 = 14;
/// Linux: `TCP_MD5SIG_EXT`, whose first flag says that `prefix_len` counts.
const TCP_MD5SIG_EXT: i32 = 32;
/// Bits before the IPv4 address in an IPv4-mapped one.
const MAPPED_BITS: u8 = 96;
/// Room for the headers of a SYN: IPv6 with extensions, TCP with options.
const SYN_LEN: usize = 256;
/// Linux: `TCP_SAVE_SYN`.
const TCP_SAVE_SYN: i32 = 27;
/// Linux: `TCP_SAVED_SYN`.
const TCP_SAVED_SYN: i32 = 28;
/// Linux: `IP_MINTTL`.
const IP_MINTTL: i32 = 21;
/// Linux: `IPV6_MINHOPCOUNT`.
const IPV6_MINHOPCOUNT: i32 = 73;

/// Dials a peer. Cancel-safe: dropping the future gives up.
///
/// # Errors
/// The system call failed.
pub(super) async fn connect(peer: &PeerConfig) -> io::Result<TcpStream> {
    let remote = remote_of(peer)?;
    let socket = Socket::new(
        Domain::for_address(remote),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    if let Some(source) = peer.source {
        socket.bind(&on_link(source, 0, peer)?.into())?;
    }
    apply(&socket, peer)?;
    if let Some(password) = &peer.password {
        set_md5(&socket, Prefix::host(peer.address), Some(password)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot set the TCP MD5 key: {error}"))
        })?;
    }
    TcpSocket::from_std_stream(socket.into())
        .connect(remote)
        .await
}

/// Where a peer is dialled.
///
/// # Errors
/// The interface of a link-local peer is not there.
pub(super) fn remote_of(peer: &PeerConfig) -> io::Result<SocketAddr> {
    on_link(peer.address, peer.port, peer)
}

/// An address and a port; a link-local one on the link with the peer (RFC 4007 §6).
fn on_link(address: IpAddr, port: u16, peer: &PeerConfig) -> io::Result<SocketAddr> {
    match (address, &peer.interface) {
        (IpAddr::V6(v6), Some(interface)) if v6.is_unicast_link_local() => {
            let index = if_nametoindex(interface.as_str()).map_err(|_| {
                let text = format!("there is no interface {interface}");
                io::Error::new(io::ErrorKind::AddrNotAvailable, text)
            })?;
            Ok(SocketAddrV6::new(v6, port, 0, index).into())
        }
        _ => Ok(SocketAddr::new(address, port)),
    }
}

/// The interface by which a link-local address is reached; `None` for other addresses.
pub(super) fn link_of(remote: SocketAddr) -> Option<IfName> {
    let SocketAddr::V6(v6) = remote else {
        return None;
    };
    // Others have scope 0, for which nix 0.31 gives an empty name and no error.
    if !v6.ip().is_unicast_link_local() {
        return None;
    }
    let name = if_indextoname(v6.scope_id()).ok()?;
    Some(IfName::from(name.to_str().ok()?))
}

/// Sets what the configuration says about packets of a connection to `peer`, except for the MD5
/// key.
///
/// # Errors
/// The system call failed.
pub(super) fn apply(socket: &impl AsFd, peer: &PeerConfig) -> io::Result<()> {
    let socket_ref = SockRef::from(socket);
    // Messages are coalesced here; the kernel must not wait for more.
    socket_ref.set_tcp_nodelay(true)?;
    let ttl = match peer.ttl_security {
        Some(_) => Some(MAX_TTL),
        None => peer.ttl,
    };
    let v6 = is_v6(&socket_ref)?;
    if let Some(ttl) = ttl {
        set_ttl(&socket_ref, v6, ttl)?;
    }
    if let Some(hops) = peer.ttl_security {
        let least = i32::from(least_ttl(hops));
        set_option(socket, libc::IPPROTO_IP, IP_MINTTL, &least)
            .or_else(|error| if v6 { Ok(()) } else { Err(error) })?;
        if v6 {
            set_option(socket, libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, &least)?;
        }
    }
    Ok(())
}

/// RFC 5082 §3: the direct neighbour's packets come with 255, each router takes one off.
const fn least_ttl(hops: u8) -> u8 {
    MAX_TTL - hops.saturating_sub(1)
}

/// Has a connection that we accepted come from nearby? GTSM can be set on it only after its
/// handshake, when octets from afar may wait already; but the kernel remembers its SYN.
///
/// # Errors
/// The peer is further away than allowed (text: TTL seen and expected), or a system call failed.
pub(super) fn check_distance(stream: &TcpStream, peer: &PeerConfig) -> io::Result<()> {
    let Some(hops) = peer.ttl_security else {
        return Ok(());
    };
    let seen = match saved_syn(stream)?[..] {
        // The version is in the first four bits, TTL in octet 8 of IPv4, Hop Limit in octet 7 of
        // IPv6.
        [first, _, _, _, _, _, _, hop_limit, ..] if first >> 4 == 6 => hop_limit,
        [_, _, _, _, _, _, _, _, ttl, ..] => ttl,
        _ => return Err(io::Error::other("the kernel has not kept the SYN")),
    };
    let least = least_ttl(hops);
    if seen < least {
        let text = format!("TTL {seen} is below {least}: not within {hops} hops");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

fn is_v6(socket: &Socket) -> io::Result<bool> {
    Ok(socket.domain()? == Domain::IPV6)
}

fn set_ttl(socket: &Socket, v6: bool, ttl: u8) -> io::Result<()> {
    if v6 {
        socket.set_unicast_hops_v6(ttl.into())?;
        // A socket for both families sends IPv4 as well; one for IPv6 alone may refuse.
        let _ = socket.set_ttl_v4(ttl.into());
        return Ok(());
    }
    socket.set_ttl_v4(ttl.into())
}

/// A listening socket; without an address for both families, where the host has both.
///
/// # Errors
/// The system call failed.
pub(super) fn listen(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    match address {
        Some(address) => listen_at(SocketAddr::new(address, port)),
        None => listen_at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
            .or_else(|_| listen_at(SocketAddr::new([0, 0, 0, 0].into(), port))),
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // A restart must not wait for connections of the former process to fade.
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // The handshake is done before anybody knows the peer; with less, a peer under GTSM drops it.
    set_ttl(&socket, address.is_ipv6(), MAX_TTL)?;
    set_option(&socket, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1_i32)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Octets of the kernel's `struct sockaddr_storage`.
const SOCKADDR_STORAGE: usize = 128;

/// The kernel's `struct tcp_md5sig`.
#[repr(C, align(8))]
struct TcpMd5Sig {
    address: [u8; SOCKADDR_STORAGE],
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    interface: i32,
    key: [u8; MAX_KEY],
}

/// Sets, changes or (with `None`) removes the MD5 key for segments from and to `peer`. On an
/// established connection it takes effect with the next segment.
///
/// # Errors
/// A key of more than 80 octets, or the system call failed: a kernel without
/// `CONFIG_TCP_MD5SIG` refuses.
pub(super) fn set_md5(
    socket: &impl AsFd,
    peer: Prefix,
    password: Option<&Password>,
) -> io::Result<()> {
    let secret = password.map_or(&[][..], |password| password.0.as_bytes());
    let mut key = [0; MAX_KEY];
    let Some(place) = key.get_mut(..secret.len()) else {
        let text = format!(
            "a TCP MD5 key has at most {MAX_KEY} octets, this one {}",
            secret.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    place.copy_from_slice(secret);
    // A socket for both families knows IPv4 peers by their mapped addresses.
    let (address, prefix_len) = match peer.address() {
        IpAddr::V4(v4) if is_v6(&SockRef::from(socket))? => {
            (IpAddr::V6(v4.to_ipv6_mapped()), MAPPED_BITS + peer.len())
        }
        other => (other, peer.len()),
    };
    let is_range = peer.len() < peer.family().bits();
    let name = if is_range { TCP_MD5SIG_EXT } else { TCP_MD5SIG };
    let option = TcpMd5Sig {
        address: socket_address(address),
        flags: u8::from(is_range),
        prefix_len: if is_range { prefix_len } else { 0 },
        key_len: u16::try_from(secret.len()).unwrap_or_default(),
        interface: 0,
        key,
    };
    match set_option(socket, libc::IPPROTO_TCP, name, &option) {
        // There was none.
        Err(error) if password.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// `address` with port 0 as a `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(address: IpAddr) -> [u8; SOCKADDR_STORAGE] {
    let (family, at, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, 4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, 8, v6.octets().to_vec()),
    };
    let mut storage = [0; SOCKADDR_STORAGE];
    let family = u16::try_from(family).unwrap_or_default().to_ne_bytes();
    storage[..family.len()].copy_from_slice(&family);
    storage[at..at + octets.len()].copy_from_slice(&octets);
    storage
}

/// `setsockopt` for an option that neither std nor socket2 wraps.
#[allow(unsafe_code, reason = "TCP_MD5SIG and IP_MINTTL have no safe wrapper")]
pub(super) fn set_option<T>(
    socket: &impl AsFd,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("invariant: options are small");
    // SAFETY: the descriptor is open as long as `socket` is borrowed; `value` is valid for `len`
    // octets, and the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The headers of the SYN of an accepted connection; the kernel forgets them with that.
#[allow(unsafe_code, reason = "TCP_SAVED_SYN has no safe wrapper")]
fn saved_syn(socket: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut syn = vec![0; SYN_LEN];
    let mut len = libc::socklen_t::try_from(syn.len()).expect("invariant: 256 fits");
    // SAFETY: the descriptor is open as long as `socket` is borrowed; `syn` is valid for `len`
    // octets, and the kernel writes no more than that and says how many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_SAVED_SYN,
            syn.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut len),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    syn.truncate(usize::try_from(len).unwrap_or_default());
    Ok(syn)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rfc4007_6_only_a_link_local_address_is_on_a_link() {
        let lo = if_nametoindex("lo").unwrap();
        let on_lo = |text: &str| SocketAddrV6::new(text.parse().unwrap(), 179, 0, lo).into();
        assert_eq!(link_of(on_lo("fe80::1")), Some("lo".into()));
        assert_eq!(link_of(on_lo("2001:db8::1")), None);
        for plain in ["10.0.0.1:179", "[::ffff:10.0.0.1]:179", "[2001:db8::1]:179"] {
            assert_eq!(link_of(plain.parse().unwrap()), None, "{plain}");
        }
    }
}
