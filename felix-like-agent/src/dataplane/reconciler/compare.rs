//! State that passes share, so that each looks at what changed and not at the whole
//! cluster: results that depend on nodes and routes of others, and that the kernel was as planned
//! ([`Comparison`]).

use std::sync::Arc;

use caracal_model::{Node, NodeName, SharedMap, Snapshot, Versioned};

use super::Reconciler;
use crate::actual::Actual;
use crate::dataplane::probe::prober::Targets;
use crate::diff::Comparison;
use crate::links::Links;
use crate::ownership::Ownership;
use crate::paths::PathMtus;
use crate::plan::HostRoutes;
use crate::settings::Settings;

/// State that passes share.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    owned: Option<Owned>,
    measured: Option<Measured>,
    pub(super) comparison: Comparison,
}

/// Ownership and the routes of others, with their inputs.
#[derive(Debug)]
struct Owned {
    settings: Settings,
    snapshot: Snapshot,
    ownership: Ownership,
    /// `None` = the kernel was read since.
    host_routes: Option<HostRoutes>,
}

#[derive(Debug)]
struct Measured {
    nodes: SharedMap<NodeName, Versioned<Node>>,
    links: Links,
    targets: Targets,
}

impl Remembered {
    /// The kernel was read again: nothing of what was known of it counts.
    pub(super) fn kernel_was_read(&mut self) {
        self.comparison.kernel_was_read();
        if let Some(owned) = &mut self.owned {
            owned.host_routes = None;
        }
    }

    pub(super) fn ownership(&mut self, settings: &Settings, snapshot: &Snapshot) -> Ownership {
        let same_pools = |owned: &Owned| {
            owned.snapshot.pools.is_same(&snapshot.pools)
                && snapshot.pools_turned_since(&owned.snapshot).is_empty()
        };
        let same = self.owned.as_mut().filter(|owned| {
            owned.settings == *settings
                && owned.snapshot.nodes.is_same(&snapshot.nodes)
                && same_pools(owned)
        });
        if let Some(owned) = same {
            // What turns is looked for in what is different.
            owned.snapshot.clone_from(snapshot);
            return owned.ownership.clone();
        }
        let before = self.owned.take();
        let before = before.filter(|owned| owned.settings == *settings);
        let ownership = match &before {
            Some(owned) => owned.ownership.follow(settings, &owned.snapshot, snapshot),
            None => Ownership::from_settings(settings, snapshot),
        };
        // Whose a route is does not depend on nodes, but for how sure a leftover is one.
        let host_routes = before
            .filter(same_pools)
            .and_then(|owned| owned.host_routes);
        self.owned = Some(Owned {
            settings: settings.clone(),
            snapshot: snapshot.clone(),
            ownership: ownership.clone(),
            host_routes,
        });
        ownership
    }

    /// Routes of others, which our own writes do not change.
    pub(super) fn host_routes(&mut self, actual: &Actual, ownership: &Ownership) -> HostRoutes {
        let known = self.owned.as_mut().map(|owned| &mut owned.host_routes);
        match known {
            Some(known) => known
                .get_or_insert_with(|| HostRoutes::from_kernel(actual, ownership))
                .clone(),
            None => HostRoutes::from_kernel(actual, ownership),
        }
    }
}

impl Reconciler {
    /// Has the paths to other nodes measured, and says what is known of them.
    pub(super) fn measure(
        &mut self,
        snapshot: &Snapshot,
        links: &Links,
        host_routes: &HostRoutes,
    ) -> Arc<PathMtus> {
        let Some(prober) = &self.prober else {
            return Arc::default();
        };
        let known = self.remembered.measured.take();
        let known = known.filter(|known| {
            known.links == *links && known.targets.host_routes.is_same(host_routes)
        });
        let me = &self.options.me;
        let targets = match &known {
            Some(known) if known.nodes.is_same(&snapshot.nodes) => known.targets.clone(),
            Some(Measured { targets, nodes, .. }) => targets
                .follow(nodes, &snapshot.nodes, me, links)
                .unwrap_or_else(|| Targets::new(snapshot, me, links, host_routes)),
            None => Targets::new(snapshot, me, links, host_routes),
        };
        prober.follow(&targets);
        self.remembered.measured = Some(Measured {
            nodes: snapshot.nodes.clone(),
            links: links.clone(),
            targets,
        });
        prober.results()
    }
}
