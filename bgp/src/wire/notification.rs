//! NOTIFICATION: the last message of a session (RFC 4271 §4.5 and §6).
//!
//! Codes and subcodes of RFC 4271, 4486 (Cease), 7313 (refresh), 8538 (hard reset) and 9687 (send
//! hold timer); the shutdown communication of RFC 9003.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::afi_safi::AfiSafi;

/// Longest shutdown communication in octets (RFC 9003 §2: the length field's own limit).
pub(crate) const MAX_SHUTDOWN_TEXT: usize = 255;
/// Longest data we send: the standard message size minus header and codes.
const MAX_DATA: usize = super::format::MAX_MESSAGE_LEN - super::kind::MESSAGE_HEADER_LEN - 2;

/// Subcode enums: number, variant, and the name in the IANA registry.
macro_rules! subcodes {
    ($(#[$doc:meta])* $name:ident { $($number:literal $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $text] $variant,)*
            /// A number that no standard defines.
            Other(u8),
        }

        impl $name {
            /// All subcodes that a standard defines.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The subcode that an octet stands for.
            #[must_use]
            pub(crate) const fn from_octet(octet: u8) -> Self {
                match octet {
                    $($number => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// Octet of the subcode in the message.
            #[must_use]
            pub const fn octet(self) -> u8 {
                match self {
                    $(Self::$variant => $number,)*
                    Self::Other(octet) => octet,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($text),)*
                    Self::Other(octet) => write!(f, "subcode {octet}"),
                }
            }
        }
    };
}

subcodes! {
    /// Message Header Error subcodes (RFC 4271 §6.1).
    HeaderSubcode {
        0 Unspecific "Unspecific",
        1 NotSynchronized "Connection Not Synchronized",
        2 BadLength "Bad Message Length",
        3 BadType "Bad Message Type",
    }
}

subcodes! {
    /// OPEN Message Error subcodes (RFC 4271 §6.2, RFC 5492, RFC 9234).
    OpenSubcode {
        0 Unspecific "Unspecific",
        1 UnsupportedVersion "Unsupported Version Number",
        2 BadPeerAs "Bad Peer AS",
        3 BadIdentifier "Bad BGP Identifier",
        4 UnsupportedParameter "Unsupported Optional Parameter",
        6 UnacceptableHoldTime "Unacceptable Hold Time",
        7 UnsupportedCapability "Unsupported Capability",
        11 RoleMismatch "Role Mismatch",
    }
}

subcodes! {
    /// UPDATE Message Error subcodes (RFC 4271 §6.3).
    UpdateSubcode {
        0 Unspecific "Unspecific",
        1 MalformedList "Malformed Attribute List",
        2 UnrecognizedWellKnown "Unrecognized Well-known Attribute",
        3 MissingWellKnown "Missing Well-known Attribute",
        4 Flags "Attribute Flags Error",
        5 Length "Attribute Length Error",
        6 Origin "Invalid ORIGIN Attribute",
        8 NextHop "Invalid NEXT_HOP Attribute",
        9 OptionalAttribute "Optional Attribute Error",
        10 InvalidNetwork "Invalid Network Field",
        11 AsPath "Malformed AS_PATH",
    }
}

subcodes! {
    /// Finite State Machine Error subcodes (RFC 6608).
    FsmSubcode {
        0 Unspecific "Unspecified Error",
        1 InOpenSent "Receive Unexpected Message in OpenSent State",
        2 InOpenConfirm "Receive Unexpected Message in OpenConfirm State",
        3 InEstablished "Receive Unexpected Message in Established State",
    }
}

subcodes! {
    /// Cease subcodes (RFC 4486, RFC 8538, RFC 9384).
    CeaseSubcode {
        0 Unspecific "Unspecific",
        1 MaximumPrefixes "Maximum Number of Prefixes Reached",
        2 AdministrativeShutdown "Administrative Shutdown",
        3 PeerDeconfigured "Peer De-configured",
        4 AdministrativeReset "Administrative Reset",
        5 ConnectionRejected "Connection Rejected",
        6 ConfigurationChange "Other Configuration Change",
        7 CollisionResolution "Connection Collision Resolution",
        8 OutOfResources "Out of Resources",
        9 HardReset "Hard Reset",
        10 BfdDown "BFD Down",
    }
}

subcodes! {
    /// ROUTE-REFRESH Message Error subcodes (RFC 7313 §5).
    RefreshSubcode {
        0 Unspecific "Reserved",
        1 InvalidLength "Invalid Message Length",
    }
}

/// Error code with its subcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotificationCode {
    /// Message Header Error (1).
    MessageHeader(HeaderSubcode),
    /// OPEN Message Error (2).
    Open(OpenSubcode),
    /// UPDATE Message Error (3).
    Update(UpdateSubcode),
    /// 4, with a subcode that no standard defines, normally 0.
    HoldTimerExpired(u8),
    /// Finite State Machine Error (5).
    Fsm(FsmSubcode),
    /// Cease (6).
    Cease(CeaseSubcode),
    /// ROUTE-REFRESH Message Error (7, RFC 7313).
    RouteRefresh(RefreshSubcode),
    /// 8 (RFC 9687): the peer took nothing from us for too long.
    SendHoldTimerExpired(u8),
    /// A code that no standard defines.
    Other {
        /// Code octet.
        code: u8,
        /// Subcode octet.
        subcode: u8,
    },
}

impl NotificationCode {
    /// From the two octets.
    #[must_use]
    pub const fn from_octets(code: u8, subcode: u8) -> Self {
        match code {
            1 => Self::MessageHeader(HeaderSubcode::from_octet(subcode)),
            2 => Self::Open(OpenSubcode::from_octet(subcode)),
            3 => Self::Update(UpdateSubcode::from_octet(subcode)),
            4 => Self::HoldTimerExpired(subcode),
            5 => Self::Fsm(FsmSubcode::from_octet(subcode)),
            6 => Self::Cease(CeaseSubcode::from_octet(subcode)),
            7 => Self::RouteRefresh(RefreshSubcode::from_octet(subcode)),
            8 => Self::SendHoldTimerExpired(subcode),
            _ => Self::Other { code, subcode },
        }
    }

    /// Error code and error subcode, as in the message.
    #[must_use]
    pub const fn octets(self) -> (u8, u8) {
        match self {
            Self::MessageHeader(subcode) => (1, subcode.octet()),
            Self::Open(subcode) => (2, subcode.octet()),
            Self::Update(subcode) => (3, subcode.octet()),
            Self::HoldTimerExpired(subcode) => (4, subcode),
            Self::Fsm(subcode) => (5, subcode.octet()),
            Self::Cease(subcode) => (6, subcode.octet()),
            Self::RouteRefresh(subcode) => (7, subcode.octet()),
            Self::SendHoldTimerExpired(subcode) => (8, subcode),
            Self::Other { code, subcode } => (code, subcode),
        }
    }
}

impl fmt::Display for NotificationCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MessageHeader(subcode) => write!(f, "Message Header Error / {subcode}"),
            Self::Open(subcode) => write!(f, "OPEN Message Error / {subcode}"),
            Self::Update(subcode) => write!(f, "UPDATE Message Error / {subcode}"),
            Self::HoldTimerExpired(_) => f.write_str("Hold Timer Expired"),
            Self::Fsm(subcode) => write!(f, "Finite State Machine Error / {subcode}"),
            Self::Cease(subcode) => write!(f, "Cease / {subcode}"),
            Self::RouteRefresh(subcode) => write!(f, "ROUTE-REFRESH Message Error / {subcode}"),
            Self::SendHoldTimerExpired(_) => f.write_str("Send Hold Timer Expired"),
            Self::Other { code, subcode } => write!(f, "error code {code} / subcode {subcode}"),
        }
    }
}

/// NOTIFICATION message (RFC 4271 §4.5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notification {
    /// Error code and error subcode.
    pub code: NotificationCode,
    /// Data; its meaning depends on the code.
    pub data: Bytes,
}

impl Notification {
    /// A NOTIFICATION without data.
    #[must_use]
    pub const fn new(code: NotificationCode) -> Self {
        Self {
            code,
            data: Bytes::new(),
        }
    }

    /// A NOTIFICATION with this data.
    #[must_use]
    pub const fn with_data(code: NotificationCode, data: Bytes) -> Self {
        Self { code, data }
    }

    /// A Cease without data.
    #[must_use]
    pub const fn cease(subcode: CeaseSubcode) -> Self {
        Self::new(NotificationCode::Cease(subcode))
    }

    /// A Cease with a text for the operator at the other end (RFC 9003). The text is cut at a
    /// character boundary to 255 octets.
    #[must_use]
    pub fn shutdown(subcode: CeaseSubcode, text: &str) -> Self {
        let text = truncate(text, MAX_SHUTDOWN_TEXT);
        if text.is_empty() {
            return Self::cease(subcode);
        }
        let mut data = BytesMut::with_capacity(1 + text.len());
        super::put_len_u8(&mut data, text.len());
        data.put_slice(text.as_bytes());
        Self::with_data(NotificationCode::Cease(subcode), data.freeze())
    }

    /// Cease / Maximum Number of Prefixes Reached, with the family and how many are allowed (RFC
    /// 4486 §4).
    #[must_use]
    pub(crate) fn maximum_prefixes(family: AfiSafi, max: u32) -> Self {
        let mut data = BytesMut::with_capacity(7);
        data.put_u16(family.afi);
        data.put_u8(family.safi);
        data.put_u32(max);
        Self::with_data(
            NotificationCode::Cease(CeaseSubcode::MaximumPrefixes),
            data.freeze(),
        )
    }

    /// This NOTIFICATION inside a Hard Reset (RFC 8538 §3.1): the peer drops our routes at once
    /// although graceful restart covers NOTIFICATIONs.
    #[must_use]
    pub(crate) fn hard_reset(&self) -> Self {
        let (code, subcode) = self.code.octets();
        let mut data = BytesMut::with_capacity(2 + self.data.len());
        data.put_slice(&[code, subcode]);
        data.put_slice(&self.data);
        Self::with_data(
            NotificationCode::Cease(CeaseSubcode::HardReset),
            data.freeze(),
        )
    }

    /// The NOTIFICATION inside a Hard Reset.
    #[must_use]
    pub fn inner(&self) -> Option<Self> {
        if self.code != NotificationCode::Cease(CeaseSubcode::HardReset) || self.data.len() < 2 {
            return None;
        }
        Some(Self::decode(&self.data))
    }

    /// The text for the operator, from a Cease / Administrative Shutdown or Reset (RFC 9003), also
    /// inside a Hard Reset. Control characters are replaced, so that it can be logged.
    #[must_use]
    pub fn shutdown_text(&self) -> Option<String> {
        if let Some(inner) = self.inner() {
            return match inner.code {
                NotificationCode::Cease(CeaseSubcode::HardReset) => None,
                _ => inner.shutdown_text(),
            };
        }
        let NotificationCode::Cease(
            CeaseSubcode::AdministrativeShutdown | CeaseSubcode::AdministrativeReset,
        ) = self.code
        else {
            return None;
        };
        let (len, rest) = self.data.split_first()?;
        let text = rest
            .get(..usize::from(*len))
            .filter(|text| !text.is_empty())?;
        Some(
            String::from_utf8_lossy(text)
                .chars()
                .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                .collect(),
        )
    }

    /// From a body of at least two octets; the header check has seen to that.
    pub(super) fn decode(body: &[u8]) -> Self {
        match body {
            [code, subcode, data @ ..] => Self::with_data(
                NotificationCode::from_octets(*code, *subcode),
                Bytes::copy_from_slice(data),
            ),
            _ => Self::new(NotificationCode::Other {
                code: 0,
                subcode: 0,
            }),
        }
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        let (code, subcode) = self.code.octets();
        out.put_slice(&[code, subcode]);
        let data = self.data.get(..MAX_DATA).unwrap_or(&self.data);
        out.put_slice(data);
    }
}

impl fmt::Display for Notification {
    /// `Cease / Administrative Shutdown: "maintenance until noon"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner() {
            Some(inner) => write!(f, "{} ({})", self.code, inner.code)?,
            None => write!(f, "{}", self.code)?,
        }
        match self.shutdown_text() {
            Some(text) => write!(f, ": {text:?}"),
            None => Ok(()),
        }
    }
}

/// The longest start of `text` of at most `max` octets.
pub(crate) fn truncate(text: &str, max: usize) -> &str {
    let end = text
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= max)
        .last()
        .unwrap_or(0);
    text.get(..end).unwrap_or_default()
}
