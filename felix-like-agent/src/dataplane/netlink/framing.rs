//! Netlink's framing: messages in a datagram, attributes in a message (`struct nlmsghdr`, `struct
//! nlattr`). Reading never panics and never reads past a length.

/// Octets of `struct nlmsghdr`.
pub(in crate::dataplane) const HEADER: usize = 16;
/// `NLA_F_NESTED`: an attribute with attributes in it.
pub(in crate::dataplane) const NESTED: u16 = 0x8000;

/// The netlink messages of a datagram, header included.
pub(in crate::dataplane) fn messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(word(rest, 0)?).ok()?;
        let message = rest.get(..length).filter(|m| m.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Attributes, as type without flags and value.
pub(in crate::dataplane) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        // Without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        Some((kind & 0x3fff, value))
    })
}

/// Begins a message; [`finish`] ends it.
pub(in crate::dataplane) fn begin(
    datagram: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
) -> usize {
    let start = datagram.len();
    let mut header = [0; HEADER];
    header[4..6].copy_from_slice(&kind.to_ne_bytes());
    header[6..8].copy_from_slice(&flags.to_ne_bytes());
    header[8..12].copy_from_slice(&sequence.to_ne_bytes());
    datagram.extend_from_slice(&header);
    start
}

/// Ends the message that begins at `start`: says how long it is.
pub(in crate::dataplane) fn finish(datagram: &mut [u8], start: usize) {
    // Messages are made here, of a few attributes each; attributes end at a multiple of four.
    let length = u32::try_from(datagram.len() - start).unwrap_or(u32::MAX);
    datagram[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Appends an attribute, with the octets that fill it up to a multiple of four.
pub(in crate::dataplane) fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let start = open(message, kind);
    message.extend_from_slice(value);
    close(message, start);
}

/// Begins an attribute with attributes in it; [`close`] ends it.
pub(in crate::dataplane) fn open(message: &mut Vec<u8>, kind: u16) -> usize {
    let start = message.len();
    message.extend_from_slice(&[0; 2]);
    message.extend_from_slice(&kind.to_ne_bytes());
    start
}

/// Ends what begins at `start` with its length.
pub(in crate::dataplane) fn close(message: &mut Vec<u8>, start: usize) {
    // A list of next hops, or of 256 elements, at most.
    let length = u16::try_from(message.len() - start).unwrap_or(u16::MAX);
    message[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    while !message.len().is_multiple_of(4) {
        message.push(0);
    }
}

/// Appends an attribute that is a name, with the octet that ends it.
pub(in crate::dataplane) fn name(message: &mut Vec<u8>, kind: u16, name: &str) {
    let start = open(message, kind);
    message.extend_from_slice(name.as_bytes());
    message.push(0);
    close(message, start);
}

/// The 32-bit number at an offset.
pub(in crate::dataplane) fn word(octets: &[u8], at: usize) -> Option<u32> {
    let octets = octets.get(at..at + 4)?;
    Some(u32::from_ne_bytes(octets.try_into().ok()?))
}

/// The 16-bit number at an offset.
pub(in crate::dataplane) fn half(octets: &[u8], at: usize) -> Option<u16> {
    let octets = octets.get(at..at + 2)?;
    Some(u16::from_ne_bytes(octets.try_into().ok()?))
}
