//! Linux's reaction to an [`Op`], on maps instead of a kernel, refusals included. For tests: of
//! this crate, and of those that put whole clusters of such kernels together.

use std::net::IpAddr;

use caracal_model::{Family, IfName};

use crate::actual::{Actual, ActualNeighbour, ActualRoute};
use crate::kernel_objects::{
    ForwardingTarget, IPIP_DEVICE, NextHop, NextHopObject, Route, Tunnel, TunnelDevice,
};
use crate::links::{Link, Links, VxlanParameters};
use crate::op::Op;

/// A request that is refused, by the name of its errno.
pub type Refused = &'static str;

/// Carries out an op.
///
/// # Errors
/// The kernel's refusal.
pub fn apply_op(actual: &mut Actual, op: &Op) -> Result<(), Refused> {
    match op {
        Op::AddTunnel(tunnel) if tunnel.kind == TunnelDevice::Tun => return Err("EOPNOTSUPP"),
        Op::AddTunnel(tunnel) => {
            if actual.links.by_name(tunnel.name.as_str()).is_some() {
                return Err("EEXIST");
            }
            let link = made(tunnel, &actual.links)?;
            actual.links.insert(link);
        }
        Op::SetTunnel(tunnel) => {
            let link = link_mut(actual, &tunnel.name)?;
            (link.up, link.mtu) = (true, tunnel.mtu);
            if let TunnelDevice::Vxlan { mac, .. } = tunnel.kind {
                link.mac = Some(mac);
            }
        }
        Op::SetMac(name, mac) => link_mut(actual, name)?.mac = Some(*mac),
        Op::DeleteTunnel(name) if name.as_str() == IPIP_DEVICE => return Err("EPERM"),
        Op::DeleteTunnel(name) => {
            link_mut(actual, name)?;
            actual.remove_link(name);
        }
        Op::AddAddress(name, cidr) => {
            let link = link_mut(actual, name)?;
            if !link.addresses.contains(cidr) {
                link.addresses.push(*cidr);
            }
        }
        Op::DeleteAddress(name, cidr) => {
            let link = link_mut(actual, name)?;
            let there = link.addresses.iter().position(|a| a == cidr);
            link.addresses.remove(there.ok_or("EADDRNOTAVAIL")?);
        }
        Op::PutNeighbour(key, mac) => {
            if !link_mut(actual, &key.link)?.up {
                return Err("ENETDOWN");
            }
            let entry = ActualNeighbour {
                mac: Some(*mac),
                permanent: true,
            };
            actual.neighbours.insert(key.clone(), entry);
        }
        Op::DeleteNeighbour(key) => {
            actual.neighbours.remove(key).ok_or("ENOENT")?;
        }
        Op::PutFdb(key, remote) => {
            link_mut(actual, &key.link)?;
            actual.fdb.insert(key.clone(), *remote);
        }
        Op::DeleteFdb(key, _) => {
            actual.fdb.remove(key).ok_or("ENOENT")?;
        }
        Op::AddObject(object) => put_object(actual, object, false)?,
        Op::ReplaceObject(object) => put_object(actual, object, true)?,
        Op::DeleteObject(id) => {
            actual.objects.get(id).ok_or("ENOENT")?;
            // Whoever wrote the routes through it: they go, too.
            actual.remove_object(*id);
        }
        Op::AddRoute(route) => put_route(actual, route, false)?,
        Op::ReplaceRoute(route) => put_route(actual, route, true)?,
        Op::DeleteRoute(route) => {
            actual.remove_route(route).then_some(()).ok_or("ESRCH")?;
        }
        Op::WriteSysctl(path, value) => {
            writable(&actual.links, path)?;
            actual.sysctls.insert(path.clone(), value.clone());
        }
        Op::PutNat(nat) => actual.nat = Some(nat.fingerprint()),
        Op::DeleteNat => actual.nat = None,
    }
    Ok(())
}

fn link_mut<'a>(actual: &'a mut Actual, name: &IfName) -> Result<&'a mut Link, Refused> {
    actual.links.by_name_mut(name.as_str()).ok_or("ENODEV")
}

/// The index that the next interface gets.
#[must_use]
pub fn next_index(links: &Links) -> u32 {
    links.iter().map(|l| l.index).max().unwrap_or(0) + 1
}

/// The device that a request makes.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn made(tunnel: &Tunnel, links: &Links) -> Result<Link, Refused> {
    let mut link = Link::new(next_index(links), tunnel.name.as_str());
    link.kind = tunnel.kind.as_str().to_owned();
    link.mtu = tunnel.mtu;
    if let TunnelDevice::Ipip { local } = tunnel.kind {
        link.local = local;
    }
    if let TunnelDevice::Vxlan {
        vni,
        port,
        local,
        parent,
        mac,
    } = &tunnel.kind
    {
        let parent = links.by_name(parent.as_str()).ok_or("ENODEV")?.index;
        link.mac = Some(*mac);
        link.vxlan = Some(VxlanParameters {
            vni: *vni,
            port: *port,
            local: Some(*local),
            parent: Some(parent),
            learning: false,
            external: false,
        });
    }
    Ok(link)
}

/// A path below an interface that is not there does not exist.
fn writable(links: &Links, path: &str) -> Result<(), Refused> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["net", _, "conf" | "neigh", "all" | "default", _] => Ok(()),
        ["net", _, "conf" | "neigh", link, _] if links.by_name(link).is_none() => Err("ENOFILE"),
        _ => Ok(()),
    }
}

/// Every route through an object leads where the object leads.
fn put_object(actual: &mut Actual, object: &NextHopObject, replace: bool) -> Result<(), Refused> {
    if !link_mut(actual, &object.hop.link)?.up {
        return Err("ENETDOWN");
    }
    match (actual.objects.contains_key(&object.id), replace) {
        (true, false) => return Err("EEXIST"),
        (false, true) => return Err("ENOENT"),
        _ => {}
    }
    actual.put_object(object);
    Ok(())
}

fn put_route(actual: &mut Actual, route: &Route, replace: bool) -> Result<(), Refused> {
    // A route leads where its object leads, whatever the request's author believes.
    let mut route = route.clone();
    if let ForwardingTarget::Object(id, hop) = &mut route.target {
        let object = actual.objects.get(id).ok_or("EINVAL")?;
        *hop = object.hop.clone().ok_or("EINVAL")?;
        // Linux compares no metrics when it looks for what routes through an object share.
        let shares = |r: &&ActualRoute| {
            r.object() == Some(*id) && r.protocol == route.protocol && r.metric == route.metric
        };
        if route.prefix.family() == Family::Ipv4
            && let Some(there) = actual.all_routes().find(shares)
        {
            route.mtu = there.mtu;
        }
    }
    let hops = route.target.hops();
    hops.iter().try_for_each(|hop| usable(actual, hop))?;
    if let Some(source) = route.source {
        actual.links.holding(source).ok_or("EINVAL")?;
    }
    let there = actual.routes.get(&route.key());
    let taken = there.is_some_and(|there| there.iter().any(|r| r.tos == 0));
    if taken && !replace {
        return Err("EEXIST");
    }
    actual.replace_route(route.into());
    Ok(())
}

fn usable(actual: &Actual, hop: &NextHop) -> Result<(), Refused> {
    let link = actual.links.by_name(hop.link.as_str()).ok_or("ENODEV")?;
    if !link.up {
        return Err("ENETDOWN");
    }
    let Some(gateway) = hop.gateway else {
        return Ok(());
    };
    let near = || link.addresses.iter().any(|a| a.prefix().contains(gateway));
    if !hop.onlink && !near() {
        return Err("ENETUNREACH");
    }
    if leads_elsewhere(actual, hop).is_some() {
        return Err("EINVAL");
    }
    Ok(())
}

/// The route because of which IPv6 refuses a gateway, "onlink" or not: the best one to it, when
/// that leads over another device.
#[must_use]
pub fn leads_elsewhere<'a>(actual: &'a Actual, hop: &NextHop) -> Option<&'a ActualRoute> {
    let gateway = hop.gateway.filter(IpAddr::is_ipv6)?;
    actual
        .all_routes()
        .filter(|r| r.prefix.len() > 0 && r.prefix.contains(gateway))
        .max_by_key(|r| (r.prefix.len(), std::cmp::Reverse(r.metric)))
        .filter(|r| r.link() != Some(&hop.link))
}
