//! The BGP Monitoring Protocol (RFC 7854), the monitored side: messages to a station, as octets.
//!
//! A pure encoder. It must never look at a clock, wait for a station or decide what is sent: the
//! table decides which routes, and the shell when and to which station.
//!
//! | message | RFC 7854 | here |
//! |---|---|---|
//! | Initiation, Termination | §4.3, §4.5 | [`encode_bmp_initiation`], [`encode_bmp_termination`] |
//! | Peer Up, Peer Down | §4.10, §4.9 | [`encode_bmp_peer_up`], [`encode_bmp_peer_down`] |
//! | Route Monitoring | §4.6 | [`encode_bmp_route_monitoring`] |
//! | Stats Report | §4.8, RFC 8671 §6.2 | [`encode_bmp_statistics`] |
//!
//! Route Mirroring (§4.7) is not sent: what is wrong with a message is in the log, and its routes
//! are not in the table.
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

mod message;

use std::net::SocketAddr;
use std::time::Duration;

use caracal_model::Family;

pub use message::{
    BMP_COMMON_HEADER, encode_bmp_initiation, encode_bmp_peer_down, encode_bmp_peer_up,
    encode_bmp_route_monitoring, encode_bmp_statistics, encode_bmp_termination,
};

use crate::fsm::DownReason;
use crate::opens::SessionOpens;
use crate::types::{Asn, RouterId};
use crate::wire::format::MessageFormat;
use crate::wire::notification::Notification;

/// Content of a Peer Up message about an established session (RFC 7854 §4.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredSession {
    /// Address and port of our end.
    pub local: SocketAddr,
    /// Address and port of the peer's end.
    pub remote: SocketAddr,
    /// AS that the peer's OPEN names.
    pub asn: Asn,
    /// The peer's BGP Identifier.
    pub router_id: RouterId,
    /// Format of the session's messages.
    pub format: MessageFormat,
    /// The OPENs, whole messages.
    pub opens: SessionOpens,
}

impl MonitoredSession {
    /// Format of the UPDATEs in Route Monitoring messages: as the peer sends them, but always with
    /// AS numbers of four octets (RFC 7854 §4.2, A flag clear).
    #[must_use]
    pub const fn update_format(&self, view: PolicyView) -> MessageFormat {
        MessageFormat {
            four_octet_as: true,
            // Policy may give a route of an external peer a LOCAL_PREF; the peer itself does not.
            internal: self.format.internal || matches!(view, PolicyView::PostPolicy),
            path_ids_out: self.format.path_ids_in,
            ..self.format
        }
    }
}

/// Which routes of a peer (RFC 7854 §4.2, L flag).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyView {
    /// Adj-RIB-In as received.
    PrePolicy,
    /// Adj-RIB-In after import policy.
    PostPolicy,
}

/// Time at which something was received, since 1970; zero when it is not known (RFC 7854 §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BmpTimestamp(pub Duration);

impl BmpTimestamp {
    /// Stands for a time that is not known (RFC 7854 §4.2).
    pub const UNKNOWN: Self = Self(Duration::ZERO);
}

/// Why a session has ended (RFC 7854 §4.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BmpPeerDown {
    /// 1: we ended it with this NOTIFICATION.
    LocalNotification(Notification),
    /// 2: we ended it without a NOTIFICATION, for this event of the state machine (RFC 4271 §8.1);
    /// 0: for none of them.
    Local(u16),
    /// 3: the peer ended it with this NOTIFICATION.
    RemoteNotification(Notification),
    /// 4: the peer ended it without a NOTIFICATION.
    Remote,
    /// 5: the peer is no longer monitored.
    DeConfigured,
}

/// Events of RFC 4271 §8.1 by which a session ends without a NOTIFICATION.
mod event {
    /// AutomaticStop (RFC 4271 §8.1.2, event 8).
    pub(super) const AUTOMATIC_STOP: u16 = 8;
    /// OpenCollisionDump (RFC 4271 §8.1.2, event 23).
    pub(super) const COLLISION_DUMP: u16 = 23;
}

impl BmpPeerDown {
    /// Maps the reason of the state machine; `sent` is the NOTIFICATION that we sent, if any.
    #[must_use]
    pub fn new(down: &DownReason, sent: Option<&Notification>) -> Self {
        match (down, sent) {
            (_, Some(notification)) => Self::LocalNotification(notification.clone()),
            (DownReason::Notified(notification), None) => {
                Self::RemoteNotification(notification.clone())
            }
            (DownReason::Closed(_), None) => Self::Remote,
            (DownReason::Replaced | DownReason::Collision(_), None) => {
                Self::Local(event::COLLISION_DUMP)
            }
            (DownReason::Restarting | DownReason::Stopped(_) | DownReason::Bfd { .. }, None) => {
                Self::Local(event::AUTOMATIC_STOP)
            }
            (_, None) => Self::Local(0),
        }
    }
}

/// A number about a peer (RFC 7854 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BmpStatistic {
    /// 7: routes in its Adj-RIB-In.
    AdjRibIn(u64),
    /// 9: routes of a family in its Adj-RIB-In.
    AdjRibInOf(Family, u64),
    /// 15: routes in its Adj-RIB-Out after export policy (RFC 8671 §6.2).
    AdjRibOut(u64),
}

/// Why monitoring ends (RFC 7854 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BmpTermination {
    /// 0: somebody wants it so.
    AdministrativelyClosed = 0,
}

#[cfg(test)]
mod tests;
