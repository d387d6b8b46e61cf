//! The underlay as the dataplane publishes it, and the wait for the speaker that resolves next hops
//! over it.
//!
//! The kernel follows the underlay by way of the speaker: a pass that finds another underlay
//! publishes it and ends; the next one has routes that are resolved over it. So a link that goes or
//! comes costs one pass that writes, and no route is written over what is no longer there.

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{LocalNetworks, Underlay};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::links::Links;
use crate::ownership::{Ownership, is_tunnel_device};

/// Longest wait for routes that are resolved over the published underlay; after it, routes are
/// written as they are, and none is deleted until they are resolved.
const PATIENCE: Duration = Duration::from_millis(250);
/// The same for the first underlay: until then no route says where it leads.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);

/// Underlay for next-hop resolution, and this machine's own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedUnderlay {
    /// Counts the changes; 0 = nothing is known yet.
    pub number: u64,
    /// The links and the routes of others.
    pub underlay: Arc<Underlay>,
    /// The machine's own networks.
    pub local: Arc<LocalNetworks>,
}

/// The networks of a node: the addresses of its tunnels and the interfaces of its workloads are of
/// pools, and the datastore says whose.
#[must_use]
pub fn local_networks(links: &Links, ownership: &Ownership) -> LocalNetworks {
    let workloads = &ownership.interface_prefixes;
    links.local_networks(|link| {
        let name = link.name.as_str();
        is_tunnel_device(name) || workloads.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Publishes changes, and knows which of them the routes are resolved over.
#[derive(Debug)]
pub(super) struct Publisher {
    published: watch::Sender<PublishedUnderlay>,
    since: Instant,
}

impl Publisher {
    pub(super) fn new() -> Self {
        Self {
            published: watch::Sender::default(),
            since: Instant::now(),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<PublishedUnderlay> {
        self.published.subscribe()
    }

    /// Last published underlay.
    pub(super) fn published(&self) -> PublishedUnderlay {
        self.published.borrow().clone()
    }

    /// Publishes what differs from before.
    pub(super) fn publish(&mut self, underlay: Underlay, local: LocalNetworks, now: Instant) {
        let changed = self.published.send_if_modified(|known| {
            let same = known.number > 0 && *known.underlay == underlay && *known.local == local;
            if !same {
                known.number += 1;
                known.underlay = Arc::new(underlay);
                known.local = Arc::new(local);
            }
            !same
        });
        if changed {
            self.since = now;
        }
    }

    /// Until when routes are awaited that are resolved over what was published last; `None`: they
    /// are there, or have been awaited for long enough.
    pub(super) fn awaits(&self, resolved: u64, now: Instant) -> Option<Instant> {
        let number = self.published.borrow().number;
        let patience = if resolved == 0 {
            FIRST_PATIENCE
        } else {
            PATIENCE
        };
        let until = self.since + patience;
        (resolved < number && now < until).then_some(until)
    }

    /// True when the routes are resolved over what was published last.
    pub(super) fn is_followed(&self, resolved: u64) -> bool {
        resolved >= self.published.borrow().number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_new_is_not_published_and_nobody_is_awaited_for_ever() {
        let now = Instant::now();
        let mut publisher = Publisher::new();
        let published = publisher.subscribe();
        assert_eq!(publisher.awaits(0, now), None, "nothing is published");
        for (n, others) in [(1, None), (1, None), (2, Some(Default::default()))] {
            publisher.publish(Underlay::new([], others), LocalNetworks::default(), now);
            assert_eq!(published.borrow().number, n);
        }
        assert_eq!(publisher.awaits(2, now), None);
        assert_eq!(publisher.awaits(1, now), Some(now + PATIENCE));
        assert_eq!(publisher.awaits(1, now + PATIENCE), None);
        assert!(publisher.is_followed(2) && !publisher.is_followed(1));
        assert_eq!(publisher.awaits(0, now), Some(now + FIRST_PATIENCE));
    }
}
