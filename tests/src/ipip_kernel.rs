//! Tests that need a kernel with IPIP.

use std::path::Path;
use std::process::Command;

use caracal_lab::in_uml;

use crate::{binary, possible};

/// Runs the body of a test here when this is the guest, else the test itself, by its whole name, in
/// a kernel that has IPIP (`lab/with-ipip-kernel`: User Mode Linux).
///
/// # Panics
/// When it fails in the guest; when the guest cannot run and scenarios are required.
pub fn in_ipip_kernel(test: &str, body: impl FnOnce()) {
    if !possible(test, &["tcpdump"]) {
        return;
    }
    if in_uml() {
        body();
        return;
    }
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/with-ipip-kernel");
    let check = Command::new(&runner)
        .arg("--check")
        .output()
        .expect("the runner is part of the repository");
    if !check.status.success() {
        let reason = String::from_utf8_lossy(&check.stderr);
        let required = std::env::var("CARACAL_E2E_REQUIRED").is_ok_and(|v| v == "1");
        assert!(!required, "{test}: cannot run: {reason}");
        println!("{test}: skipped: {reason}");
        return;
    }
    // A clone or a target directory below /tmp is hidden from the guest unless it is named.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .expect("the repository");
    let test_binary = std::env::current_exe().expect("this program");
    let folder_of = |program: &Path| program.parent().expect("a folder").to_owned();
    let caracal = binary().canonicalize().expect("it is built");
    let status = Command::new(&runner)
        .args(["--mem", "2G", "--time-limit", "900", "--bind"])
        .arg(root)
        .arg("--bind")
        .arg(folder_of(&caracal))
        .arg("--bind")
        .arg(folder_of(&test_binary))
        .arg("--")
        .arg(&test_binary)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        // The guest has a /tmp of its own, in which this machine's folder is not.
        .env_remove("TMPDIR")
        .status()
        .expect("the runner starts");
    assert!(status.success(), "{test} failed in the guest: {status}");
}
