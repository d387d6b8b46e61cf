//! Cuts the octets of a connection into messages: 19 octets of header, the length field, nothing
//! else.
//!
//! It must never look into a message; that is the codec's.

use bytes::BytesMut;
use tokio_util::codec::Decoder;

use crate::wire::error::HeaderError;
use crate::wire::header::frame_len;

/// The cutter of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    /// Largest message to accept, in octets.
    pub(super) max: usize,
}

/// The stream is out of step, or the connection is gone.
#[derive(Debug, thiserror::Error)]
pub(super) enum FramingError {
    /// No message starts here.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Demanded by tokio's trait; we do the reading ourselves.
    #[error("reading failed")]
    Io(#[from] std::io::Error),
}

impl Decoder for Framing {
    type Item = BytesMut;
    type Error = FramingError;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, FramingError> {
        match frame_len(buffer, self.max)? {
            Some(len) if buffer.len() >= len => Ok(Some(buffer.split_to(len))),
            Some(_) | None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::BufMut;

    use super::*;
    use crate::wire::encode_keepalive;
    use crate::wire::format::{MAX_EXTENDED_MESSAGE, MAX_MESSAGE};
    use crate::wire::header::Kind;

    #[test]
    fn messages_are_cut_whatever_the_pieces_they_come_in() {
        let mut stream = BytesMut::new();
        for _ in 0..3 {
            encode_keepalive(&mut stream);
        }
        let mut framing = Framing { max: MAX_MESSAGE };
        let mut buffer = BytesMut::new();
        let mut cut = 0;
        for octet in stream {
            buffer.extend_from_slice(&[octet]);
            while let Some(message) = framing.decode(&mut buffer).unwrap() {
                assert_eq!(message.len(), 19);
                cut += 1;
            }
        }
        assert_eq!((cut, buffer.len()), (3, 0));
    }

    #[test]
    fn a_stream_that_is_no_bgp_is_refused() {
        let mut framing = Framing { max: MAX_MESSAGE };
        let mut http = BytesMut::from(&b"GET / HTTP/1.1\r\nHost: x\r\n"[..]);
        assert!(matches!(
            framing.decode(&mut http),
            Err(FramingError::Header(HeaderError::Marker))
        ));
        let mut long = BytesMut::from(&[0xff; 19][..]);
        assert!(matches!(
            framing.decode(&mut long),
            Err(FramingError::Header(HeaderError::Length {
                len: 0xffff,
                ..
            }))
        ));
    }

    /// A header whose length its type cannot have is refused while nothing of what it claims is
    /// there.
    #[test]
    fn rfc4271_6_1_lengths_are_judged_as_soon_as_the_header_is_there() {
        let keepalive = Kind::Keepalive.octet();
        let (open, update) = (Kind::Open.octet(), Kind::Update.octet());
        let cases = [
            (keepalive, 0xffff),
            (keepalive, 20),
            (keepalive, 18),
            // RFC 8654 §4: OPEN stays short.
            (open, 4097),
            (open, 28),
            (update, 22),
        ];
        for (kind, len) in cases {
            let mut framing = Framing {
                max: MAX_EXTENDED_MESSAGE,
            };
            let mut buffer = BytesMut::from(&[0xff; 16][..]);
            buffer.put_u16(len);
            assert!(matches!(framing.decode(&mut buffer), Ok(None)), "no type");
            buffer.put_u8(kind);
            let Err(FramingError::Header(error)) = framing.decode(&mut buffer) else {
                panic!("type {kind} of {len} octets is waited for");
            };
            assert_eq!(error, HeaderError::Length { kind, len });
            let answer = error.notification();
            assert_eq!(answer.code.octets(), (1, 2));
            assert_eq!(answer.data[..], len.to_be_bytes());
        }
        let mut framing = Framing { max: MAX_MESSAGE };
        let mut unknown = BytesMut::from(&[0xff; 16][..]);
        unknown.put_u16(4096);
        unknown.put_u8(77);
        let Err(FramingError::Header(error)) = framing.decode(&mut unknown) else {
            panic!("a message of no type is waited for");
        };
        assert_eq!(error, HeaderError::Type(77));
    }
}
