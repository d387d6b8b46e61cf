//! Folders put aside and put back: an etcd's data, a node's library.

use std::fs;
use std::path::Path;

use caracal_lab::{Lab, error_chain};
use serde_json::Value;

/// Copies a folder with all that is in it.
///
/// # Panics
/// When something cannot be read or written.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// The revision of a lab's etcd, also of one behind an API server.
///
/// # Panics
/// When etcd does not answer.
#[must_use]
pub fn etcd_revision(lab: &Lab) -> i64 {
    let answer = lab.etcdctl(&["get", "/nothing", "-w", "json"], b"");
    let answer = answer.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["header"]["revision"].as_i64().expect("a revision")
}
