//! Why a session is not up: a sentence for people, a stable code for metrics.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use caracal_model::Family;

use super::{ConnectionId, RouterId};
use crate::config::{BgpRole, Counted};
use crate::types::{Asn, SessionState};
use crate::wire::MessageType;
use crate::wire::error::DecodeError;
use crate::wire::format::FamilySet;
use crate::wire::notification::{Notification, NotificationCode, OpenSubcode};

/// Why a connection did not come up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// Address and port that we connected to.
    pub remote: SocketAddr,
    /// Kind of the operating system's error.
    pub cause: std::io::ErrorKind,
    /// Error text of the operating system.
    pub text: String,
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::io::ErrorKind;
        let (address, port) = (self.remote.ip(), self.remote.port());
        match self.cause {
            ErrorKind::ConnectionRefused => write!(f, "TCP {port} refused by {address}"),
            ErrorKind::TimedOut => write!(f, "TCP {port} of {address} does not answer"),
            ErrorKind::HostUnreachable => write!(f, "host {address} is unreachable"),
            ErrorKind::NetworkUnreachable => write!(f, "no route to {address}"),
            ErrorKind::AddrNotAvailable => {
                write!(
                    f,
                    "source address for {address} is not configured on this host"
                )
            }
            _ => write!(f, "TCP {port} of {address}: {}", self.text),
        }
    }
}

/// Why a session went down or did not come up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// Our TCP connection failed.
    ConnectFailed(ConnectFailure),
    /// Our connection was neither accepted nor refused in time.
    ConnectTimeout(Duration),
    /// The peer is in another AS than configured.
    PeerAs {
        /// AS number in the peer's OPEN.
        seen: Asn,
        /// Configured AS number.
        expected: Asn,
    },
    /// An internal peer has our own BGP Identifier (RFC 6286 §2.2).
    RouterIdConflict(RouterId),
    /// No address family is configured at both ends.
    NoCommonFamily {
        /// Families that we have configured.
        ours: FamilySet,
        /// The peer's, as far as we know them.
        theirs: FamilySet,
    },
    /// The peer's role does not go with ours (RFC 9234 §4.2).
    RoleMismatch {
        /// Our role.
        ours: BgpRole,
        /// What the peer's OPEN names, as it came; empty when it names none and one is required.
        named: Vec<u8>,
    },
    /// The peer said nothing for the hold time.
    HoldTimerExpired(Duration),
    /// The peer accepted the connection but sent no OPEN.
    NoOpen(Duration),
    /// The peer took nothing from us for too long (RFC 9687).
    SendHoldTimerExpired,
    /// Of two connections, this was the wrong one (RFC 4271 §6.8).
    Collision(ConnectionId),
    /// The peer ended the connection without a NOTIFICATION.
    Closed(Option<String>),
    /// The peer dialled again over an established session: it has lost it (RFC 4724 §5).
    Replaced,
    /// The peer sent a NOTIFICATION.
    Notified(Notification),
    /// The peer sent octets that do not parse as BGP.
    Malformed(DecodeError),
    /// The peer sent a message that has no place in the state.
    Unexpected {
        /// Type of the message that came.
        kind: MessageType,
        /// State in which it came.
        state: SessionState,
    },
    /// BFD says that the peer is gone.
    Bfd {
        /// It may be a restart.
        graceful: bool,
    },
    /// The peer has more prefixes than it may (RFC 4486 §4).
    PrefixLimit {
        /// Which prefixes they are.
        counted: Counted,
        /// Family with too many prefixes.
        family: Family,
        /// Configured limit of prefixes.
        max: u32,
    },
    /// The session came up and fell again and again: no new one for a while (RFC 4271 §8.1.1,
    /// DampPeerOscillations).
    Flapping {
        /// Why it fell the last time.
        last: Box<Self>,
        /// Number of sessions in a row that fell.
        times: u32,
        /// Time within which each of them fell.
        within: Duration,
        /// Pause before the next session.
        wait: Duration,
    },
    /// We stopped it, with this text for the peer's operator.
    Stopped(String),
    /// We are about to restart.
    Restarting,
}

impl DownReason {
    /// A stable code for metrics and scripts.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ConnectFailed(_) => "connect_failed",
            Self::ConnectTimeout(_) => "connect_timeout",
            Self::PeerAs { .. } => "bad_peer_as",
            Self::RouterIdConflict(_) => "router_id_conflict",
            Self::NoCommonFamily { .. } => "no_common_family",
            Self::RoleMismatch { .. } => "role_mismatch",
            Self::HoldTimerExpired(_) => "hold_timer_expired",
            Self::NoOpen(_) => "no_open",
            Self::SendHoldTimerExpired => "send_hold_timer_expired",
            Self::Collision(_) => "collision",
            Self::Closed(_) => "closed_by_peer",
            Self::Replaced => "replaced",
            Self::Notified(_) => "notification_received",
            Self::Malformed(_) => "malformed_message",
            Self::Unexpected { .. } => "unexpected_message",
            Self::Bfd { .. } => "bfd_down",
            Self::PrefixLimit { .. } => "prefix_limit",
            Self::Flapping { .. } => "flapping",
            Self::Stopped(_) => "stopped",
            Self::Restarting => "restarting",
        }
    }

    /// True when one of the two ends does not want the session as it is, or nobody listens: not
    /// silence, not loss.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::ConnectFailed(failure) => failure.cause == std::io::ErrorKind::ConnectionRefused,
            Self::PeerAs { .. }
            | Self::RouterIdConflict(_)
            | Self::NoCommonFamily { .. }
            | Self::RoleMismatch { .. }
            | Self::Notified(_)
            | Self::Malformed(_)
            | Self::Unexpected { .. }
            | Self::PrefixLimit { .. } => true,
            Self::Flapping { last, .. } => last.is_refusal(),
            Self::ConnectTimeout(_)
            | Self::HoldTimerExpired(_)
            | Self::NoOpen(_)
            | Self::SendHoldTimerExpired
            | Self::Collision(_)
            | Self::Closed(_)
            | Self::Replaced
            | Self::Bfd { .. }
            | Self::Stopped(_)
            | Self::Restarting => false,
        }
    }

    /// True when such an end leaves the peer disabled. What a limit says is its own action.
    #[cfg(any(feature = "speaker", test))]
    pub(crate) fn disables(&self, after: crate::config::DisableAfter) -> bool {
        match self {
            Self::Notified(notification) => match notification.code {
                NotificationCode::Cease(subcode) => {
                    let bit = 1u16.checked_shl(subcode.octet().into()).unwrap_or_default();
                    after.cease & bit != 0
                }
                _ => after.error,
            },
            Self::PeerAs { .. }
            | Self::RouterIdConflict(_)
            | Self::NoCommonFamily { .. }
            | Self::RoleMismatch { .. }
            | Self::HoldTimerExpired(_)
            | Self::NoOpen(_)
            | Self::SendHoldTimerExpired
            | Self::Malformed(_)
            | Self::Unexpected { .. }
            | Self::Bfd { .. } => after.error,
            Self::Flapping { last, .. } => last.disables(after),
            Self::ConnectFailed(_)
            | Self::ConnectTimeout(_)
            | Self::Collision(_)
            | Self::Closed(_)
            | Self::Replaced
            | Self::PrefixLimit { .. }
            | Self::Stopped(_)
            | Self::Restarting => false,
        }
    }

    /// True when the peer has refused our OPEN for something in its optional parameters (RFC 5492
    /// §3).
    pub(super) fn refuses_parameters(&self) -> bool {
        let code = NotificationCode::Open(OpenSubcode::UnsupportedParameter);
        matches!(self, Self::Notified(notification) if notification.code == code)
    }

    /// True when trying again soon would end the same way: a person has to change something.
    pub(super) const fn is_protocol_error(&self) -> bool {
        match self {
            Self::PeerAs { .. }
            | Self::RouterIdConflict(_)
            | Self::NoCommonFamily { .. }
            | Self::RoleMismatch { .. }
            | Self::Malformed(_)
            | Self::Unexpected { .. } => true,
            Self::ConnectFailed(_)
            | Self::ConnectTimeout(_)
            | Self::HoldTimerExpired(_)
            | Self::NoOpen(_)
            | Self::SendHoldTimerExpired
            | Self::Collision(_)
            | Self::Closed(_)
            | Self::Replaced
            | Self::Notified(_)
            | Self::Bfd { .. }
            | Self::PrefixLimit { .. }
            | Self::Flapping { .. }
            | Self::Stopped(_)
            | Self::Restarting => false,
        }
    }

    /// True when a session that ends so soon after it came up is one of those that come and go: not
    /// where we end it, or where the peer goes on with another connection.
    pub(super) const fn is_flap(&self) -> bool {
        !matches!(
            self,
            Self::Collision(_)
                | Self::Replaced
                | Self::PrefixLimit { .. }
                | Self::Flapping { .. }
                | Self::Stopped(_)
                | Self::Restarting
        )
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectFailed(failure) => failure.fmt(f),
            Self::ConnectTimeout(after) => {
                write!(f, "connection not accepted within {} s", after.as_secs())
            }
            Self::PeerAs { seen, expected } => {
                write!(f, "peer announces AS {seen}, expected {expected}")
            }
            Self::RouterIdConflict(id) => {
                write!(
                    f,
                    "peer has our own BGP Identifier {id}; it must be unique within the AS"
                )
            }
            Self::NoCommonFamily { ours, theirs } => {
                write!(
                    f,
                    "no common address family: ours {ours}, the peer's {theirs}"
                )
            }
            Self::RoleMismatch { ours, named } => role_mismatch(*ours, named, f),
            Self::HoldTimerExpired(hold) => {
                write!(
                    f,
                    "hold timer expired: nothing received for {} s",
                    hold.as_secs()
                )
            }
            Self::NoOpen(after) => write!(f, "peer sent no OPEN within {} s", after.as_secs()),
            Self::SendHoldTimerExpired => {
                f.write_str("send hold timer expired: the peer reads nothing")
            }
            Self::Collision(conn) => {
                write!(
                    f,
                    "collision: the {conn} connection lost to the other connection"
                )
            }
            Self::Closed(None) => f.write_str("peer closed the connection"),
            Self::Closed(Some(text)) => write!(f, "connection lost: {text}"),
            Self::Replaced => f.write_str("peer has restarted and dialled again"),
            Self::Notified(notification) => write!(f, "peer sent NOTIFICATION {notification}"),
            Self::Malformed(error) => write!(f, "malformed message: {error}"),
            Self::Unexpected { kind, state } => {
                write!(f, "peer sent {} in state {state}", kind.name())
            }
            Self::Bfd { .. } => f.write_str("BFD says that the peer is gone"),
            Self::PrefixLimit {
                counted,
                family,
                max,
            } => match counted {
                Counted::Received => write!(f, "peer announced more than {max} {family} prefixes"),
                Counted::Accepted => write!(
                    f,
                    "more than {max} {family} prefixes of the peer were accepted (import limit)"
                ),
                Counted::Sent => write!(
                    f,
                    "the peer was to be sent more than {max} {family} prefixes (export limit)"
                ),
            },
            Self::Flapping {
                last,
                times,
                within,
                wait,
            } => {
                write!(
                    f,
                    "{last}; {times} sessions in a row fell within {} s of coming up: the next one waits {:.1} s",
                    within.as_secs(),
                    wait.as_secs_f64()
                )
            }
            Self::Stopped(text) if text.is_empty() => f.write_str("stopped here"),
            Self::Stopped(text) => write!(f, "stopped here: {text}"),
            Self::Restarting => f.write_str("restarting here"),
        }
    }
}

/// What the peer's OPEN names, beside what our role asks for.
fn role_mismatch(ours: BgpRole, named: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let words = named.iter().map(|code| match BgpRole::of_code(*code) {
        Some(role) => role.to_string(),
        None => format!("of number {code}, which is none"),
    });
    let words: Vec<String> = words.collect();
    let wanted = ours.counterpart();
    match &words[..] {
        [] => write!(
            f,
            "peer names no role, and a {wanted} is required: we are its {ours}"
        ),
        words => write!(
            f,
            "peer is a {}, and must be a {wanted}: we are its {ours} (local role)",
            words.join(" and a ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DisableAfter;
    use crate::wire::notification::CeaseSubcode;

    #[test]
    fn an_error_and_a_cease_disable_a_peer_where_the_file_says_so() {
        let cease = |subcode| DownReason::Notified(Notification::cease(subcode));
        let hold = DownReason::HoldTimerExpired(Duration::from_secs(9));
        let shutdown = cease(CeaseSubcode::AdministrativeShutdown);
        let reset = cease(CeaseSubcode::AdministrativeReset);
        let expired = NotificationCode::from_octets(4, 0);
        let told = DownReason::Notified(Notification::new(expired));
        let flapping = DownReason::Flapping {
            last: Box::new(hold.clone()),
            times: 4,
            within: Duration::from_secs(1),
            wait: Duration::from_secs(1),
        };
        let closed = DownReason::Closed(None);
        let never = DisableAfter::default();
        let error = DisableAfter {
            error: true,
            ..never
        };
        let after = |cease| DisableAfter { cease, ..never };
        for (reason, after, wanted) in [
            (&hold, never, false),
            (&hold, error, true),
            (&told, error, true),
            (&flapping, error, true),
            (&closed, error, false),
            (&shutdown, error, false),
            (&shutdown, after(1 << 2), true),
            (&reset, after(1 << 2), false),
            (&reset, after(DisableAfter::ANY_CEASE), true),
            (&told, after(DisableAfter::ANY_CEASE), false),
        ] {
            assert_eq!(reason.disables(after), wanted, "{reason} {after:?}");
        }
    }
}
