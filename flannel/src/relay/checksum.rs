//! The Internet checksum (RFC 1071).

/// Ones' complement sum of 16-bit words in network order; an odd octet at the end is padded with
/// zero. Sums of pieces of even length may be added.
pub(super) fn sum(octets: &[u8]) -> u32 {
    let words = octets.chunks_exact(4);
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(words.remainder()) {
        *to = *from;
    }
    // The order of octets in a word does not matter until the end (RFC 1071 §2 B).
    let word = |w: &[u8]| u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    let total: u64 = words.map(word).sum::<u64>() + word(&last);
    u32::from(u16::from_be(fold(total)))
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).unwrap_or_default()
}

/// A sum in 16 bits.
pub(super) fn folded(sum: u32) -> u16 {
    fold(u64::from(sum))
}

/// The checksum of what has a sum.
pub(super) fn finish(sum: u32) -> u16 {
    !folded(sum)
}

/// The checksum once a word that it covers has changed (RFC 1624 §3, equation 3).
pub(super) fn update(checksum: u16, before: u16, after: u16) -> u16 {
    finish(u32::from(!checksum) + u32::from(!before) + u32::from(after))
}

/// Sum of the pseudo header of TCP, UDP and `ICMPv6` (RFC 9293 §3.1, RFC 8200 §8.1). `addresses`
/// are source and destination, `len` the octets behind the IP header.
pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, len: usize) -> u32 {
    let len = u32::try_from(len).unwrap_or_default();
    sum(addresses) + u32::from(protocol) + (len & 0xffff) + (len >> 16)
}
