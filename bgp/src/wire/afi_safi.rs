//! Address families by number (RFC 4760).

use caracal_model::Family;

/// SAFI of unicast forwarding (RFC 4760 §6).
pub(crate) const SAFI_UNICAST: u8 = 1;

/// An address family and what is forwarded with it, as numbers; most pairs have no meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AfiSafi {
    /// Address Family Identifier: 1 IPv4, 2 IPv6.
    pub afi: u16,
    /// Subsequent Address Family Identifier: 1 unicast.
    pub safi: u8,
}

impl AfiSafi {
    /// The family when this is IPv4 or IPv6 unicast.
    #[must_use]
    pub const fn family(self) -> Option<Family> {
        match self {
            Self {
                afi: 1,
                safi: SAFI_UNICAST,
            } => Some(Family::Ipv4),
            Self {
                afi: 2,
                safi: SAFI_UNICAST,
            } => Some(Family::Ipv6),
            _ => None,
        }
    }
}

impl From<Family> for AfiSafi {
    /// Unicast of the family.
    fn from(family: Family) -> Self {
        let afi = match family {
            Family::Ipv4 => 1,
            Family::Ipv6 => 2,
        };
        Self {
            afi,
            safi: SAFI_UNICAST,
        }
    }
}
