//! A node of a flannel network with the backend `udp`, as plain as can be: one `read` and one
//! `sendto` for each packet, on one thread. It stands for flanneld beside Caracal's relay: the same
//! datagrams, the same hop limits, IPv4 alone. The device is made by `ip tuntap add … mode tun`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;

use caracal_model::Prefix;
use clap::Parser;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A plain relay of flannel's backend `udp`, for tests. Not for anything else.
#[derive(Debug, Parser)]
struct Args {
    /// The TUN device.
    #[arg(long, default_value = "flannel0")]
    device: String,
    /// The address of this node, with the port.
    #[arg(long)]
    bind: SocketAddrV4,
    /// A subnet and the node that has it: 10.5.1.0/24=10.200.0.1:8285. May be repeated.
    #[arg(long, value_parser = route)]
    route: Vec<(Prefix, SocketAddrV4)>,
}

fn route(text: &str) -> Result<(Prefix, SocketAddrV4), String> {
    let (subnet, node) = text.split_once('=').ok_or("it has no =")?;
    let subnet = subnet.parse().map_err(|e| format!("{subnet}: {e}"))?;
    let node = node.parse().map_err(|e| format!("{node}: {e}"))?;
    Ok((subnet, node))
}

/// `struct ifreq` (netdevice(7)).
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

#[allow(
    unsafe_code,
    reason = "no library that we have wraps the call that attaches to a TUN device"
)]
fn open_device(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let device = options
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let flags = u16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).map_err(io::Error::other)?;
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags,
        rest: [0; 22],
    };
    let room = libc::IFNAMSIZ - 1;
    for (to, from) in request.name.iter_mut().zip(name.bytes().take(room)) {
        *to = from;
    }
    // SAFETY: the descriptor is open, and the request has the size of `struct ifreq`.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(made)?;
    Ok(device)
}

/// Destination of an IPv4 packet whose TTL was lowered; `None` when it goes no further.
fn pass(packet: &mut [u8]) -> Option<Ipv4Addr> {
    let header_len = usize::from(packet.first()? & 0xf) * 4;
    let header = packet.get_mut(..header_len)?;
    if header_len < 20 || header[0] >> 4 != 4 || header[8] <= 1 {
        return None;
    }
    header[8] -= 1;
    header[10..12].fill(0);
    let words = header.chunks(2).map(|w| u16::from_be_bytes([w[0], w[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).ok()?;
    header[10..12].copy_from_slice(&(!sum).to_be_bytes());
    Some(Ipv4Addr::new(
        header[16], header[17], header[18], header[19],
    ))
}

/// True when there was something.
fn to_nodes(args: &Args, mut device: &File, socket: &UdpSocket) -> io::Result<bool> {
    let mut packet = [0; 65_536];
    let len = match device.read(&mut packet) {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        Err(error) => return Err(error),
    };
    let packet = &mut packet[..len];
    let to = pass(packet).and_then(|to| {
        let mut routes = args.route.iter();
        routes.find(|(subnet, _)| subnet.contains(to.into()))
    });
    if let Some((_, node)) = to {
        // What is lost is lost: as on a wire.
        let _sent = socket.send_to(packet, node);
    }
    Ok(true)
}

fn from_nodes(mut device: &File, socket: &UdpSocket) -> io::Result<bool> {
    let mut packet = [0; 65_536];
    let len = match socket.recv(&mut packet) {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        Err(error) => return Err(error),
    };
    if pass(&mut packet[..len]).is_some() {
        let _written = device.write(&packet[..len]);
    }
    Ok(true)
}

fn relay(args: &Args) -> io::Result<()> {
    let device = open_device(&args.device)?;
    let socket = UdpSocket::bind(args.bind)?;
    socket.set_nonblocking(true)?;
    println!("relaying");
    loop {
        let mut waited =
            [device.as_fd(), socket.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut waited, PollTimeout::NONE)?;
        // As long as there is something either way.
        while to_nodes(args, &device, &socket)? | from_nodes(&device, &socket)? {}
    }
}

fn main() -> ExitCode {
    match relay(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
