//! A relay of the backend `udp` with one read and one send for each packet, as the first ones were:
//! what [`super`] compares with. It has one peer, and looks nothing up.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};

/// Flannel's name of the device.
pub const DEVICE: &str = "flannel0";
/// Flannel's port.
const PORT: u16 = 8285;
/// More than any packet has.
const ROOM: usize = 65_536;

/// Arguments of the relay.
#[derive(Clone, Debug, clap::Args)]
pub struct OneByOneArgs {
    /// First address of the peer's /24.
    subnet: Ipv4Addr,
    /// The peer's machine.
    peer: Ipv4Addr,
}

/// `struct ifreq` (netdevice(7)).
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// TUN, without a header before each packet (`IFF_TUN | IFF_NO_PI`).
const FLAGS: u16 = 0x1001;
const TUNSETIFF: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<std::ffi::c_int>(b'T', 202);

pub fn serve(args: &OneByOneArgs) -> Result<()> {
    let mut device = open().context("cannot make the device")?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    socket.set_nonblocking(true)?;
    let peer = SocketAddr::from((args.peer, PORT));
    let mut buffer = vec![0; ROOM];
    loop {
        let mut both = [
            PollFd::new(&device, PollFlags::IN),
            PollFd::new(&socket, PollFlags::IN),
        ];
        poll(&mut both, None)?;
        while outbound(&mut device, &socket, args.subnet, peer, &mut buffer)?
            | inbound(&mut device, &socket, &mut buffer)?
        {}
    }
}

#[allow(unsafe_code, reason = "rustix wraps no call of TUN devices")]
fn open() -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits();
    let file = options
        .custom_flags(nonblocking.cast_signed())
        .open("/dev/net/tun")?;
    let mut name = [0; 16];
    name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    let request = InterfaceRequest {
        name,
        flags: FLAGS,
        rest: [0; 22],
    };
    // SAFETY: the request is a whole `struct ifreq`, and the kernel reads no more than that.
    let setter = unsafe { rustix::ioctl::Setter::<TUNSETIFF, InterfaceRequest>::new(request) };
    // SAFETY: the descriptor is that of the driver of TUN devices.
    unsafe { rustix::ioctl::ioctl(&file, setter)? };
    Ok(file)
}

/// One packet from the device to the peer; false when there is none.
fn outbound(
    device: &mut File,
    socket: &UdpSocket,
    subnet: Ipv4Addr,
    peer: SocketAddr,
    buffer: &mut [u8],
) -> Result<bool> {
    let len = match device.read(buffer) {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
        // Not up yet.
        Err(error) if error.raw_os_error() == Some(5) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let packet = &mut buffer[..len];
    if takes_a_hop(packet) && packet[16..19] == subnet.octets()[..3] {
        match socket.send_to(packet, peer) {
            Ok(_) => {}
            // As a full link: the sender sees a loss.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// One packet from a peer to the device; false when there is none.
fn inbound(device: &mut File, socket: &UdpSocket, buffer: &mut [u8]) -> Result<bool> {
    let len = match socket.recv(buffer) {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if takes_a_hop(&mut buffer[..len]) {
        let _written = device.write(&buffer[..len]);
    }
    Ok(true)
}

/// Takes one off an IPv4 packet's TTL and mends the checksum (RFC 1141); false for what is to be
/// dropped.
fn takes_a_hop(packet: &mut [u8]) -> bool {
    if packet.len() < 20 || packet[0] >> 4 != 4 || packet[8] <= 1 {
        return false;
    }
    packet[8] -= 1;
    let sum = u32::from(u16::from_be_bytes([packet[10], packet[11]])) + 0x100;
    let [.., high, low] = (sum + (sum >> 16)).to_be_bytes();
    (packet[10], packet[11]) = (high, low);
    true
}
