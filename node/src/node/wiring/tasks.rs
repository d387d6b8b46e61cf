//! The tasks of a node: one table, the same as in `docs/architecture.md`.

use std::future::Future;

use caracal_datastore::Datastore;
use caracal_ipam::Client;

use super::board::Board;
use crate::node::announce::named_secrets;
use crate::node::announce::origins;
use crate::node::announce::publish::Publisher;
use crate::node::announce::range_check;
use crate::node::announce::secrets;
use crate::node::announce::transition_report;
use crate::node::ipam::assignment_stop;
use crate::node::ipam::block_hints;
use crate::node::ipam::collector;
use crate::node::ipam::deleted_nodes::Grace;
use crate::node::ipam::pending_releases;
use crate::node::ipam::tunnels;
use crate::node::kernel::datastore_way::DatastoreWay;
use crate::node::kernel::felix;
use crate::node::kernel::health_checks;
use crate::node::kernel::learned;
use crate::node::kernel::lifelines;
use crate::node::kernel::lost_addresses;
use crate::node::kernel::mode_check;
use crate::node::kernel::mtu;
use crate::node::kernel::neighbour_limits;
use crate::node::kernel::policy;
use crate::node::kernel::services;
use crate::node::kernel::services_report;
use crate::node::kernel::sweep;
use crate::node::kernel::underlay;
use crate::node::membership::{network_condition, node_address, plugin_access};

/// How a task comes to run.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// Others need its handle: `owners` starts it, before the rest of the table.
    Owner,
    /// It needs nothing but what is on the board.
    From(fn(&Board)),
}

/// One task: a row of the picture.
pub(super) struct Task {
    pub(super) name: &'static str,
    /// Where it is.
    pub(super) file: &'static str,
    /// How many there are.
    pub(super) count: &'static str,
    /// State that only this task changes.
    pub(super) owns: &'static str,
    /// Inputs that wake it.
    pub(super) hears: &'static str,
    /// Receivers of its output.
    pub(super) tells: &'static str,
    /// How it is started.
    pub(super) start: Start,
}

/// Starts the tasks that nobody has started yet.
pub(super) fn start(board: &Board) {
    for task in TASKS {
        let Task {
            name,
            file,
            count,
            owns,
            hears,
            tells,
            start,
        } = task;
        if let Start::From(start) = start {
            start(board);
        }
        tracing::debug!(file, count, owns, hears, tells, "task {name}");
    }
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// All tasks, by the way of the data: datastore, speaker, kernel, back to the datastore, who asks.
#[rustfmt::skip]
pub(super) const TASKS: &[Task] = &[
    Task {
        name: "watcher", file: "datastore/src/watch/", count: "1",
        owns: "resource maps, revision", hears: "the datastore", tells: "`watch<View>`",
        start: Start::Owner,
    },
    Task {
        name: "registrar", file: "node/src/node/membership/registration.rs", count: "1",
        owns: "this node's Node as it should be", hears: "`View`", tells: "the Node resource",
        start: Start::Owner,
    },
    Task {
        name: "rememberer", file: "node/src/node/membership/remember.rs", count: "1",
        owns: "what was written last", hears: "`View`", tells: "the file `last-snapshot`",
        start: Start::Owner,
    },
    Task {
        name: "datastore's addresses", file: "node/src/node/kernel/lifelines.rs", count: "1",
        owns: "–", hears: "name servers", tells: "reconciler, ranges, services, publisher",
        start: Start::From(|b| spawn(lifelines::resolve_lifelines(b.hosts.clone(), b.feeds.lifelines.writer()))),
    },
    Task {
        name: "passwords", file: "node/src/node/announce/secrets.rs", count: "1",
        owns: "–", hears: "files below `CARACAL_SECRETS_DIR`, or the Secrets that the `View` names", tells: "publisher",
        start: Start::From(passwords),
    },
    Task {
        name: "publisher", file: "node/src/node/announce/publish.rs", count: "1",
        owns: "last plan", hears: "`View`, passwords, drain, the datastore's addresses", tells: "speaker: `reconfigure`",
        start: Start::From(|b| spawn(publisher(b).run())),
    },
    Task {
        name: "ranges", file: "node/src/node/announce/range_check.rs", count: "1",
        owns: "ranges that were compared last", hears: "`View`, the datastore's addresses, the range of the cluster's Services", tells: "who asks",
        start: Start::From(|b| spawn(range_check::report_range_conflicts(b.store.clone(), b.view.clone(), b.feeds.lifelines.reader(), b.registry.reporter("ranges")))),
    },
    Task {
        name: "origins", file: "node/src/node/announce/origins.rs", count: "1",
        owns: "owners of prefixes last given to the speaker", hears: "`View`", tells: "speaker: who may announce what; then the learned-routes adapter",
        start: Start::From(origin_check),
    },
    Task {
        name: "speaker core", file: "bgp/src/speaker/core.rs", count: "1",
        owns: "Rib, peer table", hears: "configuration, sessions, queries", tells: "feeds",
        start: Start::Owner,
    },
    Task {
        name: "session", file: "bgp/src/speaker/session.rs", count: "one per peer",
        owns: "one peer machine, its streams", hears: "bytes, its feed", tells: "core, bounded",
        start: Start::Owner,
    },
    Task {
        name: "learned-routes adapter", file: "node/src/node/kernel/learned.rs", count: "1",
        owns: "the map of learned routes", hears: "the speaker's feed, its convergence, what it has resolved next hops over, whether the origin check has judged", tells: "reconciler, sweep precondition",
        start: Start::From(learned_routes),
    },
    Task {
        name: "sweep precondition", file: "node/src/node/kernel/sweep.rs", count: "1",
        owns: "peers that get their grace again", hears: "`View`, how complete the learned routes are, the speaker's status", tells: "reconciler",
        start: Start::From(sweep_precondition),
    },
    Task {
        name: "reconciler", file: "felix-like-agent/src/dataplane/", count: "1",
        owns: "Desired, Actual (remembered between notifications of the kernel, decision 0029), failed operations; its task for rules owns NAT and guards", hears: "snapshot, learned routes, sweep precondition, netlink", tells: "kernel, `watch<AgentStatus>`, `watch<PublishedUnderlay>`",
        start: Start::Owner,
    },
    Task {
        name: "underlay", file: "node/src/node/kernel/underlay.rs", count: "1",
        owns: "–", hears: "`watch<PublishedUnderlay>`, gateways of peers", tells: "speaker: underlay, own networks; then the learned-routes adapter",
        start: Start::From(next_hops),
    },
    Task {
        name: "lost addresses", file: "node/src/node/kernel/lost_addresses.rs", count: "1",
        owns: "addresses of this machine", hears: "the agent's status", tells: "the speaker's sessions, the connection to the datastore",
        start: Start::From(lost_addresses),
    },
    Task {
        name: "MTU file", file: "node/src/node/kernel/mtu.rs", count: "1",
        owns: "–", hears: "the agent's status", tells: "the CNI plugin",
        start: Start::From(|b| spawn(mtu::write_mtu(b.config.lib_dir.clone(), b.kernel.clone()))),
    },
    Task {
        name: "neighbour limits", file: "node/src/node/kernel/neighbour_limits.rs", count: "1",
        owns: "–", hears: "time", tells: "who asks",
        start: Start::From(|b| spawn(neighbour_limits::report_neighbour_limits(b.config.node.clone(), b.view.clone(), b.kernel.clone(), b.registry.reporter("neighbour limits")))),
    },
    Task {
        name: "policy", file: "node/src/node/kernel/policy.rs", count: "1",
        owns: "the table of policy in nftables", hears: "`View`, changes that others make to the table, addresses", tells: "kernel, who asks",
        start: Start::From(policy_table),
    },
    Task {
        name: "rules of Felix", file: "node/src/node/kernel/felix.rs", count: "1",
        owns: "what a Felix that was replaced has left in nftables and iptables", hears: "policies in force, `View`, time", tells: "kernel, who asks",
        start: Start::From(rules_of_felix),
    },
    Task {
        name: "services", file: "node/src/node/kernel/services.rs", count: "1",
        owns: "the table of services in nftables", hears: "`View`, this machine's addresses, those of the datastore, changes that others make to the table, rules of kube-proxy", tells: "kernel, metrics, who asks",
        start: Start::From(service_table),
    },
    Task {
        name: "health checks", file: "node/src/node/kernel/health_checks.rs", count: "1",
        owns: "sockets of `healthCheckNodePort` and of kube-proxy's port", hears: "services in the kernel", tells: "load balancers",
        start: Start::From(|b| if b.config.services.is_on() { spawn(health_checks::answer_health_checks(b.config.proxy_health, b.feeds.translated.reader())) }),
    },
    Task {
        name: "services report", file: "node/src/node/kernel/services_report.rs", count: "1",
        owns: "–", hears: "`View`, services in the kernel", tells: "a key that `services apply --wait` reads",
        start: Start::From(service_report),
    },
    Task {
        name: "node-address watcher", file: "node/src/node/membership/node_address.rs", count: "1",
        owns: "–", hears: "the agent's status", tells: "the Node resource",
        start: Start::From(node_address),
    },
    Task {
        name: "network condition", file: "node/src/node/membership/network_condition.rs", count: "1",
        owns: "–", hears: "`View`, the agent's status", tells: "the condition of Kubernetes' Node",
        start: Start::From(network_condition),
    },
    Task {
        name: "plugin's access", file: "node/src/node/membership/plugin_access.rs", count: "1",
        owns: "–", hears: "time", tells: "the CNI plugin's kubeconfig",
        start: Start::From(plugin_access),
    },
    Task {
        name: "tunnel addresses", file: "node/src/node/ipam/tunnels.rs", count: "1",
        owns: "–", hears: "`View`, the agent's status", tells: "IPAM, the Node resource",
        start: Start::From(tunnel_addresses),
    },
    Task {
        name: "transition report", file: "node/src/node/announce/transition_report.rs", count: "1",
        owns: "–", hears: "the transition in force, the speaker's table", tells: "a key that `topology apply` reads",
        start: Start::From(transition_report),
    },
    Task {
        name: "mode check", file: "node/src/node/kernel/mode_check.rs", count: "1",
        owns: "–", hears: "`View`, the agent's status", tells: "a key that `mode apply` reads",
        start: Start::From(mode_report),
    },
    Task {
        name: "liveness lease", file: "node/src/node/ipam/collector.rs", count: "1",
        owns: "–", hears: "time", tells: "this node's lease",
        start: Start::From(|b| spawn(b.life().live(b.view.clone(), b.lost.clone(), b.registry.reporter("liveness lease")))),
    },
    Task {
        name: "collector", file: "node/src/node/ipam/collector.rs", count: "1",
        owns: "since when what looks dead", hears: "`View`, interfaces, routes, leases", tells: "IPAM",
        start: Start::From(ipam_collector),
    },
    Task {
        name: "pending releases", file: "node/src/node/ipam/pending_releases.rs", count: "1",
        owns: "–", hears: "files of the CNI plugin, `View`", tells: "IPAM",
        start: Start::From(pending_releases),
    },
    Task {
        name: "stop of assignments", file: "node/src/node/ipam/assignment_stop.rs", count: "1",
        owns: "–", hears: "`View`", tells: "the CNI plugin",
        start: Start::From(|b| spawn(assignment_stop::write_assignment_stop(b.config.run_dir.clone(), b.view.clone()))),
    },
    Task {
        name: "block hint", file: "node/src/node/ipam/block_hints.rs", count: "1",
        owns: "–", hears: "`View`", tells: "the CNI plugin",
        start: Start::From(block_hint),
    },
    Task {
        name: "ports", file: "node/src/node/answers/listeners.rs", count: "1",
        owns: "sockets of probes and metrics", hears: "`View`", tells: "answers over HTTP",
        start: Start::Owner,
    },
    Task {
        name: "console", file: "node/src/node/answers/console.rs", count: "1 where `CARACAL_CONSOLE` is set",
        owns: "its socket, what its files hold, clients of events, the status before", hears: "the owners' status while a client follows, other nodes' consoles when it is asked for them", tells: "answers, events and the page over HTTP",
        start: Start::Owner,
    },
    Task {
        name: "drain", file: "node/src/node/announce/drain.rs", count: "1",
        owns: "how far the node is out of service", hears: "orders from the admin socket", tells: "the publisher, speaker: `disable`, `enable`",
        start: Start::Owner,
    },
    Task {
        name: "auditor", file: "node/src/node/answers/auditor.rs", count: "1",
        owns: "ages of findings", hears: "`View`, learned routes, the agent's and the drain's status, a kernel dump of its own", tells: "who asks, the log",
        start: Start::Owner,
    },
    Task {
        name: "status publisher", file: "node/src/node/answers/status_publisher.rs", count: "1",
        owns: "the record that was written last", hears: "the owners' status, the last audit", tells: "a key that commands with `--all-nodes` read",
        start: Start::Owner,
    },
    Task {
        name: "admin", file: "node/src/admin.rs", count: "1",
        owns: "unix socket", hears: "people, probes", tells: "answers",
        start: Start::Owner,
    },
];

fn passwords(board: &Board) {
    let writer = board.feeds.secrets.writer();
    match board.config.secrets_dir.clone() {
        Some(folder) => spawn(secrets::watch_secrets(folder, writer)),
        None if !board.store.has_secrets() => {}
        None => spawn(named_secrets::watch_named_secrets(
            board.store.clone(),
            board.config.namespace.clone(),
            board.view.clone(),
            writer,
            board.registry.reporter("passwords"),
        )),
    }
}

fn publisher(board: &Board) -> Publisher {
    let feeds = &board.feeds;
    Publisher {
        config: board.config.clone(),
        view: board.view.clone(),
        secrets: (feeds.secrets.writer(), feeds.secrets.reader()),
        lifelines: feeds.lifelines.reader(),
        drain: feeds.drain.reader(),
        speaker: board.speaker.clone(),
        current: board.speaker_config.clone(),
        problems: board.registry.reporter("plan"),
        announced: feeds.announced.writer(),
        in_force: feeds.in_force.writer(),
        stage_in_force: feeds.stage_in_force.writer(),
        gateways: feeds.gateways.writer(),
    }
}

fn origin_check(board: &Board) {
    spawn(origins::publish_origins(
        board.view.clone(),
        board.first.clone(),
        (board.config.node.clone(), board.config.origin_check),
        board.speaker.clone(),
        board.feeds.judged.writer(),
    ));
}

fn learned_routes(board: &Board) {
    let beside = learned::Beside {
        convergence: board.speaker.convergence(),
        judged: board.feeds.judged.reader(),
        resolved: board.feeds.resolved.reader(),
    };
    spawn(learned::follow(
        board.fib.clone(),
        beside,
        board.feeds.learned.writer(),
        board.feeds.completeness.writer(),
        board.feeds.resolved_routes.writer(),
    ));
}

fn next_hops(board: &Board) {
    spawn(underlay::publish_underlay(
        board.underlay.clone(),
        board.feeds.gateways.reader(),
        board.speaker.clone(),
        board.feeds.resolved.writer(),
    ));
}

fn sweep_precondition(board: &Board) {
    spawn(sweep::hold_sweep(
        board.view.clone(),
        board.feeds.completeness.reader(),
        board.speaker.clone(),
        board.feeds.snapshots.writer(),
        board.feeds.precondition.writer(),
    ));
}

fn lost_addresses(board: &Board) {
    spawn(lost_addresses::report_lost_addresses(
        board.kernel.clone(),
        board.speaker.clone(),
        board.store.clone(),
    ));
}

fn policy_table(board: &Board) {
    let problems = board.registry.reporter("policy");
    match board.config.enforces_policy {
        true => spawn(policy::enforce_policy(
            board.config.clone(),
            board.view.clone(),
            board.feeds.enforced.writer(),
            problems,
        )),
        false => spawn(policy::leave(problems)),
    }
}

fn rules_of_felix(board: &Board) {
    spawn(felix::follow_felix(
        board.config.clone(),
        board.view.clone(),
        board.feeds.enforced.reader(),
        board.registry.reporter("rules of Felix"),
    ));
}

fn service_table(board: &Board) {
    if !board.config.services.is_on() {
        let reason = "CARACAL_SERVICES is off".to_owned();
        let translated = board.feeds.translated.writer();
        translated.send_replace(services::Translated::Nothing(reason));
        return;
    }
    spawn(services::translate_services(
        board.config.clone(),
        services::ServiceInputs {
            view: board.view.clone(),
            underlay: board.underlay.clone(),
            datastore: DatastoreWay {
                hosts: board.hosts.clone(),
                addresses: board.feeds.lifelines.reader(),
                is_kubernetes: board.store.has_nodes_of_kubernetes(),
                freed: board.freed.clone(),
                problems: board.registry.reporter("datastore's way"),
            },
            kube_proxy: board.feeds.takeover.watch(),
        },
        board.feeds.translated.writer(),
        board.registry.reporter("services"),
    ));
}

fn service_report(board: &Board) {
    // There others place Services, and nobody waits for them here.
    if board.store.counts_by_kind() {
        return;
    }
    spawn(services_report::report_services(
        board.store.clone(),
        board.config.node.clone(),
        board.view.clone(),
        board.feeds.translated.reader(),
    ));
}

fn node_address(board: &Board) {
    spawn(node_address::watch_node_address(
        || Ok(Datastore::from_env()?),
        board.config.clone(),
        board.view.clone(),
        board.kernel.clone(),
        board.registry.reporter("node address"),
    ));
}

fn network_condition(board: &Board) {
    spawn(network_condition::set_once(
        board.store.clone(),
        board.config.node.clone(),
        board.view.clone(),
        board.kernel.clone(),
        board.registry.reporter("network condition"),
    ));
}

fn plugin_access(board: &Board) {
    if let Some(account) = board.config.plugin_account.clone() {
        let problems = board.registry.reporter("plugin's access");
        spawn(plugin_access::write_plugin_access(
            board.store.clone(),
            account,
            problems,
        ));
    }
}

fn tunnel_addresses(board: &Board) {
    // They follow from the Nodes' podCIDRs then, and IPAM has none to give.
    if board.store.uses_pod_cidr() {
        return;
    }
    spawn(tunnels::assign_tunnel_addresses(
        board.store.clone(),
        Client::new(board.store.clone()),
        board.config.node.clone(),
        tunnels::TunnelInputs {
            view: board.view.clone(),
            kernel: board.kernel.clone(),
        },
        board.registry.reporter("tunnel addresses"),
    ));
}

fn transition_report(board: &Board) {
    spawn(transition_report::report(
        board.store.clone(),
        board.config.node.clone(),
        board.speaker.clone(),
        board.feeds.in_force.reader(),
    ));
}

fn mode_report(board: &Board) {
    spawn(mode_check::answer_mode_checks(
        board.store.clone(),
        board.config.node.clone(),
        board.view.clone(),
        board.kernel.clone(),
    ));
}

fn ipam_collector(board: &Board) {
    // With podCIDRs there is nothing of IPAM to collect.
    let grace = board.config.ipam_grace;
    if let Some(period) = grace.filter(|_| !board.store.uses_pod_cidr()) {
        spawn(collector::collect(
            board.store.clone(),
            board.config.node.clone(),
            Grace {
                period,
                by_absence: board.store.has_nodes_of_kubernetes(),
            },
            board.view.clone(),
            board.feeds.collected.writer(),
        ));
    }
}

fn pending_releases(board: &Board) {
    spawn(pending_releases::release_pending(
        board.store.clone(),
        board.config.lib_dir.clone(),
        board.view.clone(),
        board.registry.reporter("pending releases"),
    ));
}

fn block_hint(board: &Board) {
    spawn(block_hints::write_block_hints(
        board.config.run_dir.clone(),
        board.config.node.clone(),
        board.view.clone(),
    ));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The picture of the architecture page is the table that is started.
    #[test]
    fn the_page_shows_the_tasks_that_run() {
        let page = include_str!("../../../../docs/architecture.md");
        let (_, rest) = page.split_once("## Tasks of `caracal node`").unwrap();
        let (section, _) = rest.split_once("\n## ").unwrap();
        let shown = section.lines().filter(|line| line.starts_with("| "));
        let shown: Vec<&str> = shown.skip(1).collect();
        let row = |task: &Task| {
            let Task {
                name,
                file,
                count,
                owns,
                hears,
                tells,
                ..
            } = task;
            format!("| {name} (`{file}`) | {count} | {owns} | {hears} | {tells} |")
        };
        let wanted: Vec<String> = TASKS.iter().map(row).collect();
        assert_eq!(shown, wanted, "\n{}", wanted.join("\n"));
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for task in TASKS {
            let file = std::path::Path::new(root).join(task.file);
            assert!(file.exists(), "{}: {}", task.name, file.display());
        }
    }
}
