//! etcd path ⇄ typed key: one table, both directions (MODEL-3).

mod spoken;

use std::fmt;

use crate::ipam::BlockOwner;
use crate::names::{HandleId, NodeName};
use crate::net::{Family, Prefix};
use crate::resource::Kind;

/// Prefix of everything of Calico's.
pub const CALICO_ROOT: &str = "/calico/";
pub(crate) const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";
const IPAM: &str = "/calico/ipam/v2/";
/// Below Calico's root, so that one watch tells of everything; Calico reads nothing there.
const DOCUMENTS: &str = "/calico/caracal/v1/";
/// The one key there that is no document.
const SERVICES_CHECK: &str = "services-check";

/// A key of Calico's layout, or of Caracal's documents, in its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A v3 resource.
    Resource {
        /// `kind` of the resource.
        kind: Kind,
        /// Namespace, for namespaced kinds.
        namespace: Option<String>,
        /// `metadata.name`.
        name: String,
    },
    /// An IPAM block.
    Block(Prefix),
    /// The claim of an owner on a block.
    Affinity(BlockOwner, Prefix),
    /// An IPAM handle.
    Handle(HandleId),
    /// The global IPAM configuration.
    IpamConfig,
    /// IPAM's marker of a host.
    IpamHost(NodeName),
    /// A document of Kubernetes' API that was placed for the nodes to read.
    Document {
        /// `kind` of the document.
        kind: DocumentKind,
        /// Namespace of the Kubernetes object.
        namespace: String,
        /// Name of the Kubernetes object.
        name: String,
    },
    /// The question whether every node has the documents in force, while somebody waits for that.
    ServicesCheck,
}

/// Kinds of documents of Kubernetes' API that the nodes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variants are Kubernetes' names")]
pub enum DocumentKind {
    Service,
    Endpoints,
    EndpointSlice,
}

impl DocumentKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Service, Self::Endpoints, Self::EndpointSlice];

    /// `apiVersion` and `kind` of the document.
    #[must_use]
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Service => ("v1", "Service"),
            Self::Endpoints => ("v1", "Endpoints"),
            Self::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSlice"),
        }
    }

    /// The plural in keys.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Endpoints => "endpoints",
            Self::EndpointSlice => "endpointslices",
        }
    }
}

/// Why a path is no typed key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A kind or area that Caracal does not read.
    #[error("not a key that Caracal reads")]
    Foreign,
    /// The right area, but malformed.
    #[error("malformed key: {0}")]
    Malformed(String),
}

impl Key {
    /// A cluster-scoped resource.
    #[must_use]
    pub fn resource(kind: Kind, name: impl Into<String>) -> Self {
        Self::Resource {
            kind,
            namespace: None,
            name: name.into(),
        }
    }

    /// The key of a node's resource.
    #[must_use]
    pub fn node(name: &NodeName) -> Self {
        Self::resource(Kind::Node, name.as_str())
    }

    /// The key of a workload endpoint.
    #[must_use]
    pub fn workload(namespace: &str, name: &str) -> Self {
        Self::Resource {
            kind: Kind::WorkloadEndpoint,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    /// The path in etcd, with the leading slash.
    #[must_use]
    pub fn to_path(&self) -> String {
        match self {
            Self::Resource {
                kind,
                namespace: Some(namespace),
                name,
            } => {
                format!("{RESOURCES}{}/{namespace}/{name}", kind.plural())
            }
            Self::Resource {
                kind,
                namespace: None,
                name,
            } => {
                format!("{RESOURCES}{}/{name}", kind.plural())
            }
            Self::Block(cidr) => {
                format!(
                    "{IPAM}assignment/{}/block/{}",
                    cidr.family().as_str(),
                    cidr.to_key()
                )
            }
            Self::Affinity(owner, cidr) => {
                format!("{}{}", affinity_prefix(owner, cidr.family()), cidr.to_key())
            }
            Self::Handle(id) => format!("{IPAM}handle/{id}"),
            Self::IpamConfig => format!("{IPAM}config"),
            Self::IpamHost(node) => format!("{IPAM}host/{node}"),
            Self::Document {
                kind,
                namespace,
                name,
            } => format!("{DOCUMENTS}{}/{namespace}/{name}", kind.plural()),
            Self::ServicesCheck => format!("{DOCUMENTS}{SERVICES_CHECK}"),
        }
    }

    /// Reads an etcd path.
    ///
    /// # Errors
    /// [`KeyError::Foreign`] for what Caracal does not read, [`KeyError::Malformed`] with the
    /// reason.
    pub fn parse(path: &str) -> Result<Self, KeyError> {
        if let Some(rest) = path.strip_prefix(RESOURCES) {
            return parse_resource(rest);
        }
        if let Some(rest) = path.strip_prefix(DOCUMENTS) {
            return parse_document(rest);
        }
        let rest = path.strip_prefix(IPAM).ok_or(KeyError::Foreign)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let cidr = |family: &str, text: &str| {
            let cidr = Prefix::from_key(text).map_err(|e| KeyError::Malformed(e.to_string()))?;
            if cidr.family().as_str() == family {
                Ok(cidr)
            } else {
                Err(KeyError::Malformed(format!("{cidr} under {family}")))
            }
        };
        match parts[..] {
            ["config"] => Ok(Self::IpamConfig),
            ["assignment", family, "block", text] => Ok(Self::Block(cidr(family, text)?)),
            ["host", node, family, "block", text] => Ok(Self::Affinity(
                BlockOwner::Host(node.into()),
                cidr(family, text)?,
            )),
            ["virtual", name, family, "block", text] => Ok(Self::Affinity(
                BlockOwner::Virtual(name.to_owned()),
                cidr(family, text)?,
            )),
            ["handle", id] if !id.is_empty() => Ok(Self::Handle(id.into())),
            ["host", node] if !node.is_empty() => Ok(Self::IpamHost(node.into())),
            ["handle", ..] => Err(KeyError::Malformed(
                "a handle is one non-empty path segment".into(),
            )),
            _ => Err(KeyError::Foreign),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_path())
    }
}

fn parse_resource(rest: &str) -> Result<Key, KeyError> {
    let mut parts = rest.split('/');
    let plural = parts.next().unwrap_or_default();
    let kind = Kind::ALL
        .into_iter()
        .find(|k| k.plural() == plural)
        .ok_or(KeyError::Foreign)?;
    let parts: Vec<&str> = parts.collect();
    match (kind.is_namespaced(), &parts[..]) {
        (false, [name]) if !name.is_empty() => Ok(Key::resource(kind, *name)),
        (true, [namespace, name]) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Key::Resource {
                kind,
                namespace: Some((*namespace).to_owned()),
                name: (*name).to_owned(),
            })
        }
        (false, _) => Err(KeyError::Malformed(format!("expected {plural}/NAME"))),
        (true, _) => Err(KeyError::Malformed(format!(
            "expected {plural}/NAMESPACE/NAME"
        ))),
    }
}

fn parse_document(rest: &str) -> Result<Key, KeyError> {
    if rest == SERVICES_CHECK {
        return Ok(Key::ServicesCheck);
    }
    let parts: Vec<&str> = rest.split('/').collect();
    let plural = parts.first().copied().unwrap_or_default();
    let kind = DocumentKind::ALL
        .into_iter()
        .find(|kind| kind.plural() == plural)
        .ok_or(KeyError::Foreign)?;
    match parts[1..] {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => Ok(Key::Document {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err(KeyError::Malformed(format!(
            "expected {plural}/NAMESPACE/NAME"
        ))),
    }
}

/// Prefix of all documents of Kubernetes' API.
#[must_use]
pub fn documents_prefix() -> String {
    DOCUMENTS.to_owned()
}

/// Prefix of all resources of a kind.
#[must_use]
pub fn kind_prefix(kind: Kind) -> String {
    format!("{RESOURCES}{}/", kind.plural())
}

/// Prefix of all resources.
#[must_use]
pub fn resources_prefix() -> String {
    RESOURCES.to_owned()
}

/// Prefix of all IPAM data.
#[must_use]
pub fn ipam_prefix() -> String {
    IPAM.to_owned()
}

/// Prefix of all blocks of a family.
#[must_use]
pub fn blocks_prefix(family: Family) -> String {
    format!("{IPAM}assignment/{}/block/", family.as_str())
}

/// Prefix of all affinities of an owner and family.
#[must_use]
pub fn affinity_prefix(owner: &BlockOwner, family: Family) -> String {
    let (area, name) = match owner {
        BlockOwner::Host(node) => ("host", node.as_str()),
        BlockOwner::Virtual(name) => ("virtual", name.as_str()),
    };
    format!("{IPAM}{area}/{name}/{}/block/", family.as_str())
}

/// Prefix of all handles.
#[must_use]
pub fn handles_prefix() -> String {
    format!("{IPAM}handle/")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn model_3_calicos_paths_round_trip() {
        for path in [
            "/calico/resources/v3/projectcalico.org/nodes/node-a",
            "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool",
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0",
            "/calico/ipam/v2/assignment/ipv4/block/10.244.3.64-26",
            "/calico/ipam/v2/assignment/ipv6/block/fd00:10:244::40-122",
            "/calico/ipam/v2/host/node-a/ipv4/block/10.244.3.64-26",
            "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.244.3.64-26",
            "/calico/ipam/v2/handle/k8s-pod-network.8f2c41",
            "/calico/ipam/v2/config",
            "/calico/ipam/v2/host/node-a",
            "/calico/caracal/v1/services/default/web",
            "/calico/caracal/v1/endpointslices/default/web-x2b9k",
        ] {
            assert_eq!(Key::parse(path).unwrap().to_path(), path);
        }
    }

    #[test]
    fn foreign_and_malformed_keys_are_told_apart() {
        for path in [
            "/calico/v1/Ready",
            "/registry/pods/a",
            "/calico/resources/v3/projectcalico.org/networkpolicies/a/b",
        ] {
            assert_eq!(Key::parse(path), Err(KeyError::Foreign), "{path}");
        }
        for path in [
            "/calico/ipam/v2/assignment/ipv4/block/10.244.3.64",
            "/calico/ipam/v2/assignment/ipv6/block/10.244.3.64-26",
            "/calico/ipam/v2/handle/a/b",
            "/calico/resources/v3/projectcalico.org/nodes/a/b",
            "/calico/resources/v3/projectcalico.org/workloadendpoints/a",
            "/calico/caracal/v1/services/a",
        ] {
            assert!(
                matches!(Key::parse(path), Err(KeyError::Malformed(_))),
                "{path}"
            );
        }
    }
}
