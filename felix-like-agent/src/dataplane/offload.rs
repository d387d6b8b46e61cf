//! What devices leave to others when they send: checksums of packets inside of tunnels.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;

use caracal_model::IfName;
use socket2::{Domain, Socket, Type};

use crate::links::Link;

/// `ETHTOOL_STXCSUM` (linux/ethtool.h).
const SET_TX_CHECKSUM: u32 = 0x17;

/// Devices of which it was set who makes the checksums of what they send.
#[derive(Debug, Default)]
pub struct TxChecksums {
    /// By the kernel's index, with the setting then.
    done: BTreeMap<u32, (IfName, bool)>,
}

impl TxChecksums {
    /// Has these devices of the calling thread's network namespace leave checksums to the hardware
    /// below (`true`), or make them themselves (`false`); `None`: they keep what they have. Each
    /// device is set once, also one that somebody has made again. What the kernel refuses is
    /// logged.
    pub fn keep<'a>(&mut self, on: Option<bool>, devices: impl IntoIterator<Item = &'a Link>) {
        let Some(on) = on else {
            self.done.clear();
            return;
        };
        let before = std::mem::take(&mut self.done);
        for device in devices {
            let now = (device.name.clone(), on);
            if before.get(&device.index) != Some(&now) {
                let name = device.name.as_str();
                match set_tx_checksum(name, on) {
                    Ok(()) => tracing::info!(device = name, on, "checksums are set"),
                    Err(error) => {
                        tracing::error!(device = name, on, %error, "checksums cannot be set");
                    }
                }
            }
            self.done.insert(device.index, now);
        }
    }
}

/// `ethtool -K DEVICE tx on|off`.
///
/// # Errors
/// The system call failed: `ENODEV` = there is no such device, `EOPNOTSUPP` = it has no choice.
#[allow(
    unsafe_code,
    reason = "no library that we have wraps the calls of ethtool"
)]
fn set_tx_checksum(device: &str, on: bool) -> io::Result<()> {
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
