//! A session while it is being planned: the speaker's peer plus what is still to be looked up.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use caracal_bgp::{Asn, LimitAction, Password, PeerConfig, PeerName, PrefixLimit};
use caracal_model::{InsertEach, Key, Kind, ProblemCode, SecretKeyRef, Snapshot};

use crate::common::BGP_PORT;
use crate::view::NodeView;
use crate::{Problems, SecretName};

/// The longest TCP MD5 key that Linux takes.
const MAX_PASSWORD: usize = 80;

/// Annotation of a BGPPeer: how many prefixes its peers may announce in each family, or `off`.
/// Calico has no field for it.
pub(crate) const MAX_PREFIXES: &str = "caracal.io/max-prefixes";

/// Annotation of a BGPPeer that says what `spec.failureDetectionMode` does, for clusters whose
/// definition of the kind has no such field.
pub(crate) const FAILURE_DETECTION: &str = "caracal.io/failure-detection-mode";

/// Default limit of prefixes from a peer of a node, for each family. A cluster of 5,000 nodes with
/// four blocks each has 20,000; twelve times that costs a node some 30 MiB and the kernel about as
/// much.
const DEFAULT_MAX_PREFIXES: u32 = 250_000;

/// After this pause a peer that announced too much is tried again: a fault that somebody has mended
/// heals without a hand, and one that stays costs one table each five minutes.
const LIMIT_PAUSE: Duration = Duration::from_secs(300);

/// Limit of prefixes that a peer may announce in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxPrefixes {
    /// This number; with one more the session ends for `LIMIT_PAUSE`.
    Most(u32),
    /// As many as it likes.
    Off,
}

impl Default for MaxPrefixes {
    /// More than any cluster has.
    fn default() -> Self {
        Self::Most(DEFAULT_MAX_PREFIXES)
    }
}

impl MaxPrefixes {
    /// From a number above 0, or `off`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "off" => Some(Self::Off),
            number => number.parse().ok().filter(|n| *n > 0).map(Self::Most),
        }
    }

    /// As the speaker has it: with a warning at 75 %.
    #[must_use]
    pub const fn limit(self) -> Option<PrefixLimit> {
        match self {
            Self::Off => None,
            Self::Most(max) => Some(PrefixLimit {
                action: LimitAction::Restart(LIMIT_PAUSE),
                ..PrefixLimit::new(max)
            }),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct PlannedSession {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) peer: PeerConfig,
    /// Graceful restart time, when a resource asks for one.
    pub(crate) restart_time: Option<Duration>,
    /// Keepalive interval, when a resource asks for one.
    pub(crate) keepalive: Option<Duration>,
    /// Gateway to the peer (`reachableBy`), of the peer's family.
    pub(crate) reachable_by: Option<IpAddr>,
    /// How many prefixes the peer may announce, when a resource says so.
    pub(crate) max_prefixes: Option<MaxPrefixes>,
    /// Names of BGPFilters, in order.
    pub(crate) filters: Vec<String>,
    /// Path of the resource that asks for the session.
    pub(crate) subject: String,
}

impl PlannedSession {
    pub(crate) fn new(peer: PeerConfig, subject: String) -> Self {
        Self {
            address: peer.address,
            port: peer.port,
            peer,
            restart_time: None,
            keepalive: None,
            reachable_by: None,
            max_prefixes: None,
            filters: Vec::new(),
            subject,
        }
    }

    /// Our AS on this session.
    pub(crate) fn own_as(&self, view: &NodeView<'_>) -> Asn {
        self.peer.local_as.unwrap_or(view.asn)
    }

    /// The name of the BGPPeer that asks for the session; `None` in the mesh.
    pub(crate) fn bgp_peer(&self) -> Option<String> {
        match Key::parse(&self.subject) {
            Ok(Key::Resource {
                kind: Kind::BgpPeer,
                name,
                ..
            }) => Some(name),
            _ => None,
        }
    }

    /// True when the password can stand between quotation marks, in a language that has no escapes.
    pub(crate) fn has_quotable_password(&self) -> bool {
        is_quotable(self.peer.password.as_ref())
    }

    /// With this limit where no resource says another one.
    pub(crate) fn into_config(self, max_prefixes: MaxPrefixes) -> PeerConfig {
        let limit = self.max_prefixes.unwrap_or(max_prefixes).limit();
        let mut peer = self.peer;
        for family in &peer.families {
            peer.prefix_limits.set(*family, limit);
        }
        peer
    }
}

/// Text between quotation marks, or at the end of a line, cannot hold these.
pub(crate) fn is_quotable(password: Option<&Password>) -> bool {
    password.is_none_or(|p| !p.0.contains(|c: char| c == '"' || c.is_control()))
}

/// `Mesh_10_0_0_2`, `Node_fd00__2_port_1179`: Calico's names. A port appears when it is not BGP's
/// own.
pub(crate) fn peer_name(kind: &str, address: IpAddr, port: u16) -> PeerName {
    let address = address.to_string().replace(['.', ':'], "_");
    if port == BGP_PORT {
        format!("{kind}_{address}").into()
    } else {
        format!("{kind}_{address}_port_{port}").into()
    }
}

/// True when, of two nodes, we wait and the peer dials: its address is greater as text, so
/// 10.0.0.10 comes before 10.0.0.9. Calico's nodes compare the same way (TOPO-3).
pub(crate) fn waits_for(own: IpAddr, peer: IpAddr) -> bool {
    peer.to_string() > own.to_string()
}

/// The secrets that sessions of a cluster need.
#[must_use]
pub fn secret_names(snapshot: &Snapshot) -> BTreeSet<SecretName> {
    let mesh = snapshot.bgp_default();
    let mesh = mesh.and_then(|c| c.spec.node_mesh_password.as_ref());
    let peers = snapshot.bgp_peers.values();
    let peers = peers.filter_map(|peer| peer.spec.password.as_ref());
    let references = mesh.into_iter().chain(peers);
    let references = references.filter_map(|password| password.secret_key_ref.as_ref());
    references
        .map(|reference| SecretName {
            name: reference.name.clone(),
            key: reference.key.clone(),
        })
        .insert_each()
}

/// The password behind a reference. `Err` = there is none, and the session must not come up
/// (TOPO-4).
pub(crate) fn password(
    view: &NodeView<'_>,
    reference: Option<&SecretKeyRef>,
    subject: &str,
    problems: &mut Problems,
) -> Result<Option<Password>, ()> {
    let Some(reference) = reference else {
        return Ok(None);
    };
    let secret = SecretName {
        name: reference.name.clone(),
        key: reference.key.clone(),
    };
    let fault = match view.options.secrets.get(&secret) {
        None => "is not known to this node".to_owned(),
        Some(Password(text)) if text.is_empty() => "is empty".to_owned(),
        Some(Password(text)) if text.len() > MAX_PASSWORD => {
            format!("is longer than the {MAX_PASSWORD} octets that TCP MD5 takes")
        }
        Some(password) => return Ok(Some(password.clone())),
    };
    let SecretName { name, key } = secret;
    problems.note(
        ProblemCode::BgpPassword,
        subject,
        format!("the password in secret {name:?}, key {key:?}, {fault}; the peers that need it are left out"),
    );
    Err(())
}
