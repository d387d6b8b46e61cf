//! Starts every task and connects every channel; the picture of `docs/architecture.md` as code.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use caracal_agent::Settings;
use caracal_agent::dataplane::{Gate, Reconciler, ReconcilerHandle, ReconcilerOptions};
use caracal_agent::ownership::Ownership;
use caracal_bgp::config::SpeakerConfig;
use caracal_bgp::speaker::status::Convergence;
use caracal_bgp::speaker::{Speaker, SpeakerHandle, SpeakerOptions};
use caracal_datastore::watch::View;
use caracal_datastore::{EtcdConfig, EtcdStore};
use caracal_ipam::client::Client;
use caracal_model::code::ProblemCode;
use caracal_model::snapshot::Problem;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::announced::Told;
use super::answers::{Answers, Owners, Stage};
use super::auditor::{self, Auditor};
use super::collector::Life;
use super::learned::Gateways;
use super::listeners::Listeners;
use super::machine::Taken;
use super::parting::InForce;
use super::remember::Rememberer;
use super::secrets::Secrets;
use super::{
    beginning, collector, drain, gate, held, learned, lifelines, likely, machine, mode_check, mtu,
    origins, parting, publish, reached, readdress, secrets, severed, tombstones, tunnels,
};
use crate::admin;
use crate::config::{Backend, Config};
use crate::local_networks;

/// Longest time for what is told to the datastore at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pause between two tries to listen on the admin socket.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time for closing sessions at the end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Runs the node until a signal ends it.
pub(super) async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let config = Arc::new(config);
    let listener = match admin::listen(&config.run_dir) {
        Err(error) if admin::is_taken(&config.run_dir) => return Err(error),
        listener => listener,
    };
    let (stage, stages) = watch::channel(Stage::Starting("connecting to the datastore".to_owned()));
    let answers = Answers {
        config: config.clone(),
        started: Instant::now(),
        stage: stages,
    };
    let listeners = Listeners::start(config.clone(), answers.clone());
    let (unheard, unheard_rx) = watch::channel(Vec::new());
    tokio::spawn(serve_admin(config.clone(), listener, answers, unheard));

    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let ended = async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    tokio::pin!(ended);

    let (lost, mut taken) = mpsc::channel(1);
    let node = tokio::select! {
        node = start(&config, &stage, listeners, lost, unheard_rx) => node?,
        name = &mut ended => {
            tracing::info!("{name} before the node was up");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (name, taken) = tokio::select! {
        name = &mut ended => (name, None),
        Some(taken) = taken.recv() => ("another machine has this node's name", Some(taken)),
    };
    tracing::info!("{name}: a restart is expected; routes stay in the kernel");
    node.stop().await;
    let _removed = std::fs::remove_file(admin::socket_path(&config.run_dir));
    match taken {
        Some(taken) => Err(taken.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// What has to be ended in order.
struct Node {
    reconciler: ReconcilerHandle,
    speaker: SpeakerHandle,
    rememberer: Rememberer,
    life: Life<EtcdStore>,
    view: watch::Receiver<View>,
}

impl Node {
    /// The reconciler freezes first, or it would follow the dying sessions and take routes out of the kernel.
    async fn stop(self) {
        self.reconciler.freeze().await;
        let current = self.view.borrow().is_current();
        let told = async {
            if current && let Err(error) = self.life.end().await {
                tracing::debug!(%error, "the lease of life runs out by itself");
            }
        };
        let last = async {
            let told = tokio::time::timeout(LAST_WORDS, told);
            let remembered = tokio::time::timeout(SHUTDOWN, self.rememberer.finish());
            if tokio::join!(told, remembered).1.is_err() {
                tracing::warn!(
                    "the last snapshot was not written in {} s",
                    SHUTDOWN.as_secs()
                );
            }
        };
        let ((), closed) = tokio::join!(
            last,
            tokio::time::timeout(SHUTDOWN, self.speaker.shutdown(true))
        );
        if closed.is_err() {
            tracing::warn!("sessions did not close in {} s", SHUTDOWN.as_secs());
        }
    }
}

/// Serves the admin socket. A directory that cannot be written is a problem and no reason not to route.
async fn serve_admin(
    config: Arc<Config>,
    mut listener: anyhow::Result<UnixListener>,
    answers: Answers,
    problems: watch::Sender<Vec<Problem>>,
) {
    loop {
        match listener {
            Ok(listener) => {
                problems.send_replace(Vec::new());
                return admin::serve(listener, answers).await;
            }
            Err(error) => {
                let problem = Problem {
                    code: ProblemCode::NodeRunDir,
                    subject: admin::socket_path(&config.run_dir).display().to_string(),
                    reason: format!(
                        "no admin socket, so `caracal status` and CNI's announcement wait get no answer: {error:#}; make room, or make the \
                         directory writable (CARACAL_RUN_DIR)"
                    ),
                };
                if problems.borrow().is_empty() {
                    tracing::warn!(code = %problem.code, "{}", problem.reason);
                }
                problems.send_replace(vec![problem]);
            }
        }
        tokio::time::sleep(RETRY).await;
        listener = admin::listen(&config.run_dir);
    }
}

async fn start(
    config: &Arc<Config>,
    stage: &watch::Sender<Stage>,
    listeners: Listeners,
    lost: mpsc::Sender<Taken>,
    unheard: watch::Receiver<Vec<Problem>>,
) -> anyhow::Result<Node> {
    let tell = |what: String| {
        let _previous = stage.send_replace(Stage::Starting(what));
    };
    let endpoints = EtcdConfig::from_env()?;
    let hosts: Vec<_> = endpoints.hosts().collect();
    let store = EtcdStore::new(endpoints)?;
    let (lifelines_tx, lifelines_rx) = watch::channel(lifelines::look_up(&hosts).await);
    let known = lifelines_rx.borrow().clone();
    lifelines::free(&config.node, &config.felix, &known).await;
    tokio::spawn(lifelines::keep(hosts, lifelines_tx));
    let holder = machine::this(&config.lib_dir);
    let begun = beginning::begin(&store, config, &holder, lost.clone(), tell).await?;
    let view = begun.view;
    let (tunnel_problems, tunnel_problems_rx) = watch::channel(Vec::new());

    let (port_problems, port_problems_rx) = watch::channel(Vec::new());
    tokio::spawn(listeners.follow(view.clone(), port_problems));

    let known = match &config.secrets_dir {
        Some(folder) => secrets::read(folder)
            .with_context(|| format!("CARACAL_SECRETS_DIR {}", folder.display()))?,
        None => Secrets::new(),
    };
    let first = view.borrow().clone();
    let planned = publish::speaker_config(&first.snapshot, config, &known);
    let (secrets, secrets_rx) = watch::channel(known);
    if let Some(folder) = config.secrets_dir.clone() {
        tokio::spawn(secrets::keep(folder, secrets.clone()));
    }
    publish::log_changes(&[], &planned.problems, &config.node);
    // What a killed predecessor left in the kernel still forwards: say so to the peers (RFC 4724 §4.1).
    let restarting = caracal_agent::dataplane::holds_our_routes().await?;
    let links = caracal_agent::dataplane::links()
        .await
        .context("reading the interfaces")?;
    let options = SpeakerOptions {
        restarting,
        open: config.allow_martians,
        // The agent tells later ones after each pass.
        local: local_networks::of_node(&links, &Ownership::default()),
        origins: origins::whole(&first, config.origin_check),
        ..SpeakerOptions::default()
    };
    let (recalled, unread) = recall_drain(config);
    let current = drain::at_stage(planned.config, recalled.stage);
    let speaker = Speaker::spawn(current.clone(), options);
    if recalled.stage == drain::Stage::Drained {
        tracing::warn!(
            text = recalled.text,
            "the node is drained; no session is started"
        );
        speaker.disable(recalled.text.clone()).await?;
    }

    tokio::spawn(origins::keep(
        view.clone(),
        first,
        config.origin_check,
        speaker.clone(),
    ));

    let (plan_problems, plan_problems_rx) = watch::channel(planned.problems);
    let (told, told_rx) = watch::channel(Told::default());
    let (gateways, gateways_rx) = watch::channel(planned.kernel.reachable_by);
    let (in_force, in_force_rx) = watch::channel(InForce::of(planned.transition, &current));
    let (stage_in_force, stage_in_force_rx) = watch::channel(recalled.stage);
    let (drain_status, drain_status_rx) = watch::channel(recalled);
    tokio::spawn(publish_changes(Publisher {
        config: config.clone(),
        view: view.clone(),
        secrets: (secrets, secrets_rx),
        drain: drain_status_rx.clone(),
        speaker: speaker.clone(),
        current,
        problems: plan_problems,
        told,
        in_force,
        stage_in_force,
        gateways,
    }));
    let reporter = parting::report(
        store.clone(),
        config.node.clone(),
        speaker.clone(),
        in_force_rx,
    );
    tokio::spawn(reporter);
    let drainer = drain::spawn(drain::Parts {
        me: config.node.clone(),
        lib_dir: config.lib_dir.clone(),
        view: view.clone(),
        speaker: speaker.clone(),
        status: drain_status,
        in_force: stage_in_force_rx,
    });

    let (learned_tx, learned_rx) = watch::channel(Arc::default());
    let (converged_tx, converged_rx) = watch::channel(Convergence::default());
    tokio::spawn(learned::follow(
        speaker.fib().await?,
        speaker.convergence(),
        gateways_rx,
        learned_tx,
        converged_tx,
    ));

    let (gate_tx, gate_rx) = watch::channel(Gate::default());
    let (snapshots, snapshots_rx) = watch::channel(view.borrow().snapshot.clone());
    tokio::spawn(gate::keep(
        view.clone(),
        converged_rx,
        speaker.clone(),
        snapshots,
        gate_tx,
    ));
    let reconciler = Reconciler::spawn(
        ReconcilerOptions {
            overrides: config.felix.clone(),
            lifelines: lifelines_rx,
            lib_dir: Some(config.lib_dir.clone()),
            measure_paths: config.path_mtu.then(|| mtu::recall(&config.lib_dir)),
            settings: Settings {
                objects: config.next_hop_objects,
                ..Settings::default()
            },
            ..ReconcilerOptions::new(config.node.clone())
        },
        snapshots_rx,
        gate_rx,
        learned_rx.clone(),
    )?;

    tokio::spawn(reached::keep(reconciler.status(), speaker.clone()));
    let (tombstone_problems, tombstone_problems_rx) = watch::channel(Vec::new());
    tokio::spawn(tombstones::keep(
        store.clone(),
        config.lib_dir.clone(),
        view.clone(),
        tombstone_problems,
    ));
    let life = Life {
        store: store.clone(),
        me: config.node.clone(),
        holder,
        grace: config.ipam_grace.unwrap_or(machine::TERM),
    };
    tokio::spawn(life.clone().live(view.clone(), lost));
    tokio::spawn(held::keep(config.run_dir.clone(), view.clone()));
    let (collected_tx, collected) = watch::channel(collector::Collected::default());
    if let Some(grace) = config.ipam_grace {
        let me = config.node.clone();
        let collecting = collector::collect(store.clone(), me, grace, view.clone(), collected_tx);
        tokio::spawn(collecting);
    }
    let (address_problems, address_problems_rx) = watch::channel(Vec::new());
    tokio::spawn(readdress::keep(
        || Ok(EtcdStore::new(EtcdConfig::from_env()?)?),
        config.clone(),
        view.clone(),
        reconciler.status(),
        address_problems,
    ));
    let check_store = store.clone();
    tokio::spawn(tunnels::keep(
        store.clone(),
        Client::new(store.clone()),
        config.node.clone(),
        tunnels::Heard {
            view: view.clone(),
            kernel: reconciler.status(),
        },
        tunnel_problems,
    ));

    tokio::spawn(severed::keep(reconciler.status()));
    tokio::spawn(mode_check::keep(
        check_store,
        config.node.clone(),
        view.clone(),
        reconciler.status(),
    ));
    tokio::spawn(mtu::keep(config.lib_dir.clone(), reconciler.status()));
    tokio::spawn(likely::keep(
        config.run_dir.clone(),
        config.node.clone(),
        view.clone(),
    ));

    let mut problems = vec![
        plan_problems_rx,
        tunnel_problems_rx,
        tombstone_problems_rx,
        address_problems_rx,
        unheard,
        unread,
        port_problems_rx,
    ];
    problems.extend(begun.problems);
    let auditor = Auditor::spawn(auditor::Heard {
        me: config.node.clone(),
        view: view.clone(),
        speaker: (config.backend == Backend::Bird).then(|| speaker.clone()),
        kernel: reconciler.status(),
        learned: learned_rx,
        problems: problems.clone(),
        drain: drain_status_rx,
    });
    let owners = Owners {
        store,
        view: view.clone(),
        accepter: begun.accepter,
        speaker: speaker.clone(),
        told: told_rx,
        kernel: reconciler.status(),
        reconciler: reconciler.clone(),
        collected,
        problems,
        auditor,
        drainer,
    };
    let _previous = stage.send_replace(Stage::Running(Arc::new(owners)));
    Ok(Node {
        reconciler,
        speaker,
        rememberer: begun.rememberer,
        life,
        view,
    })
}

/// Whether the node was drained. Where that cannot be read it is taken to be in service, and told.
fn recall_drain(config: &Config) -> (drain::DrainStatus, watch::Receiver<Vec<Problem>>) {
    let (status, found) = match drain::recall(&config.lib_dir) {
        Ok(status) => (status, Vec::new()),
        Err(error) => {
            let problem = Problem {
                code: ProblemCode::NodeLibDir,
                subject: config.lib_dir.display().to_string(),
                reason: format!(
                    "cannot read whether the node is drained: {error}; it is taken to be in service (CARACAL_LIB_DIR)"
                ),
            };
            tracing::warn!(code = %problem.code, "{}", problem.reason);
            (drain::DrainStatus::default(), vec![problem])
        }
    };
    (status, watch::channel(found).1)
}

/// What the publisher works with.
struct Publisher {
    config: Arc<Config>,
    view: watch::Receiver<View>,
    /// The sender keeps the other end open without a folder to look at.
    secrets: (watch::Sender<Secrets>, watch::Receiver<Secrets>),
    drain: watch::Receiver<drain::DrainStatus>,
    speaker: SpeakerHandle,
    /// What the speaker was told last.
    current: SpeakerConfig,
    problems: watch::Sender<Vec<Problem>>,
    told: watch::Sender<Told>,
    in_force: watch::Sender<Option<InForce>>,
    /// The stage of the drain that the speaker was told last.
    stage_in_force: watch::Sender<drain::Stage>,
    gateways: watch::Sender<Gateways>,
}

/// Plans anew for each snapshot and each stage of a drain, and tells the speaker when the plan differs.
async fn publish_changes(mut publisher: Publisher) {
    let Publisher {
        config,
        view,
        secrets: (_, secrets),
        drain,
        speaker,
        current,
        problems,
        told,
        in_force,
        stage_in_force,
        gateways,
    } = &mut publisher;
    // The snapshot may have moved on since the speaker was started with a plan.
    view.mark_changed();
    loop {
        let alive = tokio::select! {
            changed = view.changed() => changed,
            changed = drain.changed() => changed,
            changed = secrets.changed() => changed,
        };
        if alive.is_err() {
            return;
        }
        let snapshot = view.borrow_and_update().snapshot.clone();
        let stage = drain.borrow_and_update().stage;
        let known = secrets.borrow_and_update().clone();
        let planned = publish::speaker_config(&snapshot, config, &known);
        publish::log_changes(&problems.borrow(), &planned.problems, &config.node);
        tell(problems, planned.problems);
        // Before the sessions that need them.
        tell(gateways, planned.kernel.reachable_by);
        let wanted = drain::at_stage(planned.config, stage);
        if wanted != *current {
            tracing::info!(
                rev = snapshot.revision,
                peers = wanted.peers.len(),
                originated = wanted.originate.len(),
                "speaker reconfigured"
            );
            *current = wanted;
            if speaker.reconfigure(current.clone()).await.is_err() {
                tracing::error!("the BGP speaker has ended");
                return;
            }
        }
        told.send_replace(Told {
            revision: snapshot.revision,
            originated: current.originate.keys().copied().collect(),
        });
        // Behind the configuration: a report is about sessions that the speaker has.
        tell(in_force, InForce::of(planned.transition, current));
        stage_in_force.send_replace(stage);
    }
}

/// Tells what is new.
fn tell<T: PartialEq>(sender: &watch::Sender<T>, next: T) {
    sender.send_if_modified(|known| {
        let changed = *known != next;
        *known = next;
        changed
    });
}
