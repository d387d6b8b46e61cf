//! Listening to the kernel's notifications, and those that are not about routes and links: changes
//! of next-hop objects, of nftables, and of the sysctls that rtnetlink calls "netconf" (forwarding,
//! `rp_filter`, `proxy_arp`). They are hints: "look again". What changed is read from the kernel,
//! never from a notification, so a lost one costs time and not truth. Only headers are read.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use netlink_sys::{AsyncSocket, SocketAddr, TokioSocket};
use socket2::{SockFilter, SockRef};
use tokio::sync::Notify;

use crate::dataplane::netlink::NetlinkError;
use crate::dataplane::netlink::framing::{attributes, messages};
use crate::nat::nft::TABLE;
use crate::services::SERVICES_TABLE;

/// `RTNLGRP_IPV4_NETCONF` (24) and `RTNLGRP_IPV6_NETCONF` (25) as bits of the bind address.
const NETCONF: u32 = 1 << 23 | 1 << 24;
/// `RTNLGRP_LINK` (1), `RTNLGRP_IPV4_IFADDR` (5) and `RTNLGRP_IPV6_IFADDR` (9).
const ADDRESSES: u32 = 1 << 0 | 1 << 4 | 1 << 8;
/// `RTNLGRP_NEXTHOP` (32).
const NEXTHOP: u32 = 1 << 31;
/// `NFNLGRP_NFTABLES` (7).
const NFTABLES: u32 = 1 << 6;
/// Octets asked for the receive buffer: a table of routes may change at once.
const RECEIVE_BUFFER: u32 = 4 << 20;
/// Octets of `struct nlmsghdr` and of `struct nfgenmsg` behind it.
const NFT_HEADERS: usize = 20;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN`.
const NEW_CHAIN: u16 = 10 << 8 | 3;
/// `NFTA_TABLE_NAME`, and the table in chains, rules, sets and elements: all have number 1.
const TABLE_NAME: u16 = 1;
/// `NFTA_CHAIN_HOOK`, in chains that the kernel itself calls.
const CHAIN_HOOK: u16 = 4;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN`: the end of a transaction.
const NEW_GENERATION: u16 = 10 << 8 | 15;

/// Transactions of our own that may be told of at once: what is told of one is read after the next
/// ones have begun.
const EXPECTED: usize = 8;

/// Whose transactions on our nftables table are our own: those of our socket, and of programs.
/// The kernel names the port of a netlink socket with each change, and a program's first socket has
/// the number of its process. Each counts for one transaction; where it does not hold, the table is
/// read once more.
#[derive(Clone, Debug, Default)]
pub(in crate::dataplane) struct OwnChanges(Arc<Expected>);

#[derive(Debug, Default)]
struct Expected {
    /// Ports of sockets; 0 = none.
    ports: [AtomicU32; EXPECTED],
    /// The place of the next one.
    next: AtomicUsize,
}

impl OwnChanges {
    /// The next transaction by this port, or of this process, is ours.
    pub(in crate::dataplane) fn expect_from(&self, port: u32) {
        let at = self.0.next.fetch_add(1, Ordering::Relaxed) % EXPECTED;
        self.0.ports[at].store(port, Ordering::Relaxed);
    }

    /// True for a message about a change of ours.
    fn are_told_by(&self, message: &[u8]) -> bool {
        let port = message
            .get(12..16)
            .and_then(|octets| octets.try_into().ok());
        let port = port.map_or(0, u32::from_ne_bytes);
        let mut expected = self.0.ports.iter();
        let known = expected.find(|known| port != 0 && known.load(Ordering::Relaxed) == port);
        if let Some(known) = known
            && kind(message) == Some(NEW_GENERATION)
        {
            // Unless another one is expected there by now.
            let _ = known.compare_exchange(port, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        known.is_some()
    }
}

fn kind(message: &[u8]) -> Option<u16> {
    message.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]))
}

/// A task that listens. Ends when dropped.
#[derive(Debug)]
pub(in crate::dataplane) struct Listener(tokio::task::JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Wakes up for each change of a next-hop object that did not come from the netlink socket
/// `own_port`. The kernel does not tell of the routes that go with an object.
pub(in crate::dataplane) fn objects(
    wake_up: Arc<Notify>,
    own_port: u32,
) -> Result<Listener, NetlinkError> {
    let is_hint =
        move |message: &[u8]| crate::dataplane::netlink::objects::is_hint(message, own_port);
    let route = netlink_sys::protocols::NETLINK_ROUTE;
    listen(route, NEXTHOP, wake_up, Some(own_port), is_hint)
}

/// Wakes up for each change of an interface or an address.
pub(in crate::dataplane) fn addresses(wake_up: Arc<Notify>) -> Result<Listener, NetlinkError> {
    let route = netlink_sys::protocols::NETLINK_ROUTE;
    listen(route, ADDRESSES, wake_up, None, |_| true)
}

/// Wakes up for each change of such a sysctl.
pub(in crate::dataplane) fn sysctls(wake_up: Arc<Notify>) -> Result<Listener, NetlinkError> {
    let route = netlink_sys::protocols::NETLINK_ROUTE;
    listen(route, NETCONF, wake_up, None, |_| true)
}

/// Wakes up for each change of this nftables table that is not `own`. `Err` where the kernel has no
/// nftables.
pub(in crate::dataplane) fn table(
    name: &'static str,
    wake_up: Arc<Notify>,
    own: OwnChanges,
) -> Result<Listener, NetlinkError> {
    let netfilter = netlink_sys::protocols::NETLINK_NETFILTER;
    let is_hint = move |message: &[u8]| !own.are_told_by(message) && is_of(message, name);
    listen(netfilter, NFTABLES, wake_up, None, is_hint)
}

/// Wakes up for each change of our own nftables table that is not `own`, and of foreign chains that
/// the kernel calls. `Err` where the kernel has no nftables.
pub(in crate::dataplane) fn nftables(
    wake_up: Arc<Notify>,
    own: OwnChanges,
) -> Result<Listener, NetlinkError> {
    let netfilter = netlink_sys::protocols::NETLINK_NETFILTER;
    let is_hint = move |message: &[u8]| !own.are_told_by(message) && concerns_us(message);
    listen(netfilter, NFTABLES, wake_up, None, is_hint)
}

/// Listens in the calling thread's namespace and wakes up for each message of these groups that is
/// a hint. What came from the socket with the port `own` is not even handed over by the kernel.
pub(in crate::dataplane) fn listen(
    protocol: isize,
    groups: u32,
    wake_up: Arc<Notify>,
    own: Option<u32>,
    is_hint: impl Fn(&[u8]) -> bool + Send + 'static,
) -> Result<Listener, NetlinkError> {
    let mut socket = TokioSocket::new(protocol).map_err(NetlinkError::Open)?;
    let inner = socket.socket_mut();
    if let Some(own) = own {
        SockRef::from(&*inner)
            .attach_filter(&all_but(own))
            .map_err(NetlinkError::Open)?;
    }
    inner
        .set_rx_buf_sz(RECEIVE_BUFFER)
        .map_err(NetlinkError::Open)?;
    inner
        .bind(&SocketAddr::new(0, groups))
        .map_err(NetlinkError::Open)?;
    let task = async move {
        loop {
            match poll_fn(|cx| socket.poll_recv_from_full(cx)).await {
                Ok((datagram, _)) if !messages(&datagram).any(&is_hint) => {}
                Ok(_) => wake_up.notify_one(),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    tracing::warn!(
                        "the kernel's notifications came faster than they were read, and some are lost; everything is read again"
                    );
                    wake_up.notify_one();
                }
                Err(error) => {
                    tracing::error!(%error, "a netlink listener ended; such changes are seen at the next resync only");
                    return;
                }
            }
        }
    };
    Ok(Listener(tokio::spawn(task)))
}

/// A filter (classic BPF) that drops the messages of the socket with this port: of each route that
/// the agent writes the kernel tells everybody who listens, the agent too.
fn all_but(port: u32) -> [SockFilter; 4] {
    // BPF loads numbers in network order, the port is in the machine's.
    let port = u32::from_be_bytes(port.to_ne_bytes());
    [
        // BPF_LD | BPF_W | BPF_ABS: `nlmsg_pid`.
        SockFilter::new(0x20, 0, 0, 12),
        // BPF_JMP | BPF_JEQ | BPF_K: one further where it is another's.
        SockFilter::new(0x15, 0, 1, port),
        // BPF_RET | BPF_K: nothing of it; all of it.
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ]
}

fn concerns_us(message: &[u8]) -> bool {
    // What the table of services holds is nobody's obstacle.
    if is_of(message, SERVICES_TABLE) {
        return false;
    }
    let body = message.get(NFT_HEADERS..).unwrap_or_default();
    let kind = kind(message);
    let hooked = || kind == Some(NEW_CHAIN) && attributes(body).any(|(n, _)| n == CHAIN_HOOK);
    is_of(message, TABLE) || hooked()
}

fn is_of(message: &[u8], table: &str) -> bool {
    let body = message.get(NFT_HEADERS..).unwrap_or_default();
    attributes(body).any(|(number, value)| {
        number == TABLE_NAME && value.strip_suffix(&[0]) == Some(table.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn message(kind: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; NFT_HEADERS];
        for (number, value) in attributes {
            let length = u16::try_from(value.len() + 4).unwrap();
            body.extend(length.to_ne_bytes());
            body.extend(number.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let length = u32::try_from(body.len()).unwrap();
        body[..4].copy_from_slice(&length.to_ne_bytes());
        body[4..6].copy_from_slice(&kind.to_ne_bytes());
        body
    }

    #[test]
    fn our_table_and_hooked_chains_concern_us() {
        let rule = 10 << 8 | 7;
        let ours = message(rule, &[(1, b"caracal\0"), (2, b"forward\0")]);
        let other = message(rule, &[(1, b"filter\0")]);
        let longer = message(rule, &[(1, b"caracal2\0")]);
        let hooked = message(NEW_CHAIN, &[(1, b"filter\0"), (0x8004, b"\0\0\0\0")]);
        let plain = message(NEW_CHAIN, &[(1, b"filter\0"), (3, b"x\0")]);
        for (message, expected) in [
            (&ours, true),
            (&other, false),
            (&longer, false),
            (&hooked, true),
            (&plain, false),
        ] {
            assert_eq!(concerns_us(message), expected, "{message:?}");
        }
        let both = [other, ours].concat();
        assert_eq!(messages(&both).filter(|m| concerns_us(m)).count(), 1);
    }

    /// A message about our table from the socket with this port.
    fn from(port: u32, kind: u16) -> Vec<u8> {
        let mut message = message(kind, &[(1, b"caracal\0")]);
        message[12..16].copy_from_slice(&port.to_ne_bytes());
        message
    }

    #[test]
    fn one_transaction_of_the_own_program_is_no_news() {
        let (element, end) = (10 << 8 | 12, NEW_GENERATION);
        let own = OwnChanges::default();
        assert!(!own.are_told_by(&from(0, element)), "the kernel's own");
        own.expect_from(77);
        assert!(!own.are_told_by(&from(78, element)));
        assert!(!own.are_told_by(&from(78, end)));
        assert!(own.are_told_by(&from(77, element)));
        assert!(own.are_told_by(&from(77, end)));
        assert!(!own.are_told_by(&from(77, element)), "another one");
        own.expect_from(79);
        assert!(!own.are_told_by(&from(79, element)[..14]));
    }

    #[test]
    fn a_transaction_is_ours_also_when_it_is_told_of_after_the_next_has_begun() {
        let (element, end) = (10 << 8 | 12, NEW_GENERATION);
        let own = OwnChanges::default();
        for process in [77, 78, 79] {
            own.expect_from(process);
        }
        for process in [77, 78, 79] {
            assert!(own.are_told_by(&from(process, element)), "{process}");
            assert!(own.are_told_by(&from(process, end)), "{process}");
            assert!(!own.are_told_by(&from(process, element)), "{process}");
        }
        // One that failed tells nothing, and is forgotten by and by.
        for process in 100..=100 + u32::try_from(EXPECTED).unwrap() {
            own.expect_from(process);
        }
        assert!(!own.are_told_by(&from(100, element)));
        assert!(own.are_told_by(&from(101, element)));
    }

    #[test]
    fn broken_messages_end_the_reading() {
        let ours = message(7, &[(1, b"caracal\0")]);
        for cut in 0..ours.len() {
            assert_eq!(messages(&ours[..cut]).count(), 0, "{cut}");
        }
        assert_eq!(
            messages(&[0; 64]).count(),
            0,
            "a length of zero does not loop"
        );
        let mut wrong = ours.clone();
        wrong[20] = 255;
        assert!(!concerns_us(&wrong));
        wrong[20] = 0;
        assert!(
            !concerns_us(&wrong),
            "an attribute without length does not loop"
        );
    }
}
