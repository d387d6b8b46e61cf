//! The MTU for pods, where Calico's CNI plugin and ours look for it: decimal text in the file
//! `mtu`. And what is known of narrow paths, in the file `paths`, so that a restart does not begin
//! with routes that are too wide.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use caracal_agent::{AgentStatus, PathMtus};
use caracal_datastore::{SMALL_FILE, read_file};
use caracal_model::InsertEach;
use tokio::sync::watch;

use crate::node::leave_file;

/// Reads the path MTUs that an earlier run has stored. A file that cannot be read is no knowledge.
pub(crate) fn recall(lib_dir: &Path) -> PathMtus {
    let text = read_file(&lib_dir.join("paths"), SMALL_FILE).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Writes the file of narrow paths when they are others than those written last.
fn remember(lib_dir: &Path, paths: &PathMtus, written: &mut PathMtus) {
    let narrow: PathMtus = paths
        .iter()
        .filter(|(_, path)| path.is_narrow())
        .map(|(address, path)| (*address, *path))
        .insert_each();
    if narrow == *written {
        return;
    }
    let text = serde_json::to_string(&narrow).expect("addresses and numbers are valid JSON");
    match leave_file(lib_dir, "paths", &text) {
        Ok(()) => *written = narrow,
        Err(error) => tracing::warn!(%error, "cannot write {}", lib_dir.join("paths").display()),
    }
}

/// Writes the file whenever the plan's MTU changes. A failure is logged and tried again with the
/// next change.
pub(crate) async fn write_mtu(lib_dir: PathBuf, mut kernel: watch::Receiver<Arc<AgentStatus>>) {
    let mut written = None;
    let mut narrow = recall(&lib_dir);
    loop {
        let wanted = {
            let status = kernel.borrow_and_update();
            if status.passes > 0 {
                remember(&lib_dir, &status.paths.now(), &mut narrow);
            }
            // Before the first pass there is no plan.
            (status.passes > 0).then_some(status.desired.workload_mtu)
        };
        if wanted.is_some() && wanted != written {
            match wanted.map_or(Ok(()), |mtu| leave_file(&lib_dir, "mtu", &mtu.to_string())) {
                Ok(()) => written = wanted,
                Err(error) => {
                    tracing::warn!(%error, "cannot write {}; new pods get the kernel's default MTU", lib_dir.join("mtu").display());
                }
            }
        }
        if kernel.changed().await.is_err() {
            return;
        }
    }
}
