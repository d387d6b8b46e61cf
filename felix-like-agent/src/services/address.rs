//! Addresses of services and of what is behind them.

use std::fmt;
use std::net::IpAddr;

use caracal_model::Family;
use serde::Serialize;

use crate::nft::{Field, Fields};
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

    /// The address that a key begins with.
    pub(super) fn of_key(key: &Fields) -> Option<Self> {
        let mut fields = key.iter();
        match [fields.next()?, fields.next()?, fields.next()?] {
            [
                Field::Address(address),
                Field::Protocol(protocol),
                Field::Port(port),
            ] => Some(Self {
                address: *address,
                protocol: *protocol,
                port: *port,
            }),
            _ => None,
        }
    }

    /// As a key has it.
    pub(super) const fn fields(&self) -> [Field; 3] {
        let port = Field::Port(self.port);
        let protocol = Field::Protocol(self.protocol);
        [Field::Address(self.address), protocol, port]
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Fields::from(self.fields()))
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
        write!(f, "{}", Fields::from(self.fields()))
    }
}

impl ServiceTarget {
    /// As a value has it.
    pub(super) const fn fields(&self) -> [Field; 2] {
        [Field::Address(self.address), Field::Port(self.port)]
    }
}
