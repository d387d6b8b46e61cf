//! Probes and metrics of real nodes: what a kubelet and a Prometheus see.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::Instant;

use caracal_lab::{
    Lab, RunningProcess as Running, program_command, program_output, wait_for, wait_until,
};
use caracal_model::{
    AllocationAttribute, Block, BlockOwner, Key, NodeStatus, PeerStatusJson, Prefix, Problem,
    ProblemCode,
};
use caracal_tests::{
    SECOND, addresses, assert_full_matrix, await_settled, await_status, either, example, exit_code,
    family_count, focus, get_http, logs, on_each_stack, on_kubernetes_datastore, possible, up_text,
};
use serde_json::json;

/// Waits until a probe answers with a status and a text.
fn await_answer(lab: &Lab, path: &str, status: u16, part: &str) -> String {
    let answer = wait_until(
        90 * SECOND,
        &format!("{path} to say {status}, {part:?}"),
        || match get_http(lab, "node1", 9099, path)? {
            (seen, body) if seen == status && body.contains(part) => Ok(body),
            other => Err(format!("{other:?}")),
        },
    );
    answer.unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)))
}

/// Families by name from a text exposition.
fn names(text: &str) -> Vec<&str> {
    let types = text.lines().filter_map(|l| l.strip_prefix("# TYPE "));
    types.filter_map(|l| l.split(' ').next()).collect()
}

#[test]
fn probes_and_metrics_of_a_real_node() {
    on_each_stack(
        "probes_and_metrics_of_a_real_node",
        &["promtool", "prometheus"],
        "full-mesh",
        "e2e-health",
        probes_and_metrics,
    );
}

fn probes_and_metrics(mut lab: Lab) {
    // Sessions, routes and peers are of each family.
    let (one, two) = (family_count(&lab), 2 * family_count(&lab));
    await_settled(&lab);
    let ready = await_answer(&lab, "/readyz", 200, "\nready\n");
    for check in ["datastore: fresh", "kernel: in step"] {
        assert!(ready.contains(&format!("[+] {check}")), "{ready}");
    }
    let _sessions = await_answer(
        &lab,
        "/readyz",
        200,
        &format!("[+] bgp: {two} of {two} sessions are up"),
    );
    for path in ["/livez", "/liveness", "/readiness"] {
        assert_eq!(
            get_http(&lab, "node1", 9099, path).unwrap().0,
            200,
            "{path}"
        );
    }
    let mut text = String::new();
    for line in [
        "caracal_ready{check=\"kernel\"} 1",
        "caracal_cluster_hosts 3",
        &format!("caracal_bgp_peers{{type=\"mesh\",state=\"Established\"}} {two}"),
        &format!("caracal_route_table_routes{{kind=\"direct\"}} {two}"),
        "caracal_datastore_state{state=\"stale\"} 0",
    ] {
        text = await_answer(&lab, "/metrics", 200, &format!("\n{line}\n"));
    }
    assert!(
        !text.contains("caracal_bgp_peer_up{"),
        "mesh peers have no series:\n{text}"
    );
    lint(&text);
    let (_, upstream) = get_http(&lab, "node1", 9099, "/metrics/upstream").unwrap();
    assert!(
        names(&upstream).contains(&"felix_cluster_num_hosts"),
        "{upstream}"
    );
    let documented = documented();
    for name in names(&text) {
        assert!(
            documented.contains(&name.to_owned()),
            "docs/monitoring.md lacks {name}"
        );
    }
    pods_elsewhere(&lab);
    scraped_by_prometheus(&lab);
    standalone_speaker(&lab);

    // etcd goes: not ready, with the reason, and alive all the same.
    lab.kill9_etcd().unwrap();
    let body = await_answer(&lab, "/readyz", 503, "[-] datastore: stale");
    assert!(body.ends_with("not ready\n"), "{body}");
    assert!(
        body.contains("[+] bgp"),
        "sessions do not need etcd: {body}"
    );
    assert_eq!(get_http(&lab, "node1", 9099, "/livez").unwrap().0, 200);
    lab.start_etcd().unwrap();
    let _ready = await_answer(&lab, "/readyz", 200, "\nready\n");

    // A peer that is lost later is a number, not a reason to be unready.
    lab.kill9_node("node3").unwrap();
    let _metrics = await_answer(
        &lab,
        "/metrics",
        200,
        &format!("caracal_bgp_peers{{type=\"mesh\",state=\"Established\"}} {one}\n"),
    );
    let _ready = await_answer(
        &lab,
        "/readyz",
        200,
        &format!("bgp: {one} of {two} sessions are up"),
    );

    // Before the start is over: alive, and not ready.
    lab.stop_node("node2").unwrap();
    lab.stop_node("node1").unwrap();
    lab.start_node("node1").unwrap();
    let _waits = await_answer(&lab, "/readyz", 503, "waiting for End-of-RIB from");
    assert_eq!(get_http(&lab, "node1", 9099, "/livez").unwrap().0, 200);
}

#[test]
fn an_operator_disables_and_resets_a_peer_of_a_node() {
    on_each_stack(
        "an_operator_disables_and_resets_a_peer_of_a_node",
        &[],
        "full-mesh",
        "e2e-orders",
        orders_about_a_peer,
    );
}

/// The first session that a node has with another.
fn peer_of(lab: &Lab, node: &str, other: &str) -> PeerStatusJson {
    let peers = lab.node_status(node).unwrap().peers;
    let of_other = addresses(lab, other);
    let is_other = |peer: &PeerStatusJson| peer.address.is_some_and(|a| of_other.contains(&a));
    let found = peers.into_iter().find(is_other);
    found.unwrap_or_else(|| panic!("{node} has no peer {other}"))
}

fn await_peer(
    lab: &Lab,
    (node, name): (&str, &str),
    what: &str,
    holds: impl Fn(&PeerStatusJson) -> bool,
) {
    let limit = 60 * SECOND;
    await_status(lab, node, limit, what, |status| {
        match status.peers.iter().find(|peer| peer.name == name) {
            Some(peer) if holds(peer) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// A node takes the orders that a standalone speaker takes (RFC 9003): the other node learns the
/// reason, both show it everywhere, no other session changes, and `enable` and `reset` undo it.
fn orders_about_a_peer(lab: Lab) {
    await_settled(&lab);
    let (here, there) = (
        peer_of(&lab, "node1", "node2"),
        peer_of(&lab, "node2", "node1"),
    );
    let third = peer_of(&lab, "node1", "node3");
    let order = |arguments: &[&str], code: i32| {
        let (seen, text) = exit_code(&lab, "node1", arguments);
        assert_eq!(seen, code, "{arguments:?}: {text}");
    };
    order(&["bgp", "disable", "nobody"], 3);
    order(&["bgp", "reset", &here.name, "--soft", "in"], 0);
    order(&["bgp", "reset", &here.name, "--soft", "out"], 0);
    let words = "rack 7 is moved";
    order(&["bgp", "disable", &here.name, "--text", words], 0);
    await_peer(
        &lab,
        ("node1", &here.name),
        "the peer to be disabled",
        |peer| {
            peer.state == "Idle" && peer.reason.as_deref() == Some("disabled here: rack 7 is moved")
        },
    );
    await_peer(
        &lab,
        ("node2", &there.name),
        "the other end's words",
        |peer| {
            let reason = peer.reason.as_deref().unwrap_or_default();
            peer.state != "Established" && reason.contains(words)
        },
    );
    order(&["bgp", "reset", &here.name, "--soft", "in"], 5);
    // The refusing node knows why; on the refused node it is a problem, the same everywhere.
    let refused = |problem: &Problem| {
        problem.code == ProblemCode::BgpPeerDown && problem.reason.contains(words)
    };
    let is_reported = |status: &NodeStatus| match status.problems.iter().any(refused) {
        true => Ok(()),
        false => Err(format!("{:?}", status.problems)),
    };
    await_status(
        &lab,
        "node2",
        120 * SECOND,
        "the refusal as a problem",
        is_reported,
    );
    let (code, audit) = exit_code(&lab, "node2", &["audit"]);
    assert!(code == 4 && audit.contains(words), "{code}: {audit}");
    let (_, ready) = get_http(&lab, "node2", 9099, "/readyz").unwrap();
    assert!(ready.contains(words), "{ready}");
    let (_, metrics) = get_http(&lab, "node2", 9099, "/metrics").unwrap();
    let counted = metrics
        .lines()
        .any(|line| line.starts_with("caracal_problems{") && line.contains("bgp.peer_down"));
    assert!(counted, "{metrics}");
    let own = lab.node_status("node1").unwrap().problems;
    assert!(!own.iter().any(refused), "it is as ordered: {own:?}");

    order(&["bgp", "enable", &here.name], 0);
    await_settled(&lab);
    assert_full_matrix(&lab);
    order(&["bgp", "reset", &here.name, "--text", "new cable"], 0);
    await_settled(&lab);
    assert_full_matrix(&lab);
    let gone = |status: &NodeStatus| match status.problems.iter().any(refused) {
        false => Ok(()),
        true => Err(format!("{:?}", status.problems)),
    };
    await_status(&lab, "node2", 60 * SECOND, "the problem to be gone", gone);
    let others = peer_of(&lab, "node1", "node3");
    assert!(
        others.since_seconds > third.since_seconds,
        "another session was touched"
    );
}

/// Three nodes that miss a renewal of their leases after seconds.
fn three_nodes() -> String {
    let text = std::fs::read_to_string(example("full-mesh")).unwrap();
    let short = "pods: 1, env: {CARACAL_IPAM_GC_GRACE_SECONDS: \"10\"}}";
    let text = text.replace("pods: 2}", short);
    assert_eq!(text.matches(short).count(), 3, "three nodes");
    text
}

#[test]
fn all_nodes_are_seen_from_one() {
    if !possible("all_nodes_are_seen_from_one", &["kubectl", "openssl"]) {
        return;
    }
    let on_etcd = three_nodes();
    let on_kubernetes = on_kubernetes_datastore(&on_etcd);
    std::thread::scope(|scope| {
        scope.spawn(|| all_nodes(up_text(&on_etcd, "full-mesh", "e2e-all-nodes"), true));
        scope.spawn(|| all_nodes(up_text(&on_kubernetes, "full-mesh", "e2e-all-k8"), false));
    });
}

/// Waits until a command on node1 ends with a code and prints a text.
fn await_printed(lab: &Lab, arguments: &[&str], code: i32, part: &str) -> String {
    let what = format!("{arguments:?} to end with {code} and say {part:?}");
    let printed = wait_until(180 * SECOND, &what, || {
        match exit_code(lab, "node1", arguments) {
            (seen, text) if seen == code && text.contains(part) => Ok(text),
            (seen, text) => Err(format!("{seen}: {text}")),
        }
    });
    printed.unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())))
}

/// How often a node has written its record to etcd, and the octets of the record.
fn record(lab: &Lab, node: &str) -> (u64, usize) {
    let key = format!("/caracal/status/{node}");
    let get = |form: &[&str]| {
        let text = lab.etcdctl(&[&["get", &*key][..], form].concat(), b"");
        text.unwrap()
    };
    let text = get(&["-w", "json"]);
    let entry: serde_json::Value = serde_json::from_str(&text).unwrap();
    let writes = entry["kvs"][0]["version"].as_u64();
    let writes = writes.unwrap_or_else(|| panic!("no record of {node}: {text}"));
    (writes, get(&["--print-value-only"]).trim_end().len())
}

/// What the records of the nodes have cost since `before`: node1 is at rest, and the others have
/// changed.
fn records_are_cheap(lab: &Lab, before: &[(u64, usize); 3], since: Instant) {
    let seconds = since.elapsed().as_secs();
    let names = ["node1", "node2", "node3"];
    for (name, (before, _)) in names.iter().zip(before) {
        let (now, octets) = record(lab, name);
        let writes = now - before;
        println!("{name} wrote its record {writes} times in {seconds} s; it has {octets} octets");
        let most = match *name {
            "node1" => seconds / 60,
            _ => 1 + seconds / 10,
        };
        assert!(writes <= most, "{name}: {writes} writes in {seconds} s");
        assert!(octets <= 1024, "{name}: {octets} octets");
    }
}

/// `--all-nodes`: who is healthy, which session is down and why, who no longer lives, from any
/// node and without asking the others.
fn all_nodes(mut lab: Lab, on_etcd: bool) {
    await_settled(&lab);
    let status = ["status", "--all-nodes"];
    let sessions = ["bgp", "peers", "--all-nodes"];
    await_printed(&lab, &status, 0, "3 nodes: 3 healthy");
    let text = await_printed(&lab, &sessions, 0, "sessions: Established ×6");
    assert!(!text.contains("REASON"), "nothing is down: {text}");
    // A record may be older than the first pass of its node's kernel.
    wait_until(180 * SECOND, "all nodes to say how they forward", || {
        let (code, text) = exit_code(&lab, "node1", &["status", "--all-nodes", "-o", "json"]);
        let nodes: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        let direct =
            |node: &serde_json::Value| node["status"]["encapsulations"] == json!(["direct"]);
        (code == 0 && nodes.iter().all(direct))
            .then_some(())
            .ok_or(text)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    await_printed(
        &lab,
        &["audit", "--all-nodes"],
        0,
        "Findings that count: none",
    );

    let since = Instant::now();
    let names = ["node1", "node2", "node3"];
    let before = on_etcd.then(|| names.map(|name| record(&lab, name)));
    let peer = peer_of(&lab, "node2", "node3").name;
    let words = "rack 7 is moved";
    let disable = ["bgp", "disable", &*peer, "--text", words];
    assert_eq!(exit_code(&lab, "node2", &disable).0, 0);
    // Without encapsulation the pods of both ends lose each other. Who disabled a session is
    // not told that it is down: its own problem is the loss.
    let text = await_printed(&lab, &status, 4, "2 degraded");
    for part in ["node2", "audit.loss", "node3", "bgp.peer_down"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    await_printed(&lab, &sessions, 0, words);
    assert_eq!(exit_code(&lab, "node2", &["bgp", "enable", &*peer]).0, 0);
    await_printed(&lab, &status, 0, "3 healthy");
    if let Some(before) = before {
        records_are_cheap(&lab, &before, since);
    }

    lab.kill9_node("node3").unwrap();
    let text = await_printed(&lab, &status, 4, "1 silent");
    assert!(text.contains("node3"), "{text}");
    lab.restart_node("node3").unwrap();
    await_printed(&lab, &status, 0, "3 healthy");
    lab.stop_node("node3").unwrap();
    await_printed(&lab, &["status", "--all-nodes", "-o", "wide"], 4, "stopped");
}

/// `promtool check metrics` on the text form.
fn lint(text: &str) {
    let mut promtool = program_command("promtool").unwrap();
    promtool.args(["check", "metrics"]);
    let output = program_output(None, &mut promtool, text.as_bytes(), 60 * SECOND).unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        output.stdout,
        output.stderr
    );
}

/// Names in the tables of docs/monitoring.md.
/// The value of a metric without labels.
fn value(lab: &Lab, name: &str) -> u64 {
    let (_, text) = get_http(lab, "node1", 9099, "/metrics").unwrap();
    let values = text
        .lines()
        .filter_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    let mut values = values;
    let value = values.next().unwrap_or_else(|| panic!("{name} in {text}"));
    value.parse().unwrap()
}

/// Pods that come and go on other nodes wake nobody on this one, and are counted all the same; the
/// first address that another node borrows does wake.
fn pods_elsewhere(lab: &Lab) {
    const WAKES: &str = "caracal_datastore_wakes_total";
    const ENDPOINTS: &str = "caracal_cluster_workload_endpoints";
    let cidr = either(focus(lab), "10.99.0.0/26", "fd00:99::/122");
    let cidr: Prefix = cidr.parse().unwrap();
    let mut block = Block::new(cidr, Some(&BlockOwner::Host("node2".into())), 1);
    let put_block = |block: &Block| {
        let path = Key::Block(cidr).to_path();
        lab.etcdctl(&["put", &path], &block.to_json()).unwrap();
    };
    let take = |block: &mut Block, ordinal: usize, node: &str| {
        let mut attribute = AllocationAttribute::default();
        attribute.secondary.insert("node".into(), node.into());
        block.attributes.push(attribute);
        block.allocations[ordinal] = Some(block.attributes.len() - 1);
    };
    let before = value(lab, WAKES);
    put_block(&block);
    let more_than = |wakes: u64, what: &str| {
        let look = || value(lab, WAKES);
        wait_for(60 * SECOND, what, look, |now| *now > wakes).unwrap()
    };
    let before = more_than(before, "a new block wakes");
    let endpoints = value(lab, ENDPOINTS);
    let path = |n: usize| Key::workload("default", &format!("elsewhere-{n}")).to_path();
    for n in 0..10 {
        take(&mut block, n, "node2");
        put_block(&block);
        let network = Prefix::host(cidr.nth(n as u128).unwrap());
        let spec = json!({"node": "node2", "ipNetworks": [network]});
        let endpoint = json!({"metadata": {"name": format!("elsewhere-{n}")}, "spec": spec});
        lab.etcdctl(&["put", &path(n)], endpoint.to_string().as_bytes())
            .unwrap();
    }
    let look = || value(lab, ENDPOINTS);
    wait_for(60 * SECOND, "ten endpoints more", look, |now| {
        *now == endpoints + 10
    })
    .unwrap();
    for n in 0..10 {
        lab.etcdctl(&["del", &path(n)], b"").unwrap();
        block.allocations[n] = None;
        put_block(&block);
    }
    wait_for(60 * SECOND, "ten endpoints less", look, |now| {
        *now == endpoints
    })
    .unwrap();
    assert_eq!(value(lab, WAKES), before, "40 changes elsewhere");
    take(&mut block, 10, "node3");
    put_block(&block);
    let _wakes = more_than(before, "a borrowed address wakes");
    let path = Key::Block(cidr).to_path();
    lab.etcdctl(&["del", &path], b"").unwrap();
}

fn documented() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/monitoring.md");
    let text = std::fs::read_to_string(page).unwrap();
    let rows = text.lines().filter_map(|l| l.strip_prefix("| `"));
    let names = rows.filter_map(|l| l.split('`').next());
    names
        .filter(|name| !name.starts_with('/'))
        .map(str::to_owned)
        .collect()
}

/// A real Prometheus scrapes the node, which it does in the OpenMetrics form, and reads the alert
/// rules.
fn scraped_by_prometheus(lab: &Lab) {
    let run = lab.folder().run("node1");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/monitoring/alerts.yaml")
        .canonicalize()
        .unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n- job_name: caracal\n  static_configs: [{{targets: ['127.0.0.1:9099']}}]\n",
        rules.display()
    );
    let file = run.join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let mut command = program_command("prometheus").unwrap();
    command
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            run.join("prometheus").display()
        ))
        .arg("--web.listen-address=127.0.0.1:9090");
    let netns = lab.netns("node1").unwrap();
    let mut prometheus =
        Running::start(&netns, &mut command, &lab.folder().log("prometheus")).unwrap();
    let one = |query: &str, wanted: &str| {
        wait_until(90 * SECOND, query, || {
            let path = format!("/api/v1/query?query={query}");
            let (_, body) = get_http(lab, "node1", 9090, &path)?;
            if body.contains(wanted) {
                Ok(body)
            } else {
                Err(body)
            }
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("prometheus", 30)))
    };
    // A form that it cannot read makes `up` zero.
    let _up = one("up{job=\"caracal\"}", ",\"1\"]");
    let _summary = one(
        "caracal_dataplane_apply_time_seconds_count",
        "127.0.0.1:9099",
    );
    let _counter = one("caracal_dataplane_changes_total", "127.0.0.1:9099");
    let _info = one("caracal_build_info", "version");
    let _stopped = prometheus.stop(60 * SECOND);
}

/// A reflector has probes and metrics too, where it is told to.
fn standalone_speaker(lab: &Lab) {
    let run = lab.folder().run("node1").join("speaker");
    std::fs::create_dir_all(&run).unwrap();
    let config = "router id 10.0.0.9;\n#: listen none\nprotocol bgp far {\n  local as 64512;\n  neighbor 192.0.2.1 as 64512;\n  \
                  ipv4 { import all; export all; };\n}\n";
    let file = run.join("speaker.conf");
    std::fs::write(&file, config).unwrap();
    let mut command = std::process::Command::new(caracal_tests::binary());
    command
        .args(["speaker", "--http", "127.0.0.1:9199", "--config"])
        .arg(&file)
        .env("CARACAL_RUN_DIR", &run);
    let netns = lab.netns("node1").unwrap();
    let mut speaker = Running::start(&netns, &mut command, &lab.folder().log("speaker")).unwrap();
    let metrics = wait_until(60 * SECOND, "the speaker's metrics", || {
        match get_http(lab, "node1", 9199, "/metrics")? {
            (200, text) => Ok(text),
            other => Err(format!("{other:?}")),
        }
    });
    let metrics =
        metrics.unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("speaker", 30)));
    assert!(
        metrics.contains("caracal_bgp_peer_up{peer=\"far\","),
        "{metrics}"
    );
    assert!(
        !metrics.contains("caracal_datastore"),
        "it has none: {metrics}"
    );
    assert_eq!(get_http(lab, "node1", 9199, "/livez").unwrap().0, 200);
    let (_, ready) = get_http(lab, "node1", 9199, "/readyz").unwrap();
    assert!(ready.contains("bgp: 0 of 1 sessions are up"), "{ready}");
    let _stopped = speaker.stop(60 * SECOND);
}
