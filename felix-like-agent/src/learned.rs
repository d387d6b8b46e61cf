//! Routes that BGP learned, as the agent wants to see them. The wiring of the node fills this from
//! the speaker's feed; this crate knows no BGP.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Gateway, Underlay};

/// The best path (or paths) to one prefix, learned from a peer. Own originated prefixes are not in
/// here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// BGP next hops as announced; more than one = equal-cost multipath. None: a route that a
    /// speaker without datastore announces itself, which is a blackhole in its table
    /// (`crate::table`).
    pub next_hops: Vec<IpAddr>,
    /// Where packets go: the next hops as the speaker has resolved them. None: it has not.
    pub gateways: Arc<[Gateway]>,
    /// Learned from an internal peer (iBGP).
    pub internal: bool,
    /// Kept past the end of its session (RFC 4724). It is programmed like any other.
    pub stale: bool,
    /// The address that this machine's packets are sent from, where the speaker's filter says one.
    pub preferred_source: Option<IpAddr>,
}

impl Learned {
    /// A path of an internal peer with one next hop.
    #[must_use]
    pub fn internal(next_hop: IpAddr) -> Self {
        Self {
            next_hops: vec![next_hop],
            gateways: Arc::default(),
            internal: true,
            stale: false,
            preferred_source: None,
        }
    }

    /// The same with its next hops resolved over the underlay, for forecasts and simulations in
    /// which no speaker does it.
    #[must_use]
    pub fn over(mut self, underlay: &Underlay) -> Self {
        let gateways = self
            .next_hops
            .iter()
            .filter_map(|hop| underlay.gateway(*hop));
        self.gateways = gateways.collect();
        self
    }

    /// A path of an external peer with one next hop.
    #[must_use]
    pub fn external(next_hop: IpAddr) -> Self {
        Self {
            internal: false,
            ..Self::internal(next_hop)
        }
    }
}
