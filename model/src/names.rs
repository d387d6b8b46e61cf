//! Names as types, so that a node's name is never passed where a pool's belongs.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a name as it is written in the datastore.
            #[must_use]
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// The name of a node, as in `metadata.name` of its Node resource.
    NodeName
);
name!(
    /// The name of an IP pool.
    PoolName
);
name!(
    /// The identifier of an IPAM handle; sits in an etcd key, so it holds no `/`.
    HandleId
);
name!(
    /// The name of a network interface, at most 15 octets.
    IfName
);

/// What the name of a node's own configurations begins with.
const CONFIGURATION: &str = "node.";

impl NodeName {
    /// The name of the BGPConfiguration and the FelixConfiguration of this node alone.
    #[must_use]
    pub fn configuration(&self) -> String {
        format!("{CONFIGURATION}{self}")
    }

    /// The node whose own configuration has that name.
    #[must_use]
    pub(crate) fn of_configuration(name: &str) -> Option<Self> {
        let node = name.strip_prefix(CONFIGURATION)?;
        (!node.is_empty()).then(|| Self::from(node))
    }
}

impl HandleId {
    /// Calico's `sanitizeHandle`: everything from the first carriage return on is cut.
    #[must_use]
    pub fn sanitised(text: &str) -> Self {
        Self::from(text.split('\r').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::NodeName;

    #[test]
    fn a_nodes_own_configuration_is_named_after_it() {
        for node in ["a", "node.a", "worker-1.example"] {
            let node = NodeName::from(node);
            let own = node.configuration();
            assert_eq!(own, format!("node.{}", node.as_str()));
            assert_eq!(NodeName::of_configuration(&own), Some(node));
        }
        for other in ["default", "node", "node.", "nodes.a", "Node.a", ""] {
            assert_eq!(NodeName::of_configuration(other), None, "{other:?}");
        }
    }
}
