//! `--vxlan-tx-checksum`: who makes the checksums of packets inside of VXLAN.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::{PlannedStatus, set_tx_checksum};
use caracal_flannel::{FlannelState, vxlan_devices};
use tokio::sync::watch;

use super::args::FlannelArgs;

/// Sets each VXLAN device of the network once, also one that somebody made again, until the writer
/// has ended. Without the flag it waits for ever.
pub(super) async fn keep_checksums(
    args: &FlannelArgs,
    states: watch::Receiver<Arc<FlannelState>>,
    mut status: watch::Receiver<Arc<PlannedStatus>>,
) {
    let Some(on) = args.vxlan_tx_checksum else {
        return std::future::pending().await;
    };
    let mut done: BTreeMap<u32, String> = BTreeMap::new();
    loop {
        let links = status.borrow_and_update().links.clone();
        done.retain(|index, _| links.by_index(*index).is_some());
        let config = states.borrow().network.config.clone();
        for device in vxlan_devices(&config, &links) {
            let name = device.name.as_str();
            if done.get(&device.index).is_some_and(|known| known == name) {
                continue;
            }
            match set_tx_checksum(name, on) {
                Ok(()) => tracing::info!(device = name, on, "--vxlan-tx-checksum is set"),
                Err(error) => {
                    tracing::error!(device = name, %error, "--vxlan-tx-checksum cannot be set");
                }
            }
            done.insert(device.index, name.to_owned());
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}
