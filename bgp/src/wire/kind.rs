//! Message types, and the header that is written before each (RFC 4271 §4.1).

use bytes::{BufMut, BytesMut};

use super::format::MAX_MESSAGE_LEN;

/// Octets of a header, and so of the shortest message.
pub const MESSAGE_HEADER_LEN: usize = 19;
/// Marker of the message header, all ones (RFC 4271 §4.1).
pub(super) const MARKER: [u8; 16] = [0xff; 16];

/// Types of BGP messages (RFC 4271 §4.1), with their octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageType {
    /// OPEN (RFC 4271 §4.2).
    Open = 1,
    /// UPDATE (RFC 4271 §4.3).
    Update = 2,
    /// NOTIFICATION (RFC 4271 §4.5).
    Notification = 3,
    /// KEEPALIVE (RFC 4271 §4.4).
    Keepalive = 4,
    /// ROUTE-REFRESH (RFC 2918 §3).
    RouteRefresh = 5,
}

impl MessageType {
    /// All types, in the order of their octets.
    pub const ALL: [Self; 5] = [
        Self::Open,
        Self::Update,
        Self::Notification,
        Self::Keepalive,
        Self::RouteRefresh,
    ];

    /// From the type octet.
    #[must_use]
    pub(crate) const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(Self::Open),
            2 => Some(Self::Update),
            3 => Some(Self::Notification),
            4 => Some(Self::Keepalive),
            5 => Some(Self::RouteRefresh),
            _ => None,
        }
    }

    /// Octet of the type in the header.
    #[must_use]
    pub const fn octet(self) -> u8 {
        self as u8
    }

    /// The field's name: `UPDATE`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Update => "UPDATE",
            Self::Notification => "NOTIFICATION",
            Self::Keepalive => "KEEPALIVE",
            Self::RouteRefresh => "ROUTE-REFRESH",
        }
    }

    /// Shortest and longest message of this type (RFC 4271 §6.1; RFC 8654 §4 leaves OPEN and
    /// KEEPALIVE at 4096 octets).
    pub(super) const fn lengths(self, max: usize) -> (usize, usize) {
        match self {
            Self::Open => (29, MAX_MESSAGE_LEN),
            Self::Update => (23, max),
            Self::Notification => (21, max),
            Self::Keepalive => (MESSAGE_HEADER_LEN, MESSAGE_HEADER_LEN),
            Self::RouteRefresh => (23, max),
        }
    }
}

/// Appends a message whose body `body` writes.
pub(super) fn write(out: &mut BytesMut, kind: MessageType, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_slice(&MARKER);
    out.put_u16(0);
    out.put_u8(kind.octet());
    body(out);
    let len = out.len() - start;
    super::patch_u16(out, start + MARKER.len(), len);
}
