//! Tells the owners of connections which addresses this machine has lost: nothing can arrive on
//! connections from them, and without this only keepalives would notice, many seconds later. Which
//! connections those are, their owners know.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{AgentStatus, Links};
use caracal_bgp::SpeakerHandle;
use caracal_datastore::Datastore;
use caracal_model::InsertEach;
use tokio::sync::watch;

/// An address that comes back within this time was not gone: a change of address is a deletion and
/// an addition.
const SETTLE: Duration = Duration::from_millis(500);

/// Looks whenever the interfaces have changed, for ever.
pub(crate) async fn report_lost_addresses(
    mut kernel: watch::Receiver<Arc<AgentStatus>>,
    speaker: SpeakerHandle,
    store: Datastore,
) {
    let mut before = BTreeSet::new();
    loop {
        let now = addresses(&kernel.borrow_and_update().links);
        let missing: BTreeSet<IpAddr> = before.difference(&now).copied().insert_each();
        if !missing.is_empty() {
            tokio::time::sleep(SETTLE).await;
            // Read anew: the agent may be resting.
            match caracal_agent::read_links().await {
                Ok(links) => {
                    let there = addresses(&links);
                    let gone: BTreeSet<IpAddr> = missing.difference(&there).copied().insert_each();
                    store.addresses_gone(&gone).await;
                    if speaker.addresses_gone(gone).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot read the interfaces"),
            }
        }
        before = now;
        if kernel.changed().await.is_err() {
            return;
        }
    }
}

/// Addresses of this machine, but for those that stay.
fn addresses(links: &Links) -> BTreeSet<IpAddr> {
    let all = links.iter().flat_map(|link| &link.addresses);
    let all = all.map(|cidr| cidr.address);
    all.filter(|address| !address.is_loopback()).insert_each()
}
