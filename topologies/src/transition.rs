//! From one topology to another, make before break: while a transition is under way every node has
//! the sessions of both.
//!
//! The annotation [`TRANSITION`] of the BGPConfiguration `default` holds what the resources were
//! before the change. From it and the snapshot every node computes the old sessions and the new
//! ones, has both, and reports ([`TransitionReport`]) what would be missing without the old ones.
//! Whoever conducts the change takes the annotation away when nothing would be missing anywhere;
//! then the old sessions go.
//!
//! Nothing here waits or looks at a session: the annotation is data, and the plan a function of it.
//!
//! * `TRANS-1` A session of either topology is planned while the annotation is there.
//! * `TRANS-2` A peer that is a client in either topology is a client: a reflector stops to reflect
//!   when its clients no longer need it, not when its role ends.
//! * `TRANS-3` A change of an AS number is none of these: the old session cannot live on beside it.

use std::collections::{BTreeMap, BTreeSet};

use caracal_bgp::PeerName;
use caracal_model::{
    Applied, InsertEach, Key, Kind, Node, NodeName, Prefix, Resource, SharedMap, Snapshot,
    Versioned,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::session::PlannedSession;
use crate::view::NodeView;
use crate::{PlanOptions, Problems};

/// Annotation of the BGPConfiguration `default` while a transition is under way.
pub(crate) const TRANSITION: &str = "caracal.io/topology-transition";

/// Keys of reports are below this; outside of `/calico/`, so that they wake no watcher of Calico's
/// data.
pub const REPORT_PREFIX: &str = "/caracal/topology/";

/// Undo log of a change of the topology: the resources as they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transition {
    /// Tells this transition from others.
    pub id: String,
    /// Resources as they were, by etcd path; null: there was none.
    pub was: BTreeMap<String, Value>,
}

/// A resource that a change writes or deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceChange {
    pub path: String,
    /// Value that is there now, with its revision.
    pub old: Option<(i64, Vec<u8>)>,
    /// Value to write.
    pub new: Option<Vec<u8>>,
}

/// Why a change cannot be a transition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// TRANS-3.
    #[error(
        "node {node} would go from AS {old} to AS {new}: sessions cannot outlive that; change AS numbers by themselves, node by node"
    )]
    Asn {
        /// Node whose AS changes.
        node: NodeName,
        /// Its AS now.
        old: u32,
        /// Its AS then.
        new: u32,
    },
    /// The node would lose its address.
    #[error(
        "node {0} would have no address; a Node in a change has to be whole, as `calicoctl get -o yaml` prints it"
    )]
    Address(NodeName),
    /// The annotation is there and does not parse.
    #[error("annotation {TRANSITION} does not parse: {0}")]
    Malformed(String),
}

/// Reasons why a node must keep its old sessions, as sentences; empty lists when there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransitionReport {
    /// The transition that it is about.
    pub transition: String,
    /// Addresses of new peers that have not sent End-of-RIB.
    pub incomplete: BTreeSet<std::net::IpAddr>,
    /// Prefixes that are only known from peers that go: how many, and the first of them.
    pub uncovered: usize,
    /// Some of them.
    pub examples: Vec<Prefix>,
}

/// A plan's part in a transition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransitionSessions {
    /// Tells this transition from an earlier one, so that a report on that one does not count.
    pub id: String,
    /// Sessions of the old topology only.
    pub to_remove: BTreeSet<PeerName>,
    /// Sessions of the new topology only.
    pub to_add: BTreeSet<PeerName>,
}

/// The key of a node's report.
#[must_use]
pub fn transition_report_path(node: &NodeName) -> String {
    format!("{REPORT_PREFIX}{node}")
}

/// The transition that is under way.
///
/// # Errors
/// [`TransitionError::Malformed`].
pub fn transition_under_way(snapshot: &Snapshot) -> Result<Option<Transition>, TransitionError> {
    let annotation = snapshot
        .bgp_default()
        .and_then(|c| c.metadata.annotations.get(TRANSITION));
    annotation
        .map(|text| serde_json::from_str(text))
        .transpose()
        .map_err(|e| TransitionError::Malformed(e.to_string()))
}

/// The BGP resources that differ between two snapshots: what a change writes, in the order of the
/// paths.
#[must_use]
pub fn changed_resources(before: &Snapshot, after: &Snapshot) -> Vec<ResourceChange> {
    let mut all = Vec::new();
    differing(Kind::Node, &before.nodes, &after.nodes, &mut all);
    let configurations = (&before.bgp_configurations, &after.bgp_configurations);
    differing(
        Kind::BgpConfiguration,
        configurations.0,
        configurations.1,
        &mut all,
    );
    differing(Kind::BgpPeer, &before.bgp_peers, &after.bgp_peers, &mut all);
    differing(
        Kind::BgpFilter,
        &before.bgp_filters,
        &after.bgp_filters,
        &mut all,
    );
    all.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    all
}

fn differing<K: Ord + Clone + ToString, S: Serialize + PartialEq>(
    kind: Kind,
    before: &SharedMap<K, Versioned<Resource<S>>>,
    after: &SharedMap<K, Versioned<Resource<S>>>,
    all: &mut Vec<ResourceChange>,
) {
    let names: BTreeSet<&K> = before.keys().chain(after.keys()).insert_each();
    for name in names {
        let (old, new) = (before.get(name), after.get(name));
        if old.map(|v| &**v) != new.map(|v| &**v) {
            all.push(ResourceChange {
                path: Key::resource(kind, name.to_string()).to_path(),
                old: old.map(|v| (v.revision, v.to_json())),
                new: new.map(|v| v.to_json()),
            });
        }
    }
}

/// Turns `after` into the first step of a transition from `before`: the annotation remembers what
/// was.
///
/// # Errors
/// [`TransitionError`] when old and new sessions cannot live side by side.
pub fn begin_transition(
    id: &str,
    before: &Snapshot,
    after: &mut Snapshot,
) -> Result<(), TransitionError> {
    for (name, node) in &after.nodes {
        let Some(old) = before.nodes.get(name) else {
            continue;
        };
        let (was, is) = (asn(before, old), asn(after, node));
        if was != is {
            return Err(TransitionError::Asn {
                node: name.clone(),
                old: was,
                new: is,
            });
        }
        let addresses = |node: &Node| crate::common::FAMILIES.map(|f| node.spec.address(f));
        let lost = |(was, is): (Option<_>, Option<_>)| was.is_some() && is.is_none();
        if addresses(old).into_iter().zip(addresses(node)).any(lost) {
            return Err(TransitionError::Address(name.clone()));
        }
    }
    let was = changed_resources(before, after)
        .into_iter()
        .map(|change| {
            let old = change
                .old
                .and_then(|(_, text)| serde_json::from_slice(&text).ok());
            (change.path, old.unwrap_or(Value::Null))
        })
        .insert_each();
    let transition = Transition {
        id: id.to_owned(),
        was,
    };
    let text = serde_json::to_string(&transition).expect("a transition is always valid JSON");
    annotate(after, Some(text));
    Ok(())
}

/// Turns a snapshot into the last step: the annotation is gone.
pub fn end_transition(snapshot: &mut Snapshot) {
    annotate(snapshot, None);
}

fn annotate(snapshot: &mut Snapshot, text: Option<String>) {
    let mut configuration = snapshot.bgp_default().map_or_else(
        || Resource::new("default", Default::default()),
        |c| (**c).clone(),
    );
    match text {
        Some(text) => configuration
            .metadata
            .annotations
            .insert(TRANSITION.to_owned(), text),
        None => configuration.metadata.annotations.remove(TRANSITION),
    };
    let path = Key::resource(Kind::BgpConfiguration, "default").to_path();
    let revision = snapshot
        .bgp_default()
        .map_or(snapshot.revision, |c| c.revision);
    snapshot.apply(&path, Some(&configuration.to_json()), revision);
}

fn asn(snapshot: &Snapshot, node: &Node) -> u32 {
    let own = node.spec.bgp.as_ref().and_then(|bgp| bgp.as_number);
    own.filter(|asn| asn.0 != 0)
        .map_or_else(|| snapshot.default_asn(), |asn| asn.0)
}

impl Transition {
    /// The snapshot as it was, as far as sessions depend on it. Of a Node only metadata and cluster
    /// id are taken back: its addresses are what they are.
    #[must_use]
    pub fn before(&self, snapshot: &Snapshot) -> Snapshot {
        let mut old = snapshot.clone();
        for (path, value) in &self.was {
            let Ok(Key::Resource { kind, name, .. }) = Key::parse(path) else {
                continue;
            };
            match kind {
                Kind::BgpConfiguration | Kind::BgpPeer => {
                    let text = (!value.is_null()).then(|| value.to_string().into_bytes());
                    // A value that was stored once parses again; if not, the new value stands for
                    // it.
                    let _refused: Applied = old.apply(path, text.as_deref(), snapshot.revision);
                }
                Kind::Node => roll_back(&mut old, &NodeName::from(name), value),
                _ => {}
            }
        }
        end_transition(&mut old);
        old
    }
}

fn roll_back(snapshot: &mut Snapshot, name: &NodeName, value: &Value) {
    let text = value.to_string();
    let (Some(node), Ok(was)) = (snapshot.nodes.get(name), Node::from_json(text.as_bytes())) else {
        return;
    };
    let revision = node.revision;
    let mut node = (**node).clone();
    // Labels, age and departure: what selectors and elections look at.
    node.metadata = was.metadata;
    if let (Some(bgp), Some(was)) = (&mut node.spec.bgp, was.spec.bgp) {
        bgp.route_reflector_cluster_id = was.route_reflector_cluster_id;
    }
    snapshot
        .nodes
        .insert(name.clone(), Versioned::new(revision, node));
}

/// Adds the old topology's sessions to the new one's (TRANS-1, TRANS-2).
pub(crate) fn join(
    transition: &Transition,
    new: &NodeView<'_>,
    options: &PlanOptions,
    sessions: &mut BTreeMap<PeerName, PlannedSession>,
) -> TransitionSessions {
    let old = transition.before(new.snapshot);
    // Problems of the old topology are known already.
    let mut ignored = Problems::default();
    let view = NodeView::new(&old, new.name, options, &mut ignored);
    let mut changed = TransitionSessions {
        id: transition.id.clone(),
        to_remove: BTreeSet::new(),
        to_add: sessions.keys().cloned().insert_each(),
    };
    let places: BTreeMap<_, PeerName> = sessions
        .iter()
        .map(|(name, session)| ((session.address, session.port), name.clone()))
        .insert_each();
    for (name, was) in crate::sessions(&view, &mut ignored) {
        match places.get(&(was.address, was.port)) {
            Some(known) => {
                if let Some(session) = sessions.get_mut(known) {
                    session.peer.client_of = session.peer.client_of.or(was.peer.client_of);
                }
                changed.to_add.remove(known);
            }
            // A name that is taken is another place: a port has changed, and the new one holds.
            None if sessions.contains_key(&name) => {}
            None => {
                changed.to_remove.insert(name.clone());
                sessions.insert(name, was);
            }
        }
    }
    changed
}
