//! The pod's side: its addresses, the two routes, the gateway's neighbour entry, loopback.
//! Everything is put so that a repeated ADD finds nothing to do.

use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use futures_util::TryStreamExt;
use netlink_packet_route::address::{AddressAttribute, AddressFlags};
use netlink_packet_route::neighbour::NeighbourState;
use rtnetlink::{AddressAddRequest, LinkMessageBuilder, LinkUnspec};

use super::link::{KernelError, Link, Links};
use super::pod_routes;
use super::sysctl::{self, SysctlError};
use super::{HOST_MAC, gateway};

/// The index of `lo` in every namespace.
const LOOPBACK: u32 = 1;

/// Plan of the pod's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodPlan {
    /// Addresses, each a /32 or /128.
    pub addresses: Vec<Prefix>,
    /// Destinations that go through the gateway; one default route of each family, as a rule.
    pub destinations: Vec<Prefix>,
}

impl PodPlan {
    /// The families of the addresses.
    #[must_use]
    pub(crate) fn families(&self) -> Vec<Family> {
        families(&self.addresses)
    }
}

/// The families of addresses, IPv4 first.
#[must_use]
pub(crate) fn families(addresses: &[Prefix]) -> Vec<Family> {
    [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter(|family| addresses.iter().any(|a| a.family() == *family))
        .collect()
}

/// Switches of the pod's namespace that must be set before the interface comes. To be run inside
/// it.
///
/// # Errors
/// [`SysctlError`].
pub(crate) fn prepare(wanted: &[Family], allow_forwarding: bool) -> Result<(), SysctlError> {
    let ipv6 = sysctl::has_ipv6();
    if !allow_forwarding {
        sysctl::set("ipv4/ip_forward", "0")?;
        if ipv6 {
            sysctl::set("ipv6/conf/all/forwarding", "0")?;
        }
    }
    if wanted.contains(&Family::Ipv6) {
        for scope in ["all", "default", "lo"] {
            sysctl::set(&format!("ipv6/conf/{scope}/disable_ipv6"), "0")?;
        }
    }
    Ok(())
}

/// The address request with IFA_F_NODAD: the address is ours by allocation, and a tentative one
/// would hold the pod's first packets for a second.
pub(super) fn without_dad(mut request: AddressAddRequest) -> AddressAddRequest {
    let message = request.message_mut();
    message
        .attributes
        .push(AddressAttribute::Flags(AddressFlags::Nodad));
    request
}

/// Brings the pod's side into its state.
///
/// # Errors
/// [`KernelError`].
pub(crate) async fn configure(pod: &Links, link: &Link, plan: &PodPlan) -> Result<(), KernelError> {
    for index in [LOOPBACK, link.index] {
        let up = LinkMessageBuilder::<LinkUnspec>::default()
            .index(index)
            .up();
        let request = pod.handle.link().set(up.build());
        request.execute().await.map_err(KernelError::refused(
            "bring up the interfaces of the container",
        ))?;
    }
    for address in &plan.addresses {
        add_address(pod, link, address).await?;
    }
    for family in plan.families() {
        add_gateway(pod, link, family).await?;
    }
    for destination in &plan.destinations {
        pod_routes::add_through_gateway(pod, link, destination).await?;
    }
    Ok(())
}

async fn add_address(pod: &Links, link: &Link, address: &Prefix) -> Result<(), KernelError> {
    let request = pod
        .handle
        .address()
        .add(link.index, address.address(), address.len());
    let request = match address.family() {
        Family::Ipv4 => request,
        Family::Ipv6 => without_dad(request),
    };
    let action = format!("add {address} to {} in the container", link.name);
    request
        .replace()
        .execute()
        .await
        .map_err(KernelError::refused(action))
}

/// The gateway: its on-link route (IPv4) and a permanent neighbour entry, so that the first packet
/// leaves without asking, whatever the host answers to ARP.
async fn add_gateway(pod: &Links, link: &Link, family: Family) -> Result<(), KernelError> {
    let gateway = gateway(family);
    if family == Family::Ipv4 {
        pod_routes::add_on_link(pod, link).await?;
    }
    let neighbour = pod
        .handle
        .neighbours()
        .add(link.index, gateway)
        .link_layer_address(&HOST_MAC)
        .state(NeighbourState::Permanent)
        .replace();
    neighbour
        .execute()
        .await
        .map_err(KernelError::refused(format!(
            "add the gateway {gateway} in the container"
        )))
}

/// The addresses of a link, link-local ones of IPv6 left out.
///
/// # Errors
/// [`KernelError::Refused`].
pub(crate) async fn addresses(pod: &Links, link: &Link) -> Result<Vec<Prefix>, KernelError> {
    let found: Vec<_> = pod
        .handle
        .address()
        .get()
        .set_link_index_filter(link.index)
        .execute()
        .try_collect()
        .await
        .map_err(KernelError::refused("list addresses in the container"))?;
    let address = |message: &netlink_packet_route::address::AddressMessage| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => {
                Some(Prefix::truncated(*ip, message.header.prefix_len))
            }
            _ => None,
        })
    };
    let mut addresses: Vec<_> = found.iter().filter_map(address).collect();
    addresses.retain(|a| match a.address() {
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        IpAddr::V4(_) => true,
    });
    addresses.sort_unstable();
    Ok(addresses)
}
