//! From the dataplane to the speaker: this machine's own networks, and the underlay that next hops
//! are resolved over; and the word that they are, which goes to the agent behind the routes.
//!
//! Routes to peers through a gateway (`reachableBy`) are part of the underlay: their peers' next
//! hops are reached by them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_agent::{Learned, PublishedUnderlay};
use caracal_bgp::{SpeakerEnded, SpeakerHandle};
use caracal_model::{LocalNetworks, Prefix, Underlay, UnderlayRoute};
use tokio::sync::watch;

use crate::node::kernel::learned::{Map, Resolved};

/// Gateways of peers (`reachableBy`), by the prefix of the peer's address.
pub(crate) type PeerGateways = BTreeMap<Prefix, IpAddr>;

/// Metric of a route to a peer through its gateway: that of the route that is written for it.
const PEER_METRIC: u32 = 1024;

/// Tells the speaker of every change, and `resolved` when its routes follow it. Until the first
/// word, and when the agent is no longer heard of, what was said last holds: nothing is taken out
/// of the decision for want of news.
pub(crate) async fn publish_underlay(
    mut published: watch::Receiver<PublishedUnderlay>,
    mut gateways: watch::Receiver<PeerGateways>,
    speaker: SpeakerHandle,
    resolved: watch::Sender<Resolved>,
) {
    loop {
        let now = published.borrow_and_update().clone();
        let through = gateways.borrow_and_update().clone();
        if now.number > 0 {
            let (underlay, peers) = with_peers(&now.underlay, &through);
            if hand_over(&speaker, &now, underlay).await.is_err() {
                return;
            }
            resolved.send_replace(Resolved {
                number: now.number,
                peers: Arc::new(peers),
            });
        }
        tokio::select! {
            changed = published.changed() => if changed.is_err() { return },
            changed = gateways.changed() => if changed.is_err() { return },
        }
    }
}

async fn hand_over(
    speaker: &SpeakerHandle,
    now: &PublishedUnderlay,
    underlay: Underlay,
) -> Result<(), SpeakerEnded> {
    // Before the underlay: what leads to our own networks is not to be used for a moment.
    let local = LocalNetworks::clone(&now.local);
    speaker.set_local_networks(local).await?;
    speaker.set_underlay(underlay).await
}

/// The underlay with the routes to peers through gateways, and these routes.
fn with_peers(underlay: &Underlay, gateways: &PeerGateways) -> (Underlay, Map) {
    let mut all = underlay.clone();
    let mut routes = Map::default();
    for (peer, via) in gateways {
        let learned = Learned::external(*via).over(underlay);
        if let Some(gateway) = learned.gateways.first() {
            let carrier = underlay.find(*via).is_some_and(|route| route.carrier);
            let route = UnderlayRoute {
                metric: PEER_METRIC,
                interface: Some(gateway.interface.clone()),
                gateway: Some(gateway.address),
                carrier,
            };
            all.offer(*peer, Some(route));
        }
        routes.insert(*peer, learned);
    }
    (all, routes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_peer_behind_a_gateway_is_reached_by_it() {
        let eth0 = UnderlayRoute {
            interface: Some("eth0".into()),
            ..UnderlayRoute::default()
        };
        let subnet = "10.0.0.0/24".parse().unwrap();
        let underlay = Underlay::new([(subnet, Some(eth0))], None);
        let peer: Prefix = "192.0.2.1/32".parse().unwrap();
        let gateways = PeerGateways::from([(peer, "10.0.0.254".parse().unwrap())]);
        let (all, routes) = with_peers(&underlay, &gateways);
        let found = all.find(peer.address()).unwrap();
        assert_eq!(
            found.to_string(),
            "via 10.0.0.254 dev eth0, metric 1024",
            "the peer's next hops are resolved over it"
        );
        let gateway = &routes[&peer].gateways[0];
        assert_eq!(gateway.address.to_string(), "10.0.0.254");
        // The gateway is on no link: the route waits, and nothing is resolved over it.
        let (all, routes) = with_peers(&Underlay::new([], None), &gateways);
        assert_eq!(all.find(peer.address()), None);
        assert!(routes[&peer].gateways.is_empty());
    }
}
