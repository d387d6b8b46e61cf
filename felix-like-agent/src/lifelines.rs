//! Blackholes that stand between this node and its datastore. A plan never has one
//! ([`mod@crate::plan`]); one that is in the kernel, from before the data was mended or from an
//! older version, is never right, and while it is there nothing better is ever heard. So it goes
//! even while nothing else is deleted.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::actual::{Actual, ActualRoute, ActualTarget};
use crate::kernel_objects::ForwardingTarget;

/// Our blackholes by which packets to one of the addresses end.
#[must_use]
pub(crate) fn cut_by(
    actual: &Actual,
    protocol: u8,
    lifelines: &BTreeSet<IpAddr>,
) -> Vec<ActualRoute> {
    let mut found: Vec<ActualRoute> = Vec::new();
    for address in lifelines {
        // The kernel takes the longest, and of these the one with the lowest metric.
        let routes = actual.all_routes().filter(|r| r.prefix.contains(*address));
        let best = routes.min_by_key(|r| (std::cmp::Reverse(r.prefix.len()), r.metric));
        let blackhole = best.filter(|route| {
            let ours = route.protocol == protocol && route.tos == 0;
            ours && route.target == ActualTarget::Known(ForwardingTarget::Blackhole)
        });
        found.extend(blackhole.filter(|route| !found.contains(route)).cloned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_objects::Route;

    fn route(prefix: &str, metric: u32, protocol: u8, target: ForwardingTarget) -> ActualRoute {
        let prefix = prefix.parse().unwrap();
        let (mtu, source) = (None, None);
        Route {
            prefix,
            metric,
            protocol,
            target,
            mtu,
            source,
        }
        .into()
    }

    #[test]
    fn only_what_ends_the_way_to_the_datastore_is_found() {
        let etcd: BTreeSet<IpAddr> = ["10.0.0.9".parse().unwrap()].into();
        let via = || ForwardingTarget::via(None, &"eth0".into(), false);
        let cut = |routes: &[ActualRoute]| {
            let mut actual = Actual::default();
            routes
                .iter()
                .cloned()
                .for_each(|route| actual.push_route(route));
            cut_by(&actual, 80, &etcd)
        };
        let bad = route("10.0.0.0/26", 1_000_000, 80, ForwardingTarget::Blackhole);
        let link = route("10.0.0.0/24", 0, 2, via());
        assert_eq!(
            cut(&[bad.clone(), link.clone()]),
            std::slice::from_ref(&bad)
        );
        let longer = route("10.0.0.9/32", 1024, 80, via());
        assert_eq!(cut(&[bad.clone(), longer]), [], "a longer one leads on");
        let elsewhere = route("10.0.1.0/26", 1_000_000, 80, ForwardingTarget::Blackhole);
        assert_eq!(cut(&[elsewhere, link.clone()]), []);
        let foreign = route("10.0.0.0/26", 1_000_000, 4, ForwardingTarget::Blackhole);
        assert_eq!(cut(&[foreign, link]), [], "an administrator may want it");
        let preferred = route("10.0.0.0/26", 0, 2, via());
        assert_eq!(cut(&[bad, preferred]), []);
    }
}
