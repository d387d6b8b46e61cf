//! The snapshot as one node sees it: own name, addresses, AS number, and the other nodes' facts.
//!
//! Reads only; whatever is decided from these facts is decided elsewhere.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_bgp::{Asn, ClusterId, Listen};
use caracal_model::{
    Family, IpPool, Key, Kind, Node, NodeName, Prefix, ProblemCode, Snapshot, outermost,
    range_around,
};

use crate::auto::{self, TopologyChoice};
use crate::common::{FAMILIES, path};
use crate::settings::BgpSettings;
use crate::{PlanOptions, Problems};

pub(crate) struct NodeView<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) name: &'a NodeName,
    /// Our own Node; `None` while it is not registered.
    pub(crate) node: Option<&'a Node>,
    /// Our AS: the node's, else the cluster's.
    pub(crate) asn: Asn,
    pub(crate) settings: BgpSettings,
    pub(crate) options: &'a PlanOptions,
    /// Automatic reflection.
    pub(crate) auto: TopologyChoice,
    /// The pools' ranges, read once; the most specific first.
    pools: Vec<(Prefix, &'a IpPool)>,
    pods: PodRanges,
}

impl<'a> NodeView<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        name: &'a NodeName,
        options: &'a PlanOptions,
        problems: &mut Problems,
    ) -> Self {
        let node: Option<&Node> = snapshot.nodes.get(name).map(|node| &**node);
        match node {
            None => problems.note(
                ProblemCode::NodeMissing,
                Key::node(name).to_path(),
                "this node is not registered; it has no peers and announces nothing until it is",
            ),
            Some(node) if FAMILIES.iter().all(|f| node.spec.address(*f).is_none()) => problems
                .note(
                    ProblemCode::NodeNoAddress,
                    Key::node(name).to_path(),
                    "spec.bgp has neither ipv4Address nor ipv6Address; this node has no peers and announces nothing",
                ),
            Some(_) => {}
        }
        let settings = BgpSettings::from_snapshot(snapshot, name, problems);
        let asn = node
            .and_then(Self::asn_set_by)
            .unwrap_or(settings.default_asn);
        for (name, node) in &snapshot.nodes {
            let zero = node.spec.bgp.as_ref().and_then(|bgp| bgp.as_number);
            if zero.is_some_and(|asn| asn.0 == 0) {
                problems.note(
                    ProblemCode::NodeAsNumber,
                    Key::node(name).to_path(),
                    format!(
                        "spec.bgp.asNumber 0 is reserved (RFC 7607); {} is used",
                        settings.default_asn
                    ),
                );
            }
        }
        let pods = PodRanges::new(snapshot, node);
        for (name, node) in &snapshot.nodes {
            let addresses = FAMILIES.iter().filter_map(|f| node.spec.address(*f));
            let fault = |address| {
                let of_nobody = unusable(address).map(str::to_owned);
                of_nobody.or_else(|| pods.fault_of_node(snapshot, address))
            };
            for (address, fault) in addresses.filter_map(|a| Some((a, fault(a)?))) {
                let reason =
                    format!("the BGP address {address} {fault}; nobody peers with the node there");
                problems.note(ProblemCode::NodeAddress, Key::node(name).to_path(), reason);
            }
        }
        if let Err(reason) = auto::reflector_tuning(snapshot) {
            problems.note(
                ProblemCode::BgpTopology,
                path(Kind::BgpConfiguration, "default"),
                format!("{reason}; there is no automatic reflection"),
            );
        }
        let mut pools: Vec<_> = snapshot
            .pools
            .values()
            .map(|pool| (pool.spec.prefix(), &**pool))
            .collect();
        pools.sort_by_key(|(range, _)| std::cmp::Reverse(range.len()));
        Self {
            auto: auto::choose_topology(snapshot),
            pools,
            pods,
            snapshot,
            name,
            node,
            asn,
            settings,
            options,
        }
    }

    /// The pools with their ranges, the most specific first. Disabled pools count: their blocks
    /// live on.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (Prefix, &'a IpPool)> {
        self.pools.iter().copied()
    }

    pub(crate) fn address(&self, family: Family) -> Option<IpAddr> {
        self.node?.spec.address(family)
    }

    /// Our own cluster id, which makes us a reflector: the operator's, else the election's.
    pub(crate) fn cluster_id(&self) -> Option<ClusterId> {
        let elected = || self.auto.cluster_of(self.name);
        self.operators_cluster_id().or_else(elected)
    }

    /// The cluster id that the operator gave us.
    pub(crate) fn operators_cluster_id(&self) -> Option<ClusterId> {
        self.node?.spec.cluster_id().map(ClusterId)
    }

    /// True when the address is one of ours.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.address(Family::of(address)) == Some(address)
    }

    /// True when no session is with a node at this address of it: no machine has it. The view has
    /// named the node.
    pub(crate) fn is_refused(&self, address: IpAddr) -> bool {
        unusable(address).is_some() || self.pods.fault_of_node(self.snapshot, address).is_some()
    }

    /// All nodes by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&'a NodeName, &'a Node)> {
        self.snapshot
            .nodes
            .iter()
            .map(|(name, node)| (name, &**node))
    }

    /// The AS of a node, when it sets one itself. Zero is reserved (RFC 7607) and counts as unset.
    pub(crate) fn asn_set_by(node: &Node) -> Option<Asn> {
        let asn = node.spec.bgp.as_ref()?.as_number?;
        (asn.0 != 0).then_some(Asn(asn.0))
    }

    /// The AS of a node: its own, else the cluster's.
    pub(crate) fn asn_of(&self, node: &Node) -> Asn {
        Self::asn_set_by(node).unwrap_or(self.settings.default_asn)
    }

    /// The port on which a node listens: `node.NAME`, else `default`, else 179.
    pub(crate) fn listen_port_of(&self, node: &NodeName) -> u16 {
        crate::settings::listen_port(self.snapshot, node)
    }

    /// The node with this address, of several the one that comes first by [`seniority`]. An address
    /// that is refused is no node's.
    pub(crate) fn node_at(&self, address: IpAddr) -> Option<(&'a NodeName, &'a Node)> {
        if self.is_refused(address) {
            return None;
        }
        let all = self.nodes();
        all.filter(|(_, node)| node.spec.address(Family::of(address)) == Some(address))
            .min_by_key(|(name, node)| seniority(name, node))
    }

    /// Where we accept connections.
    pub(crate) fn listen(&self) -> Listen {
        let bound = self.settings.bind_to_node;
        let mut own = FAMILIES
            .iter()
            .filter_map(|family| self.address(*family).filter(|_| bound));
        Listen {
            address: own.next(),
            second: own.next(),
            port: self.settings.listen_port,
        }
    }
}

/// Order of Nodes that have one address, the one that counts first: the older one, so that a
/// newcomer takes nothing. One that does not say its age is younger than all that do.
pub(crate) fn seniority<'n>(name: &'n NodeName, node: &'n Node) -> (bool, &'n str, &'n NodeName) {
    let created = node.metadata.creation_timestamp.as_deref();
    (created.is_none(), created.unwrap_or_default(), name)
}

/// Ranges whose blocks hold addresses of pods and of no machine: those of the pools, the outermost,
/// but for pools over this machine, which are mistakes themselves (decision 0160).
pub(crate) struct PodRanges {
    ranges: BTreeSet<Prefix>,
    /// BGP addresses of this machine. The node writes them again when somebody changes them.
    own: Vec<IpAddr>,
}

impl PodRanges {
    pub(crate) fn new(snapshot: &Snapshot, own: Option<&Node>) -> Self {
        let own = FAMILIES.map(|family| own?.spec.address(family));
        let own: Vec<IpAddr> = own.into_iter().flatten().collect();
        let pools = snapshot.pools.values().map(|pool| pool.spec.prefix());
        let elsewhere = pools.filter(|range| !own.iter().any(|own| range.contains(*own)));
        Self {
            ranges: outermost(elsewhere),
            own,
        }
    }

    /// True for an address of which the blocks say whether a node can have it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        range_around(&self.ranges, address).is_some()
    }

    /// Why a node has no such address, if that is so.
    fn fault_of_node(&self, snapshot: &Snapshot, address: IpAddr) -> Option<String> {
        let host = Some(Prefix::host(address)).filter(|_| self.contains(address))?;
        let block = snapshot.block_of_pods(&host, self.own.iter().copied())?;
        Some(format!(
            "is one of block {} of node {}",
            block.cidr,
            block.host()?
        ))
    }
}

/// Why no peer can have an address, if that is so.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("is no host's address");
    }
    if address.is_multicast() {
        return Some("is a multicast address");
    }
    let broadcast = IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    (address == broadcast).then_some("is the broadcast address")
}
