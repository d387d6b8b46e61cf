//! The message header (RFC 4271 §4.1): 16 octets of ones, length, type.

use super::error::HeaderError;
use super::format::Format;
use super::kind::MARKER;
pub(super) use super::kind::write;
pub use super::kind::{HEADER_LEN, Kind};

/// The length of the message that starts `buffer`; `None` until its header is there. The header is
/// judged as a whole (RFC 4271 §6.1): a length that its type cannot have must not make us wait for
/// what follows.
///
/// # Errors
/// [`HeaderError`] when the marker is wrong, the type is unknown, or the length is none of its
/// type, or above `max`.
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
