//! `subnet.env`: what a container runtime has to know of the node's subnets.

use std::fmt::Write as _;

use caracal_model::Prefix;

use crate::config::FlannelConfig;
use crate::lease::NodeSubnets;
use crate::subnet_env::SubnetEnv;

/// The content of `subnet.env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetFile {
    /// The cluster's network of IPv4.
    pub network: Option<Prefix>,
    /// That of IPv6.
    pub ipv6_network: Option<Prefix>,
    /// The subnets of this node.
    pub subnets: NodeSubnets,
    /// MTU of containers' interfaces in octets.
    pub mtu: u32,
    /// Whether the daemon masquerades; the runtime must not do it as well then.
    pub masquerades: bool,
}

impl SubnetFile {
    /// The file of a node with these subnets.
    #[must_use]
    pub fn new(config: &FlannelConfig, subnets: NodeSubnets, mtu: u32, masquerades: bool) -> Self {
        Self {
            network: config.v4.as_ref().map(|range| range.network),
            ipv6_network: config.v6.as_ref().map(|range| range.network),
            subnets,
            mtu,
            masquerades,
        }
    }

    /// The file's text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, network: Prefix, subnet: Prefix| {
            // The address of the bridge: the first one of the subnet.
            let bridge = subnet.nth(1).unwrap_or_else(|| subnet.address());
            let _ = writeln!(text, "FLANNEL_{name}NETWORK={network}");
            let _ = writeln!(text, "FLANNEL_{name}SUBNET={bridge}/{}", subnet.len());
        };
        for (name, network, subnet) in [
            ("", self.network, self.subnets.v4),
            ("IPV6_", self.ipv6_network, self.subnets.v6),
        ] {
            if let Some((network, subnet)) = network.zip(subnet) {
                family(name, network, subnet);
            }
        }
        let _ = writeln!(text, "FLANNEL_MTU={}", self.mtu);
        let _ = writeln!(text, "FLANNEL_IPMASQ={}", self.masquerades);
        text
    }

    /// The subnets that such a file names; `None` when it names none.
    #[must_use]
    pub fn read_subnets(text: &str) -> Option<NodeSubnets> {
        let read = SubnetEnv::parse(text).ok()?;
        Some(NodeSubnets {
            v4: read.v4.map(|bridge| bridge.prefix()),
            v6: read.v6.map(|bridge| bridge.prefix()),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_is_flannels() {
        let mut file = SubnetFile {
            network: Some("10.5.0.0/16".parse().unwrap()),
            ipv6_network: None,
            subnets: NodeSubnets::parse_key("10.5.72.0-24").unwrap(),
            mtu: 1450,
            masquerades: true,
        };
        assert_eq!(
            file.render(),
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
        assert_eq!(SubnetFile::read_subnets(&file.render()), Some(file.subnets));
        file.ipv6_network = Some("2001:cafe:42::/56".parse().unwrap());
        file.subnets.v6 = Some("2001:cafe:42::/64".parse().unwrap());
        assert!(file.render().contains(
            "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42::1/64\nFLANNEL_MTU"
        ));
        assert_eq!(SubnetFile::read_subnets(&file.render()), Some(file.subnets));
        (file.network, file.subnets.v4) = (None, None);
        assert_eq!(
            file.render(),
            "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
        assert_eq!(SubnetFile::read_subnets(&file.render()), Some(file.subnets));
        for text in [
            "",
            "FLANNEL_SUBNET=",
            "FLANNEL_SUBNET=x\n",
            "FLANNEL_MTU=1\n",
        ] {
            assert_eq!(SubnetFile::read_subnets(text), None, "{text}");
        }
    }
}
