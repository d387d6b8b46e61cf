//! Pools, nodes, endpoints and the cluster's own settings.

use crate::net::Family::{Ipv4, Ipv6};
use crate::schema::types::{Rule, Type, field};

const MODES: Type = Type::OneOf(&["Never", "Always", "CrossSubnet"]);

const BLOCKS: &str = "blocks and addresses were cut from it: make a new pool, disable this one, and move the pods (`caracal ipam split` halves a pool)";

pub(in crate::schema) const IP_POOL: &[Rule] = &[
    field("spec.cidr", Type::Cidr(None))
        .required()
        .immutable(BLOCKS),
    field("spec.ipipMode", MODES).default("\"Never\""),
    field("spec.vxlanMode", MODES).default("\"Never\""),
    field("spec.natOutgoing", Type::Boolean),
    field("spec.disabled", Type::Boolean),
    field("spec.disableBGPExport", Type::Boolean),
    field("spec.blockSize", Type::Integer(0, 128)).immutable(BLOCKS),
    field("spec.nodeSelector", Type::Selector).default("\"all()\""),
    field("spec.namespaceSelector", Type::Selector),
    field(
        "spec.allowedUses",
        Type::List(&Type::OneOf(&["Workload", "Tunnel", "LoadBalancer"])),
    )
    .default("[\"Workload\",\"Tunnel\"]"),
    field("spec.assignmentMode", Type::OneOf(&["Automatic", "Manual"])).default("\"Automatic\""),
    field("spec.ipip", Type::Any),
    field("spec.nat-outgoing", Type::Any),
    field("spec.awsSubnetID", Type::Text),
];

pub(in crate::schema) const IP_RESERVATION: &[Rule] =
    &[field("spec.reservedCIDRs", Type::List(&Type::Cidr(None)))];

pub(in crate::schema) const NODE: &[Rule] = &[
    field("spec.addresses", Type::Objects),
    field("spec.addresses.address", Type::AddressWithLength(None)).required(),
    field(
        "spec.addresses.type",
        Type::OneOf(&["CalicoNodeIP", "InternalIP", "ExternalIP"]),
    ),
    field("spec.bgp", Type::Object),
    field("spec.bgp.asNumber", Type::AsNumber),
    field("spec.bgp.ipv4Address", Type::AddressWithLength(Some(Ipv4))),
    field("spec.bgp.ipv6Address", Type::AddressWithLength(Some(Ipv6))),
    field("spec.bgp.ipv4IPIPTunnelAddr", Type::Address(Some(Ipv4))),
    field(
        "spec.bgp.routeReflectorClusterID",
        Type::Address(Some(Ipv4)),
    ),
    field("spec.ipv4VXLANTunnelAddr", Type::Address(Some(Ipv4))),
    field("spec.ipv6VXLANTunnelAddr", Type::Address(Some(Ipv6))),
    field("spec.vxlanTunnelMACAddr", Type::Mac),
    field("spec.vxlanTunnelMACAddrV6", Type::Mac),
    field("spec.orchRefs", Type::Objects),
    field("spec.orchRefs.nodeName", Type::Text),
    field("spec.orchRefs.orchestrator", Type::Text).required(),
    field("spec.interfaces", Type::Any),
    field("spec.wireguard", Type::Object),
    field(
        "spec.wireguard.interfaceIPv4Address",
        Type::Address(Some(Ipv4)),
    ),
    field(
        "spec.wireguard.interfaceIPv6Address",
        Type::Address(Some(Ipv6)),
    ),
];

pub(in crate::schema) const WORKLOAD_ENDPOINT: &[Rule] = &[
    field("spec.orchestrator", Type::Text).required(),
    field("spec.workload", Type::Text),
    field("spec.node", Type::Text).required(),
    field("spec.containerID", Type::Text),
    field("spec.pod", Type::Text),
    field("spec.endpoint", Type::Text).required(),
    field("spec.interfaceName", Type::Text).required(),
    field("spec.mac", Type::Mac),
    field("spec.ipNetworks", Type::List(&Type::Cidr(None))),
    field("spec.profiles", Type::List(&Type::Text)),
    field("spec.serviceAccountName", Type::Text),
    field("spec.ports", Type::Any),
    field(
        "spec.allowSpoofedSourcePrefixes",
        Type::List(&Type::Cidr(None)),
    ),
    field("spec.ipv4Gateway", Type::Address(Some(Ipv4))),
    field("spec.ipv6Gateway", Type::Address(Some(Ipv6))),
    field("spec.ipNATs", Type::Any),
    field("spec.qosControls", Type::Any),
    field("spec.awsElasticIPs", Type::Any),
];

pub(in crate::schema) const CLUSTER_INFORMATION: &[Rule] = &[
    field("spec.clusterGUID", Type::Text),
    field("spec.clusterType", Type::Text),
    field("spec.calicoVersion", Type::Text),
    field("spec.datastoreReady", Type::Boolean),
    field("spec.variant", Type::Text),
];

pub(in crate::schema) const IPAM_CONFIGURATION: &[Rule] = &[
    field("spec.strictAffinity", Type::Boolean),
    field("spec.autoAllocateBlocks", Type::Boolean),
    field("spec.maxBlocksPerHost", Type::Integer(0, 2_147_483_647)),
    field(
        "spec.kubeVirtVMAddressPersistence",
        Type::OneOf(&["Enabled", "Disabled"]),
    ),
    field("spec.ipCooldownSeconds", Type::Integer(0, 2_147_483_647)),
];
