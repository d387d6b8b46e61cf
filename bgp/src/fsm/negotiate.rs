//! Our OPEN, and what it and the peer's settle together.

use std::time::{Duration, Instant};

use caracal_model::net::Family;

use super::{Down, Settings};
use crate::types::{Asn, RouterId};
use crate::wire::capability::{AfiSafi, Capability, GracefulRestartCapability};
use crate::wire::format::{FamilySet, Format};
use crate::wire::notification::{Code, Notification, OpenSubcode};
use crate::wire::open::Open;

/// The largest restart time that fits (RFC 4724 §3: 12 bits of seconds).
const MAX_RESTART_TIME: u16 = 0x0fff;

/// What two OPENs settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// How messages look.
    pub format: Format,
    /// The smaller of the two hold times; zero = neither hold timer nor keepalives.
    pub hold_time: Duration,
    /// The peer's AS.
    pub remote_as: Asn,
    /// The peer's BGP Identifier.
    pub remote_router_id: RouterId,
    /// The peer answers ROUTE-REFRESH.
    pub route_refresh: bool,
    /// The peer's graceful restart; `None` unless both sides announced it.
    pub graceful_restart: Option<RemoteGracefulRestart>,
    /// Everything the peer announced.
    pub remote_capabilities: Vec<Capability>,
}

/// The peer's side of graceful restart (RFC 4724 §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteGracefulRestart {
    /// It has restarted and waits for our End-of-RIB.
    pub restarting: bool,
    /// Both sides keep routes also after a NOTIFICATION (RFC 8538).
    pub notification: bool,
    /// How long we shall keep its routes without a session.
    pub time: Duration,
    /// Families that it keeps, each with: it did keep forwarding over its last restart.
    pub families: Vec<(Family, bool)>,
}

impl Negotiated {
    /// Negotiated families.
    #[must_use]
    pub const fn families(&self) -> FamilySet {
        self.format.families
    }

    /// Between KEEPALIVEs: a third of the hold time (RFC 4271 §4.4).
    #[must_use]
    pub fn keepalive_time(&self) -> Duration {
        self.hold_time / 3
    }

    /// Capabilities in use, in the field's words.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut push = |used: bool, word: &str| {
            if used {
                words.push(word.to_owned());
            }
        };
        push(self.format.four_octet_as, "4-octet AS");
        push(self.route_refresh, "route refresh");
        push(self.format.extended_send, "extended message");
        push(self.format.extended_next_hop, "extended next hop");
        if let Some(restart) = &self.graceful_restart {
            push(
                true,
                &format!("graceful restart {} s", restart.time.as_secs()),
            );
            push(restart.notification, "graceful notification");
        }
        words
    }
}

/// The OPEN we send.
///
/// Announced: multiprotocol for each configured family, route refresh, extended message, four-octet AS and,
/// if configured, graceful restart. Enhanced refresh and ADD-PATH are understood by the codec but not
/// announced: the table has no use for them yet.
#[must_use]
pub fn our_open(settings: &Settings, now: Instant) -> Open {
    let peer = &settings.peer;
    let mut capabilities: Vec<Capability> = peer
        .families
        .iter()
        .map(|family| Capability::Multiprotocol((*family).into()))
        .collect();
    capabilities.push(Capability::RouteRefresh);
    capabilities.push(Capability::ExtendedMessage);
    capabilities.push(Capability::FourOctetAs(settings.local_as()));
    if let Some(restart) = peer.graceful_restart {
        let restarting = settings.restarting_until.is_some_and(|until| now < until);
        let time = u16::try_from(restart.restart_time.as_secs()).unwrap_or(u16::MAX);
        capabilities.push(Capability::GracefulRestart(GracefulRestartCapability {
            restarting,
            notification: true,
            restart_time: time.min(MAX_RESTART_TIME),
            // RFC 4724 §3: the Forwarding State bit is about the last restart, be it of the process or of the session
            // alone. The kernel keeps our routes over both.
            families: peer
                .families
                .iter()
                .map(|family| ((*family).into(), restarting || settings.had_session))
                .collect(),
        }));
    }
    Open {
        asn: settings.local_as(),
        hold_time: u16::try_from(settings.hold_time().as_secs()).unwrap_or(u16::MAX),
        router_id: settings.router_id,
        capabilities,
    }
}

/// Checks the peer's OPEN against the configuration and settles the session (RFC 4271 §6.2).
///
/// # Errors
/// Why the session cannot be, and the NOTIFICATION to send.
pub fn negotiate(settings: &Settings, theirs: &Open) -> Result<Negotiated, (Down, Notification)> {
    let refuse = |down, subcode| Err((down, Notification::new(Code::Open(subcode))));
    let expected = settings.peer.remote_as;
    if theirs.asn != expected {
        return refuse(
            Down::PeerAs {
                seen: theirs.asn,
                expected,
            },
            OpenSubcode::BadPeerAs,
        );
    }
    // RFC 6286 §2.2: within an AS, identifiers are unique.
    if settings.is_internal() && theirs.router_id == settings.router_id {
        let down = Down::RouterIdConflict(theirs.router_id);
        return refuse(down, OpenSubcode::BadIdentifier);
    }
    let ours: FamilySet = settings.peer.families.as_slice().into();
    let their_families = families(theirs);
    let common = ours.intersection(their_families);
    if common.is_empty() {
        let down = Down::NoCommonFamily {
            ours,
            theirs: their_families,
        };
        return refuse(down, OpenSubcode::UnsupportedCapability);
    }
    let has = |wanted: &Capability| theirs.capabilities.contains(wanted);
    let four_octet_as = theirs
        .capabilities
        .iter()
        .any(|c| matches!(c, Capability::FourOctetAs(_)));
    Ok(Negotiated {
        format: Format {
            four_octet_as,
            extended_receive: true,
            extended_send: has(&Capability::ExtendedMessage),
            internal: settings.is_internal(),
            families: common,
            extended_next_hop: false,
        },
        hold_time: settings
            .hold_time()
            .min(Duration::from_secs(theirs.hold_time.into())),
        remote_as: theirs.asn,
        remote_router_id: theirs.router_id,
        route_refresh: has(&Capability::RouteRefresh),
        graceful_restart: graceful_restart(settings, theirs, common),
        remote_capabilities: theirs.capabilities.clone(),
    })
}

/// The families of an OPEN. RFC 4760 §8: without any multiprotocol capability, IPv4 unicast.
fn families(open: &Open) -> FamilySet {
    let announced: Vec<AfiSafi> = open
        .capabilities
        .iter()
        .filter_map(|capability| match capability {
            Capability::Multiprotocol(family) => Some(*family),
            _ => None,
        })
        .collect();
    if announced.is_empty() {
        return [Family::Ipv4].into_iter().collect();
    }
    announced.into_iter().filter_map(AfiSafi::family).collect()
}

fn graceful_restart(
    settings: &Settings,
    theirs: &Open,
    common: FamilySet,
) -> Option<RemoteGracefulRestart> {
    settings.peer.graceful_restart?;
    // RFC 4724 §3: of several, the last counts.
    let restart = theirs
        .capabilities
        .iter()
        .rev()
        .find_map(|capability| match capability {
            Capability::GracefulRestart(restart) => Some(restart),
            _ => None,
        })?;
    Some(RemoteGracefulRestart {
        restarting: restart.restarting,
        notification: restart.notification,
        time: Duration::from_secs(restart.restart_time.into()),
        families: restart
            .families
            .iter()
            .filter_map(|(family, forwarding)| Some((family.family()?, *forwarding)))
            .filter(|(family, _)| common.contains(*family))
            .collect(),
    })
}
