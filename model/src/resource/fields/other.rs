//! Pools, nodes, endpoints and IPAM's settings.

use super::FieldEffect::{Honoured, NotApplicable, Without};
use super::FieldEntry;

const OLD: &str = "a field of API version 1; set ipipMode and natOutgoing";

pub(super) const IP_POOL: &[FieldEntry] = &[
    ("spec.cidr", Honoured),
    ("spec.ipipMode", Honoured),
    ("spec.vxlanMode", Honoured),
    ("spec.natOutgoing", Honoured),
    ("spec.disabled", Honoured),
    ("spec.disableBGPExport", Honoured),
    ("spec.blockSize", Honoured),
    ("spec.nodeSelector", Honoured),
    ("spec.namespaceSelector", Honoured),
    ("spec.allowedUses", Honoured),
    ("spec.assignmentMode", Honoured),
    ("spec.ipip", Without(&[], OLD)),
    ("spec.nat-outgoing", Without(&["false"], OLD)),
    (
        "spec.awsSubnetID",
        Without(&[], "there are no AWS network interfaces"),
    ),
];

pub(super) const IP_RESERVATION: &[FieldEntry] = &[("spec.reservedCIDRs", Honoured)];

const WIREGUARD: &str = "there is no WireGuard: nothing is encrypted";

pub(super) const NODE: &[FieldEntry] = &[
    ("spec.addresses.address", Honoured),
    ("spec.addresses.type", Honoured),
    ("spec.bgp.asNumber", Honoured),
    ("spec.bgp.ipv4Address", Honoured),
    ("spec.bgp.ipv6Address", Honoured),
    ("spec.bgp.ipv4IPIPTunnelAddr", Honoured),
    ("spec.bgp.routeReflectorClusterID", Honoured),
    ("spec.ipv4VXLANTunnelAddr", Honoured),
    ("spec.ipv6VXLANTunnelAddr", Honoured),
    ("spec.vxlanTunnelMACAddr", Honoured),
    ("spec.vxlanTunnelMACAddrV6", Honoured),
    ("spec.orchRefs.nodeName", Honoured),
    ("spec.orchRefs.orchestrator", Honoured),
    (
        "spec.interfaces",
        NotApplicable("what Calico's node saw of the machine; the kernel says it here"),
    ),
    (
        "spec.wireguard.interfaceIPv4Address",
        NotApplicable(WIREGUARD),
    ),
    (
        "spec.wireguard.interfaceIPv6Address",
        NotApplicable(WIREGUARD),
    ),
];

const POLICY: &str = "for policies, which are not enforced";

pub(super) const WORKLOAD_ENDPOINT: &[FieldEntry] = &[
    ("spec.orchestrator", Honoured),
    ("spec.workload", Honoured),
    ("spec.node", Honoured),
    ("spec.containerID", Honoured),
    ("spec.pod", Honoured),
    ("spec.endpoint", Honoured),
    ("spec.interfaceName", Honoured),
    ("spec.mac", Honoured),
    ("spec.ipNetworks", Honoured),
    ("spec.profiles", NotApplicable(POLICY)),
    ("spec.serviceAccountName", NotApplicable(POLICY)),
    ("spec.ports", NotApplicable(POLICY)),
    ("spec.allowSpoofedSourcePrefixes", Honoured),
    (
        "spec.ipv4Gateway",
        NotApplicable("the pod's gateway is the host's end of its pair"),
    ),
    (
        "spec.ipv6Gateway",
        NotApplicable("the pod's gateway is the host's end of its pair"),
    ),
    (
        "spec.ipNATs",
        Without(
            &[],
            "there is no address translation for floating addresses",
        ),
    ),
    (
        "spec.qosControls",
        Without(
            &[],
            "bandwidth, packet rates and connections are not limited here; use the CNI plugin bandwidth",
        ),
    ),
    (
        "spec.awsElasticIPs",
        Without(&[], "there are no AWS network interfaces"),
    ),
];

pub(super) const CLUSTER_INFORMATION: &[FieldEntry] = &[
    ("spec.clusterGUID", Honoured),
    ("spec.clusterType", Honoured),
    (
        "spec.calicoVersion",
        NotApplicable("the release of Calico's programs"),
    ),
    ("spec.datastoreReady", Honoured),
    ("spec.variant", NotApplicable("the edition of Calico")),
];

const ETCD: &str = "Calico's clients on etcd read IPAM's settings from /calico/ipam/v2/config, and so does Caracal: caracal ipam configure";

pub(super) const IPAM_CONFIGURATION: &[FieldEntry] = &[
    ("spec.strictAffinity", NotApplicable(ETCD)),
    ("spec.autoAllocateBlocks", NotApplicable(ETCD)),
    ("spec.maxBlocksPerHost", NotApplicable(ETCD)),
    ("spec.kubeVirtVMAddressPersistence", NotApplicable(ETCD)),
    ("spec.ipCooldownSeconds", NotApplicable(ETCD)),
];

pub(super) const IPAM_CONFIG: &[FieldEntry] = &[
    ("strict_affinity", Honoured),
    ("auto_allocate_blocks", Honoured),
    ("maxBlocksPerHost", Honoured),
    ("ipCooldownSeconds", Honoured),
    (
        "kubeVirtVMAddressPersistence",
        NotApplicable("only Calico's CNI plugin knows virtual machines"),
    ),
];
