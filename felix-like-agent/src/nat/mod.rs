//! NAT and forwarding rules as data, and their text for nftables and for iptables. Pure; the shell
//! finds out which of the two the kernel has by trying.
//!
//! Content of the rules (`natOutgoing` of pools, as Calico's):
//!
//! * from a pool with `natOutgoing` to an address outside all pools: masquerade;
//! * out of a tunnel device with a local source that is not the tunnel's own address: masquerade,
//!   so that replies come back through the tunnel;
//! * forwarded to or from a workload interface: accept;
//! * from a workload interface with a source that is not the workload's: drop, whatever `rp_filter`
//!   is;
//! * from a workload interface and encapsulated as tunnels between nodes are: drop; from a workload
//!   and, behind translation, to the port of VXLAN: drop, whoever has translated it;
//! * from a workload interface to this machine's loopback range: drop (CVE-2020-8558), whatever
//!   `route_localnet` is, which kube-proxy may turn on for all interfaces;
//! * from a workload to a node's BGP or BFD ports: drop, but for the workloads that are configured
//!   peers ([`BgpGuard`]);
//! * from another machine, and translated here to a node's BGP, BFD or VXLAN port: drop, but for
//!   configured peers outside the cluster;
//! * forwarded or sent by this node, and behind translation to an unused address of a range of
//!   services: drop or reject ([`LoopGuard`]);
//! * to this node, encapsulated so, from an address that is no node's: drop, while it is known who
//!   is a node ([`Nat::open_tunnels`]).

pub(crate) mod iptables;
pub(crate) mod name;
pub(crate) mod nft;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;

use caracal_model::Prefix;

use name::{Interfaces, PlainName};

/// UDP ports of BFD, for one hop and for several (RFC 5881 §4, RFC 5883 §5).
pub(crate) const BFD_PORTS: [u16; 2] = [3784, 4784];

/// The rules of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyRules {
    /// Sources that are masqueraded.
    pub masquerade: BTreeSet<Prefix>,
    /// Destinations that keep the source: all pools, and nodes when so configured.
    pub exempt: BTreeSet<Prefix>,
    /// Tunnel devices with their own addresses.
    pub tunnels: BTreeMap<PlainName, IpAddr>,
    /// Workload interfaces with the sources that may come from them. Interfaces that are not here
    /// are not judged: a workload that the datastore does not name yet has no route back either.
    pub sources: BTreeMap<PlainName, BTreeSet<Prefix>>,
    /// Source of what is masqueraded; `None` = that of the interface it leaves by.
    pub outgoing: Option<IpAddr>,
    /// Ports that TCP and UDP get, the last one included; `None` = any.
    pub ports: Option<(u16, u16)>,
    /// Sources that may send tunnel packets to this node; `None` = anybody.
    pub senders: Option<Senders>,
    /// Only what leaves by these interfaces; `None` = by any.
    pub leaving_by: Option<Interfaces>,
    /// Keeps workloads off the nodes' BGP; `None` = nobody is kept off.
    pub bgp: Option<BgpGuard>,
    /// Where workloads may not send: this machine's loopback range.
    pub loopback: Option<Prefix>,
    /// Ends what is sent to unused addresses of services; `None` = nothing is ended.
    pub loops: Option<LoopGuard>,
}

/// Ends what this node would send on to an unused address of a range of services: routers have the
/// range from the nodes, and would give it back. What somebody has translated (`dnat`) is left
/// alone, whatever the endpoint's address is, and so is what goes to a workload's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopGuard {
    /// Ranges of services, of more than one address each.
    pub ranges: BTreeSet<Prefix>,
    /// What is no Service's in them.
    pub in_use: BTreeSet<Prefix>,
    /// The sender is told; otherwise packets are dropped.
    pub rejects: bool,
}

/// Keeps workloads off the nodes' BGP and BFD. A node trusts a peer for its address, and
/// `natOutgoing` gives a pod the address of its node: without this any pod could speak as its node
/// does. It asks by which interface a packet came and not for its source: a pool may lie over the
/// machines' own addresses, and there are as many rules with one pool as with thousands. What this
/// machine has translated to such a port is dropped whoever sent it, for a pod of another node
/// comes with the address of that node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BgpGuard {
    /// TCP ports on which nodes take BGP.
    pub ports: BTreeSet<u16>,
    /// Addresses of workloads that are peers by their address (`peerIP`): they may.
    pub peers: BTreeSet<IpAddr>,
    /// Interfaces of workloads that are peers of this node (`localWorkloadSelector`): they may
    /// speak to this node.
    pub local_peers: BTreeSet<PlainName>,
    /// Addresses of nodes. Those of this node are known to the kernel.
    pub nodes: BTreeSet<IpAddr>,
    /// Peers outside the cluster: workloads may speak to them, unless with the address of their
    /// node.
    pub routers: BTreeSet<IpAddr>,
    /// Sources that leave with the address of their node.
    pub masqueraded: BTreeSet<Prefix>,
}

/// From whom tunnel packets of a family are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Senders {
    /// Nodes, and those outside the cluster that are named. Never empty.
    pub from: BTreeSet<Prefix>,
    /// IPIP is judged.
    pub ipip: bool,
    /// UDP port of the VXLAN that is judged.
    pub vxlan: Option<u16>,
}

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nat {
    /// Prefixes of workload interfaces' names.
    pub interface_prefixes: Vec<PlainName>,
    /// UDP port to which workloads may not send: that of our VXLAN.
    pub no_vxlan_from_workloads: Option<u16>,
    /// Workloads may not send IPIP.
    pub no_ipip_from_workloads: bool,
    /// Rules of the table for IPv4.
    pub ipv4: FamilyRules,
    /// Rules of the table for IPv6.
    pub ipv6: FamilyRules,
    /// The fingerprint of these rules, which are changed in a copy.
    pub(crate) known_fingerprint: KnownFingerprint,
}

/// A fingerprint, once it was asked for: with thousands of nodes it is made of as many elements. It
/// is no part of the rules, and a copy of them may become others.
#[derive(Debug, Default)]
pub(crate) struct KnownFingerprint(OnceLock<String>);

impl Clone for KnownFingerprint {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for KnownFingerprint {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KnownFingerprint {}

impl Nat {
    /// Takes tunnel packets from anybody: who is a node is not known well enough to refuse one.
    pub(crate) fn open_tunnels(&mut self) {
        self.ipv4.senders = None;
        self.ipv6.senders = None;
        self.known_fingerprint = KnownFingerprint::default();
    }

    /// A short text that differs when the rules differ; it stands in the kernel beside them, so
    /// that a new process knows whether it has anything to do.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let make = || nft::NftTable::new(self).fingerprint();
        self.known_fingerprint.0.get_or_init(make).clone()
    }
}

#[cfg(test)]
pub(crate) fn example() -> Nat {
    let plain = |text: &str| PlainName::new(text).unwrap();
    Nat {
        interface_prefixes: vec![plain("cali")],
        no_vxlan_from_workloads: Some(4789),
        no_ipip_from_workloads: true,
        ipv4: FamilyRules {
            masquerade: ["10.244.0.0/16".parse().unwrap()].into(),
            exempt: ["10.244.0.0/16", "10.245.0.0/16"]
                .map(|p| p.parse().unwrap())
                .into(),
            tunnels: [(plain("tunl0"), "10.244.3.64".parse().unwrap())].into(),
            sources: [(plain("cali123"), ["10.244.3.66/32".parse().unwrap()].into())].into(),
            loopback: "127.0.0.0/8".parse().ok(),
            senders: Some(Senders {
                from: ["10.0.0.1/32", "192.0.2.0/24"]
                    .map(|p| p.parse().unwrap())
                    .into(),
                ipip: true,
                vxlan: Some(4789),
            }),
            bgp: Some(BgpGuard {
                ports: [179, 1179].into(),
                peers: ["10.244.3.80".parse().unwrap()].into(),
                local_peers: [plain("cali123")].into(),
                nodes: ["10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap()).into(),
                routers: ["192.0.2.1".parse().unwrap()].into(),
                masqueraded: ["10.244.0.0/16".parse().unwrap()].into(),
            }),
            loops: Some(LoopGuard {
                ranges: ["10.96.0.0/12", "198.51.100.0/24"]
                    .map(|p| p.parse().unwrap())
                    .into(),
                in_use: ["10.96.0.1/32", "10.100.0.0/16"]
                    .map(|p| p.parse().unwrap())
                    .into(),
                rejects: false,
            }),
            ..FamilyRules::default()
        },
        ipv6: FamilyRules {
            loops: Some(LoopGuard {
                ranges: ["fd00:96::/108".parse().unwrap()].into(),
                rejects: true,
                ..LoopGuard::default()
            }),
            ..FamilyRules::default()
        },
        known_fingerprint: KnownFingerprint::default(),
    }
}
