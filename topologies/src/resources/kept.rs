//! What a document of a file takes over from the resource that exists already: identity, and what a node writes about
//! itself. People write what they want; the rest is not theirs to lose.

use caracal_model::code::ProblemCode;
use caracal_model::keys::Key;
use caracal_model::net::Cidr;
use caracal_model::resource::Kind;
use caracal_model::snapshot::{Problem, Snapshot};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Resources;

/// The kinds that a change of the topology writes.
pub const WRITTEN_KINDS: [Kind; 4] = [
    Kind::Node,
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
];

/// Fields that the datastore's clients set once.
const IDENTITY: [&str; 2] = ["/metadata/uid", "/metadata/creationTimestamp"];

/// Fields of a Node that the node sets itself: kept where a document leaves them out.
const NODES_OWN: [&str; 11] = [
    "/spec/addresses",
    "/spec/bgp/ipv4Address",
    "/spec/bgp/ipv6Address",
    "/spec/bgp/ipv4IPIPTunnelAddr",
    "/spec/ipv4VXLANTunnelAddr",
    "/spec/ipv6VXLANTunnelAddr",
    "/spec/vxlanTunnelMACAddr",
    "/spec/vxlanTunnelMACAddrV6",
    "/spec/wireguard",
    "/spec/orchRefs",
    "/status",
];

impl Resources {
    /// What a change of the topology would not write, each with line and name.
    #[must_use]
    pub fn not_written(&self) -> Vec<String> {
        let other = |entry: &&super::Entry| match &entry.key {
            Key::Resource { kind, .. } => !WRITTEN_KINDS.contains(kind),
            _ => true,
        };
        let named = |entry: &super::Entry| match &entry.key {
            Key::Resource { kind, name, .. } => format!("line {}: {kind} {name}", entry.line),
            Key::Document { kind, name, .. } => {
                format!("line {}: {} {name}", entry.line, kind.names().1)
            }
            key => format!("line {}: {}", entry.line, key.to_path()),
        };
        self.entries.iter().filter(other).map(named).collect()
    }

    /// Takes over from the snapshot what the documents leave out: uid and creation time, and a Node's addresses. A Node
    /// with other addresses than its own is a problem: the node sets them, and its sessions are between them.
    #[must_use]
    pub fn keep(&mut self, snapshot: &Snapshot) -> Vec<Problem> {
        let mut problems = Vec::new();
        for entry in &mut self.entries {
            let Key::Resource { kind, name, .. } = &entry.key else {
                continue;
            };
            let Some(stored) = stored(*kind, name, snapshot) else {
                continue;
            };
            let mut document: Value =
                serde_json::from_slice(&entry.value).expect("invariant: written by this module");
            for pointer in IDENTITY {
                if let Some(value) = stored.pointer(pointer).filter(|v| !v.is_null()) {
                    put(&mut document, pointer, value.clone());
                }
            }
            for pointer in NODES_OWN.iter().filter(|_| *kind == Kind::Node) {
                let Some(own) = stored.pointer(pointer) else {
                    continue;
                };
                match document.pointer(pointer).filter(|v| !is_empty(v)) {
                    None => put(&mut document, pointer, own.clone()),
                    Some(said) if same(said, own) || !own.is_string() => {}
                    Some(said) => problems.push(Problem {
                        code: ProblemCode::ResourcesInvalid,
                        subject: entry.key.to_path(),
                        reason: format!(
                            "line {}: {} {said} is not the node's own {own}, which the node sets itself; leave it out",
                            entry.line,
                            pointer[1..].replace('/', ".")
                        ),
                    }),
                }
            }
            entry.value = document.to_string().into_bytes();
        }
        problems
    }
}

fn stored(kind: Kind, name: &str, snapshot: &Snapshot) -> Option<Value> {
    fn json<T: Serialize>(
        resource: Option<&caracal_model::snapshot::Versioned<T>>,
    ) -> Option<Value> {
        resource.and_then(|r| serde_json::to_value(&**r).ok())
    }
    match kind {
        Kind::Node => json(snapshot.nodes.get(name)),
        Kind::BgpConfiguration => json(snapshot.bgp_configurations.get(name)),
        Kind::BgpPeer => json(snapshot.bgp_peers.get(name)),
        Kind::BgpFilter => json(snapshot.bgp_filters.get(name)),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Equal, also where an address is spelled in another way.
fn same(said: &Value, own: &Value) -> bool {
    let address = |value: &Value| value.as_str().and_then(|text| text.parse::<Cidr>().ok());
    said == own || address(said).is_some_and(|said| address(own) == Some(said))
}

/// Sets a field; what is no object on the way is left alone, and refused with the value later.
fn put(document: &mut Value, pointer: &str, value: Value) {
    let mut at = document;
    let mut parts = pointer.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(fields) = at else { return };
        if parts.peek().is_none() {
            fields.insert(part.to_owned(), value);
            return;
        }
        at = fields.entry(part.to_owned()).or_insert(Value::Null);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::resources_from_yaml;
    use super::*;

    const STORED: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"a","uid":"5a0c",
        "creationTimestamp":"2026-01-05T10:11:12Z","labels":{"rack":"r1"}},
        "spec":{"addresses":[{"address":"10.0.0.1/24","type":"CalicoNodeIP"}],"ipv4VXLANTunnelAddr":"10.244.0.1",
        "bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64","ipv4IPIPTunnelAddr":"10.244.0.0"},
        "wireguard":{"interfaceIPv4Address":"10.244.0.2"},"orchRefs":[{"nodeName":"a","orchestrator":"k8s"}]},
        "status":{"podCIDRs":["10.9.0.0/24"]}}"#;

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        let path = Key::resource(Kind::Node, "a").to_path();
        snapshot.apply(&path, Some(STORED.as_bytes()), 7);
        snapshot
    }

    #[test]
    fn a_node_document_keeps_uid_creation_time_and_addresses() {
        let mut snapshot = snapshot();
        let text = "kind: Node\nmetadata: {name: a, uid: other, labels: {rr: 'yes'}}\nspec: {bgp: {routeReflectorClusterID: 244.0.0.1}}";
        let mut resources = resources_from_yaml(text).unwrap();
        assert_eq!(resources.keep(&snapshot), []);
        assert_eq!(resources.apply(&mut snapshot), []);
        let is = serde_json::to_value(&*snapshot.nodes["a"]).unwrap();
        let was: Value = serde_json::from_str(STORED).unwrap();
        for pointer in IDENTITY.iter().chain(&NODES_OWN) {
            assert_eq!(is.pointer(pointer), was.pointer(pointer), "{pointer}");
        }
        assert_eq!(is["metadata"]["labels"], serde_json::json!({"rr": "yes"}));
        assert_eq!(is["spec"]["bgp"]["routeReflectorClusterID"], "244.0.0.1");
    }

    #[test]
    fn another_address_than_the_nodes_own_is_named() {
        let refused = |spec: &str| {
            let text = format!("kind: Node\nmetadata: {{name: a}}\nspec: {spec}");
            let mut resources = resources_from_yaml(&text).unwrap();
            let problems = resources.keep(&snapshot());
            problems.into_iter().map(|p| p.reason).collect::<Vec<_>>()
        };
        assert_eq!(refused("{bgp: {ipv6Address: 'FD00:0::1/64'}}"), [""; 0]);
        let said = refused("{bgp: {ipv4Address: 10.0.0.9/24}}");
        assert_eq!(
            said,
            [
                "line 1: spec.bgp.ipv4Address \"10.0.0.9/24\" is not the node's own \"10.0.0.1/24\", which the node sets itself; leave it out"
            ]
        );
    }

    #[test]
    fn kinds_that_are_not_written_are_listed() {
        let text = "{kind: BGPPeer, metadata: {name: x}, spec: {peerIP: 10.0.0.9, asNumber: 1}}\n---\n{kind: IPPool, metadata: {name: p}, spec: {cidr: 10.244.0.0/16}}\n---\n{apiVersion: v1, kind: Service, metadata: {name: s}}";
        let resources = resources_from_yaml(text).unwrap();
        assert_eq!(
            resources.not_written(),
            ["line 3: IPPool p", "line 5: Service s"]
        );
    }
}
