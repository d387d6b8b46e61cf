//! Clients that keep their endpoints, as the kernel holds them: elements that come and go by
//! themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::address::ServiceTarget;
use crate::nft::{Element, Field, Fields, Listing};

/// An element of a map from clients to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Client {
    address: IpAddr,
    endpoint: IpAddr,
    /// `None` = the map has addresses alone.
    port: Option<u16>,
}

impl Client {
    /// Reads one as nftables prints it: `10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (key, endpoint) = text.split_once(" : ")?;
        let endpoint = Fields::parse(endpoint)?;
        let mut fields = endpoint.iter();
        let (Some(Field::Address(to)), port) = (fields.next(), fields.next()) else {
            return None;
        };
        Some(Self {
            address: key.split(' ').next()?.parse().ok()?,
            endpoint: *to,
            port: match port {
                Some(Field::Port(port)) => Some(*port),
                _ => None,
            },
        })
    }

    /// Reads the key and the data of one as the kernel has them.
    pub(crate) fn of_octets(key: &[u8], data: &[u8]) -> Option<Self> {
        let (endpoint, port) = data.split_at_checked(key.len())?;
        Some(Self {
            address: address(key)?,
            endpoint: address(endpoint)?,
            port: port.first_chunk().map(|port| u16::from_be_bytes(*port)),
        })
    }

    fn is_led_to(&self, target: &ServiceTarget) -> bool {
        target.address == self.endpoint && self.port.is_none_or(|port| port == target.port)
    }

    /// True when its endpoint is none of these.
    pub(super) fn is_stray(&self, allowed: &BTreeSet<ServiceTarget>) -> bool {
        !allowed.iter().any(|target| self.is_led_to(target))
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

/// The clients in the listing of one map.
pub(crate) fn clients(listing: &str) -> Vec<Client> {
    let listing = Listing::parse(listing);
    let elements = listing.sets().flat_map(|set| &set.elements);
    elements.filter_map(|text| Client::parse(text)).collect()
}

/// By what those among these clients are taken out of their map whose endpoint is none of
/// `allowed`.
pub(crate) fn strays(clients: &[Client], allowed: &BTreeSet<ServiceTarget>) -> Vec<Element> {
    let strays = clients.iter().filter(|client| client.is_stray(allowed));
    let keys = strays.map(|client| Fields::from([Field::Address(client.address)]));
    keys.map(Element::from).collect()
}
