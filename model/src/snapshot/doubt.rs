//! What is not known of the cluster: values that cannot be read and of which no good ones are
//! known. A key says what depends on its value, so that one value holds back its own range and
//! nothing else (decision 0174).

use std::fmt;

use super::Snapshot;
use crate::keys::Key;
use crate::names::{NodeName, PoolName};
use crate::net::Prefix;
use crate::resource::Kind;

/// What a value that cannot be read is about, as its key says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// A block or an affinity: the range.
    Range(Prefix),
    /// A Node.
    Node(NodeName),
    /// An IPPool; its range is not known.
    Pool(PoolName),
    /// A WorkloadEndpoint.
    Endpoint {
        /// Path of its key.
        key: String,
        /// The node that its name begins with, where there is one of that name.
        node: Option<NodeName>,
    },
}

impl fmt::Display for Doubt {
    /// What is not deleted meanwhile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => write!(f, "no route inside {range} is deleted"),
            Self::Node(_) => f.write_str(
                "no route to a block of a node that exists, and none outside the pools, is deleted",
            ),
            Self::Pool(_) => f.write_str("no tunnel, and no route outside other pools, is deleted"),
            Self::Endpoint { .. } => {
                f.write_str("no route to an interface that no endpoint names is deleted")
            }
        }
    }
}

/// The node in the name of an endpoint: `NODE-ORCHESTRATOR-…`, each `-` of its own doubled.
fn node_of(endpoint: &str) -> Option<String> {
    let marked = endpoint.replace("--", "\u{0}");
    let (node, _) = marked.split_once('-')?;
    Some(node.replace('\u{0}', "-"))
}

impl Snapshot {
    /// What is in doubt, with the path of each value that cannot be read. Values that no route,
    /// tunnel or address depends on are not among them, nor those of which an earlier, good one is
    /// still in use.
    pub fn doubts(&self) -> impl Iterator<Item = (&str, Doubt)> {
        let unknown = self.invalid.iter().filter(|(_, v)| !v.kept_last_good);
        unknown.filter_map(|(path, _)| Some((path.as_str(), self.doubt(path)?)))
    }

    /// What a value at a path is about, if something is in doubt without it.
    pub(super) fn doubt(&self, path: &str) -> Option<Doubt> {
        match Key::parse(path).ok()? {
            Key::Block(cidr) | Key::Affinity(_, cidr) => Some(Doubt::Range(cidr)),
            Key::Resource { kind, name, .. } => match kind {
                Kind::Node => Some(Doubt::Node(name.into())),
                Kind::IpPool => Some(Doubt::Pool(name.into())),
                Kind::WorkloadEndpoint => Some(Doubt::Endpoint {
                    key: path.to_owned(),
                    node: node_of(&name)
                        .map(NodeName::from)
                        .filter(|node| self.nodes.contains_key(node)),
                }),
                _ => None,
            },
            _ => None,
        }
    }

    /// True when this node's own Node cannot be read: then everything is in doubt.
    #[must_use]
    pub fn doubts_node(&self, node: &NodeName) -> bool {
        let own = self.invalid.get(&Key::node(node).to_path());
        own.is_some_and(|value| !value.kept_last_good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_an_endpoint_is_the_first_word_of_its_name() {
        assert_eq!(
            node_of("node--a-k8s-web--0-eth0").as_deref(),
            Some("node-a")
        );
        assert_eq!(node_of("n1-cni-x-eth0").as_deref(), Some("n1"));
        assert_eq!(node_of("n1"), None);
    }

    #[test]
    fn a_key_says_what_is_in_doubt() {
        let mut snapshot = Snapshot::default();
        let resources = "/calico/resources/v3/projectcalico.org";
        let node = r#"{"metadata":{"name":"n-1"},"spec":{}}"#;
        snapshot.apply(&format!("{resources}/nodes/n-1"), Some(node.as_bytes()), 1);
        let bad = [
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26".to_owned(),
            "/calico/ipam/v2/host/n2/ipv6/block/fd00::40-122".to_owned(),
            format!("{resources}/nodes/n2"),
            format!("{resources}/ippools/p"),
            format!("{resources}/workloadendpoints/d/n--1-k8s-a-eth0"),
            format!("{resources}/workloadendpoints/d/n9-k8s-a-eth0"),
            // Nothing is swept by these.
            format!("{resources}/bgppeers/p"),
            "/calico/ipam/v2/assignment/ipv4/block/nonsense".to_owned(),
        ];
        for path in &bad {
            snapshot.apply(path, Some(b"{nonsense"), 2);
        }
        let mut found: Vec<Doubt> = snapshot.doubts().map(|(_, doubt)| doubt).collect();
        found.sort_unstable();
        let endpoint = |path: &String, node: Option<&str>| Doubt::Endpoint {
            key: path.clone(),
            node: node.map(Into::into),
        };
        let mut wanted = vec![
            Doubt::Range("10.0.0.64/26".parse().unwrap_or_else(|e| panic!("{e}"))),
            Doubt::Range("fd00::40/122".parse().unwrap_or_else(|e| panic!("{e}"))),
            Doubt::Node("n2".into()),
            Doubt::Pool("p".into()),
            endpoint(&bad[4], Some("n-1")),
            endpoint(&bad[5], None),
        ];
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert!(snapshot.doubts_node(&"n2".into()));
        assert!(!snapshot.doubts_node(&"n-1".into()));
        let problems = snapshot.problems();
        let of = |path: &str| {
            let problem = problems.iter().find(|problem| problem.subject == path);
            problem
                .map(|problem| problem.reason.clone())
                .unwrap_or_default()
        };
        assert!(of(&bad[0]).ends_with("no route inside 10.0.0.64/26 is deleted"));
        assert!(of(&bad[6]).ends_with("ignored until it is corrected"));
        // A good value that turns bad stays in use.
        let last = format!("{resources}/nodes/n-1");
        snapshot.apply(&last, Some(b"{nonsense"), 3);
        assert!(!snapshot.doubts_node(&"n-1".into()));
    }
}
