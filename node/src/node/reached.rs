//! From the agent's view of the kernel to the speaker: this machine's own networks, and which next hops are reached, and
//! how.

use std::sync::Arc;
use std::time::Instant;

use caracal_agent::dataplane::AgentStatus;
use caracal_bgp::speaker::SpeakerHandle;
use tokio::sync::watch;

use super::ground::Ground;
use crate::{local_networks, next_hops};

/// Tells the speaker after each pass that found other networks or other ways. Until the first pass, and when the agent is no longer heard
/// of, what was said last holds: nothing is taken out of the decision for want of news.
pub(super) async fn keep(mut status: watch::Receiver<Arc<AgentStatus>>, speaker: SpeakerHandle) {
    let mut known = None;
    let mut links = None;
    let mut own_networks = None;
    let mut ground = Ground::default();
    loop {
        let now = status.borrow_and_update().clone();
        // Before the ways: what leads to our own networks is not to be used for a moment.
        if now.passes > 0 && links.as_ref() != Some(&now.links) {
            let local = local_networks::of_node(&now.links, &now.desired.ownership);
            if own_networks.as_ref() != Some(&local) {
                if speaker.set_local_networks(local.clone()).await.is_err() {
                    return;
                }
                own_networks = Some(local);
            }
            links = Some(Arc::clone(&now.links));
        }
        let ways = &now.desired.ways;
        let at = Instant::now();
        let due = ground.next_timeout().is_some_and(|due| due <= at);
        if now.passes > 0 && (due || known.as_ref() != Some(ways)) {
            ground.look(at, ways);
            let told = next_hops::without(ways, |range| ground.is_barred(range));
            if speaker.set_next_hops(told).await.is_err() {
                return;
            }
            known = Some(ways.clone());
        }
        let timeout = ground.next_timeout();
        let end_of_bar = async {
            match timeout {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return },
            () = end_of_bar => {}
        }
    }
}
