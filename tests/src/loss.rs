//! Measurements under load: probes between pods, time measured in packets, and every route the
//! kernel deletes. It measures; it never tolerates: a scenario asserts zero.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use caracal_lab::{
    Lab, Loss, Probe, Route, RouteKind, error_chain, ip_batch, program_command, run_in_netns,
    spawn_in_netns, wait_for, wait_until,
};
use caracal_model::Family;

use crate::SECOND;

/// Datagrams per second of each probe.
pub const PROBE_RATE: u32 = 1000;
/// A route of nobody's that shows that a monitor listens (RFC 5737: never a real destination).
const MARKER: &str = "192.0.2.255";

/// Routes of a node by kind, in all families of the lab, as the kernel has them: an independent
/// witness, not what the node says.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn routes_by_kind(lab: &Lab, node: &str) -> Vec<(RouteKind, Route)> {
    let underlay = lab.underlay();
    let routes = lab
        .routes(node)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let classify = |r: Route| (r.classify(&underlay), r);
    routes.into_iter().map(classify).collect()
}

/// Routes of one kind in all families of the lab. A VTEP on the link of its tunnel is part of the
/// way and no destination: it is not counted.
#[must_use]
pub fn count_routes(lab: &Lab, node: &str, kind: RouteKind) -> usize {
    let is_vtep = |k: RouteKind, r: &Route| k == RouteKind::Vxlan && r.gateway.is_none();
    routes_by_kind(lab, node)
        .iter()
        .filter(|(k, r)| *k == kind && !is_vtep(*k, r))
        .count()
}

/// True when a node has a network device of this name.
///
/// # Panics
/// When the namespace cannot be entered.
#[must_use]
pub fn has_device(lab: &Lab, node: &str, device: &str) -> bool {
    let netns = lab.netns(node).expect("a node of the lab");
    let table = run_in_netns(&netns, || {
        std::fs::read_to_string("/proc/thread-self/net/dev")
    });
    let table = table
        .expect("the namespace is there")
        .expect("procfs is there");
    let name = |line: &str| Some(line.split_once(':')?.0.trim() == device);
    table.lines().filter_map(name).any(|same| same)
}

/// Waits until a probe has sent so many more datagrams.
///
/// # Panics
/// When it does not.
pub fn await_datagrams(probe: &Probe, datagrams: u64) {
    let target = probe.sent() + datagrams;
    let sent = || probe.sent();
    let expected = std::time::Duration::from_millis(datagrams * 1000 / u64::from(PROBE_RATE));
    let deadline = 2 * expected + 120 * SECOND;
    wait_for(deadline, "datagrams sent", sent, |n| *n >= target).expect("a probe that sends");
}

/// Probes that run side by side.
pub struct Probes(Vec<(String, Probe)>);

impl Probes {
    /// Starts one probe for each pair of pods (`NODE/POD`) and each family of the lab, each at
    /// [`PROBE_RATE`].
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn start(lab: &Lab, pairs: &[(&str, &str)]) -> Self {
        Self::start_at(lab, pairs, PROBE_RATE)
    }

    /// The same at another rate, in datagrams per second.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn start_at(lab: &Lab, pairs: &[(&str, &str)], rate: u32) -> Self {
        let families = lab.topology().families().into_iter();
        Self(
            families
                .flat_map(|f| Self::start_of(lab, pairs, f, rate).0)
                .collect(),
        )
    }

    /// The same in one family.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn start_of(lab: &Lab, pairs: &[(&str, &str)], family: Family, rate: u32) -> Self {
        let start = |(from, to): &(&str, &str)| {
            let probe = lab
                .probe_of(from, to, family, rate)
                .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
            (format!("{from} → {to} ({family})"), probe)
        };
        Self(pairs.iter().map(start).collect())
    }

    /// Waits until the first probe has sent so many more datagrams: time measured in packets.
    pub fn after(&self, datagrams: u64) {
        await_datagrams(&self.0[0].1, datagrams);
    }

    /// Stops all probes and prints the counts.
    ///
    /// # Panics
    /// When a single datagram is missing.
    pub fn assert_none_lost(self, what: &str) {
        let stopped: Vec<(String, Loss)> = self.0.into_iter().map(|(n, p)| (n, p.stop())).collect();
        for (pair, loss) in &stopped {
            println!("{what}: {pair}: {loss}");
        }
        let lossy: Vec<_> = stopped.iter().filter(|(_, l)| l.lost > 0).collect();
        assert!(lossy.is_empty(), "{what}: datagrams lost: {lossy:#?}");
    }
}

/// Output of `ip monitor route` in the namespace of a node: the kernel's own account of changes.
pub struct RouteMonitor {
    node: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl RouteMonitor {
    /// One on each Caracal node.
    ///
    /// # Panics
    /// As [`RouteMonitor::start`].
    #[must_use]
    pub fn on_all(lab: &Lab) -> Vec<Self> {
        let nodes = crate::caracals(lab);
        nodes.iter().map(|node| Self::start(lab, node)).collect()
    }

    /// Starts to listen, and returns once it has heard something.
    ///
    /// # Panics
    /// When `ip` does not start or hears nothing.
    #[must_use]
    pub fn start(lab: &Lab, node: &str) -> Self {
        let netns = lab.netns(node).expect("a node of the lab");
        let mut command = program_command("ip").expect("ip is installed");
        command
            .args(["-o", "monitor", "route"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn_in_netns(&netns, &mut command).expect("ip starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        let monitor = Self {
            node: node.to_owned(),
            child,
            lines,
            reader: Some(reader),
        };
        wait_until(60 * SECOND, "ip monitor to hear a marker route", || {
            for verb in ["add", "del"] {
                let line = format!("route {verb} blackhole {MARKER}/32 proto static");
                ip_batch(Some(&netns), &[line]).map_err(|e| error_chain(&e))?;
            }
            let heard = monitor.lines().iter().any(|l| l.contains(MARKER));
            if heard {
                Ok(())
            } else {
                Err("silence".to_owned())
            }
        })
        .unwrap_or_else(|e| panic!("{node}: {e}"));
        monitor
    }

    fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Routes with Caracal's protocol that were deleted so far.
    #[must_use]
    pub fn deleted(&self) -> Vec<String> {
        let ours = |l: &String| l.starts_with("Deleted ") && l.contains(" proto 80");
        self.lines().into_iter().filter(ours).collect()
    }

    /// Nothing of ours was deleted.
    ///
    /// # Panics
    /// With what was.
    pub fn assert_nothing_deleted(&self, what: &str) {
        self.assert_none(&self.deleted(), what);
    }

    /// Nothing of ours was deleted of a family.
    ///
    /// # Panics
    /// With what was.
    pub fn assert_nothing_deleted_of(&self, family: Family, what: &str) {
        let mut deleted = self.deleted();
        deleted.retain(|line| line.contains(':') == (family == Family::Ipv6));
        self.assert_none(&deleted, what);
    }

    /// No route to pods of ours was deleted: a VTEP on the link of its tunnel is part of the way,
    /// and goes with the mode.
    ///
    /// # Panics
    /// With what was.
    pub fn assert_only_vteps_deleted(&self, what: &str) {
        let mut deleted = self.deleted();
        deleted
            .retain(|l| !l.contains(" dev vxlan") || l.contains(" via ") || l.contains(" nhid "));
        self.assert_none(&deleted, what);
    }

    fn assert_none(&self, deleted: &[String], what: &str) {
        let none: [String; 0] = [];
        assert_eq!(deleted, none, "{what}: routes deleted on {}", self.node);
    }
}

impl Drop for RouteMonitor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _joined = reader.join();
        }
    }
}
