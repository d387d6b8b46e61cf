//! The programs under test, and whether a scenario can run on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use caracal_lab::{Lab, require_programs};

/// The binary under test: `CARACAL_BIN` (in `make scenarios` the static program that ships), else
/// the one cargo built beside the tests.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("CARACAL_BIN").map_or_else(binary_with_labs, PathBuf::from)
}

/// The binary that cargo built beside the tests: it has `caracal lab` and `caracal trace`.
#[must_use]
pub fn binary_with_labs() -> PathBuf {
    // target/debug/deps/TEST → target/debug/caracal
    let test = std::env::current_exe().unwrap_or_default();
    let folder = test
        .parent()
        .and_then(Path::parent)
        .unwrap_or_else(|| Path::new("."));
    folder.join("caracal")
}

/// Programs that the lab starts as `caracal` from now on run these lines of a shell first.
///
/// # Panics
/// When the lab's folder cannot be written.
pub fn wrap_program(lab: &Lab, lines: &str) {
    let place = lab.folder().bin().join("caracal");
    let program = format!("#!/bin/sh\n{lines}\nexec {} \"$@\"\n", binary().display());
    let draft = lab.folder().bin().join(".caracal.new");
    fs::write(&draft, program).expect("the lab's folder is ours");
    let executable = PermissionsExt::from_mode(0o755);
    fs::set_permissions(&draft, executable).expect("the file is ours");
    fs::rename(&draft, &place).expect("the lab's folder is ours");
}

/// The folder in which cargo has built the tests, wherever `CARGO_TARGET_DIR` has put it.
pub(crate) fn target_folder() -> PathBuf {
    // TARGET/debug/caracal
    let program = binary_with_labs();
    let folder = program.parent().and_then(Path::parent);
    folder.unwrap_or_else(|| Path::new(".")).to_owned()
}

/// The static program that ships: `CARACAL_STATIC_BIN`, else the one that `make static` has built.
#[must_use]
pub fn static_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CARACAL_STATIC_BIN") {
        return path.into();
    }
    let arch = std::env::consts::ARCH;
    target_folder().join(format!("{arch}-unknown-linux-gnu/release/caracal"))
}

/// Whether the static program is there. Prints the reason when not.
///
/// # Panics
/// When it is not and `CARACAL_E2E_REQUIRED=1`.
#[must_use]
pub fn is_static_built(scenario: &str) -> bool {
    let reason = (!static_binary().is_file())
        .then(|| format!("{} is not built; make static", static_binary().display()));
    can_run(scenario, reason)
}

/// Whether a scenario can run here. Prints the reason when not.
///
/// # Panics
/// When it cannot and `CARACAL_E2E_REQUIRED=1`.
#[must_use]
pub fn possible(scenario: &str, programs: &[&str]) -> bool {
    if !is_root() {
        return can_run(scenario, Some("it needs root".to_owned()));
    }
    let always = ["ip", "etcd", "etcdctl", "ping"];
    possible_without_root(scenario, &[&always, programs].concat())
}

/// The same for a scenario on loopback alone, which has no lab.
///
/// # Panics
/// As [`possible`].
#[must_use]
pub fn possible_without_root(scenario: &str, programs: &[&str]) -> bool {
    let reason = if binary().is_file() {
        let missing = require_programs(programs).err();
        missing.map(|missing| missing.to_string())
    } else {
        Some(format!(
            "{} is not built; cargo build -p caracal",
            binary().display()
        ))
    };
    can_run(scenario, reason)
}

/// True where no reason stands against a scenario. Prints the reason when one does.
///
/// # Panics
/// When it cannot run and `CARACAL_E2E_REQUIRED=1`.
pub(crate) fn can_run(scenario: &str, reason: Option<String>) -> bool {
    let Some(reason) = reason else { return true };
    let required = std::env::var("CARACAL_E2E_REQUIRED").is_ok_and(|v| v == "1");
    assert!(!required, "{scenario}: cannot run: {reason}");
    println!("{scenario}: skipped: {reason}");
    false
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|l| {
            l.strip_prefix("Uid:")
                .is_some_and(|u| u.split_whitespace().nth(1) == Some("0"))
        })
    })
}
