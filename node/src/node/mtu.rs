//! The MTU for pods, where Calico's CNI plugin and ours look for it: decimal text in the file `mtu`.

use std::path::PathBuf;
use std::sync::Arc;

use caracal_agent::dataplane::AgentStatus;
use tokio::sync::watch;

use super::leave_file;

/// Writes the file whenever the plan's MTU changes. A failure is logged and tried again with the next change.
pub(super) async fn keep(lib_dir: PathBuf, mut kernel: watch::Receiver<Arc<AgentStatus>>) {
    let mut written = None;
    loop {
        let wanted = {
            let status = kernel.borrow_and_update();
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
