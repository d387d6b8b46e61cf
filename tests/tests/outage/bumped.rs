//! An etcd that was restored from a backup and counts on above what it was, as after `etcdutl
//! snapshot restore --bump-revision`: by its revision it is newer, by its content older.

use std::fs;
use std::path::Path;

use caracal_lab::{Lab, error_chain, wait_until};
use caracal_tests::{
    Probes, RouteMonitor, SECOND, await_settled, await_status, caracals, copy_folder,
    etcd_revision, exit_code, more_pods, on_each_stack_of, settled,
};

use super::{
    PAIRS, assert_nothing_is_given_out, await_followed, await_problem, etcdctl, forwards_stale,
    put_pool, text,
};

#[test]
fn a_backup_with_a_higher_revision_is_not_followed() {
    let scenario = "a_backup_with_a_higher_revision_is_not_followed";
    on_each_stack_of(scenario, &[], &text(""), "out-bumped", bumped);
}

fn bumped(mut lab: Lab) {
    await_settled(&lab);
    let nodes = caracals(&lab);
    put_pool(&lab, 1);
    await_settled(&lab);
    let (data, backup) = (lab.folder().etcd(), lab.folder().path().join("etcd-backup"));
    lab.stop_etcd().unwrap();
    copy_folder(&data, &backup);
    lab.start_etcd().unwrap();
    await_settled(&lab);
    // One that the backup lacks, and one that it has as it was.
    put_pool(&lab, 2);
    let last = put_pool(&lab, 1);
    await_followed(&lab, last);
    let file = lab.folder().lib("node1").join("last-snapshot");
    wait_until(120 * SECOND, "the last snapshot with both", || {
        let text = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        text.contains("ippools/unused2").then_some(()).ok_or(text)
    })
    .unwrap_or_else(|e| panic!("{e}"));

    let probes = Probes::start(&lab, &PAIRS);
    let now = lab.folder().path().join("etcd-now");
    lab.stop_etcd().unwrap();
    copy_folder(&data, &now);
    lab.start_etcd().unwrap();
    await_settled(&lab);
    higher_with_the_same_data(&mut lab, &now);
    let monitors = RouteMonitor::on_all(&lab);
    restored(&mut lab, &backup);
    for node in &nodes {
        let said = await_problem(&lab, node, "datastore.restored");
        assert!(said.contains("pool unused2"), "{said}");
    }
    // The next process could not tell: it did not hear what the revisions were.
    wait_until(30 * SECOND, "the doubt in the last snapshot", || {
        let text = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        let first = text.lines().next().unwrap_or_default().to_owned();
        let doubts = first.contains(r#""restored":true"#);
        doubts.then_some(()).ok_or(first)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_problem(&lab, "node1", "datastore.restored");
    await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    assert_nothing_is_given_out(&lab, "pool unused2");
    probes.after(500);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("a backup with a higher revision");
    }
    probes.assert_none_lost("etcd restored from a backup with a higher revision");

    for node in &nodes {
        let (code, says) = exit_code(&lab, node, &["datastore", "accept"]);
        assert_eq!(code, 0, "{says}");
        await_status(&lab, node, 60 * SECOND, "followed", settled);
    }
}

/// Puts another history in the place of etcd's, whose revision is higher once the nodes, which are
/// paused meanwhile, see it. Answers with it.
fn restored(lab: &mut Lab, backup: &Path) -> i64 {
    let (data, nodes) = (lab.folder().etcd(), caracals(lab));
    // Nobody sees the revisions in between.
    for node in &nodes {
        lab.pause_node(node).unwrap();
    }
    let before = etcd_revision(lab);
    lab.stop_etcd().unwrap();
    fs::remove_dir_all(&data).unwrap();
    copy_folder(backup, &data);
    lab.start_etcd().unwrap();
    assert!(etcd_revision(lab) <= before);
    while etcd_revision(lab) <= before {
        etcdctl(lab, &["put", "/noise", "1"]);
    }
    let revision = etcd_revision(lab);
    for node in &nodes {
        lab.resume_node(node).unwrap();
    }
    revision
}

/// A backup of what there is, with a higher revision alone: it is followed, nothing is dropped, and
/// addresses are given out.
fn higher_with_the_same_data(lab: &mut Lab, now: &Path) {
    let monitors = RouteMonitor::on_all(lab);
    let revision = restored(lab, now);
    // Whoever would go on with a watch is told that it cannot.
    etcdctl(lab, &["compact", &revision.to_string()]);
    await_followed(lab, revision);
    let pod = &more_pods(lab, ["node1"])[0];
    lab.cni("ADD", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    await_settled(lab);
    for node in caracals(lab) {
        let status = await_status(lab, &node, 60 * SECOND, "followed", settled);
        let told = status
            .problems
            .iter()
            .find(|p| p.code.as_str().starts_with("datastore."));
        assert_eq!(told, None, "{node}");
    }
    for monitor in &monitors {
        monitor.assert_nothing_deleted("a higher revision with the same data");
    }
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}
