//! Tells the CNI plugins on this machine that no address is to be given out, while the datastore's
//! content is held back.

use std::path::PathBuf;

use caracal_datastore::View;
use tokio::sync::watch;

/// Tells for ever. Before anything was read, the word of an earlier process stays.
pub(crate) async fn write_assignment_stop(run_dir: PathBuf, mut view: watch::Receiver<View>) {
    let mut written: Option<Option<String>> = None;
    loop {
        let word = {
            let view = view.borrow_and_update();
            let fault = view.fault.as_ref().filter(|fault| fault.forbids_writing());
            match fault {
                Some(fault) => Some(Some(format!("{fault}; {}", fault.remedy()))),
                None => view.synced.then_some(None),
            }
        };
        if let Some(word) = word
            && written.as_ref() != Some(&word)
        {
            match caracal_cni::forbid_addresses(&run_dir, word.as_deref()) {
                Ok(()) => written = Some(word),
                Err(error) => {
                    tracing::warn!(%error, "cannot tell the CNI plugins whether addresses may be given out");
                }
            }
        }
        if view.changed().await.is_err() {
            return;
        }
    }
}
