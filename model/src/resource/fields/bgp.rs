//! BGPConfiguration, BGPPeer and BGPFilter.

use super::FieldEffect::{Honoured, NotApplicable, Without};
use super::FieldEntry;

const LOCAL_PEERS: &str = "workloads as BGP peers are reached at their own addresses; no address is added on their interfaces";

pub(super) const CONFIGURATION: &[FieldEntry] = &[
    ("spec.asNumber", Honoured),
    ("spec.nodeToNodeMeshEnabled", Honoured),
    (
        "spec.logSeverityScreen",
        NotApplicable("BIRD's log; ours is set by CARACAL_LOG and `caracal log-level`"),
    ),
    ("spec.listenPort", Honoured),
    ("spec.bindMode", Honoured),
    ("spec.nodeMeshPassword.secretKeyRef.name", Honoured),
    ("spec.nodeMeshPassword.secretKeyRef.key", Honoured),
    (
        "spec.nodeMeshPassword.secretKeyRef.optional",
        Without(&["false"], "a session never comes up without its password"),
    ),
    ("spec.nodeMeshMaxRestartTime", Honoured),
    ("spec.communities.name", Honoured),
    ("spec.communities.value", Honoured),
    ("spec.prefixAdvertisements.cidr", Honoured),
    ("spec.prefixAdvertisements.communities", Honoured),
    ("spec.serviceClusterIPs.cidr", Honoured),
    ("spec.serviceExternalIPs.cidr", Honoured),
    ("spec.serviceLoadBalancerIPs.cidr", Honoured),
    ("spec.serviceLoadBalancerAggregation", Honoured),
    ("spec.ignoredInterfaces", Honoured),
    ("spec.programClusterRoutes", Honoured),
    ("spec.ipv4NormalRoutePriority", Honoured),
    ("spec.ipv6NormalRoutePriority", Honoured),
    (
        "spec.ipv4ElevatedRoutePriority",
        Without(&["512"], "there is no live migration"),
    ),
    (
        "spec.ipv6ElevatedRoutePriority",
        Without(&["512"], "there is no live migration"),
    ),
    ("spec.localWorkloadPeeringIPV4", Without(&[], LOCAL_PEERS)),
    ("spec.localWorkloadPeeringIPV6", Without(&[], LOCAL_PEERS)),
];

pub(super) const PEER: &[FieldEntry] = &[
    ("spec.node", Honoured),
    ("spec.nodeSelector", Honoured),
    ("spec.peerIP", Honoured),
    ("spec.peerSelector", Honoured),
    ("spec.asNumber", Honoured),
    ("spec.localASNumber", Honoured),
    ("spec.keepOriginalNextHop", Honoured),
    ("spec.nextHopMode", Honoured),
    ("spec.password.secretKeyRef.name", Honoured),
    ("spec.password.secretKeyRef.key", Honoured),
    (
        "spec.password.secretKeyRef.optional",
        Without(&["false"], "a session never comes up without its password"),
    ),
    ("spec.sourceAddress", Honoured),
    ("spec.maxRestartTime", Honoured),
    ("spec.keepaliveTime", Honoured),
    ("spec.numAllowedLocalASNumbers", Honoured),
    ("spec.ttlSecurity", Honoured),
    ("spec.failureDetectionMode", Honoured),
    ("spec.reachableBy", Honoured),
    ("spec.filters", Honoured),
    ("spec.localWorkloadSelector", Honoured),
    ("spec.reversePeering", Honoured),
];

/// The rules of one list. `$list` is its name.
macro_rules! rules {
    ($($list:literal),*) => {
        &[$(
            (concat!("spec.", $list, ".cidr"), Honoured),
            (concat!("spec.", $list, ".matchOperator"), Honoured),
            (concat!("spec.", $list, ".prefixLength.min"), Honoured),
            (concat!("spec.", $list, ".prefixLength.max"), Honoured),
            (concat!("spec.", $list, ".source"), Honoured),
            (concat!("spec.", $list, ".interface"), Honoured),
            (concat!("spec.", $list, ".peerType"), Honoured),
            (concat!("spec.", $list, ".communities.values"), Honoured),
            (concat!("spec.", $list, ".asPathPrefix"), Honoured),
            (concat!("spec.", $list, ".priority"), Honoured),
            (concat!("spec.", $list, ".action"), Honoured),
            (concat!("spec.", $list, ".operations.addCommunity.value"), Honoured),
            (concat!("spec.", $list, ".operations.prependASPath.prefix"), Honoured),
            (concat!("spec.", $list, ".operations.setPriority.value"), Honoured),
        )*]
    };
}

pub(super) const FILTER: &[FieldEntry] = rules!("importV4", "exportV4", "importV6", "exportV6");
