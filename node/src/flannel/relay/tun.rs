//! The TUN device: made by who opens it, and gone with its last descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::libc;

/// Where the kernel gives devices out.
pub(super) const CLONE: &str = "/dev/net/tun";
/// IP packets without a prefix of four octets, but with an offload header; several queues.
const FLAGS: libc::c_int =
    libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
/// Checksums, and TCP of both families, may be left to the reader.
const OFFLOAD: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;

/// `struct ifreq` (netdevice(7)).
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a device and opens it so many times: each descriptor is a queue, and the kernel gives all
/// packets of a flow to one. Reads do not wait.
///
/// # Errors
/// The system call failed: `EBUSY` = there is such a device already.
pub(super) fn open_queues(name: &str, count: usize) -> io::Result<Vec<File>> {
    let mut queues = Vec::with_capacity(count);
    for place in 0..count {
        // A second daemon must not become a queue of the first one's device.
        let more = if place == 0 { libc::IFF_TUN_EXCL } else { 0 };
        queues.push(open_queue(name, FLAGS | more)?);
    }
    Ok(queues)
}

#[allow(
    unsafe_code,
    reason = "no library that we have wraps the calls of TUN devices"
)]
fn open_queue(name: &str, flags: libc::c_int) -> io::Result<File> {
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: u16::try_from(flags).map_err(io::Error::other)?,
        rest: [0; 22],
    };
    // The last octet stays zero.
    let room = libc::IFNAMSIZ - 1;
    for (to, from) in request.name.iter_mut().zip(name.bytes().take(room)) {
        *to = from;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let file = options.custom_flags(libc::O_NONBLOCK).open(CLONE)?;
    // SAFETY: the descriptor is open. The kernel reads and writes no more than a whole
    // `struct ifreq`, and the request has its size.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(made)?;
    // SAFETY: the descriptor is open, and the argument is a number.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, OFFLOAD) };
    Errno::result(set)?;
    Ok(file)
}
