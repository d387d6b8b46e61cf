//! The node's own addresses: from the environment, the Node resource, or this machine's interfaces.

use std::net::{IpAddr, UdpSocket};

use caracal_model::{Cidr, Family, Node};

use crate::config::{AddressChoice, Config};
use crate::detect::{DetectError, Interface, complete, detect};
use crate::register::Addresses;

/// Resolves both families. `stored` is the Node as it stands in the datastore.
pub(crate) fn resolve(
    config: &Config,
    stored: Option<&Node>,
    interfaces: &[Interface],
) -> Result<Addresses, DetectError> {
    let family = |choice: &AddressChoice, family: Family| -> Result<Option<Cidr>, DetectError> {
        let kept = stored.and_then(|node| node.spec.cidr(family));
        match choice {
            AddressChoice::Keep => Ok(None),
            AddressChoice::Literal {
                address,
                len: Some(len),
            } => Ok(Some(Cidr {
                address: *address,
                len: *len,
            })),
            AddressChoice::Literal { address, len: None } => {
                Ok(Some(complete(*address, interfaces)))
            }
            AddressChoice::Autodetect {
                only_if_unset: true,
                ..
            } if kept.is_some() => Ok(None),
            AddressChoice::Autodetect { method, .. } => {
                let internal = stored.and_then(|node| node.spec.internal_ip(family));
                detect(method, family, interfaces, internal, |host| {
                    source_towards(host, family)
                })
                .map(Some)
            }
        }
    };
    Ok(Addresses {
        v4: family(&config.ip, Family::Ipv4)?,
        v6: family(&config.ip6, Family::Ipv6)?,
    })
}

/// The source address that the kernel would use towards a host. Sends nothing.
fn source_towards(host: &str, family: Family) -> Option<IpAddr> {
    let any = match family {
        Family::Ipv4 => "0.0.0.0:0",
        Family::Ipv6 => "[::]:0",
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Any port does: connecting a datagram socket only looks a route up.
    socket.connect((host, 53)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
