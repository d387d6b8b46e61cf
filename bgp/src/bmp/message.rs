//! The octets of each message (RFC 7854 §4).

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use caracal_model::Family;

use super::{
    BmpPeerDown, BmpStatistic, BmpTermination, BmpTimestamp, MonitoredSession, PolicyView,
};
use crate::wire::capability::AfiSafi;
use crate::wire::encode_notification;
use crate::wire::notification::truncate;

/// Version of BMP that RFC 7854 defines.
const VERSION: u8 = 3;
/// Octets of the common header: version, length, type.
pub const BMP_COMMON_HEADER: usize = 6;

/// Message types (RFC 7854 §4.1).
mod kind {
    pub(super) const ROUTE_MONITORING: u8 = 0;
    pub(super) const STATISTICS: u8 = 1;
    pub(super) const PEER_DOWN: u8 = 2;
    pub(super) const PEER_UP: u8 = 3;
    pub(super) const INITIATION: u8 = 4;
    pub(super) const TERMINATION: u8 = 5;
}

/// Peer flags (RFC 7854 §4.2).
mod flag {
    /// The peer's address is of IPv6.
    pub(super) const V: u8 = 0x80;
    /// The routes are those after import policy.
    pub(super) const L: u8 = 0x40;
}

/// Information TLVs of Initiation (RFC 7854 §4.4).
const SYS_DESCR: u16 = 1;
const SYS_NAME: u16 = 2;
/// Information TLV of Termination (RFC 7854 §4.5).
const REASON: u16 = 1;
/// Longest text of a TLV, in octets: RFC 7854 §4.4 takes those of MIB-II.
const MAX_TEXT: usize = 255;

/// Appends a message around `body`.
fn message(kind: u8, out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u8(VERSION);
    out.put_u32(0);
    out.put_u8(kind);
    body(out);
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(start + 1..start + 5) {
        field.copy_from_slice(&len.to_be_bytes());
    }
}

/// An address in sixteen octets; IPv4 in the last four.
fn put_address(address: IpAddr, out: &mut BytesMut) {
    match address {
        IpAddr::V4(v4) => {
            out.put_slice(&[0; 12]);
            out.put_slice(&v4.octets());
        }
        IpAddr::V6(v6) => out.put_slice(&v6.octets()),
    }
}

/// The per-peer header (RFC 7854 §4.2). The peer is of the global instance (type 0), so its
/// distinguisher is zero.
fn put_peer(session: &MonitoredSession, view: PolicyView, time: BmpTimestamp, out: &mut BytesMut) {
    let address = session.remote.ip().to_canonical();
    let family = if address.is_ipv6() { flag::V } else { 0 };
    let policy = match view {
        PolicyView::PrePolicy => 0,
        PolicyView::PostPolicy => flag::L,
    };
    out.put_u8(0);
    out.put_u8(family | policy);
    out.put_u64(0);
    put_address(address, out);
    out.put_u32(session.asn.0);
    out.put_u32(session.router_id.number());
    out.put_u32(u32::try_from(time.0.as_secs()).unwrap_or(u32::MAX));
    out.put_u32(time.0.subsec_micros());
}

fn put_tlv(kind: u16, value: &[u8], out: &mut BytesMut) {
    out.put_u16(kind);
    out.put_u16(u16::try_from(value.len()).unwrap_or(u16::MAX));
    out.put_slice(value);
}

fn put_text(kind: u16, text: &str, out: &mut BytesMut) {
    put_tlv(kind, truncate(text, MAX_TEXT).as_bytes(), out);
}

/// Appends an Initiation with sysName and sysDescr (RFC 7854 §4.3).
pub fn encode_bmp_initiation(name: &str, description: &str, out: &mut BytesMut) {
    message(kind::INITIATION, out, |out| {
        put_text(SYS_DESCR, description, out);
        put_text(SYS_NAME, name, out);
    });
}

/// Appends a Termination (RFC 7854 §4.5).
pub fn encode_bmp_termination(reason: BmpTermination, out: &mut BytesMut) {
    message(kind::TERMINATION, out, |out| {
        put_tlv(REASON, &(reason as u16).to_be_bytes(), out);
    });
}

/// Appends a Peer Up (RFC 7854 §4.10). `time`: since when the session is established.
pub fn encode_bmp_peer_up(session: &MonitoredSession, time: BmpTimestamp, out: &mut BytesMut) {
    message(kind::PEER_UP, out, |out| {
        put_peer(session, PolicyView::PrePolicy, time, out);
        put_address(session.local.ip().to_canonical(), out);
        out.put_u16(session.local.port());
        out.put_u16(session.remote.port());
        out.put_slice(&session.opens.sent);
        out.put_slice(&session.opens.received);
    });
}

/// Appends a Peer Down (RFC 7854 §4.9). A station drops all routes of the peer.
pub fn encode_bmp_peer_down(
    session: &MonitoredSession,
    time: BmpTimestamp,
    reason: &BmpPeerDown,
    out: &mut BytesMut,
) {
    message(kind::PEER_DOWN, out, |out| {
        put_peer(session, PolicyView::PrePolicy, time, out);
        match reason {
            BmpPeerDown::LocalNotification(notification) => {
                out.put_u8(1);
                encode_notification(notification, out);
            }
            BmpPeerDown::Local(event) => {
                out.put_u8(2);
                out.put_u16(*event);
            }
            BmpPeerDown::RemoteNotification(notification) => {
                out.put_u8(3);
                encode_notification(notification, out);
            }
            BmpPeerDown::Remote => out.put_u8(4),
            BmpPeerDown::DeConfigured => out.put_u8(5),
        }
    });
}

/// Appends a Route Monitoring around one UPDATE, a whole message (RFC 7854 §4.6).
pub fn encode_bmp_route_monitoring(
    session: &MonitoredSession,
    view: PolicyView,
    time: BmpTimestamp,
    update: &[u8],
    out: &mut BytesMut,
) {
    message(kind::ROUTE_MONITORING, out, |out| {
        put_peer(session, view, time, out);
        out.put_slice(update);
    });
}

/// Appends a Stats Report (RFC 7854 §4.8).
pub fn encode_bmp_statistics(
    session: &MonitoredSession,
    time: BmpTimestamp,
    numbers: &[BmpStatistic],
    out: &mut BytesMut,
) {
    message(kind::STATISTICS, out, |out| {
        put_peer(session, PolicyView::PrePolicy, time, out);
        out.put_u32(u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        for number in numbers {
            put_statistic(*number, out);
        }
    });
}

fn put_statistic(number: BmpStatistic, out: &mut BytesMut) {
    match number {
        BmpStatistic::AdjRibIn(count) => put_tlv(7, &count.to_be_bytes(), out),
        BmpStatistic::AdjRibInOf(family, count) => put_family_gauge(9, family, count, out),
        BmpStatistic::AdjRibOut(count) => put_tlv(15, &count.to_be_bytes(), out),
    }
}

/// AFI, SAFI and a 64-bit gauge.
fn put_family_gauge(kind: u16, family: Family, count: u64, out: &mut BytesMut) {
    let family: AfiSafi = family.into();
    out.put_u16(kind);
    out.put_u16(11);
    out.put_u16(family.afi);
    out.put_u8(family.safi);
    out.put_u64(count);
}
