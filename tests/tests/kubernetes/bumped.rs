//! The etcd behind an API server was restored from a backup and counts on above what it was, as
//! after `etcdutl snapshot restore --bump-revision`: by its revision it is newer, by its content
//! older. What came since the backup is gone: a pool, and a pod with its address.

use std::fs;

use caracal_lab::{Lab, error_chain, wait_until};
use caracal_model::NodeStatus;
use caracal_tests::{
    Probes, RouteMonitor, SECOND, await_settled, await_status, caracals, copy_folder,
    etcd_revision, exit_code, kubectl, more_pods, possible, settled, up,
};
use serde_json::{Value, json};

use super::{PAIRS, attached, bind};

#[test]
fn a_backup_with_a_higher_revision_is_not_followed() {
    let scenario = "a_backup_with_a_higher_revision_is_not_followed";
    if possible(scenario, &["kubectl", "openssl"]) {
        bumped(up("kubernetes", "kbumped"));
    }
}

fn put_pool(lab: &Lab, number: u8, labels: &Value) {
    let pool = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
        "metadata": {"name": format!("unused{number}"), "labels": labels},
        "spec": {"cidr": format!("10.99.{number}.0/24"), "disabled": true}});
    kubectl(lab, &["apply", "-f", "-"], pool.to_string().as_bytes());
}

/// What a node says of a datastore that was restored.
fn await_restored(lab: &Lab, node: &str) -> String {
    let has = |status: &NodeStatus| {
        let mut problems = status.problems.iter();
        let found = problems.find(|p| p.code == "datastore.restored");
        found.map(|p| p.reason.clone())
    };
    let status = await_status(lab, node, 120 * SECOND, "datastore.restored", |status| {
        let waits = status.datastore.state == "stale" && has(status).is_some();
        waits
            .then_some(())
            .ok_or_else(|| format!("{:?} {:?}", status.datastore, status.problems))
    });
    has(&status).unwrap()
}

fn bumped(mut lab: Lab) {
    await_settled(&lab);
    let nodes = caracals(&lab);
    put_pool(&lab, 1, &json!({}));
    await_settled(&lab);
    let (data, backup) = (lab.folder().etcd(), lab.folder().path().join("etcd-backup"));
    lab.kill9_api_server().unwrap();
    lab.stop_etcd().unwrap();
    copy_folder(&data, &backup);
    lab.start_etcd().unwrap();
    lab.start_api_server().unwrap();
    await_settled(&lab);

    // A pool that the backup has as it was, and a pod and a pool that it lacks.
    let pods = more_pods(&lab, ["node1", "node2"]);
    let [pod, other] = &pods[..] else {
        unreachable!("two pods");
    };
    bind(&lab, pod);
    let address = attached(&lab, pod);
    put_pool(&lab, 1, &json!({"written": "again"}));
    put_pool(&lab, 2, &json!({}));
    let file = lab.folder().lib("node1").join("last-snapshot");
    wait_until(120 * SECOND, "the last snapshot with all of it", || {
        let text = fs::read_to_string(&file).map_err(|e| e.to_string())?;
        let address = format!("{address}/32");
        let wanted = ["ippools/unused2", &address];
        let missing = wanted.iter().find(|wanted| !text.contains(**wanted));
        missing.map_or(Ok(()), |missing| Err(format!("no {missing}")))
    })
    .unwrap_or_else(|e| panic!("{e}"));

    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &PAIRS);
    // Nobody sees the revisions in between.
    for node in &nodes {
        lab.pause_node(node).unwrap();
    }
    let before = etcd_revision(&lab);
    lab.kill9_api_server().unwrap();
    lab.stop_etcd().unwrap();
    fs::remove_dir_all(&data).unwrap();
    copy_folder(&backup, &data);
    lab.start_etcd().unwrap();
    assert!(etcd_revision(&lab) < before);
    while etcd_revision(&lab) <= before {
        lab.etcdctl(&["put", "/noise"], b"1").unwrap();
    }
    lab.start_api_server().unwrap();
    for node in &nodes {
        lab.resume_node(node).unwrap();
    }
    for node in &nodes {
        let said = await_restored(&lab, node);
        assert!(said.contains("pool unused2"), "{said}");
    }
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    let said = await_restored(&lab, "node1");
    println!("{said}");
    assert!(said.contains("endpoint default/"), "{said}");
    // The address of the pod that the datastore does not know is given to no other.
    bind(&lab, other);
    let refused = lab.cni("ADD", other).expect_err("an address was given out");
    let refused = error_chain(&refused);
    assert!(refused.contains("restored from a backup"), "{refused}");
    probes.after(500);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("a backup with a higher revision");
    }
    probes.assert_none_lost("an API server over a backup with a higher revision");

    for node in &nodes {
        let (code, says) = exit_code(&lab, node, &["datastore", "accept"]);
        assert_eq!(code, 0, "{says}");
        await_status(&lab, node, 60 * SECOND, "followed", settled);
    }
    let netns: Vec<_> = pods.iter().map(|pod| pod.netns.clone()).collect();
    caracal_lab::delete_namespaces(&netns).unwrap();
}
