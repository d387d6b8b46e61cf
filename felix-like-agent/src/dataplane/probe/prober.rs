//! The task that measures paths, one at a time: [`crate::paths`] says which and with what,
//! [`crate::dataplane::probe::echo`] sends. It writes nothing anywhere, and wakes up the
//! reconciler when a result has changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_model::{Family, Node, NodeName, SharedMap, Snapshot, Versioned};
use tokio::sync::{Notify, watch};

use crate::dataplane::probe::echo::Echo;
use crate::links::Links;
use crate::paths::{MtuSearch, Next, PathMtu, PathMtus, PathVerdict, ProbeSchedule, SearchStep};
use crate::plan::HostRoutes;

/// Limit of the wait for an answer, the second try included.
const PATIENCE: Duration = Duration::from_millis(1200);

type Nodes = SharedMap<NodeName, Versioned<Node>>;

/// The paths to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::dataplane) struct Targets {
    /// Other nodes' addresses with the MTU of the interface towards them.
    pub(in crate::dataplane) paths: SharedMap<IpAddr, u32>,
    /// This node's own addresses.
    pub(in crate::dataplane) from: BTreeMap<Family, IpAddr>,
    /// A change of it is a reason to measure anew.
    pub(in crate::dataplane) host_routes: HostRoutes,
}

impl Targets {
    /// The other nodes, as far as this node has an address of the family and an interface that
    /// carries it.
    pub(in crate::dataplane) fn new(
        snapshot: &Snapshot,
        me: &NodeName,
        links: &Links,
        host_routes: &HostRoutes,
    ) -> Self {
        let mut targets = Self {
            host_routes: host_routes.clone(),
            ..Self::default()
        };
        let own = snapshot.nodes.get(me);
        for family in [Family::Ipv4, Family::Ipv6] {
            let address = own.and_then(|node| node.spec.address(family));
            let parent = address.and_then(|address| links.holding(address));
            let (Some(address), Some(parent)) = (address, parent.filter(|link| link.up)) else {
                continue;
            };
            targets.from.insert(family, address);
            let others = snapshot.nodes.iter().filter(|(name, _)| *name != me);
            let addresses = others.filter_map(|(_, node)| node.spec.address(family));
            targets.paths.extend(addresses.map(|to| (to, parent.mtu)));
        }
        targets
    }

    /// The same for these nodes, where nothing but nodes is different since `was`. `None`: this
    /// node is, or two nodes have one address.
    pub(in crate::dataplane) fn follow(
        &self,
        was: &Nodes,
        is: &Nodes,
        me: &NodeName,
        links: &Links,
    ) -> Option<Self> {
        let mut targets = self.clone();
        let changed = is.changed_since(was);
        if changed.contains(me) {
            return None;
        }
        for (&family, &own) in &self.from {
            let mtu = links.holding(own)?.mtu;
            let of = |nodes: &Nodes, name| nodes.get(name)?.spec.address(family);
            for address in changed.iter().filter_map(|name| of(was, name)) {
                targets.paths.remove(&address)?;
            }
            for address in changed.iter().filter_map(|name| of(is, name)) {
                if targets.paths.insert(address, mtu).is_some() {
                    return None;
                }
            }
        }
        let of = |nodes: &Nodes| nodes.len().saturating_sub(1) * self.from.len();
        // Where each node has its own addresses of all families, there are as many.
        (self.paths.len() == of(was) && targets.paths.len() == of(is)).then_some(targets)
    }
}

/// The running task. Ends when dropped.
#[derive(Debug)]
pub(in crate::dataplane) struct Prober {
    targets: watch::Sender<Targets>,
    results: watch::Receiver<Arc<PathMtus>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prober {
    /// Starts it; `seed` makes its times differ from those of other nodes. What is `known` holds
    /// until it is measured.
    pub(in crate::dataplane) fn start(seed: &str, known: PathMtus, wake_up: Arc<Notify>) -> Self {
        let (targets, targets_rx) = watch::channel(Targets::default());
        let (results_tx, results) = watch::channel(Arc::new(known));
        let schedule = ProbeSchedule::new(seed);
        let task = tokio::spawn(measure_all(schedule, targets_rx, results_tx, wake_up));
        Self {
            targets,
            results,
            task,
        }
    }

    /// Says what the paths are now.
    pub(in crate::dataplane) fn follow(&self, targets: &Targets) {
        self.targets.send_if_modified(|known| {
            let same = known.paths.is_same(&targets.paths)
                && known.from == targets.from
                && known.host_routes.is_same(&targets.host_routes);
            if !same {
                known.clone_from(targets);
            }
            !same
        });
    }

    /// Known path MTUs.
    pub(in crate::dataplane) fn results(&self) -> Arc<PathMtus> {
        Arc::clone(&self.results.borrow())
    }

    /// The same for who asks later.
    pub(in crate::dataplane) fn known(&self) -> KnownPaths {
        KnownPaths(Some(self.results.clone()))
    }
}

/// Known path MTUs to other nodes, as they are when they are asked for: they change between passes.
#[derive(Clone, Debug, Default)]
pub struct KnownPaths(Option<watch::Receiver<Arc<PathMtus>>>);

impl KnownPaths {
    /// Those of now; none where paths are not measured.
    #[must_use]
    pub fn now(&self) -> Arc<PathMtus> {
        let of = |known: &watch::Receiver<_>| Arc::clone(&known.borrow());
        self.0.as_ref().map(of).unwrap_or_default()
    }
}

impl PartialEq for KnownPaths {
    fn eq(&self, other: &Self) -> bool {
        self.now() == other.now()
    }
}

async fn measure_all(
    mut schedule: ProbeSchedule,
    mut targets: watch::Receiver<Targets>,
    results: watch::Sender<Arc<PathMtus>>,
    wake_up: Arc<Notify>,
) {
    let mut host_routes = HostRoutes::default();
    // Until then there is no path, and nothing to be forgotten.
    if targets.changed().await.is_err() {
        return;
    }
    let mut from = BTreeMap::new();
    targets.mark_changed();
    loop {
        match targets.has_changed() {
            Err(_) => return,
            Ok(false) => {}
            Ok(true) => {
                let targets = targets.borrow_and_update();
                let moved = targets.host_routes != host_routes;
                if moved {
                    host_routes = targets.host_routes.clone();
                }
                schedule.follow(&targets.paths, moved, Instant::now());
                forget(&results, &targets.paths);
                from.clone_from(&targets.from);
            }
        }
        match schedule.next(Instant::now()) {
            Next::Measure(address, interface) => {
                let narrow = results.borrow().values().find(|p| p.is_narrow()).copied();
                let small = Echo::to(address).from(from.get(&Family::of(address)).copied());
                let search = MtuSearch::new(small.size(), interface, narrow.map(|p| p.mtu));
                let verdict = measure(small, search).await;
                schedule.done(address, verdict, Instant::now());
                if let PathVerdict::Mtu(mtu) = verdict {
                    let found = PathMtu { mtu, interface };
                    if record(&results, address, found) {
                        wake_up.notify_one();
                    }
                }
            }
            Next::Wait(until) => tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                // It counts as seen once it is followed.
                changed = targets.changed() => match changed {
                    Ok(()) => targets.mark_changed(),
                    Err(_) => return,
                },
            },
            Next::Nothing => {
                if targets.changed().await.is_err() {
                    return;
                }
                targets.mark_changed();
            }
        }
    }
}

/// Drops what is known of paths that are no more.
fn forget(results: &watch::Sender<Arc<PathMtus>>, paths: &SharedMap<IpAddr, u32>) {
    results.send_if_modified(|known| {
        let stale = known.keys().any(|address| !paths.contains_key(address));
        if stale {
            Arc::make_mut(known).retain(|address, _| paths.contains_key(address));
        }
        stale
    });
}

/// True when a plan may be another one because of a result: one is where the path is narrow, or
/// was. With thousands of nodes the others come several times a second, for a long time.
fn record(results: &watch::Sender<Arc<PathMtus>>, address: IpAddr, found: PathMtu) -> bool {
    let before = results.borrow().get(&address).copied();
    if before == Some(found) {
        return false;
    }
    let was = before.map_or(found.interface, |path| path.mtu);
    if found.is_narrow() {
        tracing::warn!(%address, mtu = found.mtu, interface = found.interface, was, "the path is narrower than the interface");
    } else if was != found.mtu {
        tracing::info!(%address, mtu = found.mtu, was, "the path is as wide as the interface");
    }
    results.send_modify(|known| {
        Arc::make_mut(known).insert(address, found);
    });
    found.is_narrow() || before.is_some_and(|path| path.is_narrow())
}

async fn measure(small: Echo, mut search: MtuSearch) -> PathVerdict {
    loop {
        match search.step() {
            SearchStep::Done(verdict) => return verdict,
            SearchStep::Probe(size) => {
                search.heard(small.of_size(size).is_answered(PATIENCE).await)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::links::Link;

    /// Nodes that come, go, move and exchange addresses: what follows them is what is made anew.
    #[test]
    fn followed_targets_are_those_of_the_whole() {
        let eth0 = Link::new(2, "eth0")
            .with_address("10.0.0.1/24".parse().unwrap())
            .with_address("fd00::1/64".parse().unwrap());
        let links: Links = [eth0].into_iter().collect();
        let me = NodeName::from("n1");
        let mut snapshot = Snapshot::default();
        let mut targets = Targets::default();
        let mut followed = 0;
        for (revision, (node, at)) in (1..).zip([
            (1, Some(1)),
            (2, Some(2)),
            (3, Some(3)),
            (2, Some(4)),
            (3, None),
            (3, Some(2)),
            (4, Some(2)), // the address of another
            (4, Some(5)),
            (2, None),
            (1, Some(9)), // this node itself
        ]) {
            let was = snapshot.nodes.clone();
            let path = format!("/calico/resources/v3/projectcalico.org/nodes/n{node}");
            let value = at.map(|at| {
                format!(
                    r#"{{"metadata":{{"name":"n{node}"}},"spec":{{"bgp":{{"ipv4Address":"10.0.0.{at}/24","ipv6Address":"fd00::{at}/64"}}}}}}"#
                )
            });
            snapshot.apply(&path, value.as_ref().map(String::as_bytes), revision);
            let whole = Targets::new(&snapshot, &me, &links, &HostRoutes::default());
            if let Some(next) = targets.follow(&was, &snapshot.nodes, &me, &links) {
                assert_eq!(next, whole, "node {node} at {at:?}");
                followed += 1;
            }
            targets = whole;
        }
        assert!(followed >= 6, "{followed} were followed");
    }

    #[test]
    fn only_what_a_plan_may_follow_from_wakes() {
        let (results, known) = watch::channel(Arc::default());
        let known = KnownPaths(Some(known));
        let address = IpAddr::from([10, 0, 0, 2]);
        let path = |mtu| PathMtu {
            mtu,
            interface: 1500,
        };
        for (mtu, wakes) in [
            (1500, false), // as wide as the interface: no plan says otherwise
            (1400, true),
            (1400, false),
            (1300, true),
            (1500, true),
            (1500, false),
        ] {
            assert_eq!(record(&results, address, path(mtu)), wakes, "{mtu}");
            assert_eq!(
                known.now().get(&address),
                Some(&path(mtu)),
                "and who asks sees it"
            );
        }
    }
}
