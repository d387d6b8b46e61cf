//! Tells the CNI plugins on this machine that no address is to be given out, while the datastore's
//! content is held back.

use std::path::PathBuf;
use std::time::Duration;

use caracal_datastore::{Rarely, View};
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two looks whether the word is still there: cleaners of temporary files come seldom.
const WORD_LOOK: Duration = Duration::from_secs(2);

/// Tells for ever. Before anything was read, the word of an earlier process stays.
pub(crate) async fn write_assignment_stop(run_dir: PathBuf, mut view: watch::Receiver<View>) {
    let mut written: Option<Option<String>> = None;
    let mut told = Rarely::default();
    loop {
        let word = {
            let view = view.borrow_and_update();
            let fault = view.fault.as_ref().filter(|fault| fault.forbids_writing());
            match fault {
                Some(fault) => Some(Some(format!("{fault}; {}", fault.remedy()))),
                None => view.synced.then_some(None),
            }
        };
        let forbids = matches!(word, Some(Some(_)));
        if let Some(word) = word
            && written.as_ref() != Some(&word)
        {
            match caracal_cni::forbid_addresses(&run_dir, word.as_deref()) {
                Ok(()) => {
                    written = Some(word);
                    told.over();
                }
                Err(error) if told.is_due(Instant::now(), &error.to_string()) => {
                    tracing::warn!(%error, "cannot tell the CNI plugins whether addresses may be given out");
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            changed = view.changed() => match changed {
                Ok(()) => {}
                Err(_ended) => return,
            },
            () = tokio::time::sleep(WORD_LOOK), if forbids => written = None,
        }
    }
}
