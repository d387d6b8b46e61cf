//! Fields that a document of a file takes over from the existing resource: identity, and status
//! written by a node. People write what they want; the rest is not theirs to lose.

use caracal_model::{Key, Kind, Problem, ProblemCode, Schema, Snapshot};
use serde::Serialize;
use serde_json::Value;

use super::Resources;

/// The kinds that a change of the topology writes.
pub const WRITTEN_KINDS: [Kind; 4] = [
    Kind::Node,
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
];

impl Resources {
    /// Documents that a change of the topology would not write, each with line and name.
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

    /// Takes over from the snapshot what the documents leave out: uid and creation time, and a
    /// Node's addresses. A Node with other addresses than its own is a problem: the node sets them,
    /// and its sessions are between them.
    #[must_use]
    pub fn replace(&mut self, snapshot: &Snapshot) -> Vec<Problem> {
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
            if *kind == Kind::Node {
                let others = Schema::other_addresses(&stored, &document).into_iter();
                problems.extend(others.map(|reason| Problem {
                    code: ProblemCode::ResourcesInvalid,
                    subject: entry.key.to_path(),
                    reason: format!("line {}: {reason}", entry.line),
                }));
            }
            Schema(*kind).carry_over(&stored, &mut document);
            entry.value = document.to_string().into_bytes();
        }
        problems
    }
}

fn stored(kind: Kind, name: &str, snapshot: &Snapshot) -> Option<Value> {
    fn json<T: Serialize>(resource: Option<&caracal_model::Versioned<T>>) -> Option<Value> {
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
        assert_eq!(resources.replace(&snapshot), []);
        assert_eq!(resources.apply(&mut snapshot), []);
        let is = serde_json::to_value(&*snapshot.nodes["a"]).unwrap();
        let was: Value = serde_json::from_str(STORED).unwrap();
        for pointer in [
            "/metadata/uid",
            "/metadata/creationTimestamp",
            "/spec/addresses",
            "/spec/bgp/ipv4Address",
            "/spec/bgp/ipv6Address",
            "/spec/bgp/ipv4IPIPTunnelAddr",
            "/spec/ipv4VXLANTunnelAddr",
            "/spec/wireguard",
            "/spec/orchRefs",
            "/status",
        ] {
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
            let problems = resources.replace(&snapshot());
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
