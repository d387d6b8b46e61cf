//! From the agent's view of the kernel to the speaker: which next hops are reached, and how.

use std::sync::Arc;

use caracal_agent::dataplane::AgentStatus;
use caracal_bgp::speaker::SpeakerHandle;
use tokio::sync::watch;

use crate::next_hops;

/// Tells the speaker after each pass that found other ways. Until the first pass, and when the agent is no longer heard
/// of, what was said last holds: nothing is taken out of the decision for want of news.
pub(super) async fn keep(mut status: watch::Receiver<Arc<AgentStatus>>, speaker: SpeakerHandle) {
    let mut known = None;
    loop {
        let now = status.borrow_and_update().clone();
        let ways = &now.desired.ways;
        if now.passes > 0 && known.as_ref() != Some(ways) {
            if speaker.set_next_hops(next_hops::of(ways)).await.is_err() {
                return;
            }
            known = Some(ways.clone());
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}
