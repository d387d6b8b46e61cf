//! One node's process: snapshot, speaker's table, plan, diff. All of it is the product's own code
//! but for the glue, which does what the shells do: `datastore::watch` (keeps the snapshot, says
//! when it is stale), the speaker (carries UPDATEs) and the agent's reconciler (passes, what
//! stays for a while, devices before the rest, another try after a refusal).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use caracal_agent::{
    Actual, Comparison, Desired, HostRoutes, KernelPlan, KernelPlanner, KernelSupport, Learned, Op,
    Overrides, Owner, Ownership, Phase, PlanInputs, RouteKey, Settings, diff, is_tunnel_device,
};
use caracal_bgp::{Changes, Rib, RibOptions, SpeakerConfig};
use caracal_datastore::MemoryStore;
use caracal_model::{IfName, NodeName, Prefix, SharedMap, Snapshot};
use caracal_topologies::PlanOptions;

use crate::dice::Dice;
use crate::kernel::Kernel;

/// As [`caracal_agent::ReconcilerOptions`] has them.
const TUNNEL_REMOVAL_DELAY: Duration = Duration::from_secs(30);
/// A full comparison without cause.
pub const RESYNC: Duration = Duration::from_secs(90);
/// The next try after a refusal; each time twice as long, up to the last.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The speaker's table.
pub struct Speaker {
    pub rib: Rib,
    pub config: SpeakerConfig,
}

/// A process. What it knows goes with it.
pub struct Agent {
    me: NodeName,
    pub snapshot: Snapshot,
    known: BTreeMap<String, i64>,
    seen: i64,
    /// The datastore answers.
    pub fresh: bool,
    pub speaker: Option<Speaker>,
    /// Forwarding state of an earlier process was there at the start.
    restarting: bool,
    learned: SharedMap<Prefix, Learned>,
    /// Plans again by the changed keys.
    planning: KernelPlanner,
    comparison: Comparison,
    /// The kernel as the last pass left it: notifications tell of all that others do.
    left: Actual,
    /// Every peer has told everything, or had the time to.
    pub converged: bool,
    unwanted: BTreeMap<IfName, Instant>,
    /// The next pass.
    pub due: Option<Instant>,
    /// Passes, for the summary.
    pub passes: usize,
    /// Passes, one after the other, in which the kernel refused something.
    refusals: u32,
    /// Changes of the kernel, for the summary.
    pub applied: usize,
}

impl Agent {
    /// A process that starts on this kernel.
    pub fn start(me: NodeName, kernel: &Kernel) -> Self {
        let ours = |r: &caracal_agent::ActualRoute| r.protocol == 80;
        Self {
            me,
            snapshot: Snapshot::default(),
            known: BTreeMap::new(),
            seen: 0,
            fresh: false,
            speaker: None,
            restarting: kernel.actual.all_routes().any(ours),
            learned: SharedMap::default(),
            planning: KernelPlanner::default(),
            comparison: Comparison::default(),
            left: Actual::default(),
            converged: false,
            unwanted: BTreeMap::new(),
            due: None,
            passes: 0,
            refusals: 0,
            applied: 0,
        }
    }

    /// True while the speaker waits for its peers after a restart.
    pub fn is_restarting(&self) -> bool {
        self.restarting && !self.converged
    }

    /// Forgets the snapshot, as after a compaction: everything is listed anew.
    pub fn relist(&mut self) {
        self.known.clear();
        self.seen = 0;
        self.snapshot = Snapshot::default();
    }

    pub fn wake(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Reads the datastore when it can be reached; returns the changes that the speaker has to
    /// send.
    pub fn observe(
        &mut self,
        now: Instant,
        store: &MemoryStore,
        reachable: bool,
    ) -> Option<Changes> {
        if self.fresh != reachable {
            self.fresh = reachable;
            self.wake(now);
        }
        if !reachable || self.seen == store.revision() {
            return None;
        }
        self.seen = store.revision();
        let mut gone: BTreeSet<String> = self.known.keys().cloned().collect();
        for kv in store.list("/calico/") {
            gone.remove(&kv.key);
            if self.known.get(&kv.key) != Some(&kv.mod_revision) {
                self.snapshot
                    .apply(&kv.key, Some(&kv.value), kv.mod_revision);
                self.known.insert(kv.key, kv.mod_revision);
            }
        }
        for key in gone {
            self.snapshot.apply(&key, None, self.seen);
            self.known.remove(&key);
        }
        self.snapshot.revision = self.seen;
        self.wake(now);
        let config = caracal_topologies::plan(&self.snapshot, &self.me, &PlanOptions::default());
        let config = config.config;
        match &mut self.speaker {
            Some(speaker) if speaker.config == config => None,
            Some(speaker) => {
                let changes = speaker.rib.reconfigure(now, &config);
                speaker.config = config;
                Some(changes)
            }
            None => {
                let options = RibOptions {
                    restarting: self.restarting,
                    ..RibOptions::default()
                };
                let (rib, changes) = Rib::new(now, &config, options);
                self.speaker = Some(Speaker { rib, config });
                Some(changes)
            }
        }
    }

    /// Takes over what the speaker learned.
    pub fn learn(&mut self, now: Instant) {
        let Some(speaker) = &self.speaker else { return };
        let learned: SharedMap<Prefix, Learned> = speaker
            .rib
            .all_learned()
            .map(|(prefix, route)| {
                let learned = Learned {
                    next_hops: route.next_hops,
                    gateways: route.gateways,
                    internal: route.internal,
                    stale: route.stale,
                    preferred_source: None,
                };
                (prefix, learned)
            })
            .collect();
        let converged = self.converged || speaker.rib.is_converged();
        if learned != self.learned || converged != self.converged {
            self.learned = learned;
            self.converged = converged;
            self.wake(now);
        }
    }

    fn phase(&self) -> Phase {
        if self.fresh && self.converged && !self.snapshot.doubts_node(&self.me) {
            Phase::Synced
        } else {
            Phase::Learning
        }
    }

    /// Desired state for this kernel.
    pub fn desired(&self, kernel: &Kernel) -> Desired {
        self.planned(kernel, &mut KernelPlanner::default()).desired
    }

    fn planned(&self, kernel: &Kernel, planning: &mut KernelPlanner) -> KernelPlan {
        let (settings, _) = Settings::resolve(
            &Settings {
                // Some nodes use next-hop objects, and some do not.
                objects: self.me.as_str().ends_with(['1', '3', '5']),
                ..Settings::default()
            },
            &self.snapshot,
            &self.me,
            &Overrides::new(),
        );
        let inputs = PlanInputs {
            lifelines: &BTreeSet::new(),
            snapshot: &self.snapshot,
            me: &self.me,
            learned: &self.learned,
            links: &kernel.actual.links,
            host_routes: &HostRoutes::from_kernel(&kernel.actual, &Ownership::from(&settings)),
            settings: &settings,
            kernel: &KernelSupport::default(),
        };
        // The speaker resolves over an underlay that never changes here.
        let learned = inputs.resolved();
        let inputs = PlanInputs {
            learned: &learned,
            ..inputs
        };
        planning.plan(&inputs)
    }

    /// Comparisons that looked at what changed only.
    pub fn compared_by_key(&self) -> usize {
        self.comparison.by_key()
    }

    /// True when nothing is known that would be deleted only later.
    pub fn is_waiting(&self) -> bool {
        !self.unwanted.is_empty()
    }

    /// One pass of the reconciler.
    ///
    /// # Errors
    /// A rule that was broken.
    pub fn pass(
        &mut self,
        now: Instant,
        kernel: &mut Kernel,
        dice: &mut Dice,
    ) -> Result<(), String> {
        self.due = None;
        if self.snapshot.revision == 0 {
            return Ok(());
        }
        self.passes += 1;
        let mut planning = std::mem::take(&mut self.planning);
        let KernelPlan {
            desired, changed, ..
        } = self.planned(kernel, &mut planning);
        self.planning = planning;
        if desired != self.desired(kernel) {
            return Err(format!("{}: planned by key it is another plan", self.me));
        }
        let phase = self.phase();
        if kernel.actual != self.left {
            self.comparison.kernel_was_read();
        }
        let actual = &kernel.actual;
        let (ops, _) = self.comparison.compare(&changed, &desired, actual, phase);
        let whole = diff(&desired, actual, phase);
        if ops != whole {
            return Err(format!(
                "{}: by key it is {ops:?}, and as a whole {whole:?}",
                self.me
            ));
        }
        let wanted = ops.len();
        let ops = self.delay_tunnel_removal(ops, &desired, now);
        if phase == Phase::Learning
            && let Some(op) = ops.iter().find(|op| op.is_delete())
        {
            return Err(format!(
                "AGENT-4: {}: {op} although nothing is sure",
                self.me
            ));
        }
        let before = ours(kernel, &desired);
        let count = ops.len();
        let (devices, rest): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(|op| {
            matches!(op, Op::AddTunnel(_) | Op::SetTunnel(_))
                || matches!(op, Op::DeleteTunnel(name) if !self.unwanted.contains_key(name))
        });
        if devices.iter().any(|op| matches!(op, Op::DeleteTunnel(_))) {
            self.wake(now);
        }
        let mut refused = 0;
        for op in devices.iter().chain(&rest) {
            if kernel.apply_ops(op, dice).is_err() {
                refused += 1;
            }
            if let Some(gone) = kernel.missing() {
                return Err(format!("AGENT-5: {}: {op} took {gone:?}", self.me));
            }
        }
        self.applied += count - refused;
        if count == wanted && refused == 0 {
            self.comparison.is_done(&desired, phase);
        }
        self.left = kernel.actual.clone();
        if phase == Phase::Learning {
            let after = ours(kernel, &desired);
            if let Some(lost) = before.difference(&after).next() {
                return Err(format!(
                    "{}: lost {lost:?} although nothing is sure",
                    self.me
                ));
            }
        }
        if count > refused && !kernel.actual.objects.is_empty() {
            // An object goes once its routes are seen to be gone.
            self.wake(now);
        }
        self.refusals = if refused > 0 { self.refusals + 1 } else { 0 };
        if refused > 0 {
            let wait = RETRY.0 * (1 << self.refusals.min(8));
            self.wake(now + wait.min(RETRY.1));
        }
        if let Some(since) = self.unwanted.values().min() {
            self.wake((*since + TUNNEL_REMOVAL_DELAY).max(now));
        }
        Ok(())
    }

    /// Tunnel devices that were in use a moment ago stay for a while, and what stands on them.
    fn delay_tunnel_removal(
        &mut self,
        mut ops: Vec<Op>,
        desired: &Desired,
        now: Instant,
    ) -> Vec<Op> {
        let mut unwanted = BTreeMap::new();
        ops.retain(|op| {
            let name = match op {
                Op::DeleteTunnel(name) | Op::DeleteAddress(name, _) => name,
                Op::DeleteNeighbour(key) => &key.link,
                Op::DeleteFdb(key, _) => &key.link,
                _ => return true,
            };
            if !is_tunnel_device(name.as_str()) || desired.tunnels.contains_key(name) {
                return true;
            }
            let since = self.unwanted.get(name).copied().unwrap_or(now);
            unwanted.insert(name.clone(), since);
            now >= since + TUNNEL_REMOVAL_DELAY
        });
        unwanted.retain(|_, since| now < *since + TUNNEL_REMOVAL_DELAY);
        self.unwanted = unwanted;
        ops
    }
}

/// Keys of our routes.
fn ours(kernel: &Kernel, desired: &Desired) -> BTreeSet<RouteKey> {
    let routes = kernel.actual.all_routes();
    routes
        .filter(|r| desired.ownership.route(r) == Owner::Ours)
        .map(caracal_agent::ActualRoute::key)
        .collect()
}
