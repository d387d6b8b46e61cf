//! Our OPEN, and what it and the peer's settle together.

use std::time::{Duration, Instant};

use caracal_model::Family;

use super::{DownReason, SessionSettings};
use crate::config::{BgpRole, PeerConfig};
use crate::types::{Asn, RouterId};
use crate::wire::capability::{
    AddPathMode, AfiSafi, Capability, GracefulRestartCapability, LongLivedFamily,
};
use crate::wire::format::{FamilySet, MessageFormat};
use crate::wire::notification::{Notification, NotificationCode, OpenSubcode};
use crate::wire::open::OpenMessage;

/// The largest restart time that fits (RFC 4724 §3: 12 bits of seconds).
const MAX_RESTART_TIME: u16 = 0x0fff;

/// The largest stale time that fits (RFC 9494 §3: 24 bits of seconds).
const MAX_STALE_TIME: u32 = 0x00ff_ffff;

/// Session parameters that result from both OPENs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Format of UPDATEs on this session.
    pub format: MessageFormat,
    /// The smaller of the two hold times; zero = neither hold timer nor keepalives.
    pub hold_time: Duration,
    /// AS that the peer's OPEN names (RFC 6793 §4.1).
    pub remote_as: Asn,
    /// The peer's BGP Identifier.
    pub remote_router_id: RouterId,
    /// The peer answers ROUTE-REFRESH.
    pub route_refresh: bool,
    /// The peer's graceful restart; `None` unless both sides announced it.
    pub graceful_restart: Option<RemoteGracefulRestart>,
    /// The peer's long-lived graceful restart, by family; `None` unless both sides announced it
    /// (RFC 9494).
    pub long_lived: Option<Vec<LongLivedFamily>>,
    /// Begin and end of a refresh are marked (RFC 7313): both sides announced it.
    pub enhanced_refresh: bool,
    /// The peer's role; `None` unless both sides named theirs (RFC 9234).
    pub role: Option<BgpRole>,
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
    /// Time for which its routes are kept without a session.
    pub time: Duration,
    /// Families that it keeps, each with: it did keep forwarding over its last restart.
    pub families: Vec<(Family, bool)>,
}

impl Negotiated {
    /// Families that both ends have announced.
    #[must_use]
    pub const fn families(&self) -> FamilySet {
        self.format.families
    }

    /// Between KEEPALIVEs: a third of the hold time (RFC 4271 §4.4).
    #[must_use]
    pub fn keepalive_time(&self) -> Duration {
        self.hold_time / 3
    }

    /// Names of the capabilities in use.
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
        push(self.enhanced_refresh, "enhanced route refresh");
        push(self.format.extended_send, "extended message");
        push(self.format.extended_next_hop, "extended next hop");
        push(
            !self.format.path_ids_in.is_empty(),
            &format!("ADD-PATH receive {}", self.format.path_ids_in),
        );
        push(
            !self.format.path_ids_out.is_empty(),
            &format!("ADD-PATH send {}", self.format.path_ids_out),
        );
        push(self.role.is_some(), "role");
        push(self.long_lived.is_some(), "long-lived graceful restart");
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
/// Announced: multiprotocol for each configured family, route refresh, enhanced too, extended
/// message, four-octet AS and, if configured, graceful restart, long-lived too, ADD-PATH, IPv6
/// next hops for IPv4 and our role.
#[must_use]
pub(super) fn our_open(settings: &SessionSettings, now: Instant) -> OpenMessage {
    let peer = &settings.peer;
    let mut capabilities: Vec<Capability> = peer
        .families
        .iter()
        .map(|family| Capability::Multiprotocol((*family).into()))
        .collect();
    capabilities.push(Capability::RouteRefresh);
    capabilities.push(Capability::EnhancedRouteRefresh);
    capabilities.push(Capability::ExtendedMessage);
    capabilities.push(Capability::FourOctetAs(settings.local_as()));
    if let Some(restart) = peer.graceful_restart {
        let restarting = settings.restarting_until.is_some_and(|until| now < until);
        let time = u16::try_from(restart.restart_time.as_secs()).unwrap_or(u16::MAX);
        capabilities.push(Capability::GracefulRestart(GracefulRestartCapability {
            restarting,
            notification: true,
            restart_time: time.min(MAX_RESTART_TIME),
            // RFC 4724 §3: the Forwarding State bit is about the last restart, be it of the process
            // or of the session alone. The kernel keeps our routes over both.
            families: peer
                .families
                .iter()
                .map(|family| ((*family).into(), restarting || settings.had_session))
                .collect(),
        }));
        if let Some(stale_time) = peer.long_lived {
            let seconds = u32::try_from(stale_time.as_secs()).unwrap_or(u32::MAX);
            let of_family = |family: &Family| LongLivedFamily {
                family: (*family).into(),
                forwarding: restarting || settings.had_session,
                stale_time: seconds.min(MAX_STALE_TIME),
            };
            let list = peer.families.iter().map(of_family).collect();
            capabilities.push(Capability::LongLivedGracefulRestart(list));
        }
    }
    if peer.extended_next_hop && peer.families.contains(&Family::Ipv4) {
        let ipv6: AfiSafi = Family::Ipv6.into();
        let list = vec![(Family::Ipv4.into(), ipv6.afi)];
        capabilities.push(Capability::ExtendedNextHop(list));
    }
    if let Some(role) = settings.role() {
        capabilities.push(Capability::Role(role.code()));
    }
    if let Some(mode) = add_path_mode(peer) {
        let list = peer.families.iter().map(|family| ((*family).into(), mode));
        capabilities.push(Capability::AddPath(list.collect()));
    }
    OpenMessage {
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
pub(super) fn negotiate(
    settings: &SessionSettings,
    theirs: &OpenMessage,
) -> Result<Negotiated, (DownReason, Notification)> {
    let refuse = |down, subcode| Err((down, Notification::new(NotificationCode::Open(subcode))));
    let expected = settings.peer.remote_as;
    if theirs.asn != expected {
        return refuse(
            DownReason::PeerAs {
                seen: theirs.asn,
                expected,
            },
            OpenSubcode::BadPeerAs,
        );
    }
    // RFC 6286 §2.2: within an AS, identifiers are unique.
    if settings.is_internal() && theirs.router_id == settings.router_id {
        let down = DownReason::RouterIdConflict(theirs.router_id);
        return refuse(down, OpenSubcode::BadIdentifier);
    }
    let ours: FamilySet = settings.peer.families.as_slice().into();
    let their_families = families(theirs);
    let common = ours.intersection(their_families);
    if common.is_empty() {
        let down = DownReason::NoCommonFamily {
            ours,
            theirs: their_families,
        };
        return refuse(down, OpenSubcode::UnsupportedCapability);
    }
    let role = match role(settings, theirs) {
        Ok(role) => role,
        Err(down) => return refuse(down, OpenSubcode::RoleMismatch),
    };
    let has = |wanted: &Capability| theirs.capabilities.contains(wanted);
    let four_octet_as = theirs
        .capabilities
        .iter()
        .any(|c| matches!(c, Capability::FourOctetAs(_)));
    Ok(Negotiated {
        format: MessageFormat {
            four_octet_as,
            extended_receive: true,
            extended_send: has(&Capability::ExtendedMessage),
            internal: settings.is_internal(),
            families: common,
            extended_next_hop: extended_next_hop(settings, theirs),
            path_ids_in: path_ids(
                theirs,
                common,
                settings.peer.add_path.receive,
                AddPathMode::Send,
            ),
            path_ids_out: path_ids(
                theirs,
                common,
                settings.peer.add_path.send.is_some(),
                AddPathMode::Receive,
            ),
        },
        hold_time: settings
            .hold_time()
            .min(Duration::from_secs(theirs.hold_time.into())),
        remote_as: theirs.asn,
        remote_router_id: theirs.router_id,
        route_refresh: has(&Capability::RouteRefresh),
        graceful_restart: graceful_restart(settings, theirs, common),
        long_lived: long_lived(settings, theirs, common),
        enhanced_refresh: has(&Capability::RouteRefresh) && has(&Capability::EnhancedRouteRefresh),
        role,
        remote_capabilities: theirs.capabilities.clone(),
    })
}

/// The families of an OPEN. RFC 4760 §8: without any multiprotocol capability, IPv4 unicast.
fn families(open: &OpenMessage) -> FamilySet {
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

/// The peer's role, where both ends name theirs (RFC 9234 §4.2).
fn role(settings: &SessionSettings, theirs: &OpenMessage) -> Result<Option<BgpRole>, DownReason> {
    let Some(ours) = settings.role() else {
        return Ok(None);
    };
    let capabilities = theirs.capabilities.iter();
    let mut named: Vec<u8> = capabilities
        .filter_map(|capability| match capability {
            Capability::Role(role) => Some(*role),
            _ => None,
        })
        .collect();
    named.dedup();
    let wanted = ours.counterpart();
    match &named[..] {
        [] if !settings.peer.require_roles => Ok(None),
        [one] if *one == wanted.code() => Ok(Some(wanted)),
        _ => Err(DownReason::RoleMismatch { ours, named }),
    }
}

/// ADD-PATH mode to announce for a peer (RFC 7911 §4).
const fn add_path_mode(peer: &PeerConfig) -> Option<AddPathMode> {
    match (peer.add_path.receive, peer.add_path.send.is_some()) {
        (true, true) => Some(AddPathMode::Both),
        (true, false) => Some(AddPathMode::Receive),
        (false, true) => Some(AddPathMode::Send),
        (false, false) => None,
    }
}

/// The families with path identifiers in one direction: we want it, and the peer announced its part
/// (RFC 7911 §4).
fn path_ids(theirs: &OpenMessage, common: FamilySet, wanted: bool, part: AddPathMode) -> FamilySet {
    let announced = theirs
        .capabilities
        .iter()
        .flat_map(|capability| match capability {
            Capability::AddPath(list) => list.as_slice(),
            _ => &[],
        });
    announced
        .filter(|(_, mode)| wanted && (*mode == part || *mode == AddPathMode::Both))
        .filter_map(|(family, _)| family.family())
        .filter(|family| common.contains(*family))
        .collect()
}

/// RFC 8950 §4: both sides announced IPv6 next hops for IPv4 unicast.
fn extended_next_hop(settings: &SessionSettings, theirs: &OpenMessage) -> bool {
    let ipv6: AfiSafi = Family::Ipv6.into();
    let entry = (AfiSafi::from(Family::Ipv4), ipv6.afi);
    let announced = |capability: &Capability| matches!(capability, Capability::ExtendedNextHop(list) if list.contains(&entry));
    settings.peer.extended_next_hop && theirs.capabilities.iter().any(announced)
}

/// RFC 9494 §4.1: only together with graceful restart.
fn long_lived(
    settings: &SessionSettings,
    theirs: &OpenMessage,
    common: FamilySet,
) -> Option<Vec<LongLivedFamily>> {
    settings.peer.long_lived?;
    graceful_restart(settings, theirs, common)?;
    let list = theirs
        .capabilities
        .iter()
        .rev()
        .find_map(|capability| match capability {
            Capability::LongLivedGracefulRestart(list) => Some(list),
            _ => None,
        })?;
    let ours = |entry: &&LongLivedFamily| {
        let family = entry.family.family();
        family.is_some_and(|family| common.contains(family))
    };
    Some(list.iter().filter(ours).copied().collect())
}

fn graceful_restart(
    settings: &SessionSettings,
    theirs: &OpenMessage,
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
