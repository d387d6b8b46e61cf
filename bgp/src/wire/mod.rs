//! The codec: octets to messages and back.
//!
//! It must never panic, read past its input or keep state between messages. Decoding borrows from
//! the receive buffer and takes one whole message, as [`frame_len`] cuts it. An error carries its
//! handling (RFC 7606), so the caller has nothing left to decide.
//!
//! | file | RFC |
//! |---|---|
//! | this one, `kind` | 4271 §4.1, 8654 |
//! | `open`, `capability` | 4271 §4.2, 5492, 9072; 4760, 6793, 2918, 7313, 4724, 8538, 7911, 8654, 8950, 9494 |
//! | `update`, `attr`, `as_path`, `mp`, `nlri` | 4271 §4.3, 4760, 2545, 6793, 7606, 7607, 1997, 4360, 8092, 4456 |
//! | `notification` | 4271 §4.5, 4486, 9003, 8538, 9687 |
//! | `refresh` | 2918, 7313 |
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

mod afi_safi;
pub(crate) mod as_path;
pub(crate) mod attr;
pub(crate) mod capability;
pub(crate) mod error;
pub(crate) mod format;
mod kind;
pub(crate) mod mp;
pub(crate) mod nlri;
pub(crate) mod notification;
pub(crate) mod open;
mod reader;
pub(crate) mod refresh;
pub(crate) mod update;

use bytes::{BufMut, BytesMut};

use self::kind::MARKER;

pub use capability::{
    AddPathMode, AfiSafi, Capability, GracefulRestartCapability, LongLivedFamily,
};
pub use error::{
    AttrFault, DecodeError, ErrorHandling, HeaderError, OpenError, RefreshError, UpdateError,
    UpdateFault,
};
pub use format::{FamilySet, MAX_MESSAGE_LEN, MessageFormat};
pub use kind::{MESSAGE_HEADER_LEN, MessageType};
pub use nlri::Nlri;
pub use notification::{CeaseSubcode, Notification, NotificationCode};
pub use open::OpenMessage;
pub use refresh::{RefreshKind, RouteRefresh};
pub use update::{
    DecodedUpdate, EncodeError, UpdateMessage, encode_announce, encode_end_of_rib, encode_update,
    encode_withdraw,
};

/// A decoded message of any type.
#[allow(
    clippy::large_enum_variant,
    reason = "UPDATEs are the many; boxing them would cost an allocation each"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// OPEN (RFC 4271 §4.2).
    Open(OpenMessage),
    /// UPDATE, with what was repaired or withdrawn under RFC 7606.
    Update(DecodedUpdate),
    /// NOTIFICATION (RFC 4271 §4.5).
    Notification(Notification),
    /// KEEPALIVE, which has no content (RFC 4271 §4.4).
    Keepalive,
    /// ROUTE-REFRESH (RFC 2918, RFC 7313).
    RouteRefresh(RouteRefresh),
}

impl Message {
    /// Type that the message's header has.
    #[must_use]
    pub const fn kind(&self) -> MessageType {
        match self {
            Self::Open(_) => MessageType::Open,
            Self::Update(_) => MessageType::Update,
            Self::Notification(_) => MessageType::Notification,
            Self::Keepalive => MessageType::Keepalive,
            Self::RouteRefresh(_) => MessageType::RouteRefresh,
        }
    }
}

/// The length of the message that starts `buffer`; `None` until its header is there. The header is
/// judged as a whole (RFC 4271 §6.1): a length that its type cannot have must not make us wait for
/// what follows.
///
/// # Errors
/// [`HeaderError`] when the marker is wrong, the type is unknown, or the length is none of its
/// type, or above `max`.
pub fn frame_len(buffer: &[u8], max: usize) -> Result<Option<usize>, HeaderError> {
    let Some(header) = buffer.first_chunk::<MESSAGE_HEADER_LEN>() else {
        return Ok(None);
    };
    let [marker @ .., high, low, kind] = header;
    if marker != &MARKER {
        return Err(HeaderError::Marker);
    }
    let len = u16::from_be_bytes([*high, *low]);
    let (least, most) = match MessageType::from_octet(*kind) {
        Some(kind) => kind.lengths(max),
        // The length is judged first, for it says where the next message starts.
        None if (MESSAGE_HEADER_LEN..=max).contains(&len.into()) => {
            return Err(HeaderError::Type(*kind));
        }
        None => (MESSAGE_HEADER_LEN, max),
    };
    if usize::from(len) < least || usize::from(len) > most {
        return Err(HeaderError::Length { kind: *kind, len });
    }
    Ok(Some(usize::from(len)))
}

/// Splits one whole message into its type and its body, with the checks of RFC 4271 §6.1.
fn split<'a>(
    message: &'a [u8],
    format: &MessageFormat,
) -> Result<(MessageType, &'a [u8]), HeaderError> {
    let len = frame_len(message, format.max_receive())?;
    let (header, body) = message
        .split_first_chunk::<MESSAGE_HEADER_LEN>()
        .ok_or(HeaderError::Cut { len: message.len() })?;
    let [.., octet] = header;
    if len != Some(message.len()) {
        return Err(HeaderError::Cut { len: message.len() });
    }
    let kind = MessageType::from_octet(*octet).ok_or(HeaderError::Type(*octet))?;
    Ok((kind, body))
}

/// Decodes one whole message, header included.
///
/// # Errors
/// Whatever ends the session; errors that RFC 7606 lets a session survive are in
/// [`DecodedUpdate::faults`].
pub fn decode_message(message: &[u8], format: &MessageFormat) -> Result<Message, DecodeError> {
    let (kind, body) = split(message, format)?;
    Ok(match kind {
        MessageType::Open => Message::Open(open::decode(body)?),
        MessageType::Update => Message::Update(update::decode(body, format)?),
        MessageType::Notification => Message::Notification(Notification::decode(body)),
        MessageType::Keepalive => Message::Keepalive,
        MessageType::RouteRefresh => Message::RouteRefresh(refresh::decode(body)?),
    })
}

/// Appends a KEEPALIVE (RFC 4271 §4.4).
pub fn encode_keepalive(out: &mut BytesMut) {
    kind::write(out, MessageType::Keepalive, |_| ());
}

/// Appends an OPEN (RFC 4271 §4.2).
pub fn encode_open(open: &OpenMessage, out: &mut BytesMut) {
    kind::write(out, MessageType::Open, |out| open::encode(open, out));
}

/// Appends a NOTIFICATION. Data beyond the maximum message size is cut off.
pub fn encode_notification(notification: &Notification, out: &mut BytesMut) {
    kind::write(out, MessageType::Notification, |out| {
        notification.encode(out)
    });
}

/// Appends a ROUTE-REFRESH (RFC 2918, RFC 7313).
pub fn encode_refresh(refresh: &RouteRefresh, out: &mut BytesMut) {
    kind::write(out, MessageType::RouteRefresh, |out| {
        refresh::encode(refresh, out)
    });
}

/// Overwrites two octets at `at`, where `out` already has them. For length fields that are known
/// late.
fn patch_u16(out: &mut BytesMut, at: usize, value: usize) {
    let octets = u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
    if let Some(field) = out.get_mut(at..at + 2) {
        field.copy_from_slice(&octets);
    }
}

/// Appends `value` as one octet. Values that do not fit are cut by the caller; this saturates.
fn put_len_u8(out: &mut BytesMut, value: usize) {
    out.put_u8(u8::try_from(value).unwrap_or(u8::MAX));
}

/// Appends `value` as two octets, saturating like [`put_len_u8`].
fn put_len_u16(out: &mut BytesMut, value: usize) {
    out.put_u16(u16::try_from(value).unwrap_or(u16::MAX));
}

#[cfg(test)]
mod tests;
