//! Starts every task and connects every channel: the picture of `docs/architecture.md` as code. The
//! tasks are the table of [`tasks`]; this file has what begins before them and ends after them.

mod board;
mod only_one;
mod owners;
mod tasks;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use caracal_agent::ReconcilerHandle;
use caracal_bgp::SpeakerHandle;
use caracal_datastore::{Datastore, View};
use caracal_model::{Problem, ProblemCode};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};

use crate::admin;
use crate::config::Config;
use crate::node::answers::console::serve_console;
use crate::node::answers::listeners::Listeners;
use crate::node::answers::{Answers, NodeStage};
use crate::node::ipam::collector::Life;
use crate::node::membership::machine::Taken;
use crate::node::membership::remember::Rememberer;
use crate::node::problems::{ProblemReporter, Registry};
use crate::signals::Signals;

/// Longest time for the last writes to the datastore at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pause between two tries to listen on the admin socket.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time for closing sessions at the end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// State that exists before any task of the table, so that questions are answered from the first
/// moment on.
struct StartState {
    config: Arc<Config>,
    stage: watch::Sender<NodeStage>,
    answers: Answers,
    listeners: Listeners,
    registry: Registry,
    /// Another machine has the name: this process has to end.
    lost: mpsc::Sender<Taken>,
}

/// Runs the node until a signal ends it.
pub(super) async fn run(config: Config) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("listening for signals")?;
    let config = Arc::new(config);
    let _only = only_one::take_turn(&config.lib_dir).await?;
    let listener = match admin::listen(&config.run_dir, config.admin_group).await {
        Err(error) if admin::is_taken(&config.run_dir) => return Err(error),
        listener => listener,
    };
    let registry = Registry::default();
    let (stage, stages) = watch::channel(NodeStage::Starting {
        reason: "connecting to the datastore".to_owned(),
        store: None,
    });
    let answers = Answers {
        config: config.clone(),
        started: Instant::now(),
        stage: stages,
    };
    let listeners = Listeners::start(config.clone(), answers.clone());
    tokio::spawn(serve_console(answers.clone(), registry.reporter("console")));
    let reporter = registry.reporter("admin");
    tokio::spawn(serve_admin(
        config.clone(),
        listener,
        answers.clone(),
        reporter,
    ));

    let ended = signals.end();
    tokio::pin!(ended);

    let (lost, mut taken) = mpsc::channel(1);
    let start_state = StartState {
        config: config.clone(),
        stage,
        answers,
        listeners,
        registry,
        lost,
    };
    let node = tokio::select! {
        node = owners::start(start_state) => node?,
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

/// Parts that must be shut down in order.
struct Node {
    reconciler: ReconcilerHandle,
    speaker: SpeakerHandle,
    rememberer: Rememberer,
    life: Life<Datastore>,
    view: watch::Receiver<View>,
    /// Answers are given as long as it is there.
    _stage: watch::Sender<NodeStage>,
}

impl Node {
    /// The reconciler freezes first, or it would follow the dying sessions and take routes out of
    /// the kernel.
    async fn stop(self) {
        self.reconciler.freeze().await;
        let current = self.view.borrow().is_current();
        let written = async {
            if current && let Err(error) = self.life.end().await {
                tracing::debug!(%error, "the liveness lease runs out by itself");
            }
        };
        let last = async {
            let written = tokio::time::timeout(LAST_WORDS, written);
            let remembered = tokio::time::timeout(SHUTDOWN, self.rememberer.finish());
            if tokio::join!(written, remembered).1.is_err() {
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

/// Serves the admin socket. A directory that cannot be written is a problem and no reason not to
/// route.
async fn serve_admin(
    config: Arc<Config>,
    mut listener: anyhow::Result<UnixListener>,
    answers: Answers,
    problems: ProblemReporter,
) {
    loop {
        match listener {
            Ok(listener) => {
                problems.replace(Vec::new());
                admin::serve(listener, config.run_dir.clone(), answers.clone()).await;
            }
            Err(error) => {
                problems.warn(vec![Problem {
                code: ProblemCode::NodeRunDir,
                subject: admin::socket_path(&config.run_dir).display().to_string(),
                reason: format!(
                    "no admin socket, so `caracal status` and CNI's announcement wait get no answer: {error:#}; make room, or make the \
                     directory writable (CARACAL_RUN_DIR)"
                ),
            }]);
                tokio::time::sleep(RETRY).await;
            }
        }
        listener = admin::listen(&config.run_dir, config.admin_group).await;
    }
}
