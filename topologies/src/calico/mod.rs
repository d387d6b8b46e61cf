//! Facts behind the six files of Calico's own daemon, `bird.cfg`, `bird_aggr.cfg`, `bird_ipam.cfg`
//! and their IPv6 twins, for a node that runs Calico's fork of BIRD 1.6.
//!
//! The speaker's configuration is not enough for these files: they program the kernel, and Calico's
//! functions name pools, affinities and filters one by one. So the files have a context of their
//! own, [`CalicoContext`], a pure function of the snapshot like the plan; the sessions in it are
//! the plan's.
//!
//! Where Caracal knowingly differs from Calico: a session whose password is not known is left out
//! (TOPO-4), a BGPFilter that cannot be understood refuses every route, and a mesh session gives
//! way to a BGPPeer's session with the same address and port.

mod context;
mod policy;
mod pools;
mod sessions;

use caracal_model::{
    BgpConfigurationSpec, Family, Kind, NodeName, Prefix, Problem, ProblemCode, Snapshot,
};
use serde_json::Value;

pub use context::CalicoContext;
pub(crate) use context::{
    Block, Community, Daemon, Filter, FilterCall, Function, KernelPool, Peer, Reach, Rule,
};

use crate::common::path;
use crate::services::{PlannedServices, ServiceRoutes};
use crate::settings::PRIORITY_BASE;
use crate::view::NodeView;
use crate::{PlanOptions, Problems, router_id};

/// The context of both daemons, and what could not be planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalicoPlan {
    /// Root of the templates.
    pub context: CalicoContext,
    /// Problems: settings that could not be planned, sorted.
    pub problems: Vec<Problem>,
}

/// Plans the files of one node.
#[must_use]
pub fn plan_calico(snapshot: &Snapshot, node: &NodeName, options: &PlanOptions) -> CalicoPlan {
    let mut problems = Problems::default();
    let view = NodeView::new(snapshot, node, options, &mut problems);
    let services = PlannedServices::new(snapshot, node, &options.datastore);
    let routes = services.as_ref().map(PlannedServices::routes);
    let routes = routes.unwrap_or_default();
    for problem in services.iter().flat_map(PlannedServices::problems) {
        problems.note(problem.code, &problem.subject, &problem.reason);
    }
    let context = CalicoContext {
        node: node.to_string(),
        ipv4: daemon(&view, Family::Ipv4, &routes, &mut problems),
        ipv6: daemon(&view, Family::Ipv6, &routes, &mut problems),
    };
    CalicoPlan {
        context,
        problems: problems.into_vec(),
    }
}

fn daemon(
    view: &NodeView<'_>,
    family: Family,
    services: &ServiceRoutes,
    problems: &mut Problems,
) -> Daemon {
    let v4 = family == Family::Ipv4;
    let empty = BgpConfigurationSpec::default();
    let global = view.snapshot.bgp_default().map_or(&empty, |c| &c.spec);
    let priority = PRIORITY_BASE - view.settings.local_pref(family);
    let explicit_port = view
        .snapshot
        .bgp_default()
        .is_some_and(|c| has_port(&c.spec))
        || own(view).is_some_and(has_port);
    let debug = own(view)
        .and_then(|c| c.log_severity_screen.as_deref())
        .or(global.log_severity_screen.as_deref())
        .filter(|level| !level.is_empty())
        .unwrap_or("Info")
        .to_ascii_lowercase();
    let (debug_protocols, debug_peers) = match debug.as_str() {
        "debug" => (Some("all"), Some("all")),
        "none" => (None, None),
        _ => (
            Some("{ states }"),
            Some("{ states, routes, filters, events }"),
        ),
    };
    let (peers, reachable_by) = sessions::peers_of(view, family, problems);
    let of_family = |set: &std::collections::BTreeSet<Prefix>| {
        let of_family = set.iter().filter(|p| p.family() == family);
        sorted_as_text(of_family.map(ToString::to_string))
    };
    let blocks = pools::blocks(view, family);
    let service_routes = of_family(&services.announced);
    Daemon {
        node: view.name.to_string(),
        has_static_routes: !service_routes.is_empty()
            || !reachable_by.is_empty()
            || blocks.iter().any(|block| !block.single),
        family: family.as_str(),
        version: if v4 { "4" } else { "6" },
        suffix: if v4 { "" } else { "6" },
        host_len: family.bits(),
        router_id: router_id::choose(view, problems).to_string(),
        address: view.address(family).map(|a| a.to_string()),
        local_as: view.asn.0,
        listen_address: view
            .address(family)
            .filter(|_| view.settings.bind_to_node)
            .map(|a| a.to_string()),
        listen_port: explicit_port.then_some(view.settings.listen_port),
        debug_protocols,
        debug_peers,
        ignored_interfaces: ignored_interfaces(global, problems),
        priority_base: PRIORITY_BASE,
        normal_priority: priority,
        normal_local_pref: PRIORITY_BASE - priority,
        filters: policy::filters(view, family, problems),
        communities: policy::communities(view, family),
        bfd: peers.iter().any(|peer| peer.bfd),
        peers,
        reachable_by,
        blocks,
        service_routes,
        reject_cidrs: of_family(&services.rejected),
        hidden_pools: pools::exported(view, family, false),
        exported_pools: pools::exported(view, family, true),
        reflector: view.cluster_id().is_some(),
        reflected_ranges: if view.cluster_id().is_some() {
            let ranges = view.settings.service_ranges.iter();
            sorted_as_text(
                ranges
                    .filter(|p| p.family() == family)
                    .map(ToString::to_string),
            )
        } else {
            Vec::new()
        },
        rejects_tunl0: !pools::Owner::parse(global.program_cluster_routes.as_deref()).ipip,
        wireguard_peers: pools::wireguard_peers(view, family),
        kernel_pools: pools::kernel(view, family, global.program_cluster_routes.as_deref()),
    }
}

fn own<'a>(view: &NodeView<'a>) -> Option<&'a BgpConfigurationSpec> {
    let name = view.name.configuration();
    let configuration = view.snapshot.bgp_configurations.get(&name)?;
    Some(&configuration.spec)
}

fn has_port(spec: &BgpConfigurationSpec) -> bool {
    spec.listen_port.is_some_and(|port| port != 0)
}

/// `spec.ignoredInterfaces`; a pattern that BIRD cannot write is left out and reported.
pub(crate) fn ignored_interfaces(
    global: &BgpConfigurationSpec,
    problems: &mut Problems,
) -> Vec<String> {
    let patterns = global.extra.get("ignoredInterfaces");
    let mut usable = Vec::new();
    for pattern in patterns.and_then(Value::as_array).into_iter().flatten() {
        match pattern.as_str() {
            Some(text) if !text.is_empty() && !text.contains(['"', '\n', '\\']) => {
                usable.push(text.to_owned());
            }
            _ => problems.note(
                ProblemCode::BgpIgnoredInterfaces,
                path(Kind::BgpConfiguration, "default"),
                format!(
                    "spec.ignoredInterfaces: {pattern} is no interface pattern; it is passed over"
                ),
            ),
        }
    }
    usable
}

/// Calico goes through keys in the order of their text: `.192` comes before `.64`.
fn sorted_as_text(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}
