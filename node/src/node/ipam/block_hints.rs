//! The node's own blocks, for plugins that have not assigned anything yet: see
//! [`caracal_cni::suggest_blocks`].

use std::path::PathBuf;

use caracal_datastore::View;
use caracal_model::{NodeName, Prefix};
use tokio::sync::watch;

/// Suggests the node's blocks whenever they change. A failure costs the next plugin a read, no
/// more.
pub(crate) async fn write_block_hints(
    run_dir: PathBuf,
    me: NodeName,
    mut view: watch::Receiver<View>,
) {
    let mut suggested: Vec<Prefix> = Vec::new();
    loop {
        let own: Vec<Prefix> = {
            let view = view.borrow_and_update();
            let (blocks, held) = (&view.snapshot.blocks, view.snapshot.affinities_of(&me));
            let is_ours = |cidr: &Prefix| blocks.get(cidr).is_some_and(|b| b.host() == Some(&me));
            held.map(|(cidr, _)| cidr).filter(is_ours).collect()
        };
        if own != suggested && !own.is_empty() {
            if let Err(error) = caracal_cni::suggest_blocks(&run_dir, own.iter().copied()) {
                tracing::debug!(%error, "cannot suggest blocks to the CNI plugin");
            }
            suggested = own;
        }
        if view.changed().await.is_err() {
            return;
        }
    }
}
