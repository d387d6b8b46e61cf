//! Addresses of services and of what is behind them.

use std::fmt;
use std::net::IpAddr;

use caracal_model::Family;
use serde::Serialize;

use crate::transport::Transport;

/// Where a service is reached: address, protocol and port. Printed as nftables writes the key of a
/// map: `10.96.0.10 . tcp . 80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServiceAddress {
    /// The VIP, or an address of this node for a node port.
    pub address: IpAddr,
    /// Its protocol.
    pub protocol: Transport,
    /// Its port.
    pub port: u16,
}

impl ServiceAddress {
    /// The first one with an address, in their order.
    pub(super) const fn first_of(address: IpAddr) -> Self {
        Self {
            address,
            protocol: Transport::Tcp,
            port: 0,
        }
    }

    pub(super) const fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Reads the start of a key that nftables prints.
    pub(super) fn of_key(text: &str) -> Option<Self> {
        let mut parts = text.split(" . ");
        let address = parts.next()?.parse().ok()?;
        Some(Self {
            address,
            protocol: Transport::from_word(parts.next()?)?,
            port: parts.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.as_str();
        write!(f, "{} . {protocol} . {}", self.address, self.port)
    }
}

/// Where a connection ends: address and port of an endpoint. Printed as nftables writes the value
/// of a map: `10.244.0.7 . 8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServiceTarget {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for ServiceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} . {}", self.address, self.port)
    }
}

impl ServiceTarget {
    /// Reads a value that nftables prints.
    pub(super) fn of_value(text: &str) -> Option<Self> {
        let (address, port) = text.split_once(" . ")?;
        Some(Self {
            address: address.parse().ok()?,
            port: port.parse().ok()?,
        })
    }
}
