//! The loop: wake, read, plan, diff, apply.

mod compare;
mod gratuitous;
mod kernel_cache;
pub(in crate::dataplane) mod status;
pub(in crate::dataplane) mod sweep_precondition;

mod apply;
mod handle;
mod options;
mod patience;
mod publish;
mod tunnel_guard;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_model::{IfName, Prefix, ProblemCode, SharedMap, Snapshot};
use futures_util::FutureExt;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use self::gratuitous::GratuitousSender;
use self::kernel_cache::KernelCache;
use self::status::{AgentStatus, Report};
use self::sweep_precondition::SweepPrecondition;
use crate::actual::{Actual, ActualRoute};
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::dataplane::offload::TxChecksums;
use crate::dataplane::probe::prober::Prober;
use crate::dataplane::read::FdbNews;
use crate::dataplane::read::hints::{Listener, OwnChanges};
use crate::dataplane::retry::Retries;
use crate::dataplane::rules::Rules;
use crate::dataplane::underlay::{Publisher, local_networks};
use crate::dataplane::write::saved_sysctls::SavedSysctls;
use crate::dataplane::write::sysctl;
use crate::dataplane::{chain, probe, read};
use crate::desired::Desired;
use crate::diff::{Phase, is_on_device};
use crate::learned::Learned;
use crate::lifelines;
use crate::links::Links;
use crate::op::Op;
use crate::ownership::is_tunnel_device;
use crate::plan::nat::UnreadRules;
use crate::plan::{KernelPlanner, KernelSupport, PlanInputs, wanted_tunnels};
use crate::problem::problem;
use crate::settings::{NatBackend, Settings};
use crate::slice::SLICE;
use compare::Remembered;
#[cfg(test)]
pub(crate) use handle::Freezing;
pub use handle::ReconcilerHandle;
use handle::{Questions, ReconcilerCommand};
pub use options::ReconcilerOptions;
use patience::Patience;
use tunnel_guard::TunnelGuard;

/// After a pass, wait this many times its duration: at most a third of the time is spent in passes.
const COST: u32 = 2;
/// Longest such wait.
const COST_LIMIT: Duration = Duration::from_millis(50);
/// Burst: this much of the waiting may be put off, so that a few pieces of news in a row wait for
/// nothing.
const BURST: Duration = Duration::from_millis(20);
/// Changes of FDB entries that wait to be looked at; of more everything is read.
const FDB_NEWS: usize = 1024;
/// Wait after a pass that could not read the kernel.
const READ_RETRY: Duration = Duration::from_secs(1);

/// The reconciler, before it runs.
#[derive(Debug)]
pub struct Reconciler {
    options: ReconcilerOptions,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    precondition: watch::Receiver<SweepPrecondition>,
    learned: watch::Receiver<SharedMap<Prefix, Learned>>,
    questions: Questions,
    status: watch::Sender<Arc<AgentStatus>>,
    netlink: Netlink,
    /// Notified when others may have changed the kernel.
    wake_up: Arc<Notify>,
    /// FDB entries that came or went, whoever did it.
    fdb_news: mpsc::Receiver<FdbNews>,
    /// Notified when more is known of a path.
    path_wake_up: Arc<Notify>,
    /// Held for their tasks.
    _listeners: Vec<Listener>,
    /// `routeRefreshInterval` as of the last pass; zero = never.
    refresh: Duration,
    kernel: KernelSupport,
    probed: bool,
    rules: Rules,
    tunnel_guard: TunnelGuard,
    patience: Patience,
    retries: Retries,
    tx_checksums: TxChecksums,
    /// `None` = paths are not measured.
    prober: Option<Prober>,
    saved_sysctls: Option<SavedSysctls>,
    gratuitous: GratuitousSender,
    /// Since when a device of ours is unwanted.
    unwanted: HashMap<IfName, Instant>,
    cache: KernelCache,
    planning: KernelPlanner,
    remembered: Remembered,
    underlay: Publisher,
    /// What was published of the last pass, without what is known of the rules.
    published: AgentStatus,
    frozen: bool,
    passes: u64,
    applied: u64,
    spent: Duration,
}

impl Reconciler {
    /// Starts the task in the calling thread's network namespace. Must be called inside a tokio
    /// runtime.
    ///
    /// Nothing is written before the first snapshot with a revision.
    ///
    /// # Errors
    /// [`NetlinkError::Open`] when there are no sockets to be had.
    pub fn spawn(
        options: ReconcilerOptions,
        snapshot: watch::Receiver<Arc<Snapshot>>,
        precondition: watch::Receiver<SweepPrecondition>,
        learned: watch::Receiver<SharedMap<Prefix, Learned>>,
    ) -> Result<ReconcilerHandle, NetlinkError> {
        let netlink = Netlink::open()?;
        let wake_up = Arc::new(Notify::new());
        let nat_wake_up = Arc::new(Notify::new());
        let nat_changes = OwnChanges::default();
        let (fdb, fdb_news) = mpsc::channel(FDB_NEWS);
        let listeners =
            options.listeners(&wake_up, &nat_wake_up, &nat_changes, fdb, netlink.port())?;
        let underlay = Publisher::new();
        let published = underlay.subscribe();
        let (commands, receiver) = mpsc::channel(8);
        let (status, status_receiver) = watch::channel(Arc::new(AgentStatus::default()));
        let path_wake_up = Arc::new(Notify::new());
        let start = |known| Prober::start(options.me.as_str(), known, Arc::clone(&path_wake_up));
        let prober = options.measure_paths.clone().map(start);
        let saved_sysctls = options.lib_dir.as_deref().map(SavedSysctls::open);
        let tunnel_guard = TunnelGuard::new(options.tunnel_guard_patience);
        let reconciler = Self {
            options,
            snapshot,
            precondition,
            learned,
            questions: Questions::new(receiver),
            status,
            netlink,
            wake_up,
            fdb_news,
            path_wake_up,
            _listeners: listeners,
            refresh: Duration::ZERO,
            kernel: KernelSupport::default(),
            probed: false,
            rules: Rules::start(nat_wake_up, nat_changes),
            tunnel_guard,
            patience: Patience::default(),
            retries: Retries::default(),
            tx_checksums: TxChecksums::default(),
            prober,
            saved_sysctls,
            gratuitous: GratuitousSender::start(),
            unwanted: HashMap::new(),
            cache: KernelCache::default(),
            planning: KernelPlanner::default(),
            remembered: Remembered::default(),
            underlay,
            published: AgentStatus::default(),
            frozen: false,
            passes: 0,
            applied: 0,
            spent: Duration::ZERO,
        };
        tokio::spawn(reconciler.run());
        Ok(ReconcilerHandle {
            commands,
            status: status_receiver,
            underlay: published,
        })
    }

    async fn run(mut self) {
        let mut last_resync = Instant::now();
        // The rate limit's budget is whole again from here on.
        let mut budget = Instant::now();
        loop {
            let started = Instant::now();
            let again = match self.pass(started).await {
                Ok(again) => again,
                Err(error) => {
                    self.unreadable(&error);
                    Some(started + READ_RETRY)
                }
            };
            let resync = (!self.refresh.is_zero()).then(|| last_resync + self.refresh);
            let wake = again.into_iter().chain(resync).min();
            let took = started.elapsed();
            budget = budget.max(started) + took + (took * COST).min(COST_LIMIT);
            if !self.wait(budget - BURST, wake).await {
                return;
            }
            if resync.is_some_and(|resync| Instant::now() >= resync) {
                self.look_at_everything();
                last_resync = Instant::now();
            }
        }
    }

    fn look_at_everything(&mut self) {
        self.cache.forget();
        self.probed = false;
        self.rules.look();
    }

    /// Waits for a reason for the next pass. False when nobody is left to work for.
    async fn wait(&mut self, earliest: Instant, wake: Option<Instant>) -> bool {
        let awake = async {
            match wake {
                Some(wake) => tokio::time::sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(awake);
        let command = loop {
            let command = tokio::select! {
                command = self.questions.next() => Some(command),
                changed = self.snapshot.changed() => { if changed.is_err() { return false } None }
                changed = self.precondition.changed() => { if changed.is_err() { return false } None }
                changed = self.learned.changed() => { if changed.is_err() { return false } None }
                changed = resolved(&mut self.options.resolved) => { if changed.is_err() { return false } None }
                () = self.wake_up.notified() => { self.cache.forget(); None }
                Some(news) = self.fdb_news.recv() => {
                    if self.cache.knows(&news) {
                        continue;
                    }
                    self.cache.forget();
                    None
                }
                () = self.rules.changed() => {
                    self.publish_rules();
                    continue;
                }
                () = self.path_wake_up.notified() => None,
                () = &mut awake => None,
            };
            // No reason to read the kernel. Who asked may have gone.
            if let Some(Some(ReconcilerCommand::Answer(asked))) = command {
                let _ = asked.send(());
                continue;
            }
            break command;
        };
        match command {
            Some(None) => return false,
            Some(Some(ReconcilerCommand::Freeze(done))) => {
                self.frozen = true;
                self.rules.freeze().await;
                tracing::info!("the agent is frozen: kernel state stays as it is");
                // The caller may have gone.
                let _ = done.send(());
            }
            #[cfg(test)]
            Some(Some(ReconcilerCommand::Resync)) => self.look_at_everything(),
            Some(Some(ReconcilerCommand::Answer(_))) | None => {}
        }
        tokio::time::sleep_until(earliest).await;
        true
    }

    fn unreadable(&mut self, error: &NetlinkError) {
        let reason = chain(error);
        tracing::error!(%reason, "the kernel's state cannot be read");
        // A socket with lost answers is not to be trusted any more.
        match Netlink::open() {
            Ok(netlink) => self.netlink = netlink,
            Err(error) => tracing::error!(reason = chain(&error), "no new netlink socket"),
        }
        let found = problem(ProblemCode::AgentKernelUnreadable, "netlink", reason);
        if !self.published.problems.contains(&found) {
            self.published.problems.push(found);
        }
        self.publish_rules();
    }

    /// One pass. Answers with the time for the next one, when there is one to come by itself.
    async fn pass(&mut self, now: Instant) -> Result<Option<Instant>, NetlinkError> {
        // The precondition first: who sets it has sent the snapshot that it was judged by before.
        let precondition = self.precondition.borrow_and_update().clone();
        let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
        // As is who says over what the routes are resolved.
        let resolved = self.options.resolved.as_mut();
        let resolved = resolved.map(|number| *number.borrow_and_update());
        let learned = self.learned.borrow_and_update().clone();
        if snapshot.revision == 0 {
            // An empty snapshot is no knowledge.
            return Ok(None);
        }
        let (settings, settings_problems) = Settings::resolve(
            &self.options.settings,
            &snapshot,
            &self.options.me,
            &self.options.overrides,
        );
        self.refresh = settings.route_refresh;
        self.netlink.set_patience(settings.kernel_timeout);
        let mut actual = self.kernel_now(now).await?;
        self.probe(&snapshot, &settings, &actual).await?;
        let ownership = self.remembered.ownership(&settings, &snapshot);
        let host_routes = self.remembered.host_routes(&actual, &ownership);
        let paths = self.measure(&snapshot, &actual.links, &host_routes);
        let lifelines = self.options.lifelines.borrow().clone();
        let inputs = PlanInputs {
            snapshot: &snapshot,
            lifelines: &lifelines,
            me: &self.options.me,
            learned: &learned,
            links: &actual.links,
            host_routes: &host_routes.with_paths(paths),
            settings: &settings,
            kernel: &self.kernel,
        };
        let local = local_networks(inputs.links, &ownership);
        self.underlay.publish(inputs.underlay(), local, now);
        let awaits = resolved.and_then(|resolved| self.underlay.awaits(resolved, now));
        if let Some(until) = awaits.filter(|_| !self.frozen) {
            self.cache.store(actual, Some(Vec::new()), now);
            return Ok(Some(until));
        }
        self.passes += 1;
        let mut job = self.planning.begin(&inputs);
        while !job.step(SLICE) {
            self.questions.answer().await;
        }
        let planned = self.planning.end(job);
        let mut desired = planned.desired;
        desired.problems.extend(settings_problems);
        let is_fresh = precondition.datastore.is_ok();
        let unread = UnreadRules::from_snapshot(&snapshot, &self.options.me);
        let guard = &mut self.tunnel_guard;
        let older_stay = guard.judge(&mut desired, (is_fresh, unread), now);
        self.patience.judge(&mut desired, is_fresh, now);
        let known = std::mem::take(&mut actual.sysctls);
        actual.sysctls = sysctl::read_unknown(desired.sysctls.keys(), known);
        actual.nat = self.order_rules(&desired, settings.nat_backend, older_stay);
        let (phase, reason) = self.phase(&precondition, &snapshot, resolved);
        let known = &mut self.remembered.comparison;
        let mut comparing = known.begin(&planned.changed, &desired, &actual, phase);
        while !comparing.step(SLICE) {
            self.questions.answer().await;
        }
        let (mut ops, conflicts) = known.end(comparing);
        if phase == Phase::Learning {
            ops.extend(cuts(&desired, &actual, &lifelines));
        }
        let wanted = ops.len();
        let ops = self.delay_tunnel_removal(ops, &desired, now);
        let mut ops = self.retries.due(ops, now);
        if !settings.route_sync {
            leave_routes(&mut ops, &mut desired);
        }
        let all = ops.len() == wanted;
        // An object goes once no route leads through it any more.
        let leaves = |op: &Op| matches!(op, Op::ReplaceRoute(_) | Op::DeleteRoute(_));
        let leaves_objects = !actual.objects.is_empty() && ops.iter().any(leaves);
        self.announce_addresses(&snapshot, &actual.links);
        let (changed, noted) = (!ops.is_empty(), KernelCache::note(&ops));
        let (failures, links) = self.write(ops, &actual, &desired, &settings).await?;
        self.spent += now.elapsed();
        if changed && self.remembered.comparison.has_leftovers() {
            // The replacement of a leftover has to be seen before the leftover goes.
            self.wake_up.notify_one();
        }
        let report = Report {
            phase,
            reason,
            failures,
        };
        let noted = noted.filter(|_| failures == 0);
        if all && noted.is_some() {
            self.remembered.comparison.is_done(&desired, phase);
        }
        self.publish(desired, &planned.kinds, conflicts, &links, report);
        self.cache.store(actual, noted, now);
        Ok(leaves_objects.then_some(now).or_else(|| self.next_due(now)))
    }

    fn phase(
        &self,
        precondition: &SweepPrecondition,
        snapshot: &Snapshot,
        resolved: Option<u64>,
    ) -> (Phase, Option<String>) {
        if self.frozen {
            let reason = "a restart is expected: nothing is written".to_owned();
            return (Phase::Frozen, Some(reason));
        }
        let is_resolved = resolved.is_none_or(|resolved| self.underlay.is_followed(resolved));
        precondition.phase(snapshot, &self.options.me, is_resolved)
    }

    /// State of the kernel, but for NAT, and for sysctls that nobody has asked for yet.
    async fn kernel_now(&mut self, now: Instant) -> Result<Actual, NetlinkError> {
        // Somebody may have notified while another reason for a pass was taken up.
        if self.wake_up.notified().now_or_never().is_some() {
            self.cache.forget();
        }
        while let Ok(news) = self.fdb_news.try_recv() {
            if !self.cache.knows(&news) {
                self.cache.forget();
            }
        }
        match self.cache.take(now) {
            Some(known) => Ok(known),
            None => {
                self.remembered.kernel_was_read();
                let actual = read::actual(&mut self.netlink).await?;
                self.cache.has_read(&actual, now.elapsed());
                Ok(actual)
            }
        }
    }

    async fn probe(
        &mut self,
        snapshot: &Snapshot,
        settings: &Settings,
        actual: &Actual,
    ) -> Result<(), NetlinkError> {
        let wanted = wanted_tunnels(snapshot, settings);
        // A device that is there needs no trial, so this costs nothing once it is.
        let missing = (wanted.ipip && self.kernel.ipip.is_ok())
            || (wanted.vxlan && self.kernel.vxlan.is_ok());
        if !self.probed || missing {
            probe::support(&mut self.netlink, &actual.links, wanted, &mut self.kernel).await?;
            self.probed = true;
        }
        Ok(())
    }

    /// Has the neighbours told where this node's addresses are.
    fn announce_addresses(&self, snapshot: &Snapshot, links: &Links) {
        let Some(node) = snapshot.nodes.get(&self.options.me) else {
            return;
        };
        let forwarding = sysctl::read_one("net/ipv6/conf/all/forwarding");
        let forwards = forwarding.is_some_and(|value| value != "0");
        let places = gratuitous::places(node, links, forwards);
        self.gratuitous.follow(places);
    }

    /// Orders the rules before anything else is written: a guard is there as early as it can be.
    /// Answers with their fingerprint, so that nothing is to be done for them here.
    fn order_rules(
        &self,
        desired: &Desired,
        backend: NatBackend,
        older_stay: bool,
    ) -> Option<String> {
        if !self.frozen {
            let nat = desired.nat.clone();
            self.rules.want(nat, backend, desired.revision, older_stay);
        }
        desired.nat.as_ref().map(|nat| nat.fingerprint())
    }

    /// Takes out deletions of tunnel devices, and of what stands on them, that were in use a moment
    /// ago.
    fn delay_tunnel_removal(
        &mut self,
        mut ops: Vec<Op>,
        desired: &Desired,
        now: Instant,
    ) -> Vec<Op> {
        let mut unwanted = HashMap::new();
        let delay = self.options.tunnel_removal_delay;
        ops.retain(|op| {
            !is_on_device(op, |name| {
                if !is_tunnel_device(name.as_str()) || desired.tunnels.contains_key(name) {
                    return false;
                }
                let since = self.unwanted.get(name).copied().unwrap_or(now);
                unwanted.insert(name.clone(), since);
                now < since + delay
            })
        });
        self.unwanted = unwanted;
        ops
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let delay = self.options.tunnel_removal_delay;
        let delayed = self.unwanted.values().map(|since| *since + delay);
        delayed
            .chain(self.retries.next_due())
            .chain(self.cache.due())
            .chain(self.tunnel_guard.due())
            .chain(self.patience.due(now))
            .min()
    }
}

/// Resolves when the learned routes are resolved over another underlay; never where nobody says.
async fn resolved(
    number: &mut Option<watch::Receiver<u64>>,
) -> Result<(), watch::error::RecvError> {
    match number {
        Some(number) => number.changed().await,
        None => std::future::pending().await,
    }
}

/// Blackholes that stand between this node and its datastore, to be taken away at any time.
fn cuts(desired: &Desired, actual: &Actual, lifelines: &BTreeSet<IpAddr>) -> Vec<Op> {
    let cuts = lifelines::cut_by(actual, desired.ownership.route_protocol, lifelines);
    let unplanned = |route: &ActualRoute| !desired.routes.contains_key(&route.prefix);
    let cuts = cuts.into_iter().filter(unplanned);
    cuts.map(Op::DeleteRoute).collect()
}

/// Takes out what concerns routes, and says so.
fn leave_routes(ops: &mut Vec<Op>, desired: &mut Desired) {
    ops.retain(|op| !op.is_route());
    let reason = "routeSyncDisabled is set: no route is written or deleted on this node";
    desired.problems.insert(problem(
        ProblemCode::AgentRouteSyncDisabled,
        "FelixConfiguration",
        reason.to_owned(),
    ));
}
