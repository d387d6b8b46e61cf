//! What devices leave to others when they send: checksums of packets inside of tunnels.

use std::io;
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Socket, Type};

/// `ETHTOOL_STXCSUM` (linux/ethtool.h).
const SET_TX_CHECKSUM: u32 = 0x17;

/// Has a device of the calling thread's network namespace leave the checksums of what it sends to
/// the hardware below (`on`), or make them itself: `ethtool -K DEVICE tx on|off`. Some hardware
/// makes wrong ones for packets inside of VXLAN.
///
/// # Errors
/// The system call failed: `ENODEV` = there is no such device, `EOPNOTSUPP` = it has no choice.
#[allow(
    unsafe_code,
    reason = "no library that we have wraps the calls of ethtool"
)]
pub fn set_tx_checksum(device: &str, on: bool) -> io::Result<()> {
    // `struct ethtool_value` (linux/ethtool.h).
    let mut value: [u32; 2] = [SET_TX_CHECKSUM, u32::from(on)];
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: value.as_mut_ptr().cast(),
        },
    };
    // The last octet stays zero.
    let room = libc::IFNAMSIZ - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes().take(room)) {
        *to = from.cast_signed();
    }
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // SAFETY: the descriptor is open while `socket` lives. The kernel reads no more than a whole
    // `struct ifreq`, and of what it points at two numbers, which live until the end.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
