//! The task that keeps a speaker's tables: hears changes of routes, writes what differs, watches
//! the kernel.
//!
//! A change of some prefixes costs the work for these prefixes. Everything is read and compared
//! again when somebody else changed an interface, a route or the tables, when notifications were
//! lost, when a write failed, and from time to time. What the kernel cannot be asked is never taken
//! for "nothing": the last picture stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Family, InsertEach, Prefix, Problem, ProblemCode, Underlay};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::read::monitor;
use super::underlay::{PublishedUnderlay, Publisher};
use super::{chain, read, write};
use crate::actual::Actual;
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::dataplane::read::hints::Listener;
use crate::diff::Phase;
use crate::learned::Learned;
use crate::links::Links;
use crate::op::Op;
use crate::ownership::Owner;
use crate::problem::problem;
use crate::table::{Foreigners, MAIN_TABLE, Tables, changes, foreigners, note, removal};
use crate::underlay;

/// Changes that wait for the writer; more wait at their source, where the latest of a prefix
/// replaces the others.
const INPUTS: usize = 4;
/// Everything is read again after this long, whatever was heard (BIRD's `scan time`).
const RESYNC: Duration = Duration::from_secs(60);
/// Wait before the next attempt after a failure; doubled up to [`RESYNC`].
const RETRY: Duration = Duration::from_millis(500);
/// After everything was read, the task does nothing of the kind for so many times as long as that
/// took.
const REST: u32 = 4;
/// Most unreachable prefixes that are spelled out.
const NAMED: usize = 3;

/// Input of the task.
#[derive(Debug)]
pub enum TableInput {
    /// The best route of each prefix that changed; `None`: there is none any more.
    Routes(Vec<(Prefix, Option<Learned>)>),
    /// Every peer has told everything: what is ours and was not named may go.
    Complete,
    /// The routes are resolved over the underlay with this number ([`TableStatus::underlay`]).
    Resolved(u64),
}

/// Status of the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableStatus {
    /// `learning`, `synced`, `frozen`.
    pub phase: &'static str,
    /// Routes of ours in the kernel.
    pub routes: usize,
    /// Faults that the last pass found.
    pub problems: Vec<Problem>,
    /// Underlay for next-hop resolution as of the last look; number 0 before the first.
    pub underlay: PublishedUnderlay,
    /// Routes of others as of the last look, where they are of interest; `None` before the first.
    pub foreign: Option<Arc<Foreigners>>,
    /// Times that everything was read.
    pub looks: u64,
}

#[derive(Debug)]
enum TableCommand {
    Freeze(oneshot::Sender<()>),
    Remove(oneshot::Sender<()>),
}

/// Handle of the task. When it and its inputs are dropped, the task ends and leaves the kernel as
/// it is.
#[derive(Debug)]
pub struct TableHandle {
    inputs: mpsc::Sender<TableInput>,
    commands: mpsc::Sender<TableCommand>,
    status: watch::Receiver<Arc<TableStatus>>,
}

impl TableHandle {
    /// Where changes go.
    #[must_use]
    pub fn inputs(&self) -> mpsc::Sender<TableInput> {
        self.inputs.clone()
    }

    /// The state; changes with each pass.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Arc<TableStatus>> {
        self.status.clone()
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<()>) -> TableCommand) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(command(done)).await.is_ok() {
            // A task that has ended writes nothing either.
            let _ended = wait.await;
        }
    }

    /// Stops all writing for good; the routes stay.
    pub async fn freeze(&self) {
        self.ask(TableCommand::Freeze).await;
    }

    /// Takes our routes out of the tables that do not persist, and stops all writing.
    pub async fn remove(&self) {
        self.ask(TableCommand::Remove).await;
    }
}

/// True when these tables hold routes of an earlier run of ours.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn table_holds_routes(tables: &Tables) -> Result<bool, NetlinkError> {
    let mut netlink = Netlink::open()?;
    let (_, actual) = read_tables(&mut netlink, tables).await?;
    Ok(ours(tables, &actual) > 0)
}

/// Starts the task in the calling thread's network namespace.
///
/// # Errors
/// [`NetlinkError`] when there are no sockets to be had.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn spawn_table(tables: Tables) -> Result<TableHandle, NetlinkError> {
    let (inputs, inputs_rx) = mpsc::channel(INPUTS);
    let (commands, commands_rx) = mpsc::channel(1);
    let (status, status_rx) = watch::channel(Arc::new(TableStatus::default()));
    let wake_up = Arc::new(Notify::new());
    let sockets = Sockets::open(&tables, &wake_up)?;
    let keeper = Keeper {
        tables,
        sockets,
        wake_up,
        wanted: BTreeMap::new(),
        links: Links::default(),
        actual: Actual::default(),
        ours: 0,
        underlay: Publisher::new(),
        resolved: 0,
        foreign: None,
        phase: Phase::Learning,
        unreachable: BTreeSet::new(),
        refused: BTreeMap::new(),
        looks: 0,
        status,
    };
    tokio::spawn(keeper.run(inputs_rx, commands_rx));
    Ok(TableHandle {
        inputs,
        commands,
        status: status_rx,
    })
}

#[derive(Debug)]
struct Sockets {
    netlink: Netlink,
    /// Held for its task.
    _monitor: Listener,
}

impl Sockets {
    fn open(tables: &Tables, wake_up: &Arc<Notify>) -> Result<Self, NetlinkError> {
        let netlink = Netlink::open()?;
        let mut numbers: Vec<u32> = tables.values().map(|t| t.table).collect();
        numbers.push(MAIN_TABLE);
        let monitor = monitor::start_for(Arc::clone(wake_up), netlink.port(), numbers)?;
        Ok(Self {
            netlink,
            _monitor: monitor,
        })
    }
}

/// The underlay, and what the tables hold.
async fn read_tables(
    netlink: &mut Netlink,
    tables: &Tables,
) -> Result<((Links, Underlay), Actual), NetlinkError> {
    let links = read::links(netlink).await?;
    let mut actual = Actual::default();
    let mut routes = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        let settings = tables.get(&family);
        let ownership = settings.map(crate::table::TableSettings::ownership);
        // None is written here: of others' the routes themselves say where they lead.
        let objects = BTreeMap::new();
        let main = read::routes::read(netlink, family, MAIN_TABLE, &links, &objects).await?;
        let own = match settings.map(|s| s.table) {
            Some(MAIN_TABLE) => main.clone(),
            Some(table) => read::routes::read(netlink, family, table, &links, &objects).await?,
            None => Vec::new(),
        };
        for route in &own {
            actual.push_route(route.clone());
        }
        // Our own routes are no part of the underlay, in whichever table.
        let foreign = main.into_iter().chain(own).filter(|route| {
            let ours = |o: &crate::ownership::Ownership| o.route(route) == Owner::Ours;
            !ownership.as_ref().is_some_and(ours)
        });
        routes.extend(foreign);
    }
    let near = tables.values().flat_map(|settings| settings.near.clone());
    let underlay = underlay::underlay_of(&links, &routes, &near.collect());
    Ok(((links, underlay), actual))
}

/// How many routes are ours.
fn ours(tables: &Tables, actual: &Actual) -> usize {
    let is_ours = |route: &&crate::actual::ActualRoute| {
        let settings = tables.get(&route.prefix.family());
        settings.is_some_and(|settings| settings.protocol == route.protocol)
    };
    actual.all_routes().filter(is_ours).count()
}

struct Keeper {
    tables: Tables,
    sockets: Sockets,
    wake_up: Arc<Notify>,
    wanted: BTreeMap<Prefix, Learned>,
    links: Links,
    /// The tables as read, with what we did since.
    actual: Actual,
    /// Routes of ours among them.
    ours: usize,
    underlay: Publisher,
    /// The number of the underlay that the routes are resolved over.
    resolved: u64,
    foreign: Option<Arc<Foreigners>>,
    phase: Phase,
    unreachable: BTreeSet<Prefix>,
    /// Refusals of the kernel at the last attempt, with the reason.
    refused: BTreeMap<String, String>,
    looks: u64,
    status: watch::Sender<Arc<TableStatus>>,
}

impl Keeper {
    async fn run(
        mut self,
        mut inputs: mpsc::Receiver<TableInput>,
        mut commands: mpsc::Receiver<TableCommand>,
    ) {
        let mut failures = 0;
        let mut look_at = Instant::now();
        let mut earliest = look_at;
        loop {
            tokio::select! {
                command = commands.recv() => {
                    let Some(command) = command else { return };
                    self.on_command(command).await;
                    continue;
                }
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    if self.on_input(input).await {
                        continue;
                    }
                    look_at = earliest;
                }
                () = self.wake_up.notified() => look_at = look_at.min(earliest.max(Instant::now())),
                () = tokio::time::sleep_until(look_at) => {}
            }
            if Instant::now() < look_at {
                continue;
            }
            let started = Instant::now();
            let clean = self.reread().await;
            failures = if clean { 0 } else { failures + 1 };
            let pause = if clean {
                RESYNC
            } else {
                (RETRY * (1 << failures.min(10))).min(RESYNC)
            };
            earliest = Instant::now() + started.elapsed() * REST;
            look_at = Instant::now() + pause;
            if let Some(until) = self.awaits() {
                look_at = look_at.min(until);
            }
            self.publish();
        }
    }

    async fn on_command(&mut self, command: TableCommand) {
        let done = match command {
            TableCommand::Freeze(done) => done,
            TableCommand::Remove(done) => {
                self.remove().await;
                done
            }
        };
        self.phase = Phase::Frozen;
        self.publish();
        // The caller may have gone.
        let _gone = done.send(());
    }

    /// False: everything has to be looked at.
    async fn on_input(&mut self, input: TableInput) -> bool {
        let routes = match input {
            TableInput::Complete => {
                if self.phase == Phase::Learning {
                    self.phase = Phase::Synced;
                }
                return false;
            }
            TableInput::Resolved(number) => {
                self.resolved = self.resolved.max(number);
                if !self.is_read() {
                    return false;
                }
                let clean = self.write(None).await;
                self.publish();
                return clean;
            }
            TableInput::Routes(routes) => routes,
        };
        let mut touched = BTreeSet::new();
        for (prefix, learned) in routes {
            match learned {
                Some(learned) => drop(self.wanted.insert(prefix, learned)),
                None => drop(self.wanted.remove(&prefix)),
            }
            touched.insert(prefix);
        }
        if !self.is_read() {
            return false;
        }
        let clean = self.write(Some(&touched)).await;
        self.publish();
        clean
    }

    /// True once the tables have been read.
    fn is_read(&self) -> bool {
        self.looks > 0
    }

    /// Reads everything and writes what differs, unless routes are awaited that are resolved over
    /// another underlay. False when something has to be tried again.
    async fn reread(&mut self) -> bool {
        match read_tables(&mut self.sockets.netlink, &self.tables).await {
            Ok(((links, underlay), actual)) => {
                self.looks += 1;
                let local = links.local_networks(|_| false);
                self.underlay.publish(underlay, local, Instant::now());
                self.links = links;
                self.ours = ours(&self.tables, &actual);
                self.actual = actual;
                let foreign = foreigners(&self.tables, &self.actual);
                if self.foreign.as_deref() != Some(&foreign) {
                    self.foreign = Some(Arc::new(foreign));
                }
                self.refused.clear();
                self.unreachable.clear();
                if self.awaits().is_some() {
                    return true;
                }
                self.write(None).await
            }
            Err(error) => {
                self.unreadable(&error);
                false
            }
        }
    }

    /// Until when routes are awaited that are resolved over the underlay as it is.
    fn awaits(&self) -> Option<Instant> {
        self.underlay.awaits(self.resolved, Instant::now())
    }

    fn unreadable(&mut self, error: &NetlinkError) {
        let reason = chain(error);
        tracing::error!(%reason, "the kernel's tables cannot be read or written");
        self.refused.insert("netlink".to_owned(), reason);
        // A socket with lost answers is not to be trusted any more.
        match Sockets::open(&self.tables, &self.wake_up) {
            Ok(sockets) => self.sockets = sockets,
            Err(error) => tracing::error!(reason = chain(&error), "no new netlink socket"),
        }
    }

    /// Writes what differs, for these prefixes or for all. False when something has to be tried
    /// again.
    async fn write(&mut self, only: Option<&BTreeSet<Prefix>>) -> bool {
        let (ops, unreachable) = match only {
            Some(prefixes) => {
                for prefix in prefixes {
                    self.unreachable.remove(prefix);
                }
                let wanted = prefixes.iter().map(|p| (p, self.wanted.get(p)));
                changes(&self.tables, wanted, &self.actual, self.phase)
            }
            None => {
                let there = self.actual.all_routes().map(|r| r.prefix);
                let gone: BTreeSet<Prefix> =
                    there.filter(|p| !self.wanted.contains_key(p)).insert_each();
                let wanted = self.wanted.iter().map(|(p, l)| (p, Some(l)));
                let wanted = wanted.chain(gone.iter().map(|p| (p, None)));
                changes(&self.tables, wanted, &self.actual, self.phase)
            }
        };
        self.unreachable.extend(unreachable);
        self.apply(ops).await
    }

    async fn apply(&mut self, mut ops: Vec<Op>) -> bool {
        let tables = &self.tables;
        ops.retain(|op| {
            op.prefix()
                .is_some_and(|p| tables.contains_key(&p.family()))
        });
        if ops.is_empty() {
            return true;
        }
        let number = |family| tables.get(&family).map_or(MAIN_TABLE, |table| table.table);
        let netlink = &mut self.sockets.netlink;
        let results = match write::send_into(netlink, &ops, &self.links, number).await {
            Ok(results) => results,
            Err(error) => {
                self.unreadable(&error);
                return false;
            }
        };
        let mut clean = true;
        for (op, result) in ops.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    tracing::debug!(%op, "done");
                    match &op {
                        Op::AddRoute(_) => self.ours += 1,
                        Op::DeleteRoute(_) => self.ours = self.ours.saturating_sub(1),
                        _ => {}
                    }
                    note(&mut self.actual, &op);
                }
                Err(reason) => {
                    tracing::warn!(%op, reason, "the kernel refuses");
                    self.refused.insert(op.to_string(), reason);
                    clean = false;
                }
            }
        }
        clean
    }

    /// Takes our routes out, but those of tables that persist.
    async fn remove(&mut self) {
        let read = read_tables(&mut self.sockets.netlink, &self.tables).await;
        let ((links, _), actual) = match read {
            Ok(read) => read,
            Err(error) => return self.unreadable(&error),
        };
        self.links = links;
        self.ours = ours(&self.tables, &actual);
        self.actual = actual;
        let tables = self.tables.iter().filter(|(_, table)| !table.persist);
        let tables = tables.map(|(family, table)| (*family, table.clone()));
        let ops = removal(&tables.insert_each(), &self.actual);
        let count = ops.len();
        if self.apply(ops).await {
            tracing::info!(count, "our routes are out of the kernel");
        }
    }

    fn publish(&self) {
        let mut problems: Vec<Problem> = Vec::new();
        for (what, reason) in self.refused.iter().take(NAMED) {
            let reason = format!("the kernel refuses this: {reason}; it is tried again");
            problems.push(problem(ProblemCode::KernelRefused, what, reason));
        }
        for prefix in self.unreachable.iter().take(NAMED) {
            let reason = "no next hop of this route can be reached; it is not in the kernel";
            problems.push(problem(
                ProblemCode::KernelNextHopUnreachable,
                &prefix.to_string(),
                reason.to_owned(),
            ));
        }
        let status = TableStatus {
            phase: self.phase.as_str(),
            routes: self.ours,
            problems,
            underlay: self.underlay.published(),
            foreign: self.foreign.clone(),
            looks: self.looks,
        };
        self.status.send_replace(Arc::new(status));
    }
}
