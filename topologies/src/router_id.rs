//! The BGP Identifier of a node (RFC 4271 §4.2, RFC 6286), chosen as Calico's `CALICO_ROUTER_ID`
//! says.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use caracal_bgp::RouterId;
use caracal_model::{Family, Key, NodeName, ProblemCode};
use sha2::{Digest, Sha256};

use crate::Problems;
use crate::view::NodeView;

/// Where the identifier comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouterIdChoice {
    /// The node's IPv4 address.
    #[default]
    NodeAddress,
    /// Derived from the node's name, for nodes without IPv4.
    Hash,
    /// As given.
    Literal(Ipv4Addr),
}

/// The text is none of the three forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router id {0:?} is not empty, not \"hash\" and no IPv4 address other than 0.0.0.0")]
pub struct RouterIdError(pub String);

impl FromStr for RouterIdChoice {
    type Err = RouterIdError;

    /// Reads the value of `CALICO_ROUTER_ID`.
    fn from_str(text: &str) -> Result<Self, RouterIdError> {
        match text {
            "" => Ok(Self::NodeAddress),
            "hash" => Ok(Self::Hash),
            _ => match text.parse::<Ipv4Addr>() {
                Ok(address) if !address.is_unspecified() => Ok(Self::Literal(address)),
                _ => Err(RouterIdError(text.to_owned())),
            },
        }
    }
}

/// The identifier that Calico derives from a name: the first four octets of its SHA-256; a first
/// octet above 223 is moved down by 32, so that the result looks like a unicast address.
#[must_use]
pub(crate) fn hash(node: &NodeName) -> RouterId {
    let digest = Sha256::digest(node.as_str());
    let first = if digest[0] > 223 {
        digest[0] - 32
    } else {
        digest[0]
    };
    let address = Ipv4Addr::new(first, digest[1], digest[2], digest[3]);
    if address.is_unspecified() {
        return RouterId(Ipv4Addr::new(0, 0, 0, 1)); // RFC 6286 §2.1: non-zero.
    }
    RouterId(address)
}

pub(crate) fn choose(view: &NodeView<'_>, problems: &mut Problems) -> RouterId {
    match view.options.router_id {
        RouterIdChoice::Literal(address) => RouterId(address),
        RouterIdChoice::Hash => hash(view.name),
        RouterIdChoice::NodeAddress => match view.address(Family::Ipv4) {
            Some(IpAddr::V4(address)) => RouterId(address),
            _ => {
                let id = hash(view.name);
                // A node that is not registered has a problem of its own.
                if view.node.is_some() {
                    problems.note(
                        ProblemCode::BgpRouterId,
                        Key::node(view.name).to_path(),
                        format!("the node has no IPv4 address; its router id is {id}, from its name (CALICO_ROUTER_ID=hash asks for that)"),
                    );
                }
                id
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calicos_vector() {
        assert_eq!(hash(&"kube-master".into()).to_string(), "25.79.212.8");
    }

    #[test]
    fn a_first_octet_above_223_moves_down() {
        // SHA-256("n3") begins with a high octet; found by search so that the branch is taken.
        let moved = (0..1000)
            .map(|i| NodeName::from(format!("n{i}")))
            .find(|name| Sha256::digest(name.as_str())[0] > 223)
            .expect("one name in eight has a high first octet");
        let octet = Sha256::digest(moved.as_str())[0];
        assert_eq!(hash(&moved).0.octets()[0], octet - 32);
    }

    #[test]
    fn the_three_forms() {
        assert_eq!("".parse(), Ok(RouterIdChoice::NodeAddress));
        assert_eq!("hash".parse(), Ok(RouterIdChoice::Hash));
        assert_eq!(
            "10.1.2.3".parse(),
            Ok(RouterIdChoice::Literal(Ipv4Addr::new(10, 1, 2, 3)))
        );
        for bad in ["0.0.0.0", "fd00::1", "Hash", "10.0.0"] {
            assert!(bad.parse::<RouterIdChoice>().is_err(), "{bad}");
        }
    }
}
