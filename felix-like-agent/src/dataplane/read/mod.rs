//! The kernel's answers → [`Actual`]. Reading never changes anything.

pub(in crate::dataplane) mod hints;
pub(in crate::dataplane) mod monitor;

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::net::{Cidr, IfName, Prefix};
use caracal_model::resource::Mac;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::actual::{Actual, ActualNeighbour, ActualObject, ActualRoute, ActualTarget};
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::kernel_objects::{FdbKey, NeighbourKey, NextHop, Target};
use crate::links::{Link, Links, VxlanParameters};
use crate::ownership::is_vxlan_device;

pub(in crate::dataplane) const MAIN_TABLE: u32 = RouteHeader::RT_TABLE_MAIN as u32;

/// Reads interfaces with their addresses.
pub(in crate::dataplane) async fn links(netlink: &Netlink) -> Result<Links, NetlinkError> {
    let dump = netlink
        .dump(
            "interfaces",
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
        )
        .await?;
    let mut links: Links = dump
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => self::link(link),
            _ => None,
        })
        .collect();
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    for message in netlink.dump("addresses", request).await? {
        let RouteNetlinkMessage::NewAddress(message) = message else {
            continue;
        };
        if let (Some(cidr), Some(link)) =
            (address(&message), links.by_index_mut(message.header.index))
        {
            link.addresses.push(cidr);
        }
    }
    Ok(links)
}

/// Reads everything but sysctls and NAT.
pub(in crate::dataplane) async fn actual(netlink: &mut Netlink) -> Result<Actual, NetlinkError> {
    let mut actual = Actual {
        links: links(netlink).await?,
        ..Actual::default()
    };
    // Before the routes: an object of ours is always older than the routes through it.
    actual.objects = crate::dataplane::netlink::objects::read(netlink, &actual.links).await?;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let found = routes(netlink, family, MAIN_TABLE, &actual.links, &actual.objects).await?;
        for route in found {
            actual.push_route(route);
        }
    }
    let names = names(&actual.links);
    let all = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    for message in netlink.dump("neighbours", all).await? {
        if let RouteNetlinkMessage::NewNeighbour(message) = message
            && let Some((key, neighbour)) = neighbour(&message, &names)
        {
            actual.neighbours.insert(key, neighbour);
        }
    }
    for link in actual
        .links
        .iter()
        .filter(|l| is_vxlan_device(l.name.as_str()))
    {
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Bridge;
        request.header.ifindex = link.index;
        let request = RouteNetlinkMessage::GetNeighbour(request);
        for message in netlink.dump("FDB entries", request).await? {
            if let RouteNetlinkMessage::NewNeighbour(message) = message
                && message.header.ifindex == link.index
                && let Some((mac, remote)) = fdb_entry(&message)
            {
                let key = FdbKey {
                    link: link.name.clone(),
                    mac,
                };
                actual.fdb.insert(key, remote);
            }
        }
    }
    Ok(actual)
}

/// Reads the routes of a table in the kernel's order.
pub(in crate::dataplane) async fn routes(
    netlink: &Netlink,
    family: AddressFamily,
    table: u32,
    links: &Links,
    objects: &BTreeMap<u32, ActualObject>,
) -> Result<Vec<ActualRoute>, NetlinkError> {
    let dump = netlink.dump("routes", routes_request(family, table)).await;
    let messages = match dump {
        // A table that nobody has written to yet.
        Err(NetlinkError::Dump { source, .. }) if source.code == libc::ENOENT => Vec::new(),
        dump => dump?,
    };
    let found = messages.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewRoute(message) => route(message, table, links, objects),
        _ => None,
    });
    Ok(found.collect())
}

fn names(links: &Links) -> BTreeMap<u32, IfName> {
    links.iter().map(|l| (l.index, l.name.clone())).collect()
}

fn routes_request(family: AddressFamily, table: u32) -> RouteNetlinkMessage {
    let mut request = RouteMessage::default();
    request.header.address_family = family;
    request.attributes.push(RouteAttribute::Table(table));
    // The default would be a filter for unicast in some builders; Unspec lists blackholes too.
    request.header.kind = RouteType::Unspec;
    RouteNetlinkMessage::GetRoute(request)
}

fn mac(octets: &[u8]) -> Option<Mac> {
    octets.try_into().ok()
}

fn link(message: &LinkMessage) -> Option<Link> {
    let mut name = None;
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: IfName::from(""),
        kind: String::new(),
        addresses: Vec::new(),
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        mtu: 0,
        mac: None,
        parent: None,
        loopback: flags.contains(LinkFlags::Loopback),
        vxlan: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(IfName::from(text.as_str())),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(octets) => link.mac = mac(octets),
            LinkAttribute::Link(index) => link.parent = (*index != 0).then_some(*index),
            LinkAttribute::LinkInfo(infos) => link_info(&mut link, infos),
            _ => {}
        }
    }
    link.name = name?;
    Some(link)
}

fn link_info(link: &mut Link, infos: &[LinkInfo]) {
    for info in infos {
        match info {
            LinkInfo::Kind(kind) => link.kind = kind.to_string(),
            LinkInfo::Data(InfoData::Vxlan(parameters)) => link.vxlan = Some(vxlan(parameters)),
            _ => {}
        }
    }
}

fn vxlan(parameters: &[InfoVxlan]) -> VxlanParameters {
    let mut made = VxlanParameters {
        vni: 0,
        port: 0,
        local: None,
        parent: None,
        learning: false,
        external: false,
    };
    for parameter in parameters {
        match parameter {
            InfoVxlan::Id(vni) => made.vni = *vni,
            InfoVxlan::Port(port) => made.port = *port,
            InfoVxlan::Local(address) => made.local = Some((*address).into()),
            InfoVxlan::Local6(address) => made.local = Some((*address).into()),
            InfoVxlan::Link(index) => made.parent = Some(*index),
            InfoVxlan::Learning(on) => made.learning = *on,
            InfoVxlan::CollectMetadata(on) => made.external = *on,
            _ => {}
        }
    }
    made
}

fn address(message: &AddressMessage) -> Option<Cidr> {
    let mut own = None;
    let mut peer = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => own = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    // IPv4 has both; they differ on point-to-point links. IPv6 has the second alone.
    Some(Cidr {
        address: own.or(peer)?,
        len: message.header.prefix_len,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

/// A gateway of the other family (RFC 8950).
fn via(address: &RouteVia) -> Option<IpAddr> {
    match address {
        RouteVia::Inet(a) => Some((*a).into()),
        RouteVia::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

/// `None` for routes of other tables and clones of the routing cache.
fn route(
    message: &RouteMessage,
    table: u32,
    links: &Links,
    objects: &BTreeMap<u32, ActualObject>,
) -> Option<ActualRoute> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let unspecified: IpAddr = match header.address_family {
        AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut parts = RouteParts {
        destination: unspecified,
        table: u32::from(header.table),
        ..RouteParts::new(unspecified)
    };
    for attribute in &message.attributes {
        parts.read(attribute);
    }
    if parts.table != table {
        return None;
    }
    let onlink = header.flags.contains(RouteFlags::Onlink);
    Some(ActualRoute {
        prefix: Prefix::truncated(parts.destination, header.destination_prefix_length),
        metric: parts.metric,
        tos: header.tos,
        protocol: header.protocol.into(),
        target: parts.target(header.kind, onlink, links, objects),
        mtu: parts.mtu,
        source: parts.source,
    })
}

struct RouteParts<'a> {
    destination: IpAddr,
    table: u32,
    metric: u32,
    mtu: Option<u32>,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
    link: Option<u32>,
    multipath: &'a [RouteNextHop],
    object: Option<u32>,
    /// Something that we never write.
    strange: bool,
}

impl<'a> RouteParts<'a> {
    const fn new(destination: IpAddr) -> Self {
        Self {
            destination,
            table: 0,
            metric: 0,
            mtu: None,
            source: None,
            gateway: None,
            link: None,
            multipath: &[],
            object: None,
            strange: false,
        }
    }

    fn read(&mut self, attribute: &'a RouteAttribute) {
        match attribute {
            RouteAttribute::Destination(a) => self.destination = ip(a).unwrap_or(self.destination),
            RouteAttribute::Gateway(a) => self.gateway = ip(a),
            RouteAttribute::PrefSource(a) => self.source = ip(a),
            RouteAttribute::Oif(index) => self.link = Some(*index),
            RouteAttribute::Priority(metric) => self.metric = *metric,
            RouteAttribute::Table(table) => self.table = *table,
            RouteAttribute::MultiPath(hops) => self.multipath = hops,
            RouteAttribute::Metrics(metrics) => {
                self.mtu = metrics.iter().find_map(|m| match m {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::Via(via) => match self::via(via) {
                Some(address) => self.gateway = Some(address),
                None => self.strange = true,
            },
            RouteAttribute::NhId(id) => self.object = Some(*id),
            RouteAttribute::Encap(_) => self.strange = true,
            _ => {}
        }
    }

    fn target(
        &self,
        kind: RouteType,
        onlink: bool,
        links: &Links,
        objects: &BTreeMap<u32, ActualObject>,
    ) -> ActualTarget {
        let other = ActualTarget::Other(kind.into());
        if self.strange {
            return other;
        }
        // Of other objects (groups of other daemons) the route itself says where it leads, unless
        // `nexthop_compat_mode` is 0.
        if let Some(id) = self.object
            && let Some(hop) = objects.get(&id).and_then(|object| object.hop.clone())
        {
            return ActualTarget::Known(Target::Object(id, hop));
        }
        match kind {
            RouteType::BlackHole => ActualTarget::Known(Target::Blackhole),
            RouteType::Unicast => self
                .next_hops(onlink, links)
                .map_or(other, |hops| ActualTarget::Known(Target::Via(hops))),
            _ => other,
        }
    }

    /// `None` when a device is not known, as when it went during the reading.
    fn next_hops(&self, onlink: bool, links: &Links) -> Option<Vec<NextHop>> {
        let name = |index: u32| links.by_index(index).map(|l| l.name.clone());
        if self.multipath.is_empty() {
            return Some(vec![NextHop {
                gateway: self.gateway,
                link: name(self.link?)?,
                onlink,
            }]);
        }
        let mut hops = Vec::with_capacity(self.multipath.len());
        for hop in self.multipath {
            let gateway = hop.attributes.iter().find_map(|a| match a {
                RouteAttribute::Gateway(address) => ip(address),
                RouteAttribute::Via(address) => via(address),
                _ => None,
            });
            hops.push(NextHop {
                gateway,
                link: name(hop.interface_index)?,
                onlink: hop.flags.contains(RouteNextHopFlags::Onlink),
            });
        }
        hops.sort();
        Some(hops)
    }
}

fn neighbour(
    message: &NeighbourMessage,
    names: &BTreeMap<u32, IfName>,
) -> Option<(NeighbourKey, ActualNeighbour)> {
    let mut address = None;
    let mut resolved = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => {
                address = Some(IpAddr::from(*a));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(a)) => {
                address = Some(IpAddr::from(*a));
            }
            NeighbourAttribute::LinkLayerAddress(octets) => resolved = mac(octets),
            _ => {}
        }
    }
    let key = NeighbourKey {
        link: names.get(&message.header.ifindex)?.clone(),
        address: address?,
    };
    let neighbour = ActualNeighbour {
        mac: resolved,
        permanent: message.header.state == NeighbourState::Permanent,
    };
    Some((key, neighbour))
}

fn fdb_entry(message: &NeighbourMessage) -> Option<(Mac, IpAddr)> {
    let mut address = None;
    let mut remote = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(octets) => address = mac(octets),
            NeighbourAttribute::Destination(destination) => {
                remote = match destination {
                    NeighbourAddress::Inet(a) => Some((*a).into()),
                    NeighbourAddress::Inet6(a) => Some((*a).into()),
                    // In the bridge family the address is raw octets.
                    NeighbourAddress::Other(octets) => octets_to_ip(octets),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    Some((address?, remote?))
}

fn octets_to_ip(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}
