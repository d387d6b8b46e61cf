//! `--vxlan-tx-checksum`: who makes the checksums of packets inside of VXLAN.

use std::sync::Arc;

use caracal_agent::{PlannedStatus, TxChecksums};
use caracal_flannel::{FlannelState, vxlan_devices};
use tokio::sync::watch;

use super::args::FlannelArgs;

/// Sets the VXLAN devices of the network, until the writer has ended. Without the flag it waits for
/// ever.
pub(super) async fn keep_checksums(
    args: &FlannelArgs,
    states: watch::Receiver<Arc<FlannelState>>,
    mut status: watch::Receiver<Arc<PlannedStatus>>,
) {
    let Some(on) = args.vxlan_tx_checksum else {
        return std::future::pending().await;
    };
    let mut checksums = TxChecksums::default();
    loop {
        let links = status.borrow_and_update().links.clone();
        let config = states.borrow().network.config.clone();
        checksums.keep(Some(on), vxlan_devices(&config, &links));
        if status.changed().await.is_err() {
            return;
        }
    }
}
