//! The reconciler against the real kernel, each test in a network namespace of its own.

#![allow(clippy::unwrap_used)]

mod batch;
mod conntrack;
mod endpoints;
mod ipip;
mod ipv6;
mod nat;
mod objects;
mod policy;
mod resync;
mod routes;
mod rules;
mod services;
mod tables;
mod translated;
mod vxlan;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_model::{Prefix, SharedMap, Snapshot};
use tokio::sync::watch;

use super::{
    AgentStatus, Freezing, Reconciler, ReconcilerHandle, ReconcilerOptions, SweepPrecondition,
};
use crate::learned::Learned;
use crate::settings::Settings;

const INSIDE: &str = "CARACAL_AGENT_TEST_INSIDE";

/// Runs `body` in a fresh network namespace: this binary starts itself again there for the one
/// test. `name` is the test's path below this module.
fn in_namespace<F: Future<Output = ()>>(name: &str, body: impl FnOnce() -> F) {
    if std::env::var(INSIDE).as_deref() == Ok(name) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(body());
        return;
    }
    if sh("id -u").trim() != "0" {
        skip(name, "root for a network namespace");
        return;
    }
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg(format!("dataplane::tests::{name}"))
        .env(INSIDE, name)
        .env("PATH", search_path(name))
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(
        status.success(),
        "{name} failed inside its namespace: {status}"
    );
}

/// A test that cannot run here passes, except where everything has to run, as in `make test`.
fn skip(name: &str, needs: &str) {
    let required = std::env::var("CARACAL_NETNS_REQUIRED").is_ok_and(|v| v == "1");
    assert!(!required, "{name} needs {needs}");
    println!("skipped: {name} needs {needs}");
}

/// The folder in which programs of the test are found first. It is there when a test makes it.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).next().unwrap()
}

/// The search path of the test `name`.
fn search_path(name: &str) -> OsString {
    let programs = format!("caragent-{}-{}", std::process::id(), name.replace(':', "-"));
    let first = std::env::temp_dir().join(programs);
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(first).chain(std::env::split_paths(&rest));
    std::env::join_paths(folders).unwrap()
}

/// Runs a shell command that has to succeed; answers with what it prints.
fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Polls until `predicate` holds of what `look` answers.
async fn wait_for(
    what: &str,
    limit: Duration,
    look: impl Fn() -> String,
    predicate: impl Fn(&str) -> bool,
) -> Duration {
    let start = Instant::now();
    loop {
        let seen = look();
        if predicate(&seen) {
            return start.elapsed();
        }
        assert!(
            start.elapsed() < limit,
            "{what}: not within {limit:?}; last seen:\n{seen}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Far less than the period of the comparison with everything, so that what is repaired within it
/// is repaired by event.
const LIMIT: Duration = Duration::from_secs(60);

/// A node called `a` with 10.0.0.1/24 on `eth0`, whose other end is `wire` in the same namespace.
struct Node {
    data: Snapshot,
    snapshot: watch::Sender<Arc<Snapshot>>,
    precondition: watch::Sender<SweepPrecondition>,
    learned: watch::Sender<SharedMap<Prefix, Learned>>,
    agent: ReconcilerHandle,
    objects: bool,
}

fn lab() {
    sh("ip link set lo up
        ip link add eth0 type veth peer name wire
        ip link set eth0 up
        ip link set wire up
        ip addr add 10.0.0.1/24 dev eth0
        ip -6 addr add fd00:a::1/64 dev eth0 nodad");
}

fn options(objects: bool) -> ReconcilerOptions {
    ReconcilerOptions {
        tunnel_removal_delay: Duration::from_millis(300),
        tunnel_guard_patience: Duration::from_millis(300),
        settings: Settings {
            objects,
            ..Settings::default()
        },
        ..ReconcilerOptions::new("a".into())
    }
}

fn start_agent(
    options: ReconcilerOptions,
    snapshot: &watch::Sender<Arc<Snapshot>>,
    precondition: &watch::Sender<SweepPrecondition>,
    learned: &watch::Sender<SharedMap<Prefix, Learned>>,
) -> ReconcilerHandle {
    let routes = watch::Sender::default();
    let resolved = watch::Sender::new(0);
    let mut words = precondition.subscribe();
    let word = watch::Sender::new(words.borrow_and_update().clone());
    let options = ReconcilerOptions {
        resolved: Some(resolved.subscribe()),
        ..options
    };
    let agent = Reconciler::spawn(
        options,
        snapshot.subscribe(),
        word.subscribe(),
        routes.subscribe(),
    )
    .unwrap();
    let mut underlay = agent.underlay();
    let mut learned = learned.subscribe();
    // Acts as the speaker, without its recursion. The word that all is told comes behind what it
    // speaks of, as in a node; whoever gives it has sent the routes before.
    tokio::spawn(async move {
        loop {
            let said = words.borrow_and_update().clone();
            let over = underlay.borrow_and_update().clone();
            let all = learned.borrow_and_update().clone();
            let all = all.iter();
            let all = all.map(|(prefix, route)| (*prefix, route.clone().over(&over.underlay)));
            routes.send_replace(all.collect());
            resolved.send_replace(over.number);
            word.send_if_modified(|word| {
                let differs = *word != said;
                *word = said;
                differs
            });
            tokio::select! {
                changed = words.changed() => if changed.is_err() { return },
                changed = underlay.changed() => if changed.is_err() { return },
                changed = learned.changed() => if changed.is_err() { return },
            }
        }
    });
    agent
}

impl Node {
    /// `entries` are (kind plural or `ipam/...`, name, JSON).
    fn start(entries: &[(&str, &str, String)]) -> Self {
        Self::start_with(options(false), entries)
    }

    fn start_with(options: ReconcilerOptions, entries: &[(&str, &str, String)]) -> Self {
        let objects = options.settings.objects;
        let mut data = Snapshot::default();
        for entry in entries {
            put(&mut data, entry);
        }
        let snapshot = watch::Sender::new(Arc::new(data.clone()));
        let precondition = watch::Sender::new(SweepPrecondition::met());
        let learned = watch::Sender::default();
        let agent = start_agent(options, &snapshot, &precondition, &learned);
        Self {
            data,
            snapshot,
            precondition,
            learned,
            agent,
            objects,
        }
    }

    fn put(&mut self, kind: &str, name: &str, value: String) {
        put(&mut self.data, &(kind, name, value));
        self.snapshot.send_replace(Arc::new(self.data.clone()));
    }

    fn delete(&mut self, kind: &str, name: &str) {
        let revision = self.data.revision + 1;
        self.data.apply(&path(kind, name), None, revision);
        self.snapshot.send_replace(Arc::new(self.data.clone()));
    }

    fn learn(&self, routes: &[(&str, &str)]) {
        let map = routes
            .iter()
            .map(|(prefix, hop)| {
                (
                    prefix.parse().unwrap(),
                    Learned::internal(hop.parse().unwrap()),
                )
            })
            .collect();
        self.learned.send_replace(map);
    }

    /// Ends the agent without a word, as kill -9 does, and starts another one.
    fn restart(&mut self) {
        self.agent = start_agent(
            options(self.objects),
            &self.snapshot,
            &self.precondition,
            &self.learned,
        );
    }

    /// The same, with all that a process does not know at its start: neither datastore nor BGP are
    /// sure, and BGP has learned nothing yet. Answers with its first state.
    async fn restart_unsure(&mut self) -> Arc<AgentStatus> {
        // Before it starts: with the old word it would delete what it is not told of, and so would
        // the old one.
        self.precondition.send_replace(SweepPrecondition::default());
        let mut old = self.agent.status();
        self.restart();
        while old.changed().await.is_ok() {}
        self.learn(&[]);
        self.status_when("learning", |s| s.passes > 0 && s.kernel.phase == "learning")
            .await
    }

    /// Ends the agent, and starts another one that leads routes through objects or does not.
    async fn restarted(self, objects: bool) -> Self {
        let Self {
            data,
            snapshot,
            precondition,
            learned,
            agent,
            ..
        } = self;
        let mut status = agent.status();
        drop(agent);
        while status.changed().await.is_ok() {}
        let agent = start_agent(options(objects), &snapshot, &precondition, &learned);
        Self {
            data,
            snapshot,
            precondition,
            learned,
            agent,
            objects,
        }
    }

    /// Ends the agent and waits until it does nothing any more.
    async fn end(self) {
        let mut status = self.agent.status();
        drop(self);
        while status.changed().await.is_ok() {}
    }

    /// The status after the snapshot's revision was applied.
    async fn settled(&self) -> Arc<AgentStatus> {
        let revision = self.data.revision;
        self.status_when("settled", |s| {
            s.desired.revision == revision && s.kernel.phase == "synced" && !s.rules_pending
        })
        .await
    }

    async fn status_when(
        &self,
        what: &str,
        predicate: impl Fn(&AgentStatus) -> bool,
    ) -> Arc<AgentStatus> {
        let mut status = self.agent.status();
        let found = tokio::time::timeout(LIMIT, status.wait_for(|s| predicate(s))).await;
        match found {
            Ok(found) => Arc::clone(&found.unwrap()),
            Err(_) => panic!("{what}: last seen {:#?}", self.agent.status().borrow()),
        }
    }

    /// A pass with everything read anew changes nothing.
    async fn assert_quiet(&self) {
        // A pass that was running when the kernel looked right is counted by now.
        let before = self.pass_anew().await;
        let after = self.pass_anew().await;
        assert_eq!(after.applied, before.applied, "nothing is written twice");
    }

    async fn pass_anew(&self) -> Arc<AgentStatus> {
        let passes = self.agent.status().borrow().passes;
        self.agent.resync().await;
        self.status_when("next pass", |s| s.passes > passes && !s.rules_pending)
            .await
    }
}

fn path(kind: &str, name: &str) -> String {
    if kind == "block" {
        let family = if name.contains(':') { "ipv6" } else { "ipv4" };
        let name = name.replace('/', "-");
        format!("/calico/ipam/v2/assignment/{family}/block/{name}")
    } else {
        format!("/calico/resources/v3/projectcalico.org/{kind}/{name}")
    }
}

fn put(data: &mut Snapshot, (kind, name, value): &(&str, &str, String)) {
    let revision = data.revision + 1;
    let applied = data.apply(&path(kind, name), Some(value.as_bytes()), revision);
    assert_eq!(applied, caracal_model::Applied::Changed, "{value}");
}

fn pool(name: &'static str, cidr: &str, rest: &str) -> (&'static str, &'static str, String) {
    let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"cidr":"{cidr}"{rest}}}}}"#);
    ("ippools", name, value)
}

fn node(name: &'static str, address: &str, tunnel: &str) -> (&'static str, &'static str, String) {
    let value = format!(
        r#"{{"metadata":{{"name":"{name}"}},"spec":{{"ipv4VXLANTunnelAddr":"{tunnel}",
            "bgp":{{"ipv4Address":"{address}","ipv4IPIPTunnelAddr":"{tunnel}"}}}}}}"#
    );
    ("nodes", name, value)
}

fn block(cidr: &'static str, owner: &str) -> (&'static str, &'static str, String) {
    let owner = caracal_model::BlockOwner::Host(owner.into());
    let block = caracal_model::Block::new(cidr.parse().unwrap(), Some(&owner), 1);
    ("block", cidr, String::from_utf8(block.to_json()).unwrap())
}

fn workload(address: &str, interface: &str) -> (&'static str, &'static str, String) {
    let value = format!(
        r#"{{"metadata":{{"name":"w","namespace":"default"}},"spec":{{"node":"a","interfaceName":"{interface}",
            "ipNetworks":["{address}/32"],"mac":"02:00:00:00:00:05"}}}}"#
    );
    ("workloadendpoints", "default/w", value)
}
