//! CHECK: is the attachment as ADD made it? Looks at everything and names all that differs; changes
//! nothing.

use std::net::IpAddr;

use caracal_datastore::Store;
use caracal_model::{Family, Prefix, format_mac};

use crate::addresses;
use crate::call::Call;
use crate::endpoint::{self, Known};
use crate::error::{CheckError, CniError};
use crate::kernel::link::{KernelError, Link, Links};
use crate::kernel::netns::Netns;
use crate::kernel::route_wait::is_routed;
use crate::kernel::{HOST_MAC, gateway as gateway_of};
use crate::kernel::{pod, pod_routes};
use crate::spec::{Command, Outcome, Wishes};

/// Compares the attachment with what the endpoint and `prevResult` say.
///
/// # Errors
/// [`CniError::Check`] with all differences.
pub(crate) async fn check<S: Store>(call: &Call, store: &S) -> Result<(), CniError> {
    let known = endpoint::read(store, &call.attachment).await?;
    let from_ipam = Wishes::read(&call.env, &call.conf, call.pod.as_ref())?
        .without_ipam
        .is_empty();
    let mut differences = Vec::new();
    let mac = known.own_endpoint(&call.attachment).map(|e| e.spec.mac);
    // A pod of Kubernetes' API has no place for it.
    let mac = mac.filter(|mac| !mac.is_empty());
    let addresses = stored(call, store, &known, from_ipam, &mut differences).await?;
    previous(call, &addresses, &mut differences)?;
    let made = Made {
        mac,
        ..Made::remembered(call)?
    };
    kernel(call, &addresses, &made, &mut differences).await?;
    if let Some(delegate) = call.delegate()?.filter(|_| from_ipam) {
        delegate.run(Command::Check)?;
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(CheckError {
        ifname: call.attachment.ifname.clone(),
        differences,
    }
    .into())
}

fn list(prefixes: &[Prefix]) -> String {
    if prefixes.is_empty() {
        return "nothing".to_owned();
    }
    let texts: Vec<_> = prefixes.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// The addresses as the datastore has them.
async fn stored<S: Store>(
    call: &Call,
    store: &S,
    known: &Known,
    from_ipam: bool,
    differences: &mut Vec<String>,
) -> Result<Vec<Prefix>, CniError> {
    let attachment = &call.attachment;
    let Some(endpoint) = known.own_endpoint(attachment) else {
        differences.push(format!(
            "{} is no endpoint of container {}",
            attachment.endpoint_key().to_path(),
            attachment.container_id
        ));
        return Ok(Vec::new());
    };
    let spec = endpoint.spec;
    let interface = attachment.host_interface();
    if spec.interface_name != interface.as_str() {
        differences.push(format!(
            "the endpoint names interface {:?}, not {interface}",
            spec.interface_name
        ));
    }
    let mut addresses = spec.ip_networks;
    addresses.sort_unstable();
    if from_ipam && call.has_own_addresses() {
        let handle = attachment.handle();
        let held = addresses::held(store, &handle).await?;
        let held: Vec<_> = held.iter().map(|h| Prefix::host(h.address)).collect();
        if held != addresses {
            differences.push(format!(
                "IPAM handle {handle} holds {}, the endpoint {}",
                list(&held),
                list(&addresses)
            ));
        }
    }
    Ok(addresses)
}

/// The ADD's result as the runtime passes it.
fn previous(
    call: &Call,
    addresses: &[Prefix],
    differences: &mut Vec<String>,
) -> Result<(), CniError> {
    let Some(previous) = &call.conf.prev_result else {
        return Ok(());
    };
    let previous = Outcome::from_json(previous).map_err(CniError::PrevResult)?;
    let inside = |name: &str, sandbox: Option<&String>| {
        name == call.attachment.ifname && sandbox.is_some_and(|path| !path.is_empty())
    };
    let ours = |index: Option<usize>| {
        index
            .and_then(|index| previous.interfaces.get(index))
            .is_some_and(|i| inside(&i.name, i.sandbox.as_ref()))
    };
    let mut remembered: Vec<_> = previous
        .ips
        .iter()
        .filter(|ip| ours(ip.interface))
        .map(|ip| Prefix::host(ip.address.address))
        .collect();
    remembered.sort_unstable();
    if remembered != addresses {
        differences.push(format!(
            "prevResult has {}, the endpoint {}",
            list(&remembered),
            list(addresses)
        ));
    }
    Ok(())
}

/// Traces of the ADD beside its result.
#[derive(Default)]
struct Made {
    /// MAC of the pod's interface.
    mac: Option<String>,
    /// MTU of the pod's interface; results tell it from 1.1.0 on.
    mtu: Option<u32>,
    /// Destinations through our gateway.
    destinations: Vec<Prefix>,
}

impl Made {
    fn remembered(call: &Call) -> Result<Self, CniError> {
        let mut made = Self::default();
        let previous = match &call.conf.prev_result {
            Some(previous) => Outcome::from_json(previous).map_err(CniError::PrevResult)?,
            None => Outcome::default(),
        };
        let name = &call.attachment.ifname;
        let mut interfaces = previous.interfaces.iter();
        let own = interfaces.find(|i| i.name == *name && i.sandbox.is_some());
        made.mtu = own.and_then(|i| i.mtu);
        let through_us = previous.routes.iter().filter(|route| {
            let gateway = gateway_of(Family::of(route.dst.address));
            route.gw == Some(gateway)
        });
        made.destinations = through_us.map(|route| route.dst.prefix()).collect();
        Ok(made)
    }
}

async fn kernel(
    call: &Call,
    addresses: &[Prefix],
    made: &Made,
    differences: &mut Vec<String>,
) -> Result<(), CniError> {
    let netns = Netns::open(call.netns()?)?;
    let host = Links::here()?;
    let inside = Links::inside(&netns, || Ok(()))?;
    let attachment = &call.attachment;
    let host_name = attachment.host_interface();
    let host_link = host.by_name(host_name.as_str()).await?;
    let pod_link = inside.by_name(&attachment.ifname).await?;
    if let Some(link) = &host_link {
        host_side(call, &host, link, addresses, differences).await?;
    } else {
        differences.push(format!("there is no interface {host_name} on the host"));
    }
    let Some(pod_link) = pod_link else {
        let name = &attachment.ifname;
        differences.push(format!("there is no interface {name} in the container"));
        return Ok(());
    };
    if host_link.is_some_and(|link| !link.is_pair_with(&pod_link)) {
        let name = &attachment.ifname;
        differences.push(format!("{name} and {host_name} are not one veth pair"));
    }
    pod_side(call, &inside, &pod_link, addresses, differences).await?;
    as_made(&inside, &pod_link, made, differences).await?;
    Ok(())
}

async fn host_side(
    call: &Call,
    host: &Links,
    link: &Link,
    addresses: &[Prefix],
    differences: &mut Vec<String>,
) -> Result<(), KernelError> {
    let name = &link.name;
    if !link.up {
        differences.push(format!("{name} is down"));
    }
    if link.mac != Some(HOST_MAC) {
        let mac = link.mac.as_ref().map(format_mac).unwrap_or_default();
        differences.push(format!(
            "{name} has MAC {mac}, not {}",
            format_mac(&HOST_MAC)
        ));
    }
    if call.conf.route_wait() > 0 {
        for address in addresses {
            if !is_routed(host, link, address).await? {
                differences.push(format!("the host has no route to {address} on {name}"));
            }
        }
    }
    Ok(())
}

async fn as_made(
    inside: &Links,
    link: &Link,
    made: &Made,
    differences: &mut Vec<String>,
) -> Result<(), KernelError> {
    let name = &link.name;
    let mac = link.mac.as_ref().map(format_mac).unwrap_or_default();
    if let Some(wanted) = made.mac.as_ref().filter(|wanted| **wanted != mac) {
        differences.push(format!("{name} has MAC {mac}, the endpoint {wanted}"));
    }
    if let Some(wanted) = made.mtu.filter(|wanted| *wanted != link.mtu) {
        differences.push(format!("{name} has MTU {}, prevResult {wanted}", link.mtu));
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let of_family = |d: &&Prefix| d.family() == family && d.len() > 0;
        let wanted: Vec<_> = made.destinations.iter().filter(of_family).collect();
        if wanted.is_empty() {
            continue;
        }
        let present = pod_routes::destinations(inside, link, family).await?;
        for route in wanted.into_iter().filter(|route| !present.contains(route)) {
            let gateway = gateway_of(family);
            differences.push(format!(
                "the container has no route to {route} via {gateway} on {name}"
            ));
        }
    }
    Ok(())
}

async fn pod_side(
    call: &Call,
    inside: &Links,
    link: &Link,
    addresses: &[Prefix],
    differences: &mut Vec<String>,
) -> Result<(), KernelError> {
    let name = &link.name;
    if !link.up {
        differences.push(format!("{name} is down in the container"));
    }
    let present = pod::addresses(inside, link).await?;
    for address in addresses.iter().filter(|a| !present.contains(a)) {
        differences.push(format!("{name} lacks {address}; it has {}", list(&present)));
    }
    if call.conf.include_default_routes == Some(false) {
        return Ok(());
    }
    for family in pod::families(addresses) {
        let gateway: IpAddr = gateway_of(family);
        let default = Prefix::truncated(gateway, 0);
        let routes = pod_routes::destinations(inside, link, family).await?;
        if !routes.contains(&default) {
            differences.push(format!(
                "the container has no default route via {gateway} on {name}"
            ));
        }
    }
    Ok(())
}
