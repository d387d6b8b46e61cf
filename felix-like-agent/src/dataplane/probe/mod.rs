//! Features of this kernel, found out by trying: a device of the kind is made and removed at once.

pub(super) mod echo;
pub(in crate::dataplane) mod prober;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};

use caracal_model::{IfName, InsertEach};

use crate::dataplane::netlink::{Message, Netlink, NetlinkError, Request};
use crate::dataplane::write::sysctl;
use crate::kernel_objects::IPIP_DEVICE;
use crate::links::Links;
use crate::ownership::{LAST_OBJECT, is_vxlan_device};
use crate::plan::{KernelSupport, WantedTunnels};
use crate::settings::ROUTE_PROTOCOL;

/// Name of the device that is made and removed.
const DEVICE: &str = "caracal-probe";
/// A VNI that nobody uses.
const VNI: u32 = 0x00ff_ffff;
/// TEST-NET-1 (RFC 5737): an IPIP device with this remote collides with none in use.
const REMOTE: std::net::Ipv4Addr = std::net::Ipv4Addr::new(192, 0, 2, 255);

/// Brings what is known up to date. Only what is wanted is tried: trying loads a module.
pub(in crate::dataplane) async fn support(
    netlink: &mut Netlink,
    links: &Links,
    wanted: WantedTunnels,
    known: &mut KernelSupport,
) -> Result<(), NetlinkError> {
    known.ipv6 = if sysctl::has_ipv6() {
        Ok(())
    } else {
        Err("the kernel has no IPv6".to_owned())
    };
    known.default_rp_filter = sysctl::read_one("net/ipv4/conf/default/rp_filter")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    known.strict_rp_filter = strict_rp_filter(links);
    // A kernel that has them will not lose them.
    if wanted.objects && known.objects.is_err() {
        known.objects = objects(netlink).await?;
    }
    if wanted.ipip {
        known.ipip = if links.by_name(IPIP_DEVICE).is_some_and(|l| l.kind == "ipip") {
            Ok(())
        } else {
            let data = InfoData::IpTunnel(vec![InfoIpTunnel::Remote(REMOTE.into())]);
            attempt(netlink, InfoKind::IpIp, data).await?
        };
    }
    if wanted.vxlan {
        let there = links
            .iter()
            .any(|l| l.kind == "vxlan" && is_vxlan_device(l.name.as_str()));
        known.vxlan = if there {
            Ok(())
        } else {
            let data = InfoData::Vxlan(vec![InfoVxlan::Id(VNI), InfoVxlan::Port(4789)]);
            attempt(netlink, InfoKind::Vxlan, data).await?
        };
    }
    Ok(())
}

/// An object without a next hop, made and deleted.
async fn objects(netlink: &mut Netlink) -> Result<Result<(), String>, NetlinkError> {
    let made = netlink
        .send(crate::dataplane::netlink::objects::blackhole(
            LAST_OBJECT,
            ROUTE_PROTOCOL,
        ))
        .await?;
    match made {
        Err(refusal) if refusal.code == libc::EEXIST => return Ok(Ok(())),
        Err(refusal) => return Ok(Err(refusal.to_string())),
        Ok(()) => {}
    }
    if let Err(refusal) = netlink
        .send(crate::dataplane::netlink::objects::delete(LAST_OBJECT))
        .await?
    {
        tracing::warn!(id = LAST_OBJECT, %refusal, "cannot remove the next-hop object made for probing");
    }
    Ok(Ok(()))
}

/// The kernel takes the larger of the interface's value and that for all.
fn strict_rp_filter(links: &Links) -> std::collections::BTreeSet<IfName> {
    let value = |name: &str| -> u8 {
        sysctl::read_one(&format!("net/ipv4/conf/{name}/rp_filter"))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    let all = value("all");
    let strict = |name: &IfName| all.max(value(name.as_str())) == 1;
    links
        .iter()
        .filter(|l| !l.loopback)
        .map(|l| l.name.clone())
        .filter(strict)
        .insert_each()
}

async fn attempt(
    netlink: &mut Netlink,
    kind: InfoKind,
    data: InfoData,
) -> Result<Result<(), String>, NetlinkError> {
    let mut message = LinkMessage::default();
    message.attributes.extend([
        LinkAttribute::IfName(DEVICE.to_owned()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]),
    ]);
    let create = Request {
        message: Message::Rtnetlink(RouteNetlinkMessage::NewLink(message)),
        flags: NLM_F_CREATE | NLM_F_EXCL,
    };
    match netlink.send(create).await? {
        // One is there already, so the kernel can.
        Err(refusal) if refusal.code == libc::EEXIST => return Ok(Ok(())),
        Err(refusal) => return Ok(Err(refusal.to_string())),
        Ok(()) => {}
    }
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::IfName(DEVICE.to_owned()));
    let remove = Request {
        message: Message::Rtnetlink(RouteNetlinkMessage::DelLink(message)),
        flags: 0,
    };
    if let Err(refusal) = netlink.send(remove).await? {
        tracing::warn!(device = DEVICE, %refusal, "cannot remove the device made for probing");
    }
    Ok(Ok(()))
}
