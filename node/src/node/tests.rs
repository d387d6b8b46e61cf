//! What the tasks log while the datastore takes nothing.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::AgentStatus;
use caracal_datastore::{MemoryStore, TestLog, WatchOptions, spawn_watcher};
use caracal_ipam::{Client, LeaseHolder};
use caracal_model::NodeName;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use super::ipam::{collector, deleted_nodes, tunnels};
use super::kernel::{mode_check, services, services_report};
use super::membership::{machine, startup};
use super::problems::Registry;
use crate::config::Config;

const OUTAGE: Duration = Duration::from_secs(6 * 3600);
/// At once, after 30 s, 90 s and so on up to an hour, and then each hour.
const LINES: usize = 12;

const NODE: &str = r#"{"metadata":{"name":"node-a"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"}}}"#;
const POOL: &str =
    r#"{"metadata":{"name":"v4"},"spec":{"cidr":"10.244.0.0/16","vxlanMode":"Always"}}"#;

/// What the node has read: itself, a pool with tunnels, and a block of a node that is gone.
fn read() -> MemoryStore {
    let store = MemoryStore::new();
    let resources = "/calico/resources/v3/projectcalico.org";
    store.put(format!("{resources}/nodes/node-a"), NODE);
    store.put(format!("{resources}/ippools/v4"), POOL);
    for host in ["gone", "node-a"] {
        let block = match host {
            "gone" => "10.244.0.0-26",
            _ => "10.244.0.64-26",
        };
        let key = format!("/calico/ipam/v2/host/{host}/ipv4/block/{block}");
        store.put(key, r#"{"state":"confirmed"}"#);
    }
    store
}

/// Starts the tasks that write into a datastore; the watches that they read.
async fn start(local: &LocalSet, store: &MemoryStore) -> Vec<Box<dyn std::any::Any>> {
    let me = NodeName::from("node-a");
    let view = spawn_watcher(read(), WatchOptions::default());
    view.clone().wait_for(|view| view.synced).await.unwrap();
    let mut status = AgentStatus::default();
    status.kernel.revision = view.borrow().snapshot.revision;
    let (kernel, kernel_status) = watch::channel(Arc::new(status));
    let (translated, in_force) =
        watch::channel(services::Translated::Nothing("not wanted".to_owned()));
    let (collected, counts) = watch::channel(Default::default());
    let (lost, taken) = mpsc::channel(1);
    let registry = Registry::default();
    let grace = Duration::from_secs(900);
    let holder = LeaseHolder {
        machine: "this".to_owned(),
        boot: "this".to_owned(),
    };
    let lib_dir = "/nonexistent/caracal".as_ref();
    let claim = machine::Claim::new(me.clone(), holder, lib_dir, machine::TERM);
    let life = collector::Life {
        store: store.clone(),
        claim,
        grace,
    };
    local.spawn_local(life.live(view.clone(), lost, registry.reporter("lease")));
    local.spawn_local(collector::collect(
        store.clone(),
        me.clone(),
        deleted_nodes::Grace {
            period: grace,
            by_absence: true,
        },
        view.clone(),
        collected,
    ));
    let feeds = tunnels::TunnelInputs {
        view: view.clone(),
        kernel: kernel_status.clone(),
    };
    let client = Client::new(store.clone());
    local.spawn_local(tunnels::assign_tunnel_addresses(
        store.clone(),
        client,
        me.clone(),
        feeds,
        registry.reporter("tunnels"),
    ));
    local.spawn_local(services_report::report_services(
        store.clone(),
        me.clone(),
        view.clone(),
        in_force,
    ));
    local.spawn_local(mode_check::answer_mode_checks(
        store.clone(),
        me,
        view.clone(),
        kernel_status,
    ));
    let vars = [("IP", "10.0.0.1/24"), ("WAIT_FOR_DATASTORE", "true")];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let vars = BTreeMap::from(vars);
    let config = Config::from_env(&vars, None, "node-a").unwrap();
    let away = store.clone();
    local.spawn_local(async move {
        startup::register(&away, &config, async || Ok(Vec::new()), |_| {}).await
    });
    vec![
        Box::new((view, kernel, translated)),
        Box::new((counts, taken, registry)),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_hours_is_some_lines_of_each_task() {
    let log = TestLog::capture();
    let store = MemoryStore::new();
    store.set_unavailable(true);
    let local = LocalSet::new();
    let run = async {
        let _kept = start(&local, &store).await;
        tokio::time::sleep(OUTAGE).await;
    };
    local.run_until(run).await;
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    for line in log.lines("") {
        let (_, text) = line.split_once(": ").unwrap_or(("", &line));
        *told.entry(text.to_owned()).or_default() += 1;
    }
    for (text, lines) in &told {
        assert!(*lines <= LINES, "{lines} lines of: {text}");
    }
    let texts: BTreeSet<_> = told.keys().collect();
    for wanted in [
        "cannot renew the liveness lease",
        "cannot clear up after deleted nodes",
        "no tunnel address",
        "cannot report that services are in force",
        "cannot report on the check of a mode",
        "waiting for the datastore",
    ] {
        let is_told = texts.iter().any(|text| text.contains(wanted));
        assert!(is_told, "nobody says {wanted:?}: {texts:?}");
    }
}
