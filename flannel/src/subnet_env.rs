//! `subnet.env` as those read it who attach containers, whoever wrote it: Caracal or flanneld.

use caracal_model::{Cidr, Family, Prefix};

/// Names of the variables of a family.
struct Names {
    family: Family,
    network: &'static str,
    subnet: &'static str,
}

const NAMES: [Names; 2] = [
    Names {
        family: Family::Ipv4,
        network: "FLANNEL_NETWORK",
        subnet: "FLANNEL_SUBNET",
    },
    Names {
        family: Family::Ipv6,
        network: "FLANNEL_IPV6_NETWORK",
        subnet: "FLANNEL_IPV6_SUBNET",
    },
];
const MTU: &str = "FLANNEL_MTU";
const IPMASQ: &str = "FLANNEL_IPMASQ";

/// Why the file cannot be used. Texts go on from the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetEnvError {
    /// Variables are absent or empty.
    #[error("is missing {}", .0.join(", "))]
    Missing(Vec<&'static str>),
    /// A variable holds what it must not.
    #[error("has {name}={value:?}; expected {expected}")]
    Value {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is right.
        expected: &'static str,
    },
}

/// The content of `subnet.env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The cluster's networks, those of IPv4 first. flanneld may name several of a family.
    pub networks: Vec<Prefix>,
    /// The address of this node's bridge, with the length of its subnet.
    pub v4: Option<Cidr>,
    /// The same of IPv6.
    pub v6: Option<Cidr>,
    /// MTU of containers' interfaces in octets.
    pub mtu: u32,
    /// The daemon masquerades; nobody else must.
    pub masquerades: bool,
}

impl SubnetEnv {
    /// Reads the file's text: `NAME=VALUE` lines, of which the last one counts. Variables of other
    /// names are other people's.
    ///
    /// # Errors
    /// [`SubnetEnvError`], with all that is missing, or the first value that is wrong.
    pub fn parse(text: &str) -> Result<Self, SubnetEnvError> {
        let value = |name: &str| {
            let lines = text.lines();
            let mut values =
                lines.filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
            let value = values.next_back()?.trim().trim_matches(['"', '\'']);
            (!value.is_empty()).then_some(value)
        };
        let is_set = |names: &&Names| {
            [names.network, names.subnet]
                .iter()
                .any(|name| value(name).is_some())
        };
        let mut families: Vec<&Names> = NAMES.iter().filter(is_set).collect();
        if families.is_empty() {
            families.push(&NAMES[0]);
        }
        let needed = families
            .iter()
            .flat_map(|names| [names.network, names.subnet]);
        let needed = needed.chain([MTU, IPMASQ]);
        let missing: Vec<_> = needed.filter(|name| value(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(SubnetEnvError::Missing(missing));
        }
        let mut read = Self {
            networks: Vec::new(),
            v4: None,
            v6: None,
            mtu: mtu(value(MTU).unwrap_or_default())?,
            masquerades: flag(value(IPMASQ).unwrap_or_default())?,
        };
        for names in families {
            let networks = value(names.network).unwrap_or_default();
            for network in networks.split(',') {
                let network = cidr(names.network, network.trim(), names.family)?;
                read.networks.push(network.prefix());
            }
            let subnet = value(names.subnet).unwrap_or_default();
            let subnet = Some(cidr(names.subnet, subnet, names.family)?);
            match names.family {
                Family::Ipv4 => read.v4 = subnet,
                Family::Ipv6 => read.v6 = subnet,
            }
        }
        Ok(read)
    }

    /// The subnets of this node, that of IPv4 first.
    pub fn subnets(&self) -> impl Iterator<Item = Prefix> {
        let both = [self.v4, self.v6].into_iter().flatten();
        both.map(|bridge| bridge.prefix())
    }
}

fn wrong(name: &'static str, value: &str, expected: &'static str) -> SubnetEnvError {
    SubnetEnvError::Value {
        name,
        value: value.to_owned(),
        expected,
    }
}

fn cidr(name: &'static str, value: &str, family: Family) -> Result<Cidr, SubnetEnvError> {
    let expected = match family {
        Family::Ipv4 => "an IPv4 address and a length, such as 10.5.72.1/24",
        Family::Ipv6 => "an IPv6 address and a length, such as fd00:5:0:72::1/64",
    };
    let cidr: Option<Cidr> = value.parse().ok();
    let cidr = cidr.filter(|cidr| value.contains('/') && Family::of(cidr.address) == family);
    cidr.ok_or_else(|| wrong(name, value, expected))
}

/// RFC 791: every link carries 68 octets.
fn mtu(value: &str) -> Result<u32, SubnetEnvError> {
    let mtu: Option<u32> = value.parse().ok();
    let mtu = mtu.filter(|mtu| (68..=65_535).contains(mtu));
    mtu.ok_or_else(|| wrong(MTU, value, "octets, 68 to 65535"))
}

fn flag(value: &str) -> Result<bool, SubnetEnvError> {
    value
        .parse()
        .map_err(|_| wrong(IPMASQ, value, "true or false"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::FlannelConfig;
    use crate::lease::NodeSubnets;
    use crate::subnet_file::SubnetFile;

    #[test]
    fn what_is_written_is_read() {
        let config = br#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"alloc"}}"#;
        let config = FlannelConfig::parse(config).unwrap();
        let subnets = NodeSubnets::parse_key("10.5.72.0-24&fd00:5:0:48::-64").unwrap();
        let text = SubnetFile::new(&config, subnets, 1450, true).render();
        assert_eq!(
            SubnetEnv::parse(&text),
            Ok(SubnetEnv {
                networks: vec![
                    "10.5.0.0/16".parse().unwrap(),
                    "fd00:5::/48".parse().unwrap()
                ],
                v4: Some("10.5.72.1/24".parse().unwrap()),
                v6: Some("fd00:5:0:48::1/64".parse().unwrap()),
                mtu: 1450,
                masquerades: true,
            })
        );
    }

    #[test]
    fn flannelds_files_are_read() {
        // Several networks; quotes of an administrator; a variable that is not flannel's.
        let text = "FLANNEL_NETWORK=10.5.0.0/16,10.6.0.0/16\nFLANNEL_SUBNET=\"10.5.72.1/24\"\nFLANNEL_MTU=8951\nFLANNEL_IPMASQ=false\nMORE=1\n";
        let read = SubnetEnv::parse(text).unwrap();
        assert_eq!(read.networks.len(), 2);
        assert_eq!((read.mtu, read.masquerades, read.v6), (8951, false, None));
        let subnets: Vec<_> = read.subnets().map(|s| s.to_string()).collect();
        assert_eq!(subnets, ["10.5.72.0/24"]);
        // IPv6 alone.
        let text = "FLANNEL_IPV6_NETWORK=fd00:5::/48\nFLANNEL_IPV6_SUBNET=fd00:5:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(SubnetEnv::parse(text).unwrap().v4, None);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let v4 = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\n";
        let rest = "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        for (text, says) in [
            (
                String::new(),
                "is missing FLANNEL_NETWORK, FLANNEL_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ",
            ),
            (v4.to_owned(), "is missing FLANNEL_MTU, FLANNEL_IPMASQ"),
            (
                format!("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=\n{rest}"),
                "is missing FLANNEL_SUBNET",
            ),
            (
                format!("{v4}FLANNEL_IPV6_SUBNET=fd00::1/64\n{rest}"),
                "is missing FLANNEL_IPV6_NETWORK",
            ),
            (
                format!("{v4}FLANNEL_MTU=67\nFLANNEL_IPMASQ=true\n"),
                r#"has FLANNEL_MTU="67"; expected octets, 68 to 65535"#,
            ),
            (
                format!("{v4}FLANNEL_MTU=1450\nFLANNEL_IPMASQ=yes\n"),
                r#"has FLANNEL_IPMASQ="yes"; expected true or false"#,
            ),
            (
                format!("{v4}FLANNEL_SUBNET=fd00::1/64\n{rest}"),
                r#"has FLANNEL_SUBNET="fd00::1/64"; expected an IPv4 address"#,
            ),
            (
                format!("{v4}FLANNEL_SUBNET=10.5.72.1\n{rest}"),
                "and a length, such as 10.5.72.1/24",
            ),
        ] {
            let told = SubnetEnv::parse(&text).unwrap_err().to_string();
            assert!(told.contains(says), "{text}: {told}");
        }
    }
}
