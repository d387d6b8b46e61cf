//! The message header (RFC 4271 §4.1): 16 octets of ones, length, type.

use bytes::{BufMut, BytesMut};

use super::error::HeaderError;
use super::format::{Format, MAX_MESSAGE};

/// Octets of a header, and so of the shortest message.
pub const HEADER_LEN: usize = 19;
const MARKER: [u8; 16] = [0xff; 16];

/// Message types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// 1.
    Open = 1,
    /// 2.
    Update = 2,
    /// 3.
    Notification = 3,
    /// 4.
    Keepalive = 4,
    /// 5 (RFC 2918).
    RouteRefresh = 5,
}

impl Kind {
    /// Every type.
    pub const ALL: [Self; 5] = [
        Self::Open,
        Self::Update,
        Self::Notification,
        Self::Keepalive,
        Self::RouteRefresh,
    ];

    /// From the type octet.
    #[must_use]
    pub const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(Self::Open),
            2 => Some(Self::Update),
            3 => Some(Self::Notification),
            4 => Some(Self::Keepalive),
            5 => Some(Self::RouteRefresh),
            _ => None,
        }
    }

    /// The type octet.
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

    /// Shortest and longest message of this type (RFC 4271 §6.1; RFC 8654 §4 leaves OPEN and KEEPALIVE at
    /// 4096 octets).
    const fn lengths(self, max: usize) -> (usize, usize) {
        match self {
            Self::Open => (29, MAX_MESSAGE),
            Self::Update => (23, max),
            Self::Notification => (21, max),
            Self::Keepalive => (HEADER_LEN, HEADER_LEN),
            Self::RouteRefresh => (23, max),
        }
    }
}

/// The length of the message that starts `buffer`; `None` until its header is there. The header is judged as a whole
/// (RFC 4271 §6.1): a length that its type cannot have must not make us wait for what follows.
///
/// # Errors
/// [`HeaderError`] when the marker is wrong, the type is unknown, or the length is none of its type, or above `max`.
pub fn frame_len(buffer: &[u8], max: usize) -> Result<Option<usize>, HeaderError> {
    let Some(header) = buffer.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let [marker @ .., high, low, kind] = header;
    if marker != &MARKER {
        return Err(HeaderError::Marker);
    }
    let len = u16::from_be_bytes([*high, *low]);
    let (least, most) = match Kind::from_octet(*kind) {
        Some(kind) => kind.lengths(max),
        // The length is judged first, for it says where the next message starts.
        None if (HEADER_LEN..=max).contains(&len.into()) => return Err(HeaderError::Type(*kind)),
        None => (HEADER_LEN, max),
    };
    if usize::from(len) < least || usize::from(len) > most {
        return Err(HeaderError::Length { kind: *kind, len });
    }
    Ok(Some(usize::from(len)))
}

/// Splits one whole message into its type and its body, with the checks of RFC 4271 §6.1.
pub(super) fn split<'a>(
    message: &'a [u8],
    format: &Format,
) -> Result<(Kind, &'a [u8]), HeaderError> {
    let len = frame_len(message, format.max_receive())?;
    let (header, body) = message
        .split_first_chunk::<HEADER_LEN>()
        .ok_or(HeaderError::Cut { len: message.len() })?;
    let [.., octet] = header;
    if len != Some(message.len()) {
        return Err(HeaderError::Cut { len: message.len() });
    }
    let kind = Kind::from_octet(*octet).ok_or(HeaderError::Type(*octet))?;
    Ok((kind, body))
}

/// Appends a message whose body `body` writes.
pub(super) fn write(out: &mut BytesMut, kind: Kind, body: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_slice(&MARKER);
    out.put_u16(0);
    out.put_u8(kind.octet());
    body(out);
    let len = out.len() - start;
    super::patch_u16(out, start + MARKER.len(), len);
}
