//! A machine that was cloned, with its machine id and Caracal's library directory, while it ran:
//! only one of them keeps the node. A machine that boots has another boot id, too, and starts at
//! once.

use std::path::Path;
use std::process::Command;

use caracal_lab::{Lab, wait_until};
use caracal_tests::{
    Processes, SECOND, assert_full_matrix, await_settled, await_status, copy_folder, has_problem,
    on_each_stack_of, settled,
};

use super::text;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[test]
fn a_cloned_machine_does_not_keep_the_name() {
    // Leases are renewed every two seconds.
    let environment = "CARACAL_IPAM_GC_GRACE_SECONDS: \"10\"";
    let scenario = "a_cloned_machine_does_not_keep_the_name";
    on_each_stack_of(scenario, &[], &text(environment), "out-clones", cloned);
}

/// `caracal node` as `node1` on the machine of a node, which was booted under another boot id.
fn booted_anew(lab: &Lab, machine: &str, boot: u8, run: &Path, lib: &Path) -> Command {
    let ours = lab.caracal_command(machine, &["node"]).unwrap();
    let file = lab.folder().path().join(format!("boot{boot}"));
    let id = format!("0000000{boot}-0000-4000-8000-000000000000\n");
    std::fs::write(&file, id).unwrap();
    let script = format!(
        "mount --bind {} {BOOT_ID} && exec \"$0\" node",
        file.display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(ours.get_program());
    command.env_clear();
    command.envs(
        ours.get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    command
        .env("NODENAME", "node1")
        .env("CARACAL_RUN_DIR", run)
        .env("CARACAL_LIB_DIR", lib);
    command
}

fn cloned(mut lab: Lab) {
    await_settled(&lab);
    let mut processes = Processes::new(&format!("clones-{}", lab.name()));
    let (run, lib) = (lab.folder().run("node1"), lab.folder().lib("node1"));
    let remembered = lib.join("boot-id");
    wait_until(60 * SECOND, "the boot id of node1", || {
        remembered.exists().then_some(()).ok_or("it is not there")
    })
    .unwrap_or_else(|e| panic!("{e}"));

    // The clone runs where node3 was.
    lab.kill9_node("node3").unwrap();
    let (clone_run, clone_lib) = ["run", "lib"]
        .map(|folder| lab.folder().path().join("clone").join(folder))
        .into();
    std::fs::create_dir_all(&clone_run).unwrap();
    copy_folder(&lib, &clone_lib);
    let netns = lab.netns("node3").unwrap();
    let mut command = booted_anew(&lab, "node3", 1, &clone_run, &clone_lib);
    processes.start("clone", Some(&netns), &mut command);
    let has_it = |status: &_| has_problem(status, "node.copied", "is a copy of the other");
    await_status(&lab, "node1", 60 * SECOND, "the clone is named", has_it);
    let ended = wait_until(60 * SECOND, "the clone to end", || {
        processes
            .status("clone")
            .ok_or_else(|| processes.log("clone"))
    });
    let ended = ended.unwrap_or_else(|e| panic!("{e}"));
    let said = processes.log("clone");
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("is a copy of the other"), "{said}");
    assert!(
        lab.node_runs("node1"),
        "{}",
        lab.folder().log_tail("node1", 20)
    );
    // It knows now that its boot is not the one that the name went to.
    processes.start("clone", Some(&netns), &mut command);
    let ended = wait_until(60 * SECOND, "the clone to end again", || {
        processes
            .status("clone")
            .ok_or_else(|| processes.log("clone"))
    });
    assert_eq!(ended.unwrap_or_else(|e| panic!("{e}")).code(), Some(1));
    lab.restart_node("node3").unwrap();
    await_settled(&lab);
    assert_full_matrix(&lab);

    // A machine that boots is the same machine, and nobody waits for its lease to run out.
    lab.kill9_node("node1").unwrap();
    let netns = lab.netns("node1").unwrap();
    let mut command = booted_anew(&lab, "node1", 2, &run, &lib);
    processes.start("booted", Some(&netns), &mut command);
    await_status(&lab, "node1", 60 * SECOND, "node1 after its boot", settled);
    assert!(
        processes.status("booted").is_none(),
        "{}",
        processes.log("booted")
    );
    assert_full_matrix(&lab);
    processes.end("booted", "-TERM");
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    assert_full_matrix(&lab);
}
