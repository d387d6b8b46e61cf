//! Addresses that no Service has, whatever it says of itself. Who translates addresses and who
//! announces them asks here, so that nothing is announced that nobody translates.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::net::{Prefix, outermost, range_around};
use crate::resource::AllowedUse;
use crate::snapshot::Snapshot;

/// Ranges in which no Service has an address: those of pods. They are pools from which load
/// balancers take no address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedRanges(BTreeSet<Prefix>);

impl ReservedRanges {
    /// Those of a snapshot.
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        let pools = snapshot.pools.values().map(|pool| &pool.spec);
        let of_pods = pools.filter(|pool| !pool.allows(AllowedUse::LoadBalancer));
        Self(outermost(of_pods.map(|pool| pool.prefix())))
    }

    /// Why no Service has an address, whatever its port; `None` = one may. It is not asked of the
    /// addresses of node ports, and not whether a node has it.
    #[must_use]
    pub fn refuses(&self, address: IpAddr) -> Option<String> {
        if let Some(what) = out_of_reach(address) {
            return Some(format!("it is {what}"));
        }
        let pool = range_around(&self.0, address)?;
        Some(format!("it lies in the pool {pool}"))
    }

    /// The first range that has something in common with another one.
    #[must_use]
    pub fn overlapping(&self, range: &Prefix) -> Option<&Prefix> {
        self.0.iter().find(|reserved| reserved.overlaps(range))
    }
}

/// What an address is that is no single machine's in the network.
#[must_use]
pub fn out_of_reach(address: IpAddr) -> Option<&'static str> {
    let (is_loopback, is_multicast) = (address.is_loopback(), address.is_multicast());
    let (is_link_local, is_none) = match address {
        IpAddr::V4(v4) => {
            let is_none = v4.octets()[0] == 0 || v4.is_broadcast();
            (v4.is_link_local(), is_none)
        }
        // Of `::/96` and `::ffff:0:0/96` each address is another one of IPv4.
        IpAddr::V6(v6) => {
            let is_ipv4 = v6.to_ipv4().is_some();
            (v6.is_unicast_link_local(), is_ipv4)
        }
    };
    [
        (is_loopback, "a loopback address"),
        (is_multicast, "a multicast address"),
        (is_link_local, "a link-local address"),
        (is_none, "no address of a machine"),
    ]
    .into_iter()
    .find_map(|(is, what)| is.then_some(what))
}
