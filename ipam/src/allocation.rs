//! Allocations as a flat list: who holds which address, for what, and what would prove that nobody
//! uses it any more. Values only; whether an address is in use is [`crate::users`]'s and
//! [`crate::audit`]'s.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{
    Block, DELEGATED_ATTRIBUTE, ENDPOINT_ATTRIBUTE, HandleId, INTERFACE_ATTRIBUTE, Key, Prefix,
    Timestamp, WINDOWS_RESERVED_HANDLE,
};
use serde::{Deserialize, Serialize};

use crate::request::ReleaseTarget;

/// One address that a block says is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The address that is held.
    pub address: IpAddr,
    /// The block that has it.
    pub block: Prefix,
    /// `host:NODE`, `virtual:NAME`, or nobody.
    pub block_owner: Option<String>,
    /// Handle under which it was taken; old allocations have none.
    pub handle: Option<String>,
    /// Sequence number of this very allocation (IPAM-8).
    pub sequence: Option<u64>,
    /// `node`, `pod`, `namespace`, `type`, `timestamp`, …
    pub attributes: BTreeMap<String, String>,
    /// Since when it cools down; `None` while it is held.
    pub released_at: Option<String>,
}

/// Purpose of an address, as far as IPAM's data say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A pod or container.
    Workload,
    /// A node's tunnel device.
    Tunnel,
    /// Something that leaves no trace in this datastore: nobody here can say whether it is in use.
    Elsewhere(&'static str),
}

/// Attribute of the addresses of a KubeVirt virtual machine, which outlive its pods.
const VIRTUAL_MACHINE: &str = "vmi-name";

const TUNNELS: [&str; 5] = [
    "ipipTunnelAddress",
    "vxlanTunnelAddress",
    "vxlanV6TunnelAddress",
    "wireguardTunnelAddress",
    "wireguardV6TunnelAddress",
];

impl Allocation {
    /// All allocations of a block, cooling ones included, in address order.
    pub fn in_block(block: &Block) -> impl Iterator<Item = Self> {
        let numbers = &block.sequence_number_for_allocation;
        block.allocated().map(|(ordinal, address, attribute)| Self {
            address,
            block: block.cidr,
            block_owner: block.affinity.clone(),
            handle: attribute.handle_id.clone(),
            sequence: numbers.get(&ordinal.to_string()).copied(),
            attributes: attribute.secondary.clone(),
            released_at: attribute.released_at.clone(),
        })
    }

    /// A release that hits this very allocation or nothing.
    #[must_use]
    pub fn target(&self) -> ReleaseTarget {
        ReleaseTarget {
            address: self.address,
            handle: self.handle.as_deref().map(HandleId::from),
            sequence: self.sequence,
        }
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }

    /// The node that uses it.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.attribute("node")
    }

    /// `Tunnel`-like `type`, when there is one.
    #[must_use]
    pub fn usage(&self) -> Option<&str> {
        self.attribute("type")
    }

    /// Holder as text: `default/web-0`, a type, or the handle.
    #[must_use]
    pub fn holder(&self) -> String {
        match (self.attribute("namespace"), self.attribute("pod")) {
            (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
            _ => self
                .usage()
                .or(self.handle.as_deref())
                .unwrap_or("-")
                .to_owned(),
        }
    }

    /// The host side interface and the endpoint's key, when our CNI plugin made them.
    #[must_use]
    pub fn wiring(&self) -> Option<(&str, Key)> {
        let (namespace, name) = self.attribute(ENDPOINT_ATTRIBUTE)?.split_once('/')?;
        let interface = self.attribute(INTERFACE_ATTRIBUTE)?;
        Some((interface, Key::workload(namespace, name)))
    }

    /// True when a node other than the block's owner uses it.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        let owner = self
            .block_owner
            .as_deref()
            .and_then(|o| o.strip_prefix("host:"));
        self.node().is_some_and(|node| owner != Some(node))
    }

    /// When it was made, if it says so.
    #[must_use]
    pub fn made(&self) -> Option<Timestamp> {
        // Go's text of a time is RFC 3339 but for the zone.
        let text = self.attribute("timestamp")?.strip_suffix(" +0000 UTC")?;
        Timestamp::parse_rfc3339(&format!("{text}Z"))
    }

    /// Purpose of the address.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        let handle = self.handle.as_deref().unwrap_or_default();
        let is_virtual = self
            .block_owner
            .as_deref()
            .is_some_and(|o| o.starts_with("virtual:"));
        if handle == WINDOWS_RESERVED_HANDLE {
            return Purpose::Elsewhere("reserved by a Windows node");
        }
        if is_virtual || handle.starts_with("lb-") {
            return Purpose::Elsewhere("a load balancer's; only Kubernetes knows the service");
        }
        if self.attributes.contains_key(DELEGATED_ATTRIBUTE) {
            return Purpose::Elsewhere("given to another main plugin, which writes no endpoint");
        }
        if self.attributes.contains_key(VIRTUAL_MACHINE) {
            return Purpose::Elsewhere(
                "a virtual machine's; only KubeVirt knows whether it exists",
            );
        }
        match self.usage() {
            None => Purpose::Workload,
            Some(usage) if TUNNELS.contains(&usage) => Purpose::Tunnel,
            Some(_) => Purpose::Elsewhere("of a type that Caracal does not know"),
        }
    }
}
