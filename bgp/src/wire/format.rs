//! Form of the messages on a session, as both OPENs have settled it.

use std::fmt;

use caracal_model::Family;

/// The standard maximum message size in octets, header included (RFC 4271 §4.1).
pub const MAX_MESSAGE_LEN: usize = 4096;
/// The maximum after the Extended Message capability (RFC 8654 §3): the length field's own limit.
pub(crate) const MAX_EXTENDED_MESSAGE: usize = 65535;

/// A set of address families.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FamilySet {
    ipv4: bool,
    ipv6: bool,
}

impl FamilySet {
    /// The empty set.
    pub const NONE: Self = Self {
        ipv4: false,
        ipv6: false,
    };
    /// Both families.
    pub const ALL: Self = Self {
        ipv4: true,
        ipv6: true,
    };

    /// True when `family` is in the set.
    #[must_use]
    pub const fn contains(self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Adds `family`.
    pub const fn insert(&mut self, family: Family) {
        match family {
            Family::Ipv4 => self.ipv4 = true,
            Family::Ipv6 => self.ipv6 = true,
        }
    }

    /// Families in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self {
            ipv4: self.ipv4 && other.ipv4,
            ipv6: self.ipv6 && other.ipv6,
        }
    }

    /// True for the empty set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.ipv4 && !self.ipv6
    }

    /// The families, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = Family> {
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter(move |family| self.contains(*family))
    }
}

impl FromIterator<Family> for FamilySet {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let mut set = Self::NONE;
        for family in families {
            set.insert(family);
        }
        set
    }
}

impl From<&[Family]> for FamilySet {
    fn from(families: &[Family]) -> Self {
        families.iter().copied().collect()
    }
}

impl fmt::Display for FamilySet {
    /// `IPv4, IPv6`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match (self.ipv4, self.ipv6) {
            (true, true) => "IPv4, IPv6",
            (true, false) => "IPv4",
            (false, true) => "IPv6",
            (false, false) => "none",
        })
    }
}

impl fmt::Debug for FamilySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Format of a session's messages. One per connection; sessions whose formats are equal can share
/// encoded messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageFormat {
    /// AS numbers in AS_PATH and AGGREGATOR have four octets (RFC 6793): both sides said so.
    pub four_octet_as: bool,
    /// Messages of up to 65535 octets may be received (RFC 8654 §4: a speaker that announces the
    /// capability must accept them).
    pub extended_receive: bool,
    /// Messages of up to 65535 octets may be sent: the peer announced it.
    pub extended_send: bool,
    /// The peer is in our AS.
    pub internal: bool,
    /// Families that both sides announced.
    pub families: FamilySet,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// Families whose prefixes come with a path identifier (RFC 7911).
    pub path_ids_in: FamilySet,
    /// Families whose prefixes we send with a path identifier.
    pub path_ids_out: FamilySet,
}

impl Default for MessageFormat {
    /// Form before the OPENs: the plainest session of RFC 4271.
    fn default() -> Self {
        Self {
            four_octet_as: false,
            extended_receive: false,
            extended_send: false,
            internal: false,
            families: FamilySet {
                ipv4: true,
                ipv6: false,
            },
            extended_next_hop: false,
            path_ids_in: FamilySet::NONE,
            path_ids_out: FamilySet::NONE,
        }
    }
}

impl MessageFormat {
    /// Largest message we may send, in octets.
    #[must_use]
    pub(crate) const fn max_send(&self) -> usize {
        if self.extended_send {
            MAX_EXTENDED_MESSAGE
        } else {
            MAX_MESSAGE_LEN
        }
    }

    /// Largest message we accept, in octets.
    #[must_use]
    pub const fn max_receive(&self) -> usize {
        if self.extended_receive {
            MAX_EXTENDED_MESSAGE
        } else {
            MAX_MESSAGE_LEN
        }
    }
}
