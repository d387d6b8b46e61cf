//! Nodes of Kubernetes in the place of leases: the subnets are `podCIDRs`, and what a lease says
//! stands in flannel's annotations. A Node is given as the datastore has it: Calico's form.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use caracal_model::{Family, InsertEach, Prefix};
use serde_json::{Value, json};

use crate::acquire::{AcquireError, AcquireRequest, FlannelKeys, LeaseOrigin, OwnLease};
use crate::config::Families;
use crate::lease::{NodeSubnets, SubnetLease};

const MANAGED: &str = "kube-subnet-manager";
const TYPE: &str = "backend-type";
const DATA: &str = "backend-data";
const DATA_V6: &str = "backend-v6-data";
const PUBLIC_IP: &str = "public-ip";
const PUBLIC_IPV6: &str = "public-ipv6";
const PUBLIC_IP_OVERWRITE: &str = "public-ip-overwrite";
const PUBLIC_IPV6_OVERWRITE: &str = "public-ipv6-overwrite";

/// Names of flannel's annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnnotations {
    prefix: String,
}

/// A Node's place in the network, in the form of a lease.
pub(crate) type NodeLease = (NodeSubnets, Vec<u8>);

/// What a node has to write so that its Node says who it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeClaim {
    pub(crate) own: OwnLease,
    /// Annotations that are different.
    pub(crate) changed: BTreeMap<String, String>,
}

impl NodeAnnotations {
    /// The names with a prefix such as `flannel.alpha.coreos.com`, `NAME.DOMAIN/` or
    /// `NAME.DOMAIN/part`.
    ///
    /// # Errors
    /// A reason.
    pub fn new(prefix: &str) -> Result<Self, String> {
        let (domain, part) = prefix.split_once('/').unwrap_or((prefix, ""));
        let is_word = |text: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
            !text.is_empty() && text.chars().all(plain)
        };
        if !domain.contains('.') || !domain.split('.').all(is_word) {
            return Err(format!("{domain:?} is no domain of lower-case words"));
        }
        if !part.is_empty() && !is_word(part) {
            return Err(format!("{part:?} is no lower-case word"));
        }
        let dash = if part.is_empty() || part.ends_with('-') {
            ""
        } else {
            "-"
        };
        Ok(Self {
            prefix: format!("{domain}/{part}{dash}"),
        })
    }

    /// All annotations by which a Node is one of the network, as a patch that takes them away.
    pub(crate) fn none(&self) -> Value {
        let mut none = json!({});
        for name in [MANAGED, TYPE, DATA, DATA_V6, PUBLIC_IP, PUBLIC_IPV6] {
            none[format!("{}{name}", self.prefix)] = Value::Null;
        }
        none
    }

    fn text<'a>(&self, node: &'a Value, name: &str) -> Option<&'a str> {
        let text = node["metadata"]["annotations"][format!("{}{name}", self.prefix)].as_str();
        text.filter(|text| !text.is_empty())
    }

    /// The public addresses that an administrator gave the Node: they count like `--public-ip` and
    /// `--public-ipv6`.
    #[must_use]
    pub fn public_ips(&self, node: &Value) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let v4 = self.text(node, "node-public-ip");
        let v6 = self.text(node, "node-public-ipv6");
        (
            v4.and_then(|text| text.parse().ok()),
            v6.and_then(|text| text.parse().ok()),
        )
    }

    /// True where flannel runs.
    pub(crate) fn is_managed(&self, node: &Value) -> bool {
        self.text(node, MANAGED) == Some("true")
    }

    /// What the Node says; `None` when no flannel runs there, or it has no subnet.
    fn lease(&self, node: &Value, families: Families) -> Option<NodeLease> {
        if !self.is_managed(node) {
            return None;
        }
        let subnets = subnets(node, families)?;
        let mut value = json!({
            "PublicIP": self.text(node, PUBLIC_IP),
            "PublicIPv6": self.text(node, PUBLIC_IPV6),
            "BackendType": self.text(node, TYPE),
        });
        for (field, name) in [("BackendData", DATA), ("BackendV6Data", DATA_V6)] {
            match self.text(node, name).map(serde_json::from_str::<Value>) {
                None => {}
                Some(Ok(data)) => value[field] = data,
                // It stays what it is: no lease that can be read.
                Some(Err(error)) => {
                    let text = format!("the annotation {}{name}: {error}", self.prefix);
                    return Some((subnets, text.into_bytes()));
                }
            }
        }
        Some((subnets, value.to_string().into_bytes()))
    }

    /// What this node's Node is to say.
    pub(crate) fn claim(
        &self,
        node: &Value,
        revision: i64,
        request: &AcquireRequest,
    ) -> Result<NodeClaim, AcquireError> {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let wrong = |reason: String| AcquireError::Node {
            node: name.to_owned(),
            reason,
        };
        let config = &request.config;
        let families = config.families();
        let all = |subnets: &NodeSubnets| {
            (subnets.v4.is_some(), subnets.v6.is_some()) == (families.v4, families.v6)
        };
        let subnets = subnets(node, families)
            .filter(all)
            .ok_or_else(|| wrong("pod cidr not assigned".to_owned()))?;
        for family in [Family::Ipv4, Family::Ipv6] {
            if let (Some(range), Some(subnet)) = (config.range(family), subnets.subnet(family))
                && !range.network.covers(&subnet)
            {
                let network = range.network;
                return Err(wrong(format!(
                    "has the pod CIDR {subnet}, which is not inside {network}"
                )));
            }
        }
        let mut request = request.clone();
        if let Some(ip) = self.address(node, PUBLIC_IP_OVERWRITE).map_err(wrong)? {
            request.public_ip = Some(ip);
        }
        if let Some(ip) = self.address(node, PUBLIC_IPV6_OVERWRITE).map_err(wrong)? {
            request.public_ipv6 = Some(ip);
        }
        request.check_addresses()?;
        let before = self.lease(node, families);
        let before = before.and_then(|(_, value)| SubnetLease::parse(&value).ok());
        let lease = request.lease(before.as_ref());
        let mut changed = self.annotations(&lease, families);
        changed.retain(|name, text| node["metadata"]["annotations"][&**name] != **text);
        let own = OwnLease {
            subnets,
            lease,
            revision,
            reserved: true,
            origin: match before {
                Some(_) => LeaseOrigin::Renewed,
                None => LeaseOrigin::Picked,
            },
        };
        Ok(NodeClaim { own, changed })
    }

    fn address<T: FromStr>(&self, node: &Value, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.text(node, name) else {
            return Ok(None);
        };
        let wrong = |_| {
            format!(
                "has an annotation {}{name} that is no address: {text:?}",
                self.prefix
            )
        };
        text.parse().map(Some).map_err(wrong)
    }

    fn annotations(&self, lease: &SubnetLease, families: Families) -> BTreeMap<String, String> {
        let data = |data: &Option<Value>| data.clone().unwrap_or_default().to_string();
        let mut all = vec![
            (MANAGED, "true".to_owned()),
            (TYPE, lease.backend_type.clone()),
        ];
        if families.v4 {
            let ip = lease.public_ip.map(|ip| ip.to_string());
            all.push((DATA, data(&lease.backend_data)));
            all.push((PUBLIC_IP, ip.unwrap_or_default()));
        }
        if families.v6 {
            let ipv6 = lease.public_ipv6.map(|ip| ip.to_string());
            all.push((DATA_V6, data(&lease.backend_v6_data)));
            all.push((PUBLIC_IPV6, ipv6.unwrap_or_default()));
        }
        let named = |(name, text): (&str, String)| (format!("{}{name}", self.prefix), text);
        all.into_iter().map(named).insert_each()
    }
}

/// The first subnet of each family of the network.
fn subnets(node: &Value, families: Families) -> Option<NodeSubnets> {
    let cidrs = node["status"]["podCIDRs"].as_array()?;
    let of_family = |family| {
        let mut all = cidrs
            .iter()
            .filter_map(|text| text.as_str()?.parse::<Prefix>().ok());
        all.find(|prefix| prefix.family() == family)
    };
    let found = |family| of_family(family).filter(|_| families.has(family));
    let (v4, v6) = (found(Family::Ipv4), found(Family::Ipv6));
    // Whoever has IPv4 is known by it, and without it has no place in the network.
    let stands = if families.v4 { v4 } else { v6 };
    stands.map(|_| NodeSubnets { v4, v6 })
}

/// The Nodes that were heard of, as leases: what changes of Nodes mean for keys of leases.
#[derive(Clone, Debug)]
pub(crate) struct NodeLeases {
    names: NodeAnnotations,
    keys: FlannelKeys,
    families: Families,
    /// By the Node's key.
    known: BTreeMap<String, NodeLease>,
}

impl NodeLeases {
    pub(crate) const fn new(names: NodeAnnotations, keys: FlannelKeys, families: Families) -> Self {
        Self {
            names,
            keys,
            families,
            known: BTreeMap::new(),
        }
    }

    /// Forgets all Nodes, before a list.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// The changes of keys and values that a Node's new value means; without one it is gone.
    pub(crate) fn change(
        &mut self,
        node: &str,
        value: Option<&[u8]>,
    ) -> Vec<(String, Option<Vec<u8>>)> {
        let object = value.and_then(|text| serde_json::from_slice::<Value>(text).ok());
        let lease = object.and_then(|node| self.names.lease(&node, self.families));
        let before = match &lease {
            Some(lease) => self.known.insert(node.to_owned(), lease.clone()),
            None => self.known.remove(node),
        };
        if before == lease {
            return Vec::new();
        }
        let mut changes = Vec::new();
        if let Some((subnets, _)) = before
            && lease.as_ref().is_none_or(|(now, _)| *now != subnets)
        {
            // Another Node may have the same subnets, by mistake.
            let other = self.known.values().find(|(others, _)| *others == subnets);
            let value = other.map(|(_, value)| value.clone());
            changes.push((self.keys.lease(&subnets), value));
        }
        if let Some((subnets, value)) = lease {
            changes.push((self.keys.lease(&subnets), Some(value)));
        }
        changes
    }
}

#[cfg(test)]
mod tests;
