//! BGP sessions and announcements of a node: from Calico's resources to the speaker's
//! configuration.
//!
//! # Order of calls
//!
//! Fill a [`Snapshot`] (from the datastore, or from files by [`resources_from_yaml`]), then
//! [`plan`] the node. A change of the topology under traffic is two plans: [`begin_transition`]
//! writes the new resources and what they were, nodes keep the sessions of both, and
//! [`end_transition`] follows when every [`TransitionReport`] is empty.
//!
//! ```
//! use caracal_model::Snapshot;
//! use caracal_topologies::{PlanOptions, plan, resources_from_yaml};
//!
//! let text = "\
//! {kind: Node, metadata: {name: a}, spec: {bgp: {ipv4Address: 10.0.0.1/24}}}
//! ---
//! {kind: Node, metadata: {name: b}, spec: {bgp: {ipv4Address: 10.0.0.2/24}}}";
//! let mut snapshot = Snapshot::default();
//! let problems = resources_from_yaml(text).expect("YAML").apply(&mut snapshot);
//! assert!(problems.is_empty());
//! let planned = plan(&snapshot, &"a".into(), &PlanOptions::default());
//! assert_eq!(planned.config.peers.len(), 1, "a mesh of two");
//! ```
//!
//! # What is where
//!
//! [`plan`] is a pure function of a [`Snapshot`]: no clock, no socket, no history. Every node
//! computes its own part from the same data, so both ends of a session agree without talking to
//! each other.
//!
//! | module | what it decides |
//! |---|---|
//! | `settings` | BGPConfiguration `default` and `node.NAME` as one set of values |
//! | `full_mesh` | sessions between all nodes |
//! | `auto` | reflectors that the cluster elects when a mesh would be too large |
//! | `transition` | the sessions of two topologies at once, from one to the other |
//! | `paths` | whether every node learns of every other |
//! | `peers` | sessions that BGPPeer resources ask for |
//! | `route_reflector` | which peers are reflector clients (RFC 4456) |
//! | `calico` | the same for Calico's fork of BIRD, as the context of its six files |
//! | `services` | addresses of Kubernetes services |
//! | `router` | the other side: what a router needs in order to peer with the nodes |
//! | `announce` | what this node originates, and the export policy |
//! | `by_key` | a plan that follows what changed |
//! | `wanted` | prefixes that several blocks or Services ask for |
//! | `origins` | who may announce what: the data of the speaker's origin check |
//! | `filters` | BGPFilter resources as route policy |
//! | `router_id` | the BGP Identifier |
//! | `tunnels` | ranges that a foreign daemon cannot reach |
//! | `resources` | resource files of `calicoctl` into a snapshot |
//!
//! # Invariants, cited by tests
//!
//! * `TOPO-1` The plan depends on the snapshot's content only: the order in which resources came
//!   never shows.
//! * `TOPO-2` A resource that cannot be used costs itself and nothing else; a [`Problem`] names key
//!   and reason.
//! * `TOPO-3` Both ends of a mesh session agree on who dials: the rule is Calico's, so Calico's
//!   nodes agree too.
//! * `TOPO-4` A session that shall have a password is never configured without it.

mod announce;
mod auto;
mod by_key;
mod calico;
mod common;
mod filters;
mod full_mesh;
mod go_duration;
mod origins;
mod others;
mod paths;
mod peers;
mod resources;
mod route_reflector;
mod router;
mod router_id;
mod services;
mod session;
mod settings;
mod transition;
mod tunnels;
mod view;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_bgp::{Originations, Password, PeerName, SpeakerConfig};
use caracal_model::{InsertEach, NodeName, Prefix, Problem, ProblemCode, Snapshot};

use announce::Announcer;
pub use announce::EXPORT_FILTER;
pub use auto::{
    LEVELS_ANNOTATION, MESH_LIMIT_ANNOTATION, RACK_LABEL, REFLECTORS_ANNOTATION,
    TOPOLOGY_ANNOTATION, TopologyChoice, ZONE_LABEL, choose_topology, reflector_tuning,
};
pub use by_key::{BgpPlanner, Replanned, plan};
pub use calico::{CalicoContext, CalicoPlan, plan_calico};
pub use origins::origin_update;
pub use paths::{ClusterSessions, MissingPath, SessionEnd, cluster_sessions};
pub use resources::{Resources, ResourcesError, WRITTEN_KINDS, assign_block, resources_from_yaml};
pub use router::{Router, RouterError, router};
pub use router_id::RouterIdChoice;
pub use services::Services;
pub use session::{MaxPrefixes, secret_names};
pub use transition::{
    REPORT_PREFIX, TransitionError, TransitionReport, TransitionSessions, begin_transition,
    changed_resources, end_transition, transition_report_path, transition_under_way,
};
pub use tunnels::tunnelled_pools;
use view::NodeView;

/// Inputs of a plan besides the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Where the BGP Identifier comes from (`CALICO_ROUTER_ID`).
    pub router_id: RouterIdChoice,
    /// Passwords that BGPPeer and BGPConfiguration refer to. A reference without an entry leaves
    /// its peers out (TOPO-4).
    pub secrets: BTreeMap<SecretName, Password>,
    /// How many prefixes a peer may announce in each family (`CARACAL_MAX_PREFIXES`). `None`: no
    /// limit but those of resources, as in a text that is rendered for another daemon.
    pub max_prefixes: Option<MaxPrefixes>,
    /// Contexts of templates may hold passwords. The speaker's configuration has them always.
    pub show_passwords: bool,
    /// The node speaks no BGP (`CALICO_NETWORKING_BACKEND` is not `bird`): there is no mesh, which
    /// would be planned for nobody and follow from every other node.
    pub no_bgp: bool,
    /// Addresses by which the node reaches its datastore; none where they are not known. They are
    /// announced for no Service.
    pub datastore: BTreeSet<IpAddr>,
}

/// Name of a secret and the key inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName {
    /// Name of the secret.
    pub name: String,
    /// Key inside the secret.
    pub key: String,
}

/// Configuration of a node's speaker, and what goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BgpPlan {
    /// The configuration; what could not be planned is missing from it.
    pub config: SpeakerConfig,
    /// What the user called peers: the BGPPeer that asks for each session outside the mesh.
    pub bgp_peers: BTreeMap<PeerName, String>,
    /// Problems: settings that could not be planned, sorted.
    pub problems: Vec<Problem>,
    /// While a transition is under way: which sessions go, and which are new.
    pub transition: Option<transition::TransitionSessions>,
    /// Facts for the kernel of the node, besides the routes that the speaker learns.
    pub kernel: KernelFacts,
}

/// Facts of a plan that are not for the speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Routes to peers, through the gateways of `reachableBy`.
    pub reachable_by: BTreeMap<Prefix, IpAddr>,
    /// Ranges and addresses of services: kube-proxy serves them, and a learned route to them is not
    /// for the kernel.
    pub services: BTreeSet<Prefix>,
    /// Patterns of `ignoredInterfaces`.
    pub ignored_interfaces: Vec<String>,
}

/// A plan without the node's own blocks and addresses, and without services.
fn plan_the_rest(
    snapshot: &Snapshot,
    node: &NodeName,
    options: &PlanOptions,
) -> (BgpPlan, Announcer) {
    let mut problems = Problems::default();
    let view = NodeView::new(snapshot, node, options, &mut problems);

    let mut sessions = sessions(&view, &mut problems);
    let transition = match transition::transition_under_way(snapshot) {
        Ok(under_way) => under_way.map(|t| transition::join(&t, &view, options, &mut sessions)),
        Err(fault) => {
            let subject = common::path(caracal_model::Kind::BgpConfiguration, "default");
            let reason = format!("{fault}; the sessions of the topology before are not kept");
            problems.note(ProblemCode::BgpTransition, subject, reason);
            None
        }
    };
    let reachable_by = sessions
        .values()
        .filter_map(|s| Some((Prefix::host(s.address), s.reachable_by?)))
        .insert_each();
    let reflects =
        view.cluster_id().is_some() || sessions.values().any(|s| s.peer.client_of.is_some());
    let mut filters = filters::attach(&view, &mut sessions, &mut problems);
    filters.insert(
        announce::EXPORT_FILTER.to_owned(),
        announce::export_filter(&view, reflects),
    );
    let bgp_peers = sessions
        .iter()
        .filter_map(|(name, session)| Some((name.clone(), session.bgp_peer()?)))
        .insert_each();
    let most = options.max_prefixes.unwrap_or(MaxPrefixes::Off);
    let announcer = Announcer::new(&view);
    let config = SpeakerConfig {
        local_as: view.asn,
        router_id: router_id::choose(&view, &mut problems),
        listen: Some(view.listen()),
        peers: sessions
            .into_iter()
            .map(|(name, session)| (name, session.into_config(most)))
            .insert_each(),
        originate: Originations::default(),
        filters,
        stations: BTreeMap::new(),
    };
    let global = snapshot.bgp_default().map(|c| &c.spec);
    let ignored = global.map(|spec| calico::ignored_interfaces(spec, &mut problems));
    let planned = BgpPlan {
        kernel: KernelFacts {
            reachable_by,
            services: BTreeSet::new(),
            ignored_interfaces: ignored.unwrap_or_default(),
        },
        config,
        bgp_peers,
        problems: problems.into_vec(),
        transition,
    };
    (planned, announcer)
}

/// The sessions of a node, their filters still to be looked up.
pub(crate) fn sessions(
    view: &NodeView<'_>,
    problems: &mut Problems,
) -> BTreeMap<PeerName, session::PlannedSession> {
    let mut sessions = full_mesh::sessions(view, problems);
    let explicit = peers::sessions(view, problems);
    // A BGPPeer says more than the mesh does; two sessions to one place would fight over one
    // connection.
    let taken: BTreeSet<_> = explicit.values().map(|s| (s.address, s.port)).insert_each();
    sessions.retain(|_, mesh| !taken.contains(&(mesh.address, mesh.port)));
    sessions.extend(explicit);
    sessions
}

/// Collects problems, sorted and without repetition.
#[derive(Debug, Default)]
pub(crate) struct Problems(BTreeSet<Problem>);

impl Problems {
    /// Notes one: a stable code, what it is about, one sentence.
    pub(crate) fn note(
        &mut self,
        code: ProblemCode,
        subject: impl Into<String>,
        reason: impl Into<String>,
    ) {
        self.0.insert(Problem {
            code,
            subject: subject.into(),
            reason: reason.into(),
        });
    }

    fn into_vec(self) -> Vec<Problem> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
