//! BGPConfiguration, BGPPeer and BGPFilter.

use crate::net::Family::{Ipv4, Ipv6};
use crate::schema::types::{PORT, Rule, Type, U32, field};

const SEVERITIES: Type =
    Type::OneOfAnyCase(&["Trace", "Debug", "Info", "Warning", "Error", "Fatal"]);
const ROUTES: Type = Type::OneOf(&[
    "Enabled",
    "Disabled",
    "EnabledIPIPOnly",
    "EnabledNoEncapOnly",
]);

pub(in crate::schema) const CONFIGURATION: &[Rule] = &[
    field("spec.asNumber", Type::AsNumber),
    field("spec.nodeToNodeMeshEnabled", Type::Boolean),
    field("spec.logSeverityScreen", SEVERITIES),
    field("spec.listenPort", PORT),
    field("spec.bindMode", Type::OneOf(&["None", "NodeIP"])),
    field("spec.nodeMeshPassword", Type::Object),
    field("spec.nodeMeshPassword.secretKeyRef", Type::Object).required(),
    field("spec.nodeMeshPassword.secretKeyRef.name", Type::Text).required(),
    field("spec.nodeMeshPassword.secretKeyRef.key", Type::Text).required(),
    field("spec.nodeMeshPassword.secretKeyRef.optional", Type::Boolean),
    field("spec.nodeMeshMaxRestartTime", Type::Duration),
    field("spec.communities", Type::Objects),
    field("spec.communities.name", Type::Text).required(),
    field("spec.communities.value", Type::Community).required(),
    field("spec.prefixAdvertisements", Type::Objects),
    field("spec.prefixAdvertisements.cidr", Type::Cidr(None)).required(),
    field(
        "spec.prefixAdvertisements.communities",
        Type::List(&Type::Text),
    ),
    field("spec.serviceClusterIPs", Type::Objects),
    field("spec.serviceClusterIPs.cidr", Type::Cidr(None)),
    field("spec.serviceExternalIPs", Type::Objects),
    field("spec.serviceExternalIPs.cidr", Type::Cidr(None)),
    field("spec.serviceLoadBalancerIPs", Type::Objects),
    field("spec.serviceLoadBalancerIPs.cidr", Type::Cidr(None)),
    field(
        "spec.serviceLoadBalancerAggregation",
        Type::OneOf(&["Enabled", "Disabled"]),
    ),
    field("spec.ignoredInterfaces", Type::List(&Type::Interface)),
    field("spec.programClusterRoutes", ROUTES),
    field(
        "spec.ipv4NormalRoutePriority",
        Type::Integer(1, 2_147_483_646),
    ),
    field(
        "spec.ipv6NormalRoutePriority",
        Type::Integer(1, 2_147_483_646),
    ),
    field(
        "spec.ipv4ElevatedRoutePriority",
        Type::Integer(1, 2_147_483_646),
    ),
    field(
        "spec.ipv6ElevatedRoutePriority",
        Type::Integer(1, 2_147_483_646),
    ),
    field("spec.localWorkloadPeeringIPV4", Type::Address(Some(Ipv4))),
    field("spec.localWorkloadPeeringIPV6", Type::Address(Some(Ipv6))),
];

pub(in crate::schema) const PEER: &[Rule] = &[
    field("spec.node", Type::Text),
    field("spec.nodeSelector", Type::Selector),
    field("spec.peerIP", Type::Peer),
    field("spec.peerSelector", Type::Selector),
    field("spec.asNumber", Type::AsNumber),
    field("spec.localASNumber", Type::AsNumber),
    field("spec.keepOriginalNextHop", Type::Boolean),
    field("spec.nextHopMode", Type::OneOf(&["Auto", "Self", "Keep"])),
    field("spec.password", Type::Object),
    field("spec.password.secretKeyRef", Type::Object).required(),
    field("spec.password.secretKeyRef.name", Type::Text).required(),
    field("spec.password.secretKeyRef.key", Type::Text).required(),
    field("spec.password.secretKeyRef.optional", Type::Boolean),
    field("spec.sourceAddress", Type::OneOf(&["UseNodeIP", "None"])),
    field("spec.maxRestartTime", Type::Duration),
    field("spec.keepaliveTime", Type::Duration),
    field("spec.numAllowedLocalASNumbers", Type::Integer(0, 255)),
    field("spec.ttlSecurity", Type::Integer(0, 255)),
    field(
        "spec.failureDetectionMode",
        Type::OneOf(&["None", "BFDIfDirectlyConnected"]),
    ),
    field("spec.reachableBy", Type::Address(None)),
    field("spec.filters", Type::List(&Type::Text)),
    field("spec.localWorkloadSelector", Type::Selector),
    field("spec.reversePeering", Type::OneOf(&["Auto", "Manual"])),
];

/// The rules of one list. `$list` is its name, `$family` the family of its ranges, `$bits` its
/// longest prefix.
macro_rules! rules {
    ($(($list:literal, $family:expr, $bits:literal)),*) => {
        &[$(
            field(concat!("spec.", $list), Type::Objects),
            field(concat!("spec.", $list, ".cidr"), Type::Cidr(Some($family))),
            field(
                concat!("spec.", $list, ".matchOperator"),
                Type::OneOf(&["Equal", "NotEqual", "In", "NotIn"]),
            ),
            field(concat!("spec.", $list, ".prefixLength"), Type::Object),
            field(concat!("spec.", $list, ".prefixLength.min"), Type::Integer(0, $bits)),
            field(concat!("spec.", $list, ".prefixLength.max"), Type::Integer(0, $bits)),
            field(concat!("spec.", $list, ".source"), Type::OneOf(&["RemotePeers"])),
            field(concat!("spec.", $list, ".interface"), Type::Interface),
            field(concat!("spec.", $list, ".peerType"), Type::OneOf(&["eBGP", "iBGP"])),
            field(concat!("spec.", $list, ".communities"), Type::Object),
            field(
                concat!("spec.", $list, ".communities.values"),
                Type::List(&Type::Community),
            )
            .required(),
            field(concat!("spec.", $list, ".asPathPrefix"), Type::List(&Type::AsNumber)),
            field(concat!("spec.", $list, ".priority"), U32),
            field(concat!("spec.", $list, ".action"), Type::OneOf(&["Accept", "Reject"]))
                .required(),
            field(concat!("spec.", $list, ".operations"), Type::Objects),
            field(concat!("spec.", $list, ".operations.addCommunity"), Type::Object),
            field(concat!("spec.", $list, ".operations.addCommunity.value"), Type::Community)
                .required(),
            field(concat!("spec.", $list, ".operations.prependASPath"), Type::Object),
            field(
                concat!("spec.", $list, ".operations.prependASPath.prefix"),
                Type::List(&Type::AsNumber),
            )
            .required(),
            field(concat!("spec.", $list, ".operations.setPriority"), Type::Object),
            field(concat!("spec.", $list, ".operations.setPriority.value"), U32).required(),
        )*]
    };
}

pub(in crate::schema) const FILTER: &[Rule] = rules!(
    ("importV4", Ipv4, 32),
    ("exportV4", Ipv4, 32),
    ("importV6", Ipv6, 128),
    ("exportV6", Ipv6, 128)
);
