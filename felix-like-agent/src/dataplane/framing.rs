//! Netlink's framing: messages in a datagram, attributes in a message (`struct nlmsghdr`, `struct nlattr`). Reading never
//! panics and never reads past a length.

/// Octets of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;

/// The netlink messages of a datagram, header included.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(word(rest, 0)?).ok()?;
        let message = rest.get(..length).filter(|m| m.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Attributes, as type without flags and value.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        // Without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        Some((kind & 0x3fff, value))
    })
}

/// The 32-bit number at an offset.
pub(super) fn word(octets: &[u8], at: usize) -> Option<u32> {
    let octets = octets.get(at..at + 4)?;
    Some(u32::from_ne_bytes(octets.try_into().ok()?))
}

/// The 16-bit number at an offset.
pub(super) fn half(octets: &[u8], at: usize) -> Option<u16> {
    let octets = octets.get(at..at + 2)?;
    Some(u16::from_ne_bytes(octets.try_into().ok()?))
}
