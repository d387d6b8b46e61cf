//! Between the speaker and its tables in the kernel: best routes go there, our own ones as
//! blackholes; the underlay that next hops are resolved over and, where the file says `learn`,
//! routes of others come from there.
//!
//! Without a kernel protocol in the file nothing of this runs: the kernel is neither read nor
//! written, and every next hop counts as reached.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{
    Foreign, LearnScope, Learned, NetlinkError, TABLE_PROTOCOL, TableHandle, TableInput,
    TableSettings, TableStatus, Tables, spawn_table, table_holds_routes,
};
use caracal_bgp::{
    Convergence, FibExportFilter, FibFeed, Origination, Originations, SpeakerEnded, SpeakerHandle,
    StaticWay, admitted, direct_subnets,
};
use caracal_model::{Family, InsertEach, LocalNetworks, Prefix, Underlay};
use caracal_templates::{Direct, KernelTable};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::admin::routes::learned;
use crate::kernel_answer::await_kernel;

/// Longest wait of a start for the first underlay.
const FIRST_UNDERLAY: Duration = Duration::from_secs(2);

/// The tables of a file.
pub(super) type WantedTables = BTreeMap<Family, KernelTable>;

/// Errors of taking kernel tables into use.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelError {
    /// The kernel cannot be asked.
    #[error("the kernel's tables cannot be used")]
    Netlink(#[from] NetlinkError),
    /// The speaker has ended.
    #[error(transparent)]
    Speaker(#[from] SpeakerEnded),
}

fn tables(wanted: &WantedTables) -> Tables {
    let settings = |table: &KernelTable| TableSettings {
        table: table.table,
        protocol: table.protocol.unwrap_or(TABLE_PROTOCOL),
        metric: table.metric,
        paths: usize::try_from(table.paths).unwrap_or(usize::MAX),
        persist: table.persist,
        near: table.near.clone(),
        learn: table.learn.as_ref().map(|learn| match learn.all {
            true => LearnScope::All,
            false => LearnScope::Some,
        }),
    };
    let pair = |(family, table): (&Family, &KernelTable)| (*family, settings(table));
    wanted.iter().map(pair).insert_each()
}

/// The filters of the tables.
fn policy(wanted: &WantedTables) -> FibExportFilter {
    let filter = |(family, table): (&Family, &KernelTable)| Some((*family, table.export.clone()?));
    wanted.iter().filter_map(filter).collect()
}

/// The routes of the configuration, which no peer announced to us.
type OwnRoutes = Originations;

/// True when the kernel forwards by routes of an earlier run.
pub(super) async fn holds_routes(wanted: &WantedTables) -> anyhow::Result<bool> {
    let tables = tables(wanted);
    let read = async || {
        let held = table_holds_routes(&tables).await;
        held.context("the kernel's tables cannot be used")
    };
    await_kernel(read, |_| {}).await
}

/// The machine's own networks, where tables are written; a speaker alone does not look at the
/// kernel.
pub(super) async fn local_networks(wanted: &WantedTables) -> anyhow::Result<LocalNetworks> {
    if wanted.is_empty() {
        return Ok(LocalNetworks::default());
    }
    let read = async || {
        let links = caracal_agent::read_links().await;
        links.context("reading the interfaces")
    };
    let links = await_kernel(read, |_| {}).await?;
    Ok(links.local_networks(|_| false))
}

/// The tables in use.
#[derive(Debug)]
pub(super) struct Kernel {
    wanted: WantedTables,
    running: Option<Running>,
    /// Interfaces whose subnets are announced.
    direct: Vec<Direct>,
    /// Hears of changes of interfaces where no table is in use.
    interfaces: Option<Interfaces>,
    /// Told each time the kernel was looked at because of its interfaces.
    looked: Arc<Notify>,
    /// Routes that the file announces.
    own: watch::Sender<Arc<OwnRoutes>>,
    /// Status of the tables; this channel outlives the task that keeps them.
    status: watch::Sender<Option<Arc<TableStatus>>>,
}

#[derive(Debug)]
struct Running {
    handle: TableHandle,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Kernel {
    /// Takes the tables into use.
    pub(super) async fn start(
        wanted: WantedTables,
        direct: Vec<Direct>,
        own: OwnRoutes,
        speaker: &SpeakerHandle,
    ) -> Result<Self, KernelError> {
        let status = watch::Sender::new(None);
        let own = watch::Sender::new(Arc::new(own));
        let running = match wanted.is_empty() {
            true => None,
            false => Some(Running::start(&wanted, &own, speaker, &status).await?),
        };
        let mut kernel = Self {
            wanted,
            running,
            direct: Vec::new(),
            interfaces: None,
            looked: Arc::default(),
            own,
            status,
        };
        kernel.connect(direct)?;
        Ok(kernel)
    }

    /// Announces the subnets of these interfaces from now on. True when they are others.
    pub(super) fn connect(&mut self, direct: Vec<Direct>) -> Result<bool, KernelError> {
        let others = direct != self.direct;
        self.direct = direct;
        let alone = !self.direct.is_empty() && self.wanted.is_empty();
        match (&self.interfaces, alone) {
            (None, true) => self.interfaces = Some(Interfaces::watch(Arc::clone(&self.looked))?),
            (Some(_), false) => self.interfaces = None,
            (Some(_), true) | (None, false) => {}
        }
        Ok(others)
    }

    /// Told each time interfaces may be others, where no table is in use; the status of the tables
    /// says it otherwise.
    pub(super) fn looked(&self) -> Arc<Notify> {
        Arc::clone(&self.looked)
    }

    /// The file announces these routes. To be called before the speaker has them: what it then says
    /// of their prefixes is what writes them and takes them out.
    pub(super) fn announce(&self, own: &OwnRoutes) {
        self.own.send_if_modified(|known| {
            let other = **known != *own;
            if other {
                *known = Arc::new(own.clone());
            }
            other
        });
    }

    /// Subnets of interfaces that are to be announced.
    pub(super) fn connected(&self) -> OwnRoutes {
        let mut routes = OwnRoutes::default();
        for direct in self.direct.iter().rev() {
            let subnets = match direct_subnets(&direct.interfaces) {
                Ok(subnets) => subnets,
                Err(error) => {
                    tracing::error!(%error, "the addresses of this machine cannot be read");
                    continue;
                }
            };
            for (prefix, interface) in subnets {
                let Some(import) = direct.import.get(&prefix.family()) else {
                    continue;
                };
                let route = Origination {
                    way: StaticWay::Interface(interface),
                    protocol: direct.protocol.clone(),
                    ..Origination::default()
                };
                if let Some(route) = admitted(import.as_ref(), prefix, route) {
                    routes.insert(prefix, route);
                }
            }
        }
        routes
    }

    /// Foreign routes of the tables that are to be announced.
    pub(super) fn redistributed(&self) -> OwnRoutes {
        let status = self.status.borrow().clone();
        let foreign = status.and_then(|status| status.foreign.clone());
        let announced = |(prefix, foreign): (&Prefix, &Foreign)| {
            let learn = self.wanted.get(&prefix.family())?.learn.as_ref()?;
            let route = Origination {
                way: StaticWay::Inherited {
                    interface: foreign.interface.clone(),
                    gateway: foreign.gateway,
                },
                protocol: learn.protocol.clone(),
                ..Origination::default()
            };
            Some((*prefix, admitted(learn.import.as_ref(), *prefix, route)?))
        };
        let foreign = foreign.as_deref().into_iter().flatten();
        foreign.filter_map(announced).collect()
    }

    /// The latest word of the tables; `None` without any.
    pub(super) fn status(&self) -> watch::Receiver<Option<Arc<TableStatus>>> {
        self.status.subscribe()
    }

    /// Goes over to other tables. Routes in a table that is no longer used go behind the new ones;
    /// those in one that stays are compared and never taken away in between. True when something
    /// differed.
    pub(super) async fn change(
        &mut self,
        wanted: WantedTables,
        speaker: &SpeakerHandle,
    ) -> Result<bool, KernelError> {
        if wanted == self.wanted {
            return Ok(false);
        }
        let old = std::mem::replace(&mut self.wanted, wanted);
        if let Some(running) = self.running.take() {
            running.handle.freeze().await;
        }
        if self.wanted.is_empty() {
            self.status.send_replace(None);
            speaker.set_underlay(Underlay::default()).await?;
            let networks = LocalNetworks::default();
            speaker.set_local_networks(networks).await?;
        } else {
            let running = Running::start(&self.wanted, &self.own, speaker, &self.status).await?;
            self.running = Some(running);
        }
        let place = |table: &KernelTable| (table.table, table.protocol);
        let unused = old
            .into_iter()
            .filter(|(family, table)| self.wanted.get(family).map(place) != Some(place(table)));
        let unused = tables(&unused.insert_each());
        if !unused.is_empty() {
            spawn_table(unused)?.remove().await;
        }
        Ok(true)
    }

    /// A restart is expected: nothing is written any more, and the routes stay.
    pub(super) async fn freeze(&self) {
        if let Some(running) = &self.running {
            running.handle.freeze().await;
        }
    }

    /// The speaker leaves: its routes go, but where they are to persist.
    pub(super) async fn remove(&self) {
        if let Some(running) = &self.running {
            running.handle.remove().await;
        }
    }
}

/// Hears of interfaces: a look at the kernel without tables of ours.
#[derive(Debug)]
struct Interfaces {
    _handle: TableHandle,
    task: JoinHandle<()>,
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Interfaces {
    fn watch(looked: Arc<Notify>) -> Result<Self, KernelError> {
        let handle = spawn_table(Tables::new())?;
        let mut status = handle.status();
        let task = tokio::spawn(async move {
            while status.changed().await.is_ok() {
                looked.notify_one();
            }
        });
        Ok(Self {
            _handle: handle,
            task,
        })
    }
}

impl Running {
    async fn start(
        wanted: &WantedTables,
        own: &watch::Sender<Arc<OwnRoutes>>,
        speaker: &SpeakerHandle,
        table_status: &watch::Sender<Option<Arc<TableStatus>>>,
    ) -> Result<Self, KernelError> {
        let handle = spawn_table(tables(wanted))?;
        let policy = policy(wanted);
        let blackholes = Blackholes {
            own: own.subscribe(),
            families: wanted.keys().copied().collect(),
            policy: policy.clone(),
        };
        let (resolved, resolved_rx) = watch::channel(0);
        let underlay = feed(
            handle.status(),
            speaker.clone(),
            table_status.clone(),
            resolved,
        );
        let underlay = tokio::spawn(underlay);
        // A route that is not resolved yet would be taken for one that leads nowhere.
        let mut first = resolved_rx.clone();
        let first = first.wait_for(|number| *number > 0);
        if tokio::time::timeout(FIRST_UNDERLAY, first).await.is_err() {
            tracing::warn!(
                "the kernel's interfaces and routes are not read yet; routes wait for them"
            );
        }
        let feed_of_routes = speaker.fib_through(policy).await?;
        let inputs = handle.inputs();
        let convergence = speaker.convergence();
        let routes = forward(feed_of_routes, blackholes, convergence, resolved_rx, inputs);
        let tasks = [tokio::spawn(routes), underlay];
        Ok(Self { handle, tasks })
    }
}

/// Our own routes that lead nowhere as they stand in the tables: traffic for what is announced and
/// has no longer prefix ends there.
struct Blackholes {
    own: watch::Receiver<Arc<OwnRoutes>>,
    families: Vec<Family>,
    policy: FibExportFilter,
}

impl Blackholes {
    fn admits(&self, prefix: Prefix, route: &Origination) -> bool {
        self.families.contains(&prefix.family()) && self.policy.admits_own(prefix, route)
    }

    /// All there are.
    fn all(&self) -> Vec<(Prefix, Option<Learned>)> {
        let own = Arc::clone(&self.own.borrow());
        let leads_nowhere = |route: &Origination| route.way.leads_nowhere();
        let admitted = own
            .iter()
            .filter(|(prefix, route)| leads_nowhere(route) && self.admits(**prefix, route));
        let blackhole = |(prefix, _): (&Prefix, &Origination)| (*prefix, Some(Learned::default()));
        admitted.map(blackhole).collect()
    }

    /// Routes whose address is looked up. Of one that leads nowhere from the start, the speaker has
    /// no word.
    fn looked_up(&self) -> BTreeSet<Prefix> {
        let own = self.own.borrow();
        let is_looked_up = |route: &Origination| matches!(route.way, StaticWay::Recursive(_));
        let found = own.iter().filter(|(_, route)| is_looked_up(route));
        found.map(|(prefix, _)| *prefix).insert_each()
    }

    /// Those of some prefixes.
    fn of(&self, prefixes: BTreeSet<Prefix>) -> Vec<(Prefix, Option<Learned>)> {
        let all = prefixes.into_iter();
        all.map(|prefix| (prefix, self.at(prefix))).collect()
    }

    /// The one for a prefix to which no route leads. The best path to what is announced is always
    /// our own, so the speaker has a word about each prefix that comes or goes. A route whose
    /// gateways are gone is not there; one whose address is not found is a blackhole.
    fn at(&self, prefix: Prefix) -> Option<Learned> {
        let own = self.own.borrow();
        let route = own.get(&prefix)?;
        let is_dropped = route.way.leads_nowhere() || matches!(route.way, StaticWay::Recursive(_));
        (is_dropped && self.admits(prefix, route)).then(Learned::default)
    }
}

/// Best routes to the tables, and behind them the word that they are all, and over which underlay
/// they are resolved.
async fn forward(
    feed: FibFeed,
    blackholes: Blackholes,
    mut convergence: watch::Receiver<Convergence>,
    mut resolved: watch::Receiver<u64>,
    inputs: mpsc::Sender<TableInput>,
) {
    let mut is_complete = false;
    let mut over = 0;
    let mut unheard_of = blackholes.looked_up();
    let mut changes = Vec::new();
    if inputs
        .send(TableInput::Routes(blackholes.all()))
        .await
        .is_err()
    {
        return;
    }
    loop {
        let complete = convergence.borrow_and_update().converged;
        let number = *resolved.borrow_and_update();
        changes.extend(feed.take());
        if !changes.is_empty() {
            let routes = changes.drain(..);
            let routes = routes.map(|(prefix, route)| {
                unheard_of.remove(&prefix);
                let route = route.map(learned).or_else(|| blackholes.at(prefix));
                (prefix, route)
            });
            let routes: Vec<(_, Option<Learned>)> = routes.collect();
            if inputs.send(TableInput::Routes(routes)).await.is_err() {
                return;
            }
        }
        if over != number {
            over = number;
            if inputs.send(TableInput::Resolved(number)).await.is_err() {
                return;
            }
        }
        if complete && !is_complete {
            is_complete = true;
            let dropped = TableInput::Routes(blackholes.of(std::mem::take(&mut unheard_of)));
            if inputs.send(dropped).await.is_err()
                || inputs.send(TableInput::Complete).await.is_err()
            {
                return;
            }
        }
        tokio::select! {
            more = feed.changed() => match more {
                Some(more) => changes = more,
                // A speaker that is gone has withdrawn nothing.
                None => return,
            },
            changed = convergence.changed() => if changed.is_err() { return },
            changed = resolved.changed() => if changed.is_err() { return },
        }
    }
}

/// Own networks and the underlay to the speaker, and its number to `resolved` when the routes
/// follow it. When the tables are no longer heard of, what they said last holds.
async fn feed(
    mut status: watch::Receiver<Arc<TableStatus>>,
    speaker: SpeakerHandle,
    table_status: watch::Sender<Option<Arc<TableStatus>>>,
    resolved: watch::Sender<u64>,
) {
    loop {
        let now = status.borrow_and_update().clone();
        let found = now.underlay.clone();
        table_status.send_replace(Some(now));
        if found.number != *resolved.borrow() {
            let local = LocalNetworks::clone(&found.local);
            let underlay = Underlay::clone(&found.underlay);
            if speaker.set_local_networks(local).await.is_err()
                || speaker.set_underlay(underlay).await.is_err()
            {
                return;
            }
            resolved.send_replace(found.number);
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}
