//! The veth pair: made in one request with its far end already in the pod, then configured on the
//! host side.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use caracal_model::{Family, Mac};
use netlink_packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::link::{KernelError, Link, Links};
use super::netns::Netns;
use super::sysctl::{self, SysctlError};
use super::{GATEWAY_V6, HOST_MAC};

/// A veth pair to make.
#[derive(Clone, Debug)]
pub(crate) struct VethPair<'a> {
    /// Name on the host.
    pub host: &'a str,
    /// Name in the pod.
    pub pod: &'a str,
    /// MAC in the pod.
    pub mac: Mac,
    /// MTU of both ends in octets; zero = the kernel's default.
    pub mtu: u32,
    /// Transmit and receive queues of both ends; zero = the kernel's default.
    pub queues: u32,
    /// Alias of the host side.
    pub alias: String,
}

impl VethPair<'_> {
    /// Makes the pair and brings the host side up with all that belongs to it. `families` are those
    /// of the pod's addresses.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) async fn create(
        &self,
        host: &Links,
        netns: &Netns,
        families: &[Family],
    ) -> Result<Link, KernelError> {
        self.add(host, netns).await?;
        self.configure_host_end(host, families).await
    }

    async fn add(&self, host: &Links, netns: &Netns) -> Result<(), KernelError> {
        // Not up yet: a veth refuses that before it knows its peer.
        let mut pod = LinkMessageBuilder::<LinkUnspec>::new()
            .name(self.pod)
            .address(self.mac.to_vec())
            .setns_by_fd(netns.fd().as_raw_fd());
        let mut pair =
            LinkMessageBuilder::<LinkVeth>::new(self.host, self.pod).address(HOST_MAC.to_vec());
        if self.mtu != 0 {
            pod = pod.mtu(self.mtu);
            pair = pair.mtu(self.mtu);
        }
        if self.queues != 0 {
            let queues = [
                LinkAttribute::NumTxQueues(self.queues),
                LinkAttribute::NumRxQueues(self.queues),
            ];
            for attribute in queues {
                pod = pod.append_extra_attribute(attribute.clone());
                pair = pair.append_extra_attribute(attribute);
            }
        }
        let pair = pair.set_info_data(InfoData::Veth(InfoVeth::Peer(pod.build())));
        let action = format!(
            "make the veth pair {} and {} in {:?}",
            self.host,
            self.pod,
            netns.path()
        );
        let request = host.handle.link().add(pair.build());
        request
            .execute()
            .await
            .map_err(KernelError::refused(action))
    }

    /// Brings the host side of an existing pair into its state; nothing changes when it is in it.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) async fn configure_host_end(
        &self,
        host: &Links,
        families: &[Family],
    ) -> Result<Link, KernelError> {
        switches(self.host, families)?;
        let up = LinkMessageBuilder::<LinkUnspec>::new()
            .name(self.host)
            .alias(self.alias.clone())
            .up();
        let action = format!("bring up {}", self.host);
        let request = host.handle.link().set(up.build());
        request
            .execute()
            .await
            .map_err(KernelError::refused(action))?;
        let gone = || KernelError::Vanished {
            name: self.host.to_owned(),
        };
        let link = host.by_name(self.host).await?.ok_or_else(gone)?;
        if families.contains(&Family::Ipv6) {
            // The gateway of the pod, there from the first packet on: no duplicate address
            // detection.
            let gateway = host
                .handle
                .address()
                .add(link.index, IpAddr::V6(GATEWAY_V6), 64);
            let gateway = super::pod::without_dad(gateway).replace();
            let action = format!("add {GATEWAY_V6} to {}", self.host);
            gateway
                .execute()
                .await
                .map_err(KernelError::refused(action))?;
        }
        Ok(link)
    }
}

/// The switches of a host side, as Felix sets them: the host answers for the gateway at once and
/// forwards.
fn switches(name: &str, families: &[Family]) -> Result<(), SysctlError> {
    if families.contains(&Family::Ipv4) {
        sysctl::set(&format!("ipv4/conf/{name}/proxy_arp"), "1")?;
        sysctl::set(&format!("ipv4/neigh/{name}/proxy_delay"), "0")?;
        sysctl::set(&format!("ipv4/conf/{name}/forwarding"), "1")?;
        sysctl::set(&format!("ipv4/conf/{name}/route_localnet"), "0")?;
    }
    if families.contains(&Family::Ipv6) {
        sysctl::set(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
        sysctl::set(&format!("ipv6/conf/{name}/accept_ra"), "0")?;
        sysctl::set(&format!("ipv6/conf/{name}/accept_dad"), "0")?;
        sysctl::set(&format!("ipv6/conf/{name}/proxy_ndp"), "1")?;
        sysctl::set(&format!("ipv6/conf/{name}/forwarding"), "1")?;
    }
    Ok(())
}
