//! Node: addresses, AS number, tunnel addresses and labels of one machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha1::{Digest, Sha1};

use super::bgp::AsNumber;
use super::{Kind, Resource, ResourceSpec, ValueError, null_default};
use crate::net::{Cidr, Family};

/// A Node.
pub type Node = Resource<NodeSpec>;

/// `spec` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// All addresses, for people and other programs.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub addresses: Vec<NodeAddress>,
    /// BGP facts; absent rather than empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<NodeBgp>,
    /// Address of `vxlan.calico`.
    #[serde(
        default,
        rename = "ipv4VXLANTunnelAddr",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv4_vxlan_tunnel_addr: Option<Ipv4Addr>,
    /// MAC of `vxlan.calico`, when it is not the derived one.
    #[serde(
        default,
        rename = "vxlanTunnelMACAddr",
        skip_serializing_if = "Option::is_none"
    )]
    pub vxlan_tunnel_mac_addr: Option<String>,
    /// Address of `vxlan-v6.calico`.
    #[serde(
        default,
        rename = "ipv6VXLANTunnelAddr",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv6_vxlan_tunnel_addr: Option<Ipv6Addr>,
    /// MAC of `vxlan-v6.calico`, when it is not the derived one.
    #[serde(
        default,
        rename = "vxlanTunnelMACAddrV6",
        skip_serializing_if = "Option::is_none"
    )]
    pub vxlan_tunnel_mac_addr_v6: Option<String>,
    /// References to this node in orchestrators.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub orch_refs: Vec<OrchRef>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One entry of `spec.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// Address, with prefix length for `CalicoNodeIP`.
    pub address: String,
    /// `CalicoNodeIP`, `InternalIP` or `ExternalIP`.
    #[serde(rename = "type", default)]
    pub kind: String,
}

/// One entry of `spec.orchRefs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrchRef {
    /// The orchestrator's name for the node.
    #[serde(default)]
    pub node_name: String,
    /// `k8s`.
    pub orchestrator: String,
}

/// `spec.bgp` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeBgp {
    /// AS number, when it differs from the global one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_number: Option<AsNumber>,
    /// IPv4 address with the subnet's prefix length.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "empty_is_none"
    )]
    pub ipv4_address: Option<Cidr>,
    /// IPv6 address with the subnet's prefix length.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "empty_is_none"
    )]
    pub ipv6_address: Option<Cidr>,
    /// Address of `tunl0`.
    #[serde(
        default,
        rename = "ipv4IPIPTunnelAddr",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv4_ipip_tunnel_addr: Option<Ipv4Addr>,
    /// Makes this node a route reflector of that cluster.
    #[serde(
        default,
        rename = "routeReflectorClusterID",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "empty_is_none"
    )]
    pub route_reflector_cluster_id: Option<Ipv4Addr>,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Go writes an unset address as an empty string in places.
fn empty_is_none<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    match Option::<String>::deserialize(d)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|e| serde::de::Error::custom(format!("{text:?} is not a valid address: {e}"))),
    }
}

const fn wireguard_field(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "interfaceIPv4Address",
        Family::Ipv6 => "interfaceIPv6Address",
    }
}

impl ResourceSpec for NodeSpec {
    const KIND: Kind = Kind::Node;

    fn validate(&self) -> Result<(), ValueError> {
        let wrong = |field: &str, cidr: Cidr| {
            Err(ValueError(format!(
                "spec.bgp.{field}: {cidr} is of the other address family"
            )))
        };
        if let Some(bgp) = &self.bgp {
            match bgp.ipv4_address {
                Some(cidr) if !cidr.address.is_ipv4() => return wrong("ipv4Address", cidr),
                _ => {}
            }
            match bgp.ipv6_address {
                Some(cidr) if !cidr.address.is_ipv6() => return wrong("ipv6Address", cidr),
                _ => {}
            }
        }
        Ok(())
    }
}

impl NodeSpec {
    /// The node's BGP address of a family, with its subnet's length.
    #[must_use]
    pub fn cidr(&self, family: Family) -> Option<Cidr> {
        let bgp = self.bgp.as_ref()?;
        match family {
            Family::Ipv4 => bgp.ipv4_address,
            Family::Ipv6 => bgp.ipv6_address,
        }
    }

    /// The node's BGP address of a family.
    #[must_use]
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.cidr(family).map(|cidr| cidr.address)
    }

    /// All addresses of the machine: of BGP and those beside it. Not those of its tunnels.
    pub fn machine_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let listed = self.addresses.iter();
        let listed = listed.filter_map(|a| a.address.parse::<Cidr>().ok());
        let bgp = [Family::Ipv4, Family::Ipv6].into_iter();
        let bgp = bgp.filter_map(|family| self.address(family));
        bgp.chain(listed.map(|cidr| cidr.address))
    }

    /// The first address of type `InternalIP`, which is Kubernetes' own.
    #[must_use]
    pub fn internal_ip(&self, family: Family) -> Option<IpAddr> {
        let internal = self.addresses.iter().filter(|a| a.kind == "InternalIP");
        let mut addresses = internal.filter_map(|a| a.address.parse().ok());
        addresses.find(|address| Family::of(*address) == family)
    }

    /// The addresses of the node's VXLAN devices and of its `tunl0`.
    pub fn tunnel_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let vxlan = [Family::Ipv4, Family::Ipv6].into_iter();
        let vxlan = vxlan.filter_map(|family| self.vxlan_address(family));
        vxlan.chain(self.ipip_address().map(IpAddr::V4))
    }

    /// The address of the node's VXLAN device of a family.
    #[must_use]
    pub fn vxlan_address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.ipv4_vxlan_tunnel_addr.map(IpAddr::V4),
            Family::Ipv6 => self.ipv6_vxlan_tunnel_addr.map(IpAddr::V6),
        }
    }

    /// The address of the node's WireGuard device of a family.
    #[must_use]
    pub fn wireguard_address(&self, family: Family) -> Option<IpAddr> {
        let text = self.extra.get("wireguard")?.get(wireguard_field(family))?;
        let address: IpAddr = text.as_str()?.parse().ok()?;
        (Family::of(address) == family).then_some(address)
    }

    /// Names the address of the node's WireGuard device, or none; the field is absent rather than
    /// empty.
    pub fn set_wireguard_address(&mut self, family: Family, address: Option<IpAddr>) {
        let mut fields = match self.extra.remove("wireguard") {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        match address {
            Some(address) => {
                let text = Value::String(address.to_string());
                fields.insert(wireguard_field(family).to_owned(), text);
            }
            None => drop(fields.remove(wireguard_field(family))),
        }
        if !fields.is_empty() {
            self.extra
                .insert("wireguard".to_owned(), Value::Object(fields));
        }
    }

    /// The address of the node's `tunl0`.
    #[must_use]
    pub fn ipip_address(&self) -> Option<Ipv4Addr> {
        self.bgp.as_ref()?.ipv4_ipip_tunnel_addr
    }

    /// The cluster id that makes this node a reflector.
    #[must_use]
    pub fn cluster_id(&self) -> Option<Ipv4Addr> {
        self.bgp.as_ref()?.route_reflector_cluster_id
    }
}

/// A MAC address.
pub type Mac = [u8; 6];

/// The MAC of a node's VXLAN device: `spec.vxlanTunnelMACAddr` when it is set and well formed, else
/// 0x66 followed by the first five octets of SHA-1(node name), with `-v6` appended to the name for
/// IPv6. Every node computes the same value for every other node.
#[must_use]
pub fn vxlan_mac(node: &Node, family: Family) -> Mac {
    let (set, suffix) = match family {
        Family::Ipv4 => (&node.spec.vxlan_tunnel_mac_addr, ""),
        Family::Ipv6 => (&node.spec.vxlan_tunnel_mac_addr_v6, "-v6"),
    };
    set.as_deref().and_then(parse_mac).unwrap_or_else(|| {
        let digest = Sha1::digest(format!("{}{suffix}", node.metadata.name));
        [0x66, digest[0], digest[1], digest[2], digest[3], digest[4]]
    })
}

/// Reads `66:07:02:c1:cc:60`.
#[must_use]
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut mac {
        *octet = parts
            .next()
            .filter(|p| p.len() == 2)
            .and_then(|p| u8::from_str_radix(p, 16).ok())?;
    }
    parts.next().is_none().then_some(mac)
}

/// Writes `66:07:02:c1:cc:60`.
#[must_use]
pub fn format_mac(mac: &Mac) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NODE: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3",
      "metadata":{"name":"node-a","uid":"5a0c","creationTimestamp":null,"labels":{"rack":"r1"},"managedFields":[1]},
      "spec":{"addresses":[{"address":"10.10.0.5/24","type":"CalicoNodeIP"}],
       "bgp":{"asNumber":64512,"ipv4Address":"10.10.0.5/24","ipv4IPIPTunnelAddr":"10.244.3.64",
        "routeReflectorClusterID":"244.0.0.1","futureField":{"a":18446744073709551615}},
       "wireguard":{"interfaceIPv4Address":"10.1.1.1"}},"status":{"podCIDRs":["x"]}}"#;

    #[test]
    fn model_1_unknown_fields_survive() {
        let node = Node::from_json(NODE.as_bytes()).unwrap();
        let before: Value = serde_json::from_str(NODE).unwrap();
        let after: Value = serde_json::from_slice(&node.to_json()).unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn vxlan_mac_vectors() {
        let mut node = Node::new("node-a", NodeSpec::default());
        assert_eq!(
            format_mac(&vxlan_mac(&node, Family::Ipv4)),
            "66:07:02:c1:cc:60"
        );
        assert_eq!(
            format_mac(&vxlan_mac(&node, Family::Ipv6)),
            "66:d4:d5:51:3d:42"
        );
        node.spec.vxlan_tunnel_mac_addr = Some("02:00:00:00:00:01".into());
        assert_eq!(vxlan_mac(&node, Family::Ipv4), [2, 0, 0, 0, 0, 1]);
        node.spec.vxlan_tunnel_mac_addr = Some("nonsense".into());
        assert_eq!(
            format_mac(&vxlan_mac(&node, Family::Ipv4)),
            "66:07:02:c1:cc:60"
        );
    }

    #[test]
    fn an_address_of_the_wrong_family_is_named() {
        let text = r#"{"metadata":{"name":"n"},"spec":{"bgp":{"ipv4Address":"fd00::1/64"}}}"#;
        let error = Node::from_json(text.as_bytes()).unwrap_err();
        assert_eq!(
            error.0,
            "spec.bgp.ipv4Address: fd00::1/64 is of the other address family"
        );
        let text = r#"{"metadata":{"name":"n"},"spec":{"bgp":{"ipv4Address":""}}}"#;
        assert_eq!(
            Node::from_json(text.as_bytes())
                .unwrap()
                .spec
                .address(Family::Ipv4),
            None
        );
    }
}
