//! Programs that a node starts and that hang.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use caracal_lab::{Lab, PodState, error_chain, wait_until};
use caracal_model::Family;
use caracal_tests::{
    SECOND, agents_state, assert_full_matrix, await_settled, await_status, bind_pods, flush_routes,
    has_no_problem, has_problem, more_pods, on_each_stack_and_datastore, run_on, try_run_on,
};

use super::{await_repair, flag};

/// The code of a start that does not know whether a table of services is there.
const AT_START: &str = "services.unwritten";

/// The `nft` that nodes of the lab find first.
fn first_nft(lab: &Lab) -> PathBuf {
    lab.folder().bin().join("nft")
}

/// Has every `nft` that a node starts from here on do nothing for an hour.
fn hang(lab: &Lab) {
    let new = lab.folder().bin().join("nft.new");
    std::fs::write(&new, "#!/bin/sh\nexec sleep 3600\n").unwrap();
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(new, first_nft(lab)).unwrap();
}

/// Rules wait for `nft`; routes and pods do not.
#[test]
fn routes_and_pods_do_not_wait_for_rules() {
    on_each_stack_and_datastore(
        "routes_and_pods_do_not_wait_for_rules",
        &["nft"],
        "full-mesh",
        "fail-rules",
        rules_hang,
    );
}

fn routes(lab: &Lab, family: Family) -> String {
    let listed = format!("ip {} route show table main proto 80", flag(family));
    let printed = run_on(lab, "node1", &listed);
    let mut lines: Vec<_> = printed.lines().map(str::trim).collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn rules_hang(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let whole = agents_state(&lab, "node1");
    hang(&lab);
    run_on(&lab, "node1", "nft delete table inet caracal");
    // The rules are being read or written from here on, for 20 s at a time.
    for family in lab.topology().families() {
        let before = routes(&lab, family);
        assert!(!before.is_empty());
        flush_routes(&lab, "node1", flag(family), "proto 80");
        let start = Instant::now();
        let look = || match routes(&lab, family) {
            seen if seen == before => Ok(()),
            seen => Err(seen),
        };
        wait_until(5 * SECOND, "the routes", look).unwrap_or_else(|e| panic!("{family}: {e}"));
        let took = start.elapsed();
        println!(
            "{family}: routes were back after {:.2} s",
            took.as_secs_f64()
        );
    }
    let pods = more_pods(&lab, ["node1"]);
    bind_pods(&lab, &pods);
    comes_and_goes(&lab, &pods[0]);
    starts(&mut lab);
    comes_and_goes(&lab, &pods[0]);
    let code = "agent.rules_unwritten";
    await_status(&lab, "node1", 60 * SECOND, "the problem", |status| {
        has_problem(status, code, "nft did not finish within 20 s")
    });
    let gone = try_run_on(&lab, "node1", "nft list table inet caracal");
    assert!(gone.is_err(), "{gone:?}");
    std::fs::remove_file(first_nft(&lab)).unwrap();
    await_repair(&lab, "node1", "nft that hangs", &whole);
    await_status(&lab, "node1", 60 * SECOND, "no problem", |status| {
        has_no_problem(status, code)?;
        has_no_problem(status, AT_START)
    });
    assert_full_matrix(&lab);
}

/// A pod is added and deleted.
fn comes_and_goes(lab: &Lab, pod: &PodState) {
    for verb in ["ADD", "DEL"] {
        let start = Instant::now();
        lab.cni_within(verb, pod, 10 * SECOND)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        println!("{verb} took {:.2} s", start.elapsed().as_secs_f64());
    }
}

/// A start asks `nft`, too, whether an old table stands between the node and its datastore.
fn starts(lab: &mut Lab) {
    let to_pods = |lab: &Lab, family| -> Vec<String> {
        let routes = routes(lab, family);
        let of_pods = routes.lines().filter(|route| route.contains("dev cali"));
        of_pods.map(str::to_owned).collect()
    };
    let families = lab.topology().families();
    let before: Vec<_> = families.iter().map(|f| to_pods(lab, *f)).collect();
    assert!(before.iter().all(|routes| !routes.is_empty()));
    lab.kill9_node("node1").unwrap();
    for family in &families {
        flush_routes(lab, "node1", flag(*family), "proto 80");
    }
    lab.start_node("node1").unwrap();
    for (family, before) in families.iter().zip(before) {
        let look = || match to_pods(lab, *family) {
            seen if seen == before => Ok(()),
            seen => Err(format!("{seen:?}")),
        };
        wait_until(15 * SECOND, "the routes after a start", look)
            .unwrap_or_else(|e| panic!("{family}: {e}\n{}", lab.folder().log_tail("node1", 40)));
    }
    await_status(lab, "node1", 60 * SECOND, "the start's problem", |status| {
        has_problem(status, AT_START, "nft did not finish within 20 s")
    });
}
