//! Counters of one peer since the start of the process: messages by type, errors by kind.
//!
//! The session task adds to them, and the core counts the connections that it closes itself; the
//! core reads them when somebody asks. They are atomics instead of messages, since a full table is
//! hundreds of thousands of UPDATEs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::fsm::DownReason;
use crate::wire::error::{DecodeError, ErrorHandling};
use crate::wire::notification::{CeaseSubcode, Notification, NotificationCode};
use crate::wire::{MESSAGE_HEADER_LEN, MessageType};

macro_rules! error_kinds {
    ($($variant:ident $text:literal $doc:literal,)*) => {
        /// Kind of a peer's errors. Closed: a counter of errors has one of these as its key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub enum ErrorKind {
            $(#[doc = $doc] $variant,)*
        }

        impl ErrorKind {
            /// All kinds, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable name, for metrics; in JSON it is camelCase.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

error_kinds! {
    TreatAsWithdraw "treat_as_withdraw" "UPDATEs whose routes were taken as withdrawn (RFC 7606).",
    AttributeDiscard "attribute_discard" "Attributes that were dropped (RFC 7606).",
    BadOpen "bad_open" "OPENs that were malformed or not as configured.",
    MalformedMessage "malformed_message" "Messages that ended the session.",
    UnexpectedMessage "unexpected_message" "Messages that have no place in the state.",
    HoldTimer "hold_timer" "Sessions ended for silence of the peer.",
    SendHoldTimer "send_hold_timer" "Sessions ended because the peer read nothing (RFC 9687).",
    BfdDown "bfd_down" "Sessions ended by BFD.",
    Collision "collision" "Connections that lost to another one (RFC 4271 §6.8).",
    PrefixLimit "prefix_limit" "Sessions ended for too many prefixes.",
    ConnectFailed "connect_failed" "Connections that did not come up.",
    ConnectionLost "connection_lost" "Connections that ended without a NOTIFICATION.",
    ConnectionRejected "connection_rejected" "Connections of the peer that were closed at once.",
    ConnectionLimit "connection_limit"
        "Connections beyond the bound on those that are no session, closed at once.",
    NotificationSentHeader "notification_sent_header" "NOTIFICATIONs sent: Message Header Error.",
    NotificationSentOpen "notification_sent_open" "NOTIFICATIONs sent: OPEN Message Error.",
    NotificationSentUpdate "notification_sent_update" "NOTIFICATIONs sent: UPDATE Message Error.",
    NotificationSentHoldTimer "notification_sent_hold_timer"
        "NOTIFICATIONs sent: Hold Timer Expired.",
    NotificationSentFsm "notification_sent_fsm" "NOTIFICATIONs sent: Finite State Machine Error.",
    NotificationSentCease "notification_sent_cease" "NOTIFICATIONs sent: Cease.",
    NotificationSentRefresh "notification_sent_refresh"
        "NOTIFICATIONs sent: ROUTE-REFRESH Message Error.",
    NotificationSentSendHoldTimer "notification_sent_send_hold_timer"
        "NOTIFICATIONs sent: Send Hold Timer Expired.",
    NotificationSentOther "notification_sent_other" "NOTIFICATIONs sent: any other.",
    NotificationReceivedHeader "notification_received_header"
        "NOTIFICATIONs received: Message Header Error.",
    NotificationReceivedOpen "notification_received_open"
        "NOTIFICATIONs received: OPEN Message Error.",
    NotificationReceivedUpdate "notification_received_update"
        "NOTIFICATIONs received: UPDATE Message Error.",
    NotificationReceivedHoldTimer "notification_received_hold_timer"
        "NOTIFICATIONs received: Hold Timer Expired.",
    NotificationReceivedFsm "notification_received_fsm"
        "NOTIFICATIONs received: Finite State Machine Error.",
    NotificationReceivedCease "notification_received_cease" "NOTIFICATIONs received: Cease.",
    NotificationReceivedRefresh "notification_received_refresh"
        "NOTIFICATIONs received: ROUTE-REFRESH Message Error.",
    NotificationReceivedSendHoldTimer "notification_received_send_hold_timer"
        "NOTIFICATIONs received: Send Hold Timer Expired.",
    NotificationReceivedOther "notification_received_other" "NOTIFICATIONs received: any other.",
}

impl ErrorKind {
    const COUNT: usize = Self::ALL.len();

    /// The stable name in JSON.
    #[must_use]
    pub fn json_name(self) -> String {
        let mut words = self.as_str().split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |name, word| {
            let (initial, rest) = word.split_at(1);
            name + &initial.to_ascii_uppercase() + rest
        })
    }

    /// A NOTIFICATION that we sent.
    const fn sent(code: NotificationCode) -> Self {
        match code {
            NotificationCode::MessageHeader(_) => Self::NotificationSentHeader,
            NotificationCode::Open(_) => Self::NotificationSentOpen,
            NotificationCode::Update(_) => Self::NotificationSentUpdate,
            NotificationCode::HoldTimerExpired(_) => Self::NotificationSentHoldTimer,
            NotificationCode::Fsm(_) => Self::NotificationSentFsm,
            NotificationCode::Cease(_) => Self::NotificationSentCease,
            NotificationCode::RouteRefresh(_) => Self::NotificationSentRefresh,
            NotificationCode::SendHoldTimerExpired(_) => Self::NotificationSentSendHoldTimer,
            NotificationCode::Other { .. } => Self::NotificationSentOther,
        }
    }

    /// A NOTIFICATION that came.
    const fn received(code: NotificationCode) -> Self {
        match code {
            NotificationCode::MessageHeader(_) => Self::NotificationReceivedHeader,
            NotificationCode::Open(_) => Self::NotificationReceivedOpen,
            NotificationCode::Update(_) => Self::NotificationReceivedUpdate,
            NotificationCode::HoldTimerExpired(_) => Self::NotificationReceivedHoldTimer,
            NotificationCode::Fsm(_) => Self::NotificationReceivedFsm,
            NotificationCode::Cease(_) => Self::NotificationReceivedCease,
            NotificationCode::RouteRefresh(_) => Self::NotificationReceivedRefresh,
            NotificationCode::SendHoldTimerExpired(_) => Self::NotificationReceivedSendHoldTimer,
            NotificationCode::Other { .. } => Self::NotificationReceivedOther,
        }
    }

    /// Why a session or an attempt ended, beyond the NOTIFICATIONs, which are counted when they
    /// pass.
    const fn of_down(down: &DownReason) -> Option<Self> {
        Some(match down {
            DownReason::ConnectFailed(_) | DownReason::ConnectTimeout(_) => Self::ConnectFailed,
            DownReason::PeerAs { .. }
            | DownReason::RouterIdConflict(_)
            | DownReason::NoCommonFamily { .. }
            | DownReason::RoleMismatch { .. }
            | DownReason::Malformed(DecodeError::Open(_)) => Self::BadOpen,
            DownReason::Malformed(_) => Self::MalformedMessage,
            DownReason::Unexpected { .. } => Self::UnexpectedMessage,
            DownReason::HoldTimerExpired(_) | DownReason::NoOpen(_) => Self::HoldTimer,
            DownReason::SendHoldTimerExpired => Self::SendHoldTimer,
            DownReason::Closed(_) => Self::ConnectionLost,
            DownReason::Bfd { .. } => Self::BfdDown,
            DownReason::PrefixLimit { .. } => Self::PrefixLimit,
            // Counted by its NOTIFICATION, also when the other connection goes on.
            DownReason::Collision(_)
            | DownReason::Replaced
            | DownReason::Notified(_)
            | DownReason::Stopped(_)
            // Its cause is counted when it happens.
            | DownReason::Flapping { .. }
            | DownReason::Restarting => return None,
        })
    }
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageDirection {
    /// From us to the peer.
    Sent,
    /// From the peer to us.
    Received,
}

/// Errors by kind; those that never happened are not there.
pub type ErrorCounts = BTreeMap<ErrorKind, u64>;

/// The counters of one peer.
#[derive(Debug, Default)]
pub struct Counters {
    sent: [AtomicU64; MessageType::ALL.len()],
    received: [AtomicU64; MessageType::ALL.len()],
    errors: [AtomicU64; ErrorKind::COUNT],
    /// Sessions in a row that fell soon after they came up: the next session task goes on counting.
    flaps: AtomicU32,
}

fn add(counter: &AtomicU64) {
    // Nothing else is ordered by it.
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Number of messages of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageCounts {
    /// OPENs (RFC 4271 §4.2).
    pub open: u64,
    /// UPDATEs (§4.3), End-of-RIB markers included.
    pub update: u64,
    /// NOTIFICATIONs (§4.5).
    pub notification: u64,
    /// KEEPALIVEs (§4.4).
    pub keepalive: u64,
    /// ROUTE-REFRESHes (RFC 2918).
    pub route_refresh: u64,
}

impl MessageCounts {
    fn read(counters: &[AtomicU64; MessageType::ALL.len()]) -> Self {
        let [open, update, notification, keepalive, route_refresh] =
            counters.each_ref().map(|c| c.load(Ordering::Relaxed));
        Self {
            open,
            update,
            notification,
            keepalive,
            route_refresh,
        }
    }

    /// Number of messages of all types.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.open + self.update + self.notification + self.keepalive + self.route_refresh
    }
}

impl Counters {
    /// Counts the messages in octets that are about to be written, whole messages one after the
    /// other.
    pub(super) fn sent(&self, mut octets: &[u8]) {
        while let Some(header) = octets.first_chunk::<MESSAGE_HEADER_LEN>() {
            if let Some(counter) = self.sent.get(usize::from(header[18].wrapping_sub(1))) {
                add(counter);
            }
            let len = usize::from(u16::from_be_bytes([header[16], header[17]]));
            octets = octets
                .get(len.max(MESSAGE_HEADER_LEN)..)
                .unwrap_or_default();
        }
    }

    /// Counts a message of the peer.
    pub(super) fn received(&self, kind: MessageType) {
        if let Some(counter) = self.received.get(usize::from(kind.octet() - 1)) {
            add(counter);
        }
    }

    pub(super) fn error(&self, kind: ErrorKind) {
        add(&self.errors[kind as usize]);
    }

    /// Counts a NOTIFICATION. True when it says something about the peer; that one of two
    /// connections lost is normal.
    pub(super) fn notification(&self, way: MessageDirection, notification: &Notification) -> bool {
        self.error(match way {
            MessageDirection::Sent => ErrorKind::sent(notification.code),
            MessageDirection::Received => ErrorKind::received(notification.code),
        });
        let collision =
            notification.code == NotificationCode::Cease(CeaseSubcode::CollisionResolution);
        if collision {
            self.error(ErrorKind::Collision);
        }
        !collision
    }

    /// Counts the end of a session or of an attempt.
    pub(super) fn down(&self, down: &DownReason) {
        if let Some(kind) = ErrorKind::of_down(down) {
            self.error(kind);
        }
    }

    /// Counts an UPDATE with an error that the session survives.
    pub(super) fn fault(&self, handling: &ErrorHandling) {
        match handling {
            ErrorHandling::AttributeDiscard => self.error(ErrorKind::AttributeDiscard),
            ErrorHandling::TreatAsWithdraw | ErrorHandling::AfiSafiDisable(_) => {
                self.error(ErrorKind::TreatAsWithdraw);
            }
            ErrorHandling::SessionReset(_) => {}
        }
    }

    /// Sessions in a row that fell soon after they came up.
    pub(super) fn flaps(&self) -> u32 {
        self.flaps.load(Ordering::Relaxed)
    }

    /// Keeps that number for the next session task.
    pub(super) fn keep_flaps(&self, flaps: u32) {
        self.flaps.store(flaps, Ordering::Relaxed);
    }

    /// Messages to the peer.
    #[must_use]
    pub(crate) fn messages_sent(&self) -> MessageCounts {
        MessageCounts::read(&self.sent)
    }

    /// Messages from the peer.
    #[must_use]
    pub(crate) fn messages_received(&self) -> MessageCounts {
        MessageCounts::read(&self.received)
    }

    /// The errors that have happened.
    #[must_use]
    pub fn errors(&self) -> ErrorCounts {
        let counted = ErrorKind::ALL.iter().zip(&self.errors);
        counted
            .map(|(kind, counter)| (*kind, counter.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::wire::{encode_keepalive, encode_notification};

    #[test]
    fn names_are_unique_and_as_serde_writes_them() {
        let mut names: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect();
        for kind in ErrorKind::ALL {
            let json = serde_json::to_value(kind).unwrap_or_default();
            assert_eq!(json, kind.json_name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::COUNT);
    }

    #[test]
    fn messages_are_counted_by_their_headers() {
        let counters = Counters::default();
        let mut octets = BytesMut::new();
        encode_keepalive(&mut octets);
        let cease = Notification::shutdown(CeaseSubcode::AdministrativeReset, "text");
        encode_notification(&cease, &mut octets);
        encode_keepalive(&mut octets);
        counters.sent(&octets);
        counters.sent(&[]);
        let sent = counters.messages_sent();
        assert_eq!((sent.keepalive, sent.notification, sent.total()), (2, 1, 3));
        assert!(counters.notification(MessageDirection::Sent, &cease));
        let collision = Notification::cease(CeaseSubcode::CollisionResolution);
        assert!(!counters.notification(MessageDirection::Received, &collision));
        let errors = counters.errors();
        assert_eq!(errors[&ErrorKind::NotificationSentCease], 1);
        assert_eq!(errors[&ErrorKind::Collision], 1);
        assert_eq!(errors.len(), 3);
    }
}
