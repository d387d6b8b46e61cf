//! The sessions of all nodes before and after a change of the topology, and who would learn of whom
//! no more.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use caracal_bgp::Password;
use caracal_model::{
    Applied, BgpConfiguration, InsertEach, Key, Kind, NodeName, Resource, Snapshot,
};
use caracal_topologies::{
    ClusterSessions, LEVELS_ANNOTATION, MESH_LIMIT_ANNOTATION, MissingPath, PlanOptions,
    REFLECTORS_ANNOTATION, SecretName, TOPOLOGY_ANNOTATION, TopologyChoice, choose_topology,
    cluster_sessions, reflector_tuning, secret_names,
};
use serde_json::{Value, json};

/// Passwords from files.
pub(crate) type KnownPasswords = BTreeMap<SecretName, Password>;

/// The most frequent change: elected reflectors or the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopologySwitch {
    /// The mesh between all nodes.
    Mesh,
    /// Reflectors that the cluster elects; what is `None` stays.
    Auto {
        /// Up to so many nodes there is a mesh.
        limit: Option<usize>,
        /// Reflectors of a zone besides the standby.
        reflectors: Option<usize>,
        /// Levels of reflectors.
        levels: Option<usize>,
    },
}

impl TopologySwitch {
    /// Sets the BGPConfiguration `default`, as the user would.
    ///
    /// # Errors
    /// What would be written is not valid.
    pub(crate) fn make(self, snapshot: &mut Snapshot) -> Result<(), String> {
        let found = snapshot.bgp_default();
        let mut configuration: BgpConfiguration = found.map_or_else(
            || Resource::new("default", Default::default()),
            |c| (**c).clone(),
        );
        let annotations = &mut configuration.metadata.annotations;
        match self {
            Self::Auto {
                limit,
                reflectors,
                levels,
            } => {
                annotations.insert(TOPOLOGY_ANNOTATION.to_owned(), "auto".to_owned());
                for (name, value) in [
                    (MESH_LIMIT_ANNOTATION, limit),
                    (REFLECTORS_ANNOTATION, reflectors),
                    (LEVELS_ANNOTATION, levels),
                ] {
                    if let Some(value) = value {
                        annotations.insert(name.to_owned(), value.to_string());
                    }
                }
            }
            Self::Mesh => {
                annotations.remove(TOPOLOGY_ANNOTATION);
                configuration.spec.node_to_node_mesh_enabled = Some(true);
            }
        }
        let path = Key::resource(Kind::BgpConfiguration, "default").to_path();
        let revision = found.map_or(snapshot.revision, |c| c.revision);
        match snapshot.apply(&path, Some(&configuration.to_json()), revision) {
            Applied::Invalid(reason) => Err(format!("{path}: {reason}")),
            Applied::Changed | Applied::Quiet | Applied::Ignored => Ok(()),
        }
    }
}

/// Judges the numbers of the election.
///
/// # Errors
/// One of them cannot be used.
pub(crate) fn check_tuning(snapshot: &Snapshot) -> Result<(), String> {
    match reflector_tuning(snapshot) {
        Ok(_) => Ok(()),
        Err(reason) => Err(format!("BGPConfiguration default: {reason}")),
    }
}

/// The plan of a whole cluster.
pub(crate) struct TopologyPlan {
    /// The sessions as they are planned now.
    pub(crate) before: ClusterSessions,
    /// The sessions after the change.
    pub(crate) after: ClusterSessions,
    /// Pairs of nodes without a path after it.
    pub(crate) missing: Vec<MissingPath>,
    /// And how many of them have none now.
    pub(crate) missing_now: usize,
    /// The topology after it.
    pub(crate) choice: TopologyChoice,
    /// Passwords that nobody has told: passwords are on the nodes, and whoever changes the topology
    /// need not have them. A node without one would not have the session.
    pub(crate) assumed: Vec<SecretName>,
}

impl TopologyPlan {
    /// Plans all nodes twice.
    pub(crate) fn new(
        before: &Snapshot,
        after: &Snapshot,
        secrets: &KnownPasswords,
        no_bgp: bool,
    ) -> Self {
        let (secrets, assumed) = with_assumed(secrets, [before, after]);
        let options = PlanOptions {
            secrets,
            no_bgp,
            ..PlanOptions::default()
        };
        let old = cluster_sessions(before, &options);
        let new = cluster_sessions(after, &options);
        let missing = new.missing(after);
        // Paths that are missing already are listed as well: the change does not mend them.
        let known: BTreeSet<MissingPath> = old.missing(before).into_iter().insert_each();
        Self {
            missing_now: missing.iter().filter(|m| known.contains(m)).count(),
            missing,
            choice: choose_topology(after),
            before: old,
            after: new,
            assumed,
        }
    }

    /// All nodes, before or after.
    pub(crate) fn nodes(&self) -> BTreeSet<&NodeName> {
        let nodes = self.before.nodes.keys().chain(self.after.nodes.keys());
        nodes.insert_each()
    }

    /// What a node will be in the election; empty without one.
    pub(crate) fn role(&self, node: &NodeName) -> String {
        elected_role(&self.choice, node)
    }
}

/// What a node is in an election; empty without one.
pub(crate) fn elected_role(choice: &TopologyChoice, node: &NodeName) -> String {
    let TopologyChoice::Reflectors(elected) = choice else {
        return String::new();
    };
    if let Some(place) = elected.top.iter().position(|name| name == node) {
        let standby = place > 0 && place + 1 == elected.top.len();
        return format!("{}top reflector", if standby { "standby " } else { "" });
    }
    for (zone, elected) in &elected.zones {
        let zone = if zone.is_empty() { "-" } else { zone };
        if let Some(place) = elected.reflectors.iter().position(|name| name == node) {
            let kind = if place > 0 && place + 1 == elected.reflectors.len() {
                "standby reflector"
            } else {
                "reflector"
            };
            return format!("{kind} of zone {zone}");
        }
        if elected.clients.contains(node) {
            return format!("client in zone {zone}");
        }
    }
    "outside the election".to_owned()
}

/// With a password for each secret that is referred to and not known.
fn with_assumed(
    known: &KnownPasswords,
    snapshots: [&Snapshot; 2],
) -> (KnownPasswords, Vec<SecretName>) {
    let names: BTreeSet<SecretName> = snapshots.into_iter().flat_map(secret_names).insert_each();
    let (mut secrets, mut assumed) = (known.clone(), Vec::new());
    for name in names {
        if let Entry::Vacant(unknown) = secrets.entry(name) {
            assumed.push(unknown.key().clone());
            unknown.insert(Password("assumed".to_owned()));
        }
    }
    (secrets, assumed)
}

/// Peers of a node by name, with the node at the other end where there is one.
pub(crate) fn peer_names(sessions: &ClusterSessions, node: &NodeName) -> BTreeSet<String> {
    let peers = sessions.nodes.get(node).into_iter().flatten();
    peers
        .map(|(address, session)| match &session.node {
            Some(peer) => peer.to_string(),
            None => address.to_string(),
        })
        .insert_each()
}

/// Number of a node's sessions.
pub(crate) fn session_count(sessions: &ClusterSessions, node: &NodeName) -> usize {
    sessions.nodes.get(node).map_or(0, BTreeMap::len)
}

/// The largest number of sessions at a node.
pub(crate) fn most_sessions(sessions: &ClusterSessions) -> usize {
    sessions
        .nodes
        .values()
        .map(BTreeMap::len)
        .max()
        .unwrap_or(0)
}

/// By its ends, whether there is a session before and after; those of both families are one. The
/// second end is an address where it is outside the cluster.
pub(crate) fn session_lines(
    before: &ClusterSessions,
    after: &ClusterSessions,
) -> BTreeMap<(String, String), [bool; 2]> {
    let mut lines: BTreeMap<(String, String), [bool; 2]> = BTreeMap::new();
    for (at, sessions) in [before, after].into_iter().enumerate() {
        for (node, ends) in &sessions.nodes {
            for (address, end) in ends {
                let (a, is_inside) = (node.to_string(), end.node.is_some());
                let b = end.node.as_ref();
                let b = b.map_or_else(|| address.to_string(), ToString::to_string);
                let key = if is_inside && b < a { (b, a) } else { (a, b) };
                lines.entry(key).or_default()[at] = true;
            }
        }
    }
    lines
}

/// A path that is missing, as the command and the console tell it.
pub(crate) fn missing_json(missing: &MissingPath) -> Value {
    json!({"node": missing.node, "of": missing.of, "family": missing.family.as_str()})
}
