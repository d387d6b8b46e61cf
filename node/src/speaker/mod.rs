//! `caracal speaker`: BGP alone, from a file, without datastore; with kernel routes when the file
//! says so.
//!
//! One task owns the configuration in force: signals and the admin socket ask it to read the file
//! again. A file that does not parse changes nothing.

mod answers;
mod caches;
pub(crate) mod change;
mod dump;
pub(crate) mod file;
mod health;
mod kernel;
mod mark;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use caracal_agent::TableStatus;
use caracal_bgp::{
    OpenRanges, Originations, Speaker, SpeakerConfig, SpeakerEnded, SpeakerHandle, SpeakerOptions,
    compare_configs,
};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::admin;
use crate::config::group::AdminGroup;
use crate::config::variables::without_effect_on_a_speaker;
use crate::exit::{ExitError, code_of, invalid};
use crate::signals::{Signals, ignore};
use answers::SpeakerAnswers;
use caches::Caches;
use caracal_templates::{File, Texts};
use change::ReloadChange;
use dump::Dumps;
use health::Health;
use kernel::Kernel;
use mark::Mark;

/// Longest time for closing sessions at the end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Reloads that wait for their turn; more wait at the socket.
const RELOADS: usize = 4;

/// Pause between two tries to make the admin socket again.
const SOCKET_RETRY: Duration = Duration::from_secs(5);

/// Asks for a reload; the answer says what changed, or why nothing did.
type Reload = oneshot::Sender<Result<ReloadChange, ExitError>>;

/// Where the admin socket is, and who may use it beside root.
#[derive(Clone, Debug)]
pub(crate) struct AdminPlace {
    pub(crate) run_dir: PathBuf,
    pub(crate) group: Option<AdminGroup>,
}

/// Runs a speaker until SIGTERM (a restart is expected) or SIGINT (it leaves for good).
pub(crate) fn run(
    place: AdminPlace,
    file: &Path,
    http: Option<SocketAddr>,
    open: OpenRanges,
    read: (Texts, File),
) -> anyhow::Result<ExitCode> {
    crate::files::allow_many();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.spawn(crate::allocator::give_back());
    runtime.block_on(serve(&place, file.to_owned(), http, open, read))
}

/// Lines of the file that change nothing here.
fn tell(notes: &[String]) {
    for note in notes {
        tracing::info!("{note}");
    }
}

async fn serve(
    place: &AdminPlace,
    file: PathBuf,
    http: Option<SocketAddr>,
    open: OpenRanges,
    (texts, read): (Texts, File),
) -> anyhow::Result<ExitCode> {
    let File {
        speaker: config,
        kernel: tables,
        direct,
        dumps: wanted_dumps,
        caches: wanted_caches,
        notes,
    } = read;
    let run_dir = &place.run_dir;
    let listener = admin::listen(run_dir, place.group).await?;
    let (mark, marked) = Mark::begin(run_dir)
        .with_context(|| format!("marking the run in {}", run_dir.display()))?;
    // With a forwarding table it is the table that says whether forwarding has survived (RFC 4724
    // §4.1).
    let restarting = match tables.is_empty() {
        true => marked,
        false => kernel::holds_routes(&tables).await?,
    };
    let signals = Signals::listen().context("listening for signals")?;

    tracing::info!(
        file = %file.display(), asn = %config.local_as, router_id = %config.router_id,
        peers = config.peers.len(), originated = config.originate.len(), restarting, "speaker starts"
    );
    tell(&notes);
    let names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    for warning in without_effect_on_a_speaker(names.iter().map(String::as_str)) {
        tracing::warn!("{warning}");
    }
    let options = SpeakerOptions {
        restarting,
        open,
        // Before the first session, so that nothing of theirs is ever written for ours.
        local: kernel::local_networks(&tables).await?,
        ..SpeakerOptions::default()
    };
    let speaker = Speaker::spawn(config.clone(), options);
    let kernel = Kernel::start(tables, direct, config.originate.clone(), &speaker).await?;
    let tables_say = kernel.status();
    let mut caches = Caches::new();
    caches.change(wanted_caches);
    let (reload, reloads) = mpsc::channel::<Reload>(RELOADS);
    let answers = SpeakerAnswers {
        started: Instant::now(),
        file: file.clone(),
        speaker: speaker.clone(),
        kernel: kernel.status(),
        caches: caches.followed(),
        reload,
    };
    tokio::spawn(serve_admin(listener, place.clone(), answers));
    if let Some(address) = http {
        let health = Health {
            speaker: speaker.clone(),
            caches: caches.followed(),
        };
        tokio::spawn(crate::http::serve(address, health));
    }

    let mut dumps = Dumps::default();
    dumps.change(wanted_dumps, &speaker);
    let mut current = Current {
        dumps,
        caches,
        file,
        texts,
        connected: Originations::default(),
        redistributed: Originations::default(),
        config,
        kernel,
        speaker: speaker.clone(),
    };
    let restart = follow(&mut current, signals, tables_say, reloads).await;
    stop(&current, &mark, restart).await;
    let _removed = std::fs::remove_file(admin::socket_path(run_dir));
    Ok(ExitCode::SUCCESS)
}

/// Serves the admin socket, and makes it again when its file was removed.
async fn serve_admin(listener: UnixListener, place: AdminPlace, answers: SpeakerAnswers) {
    let mut listener = Some(listener);
    loop {
        match listener.take() {
            Some(listener) => admin::serve(listener, place.run_dir.clone(), answers.clone()).await,
            None => tokio::time::sleep(SOCKET_RETRY).await,
        }
        let again = admin::listen(&place.run_dir, place.group).await;
        listener = again
            .inspect_err(|error| tracing::warn!("no admin socket: {error:#}"))
            .ok();
    }
}

/// Follows signals, orders to reload and the tables until a signal ends the speaker; true when a
/// restart is expected.
async fn follow(
    current: &mut Current,
    mut signals: Signals,
    mut tables_say: watch::Receiver<Option<Arc<TableStatus>>>,
    mut reloads: mpsc::Receiver<Reload>,
) -> bool {
    let learned = current.caches.changed();
    let looked = current.kernel.looked();
    loop {
        tokio::select! {
            name = signals.next() => match name {
                "SIGTERM" => break true,
                "SIGINT" => break false,
                "SIGHUP" => drop(current.reload().await),
                name => ignore(name),
            },
            Ok(()) = tables_say.changed() => {
                tables_say.mark_unchanged();
                current.redistribute().await;
            }
            () = learned.notified() => current.learn().await,
            () = looked.notified() => current.redistribute().await,
            Some(answer) = reloads.recv() => {
                let change = current.reload().await;
                // Whoever asked may have hung up; the change is in force all the same.
                let _gone = answer.send(change);
            }
        }
    }
}

async fn stop(current: &Current, mark: &Mark, restart: bool) {
    let marked = if restart {
        tracing::info!(
            "SIGTERM: a restart is expected; peers keep our routes where they agreed to"
        );
        mark.expect_restart()
    } else {
        tracing::info!("SIGINT: leaving; peers are told to drop our routes");
        mark.end()
    };
    if let Err(error) = marked {
        tracing::warn!(%error, "the mark of this run could not be written");
    }
    // First, or the tables would follow the dying sessions.
    if restart {
        current.kernel.freeze().await;
    }
    let closed = tokio::time::timeout(SHUTDOWN, current.speaker.shutdown(restart)).await;
    if closed.is_err() {
        tracing::warn!("sessions did not close in {} s", SHUTDOWN.as_secs());
    }
    // Last, so that nobody sends us packets for which there is no way any more.
    if !restart {
        current.kernel.remove().await;
    }
}

/// The configuration in force.
struct Current {
    dumps: Dumps,
    caches: Caches,
    file: PathBuf,
    /// What was read last, with all that it includes.
    texts: Texts,
    /// Configuration of the file.
    config: SpeakerConfig,
    /// Routes announced before that: subnets of interfaces.
    connected: Originations,
    /// Routes announced beyond that: foreign routes of the kernel's tables.
    redistributed: Originations,
    kernel: Kernel,
    speaker: SpeakerHandle,
}

impl Current {
    /// Goes over to what the file says now. When it does not parse, nothing changes.
    async fn reload(&mut self) -> Result<ReloadChange, ExitError> {
        let (in_force, learned) = (self.config.router_id, self.caches.learned());
        let file = match file::read(&self.file, Some(in_force), &learned) {
            Ok((texts, file)) => {
                self.texts = texts;
                file
            }
            Err(error) => {
                let error = invalid(error.into());
                let reason = format!("the configuration in force stays: {error:#}");
                tracing::error!("{reason}");
                return Err(ExitError::new(code_of(&error), reason));
            }
        };
        tell(&file.notes);
        let change = self.go_over_to(file).await?;
        // A cache that is another one has sent nothing yet.
        if change.caches {
            self.learn().await;
        }
        tracing::info!(
            added = change.added.len(),
            removed = change.removed.len(),
            changed = change.changed.len(),
            originated = change.originated.len(),
            withdrawn = change.withdrawn.len(),
            "configuration read again"
        );
        self.redistribute().await;
        Ok(change)
    }

    async fn go_over_to(&mut self, file: File) -> Result<ReloadChange, ExitError> {
        let change = compare_configs(&self.config, &file.speaker);
        let nothing = change.is_empty();
        let mut change = ReloadChange::from(change);
        // Equal configurations are not told: a reload of the same file touches nobody.
        if !nothing {
            self.config = file.speaker;
            self.announce();
            self.apply().await.map_err(|error| error.to_string())?;
        }
        let failed = |error| format!("{:#}", anyhow::Error::from(error));
        let changed = self.kernel.change(file.kernel, &self.speaker).await;
        change.kernel = changed.map_err(failed)?;
        change.direct = self.kernel.connect(file.direct).map_err(failed)?;
        change.dumps = self.dumps.change(file.dumps, &self.speaker);
        change.caches = self.caches.change(file.caches);
        Ok(change)
    }

    /// RPKI caches have sent other entries: filters that ask for them run again, as after a reload
    /// of a file with those in it.
    async fn learn(&mut self) {
        let learned = self.caches.learned();
        let entries: usize = learned.values().map(|entries| entries.len()).sum();
        let in_force = self.config.router_id;
        let gone = match file::learn(&self.texts, &self.file, in_force, &learned) {
            Ok(file) => self.go_over_to(file).await,
            Err(error) => Err(error.to_string().into()),
        };
        match gone {
            Ok(change) => {
                let filtered_again = change.changed.len();
                tracing::info!(
                    entries,
                    filtered_again,
                    "RPKI caches have sent other entries"
                );
            }
            Err(error) => tracing::error!("entries of RPKI caches are not in use: {error:#}"),
        }
    }

    /// The tables of the kernel get the file's routes, but for those of interfaces, which are
    /// there.
    fn announce(&self) {
        let file = &self.config.originate;
        if self.connected.is_empty() {
            return self.kernel.announce(file);
        }
        let mut own = file.clone();
        own.retain(|prefix, _| !self.connected.contains_key(prefix));
        self.kernel.announce(&own);
    }

    /// Announces the subnets of interfaces, and what others have in the kernel's tables now.
    async fn redistribute(&mut self) {
        let connected = self.kernel.connected();
        let redistributed = self.kernel.redistributed();
        if connected == self.connected && redistributed == self.redistributed {
            return;
        }
        tracing::info!(
            interfaces = connected.len(),
            others = redistributed.len(),
            "routes of the kernel are announced"
        );
        (self.connected, self.redistributed) = (connected, redistributed);
        self.announce();
        if let Err(error) = self.apply().await {
            tracing::warn!(%error, "routes of the kernel are not announced");
        }
    }

    /// Tells the speaker. As by BIRD's preferences, the subnet of an interface counts before what
    /// the file says of a prefix, and that before what others have in the kernel's tables.
    async fn apply(&self) -> Result<(), SpeakerEnded> {
        let mut config = self.config.clone();
        for (prefix, route) in &self.connected {
            config.originate.insert(*prefix, route.clone());
        }
        for (prefix, route) in &self.redistributed {
            config
                .originate
                .entry(*prefix)
                .or_insert_with(|| route.clone());
        }
        self.speaker.reconfigure(config).await
    }
}
