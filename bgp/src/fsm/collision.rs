//! Connection collision detection (RFC 4271 §6.8).

use super::ConnectionId;
use crate::types::{Asn, RouterId};

/// Which of two connections between the same speakers survives. Both ends come to the same answer.
///
/// RFC 4271 §6.8: BGP Identifiers are compared as unsigned integers; the connection that the
/// speaker with the higher one dialled survives. RFC 6286 §2.3: between equal identifiers (possible
/// across ASes), the AS numbers decide.
#[must_use]
pub(crate) fn survivor(local: (RouterId, Asn), remote: (RouterId, Asn)) -> ConnectionId {
    if (local.0.number(), local.1) < (remote.0.number(), remote.1) {
        ConnectionId::In
    } else {
        ConnectionId::Out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(octets: [u8; 4], asn: u32) -> (RouterId, Asn) {
        (RouterId(octets.into()), Asn(asn))
    }

    #[test]
    fn rfc4271_6_8_the_higher_identifier_keeps_what_it_dialled() {
        let (low, high) = (id([9, 255, 255, 255], 2), id([10, 0, 0, 0], 1));
        assert_eq!(survivor(low, high), ConnectionId::In);
        assert_eq!(survivor(high, low), ConnectionId::Out);
        // Unsigned: 200.0.0.1 is above 100.0.0.1.
        assert_eq!(
            survivor(id([200, 0, 0, 1], 1), id([100, 0, 0, 1], 1)),
            ConnectionId::Out
        );
    }

    #[test]
    fn rfc6286_2_3_between_equal_identifiers_the_as_decides() {
        let (low, high) = (id([1, 1, 1, 1], 64512), id([1, 1, 1, 1], 64513));
        assert_eq!(survivor(low, high), ConnectionId::In);
        assert_eq!(survivor(high, low), ConnectionId::Out);
    }
}
