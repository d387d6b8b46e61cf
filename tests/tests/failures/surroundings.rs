//! What surrounds a node's process: its run directory, which a cleaner removes, and whoever reads
//! its log, who hangs or goes away.

use std::fs;
use std::os::fd::AsRawFd;

use caracal_lab::{Lab, error_chain};
use caracal_tests::{
    Probes, RouteMonitor, SECOND, Stack, agents_state, assert_full_matrix, await_settled,
    flush_routes, full_pipe, get_http, on_each_stack_and_datastore_of, run_on, set_pools,
    wrap_program,
};
use serde_json::json;

use super::{await_repair, far_resync, flag};

#[test]
fn a_node_outlives_cleaners_and_readers_of_its_log() {
    let scenario = "a_node_outlives_cleaners_and_readers_of_its_log";
    let text = far_resync("full-mesh", "");
    let of = |stack: Stack, _lab: &str| stack.topology(&text);
    on_each_stack_and_datastore_of(scenario, &["nft"], "fail-around", of, |mut lab| {
        await_settled(&lab);
        assert_full_matrix(&lab);
        cleaned(&lab);
        unread(&mut lab);
        signalled(&mut lab);
        assert_full_matrix(&lab);
    });
}

/// The admin socket is removed, then the whole run directory: both are made again, and a second
/// process ends with the reason, before that and after it.
fn cleaned(lab: &Lab) {
    let what = "a cleaner in the run directory";
    let monitors = RouteMonitor::on_all(lab);
    let probes = Probes::start(lab, &[("node1/p1", "node2/p1")]);
    for whole in [false, true] {
        // Else it could be faster than the second process.
        lab.pause_node("node1").unwrap();
        match whole {
            true => fs::remove_dir_all(lab.folder().run("node1")),
            false => fs::remove_file(lab.folder().socket("node1")),
        }
        .unwrap();
        assert_no_second(lab);
        lab.resume_node("node1").unwrap();
        await_settled(lab);
        assert_no_second(lab);
        assert!(lab.node_runs("node1"));
    }
    probes.assert_none_lost(what);
    for monitor in &monitors {
        monitor.assert_nothing_deleted(what);
    }
}

/// One more `caracal node` on node1 ends, and names the first.
fn assert_no_second(lab: &Lab) {
    let ended = lab.caracal_output("node1", &["node"], 30 * SECOND);
    let ended = ended.unwrap_or_else(|e| panic!("beside the first: {}", error_chain(&e)));
    let said = ended.stderr;
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("another caracal node runs here"), "{said}");
}

/// Standard error of node1 is full and nobody reads it, then its reader is gone; it is closed from
/// the start; it is a full disk.
fn unread(lab: &mut Lab) {
    let before = agents_state(lab, "node1");
    let (reader, writer) = full_pipe();
    let pipe = format!("/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    restart_with(lab, &format!("2>{pipe}; export CARACAL_LOG=trace"));
    drop(writer);
    // More lines than the node keeps.
    let is_full = (0..2000).any(|number| {
        set_pools(lab, "natOutgoing", &json!(number % 2 == 1));
        dropped_lines(lab) > 0
    });
    assert!(is_full, "the node keeps every line");
    set_pools(lab, "natOutgoing", &json!(true));
    works(lab, "nobody reads the log", &before);
    drop(reader);
    works(lab, "the log's reader is gone", &before);
    for (what, redirection) in [("a closed log", "2>&-"), ("a full disk", "2>/dev/full")] {
        restart_with(lab, redirection);
        works(lab, what, &before);
    }
}

/// Signals that end many a daemon, and of which an operator expects something else.
fn signalled(lab: &mut Lab) {
    let before = agents_state(lab, "node1");
    let process = || lab.state().processes["node1"].pid;
    let first = process();
    for signal in ["HUP", "QUIT", "USR1", "USR2"] {
        run_on(lab, "node1", &format!("kill -{signal} {first}"));
    }
    assert_eq!(process(), first);
    works(lab, "signals", &before);
    assert_eq!(lab.state().processes["node1"].pid, first);
}

/// Log lines that node1 has dropped since its start.
fn dropped_lines(lab: &Lab) -> u64 {
    let (_, metrics) = get_http(lab, "node1", 9099, "/metrics").unwrap();
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix("caracal_log_lines_dropped_total "));
    line.and_then(|number| number.parse().ok()).expect(&metrics)
}

/// Ends node1 and starts it with other streams.
fn restart_with(lab: &mut Lab, redirection: &str) {
    let lines = format!("case \"$NODENAME $1\" in 'node1 node') exec {redirection} ;; esac");
    wrap_program(lab, &lines);
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1")
        .unwrap_or_else(|e| panic!("{redirection}: {}", error_chain(&e)));
}

/// node1 has a new session with a node that restarts, answers, and repairs its kernel.
fn works(lab: &mut Lab, what: &str, before: &str) {
    lab.kill9_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    await_settled(lab);
    for family in lab.topology().families() {
        flush_routes(lab, "node1", flag(family), "proto 80");
    }
    await_repair(lab, "node1", what, before);
    assert!(lab.node_runs("node1"), "{what}");
}
