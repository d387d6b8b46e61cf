//! Starts the owners whose handles others need, in order: the datastore's view, the speaker, the
//! kernel's writer, who answers; then the rest of the table.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use caracal_agent::{
    Ownership, Reconciler, ReconcilerHandle, ReconcilerOptions, Settings, SweepPrecondition,
};
use caracal_bgp::{Speaker, SpeakerConfig, SpeakerHandle, SpeakerOptions};
use caracal_datastore::{Accepter, Datastore, DatastoreConfig, View};
use caracal_topologies::BgpPlan;
use tokio::sync::watch;

use super::board::{Board, Feed, Feeds};
use super::{Node, StartState, tasks};
use crate::config::{Backend, Config};
use crate::kernel_answer::await_kernel;
use crate::metrics::ipam::Collected;
use crate::node::announce::drain::{self, DrainStatus};
use crate::node::announce::named_secrets;
use crate::node::announce::origins;
use crate::node::announce::publish;
use crate::node::announce::publish::AnnouncedPlan;
use crate::node::announce::secrets::{self, Secrets};
use crate::node::announce::transition_report::InForce;
use crate::node::answers::auditor::{self, Auditor};
use crate::node::answers::status_publisher::publish_status;
use crate::node::answers::{Answers, NodeStage, Owners};
use crate::node::kernel::datastore_way;
use crate::node::kernel::kube_proxy::Takeover;
use crate::node::kernel::learned::{self, Completeness, Resolved};
use crate::node::kernel::lifelines;
use crate::node::kernel::mtu;
use crate::node::kernel::policy::Enforced;
use crate::node::kernel::services::Translated;
use crate::node::membership::beginning;
use crate::node::membership::machine::Claim;
use crate::node::problems::Registry;

/// The datastore that the environment names.
fn datastore(config: &Config) -> anyhow::Result<DatastoreConfig> {
    let (services, policy) = (config.services.is_on(), config.enforces_policy);
    Ok(DatastoreConfig::from_env()?.for_node(&config.node, services, policy))
}

/// Starts everything.
pub(super) async fn start(start_state: StartState) -> anyhow::Result<Node> {
    let StartState {
        config,
        stage,
        answers,
        listeners,
        registry,
        lost,
    } = start_state;
    let datastore = datastore(&config)?;
    let hosts = datastore.hosts()?;
    let store = datastore.open()?;
    crate::out::speak_of(&store);
    let report = |reason: String| {
        let store = Some(store.clone());
        let _previous = stage.send_replace(NodeStage::Starting { reason, store });
    };
    let (lifelines, freed) = free_datastore(&config, &hosts, &store, &registry, &report).await;
    let claim = Claim::of_this_machine(&config);
    let from = (&store, store.watch_options(), lifelines.reader());
    let begun = beginning::begin(from, &config, &claim, lost.clone(), &report, &registry).await?;
    let (view, accepter) = (begun.view, begun.accepter);
    let ports = registry.reporter("ports");
    tokio::spawn(listeners.follow(view.clone(), ports));

    let first = view.borrow().clone();
    let known = lifelines.reader().borrow().clone();
    let speaking = Speaking::start(&config, &store, &registry, (&first, &known), &report).await?;
    let fib = speaking.speaker.fib().await?;
    let feeds = feeds(&speaking, lifelines, &first, &config);
    let reconciler = start_reconciler(&config, &feeds)?;
    let board = Board {
        config,
        store,
        hosts,
        freed,
        claim,
        lost,
        registry,
        view: view.clone(),
        first,
        speaker: speaking.speaker.clone(),
        speaker_config: speaking.config,
        fib,
        kernel: reconciler.status(),
        underlay: reconciler.underlay(),
        feeds,
    };
    tasks::start(&board);
    let owners = answering(&board, answers, accepter, &reconciler, speaking.starts_anew);
    let _previous = stage.send_replace(NodeStage::Running(owners));
    Ok(Node {
        reconciler,
        speaker: speaking.speaker,
        rememberer: begun.rememberer,
        life: board.life(),
        view,
        _stage: stage,
    })
}

/// The datastore's addresses, and whether it is known that nothing that an earlier process has left
/// in the kernel stands between this node and them.
async fn free_datastore(
    config: &Config,
    hosts: &lifelines::Hosts,
    store: &Datastore,
    registry: &Registry,
    report: impl Fn(String),
) -> (Feed<BTreeSet<IpAddr>>, watch::Receiver<bool>) {
    let known = lifelines::look_up(hosts).await;
    lifelines::free(&config.node, &config.felix, &known, report).await;
    let way = (
        lifelines::endpoints(hosts, &known),
        store.has_nodes_of_kubernetes(),
    );
    let problems = registry.reporter("datastore's way at the start");
    let freed = datastore_way::free_at_start(config.services.is_on(), way, problems).await;
    (Feed::new(known), freed)
}

/// The speaker as it was started.
struct Speaking {
    speaker: SpeakerHandle,
    config: SpeakerConfig,
    planned: BgpPlan,
    secrets: Secrets,
    drain: DrainStatus,
    /// The kernel has no routes of ours.
    starts_anew: bool,
}

impl Speaking {
    /// Plans for the first view and starts the speaker with it.
    async fn start(
        config: &Config,
        store: &Datastore,
        registry: &Registry,
        (first, datastore): (&View, &BTreeSet<IpAddr>),
        report: impl Fn(String),
    ) -> anyhow::Result<Self> {
        let secrets = match &config.secrets_dir {
            Some(folder) => secrets::read(folder)
                .with_context(|| format!("CARACAL_SECRETS_DIR {}", folder.display()))?,
            None => named_secrets::first(store, &config.namespace, &first.snapshot).await,
        };
        let planned = publish::speaker_config(&first.snapshot, config, &secrets, datastore);
        publish::log_changes(&[], &planned.problems, &config.node);
        registry.reporter("plan").replace(planned.problems.clone());
        // Routes that a killed predecessor left in the kernel still forward: set the F bit towards
        // peers (RFC 4724 §4.1).
        let routes = async || {
            let held = caracal_agent::holds_our_routes().await;
            held.context("reading the routes")
        };
        let restarting = await_kernel(routes, &report).await?;
        let interfaces = async || {
            let links = caracal_agent::read_links().await;
            links.context("reading the interfaces")
        };
        let links = await_kernel(interfaces, &report).await?;
        let options = SpeakerOptions {
            restarting,
            open: config.allow_martians,
            // The agent tells later ones after each pass.
            local: caracal_agent::local_networks(&links, &Ownership::default()),
            origins: origins::whole(first, &config.node, config.origin_check),
            ..SpeakerOptions::default()
        };
        let drain = drain::recall_or_report(&config.lib_dir, &registry.reporter("drain"));
        let running = drain::at_stage(planned.config.clone(), drain.stage);
        let speaker = Speaker::spawn(running.clone(), options);
        if drain.stage == drain::DrainStage::Drained {
            tracing::warn!(
                text = drain.text,
                "the node is drained; no session is started"
            );
            speaker.disable(drain.text.clone()).await?;
        }
        Ok(Self {
            speaker,
            config: running,
            planned,
            secrets,
            drain,
            starts_anew: !restarting,
        })
    }
}

/// The feeds with their first values.
fn feeds(
    speaking: &Speaking,
    lifelines: Feed<BTreeSet<IpAddr>>,
    first: &View,
    node: &Config,
) -> Feeds {
    let Speaking {
        config,
        planned,
        secrets,
        drain,
        ..
    } = speaking;
    Feeds {
        lifelines,
        secrets: Feed::new(secrets.clone()),
        drain: Feed::new(drain.clone()),
        announced: Feed::new(AnnouncedPlan::default()),
        gateways: Feed::new(planned.kernel.reachable_by.clone()),
        resolved: Feed::new(Resolved::default()),
        resolved_routes: Feed::new(0),
        in_force: Feed::new(InForce::new(planned.transition.clone(), config)),
        stage_in_force: Feed::new(drain.stage),
        learned: Feed::new(learned::Map::default()),
        judged: Feed::new(false),
        completeness: Feed::new(Completeness::default()),
        precondition: Feed::new(SweepPrecondition::default()),
        snapshots: Feed::new(first.snapshot.clone()),
        collected: Feed::new(Collected::default()),
        enforced: Feed::new(Enforced::default()),
        translated: Feed::new(Translated::default()),
        takeover: Takeover::recall(node.services, &node.lib_dir),
    }
}

/// Starts the one writer of the kernel.
fn start_reconciler(config: &Config, feeds: &Feeds) -> anyhow::Result<ReconcilerHandle> {
    let options = ReconcilerOptions {
        overrides: config.felix.clone(),
        lifelines: feeds.lifelines.reader(),
        lib_dir: Some(config.lib_dir.clone()),
        measure_paths: config.path_mtu.then(|| mtu::recall(&config.lib_dir)),
        settings: Settings {
            objects: config.next_hop_objects,
            ..Settings::default()
        },
        resolved: Some(feeds.resolved_routes.reader()),
        ..ReconcilerOptions::new(config.node.clone())
    };
    Ok(Reconciler::spawn(
        options,
        feeds.snapshots.reader(),
        feeds.precondition.reader(),
        feeds.learned.reader(),
    )?)
}

/// Starts the owners that only answer, and returns the handles of all owners.
fn answering(
    board: &Board,
    answers: Answers,
    accepter: Accepter,
    reconciler: &ReconcilerHandle,
    starts_anew: bool,
) -> Arc<Owners> {
    let drainer = drain::spawn(drain::DrainerParts {
        me: board.config.node.clone(),
        lib_dir: board.config.lib_dir.clone(),
        view: board.view.clone(),
        speaker: board.speaker.clone(),
        status: board.feeds.drain.writer(),
        in_force: board.feeds.stage_in_force.reader(),
    });
    let auditor = Auditor::spawn(auditor::AuditorInputs {
        me: board.config.node.clone(),
        view: board.view.clone(),
        speaker: (board.config.backend == Backend::Bird).then(|| board.speaker.clone()),
        kernel: reconciler.status(),
        learned: board.feeds.learned.reader(),
        problems: board.registry.problems(),
        drain: board.feeds.drain.reader(),
        translated: board.feeds.translated.reader(),
    });
    let findings = auditor.counting();
    let owners = Arc::new(Owners {
        store: board.store.clone(),
        view: board.view.clone(),
        accepter,
        speaker: board.speaker.clone(),
        announced: board.feeds.announced.reader(),
        enforced: board.feeds.enforced.reader(),
        kernel: reconciler.status(),
        starts_anew,
        reconciler: reconciler.clone(),
        collected: board.feeds.collected.reader(),
        translated: board.feeds.translated.reader(),
        takeover: board.feeds.takeover.clone(),
        problems: board.registry.problems(),
        auditor,
        drainer,
    });
    tokio::spawn(publish_status(answers, owners.clone(), findings));
    owners
}
