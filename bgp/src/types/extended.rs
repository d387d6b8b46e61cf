//! Extended communities (RFC 4360) as values with a meaning: route targets, route origins, and
//! eight octets of anything else.
//!
//! The text form is that of the field, `rt:64512:100`; the octets are what is stored and sent.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Asn;

/// Type octet of an administrator that is an AS of two octets (RFC 4360 §3.1).
const TWO_OCTET_AS: u8 = 0x00;
/// Of an administrator that is an address (RFC 4360 §3.2).
const ADDRESS: u8 = 0x01;
/// Of an administrator that is an AS of four octets (RFC 5668).
const FOUR_OCTET_AS: u8 = 0x02;
/// Bit of the type octet: the community stays inside the AS (RFC 4360 §2).
const NON_TRANSITIVE: u8 = 0x40;

/// An extended community (RFC 4360): a type of one or two octets and a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExtCommunity(pub [u8; 8]);

/// Sub-type of an AS-specific or IPv4-specific extended community (second octet, RFC 4360 §4, §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtKind {
    /// Route target: where the route is to be imported (RFC 4360 §4).
    RouteTarget,
    /// Route origin: where it was announced (RFC 4360 §5).
    RouteOrigin,
}

impl ExtKind {
    /// Abbreviation in the text form: `rt` or `ro`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RouteTarget => "rt",
            Self::RouteOrigin => "ro",
        }
    }

    const fn subtype(self) -> u8 {
        match self {
            Self::RouteTarget => 2,
            Self::RouteOrigin => 3,
        }
    }
}

/// The administrator of a route target or origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Administrator {
    /// An AS. Whether it takes two octets or four follows from its number.
    As(Asn),
    /// IPv4 address of a router (RFC 4360 §3.2).
    Address(Ipv4Addr),
}

/// Text form of a community.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtForm {
    /// `rt:64512:100`, `ro:10.0.0.1:100`.
    Known(ExtKind, Administrator, u32),
    /// `generic:0x43000000:0x1`: two halves of four octets.
    Generic(u32, u32),
}

impl ExtCommunity {
    /// A route target or origin. `None`: the number does not fit beside an administrator of four
    /// octets.
    #[must_use]
    pub fn known(kind: ExtKind, administrator: Administrator, number: u32) -> Option<Self> {
        let (code, head) = match administrator {
            Administrator::As(asn) if asn.is_two_octet() => {
                let [_, _, a, b] = asn.0.to_be_bytes();
                let [c, d, e, f] = number.to_be_bytes();
                return Some(Self([TWO_OCTET_AS, kind.subtype(), a, b, c, d, e, f]));
            }
            Administrator::As(asn) => (FOUR_OCTET_AS, asn.0.to_be_bytes()),
            Administrator::Address(address) => (ADDRESS, address.octets()),
        };
        let [a, b, c, d] = head;
        let [e, f] = u16::try_from(number).ok()?.to_be_bytes();
        Some(Self([code, kind.subtype(), a, b, c, d, e, f]))
    }

    /// Any, from its halves.
    #[must_use]
    pub const fn generic(first: u32, second: u32) -> Self {
        let [a, b, c, d] = first.to_be_bytes();
        let [e, f, g, h] = second.to_be_bytes();
        Self([a, b, c, d, e, f, g, h])
    }

    /// True when it may leave the AS (RFC 4360 §2).
    #[must_use]
    pub(crate) const fn is_transitive(self) -> bool {
        self.0[0] & NON_TRANSITIVE == 0
    }

    /// Text form. Each community has one form, and each form is one community.
    #[must_use]
    pub fn form(self) -> ExtForm {
        let [code, subtype, a, b, c, d, e, f] = self.0;
        let kind = match subtype {
            2 => ExtKind::RouteTarget,
            3 => ExtKind::RouteOrigin,
            _ => return self.halves(),
        };
        let long = u32::from(u16::from_be_bytes([e, f]));
        match code {
            TWO_OCTET_AS => {
                let asn = Asn(u16::from_be_bytes([a, b]).into());
                let number = u32::from_be_bytes([c, d, e, f]);
                ExtForm::Known(kind, Administrator::As(asn), number)
            }
            ADDRESS => {
                let address = Ipv4Addr::new(a, b, c, d);
                ExtForm::Known(kind, Administrator::Address(address), long)
            }
            FOUR_OCTET_AS => match Asn(u32::from_be_bytes([a, b, c, d])) {
                // The same text is the community with a two-octet AS.
                asn if asn.is_two_octet() => self.halves(),
                asn => ExtForm::Known(kind, Administrator::As(asn), long),
            },
            _ => self.halves(),
        }
    }

    fn halves(self) -> ExtForm {
        let [a, b, c, d, e, f, g, h] = self.0;
        ExtForm::Generic(
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
        )
    }
}

impl fmt::Display for ExtCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form() {
            ExtForm::Known(kind, Administrator::As(asn), number) => {
                write!(f, "{}:{asn}:{number}", kind.as_str())
            }
            ExtForm::Known(kind, Administrator::Address(address), number) => {
                write!(f, "{}:{address}:{number}", kind.as_str())
            }
            ExtForm::Generic(first, second) => write!(f, "generic:{first:#x}:{second:#x}"),
        }
    }
}

impl fmt::Debug for ExtCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no extended community.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no extended community; expected rt:AS:NUMBER, ro:ADDRESS:NUMBER (16 bits beside an address or an AS above 65535) or generic:NUMBER:NUMBER"
)]
pub struct ExtCommunityError(pub String);

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse(text: &str) -> Option<ExtCommunity> {
    let mut parts = text.split(':');
    let (word, first, second) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let kind = match word {
        "rt" => ExtKind::RouteTarget,
        "ro" => ExtKind::RouteOrigin,
        "generic" => return Some(ExtCommunity::generic(number(first)?, number(second)?)),
        _ => return None,
    };
    let administrator = match first.parse() {
        Ok(address) => Administrator::Address(address),
        Err(_) => Administrator::As(Asn(number(first)?)),
    };
    ExtCommunity::known(kind, administrator, number(second)?)
}

impl FromStr for ExtCommunity {
    type Err = ExtCommunityError;

    fn from_str(text: &str) -> Result<Self, ExtCommunityError> {
        parse(text).ok_or_else(|| ExtCommunityError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc4360_3_the_octets_of_each_form() {
        for (text, octets) in [
            ("rt:64512:100", [0, 2, 0xfc, 0, 0, 0, 0, 100]),
            ("ro:1:65536", [0, 3, 0, 1, 0, 1, 0, 0]),
            ("rt:10.0.0.1:7", [1, 2, 10, 0, 0, 1, 0, 7]),
            ("ro:70000:7", [2, 3, 0, 1, 0x11, 0x70, 0, 7]),
            ("generic:0x43000000:0x1", [0x43, 0, 0, 0, 0, 0, 0, 1]),
            // Four octets for a number that fits two: another community than rt:1:7.
            ("generic:0x2020000:0x10007", [2, 2, 0, 0, 0, 1, 0, 7]),
        ] {
            let parsed: ExtCommunity = text.parse().unwrap();
            assert_eq!(parsed, ExtCommunity(octets), "{text}");
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn what_does_not_fit_is_no_community() {
        for text in [
            "rt:70000:65536",
            "rt:10.0.0.1:65536",
            "rt:1",
            "rt:1:2:3",
            "rt:x:2",
            "1:2",
            "generic:0x100000000:1",
            "",
        ] {
            assert!(text.parse::<ExtCommunity>().is_err(), "{text}");
        }
    }

    #[test]
    fn rfc4360_2_a_bit_says_whether_it_leaves_the_as() {
        assert!(ExtCommunity([0, 2, 0, 0, 0, 0, 0, 0]).is_transitive());
        assert!(ExtCommunity([0x80, 2, 0, 0, 0, 0, 0, 0]).is_transitive());
        assert!(!ExtCommunity([0x40, 4, 0, 0, 0, 0, 0, 0]).is_transitive());
        assert!(!ExtCommunity([0xc0, 4, 0, 0, 0, 0, 0, 0]).is_transitive());
    }

    proptest! {
        #[test]
        fn any_octets_can_be_written_and_read_back(octets: [u8; 8], code in 0u8..4, subtype in 1u8..5) {
            for octets in [octets, [code, subtype, octets[2], octets[3], octets[4], octets[5], octets[6], octets[7]]] {
                let community = ExtCommunity(octets);
                prop_assert_eq!(community.to_string().parse::<ExtCommunity>(), Ok(community));
            }
        }
    }
}
