//! Sessions that BGPPeer resources ask for: global, for some nodes, by address or by selector, and
//! in reverse.
//!
//! Three passes, the first that names a place (address and port) wins: resources for all nodes,
//! resources for some nodes, then the reverse of all of them, so that one resource configures both
//! ends. Within a pass resources are taken in the order of their names (TOPO-1).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use caracal_bgp::{Asn, BfdOptions, ClusterId, GracefulRestart, NextHopMode, PeerConfig, PeerName};
use caracal_model::{BgpPeerSpec, Family, InsertEach, Kind, Node, NodeName, ProblemCode, Selector};

use crate::common::{BGP_PORT, FAMILIES, path};
use crate::route_reflector::client_of;
use crate::session::{
    FAILURE_DETECTION, MAX_PREFIXES, MaxPrefixes, PlannedSession, password, peer_name, waits_for,
};
use crate::settings::restart_time;
use crate::view::{NodeView, seniority, unusable};
use crate::{Problems, go_duration};

/// How a peer was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// By `peerIP`; true when a node of the cluster has the address.
    Address { is_node: bool },
    /// As a node, by selector or in reverse.
    Node,
    /// As a workload of this node.
    Workload,
}

/// Where the other end is.
#[derive(Clone, Debug)]
struct Remote {
    address: IpAddr,
    port: u16,
    asn: Asn,
    cluster: Option<ClusterId>,
    origin: Origin,
}

/// Which nodes a resource is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Global,
    Node,
}

/// A BGPPeer with its selectors parsed; a selector is asked once a node.
pub(crate) struct Request<'a> {
    name: &'a str,
    pub(crate) spec: &'a BgpPeerSpec,
    scope: Scope,
    local_side: Selector,
    /// `None` when the peer is given by its address.
    pub(crate) remote_side: Option<Selector>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(name: &'a str, spec: &'a BgpPeerSpec) -> Self {
        // Selectors were checked when the resource entered the snapshot.
        let parse = |text: &str| {
            Selector::parse(text).unwrap_or_else(|_| Selector::Not(Box::new(Selector::All)))
        };
        let is_global = spec.node.is_empty() && spec.node_selector.is_empty();
        Self {
            name,
            spec,
            scope: if is_global {
                Scope::Global
            } else {
                Scope::Node
            },
            local_side: parse(&spec.node_selector),
            remote_side: Some(spec.peer_selector.as_str())
                .filter(|text| !text.is_empty())
                .map(parse),
        }
    }

    /// True when the resource gives a node peers.
    pub(crate) fn is_local_side(&self, name: &NodeName, node: &Node) -> bool {
        if self.spec.node.is_empty() {
            self.local_side.matches(&node.metadata.labels)
        } else {
            self.spec.node == name.as_str()
        }
    }
}

/// True when a BGPPeer makes sessions of this node, from either side.
pub(crate) fn concerns(spec: &BgpPeerSpec, name: &NodeName, node: &Node) -> bool {
    let request = Request::new("", spec);
    let selected = |remote: &Selector| remote.matches(&node.metadata.labels);
    let is_remote = || match (&request.remote_side, spec.peer_address()) {
        (Some(remote), _) => selected(remote),
        (None, Some((address, _))) => node.spec.address(Family::of(address)) == Some(address),
        (None, None) => false,
    };
    request.is_local_side(name, node) || is_remote()
}

pub(crate) fn sessions(
    view: &NodeView<'_>,
    problems: &mut Problems,
) -> BTreeMap<PeerName, PlannedSession> {
    let Some(node) = view.node else {
        return BTreeMap::new();
    };
    let requests: Vec<Request<'_>> = view
        .snapshot
        .bgp_peers
        .iter()
        .map(|(name, peer)| Request::new(name, &peer.spec))
        .collect();
    let mut places = BTreeMap::new();
    for scope in [Scope::Global, Scope::Node] {
        for request in requests.iter().filter(|r| r.scope == scope) {
            if !request.is_local_side(view.name, node) {
                continue;
            }
            for remote in remotes(view, request, problems) {
                add(view, &mut places, scope, request, &remote, problems);
            }
        }
    }
    for request in &requests {
        for remote in reverse(view, node, request) {
            add(view, &mut places, Scope::Node, request, &remote, problems);
        }
    }
    places.into_values().insert_each()
}

/// The peers that a resource gives to a node on its local side.
fn remotes(view: &NodeView<'_>, request: &Request<'_>, problems: &mut Problems) -> Vec<Remote> {
    let Request { name, spec, .. } = *request;
    if !spec.local_workload_selector.is_empty() {
        return workloads(view, name, spec, problems);
    }
    if let Some(selector) = &request.remote_side {
        let nodes = selected(view, |_, node| selector.matches(&node.metadata.labels));
        let nodes = nodes.into_iter();
        return nodes
            .flat_map(|(name, node)| as_remotes(view, name, node, &FAMILIES))
            .collect();
    }
    let mut fault = |reason: String| {
        problems.note(ProblemCode::BgpPeer, path(Kind::BgpPeer, name), reason);
        Vec::new()
    };
    let Some((address, port)) = spec.peer_address() else {
        return fault(
            "spec has neither peerIP with asNumber, nor peerSelector, nor localWorkloadSelector; it gives no peers"
                .to_owned(),
        );
    };
    let known = view.node_at(address);
    // A node says its AS itself: its own, or the cluster's.
    let of_node = || known.map(|(_, node)| view.asn_of(node));
    let Some(asn) = spec.as_number.map(|asn| Asn(asn.0)).or_else(of_node) else {
        return fault(format!(
            "spec has no asNumber, and peerIP {address} is no node's address, whose AS is known; it gives no peers"
        ));
    };
    let listens = known
        .filter(|(_, node)| view.asn_of(node) == asn)
        .map(|(name, _)| view.listen_port_of(name));
    if let Some((node_name, node)) = known
        && let Some(reason) = wrong_as(view, (node_name, node), (address, port), asn)
    {
        return fault(reason);
    }
    vec![Remote {
        address,
        port: port.filter(|p| *p != 0).or(listens).unwrap_or(BGP_PORT),
        asn,
        cluster: None,
        origin: Origin::Address {
            is_node: known.is_some(),
        },
    }]
}

/// Why a node at this place is no peer of this AS: it speaks with another, so the session never
/// begins and would stand in the place of the right one. On another port than the node's somebody
/// else listens, and `localASNumber` gives a node another AS.
fn wrong_as(
    view: &NodeView<'_>,
    (name, node): (&NodeName, &Node),
    (address, port): (IpAddr, Option<u16>),
    asn: Asn,
) -> Option<String> {
    let listens = view.listen_port_of(name);
    let own = view.asn_of(node);
    let there = port.filter(|port| *port != 0).unwrap_or(BGP_PORT);
    let speaks_as = |spec: &BgpPeerSpec| {
        let local = spec.local_as_number.is_some_and(|local| local.0 == asn.0);
        local && Request::new("", spec).is_local_side(name, node)
    };
    let mut peers = view.snapshot.bgp_peers.values();
    // What is wrong with the address itself is said where the session would be added.
    let addressable = unusable(address).is_none() && !view.is_own(address);
    if !addressable || own == asn || there != listens || peers.any(|peer| speaks_as(&peer.spec)) {
        return None;
    }
    Some(format!(
        "peerIP {address} is node {name}, whose AS is {own} and not {asn}; it gives no peer, and what else makes the node a peer stays: correct asNumber, or take the BGPPeer out"
    ))
}

/// A node as a peer, once for each family of `families` in which it has an address.
fn as_remotes(
    view: &NodeView<'_>,
    name: &NodeName,
    node: &Node,
    families: &[Family],
) -> Vec<Remote> {
    families
        .iter()
        .filter_map(|family| node.spec.address(*family))
        .filter(|address| !view.is_refused(*address))
        .map(|address| Remote {
            address,
            port: view.listen_port_of(name),
            asn: view.asn_of(node),
            cluster: node.spec.cluster_id().map(ClusterId),
            origin: Origin::Node,
        })
        .collect()
}

fn workloads(
    view: &NodeView<'_>,
    name: &str,
    spec: &BgpPeerSpec,
    problems: &mut Problems,
) -> Vec<Remote> {
    let mut fault = |reason: &str| {
        problems.note(ProblemCode::BgpPeer, path(Kind::BgpPeer, name), reason);
        Vec::new()
    };
    if !spec.peer_ip.is_empty() || !spec.peer_selector.is_empty() {
        return fault(
            "spec.localWorkloadSelector excludes peerIP and peerSelector; it gives no peers",
        );
    }
    let Some(asn) = spec.as_number.filter(|asn| asn.0 != 0) else {
        return fault("spec.localWorkloadSelector needs asNumber; it gives no peers");
    };
    let Ok(selector) = Selector::parse(&spec.local_workload_selector) else {
        return fault("spec.localWorkloadSelector does not parse; it gives no peers");
    };
    view.snapshot
        .workloads_of(view.name)
        .filter(|w| selector.matches(&w.metadata.labels))
        .flat_map(|w| w.spec.ip_networks.iter())
        .map(|prefix| Remote {
            address: prefix.address(),
            port: BGP_PORT,
            asn: Asn(asn.0),
            cluster: None,
            origin: Origin::Workload,
        })
        .collect()
}

/// The peers that a resource gives to a node on its remote side: the nodes of its local side.
fn reverse(view: &NodeView<'_>, node: &Node, request: &Request<'_>) -> Vec<Remote> {
    let spec = request.spec;
    let manual = spec.reverse_peering.as_deref() == Some("Manual");
    if manual || !spec.local_workload_selector.is_empty() {
        return Vec::new();
    }
    let own_family;
    let families: &[Family] = if let Some(selector) = &request.remote_side {
        if !selector.matches(&node.metadata.labels) {
            return Vec::new();
        }
        &FAMILIES
    } else {
        let Some((address, port)) = spec.peer_address() else {
            return Vec::new();
        };
        let is_us = view.is_own(address)
            && spec.as_number.is_none_or(|asn| Asn(asn.0) == view.asn)
            && port.is_none_or(|port| port == 0 || port == view.settings.listen_port);
        if !is_us {
            return Vec::new();
        }
        own_family = [Family::of(address)];
        &own_family
    };
    let nodes = selected(view, |name, node| request.is_local_side(name, node));
    let nodes = nodes.into_iter();
    nodes
        .flat_map(|(name, node)| as_remotes(view, name, node, families))
        .collect()
}

/// The nodes that a side of a resource selects, of those with one address the first that counts
/// before the others: it takes the place.
fn selected<'a>(
    view: &NodeView<'a>,
    is_selected: impl Fn(&NodeName, &Node) -> bool,
) -> Vec<(&'a NodeName, &'a Node)> {
    let nodes = view.nodes().filter(|(name, node)| is_selected(name, node));
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by_key(|&(name, node)| seniority(name, node));
    nodes
}

/// A peer is address and port: another port than ours is another daemon's, also on this machine.
fn has_other_port(view: &NodeView<'_>, spec: &BgpPeerSpec) -> bool {
    let port = spec.peer_address().and_then(|(_, port)| port);
    port.is_some_and(|port| port != 0 && port != view.settings.listen_port)
}

/// Adds a session unless its place is taken, is ourselves, or cannot be reached from an address of
/// ours.
fn add(
    view: &NodeView<'_>,
    places: &mut BTreeMap<(IpAddr, u16), (PeerName, PlannedSession)>,
    scope: Scope,
    request: &Request<'_>,
    remote: &Remote,
    problems: &mut Problems,
) {
    let spec = request.spec;
    let place = (remote.address, remote.port);
    let subject = path(Kind::BgpPeer, request.name);
    let by_address = matches!(remote.origin, Origin::Address { .. });
    if let Some(fault) = unusable(remote.address) {
        if by_address {
            let reason = format!("peerIP {} {fault}; it gives no peer", remote.address);
            problems.note(ProblemCode::BgpPeer, subject, reason);
        }
        return;
    }
    // A resource for several nodes may name one of them; one for this node alone may not name it.
    let ourselves = view.is_own(remote.address) && !(by_address && has_other_port(view, spec));
    if ourselves && by_address && spec.node == view.name.as_str() {
        let reason = format!(
            "peerIP {} is the own address of the node it is for; it gives no peer. A second daemon on this machine has a \
             port of its own, which peerIP names after the address",
            remote.address
        );
        problems.note(ProblemCode::BgpPeer, subject, reason);
        return;
    }
    if ourselves || places.contains_key(&place) {
        return;
    }
    let family = Family::of(remote.address);
    let Some(own) = view.address(family) else {
        if matches!(remote.origin, Origin::Address { .. }) {
            problems.note(
                ProblemCode::BgpPeer,
                subject,
                format!(
                    "this node has no {family} address, so it cannot peer with {}",
                    remote.address
                ),
            );
        }
        return;
    };
    if remote.asn.0 == 0 {
        let reason = format!(
            "the AS number of {} is 0, which is reserved (RFC 7607)",
            remote.address
        );
        problems.note(ProblemCode::BgpPeer, subject, reason);
        return;
    }
    let reference = spec
        .password
        .as_ref()
        .and_then(|p| p.secret_key_ref.as_ref());
    let Ok(password) = password(view, reference, &subject, problems) else {
        return;
    };
    let mut session = PlannedSession::new(base(view, own, scope, spec, remote), subject);
    session.peer.password = password;
    session.filters.clone_from(&spec.filters);
    session.max_prefixes = max_prefixes(view, request.name, &session.subject, problems);
    failure_detection(view, request.name, &mut session, spec, problems);
    timers(&mut session, spec, problems);
    next_hop(view, &mut session, spec);
    if !spec.reachable_by.is_empty() {
        match spec.reachable_by.parse::<IpAddr>() {
            Ok(gateway) if Family::of(gateway) == family => session.reachable_by = Some(gateway),
            _ => problems.note(
                ProblemCode::BgpGateway,
                session.subject.clone(),
                format!(
                    "spec.reachableBy {:?} is no {family} address; there is no static route to {}",
                    spec.reachable_by, remote.address
                ),
            ),
        }
    }
    let prefix = match (remote.origin, scope) {
        (Origin::Workload, _) => "Local_Workload",
        (_, Scope::Global) => "Global",
        (_, Scope::Node) => "Node",
    };
    places.insert(
        place,
        (peer_name(prefix, remote.address, remote.port), session),
    );
}

/// Everything about a peer that follows from where it is.
fn base(
    view: &NodeView<'_>,
    own: IpAddr,
    scope: Scope,
    spec: &BgpPeerSpec,
    remote: &Remote,
) -> PeerConfig {
    let by_address = matches!(remote.origin, Origin::Address { .. } | Origin::Workload);
    let mut peer = PeerConfig::new(remote.address, remote.asn);
    peer.port = remote.port;
    peer.families = vec![Family::of(remote.address)];
    peer.local_as = spec
        .local_as_number
        .filter(|asn| by_address && asn.0 != 0)
        .map(|asn| Asn(asn.0))
        .filter(|asn| *asn != view.asn);
    peer.source = match remote.origin {
        Origin::Workload => None,
        _ if spec.source_address.as_deref() == Some("None") => None,
        _ => Some(own),
    };
    // Of two nodes that a global resource makes peers, one waits, as in the mesh. All other
    // sessions are dialled from both sides, and collision detection (RFC 4271 §6.8) keeps one
    // connection.
    peer.passive = match remote.origin {
        Origin::Workload => true,
        Origin::Address { is_node: true } => {
            scope == Scope::Global && waits_for(own, remote.address)
        }
        Origin::Address { is_node: false } | Origin::Node => false,
    };
    peer.allow_own_as = if by_address {
        let count = spec.num_allowed_local_as_numbers.unwrap_or(0);
        u8::try_from(count.clamp(0, 255)).unwrap_or(u8::MAX)
    } else {
        0
    };
    peer.ttl_security = spec.ttl_security.filter(|hops| *hops > 0);
    peer.ttl = peer.ttl_security.map(|_| 255); // RFC 5082 §3.
    peer.client_of = client_of(
        view.cluster_id(),
        peer.local_as.unwrap_or(view.asn),
        remote.asn,
        remote.cluster,
    );
    peer.kind = match (remote.origin, scope) {
        (Origin::Workload, _) => "workload",
        (_, Scope::Global) => "global",
        (_, Scope::Node) => "node",
    }
    .to_owned();
    peer
}

/// BFD with a peer on a link of this node, as the field or the annotation says. A lost peer may be
/// restarting, unless its BFD says that it would outlive its control plane: its routes are kept as
/// graceful restart says.
fn failure_detection(
    view: &NodeView<'_>,
    name: &str,
    session: &mut PlannedSession,
    spec: &BgpPeerSpec,
    problems: &mut Problems,
) {
    let resource = view.snapshot.bgp_peers.get(name);
    let annotation = resource.and_then(|peer| peer.metadata.annotations.get(FAILURE_DETECTION));
    let field = spec.failure_detection_mode.as_ref();
    let Some(mode) = field.filter(|mode| !mode.is_empty()).or(annotation) else {
        return;
    };
    match mode.as_str() {
        "None" => return,
        "BFDIfDirectlyConnected" => {}
        other => {
            let reason = format!(
                "failureDetectionMode {other:?} is neither None nor BFDIfDirectlyConnected; there is no BFD"
            );
            return problems.note(ProblemCode::BgpPeer, session.subject.clone(), reason);
        }
    }
    let address = session.peer.address;
    let link = view
        .node
        .and_then(|node| node.spec.cidr(Family::of(address)));
    let on_link = link.is_some_and(|link| link.prefix().contains(address));
    let far = session.peer.ttl_security.is_some_and(|hops| hops > 1);
    if on_link && !far && spec.reachable_by.is_empty() {
        session.peer.ttl = session.peer.ttl.or(Some(1));
        session.peer.bfd = Some(BfdOptions {
            graceful: true,
            ..BfdOptions::default()
        });
    }
}

/// Prefix limit of the annotation.
fn max_prefixes(
    view: &NodeView<'_>,
    name: &str,
    subject: &str,
    problems: &mut Problems,
) -> Option<MaxPrefixes> {
    let annotations = &view.snapshot.bgp_peers.get(name)?.metadata.annotations;
    let text = annotations.get(MAX_PREFIXES)?;
    let parsed = MaxPrefixes::parse(text);
    if parsed.is_none() {
        let reason = format!(
            "annotation {MAX_PREFIXES} {text:?} is neither a number above 0 nor off; the node's setting is used"
        );
        problems.note(ProblemCode::BgpMaxPrefixes, subject, reason);
    }
    parsed
}

fn timers(session: &mut PlannedSession, spec: &BgpPeerSpec, problems: &mut Problems) {
    let text = spec.max_restart_time.as_deref();
    if let Some(time) = restart_time(text, "spec.maxRestartTime", &session.subject, problems) {
        session.peer.graceful_restart = Some(GracefulRestart { restart_time: time });
        session.restart_time = Some(time);
    }
    let Some(text) = spec.keepalive_time.as_deref().filter(|t| !t.is_empty()) else {
        return;
    };
    match go_duration::parse(text).map(go_duration::round_to_seconds) {
        // A keepalive is sent three times within the hold time (RFC 4271 §4.4), so this is the way
        // to ask for an interval; the hold time is 0 or at least 3 s and fits 16 bits.
        Ok(interval) if interval >= Duration::from_secs(1) => {
            session.keepalive = Some(interval);
            session.peer.hold_time = (interval * 3).min(Duration::from_secs(65_535));
        }
        Ok(_) => problems.note(
            ProblemCode::BgpKeepaliveTime,
            session.subject.clone(),
            format!("spec.keepaliveTime {text:?} is below one second; the default is used"),
        ),
        Err(e) => problems.note(
            ProblemCode::BgpKeepaliveTime,
            session.subject.clone(),
            format!("spec.keepaliveTime: {e}; the default is used"),
        ),
    }
}

fn next_hop(view: &NodeView<'_>, session: &mut PlannedSession, spec: &BgpPeerSpec) {
    let external = session.own_as(view) != session.peer.remote_as;
    let mode = match spec.next_hop_mode.as_deref() {
        Some("Self") => NextHopMode::Own,
        Some("Keep") => NextHopMode::Keep,
        Some("Auto") => NextHopMode::Auto,
        _ if external && spec.keep_original_next_hop == Some(true) => NextHopMode::Keep,
        _ => NextHopMode::Auto,
    };
    session.peer.next_hop = mode.into();
}
