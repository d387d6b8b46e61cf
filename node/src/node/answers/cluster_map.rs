//! The cluster as a picture: its nodes, as they have published themselves, and the sessions between
//! them, as they are planned. This node's own sessions are as they are now; those of others are as
//! old as their records.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_bgp::Password;
use caracal_model::{NodeName, NodeStatus, PeerStatusJson, Snapshot};
use caracal_topologies::{
    PlanOptions, RACK_LABEL, SessionEnd, TopologyChoice, ZONE_LABEL, choose_topology,
    cluster_sessions, secret_names,
};
use serde_json::{Value, json};

use crate::admin::routes::text;
use crate::cluster_nodes::{ClusterNode, gather};
use crate::cluster_status::{NodeState, PublishedStatus};
use crate::config::{Backend, Config};
use crate::node::plans::label;
use crate::node::plans::topology::elected_role;

use super::Owners;

/// Beyond so many nodes they are drawn in groups, and their sessions are not planned.
const DRAWN: usize = 100;

/// How a session is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Up,
    /// Somebody wants it so.
    Disabled,
    /// Who would know is silent, or has no room for it in its record.
    Unknown,
    Down,
}

impl Seen {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Disabled => "disabled",
            Self::Unknown => "unknown",
            Self::Down => "down",
        }
    }
}

/// All nodes, and with few of them all sessions.
pub(super) async fn cluster_map(
    owners: &Owners,
    config: &Config,
    status: NodeStatus,
) -> Result<Value, String> {
    let me = &config.node;
    let gathered = gather(&owners.store).await;
    let mut nodes = gathered.map_err(|error| format!("{error:#}"))?;
    let snapshot = owners.view.borrow().snapshot.clone();
    if let Some(own) = nodes.iter_mut().find(|node| me.as_str() == node.node) {
        let published = own.status.take().unwrap_or_default();
        let (findings, console) = (published.findings, published.console);
        let record = PublishedStatus::from_status(&status, findings, console);
        own.state = match record.is_healthy() {
            true => NodeState::Healthy,
            false => NodeState::Degraded,
        };
        own.status = Some(record);
    }
    let is_large = nodes.len() > DRAWN;
    let sessions = match is_large {
        true => Vec::new(),
        false => {
            let planning = (snapshot.clone(), me.clone(), nodes.clone());
            let no_bgp = config.backend != Backend::Bird;
            let planned = tokio::task::spawn_blocking(move || {
                let (snapshot, me, nodes) = planning;
                sessions(&snapshot, (&me, no_bgp), &status.peers, &nodes)
            });
            planned.await.map_err(text)?
        }
    };
    let choice = choose_topology(&snapshot);
    let shown = nodes.iter().map(|node| shown(node, &snapshot, &choice));
    Ok(json!({
        "node": me,
        "nodes": shown.collect::<Vec<_>>(),
        "sessions": sessions,
        "sessionsOmitted": is_large,
    }))
}

/// A node with what the snapshot has of it.
fn shown(node: &ClusterNode, snapshot: &Snapshot, choice: &TopologyChoice) -> Value {
    let mut value = serde_json::to_value(node).unwrap_or_default();
    let name = NodeName::from(node.node.as_str());
    let Some(resource) = snapshot.nodes.get(&name) else {
        return value;
    };
    value["group"] = label(snapshot, &name, ZONE_LABEL).into();
    value["rack"] = label(snapshot, &name, RACK_LABEL).into();
    // The operator's own reflectors are outside the election.
    value["role"] = match resource.spec.cluster_id() {
        Some(cluster) => format!("reflector of cluster {cluster}").into(),
        None => elected_role(choice, &name).into(),
    };
    let families = [caracal_model::Family::Ipv4, caracal_model::Family::Ipv6];
    let addresses = families.iter().filter_map(|f| resource.spec.address(*f));
    value["addresses"] = addresses
        .map(|address| Value::from(address.to_string()))
        .collect();
    value
}

/// The sessions of all nodes; two between the same ends, one for each family, are one line.
fn sessions(
    snapshot: &Snapshot,
    (me, no_bgp): (&NodeName, bool),
    own: &[PeerStatusJson],
    nodes: &[ClusterNode],
) -> Vec<Value> {
    // Passwords are on the nodes that need them.
    let mut secrets = BTreeMap::new();
    for name in secret_names(snapshot) {
        secrets.insert(name, Password("assumed".to_owned()));
    }
    let options = PlanOptions {
        secrets,
        no_bgp,
        ..PlanOptions::default()
    };
    let mut lines: BTreeMap<(String, String), Vec<(bool, Seen)>> = BTreeMap::new();
    for (node, ends) in &cluster_sessions(snapshot, &options).nodes {
        for (address, end) in ends {
            let is_own = node == me;
            let seen = match is_own {
                true => seen_here(own, *address),
                false => seen_there(nodes, node, end),
            };
            let (a, b) = (node.to_string(), place(end, *address));
            let is_outside = end.node.is_none();
            let key = if is_outside || a < b { (a, b) } else { (b, a) };
            lines.entry(key).or_default().push((is_own, seen));
        }
    }
    let line = |((from, to), seen): ((String, String), Vec<(bool, Seen)>)| json!({ "from": from, "to": to, "state": together(&seen).as_str() });
    lines.into_iter().map(line).collect()
}

/// What a session's far end is called: a node, or the address of somebody outside.
fn place(end: &SessionEnd, address: IpAddr) -> String {
    let node = end.node.as_ref();
    node.map_or_else(|| address.to_string(), ToString::to_string)
}

/// What this node sees counts before what others have published. An end that is not known says
/// nothing where the other one does.
fn together(seen: &[(bool, Seen)]) -> Seen {
    let own = seen.iter().filter(|(is_own, _)| *is_own);
    let own = own.map(|(_, seen)| *seen).max();
    let known = seen.iter().map(|(_, seen)| *seen);
    let known = known.filter(|seen| *seen != Seen::Unknown).max();
    own.filter(|seen| *seen != Seen::Unknown)
        .or(known)
        .unwrap_or(Seen::Unknown)
}

fn seen_here(own: &[PeerStatusJson], address: IpAddr) -> Seen {
    match own.iter().find(|peer| peer.address == Some(address)) {
        Some(peer) if peer.state == "Established" => Seen::Up,
        Some(peer) if peer.disabled => Seen::Disabled,
        Some(_) => Seen::Down,
        None => Seen::Unknown,
    }
}

fn seen_there(nodes: &[ClusterNode], node: &NodeName, end: &SessionEnd) -> Seen {
    let found = nodes.iter().find(|other| node.as_str() == other.node);
    let speaks = |state| matches!(state, NodeState::Healthy | NodeState::Degraded);
    let record = found.filter(|other| speaks(other.state));
    let Some(record) = record.and_then(|other| other.status.as_ref()) else {
        return Seen::Unknown;
    };
    if record.down.iter().any(|down| down.peer == end.name) {
        return Seen::Down;
    }
    let (up, all) = record.established();
    // It may not have the session at all, or no room for it in its record.
    match all > 0 && (up == all || record.omitted == 0) {
        true => Seen::Up,
        false => Seen::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use caracal_model::Family;

    use super::*;

    fn node(name: &str, state: NodeState, down: &[&str], up: usize) -> ClusterNode {
        let down = down.iter().map(|peer| crate::cluster_status::DownSession {
            peer: (*peer).to_owned(),
            ..crate::cluster_status::DownSession::default()
        });
        ClusterNode {
            node: name.to_owned(),
            state,
            last_seen_seconds: None,
            status: Some(PublishedStatus {
                sessions: [("Established".to_owned(), up)].into(),
                down: down.collect(),
                ..PublishedStatus::default()
            }),
        }
    }

    /// Lines in short, of three nodes in a mesh as the first of them sees it.
    fn lines(nodes: &[ClusterNode], own: &[PeerStatusJson], no_bgp: bool) -> Vec<String> {
        let mut snapshot = Snapshot::default();
        for (name, n) in [("a", 1), ("b", 2), ("c", 3)] {
            let resource = json!({"metadata": {"name": name},
                "spec": {"bgp": {"ipv4Address": format!("10.0.0.{n}/24")}}});
            let path = caracal_model::Key::node(&name.into()).to_path();
            snapshot.apply(&path, Some(resource.to_string().as_bytes()), 1);
        }
        assert!(
            snapshot
                .nodes
                .values()
                .all(|n| n.spec.address(Family::Ipv4).is_some())
        );
        let told = sessions(&snapshot, (&"a".into(), no_bgp), own, nodes);
        let word = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let short = |line: &Value| ["from", "to", "state"].map(|key| word(line, key)).join(" ");
        told.iter().map(short).collect()
    }

    #[test]
    fn lines_are_what_is_planned_and_seen() {
        let own = |n: u8, state: &str| PeerStatusJson {
            address: Some([10, 0, 0, n].into()),
            state: state.to_owned(),
            ..PeerStatusJson::default()
        };
        let healthy = NodeState::Healthy;
        let peers = [own(2, "Established"), own(3, "Active")];
        let nodes = [
            node("b", healthy, &[], 2),
            node("c", healthy, &["Mesh_10_0_0_2"], 1),
        ];
        let told = lines(&nodes, &peers, false);
        assert_eq!(told, ["a b up", "a c down", "b c down"]);
        let silent = [
            node("b", NodeState::Silent, &[], 2),
            node("c", NodeState::Stopped, &[], 2),
        ];
        assert_eq!(lines(&silent, &peers, false)[2], "b c unknown");
        let fresh = [node("b", healthy, &[], 0), node("c", healthy, &[], 0)];
        assert_eq!(lines(&fresh, &peers, false)[2], "b c unknown");
        assert_eq!(lines(&fresh, &[], true), [""; 0]);
    }

    /// Reflectors that an operator has named, and those that are elected.
    #[test]
    fn reflectors_zones_and_racks_are_told() {
        let mut snapshot = Snapshot::default();
        let mut put = |kind: &str, name: &str, about: Value| {
            let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
            snapshot.apply(&path, Some(about.to_string().as_bytes()), 1);
        };
        for (name, n, cluster) in [("a", 1, None), ("b", 2, None), ("c", 3, Some("244.0.0.1"))] {
            let labels = json!({ZONE_LABEL: "z1", RACK_LABEL: format!("r{n}")});
            let bgp = json!({"ipv4Address": format!("10.0.0.{n}/24"), "routeReflectorClusterID": cluster});
            let about = json!({"metadata": {"name": name, "labels": labels}, "spec": {"bgp": bgp}});
            put("nodes", name, about);
        }
        let annotations = json!({"caracal.io/topology": "auto", "caracal.io/topology-mesh-limit": "1", "caracal.io/topology-reflectors": "1"});
        let about =
            json!({"metadata": {"name": "default", "annotations": annotations}, "spec": {}});
        put("bgpconfigurations", "default", about);
        let choice = choose_topology(&snapshot);
        let told = ["a", "b", "c", "d"].map(|name| {
            let node = node(name, NodeState::Healthy, &[], 0);
            let value = shown(&node, &snapshot, &choice);
            ["group", "rack", "role"].map(|key| value[key].as_str().unwrap_or("-").to_owned())
        });
        let roles: std::collections::BTreeSet<&str> =
            told[..2].iter().map(|node| &*node[2]).collect();
        let elected = ["reflector of zone z1", "standby reflector of zone z1"];
        assert_eq!(roles, elected.into(), "{told:?}");
        assert_eq!(told[2], ["z1", "r3", "reflector of cluster 244.0.0.1"]);
        assert_eq!(told[3], ["-", "-", "-"]);
    }

    #[test]
    fn what_this_node_sees_counts_before_records_of_others() {
        for (seen, wanted) in [
            (&[(true, Seen::Down), (false, Seen::Up)][..], Seen::Down),
            (&[(true, Seen::Up), (false, Seen::Down)], Seen::Up),
            (&[(true, Seen::Up), (true, Seen::Down)], Seen::Down),
            (&[(true, Seen::Unknown), (false, Seen::Down)], Seen::Down),
            (&[(false, Seen::Unknown), (false, Seen::Up)], Seen::Up),
            (&[(false, Seen::Unknown)], Seen::Unknown),
            (&[], Seen::Unknown),
        ] {
            assert_eq!(together(seen), wanted, "{seen:?}");
        }
    }
}
