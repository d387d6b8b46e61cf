//! Why a message is refused, and what follows from it.
//!
//! Every error knows its handling. The mapping to NOTIFICATION codes is total: a new error does not
//! compile until it has one.

use bytes::{BufMut, Bytes, BytesMut};
use caracal_model::Family;

use super::kind::{self, MessageType};
use super::notification::{
    HeaderSubcode, Notification, NotificationCode, OpenSubcode, RefreshSubcode, UpdateSubcode,
};

/// Effect of an error on the session (RFC 7606 §2), from harmless to fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorHandling {
    /// The attribute is dropped, the routes stand.
    AttributeDiscard,
    /// The routes of the message are treated as withdrawn.
    TreatAsWithdraw,
    /// All routes of the family go, and it is ignored until the session starts anew.
    AfiSafiDisable(Family),
    /// The session ends with this NOTIFICATION.
    SessionReset(Notification),
}

/// A message that the session cannot go on after.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The header is wrong.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// An OPEN is wrong.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An UPDATE is wrong beyond repair.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A ROUTE-REFRESH is wrong.
    #[error(transparent)]
    Refresh(#[from] RefreshError),
}

impl DecodeError {
    /// Effect on the session. Never one of the two harmless verdicts.
    #[must_use]
    pub fn handling(&self) -> ErrorHandling {
        match self {
            Self::Header(error) => ErrorHandling::SessionReset(error.notification()),
            Self::Open(error) => ErrorHandling::SessionReset(error.notification()),
            Self::Update(error) => error.handling(),
            Self::Refresh(error) => ErrorHandling::SessionReset(error.notification()),
        }
    }

    /// The NOTIFICATION that a session reset sends; [`ErrorHandling::AfiSafiDisable`] may always be
    /// raised to a reset (RFC 7606 §2).
    #[must_use]
    pub fn notification(&self) -> Notification {
        match self {
            Self::Header(error) => error.notification(),
            Self::Open(error) => error.notification(),
            Self::Update(error) => error.notification(),
            Self::Refresh(error) => error.notification(),
        }
    }

    /// True when the broken message is itself a NOTIFICATION, which is never answered (RFC 4271
    /// §6.4).
    #[must_use]
    pub(crate) fn is_in_notification(&self) -> bool {
        matches!(self, Self::Header(HeaderError::Length { kind, .. }) if *kind == MessageType::Notification.octet())
    }
}

/// A wrong message header (RFC 4271 §6.1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The first 16 octets are not all ones: the stream is out of step or no BGP.
    #[error("message does not start with 16 octets of ones")]
    Marker,
    /// The length does not fit the type or the session's maximum.
    #[error("{name} of {len} octets has no valid length", name = kind_name(*kind))]
    Length {
        /// The type octet.
        kind: u8,
        /// The length field.
        len: u16,
    },
    /// No such message type.
    #[error("message type {0} is unknown")]
    Type(u8),
    /// The caller passed something else than one whole message.
    #[error("{len} octets are not one whole message")]
    Cut {
        /// Octets that the caller passed.
        len: usize,
    },
}

fn kind_name(octet: u8) -> &'static str {
    MessageType::from_octet(octet).map_or("message", MessageType::name)
}

impl HeaderError {
    /// NOTIFICATION that answers the message.
    #[must_use]
    pub fn notification(&self) -> Notification {
        let header = NotificationCode::MessageHeader;
        match self {
            Self::Marker => Notification::new(header(HeaderSubcode::NotSynchronized)),
            Self::Length { len, .. } => Notification::with_data(
                header(HeaderSubcode::BadLength),
                Bytes::copy_from_slice(&len.to_be_bytes()),
            ),
            Self::Type(octet) => Notification::with_data(
                header(HeaderSubcode::BadType),
                Bytes::copy_from_slice(&[*octet]),
            ),
            Self::Cut { .. } => Notification::new(header(HeaderSubcode::BadLength)),
        }
    }
}

/// A wrong OPEN (RFC 4271 §6.2).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// BGP version other than 4.
    #[error("peer speaks BGP version {0}, expected 4")]
    Version(u8),
    /// AS 0 (RFC 7607).
    #[error("peer announces AS 0")]
    AsZero,
    /// The BGP Identifier is 0.0.0.0 (RFC 6286).
    #[error("peer announces BGP Identifier 0.0.0.0")]
    RouterIdZero,
    /// One or two seconds.
    #[error("peer proposes a hold time of {0} s; only 0 and 3 or more are allowed")]
    HoldTime(u16),
    /// An optional parameter that is no capability.
    #[error("optional parameter {0} is unknown")]
    Parameter(u8),
    /// The optional parameters do not fill the message.
    #[error("optional parameters do not fit the message")]
    Cut,
    /// A capability we know has an impossible length.
    #[error("capability {code} has an invalid length of {len} octets")]
    Capability {
        /// Capability code (RFC 5492 §4).
        code: u8,
        /// Octets of its value.
        len: usize,
    },
}

impl OpenError {
    /// NOTIFICATION that answers the message.
    #[must_use]
    pub fn notification(&self) -> Notification {
        let open = NotificationCode::Open;
        match self {
            // RFC 4271 §6.2: the data is the largest version we support, in two octets.
            Self::Version(_) => Notification::with_data(
                open(OpenSubcode::UnsupportedVersion),
                Bytes::from_static(&[0, 4]),
            ),
            Self::AsZero => Notification::new(open(OpenSubcode::BadPeerAs)),
            Self::RouterIdZero => Notification::new(open(OpenSubcode::BadIdentifier)),
            Self::HoldTime(_) => Notification::new(open(OpenSubcode::UnacceptableHoldTime)),
            Self::Parameter(_) => Notification::new(open(OpenSubcode::UnsupportedParameter)),
            Self::Cut | Self::Capability { .. } => Notification::new(open(OpenSubcode::Unspecific)),
        }
    }
}

/// A wrong ROUTE-REFRESH (RFC 7313 §5).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ROUTE-REFRESH of {len} octets, expected 23")]
pub struct RefreshError {
    /// Octets of the message.
    pub len: usize,
    /// The message, for the answer's data.
    pub body: Bytes,
}

impl RefreshError {
    /// The answer. RFC 7313 §5: the data is the complete message.
    #[must_use]
    pub fn notification(&self) -> Notification {
        let mut data = BytesMut::new();
        kind::write(&mut data, MessageType::RouteRefresh, |out| {
            out.put_slice(&self.body)
        });
        Notification::with_data(
            NotificationCode::RouteRefresh(RefreshSubcode::InvalidLength),
            data.freeze(),
        )
    }
}

/// Fault of an UPDATE or of one of its attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateFault {
    /// The withdrawn routes or the attributes are longer than the message.
    #[error("lengths of its parts exceed the message")]
    Lengths,
    /// An attribute is longer than what is left of the attribute list.
    #[error("attribute runs past the end of the attribute list")]
    Overrun,
    /// The optional or transitive flag contradicts the attribute's definition.
    #[error("flags {0:#04x} contradict its definition")]
    Flags(u8),
    /// The value has an impossible length.
    #[error("{len} octets long, expected {expected}")]
    Length {
        /// Length of the value in octets.
        len: usize,
        /// Allowed lengths, as text.
        expected: &'static str,
    },
    /// ORIGIN is none of 0, 1, 2.
    #[error("value {0} is undefined")]
    Origin(u8),
    /// The AS path cannot be read.
    #[error("segment of type {kind} with {count} ASes is malformed")]
    Segment {
        /// Segment type octet (RFC 4271 §4.3).
        kind: u8,
        /// Number of ASes it claims.
        count: u8,
    },
    /// AS 0 (RFC 7607).
    #[error("contains AS 0")]
    AsZero,
    /// The next hop is no host address.
    #[error("{0} is no host address")]
    NextHop(std::net::IpAddr),
    /// A mandatory attribute is missing.
    #[error("missing")]
    Missing,
    /// The attribute is there more than once.
    #[error("occurs more than once")]
    Duplicate,
    /// LOCAL_PREF and the reflection attributes have no place on an external session.
    #[error("not valid on an external session")]
    External,
    /// A well-known attribute that does not exist.
    #[error("unknown well-known attribute")]
    Unrecognized,
    /// A prefix is longer than its family allows.
    #[error("prefix length {0} is too long")]
    PrefixLength(u8),
    /// A prefix is cut off.
    #[error("prefix is cut off")]
    PrefixCut,
    /// AS4_PATH from a peer that sends four octets anyway (RFC 6793 §4.1).
    #[error("not valid on a four-octet session")]
    FourOctet,
}

/// One thing that is wrong with an UPDATE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrFault {
    /// The attribute's type code; `None` for the message as a whole and its classic prefixes.
    pub code: Option<u8>,
    /// Rule that the message breaks.
    pub fault: UpdateFault,
    /// Error handling that was applied.
    pub handling: ErrorHandling,
}

/// An UPDATE that ends the session, or at least one family of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UpdateError(pub Box<AttrFault>);

impl UpdateError {
    pub(super) fn reset(code: Option<u8>, fault: UpdateFault, subcode: UpdateSubcode) -> Self {
        Self::reset_with(code, fault, subcode, Bytes::new())
    }

    pub(super) fn reset_with(
        code: Option<u8>,
        fault: UpdateFault,
        subcode: UpdateSubcode,
        data: Bytes,
    ) -> Self {
        let notification = Notification::with_data(NotificationCode::Update(subcode), data);
        Self(Box::new(AttrFault {
            code,
            fault,
            handling: ErrorHandling::SessionReset(notification),
        }))
    }

    pub(super) fn disable(code: u8, fault: UpdateFault, family: Family) -> Self {
        let handling = ErrorHandling::AfiSafiDisable(family);
        Self(Box::new(AttrFault {
            code: Some(code),
            fault,
            handling,
        }))
    }

    /// Effect on the session.
    #[must_use]
    pub fn handling(&self) -> ErrorHandling {
        self.0.handling.clone()
    }

    /// The NOTIFICATION of a reset.
    #[must_use]
    pub fn notification(&self) -> Notification {
        match &self.0.handling {
            ErrorHandling::SessionReset(notification) => notification.clone(),
            // RFC 4760 §7: an incorrect MP attribute is an Optional Attribute Error.
            ErrorHandling::AfiSafiDisable(_) => {
                Notification::new(NotificationCode::Update(UpdateSubcode::OptionalAttribute))
            }
            ErrorHandling::AttributeDiscard | ErrorHandling::TreatAsWithdraw => {
                Notification::new(NotificationCode::Update(UpdateSubcode::MalformedList))
            }
        }
    }
}
