//! BGPConfiguration: `default` for the cluster and `node.NAME` for one node, as one set of values.
//!
//! A node's object speaks for port, log level and communities only, as Calico's validation has it;
//! other fields in it are reported and not used.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caracal_bgp::{AnyCommunity, Asn, CALICO_LOCAL_PREF};
use caracal_model::{
    BgpConfigurationSpec, CidrEntry, Family, Kind, NodeName, Prefix, ProblemCode, SecretKeyRef,
    Snapshot,
};

use crate::common::{BGP_PORT, path};
use crate::{Problems, go_duration};

/// Priorities are kernel metrics; LOCAL_PREF is this minus the metric, so that a better metric is a
/// higher LOCAL_PREF.
pub(crate) const PRIORITY_BASE: u32 = 2_147_483_647;

/// The longest restart time that fits the capability (RFC 4724 §3: 12 bits).
pub(crate) const MAX_RESTART_TIME: Duration = Duration::from_secs(4095);

/// The values that are in force on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BgpSettings {
    /// AS of nodes that set none.
    pub default_asn: Asn,
    /// Every node peers with every other.
    pub mesh: bool,
    /// TCP port for sessions of peers.
    pub listen_port: u16,
    /// Listen on the node's address only.
    pub bind_to_node: bool,
    /// Password of mesh sessions.
    pub mesh_password: Option<SecretKeyRef>,
    /// Graceful restart time of mesh sessions.
    pub mesh_restart_time: Option<Duration>,
    /// Communities to add, by range, in the order of the resource; values sorted and unique.
    pub advertisements: Vec<(Prefix, Vec<AnyCommunity>)>,
    /// LOCAL_PREF of what we originate, IPv4.
    pub local_pref_v4: u32,
    /// LOCAL_PREF of what we originate, IPv6.
    pub local_pref_v6: u32,
    /// Ranges of services, inside which a reflector passes everything on.
    pub service_ranges: Vec<Prefix>,
}

impl BgpSettings {
    /// Reads the two resources of a node.
    pub(crate) fn from_snapshot(
        snapshot: &Snapshot,
        node: &NodeName,
        problems: &mut Problems,
    ) -> Self {
        let empty = BgpConfigurationSpec::default();
        let global = snapshot.bgp_default().map_or(&empty, |c| &c.spec);
        let subject = path(Kind::BgpConfiguration, "default");
        let own = own_object(snapshot, node);
        if let Some(own) = own {
            report_unused(own, node, problems);
        }
        Self {
            default_asn: default_asn(global, &subject, problems),
            mesh: global.node_to_node_mesh_enabled.unwrap_or(true),
            listen_port: listen_port(snapshot, node),
            bind_to_node: bind_to_node(global, &subject, problems),
            mesh_password: global
                .node_mesh_password
                .as_ref()
                .and_then(|p| p.secret_key_ref.clone()),
            mesh_restart_time: restart_time(
                global.node_mesh_max_restart_time.as_deref(),
                "spec.nodeMeshMaxRestartTime",
                &subject,
                problems,
            ),
            advertisements: advertisements(global, own, node, problems),
            local_pref_v4: local_pref(
                global.ipv4_normal_route_priority,
                "spec.ipv4NormalRoutePriority",
                &subject,
                problems,
            ),
            local_pref_v6: local_pref(
                global.ipv6_normal_route_priority,
                "spec.ipv6NormalRoutePriority",
                &subject,
                problems,
            ),
            service_ranges: service_ranges(global, &subject, problems),
        }
    }

    /// LOCAL_PREF of what we originate.
    #[must_use]
    pub(crate) const fn local_pref(&self, family: Family) -> u32 {
        match family {
            Family::Ipv4 => self.local_pref_v4,
            Family::Ipv6 => self.local_pref_v6,
        }
    }
}

fn own_object<'a>(snapshot: &'a Snapshot, node: &NodeName) -> Option<&'a BgpConfigurationSpec> {
    snapshot
        .bgp_configurations
        .get(&node.configuration())
        .map(|c| &c.spec)
}

/// The port on which a node listens: `node.NAME`, else `default`, else 179. Zero counts as unset.
pub(crate) fn listen_port(snapshot: &Snapshot, node: &NodeName) -> u16 {
    let own = own_object(snapshot, node).and_then(|c| c.listen_port);
    let global = || snapshot.bgp_default().and_then(|c| c.spec.listen_port);
    own.filter(|port| *port != 0)
        .or_else(global)
        .filter(|port| *port != 0)
        .unwrap_or(BGP_PORT)
}

fn default_asn(spec: &BgpConfigurationSpec, subject: &str, problems: &mut Problems) -> Asn {
    match spec.as_number {
        None => Asn::DEFAULT,
        Some(asn) if asn.0 == 0 => {
            problems.note(
                ProblemCode::BgpAsNumber,
                subject,
                format!(
                    "spec.asNumber 0 is reserved (RFC 7607); the default {} is used",
                    Asn::DEFAULT
                ),
            );
            Asn::DEFAULT
        }
        Some(asn) => Asn(asn.0),
    }
}

fn bind_to_node(spec: &BgpConfigurationSpec, subject: &str, problems: &mut Problems) -> bool {
    match spec.bind_mode.as_deref() {
        None | Some("" | "None") => false,
        Some("NodeIP") => true,
        Some(mode) => {
            problems.note(
                ProblemCode::BgpBindMode,
                subject,
                format!("spec.bindMode {mode:?} is not NodeIP or None; all addresses are used"),
            );
            false
        }
    }
}

/// Reads a restart time; whole seconds, at most what the capability can carry.
pub(crate) fn restart_time(
    text: Option<&str>,
    field: &str,
    subject: &str,
    problems: &mut Problems,
) -> Option<Duration> {
    let text = text.filter(|t| !t.is_empty())?;
    match go_duration::parse(text) {
        Ok(time) => {
            let time = go_duration::round_to_seconds(time);
            if time > MAX_RESTART_TIME {
                problems.note(
                    ProblemCode::BgpRestartTime,
                    subject,
                    format!("{field} {text:?} does not fit 12 bits (RFC 4724); 4095 s is used"),
                );
            }
            Some(time.min(MAX_RESTART_TIME))
        }
        Err(e) => {
            problems.note(
                ProblemCode::BgpRestartTime,
                subject,
                format!("{field}: {e}; the default of 120 s is used"),
            );
            None
        }
    }
}

fn local_pref(priority: Option<u32>, field: &str, subject: &str, problems: &mut Problems) -> u32 {
    let Some(priority) = priority.filter(|p| *p != 0) else {
        return CALICO_LOCAL_PREF;
    };
    PRIORITY_BASE.checked_sub(priority).unwrap_or_else(|| {
        problems.note(
            ProblemCode::BgpRoutePriority,
            subject,
            format!("{field} {priority} exceeds {PRIORITY_BASE}; 1024 is used"),
        );
        CALICO_LOCAL_PREF
    })
}

fn report_unused(own: &BgpConfigurationSpec, node: &NodeName, problems: &mut Problems) {
    let fields = [
        ("asNumber", own.as_number.is_some()),
        (
            "nodeToNodeMeshEnabled",
            own.node_to_node_mesh_enabled.is_some(),
        ),
        ("nodeMeshPassword", own.node_mesh_password.is_some()),
        (
            "nodeMeshMaxRestartTime",
            own.node_mesh_max_restart_time.is_some(),
        ),
        ("serviceClusterIPs", !own.service_cluster_ips.is_empty()),
        ("serviceExternalIPs", !own.service_external_ips.is_empty()),
        (
            "serviceLoadBalancerIPs",
            !own.service_load_balancer_ips.is_empty(),
        ),
    ];
    for (field, _) in fields.iter().filter(|(_, set)| *set) {
        problems.note(
            ProblemCode::BgpNodeConfiguration,
            path(Kind::BgpConfiguration, &node.configuration()),
            format!("spec.{field} is only read in the BGPConfiguration named default; it is not used here"),
        );
    }
}

fn service_ranges(
    spec: &BgpConfigurationSpec,
    subject: &str,
    problems: &mut Problems,
) -> Vec<Prefix> {
    let mut ranges = BTreeSet::new();
    let mut read = |field: &str, list: &[CidrEntry]| {
        for entry in list.iter().filter(|entry| !entry.cidr.is_empty()) {
            match entry.cidr.parse::<Prefix>() {
                Ok(prefix) => {
                    ranges.insert(prefix);
                }
                Err(e) => problems.note(
                    ProblemCode::BgpServices,
                    subject,
                    format!("spec.{field}: {e}"),
                ),
            }
        }
    };
    read("serviceClusterIPs", &spec.service_cluster_ips);
    read("serviceExternalIPs", &spec.service_external_ips);
    read("serviceLoadBalancerIPs", &spec.service_load_balancer_ips);
    ranges.into_iter().collect()
}

/// The node's list replaces the cluster's; names are looked up in the node's object first.
fn advertisements(
    global: &BgpConfigurationSpec,
    own: Option<&BgpConfigurationSpec>,
    node: &NodeName,
    problems: &mut Problems,
) -> Vec<(Prefix, Vec<AnyCommunity>)> {
    let (source, name) = match own {
        Some(own) if !own.prefix_advertisements.is_empty() => (own, node.configuration()),
        _ => (global, "default".to_owned()),
    };
    let subject = path(Kind::BgpConfiguration, &name);
    let mut names = BTreeMap::new();
    for spec in std::iter::once(global).chain(own) {
        names.extend(
            spec.communities
                .iter()
                .map(|c| (c.name.as_str(), c.value.as_str())),
        );
    }
    let mut out = Vec::new();
    for entry in &source.prefix_advertisements {
        let prefix = match entry.cidr.parse::<Prefix>() {
            Ok(prefix) => prefix,
            Err(e) => {
                let reason = format!("spec.prefixAdvertisements: {e}; the entry is not used");
                problems.note(ProblemCode::BgpCommunities, &subject, reason);
                continue;
            }
        };
        let mut values = BTreeSet::new();
        for text in &entry.communities {
            let value = names.get(text.as_str()).copied().unwrap_or(text);
            match value.parse::<AnyCommunity>() {
                Ok(community) => {
                    values.insert(community);
                }
                Err(_) => problems.note(
                    ProblemCode::BgpCommunities,
                    &subject,
                    format!(
                        "spec.prefixAdvertisements {prefix}: {text:?} is neither a community (AS:VALUE or A:B:C) nor a name in spec.communities; it is not added"
                    ),
                ),
            }
        }
        if !values.is_empty() {
            out.push((prefix, values.into_iter().collect()));
        }
    }
    out
}
