//! How a node begins: with the datastore when it answers; else with what it remembers. The first
//! start of a node waits for the datastore, because nothing is known; every later one goes on
//! without it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{
    Accepted, Accepter, EndpointReader, GuardOptions, PagedStore, View, WatchOptions,
    spawn_guarded_watcher,
};
use caracal_model::{Node, Problem, ProblemCode, Snapshot};
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::node::leave_file;
use crate::node::membership::machine;
use crate::node::membership::registration::Registrar;
use crate::node::membership::remember::{self, Rememberer};
use crate::node::membership::startup;
use crate::node::problems::{ProblemReporter, Registry};

/// Longest wait of a start for the datastore, when a last snapshot is there to go on with.
const ANSWER: Duration = Duration::from_secs(2);
/// Time for which a Node that was deleted or lost its address stays in use while it has blocks or
/// reflects routes. Its own process writes it again within a second; one that is being restarted
/// needs some more.
const NODE_GRACE: Duration = Duration::from_secs(20);
/// Pause between two tries to leave the node's name.
const RETRY: Duration = Duration::from_secs(10);

/// State of a node at its start.
pub(crate) struct Begun {
    pub(crate) view: watch::Receiver<View>,
    pub(crate) accepter: Accepter,
    pub(crate) rememberer: Rememberer,
}

/// Brings the node to a first view, from the datastore, the watcher's times for it, and the
/// addresses at which it is.
pub(crate) async fn begin<S: PagedStore>(
    (store, times, etcd): (&S, WatchOptions, watch::Receiver<BTreeSet<IpAddr>>),
    config: &Arc<Config>,
    claim: &machine::Claim,
    lost: mpsc::Sender<machine::Taken>,
    report: impl Fn(String),
    registry: &Registry,
) -> anyhow::Result<Begun> {
    let accepted = recall(config, &registry.reporter("recalled snapshot"));
    // Without its own Node a node has nothing to work with.
    let of_ours = |accepted: &Accepted| accepted.snapshot.nodes.contains_key(&config.node);
    let goes_on = accepted.as_ref().is_some_and(of_ours);
    machine::admit(store, claim).await?;
    if !goes_on {
        startup::register(store, config, startup::interfaces, &report).await?;
    }
    report("reading the datastore".to_owned());
    let (mut view, accepter) = watch_datastore((store, times), config, etcd, accepted);
    let (outcome, registered) = watch::channel(None);
    let registrar = Registrar {
        store: store.clone(),
        config: config.clone(),
        claim: claim.clone(),
        view: view.clone(),
        interfaces: startup::interfaces,
        registered: !goes_on,
        guid: None,
        outcome,
        problems: registry.reporter("registrar"),
        lost,
    };
    tokio::spawn(registrar.run());
    tokio::spawn(leave_name(config.clone(), registry.reporter("node name")));
    if goes_on {
        await_answer(config, &mut view, registered).await;
    } else {
        view.wait_for(|view| view.synced)
            .await
            .context("the watcher has ended")?;
    }
    let rememberer = remember::spawn(remember::Parts {
        lib_dir: config.lib_dir.clone(),
        me: config.node.clone(),
        view: view.clone(),
        all_endpoints: all_endpoints(config),
        problems: registry.reporter("rememberer"),
    });
    Ok(Begun {
        view,
        accepter,
        rememberer,
    })
}

/// Reads the last snapshot of an earlier process. A file that is not used is a problem.
fn recall(config: &Config, problems: &ProblemReporter) -> Option<Accepted> {
    match remember::recall(&config.lib_dir, &config.node) {
        Ok(accepted) => accepted,
        Err(error) => {
            problems.warn(vec![remember::unused(&config.lib_dir, &error)]);
            None
        }
    }
}

/// Starts the watcher.
fn watch_datastore<S: PagedStore>(
    (store, times): (&S, WatchOptions),
    config: &Config,
    etcd: watch::Receiver<BTreeSet<IpAddr>>,
    accepted: Option<Accepted>,
) -> (watch::Receiver<View>, Accepter) {
    let options = WatchOptions {
        whole_blocks_of: Some(config.node.clone()),
        endpoint_reader: endpoint_reader(config, etcd),
        enforces_policy: config.enforces_policy,
        node_grace: NODE_GRACE,
        ..times
    };
    let guard = GuardOptions {
        me: config.node.clone(),
        accepted,
        accept: config.accept.clone(),
    };
    spawn_guarded_watcher(store.clone(), options, guard)
}

/// Gives the datastore a short time, when the start can go on without it: the plan is made with the
/// addresses of now if it answers.
async fn await_answer(
    config: &Config,
    view: &mut watch::Receiver<View>,
    mut registered: watch::Receiver<Option<Node>>,
) {
    let heard = view.wait_for(|view| view.synced || view.fault.is_some());
    let answered = matches!(tokio::time::timeout(ANSWER, heard).await, Ok(Ok(_)));
    if answered && view.borrow().synced {
        let written = async {
            let node = registered.wait_for(Option::is_some).await.ok()?.clone()?;
            let same = |view: &View| {
                let known = view.snapshot.nodes.get(&config.node);
                known.is_some_and(|known| says_the_same(known, &node))
            };
            view.wait_for(same).await.ok().map(drop)
        };
        let _late = tokio::time::timeout(ANSWER, written).await;
    }
    let view = view.borrow();
    if !view.synced {
        let reason = view.freshness.reason().unwrap_or_default();
        let revision = view.snapshot.revision;
        tracing::warn!(
            reason,
            revision,
            "starting with what this node remembers; nothing is deleted"
        );
    }
}

/// Whether what routes and announcements follow from is the same. A watch of Kubernetes' Nodes has
/// no status, so without the addresses that the kubelet tells.
fn says_the_same(one: &Node, other: &Node) -> bool {
    let addresses = |node: &Node| {
        let mut spec = node.spec.clone();
        spec.addresses.clear();
        spec
    };
    addresses(one) == addresses(other)
}

/// Which endpoints of other nodes something follows from: all where they have routes of their own,
/// and those that are etcd's, which the way to it leads to.
fn endpoint_reader(config: &Config, etcd: watch::Receiver<BTreeSet<IpAddr>>) -> EndpointReader {
    EndpointReader::new(all_endpoints(config), move |range| {
        let etcd = etcd.borrow();
        etcd.iter().any(|address| range.contains(*address))
    })
}

type AllEndpoints = Box<dyn Fn(&Snapshot) -> bool + Send + Sync>;

/// Whether endpoints of other nodes have routes of their own (`routeSource: WorkloadIPs`).
fn all_endpoints(config: &Config) -> AllEndpoints {
    const VALUE: &str = "workloadips";
    let given = config.felix.get("routesource").map(|v| v.to_lowercase());
    Box::new(move |snapshot| match &given {
        Some(value) => value == VALUE,
        None => snapshot.felix_configurations.values().any(|felix| {
            let value = felix.spec.extra.get("routeSource");
            let text = value.and_then(|value| value.as_str());
            text.is_some_and(|text| text.to_lowercase() == VALUE)
        }),
    })
}

/// Leaves the node's name where Calico's CNI plugin and ours look for it. Nothing else depends on
/// it, so a directory that cannot be written is a problem and no reason not to start.
async fn leave_name(config: Arc<Config>, problems: ProblemReporter) {
    while let Err(error) = leave_file(&config.lib_dir, "nodename", config.node.as_str()) {
        problems.warn(vec![unwritable(&config.lib_dir, &error)]);
        tokio::time::sleep(RETRY).await;
    }
    problems.replace(Vec::new());
}

fn unwritable(lib_dir: &Path, error: &std::io::Error) -> Problem {
    let path = lib_dir.join("nodename");
    Problem {
        code: ProblemCode::NodeLibDir,
        subject: path.display().to_string(),
        reason: format!(
            "cannot write {}: {error}; the CNI plugin finds this node's name there; make room, or make the directory \
             writable (CARACAL_LIB_DIR)",
            path.display()
        ),
    }
}
