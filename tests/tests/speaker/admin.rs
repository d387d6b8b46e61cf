//! The admin socket of a speaker: who may use it, and the level of the log, which it changes.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use caracal_lab::wait_until;
use caracal_model::Family;
use caracal_tests::{SECOND, binary, possible, possible_without_root};

use super::{A, Site, address, config, stderr};

/// Only root, unless a group is named; its members ask and order, and nobody else does.
#[test]
fn a_group_uses_the_socket() {
    if !possible("a_group_uses_the_socket", &["setpriv"]) {
        return;
    }
    const GROUP: u32 = 54_321;
    let mut site = Site::new("group", Family::Ipv4);
    site.write(&config(&site, 9, 1, ""));
    let mut command = site.caracal();
    command.args(["speaker", "--admin-group", &GROUP.to_string(), "-c"]);
    command.arg(site.config());
    site.start("caracal", &mut command);
    wait_until(60 * SECOND, "an answer", || site.json(&["bgp", "peers"])).unwrap();
    let socket = std::fs::metadata(site.folder().join("caracal.sock")).unwrap();
    assert_eq!((socket.gid(), socket.mode() & 0o777), (GROUP, 0o660));
    let as_user = |group: u32| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--clear-groups",
            &format!("--regid={group}"),
        ]);
        command.arg(binary()).args(["bgp", "peers"]);
        let output = command
            .env("CARACAL_RUN_DIR", site.folder())
            .output()
            .unwrap();
        (output.status.code(), stderr(&output))
    };
    assert_eq!(as_user(GROUP), (Some(0), String::new()));
    let (code, refused) = as_user(GROUP + 1);
    assert!(
        code == Some(1) && refused.contains("ermission denied"),
        "{code:?}: {refused}"
    );
    let unknown = site.ask(&[
        "speaker",
        "--admin-group",
        "no-such-group",
        "-c",
        "/dev/null",
    ]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there is no group \"no-such-group\""));
}

#[test]
fn levels_of_the_log_change_while_it_runs() {
    if !possible_without_root("levels_of_the_log_change_while_it_runs", &[]) {
        return;
    }
    let mut site = Site::new("levels", Family::Ipv4);
    site.write(&config(&site, 9, 1, ""));
    site.start_speaker();
    let level = |arguments: &[&str]| {
        let output = site.ask(&[&["log-level"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.code(), text + &stderr(&output))
    };
    wait_until(60 * SECOND, "an answer", || match level(&[]) {
        (Some(0), said) if said == "info" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let lines = |word: &str| {
        site.log()
            .lines()
            .filter(|line| line.contains(word))
            .count()
    };
    // What a session does is told in detail.
    let work = |order: &str| {
        let ordered = site.ask(&["bgp", order, &address(Family::Ipv4, A).to_string()]);
        assert!(ordered.status.success(), "{}", stderr(&ordered));
    };
    assert_eq!(lines(" DEBUG "), 0);
    let set = level(&["debug"]);
    assert_eq!(set, (Some(0), "debug (at the start: info)".to_owned()));
    work("disable");
    work("enable");
    wait_until(60 * SECOND, "lines in detail", || match lines(" DEBUG ") {
        0 => Err(site.log()),
        some => Ok(some),
    })
    .unwrap();
    assert_eq!(level(&["--reset"]), (Some(0), "info".to_owned()));
    let changed = |times: usize| {
        wait_until(60 * SECOND, "the change in the log", || {
            match lines("what is logged was changed") {
                found if found == times => Ok(()),
                found => Err(format!("{found} times")),
            }
        })
        .unwrap();
    };
    changed(2);
    let detailed = lines(" DEBUG ");
    work("disable");
    work("enable");
    assert_eq!(level(&["warn,caracal=info"]).0, Some(0));
    changed(3);
    assert_eq!(lines(" DEBUG "), detailed, "{}", site.log());
    let (code, refused) = level(&["loud"]);
    assert!(
        code == Some(5) && refused.contains("\"loud\""),
        "{code:?}: {refused}"
    );
    assert_eq!(level(&[]).1, "warn,caracal=info (at the start: info)");
}
