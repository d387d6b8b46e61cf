//! A sign in the machine's network namespace that the daemon runs: a socket with an abstract name.
//! It goes with the process, however that ends, and is seen from each container that shares the
//! machine's network.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::Context as _;

/// What the names begin with; a number follows, as the process after an upgrade begins before the
/// one of before has ended.
const NAME: &str = "caracal-flannel/";
/// Sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";

/// Gives the sign until the socket is dropped.
pub(super) fn announce(number: u64) -> io::Result<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("{NAME}{number:x}"))?;
    UnixDatagram::bind_addr(&address)
}

/// True while somebody gives it.
pub(super) fn is_announced() -> anyhow::Result<bool> {
    let sockets = fs::read_to_string(SOCKETS).context(SOCKETS)?;
    Ok(sockets.lines().any(is_sign))
}

/// Linux writes `@` for the octet with which abstract names begin.
fn is_sign(line: &str) -> bool {
    let name = line
        .rsplit(' ')
        .next()
        .and_then(|name| name.strip_prefix('@'));
    name.is_some_and(|name| name.starts_with(NAME))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_seen_as_long_as_it_runs() {
        assert!(!is_sign(
            "ffff: 00000002 00000000 00000000 0002 01 7 /caracal-flannel/1"
        ));
        let first = announce(0xc0ffee).unwrap();
        let second = announce(0xbee).unwrap();
        assert!(is_announced().unwrap());
        drop(first);
        assert!(is_announced().unwrap(), "the other one runs");
        drop(second);
        assert!(!is_announced().unwrap());
    }
}
