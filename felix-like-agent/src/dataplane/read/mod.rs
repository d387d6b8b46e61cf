//! The kernel's answers → [`Actual`]. Reading never changes anything.

pub(in crate::dataplane) mod hints;
pub(in crate::dataplane) mod monitor;
mod neighbours;
pub(in crate::dataplane) mod routes;

use caracal_model::{ALIAS_PREFIX, Cidr, Family, IfName, InsertEach, Mac};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::RouteHeader;

use crate::actual::Actual;
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::links::{Link, Links, VxlanParameters};
use crate::ownership::is_vxlan_device;
pub(in crate::dataplane) use neighbours::FdbNews;

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

/// Reads everything but sysctls and NAT; FDB entries of Calico's devices.
pub(in crate::dataplane) async fn actual(netlink: &mut Netlink) -> Result<Actual, NetlinkError> {
    actual_with(netlink, is_vxlan_device).await
}

/// The same with the FDB entries of these VXLAN devices.
pub(in crate::dataplane) async fn actual_with(
    netlink: &mut Netlink,
    has_fdb: impl Fn(&str) -> bool,
) -> Result<Actual, NetlinkError> {
    let mut actual = Actual {
        links: links(netlink).await?,
        ..Actual::default()
    };
    // Before the routes: an object of ours is always older than the routes through it.
    actual.objects = crate::dataplane::netlink::objects::read(netlink, &actual.links).await?;
    for family in [Family::Ipv4, Family::Ipv6] {
        let (links, objects) = (&actual.links, &actual.objects);
        let found = routes::read(netlink, family, MAIN_TABLE, links, objects).await?;
        for route in found {
            actual.push_route(route);
        }
    }
    let found = neighbours::read(netlink, &actual.links).await?;
    actual.neighbours = found.into_iter().insert_each();
    let links = actual.links.iter();
    for link in links.filter(|l| has_fdb(l.name.as_str())) {
        let found = neighbours::read_fdb(netlink, link).await?;
        actual.fdb.extend(found);
    }
    Ok(actual)
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
        alias: None,
        local: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(IfName::from(text.as_str())),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::IfAlias(alias) if alias.starts_with(ALIAS_PREFIX) => {
                link.alias = Some(alias.clone());
            }
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
            LinkInfo::Data(InfoData::IpTunnel(parameters)) => {
                link.local = parameters.iter().find_map(|parameter| match parameter {
                    InfoIpTunnel::Local(address) if !address.is_unspecified() => Some(*address),
                    _ => None,
                });
            }
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
