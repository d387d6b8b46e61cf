//! Our link-local address beside a global one, for the next hops of a session on a link (RFC 2545 §3).
//!
//! The kernel's list of addresses is read when such a session comes up. What cannot be read is no address: the next
//! hop then is the global one alone.

use std::net::{IpAddr, Ipv6Addr};

use caracal_model::net::Prefix;

use crate::config::PeerConfig;
use crate::fsm::Ends;

/// The addresses of the network namespace.
const LIST: &str = "/proc/thread-self/net/if_inet6";

/// Our link-local address where the peer is on a link of ours and is meant to be.
pub(super) fn towards(peer: &PeerConfig, ends: Ends) -> Option<Ipv6Addr> {
    if peer.ttl != Some(1) && peer.ttl_security != Some(1) {
        return None;
    }
    let (IpAddr::V6(local), IpAddr::V6(remote)) = (ends.local.ip(), ends.remote.ip()) else {
        return None;
    };
    let list = std::fs::read_to_string(LIST).ok()?;
    find(&list, local, remote)
}

struct Entry<'a> {
    address: Ipv6Addr,
    len: u8,
    interface: &'a str,
}

/// `fd000000000000000000000000000001 02 40 00 80 eth0`: address, index, length, scope, flags, all in hexadecimal, and a name.
fn entry(line: &str) -> Option<Entry<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let address = u128::from_str_radix(fields.next()?, 16).ok()?;
    let len = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
    Some(Entry {
        address: address.into(),
        len,
        interface: fields.nth(2)?,
    })
}

/// The link-local address of the interface that has `local` in a subnet with `remote`.
fn find(list: &str, local: Ipv6Addr, remote: Ipv6Addr) -> Option<Ipv6Addr> {
    let entries = || list.lines().filter_map(entry);
    let shared = |entry: &Entry<'_>| {
        entry.address == local && Prefix::truncated(local.into(), entry.len).contains(remote.into())
    };
    let interface = entries().find(shared)?.interface;
    let mut beside = entries().filter(|entry| entry.interface == interface);
    let found = beside.find(|entry| entry.address.is_unicast_link_local())?;
    Some(found.address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LIST: &str = "\
fd000000000000010000000000000001 02 40 00 80     eth0
fe80000000000000beef0000fe000001 02 40 20 80     eth0
fd000000000000020000000000000001 03 40 00 80     eth1
fe80000000000000beef0000fe000002 03 40 20 80     eth1
fd000000000000030000000000000001 04 80 00 80 dummy.long-name
00000000000000000000000000000001 01 80 10 80       lo
";

    #[test]
    fn rfc2545_3_only_on_a_link_that_both_share() {
        let found = |local: &str, remote: &str| {
            let found = find(LIST, local.parse().unwrap(), remote.parse().unwrap());
            found.map(|address| address.to_string())
        };
        let first = Some("fe80::beef:0:fe00:1".to_owned());
        let second = Some("fe80::beef:0:fe00:2".to_owned());
        assert_eq!(found("fd00:0:0:1::1", "fd00:0:0:1::9"), first);
        assert_eq!(found("fd00:0:0:2::1", "fd00:0:0:2::9"), second);
        assert_eq!(found("fd00:0:0:1::1", "fd00:0:0:2::9"), None);
        assert_eq!(found("fd00:0:0:3::1", "fd00:0:0:3::1"), None);
        assert_eq!(found("::1", "::1"), None);
        assert_eq!(found("fd00:0:0:9::1", "fd00:0:0:9::2"), None);
    }
}
