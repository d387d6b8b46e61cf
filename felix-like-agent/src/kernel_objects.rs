//! Kernel objects of networks: routes, next hops, tunnels, neighbours and FDB entries, as the plan
//! and the kernel state both name them. Pure values.

use std::fmt;
use std::net::IpAddr;

use caracal_model::{Cidr, Family, Gateway, IfName, Mac, Prefix, format_mac};

/// Metric of blackholes for own blocks and subnets. Lower metrics win among routes of equal length,
/// and no other route of ours has a metric this high, so a blackhole never beats one. (A workload's
/// route is longer than its block anyway, and host blocks get no blackhole.)
pub const BLACKHOLE_METRIC: u32 = 1_000_000;

/// Name of the IPIP device: the kernel's own fallback device.
pub const IPIP_DEVICE: &str = "tunl0";

/// Name of the VXLAN device of a family.
#[must_use]
pub const fn vxlan_device(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "vxlan.calico",
        Family::Ipv6 => "vxlan-v6.calico",
    }
}

/// Metric of a route to a block or address of another node. Felix leaves it out, which IPv6 stores
/// as 1024.
#[must_use]
pub(crate) const fn cluster_metric(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1024,
    }
}

/// The kernel's key of a route in the main table (with TOS 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Destination.
    pub prefix: Prefix,
    /// Metric, the kernel's priority; lower wins.
    pub metric: u32,
}

/// A next hop: gateway and interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// The gateway; `None` = the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The device.
    pub link: IfName,
    /// The kernel shall not check that the gateway is on a subnet of the device.
    pub onlink: bool,
    /// Among several next hops: how much more than one share of the flows it gets, as the kernel
    /// counts it. 0 for the only one.
    pub extra_weight: u8,
}

impl NextHop {
    /// True for the same gateway and interface, with the same share. `onlink` is a permission for
    /// the insertion, no part of the direction.
    #[must_use]
    pub(crate) fn same_gateway(&self, other: &Self) -> bool {
        self.gateway == other.gateway
            && self.link == other.link
            && self.extra_weight == other.extra_weight
    }
}

impl From<&Gateway> for NextHop {
    fn from(gateway: &Gateway) -> Self {
        // Without a gateway the destination itself is on the link.
        let address = Some(gateway.address).filter(|address| !address.is_unspecified());
        Self {
            gateway: address,
            link: gateway.interface.clone(),
            onlink: address.is_some(),
            extra_weight: gateway.extra_weight,
        }
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gateway) = self.gateway {
            write!(f, "via {gateway} ")?;
        }
        write!(f, "dev {}", self.link)?;
        if self.onlink {
            f.write_str(" onlink")?;
        }
        if self.extra_weight > 0 {
            write!(f, " weight {}", u16::from(self.extra_weight) + 1)?;
        }
        Ok(())
    }
}

/// A next-hop object: gateway and interface that many routes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopObject {
    /// The kernel's key.
    pub id: u32,
    /// Kernel protocol: who made it.
    pub protocol: u8,
    /// Gateway and interface.
    pub hop: NextHop,
}

impl fmt::Display for NextHopObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} proto {}", self.id, self.hop, self.protocol)
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ForwardingTarget {
    /// Packets are dropped in silence.
    Blackhole,
    /// At least one next hop, sorted; more = equal-cost multipath.
    Via(Vec<NextHop>),
    /// One next hop, by the next-hop object with this number. Plans have no such targets: the diff
    /// decides.
    Object(u32, NextHop),
}

impl ForwardingTarget {
    /// One next hop.
    #[must_use]
    pub fn via(gateway: Option<IpAddr>, link: &IfName, onlink: bool) -> Self {
        Self::Via(vec![NextHop {
            gateway,
            link: link.clone(),
            onlink,
            extra_weight: 0,
        }])
    }

    /// The next hops; none for a blackhole.
    #[must_use]
    pub fn hops(&self) -> &[NextHop] {
        match self {
            Self::Blackhole => &[],
            Self::Via(hops) => hops,
            Self::Object(_, hop) => std::slice::from_ref(hop),
        }
    }

    /// True for the same gateways and interfaces, by an object or not.
    #[must_use]
    pub(crate) fn same_gateway(&self, other: &Self) -> bool {
        let (a, b) = (self.hops(), other.hops());
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_gateway(b))
    }

    /// The devices, in order.
    pub fn links(&self) -> impl Iterator<Item = &IfName> {
        self.hops().iter().map(|hop| &hop.link)
    }
}

impl fmt::Display for ForwardingTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blackhole => return f.write_str("blackhole"),
            Self::Via(_) => {}
            Self::Object(id, _) => write!(f, "nhid {id} ")?,
        }
        for (i, hop) in self.hops().iter().enumerate() {
            if i > 0 {
                f.write_str(" nexthop ")?;
            }
            hop.fmt(f)?;
        }
        Ok(())
    }
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub prefix: Prefix,
    /// Priority of the route; of equal prefixes the lowest number wins.
    pub metric: u32,
    /// Kernel protocol: who wrote it.
    pub protocol: u8,
    /// Where it leads.
    pub target: ForwardingTarget,
    /// MTU of the path, when it differs from the device's.
    pub mtu: Option<u32>,
    /// Source of this machine's own packets that nobody bound to an address; `None` = the kernel
    /// chooses.
    pub source: Option<IpAddr>,
}

impl Route {
    /// The kernel's key.
    #[must_use]
    pub const fn key(&self) -> RouteKey {
        RouteKey {
            prefix: self.prefix,
            metric: self.metric,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} proto {} metric {}",
            self.prefix, self.target, self.protocol, self.metric
        )?;
        if let Some(mtu) = self.mtu {
            write!(f, " mtu {mtu}")?;
        }
        self.source
            .map_or(Ok(()), |source| write!(f, " src {source}"))
    }
}

/// Purpose of a planned route. Ordered by precedence: of two routes to one prefix the smaller kind
/// stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// To a workload of this node.
    Local,
    /// To another node over VXLAN.
    Vxlan,
    /// To another node over IPIP.
    Ipip,
    /// To another node, or out of the cluster, without encapsulation.
    Direct,
    /// An own block.
    Blackhole,
}

impl RouteKind {
    /// The word in status and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Vxlan => "vxlan",
            Self::Ipip => "ipip",
            Self::Direct => "direct",
            Self::Blackhole => "blackhole",
        }
    }
}

/// A route with what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRoute {
    /// The route as it is written.
    pub route: Route,
    /// Its purpose.
    pub kind: RouteKind,
}

impl PlannedRoute {
    /// True for a VTEP on its tunnel's link: a part of the way to others, no destination of
    /// anybody's.
    #[must_use]
    pub fn is_vtep(&self) -> bool {
        self.kind == RouteKind::Vxlan
            && matches!(&self.route.target, ForwardingTarget::Via(hops) if hops.iter().all(|h| h.gateway.is_none()))
    }
}

/// How a tunnel device is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelDevice {
    /// `ipip` without remote.
    Ipip {
        /// Source address of outer packets; `None` = the kernel's choice, as on `tunl0`.
        local: Option<IpAddr>,
    },
    /// `vxlan` without learning.
    Vxlan {
        /// VXLAN network identifier.
        vni: u32,
        /// UDP port.
        port: u16,
        /// The node's own address.
        local: IpAddr,
        /// The device that carries the node's own address.
        parent: IfName,
        /// The device's MAC address, which every other node derives from our name.
        mac: Mac,
    },
    /// A TUN device: the process that reads it makes it and takes it along. Nothing stands on it
    /// while it is not there.
    Tun,
}

impl TunnelDevice {
    /// The kernel's word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Ipip { .. } => "ipip",
            Self::Vxlan { .. } => "vxlan",
            Self::Tun => "tun",
        }
    }
}

/// A tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Name of the device, `tunl0` or `vxlan.calico`.
    pub name: IfName,
    /// How it is made.
    pub kind: TunnelDevice,
    /// MTU in octets.
    pub mtu: u32,
    /// The one address, a host prefix; `None` while IPAM has not given one.
    pub address: Option<IpAddr>,
}

impl Tunnel {
    /// The family that the tunnel carries. A TUN device carries both, and its address is IPv4.
    #[must_use]
    pub const fn family(&self) -> Family {
        match &self.kind {
            TunnelDevice::Ipip { .. } | TunnelDevice::Tun => Family::Ipv4,
            TunnelDevice::Vxlan { local, .. } => Family::of(*local),
        }
    }

    /// The address as an interface address.
    #[must_use]
    pub fn cidr(&self) -> Option<Cidr> {
        self.address.map(|address| Cidr {
            address,
            len: Family::of(address).bits(),
        })
    }
}

/// The kernel's key of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourKey {
    /// The device.
    pub link: IfName,
    /// Address of the node behind the tunnel, or of the workload.
    pub address: IpAddr,
}

/// The kernel's key of an FDB entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FdbKey {
    /// The VXLAN device.
    pub link: IfName,
    /// The MAC of the remote VTEP.
    pub mac: Mac,
}

impl fmt::Display for NeighbourKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.address, self.link)
    }
}

impl fmt::Display for FdbKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", format_mac(&self.mac), self.link)
    }
}
