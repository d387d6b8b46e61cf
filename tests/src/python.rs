//! Foreign judges in Python (`tests/resources/python.txt`), which `make packages-test` puts into
//! `tools/python` of cargo's folder.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{can_run, target_folder};

/// Versions of Kubernetes whose schemas are asked: the oldest that is supported, and the newest
/// that the package has.
pub const KUBERNETES_VERSIONS: [&str; 2] = ["1.30", "1.37"];

/// The folder of the packages, for `PYTHONPATH`.
#[must_use]
pub fn python_packages() -> PathBuf {
    target_folder().join("tools/python")
}

/// A script of `tests/resources`, with the packages.
#[must_use]
pub fn python_script(name: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("resources")
        .join(name);
    let mut command = Command::new("python3");
    command.arg(script).env("PYTHONPATH", python_packages());
    command
}

/// Whether the packages are there. Prints the reason when not.
///
/// # Panics
/// When they are not and `CARACAL_E2E_REQUIRED=1`.
#[must_use]
pub fn has_python_packages(scenario: &str) -> bool {
    let folder = python_packages();
    let missing = !folder.join("kmock").is_dir();
    let reason = format!("{} is not there; make packages-test", folder.display());
    can_run(scenario, missing.then_some(reason))
}

/// What Kubernetes' schemas say against objects, strictly: unknown fields are faults. Objects of
/// kinds without a schema are faults as well.
///
/// # Panics
/// When the validator cannot be run, or does not judge every object.
#[must_use]
pub fn schema_faults(objects: &[Value]) -> Vec<String> {
    let mut command = python_script("validate.py");
    command
        .args(KUBERNETES_VERSIONS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("python3 runs");
    let text = Value::from(objects.to_vec()).to_string();
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8(output.stdout).expect("text");
    let mut faults: Vec<_> = said.lines().map(str::to_owned).collect();
    let right = faults.pop().unwrap_or_default();
    let right = right.strip_prefix("right: ").and_then(|n| n.parse().ok());
    let right: usize = right.unwrap_or_else(|| panic!("{}: {said}", output.status));
    assert_eq!(
        right + faults.len(),
        objects.len() * KUBERNETES_VERSIONS.len(),
        "{said}"
    );
    faults
}
