//! Whether Services and EndpointSlices are followed. In many clusters they are the largest lists
//! and change the most, and a node needs them only where it announces addresses of theirs
//! (BGPConfiguration) or translates them.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::mapping::Collection;

/// The kind that says what is announced.
pub(super) const CONFIGURATIONS: Collection = Collection::Custom("bgpconfigurations");

/// Fields of a BGPConfiguration, each a list of ranges.
const ANNOUNCED: [&str; 3] = [
    "serviceClusterIPs",
    "serviceExternalIPs",
    "serviceLoadBalancerIPs",
];

/// True for a BGPConfiguration by which addresses of Services are announced. Whose it is does not
/// matter: other nodes' are few.
pub(super) fn announces(configuration: &Value) -> bool {
    ANNOUNCED.into_iter().any(|field| {
        let list = configuration["spec"][field].as_array();
        list.is_some_and(|list| !list.is_empty())
    })
}

/// What is followed of Services.
#[derive(Debug)]
pub(super) struct ServiceUse {
    /// Whatever is announced.
    always: bool,
    /// When it was listed last, addresses were announced.
    announced: AtomicBool,
}

impl ServiceUse {
    pub(super) const fn new(always: bool) -> Self {
        Self {
            always,
            announced: AtomicBool::new(false),
        }
    }

    /// True when it does not depend on what is announced.
    pub(super) const fn is_given(&self) -> bool {
        self.always
    }

    /// Notes what the BGPConfigurations say while everything is listed.
    pub(super) fn set_announced(&self, announced: bool) {
        self.announced.store(announced, Ordering::Relaxed);
    }

    /// Is this kind listed and watched?
    pub(super) fn follows(&self, collection: Collection) -> bool {
        let of_services = [Collection::Services, Collection::EndpointSlices];
        self.always || self.announced.load(Ordering::Relaxed) || !of_services.contains(&collection)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_are_followed_where_their_addresses_are_announced() {
        for (spec, wanted) in [
            (json!({"asNumber": 64512}), false),
            (json!({"serviceClusterIPs": []}), false),
            (
                json!({"serviceLoadBalancerIPs": [{"cidr": "10.0.0.0/24"}]}),
                true,
            ),
        ] {
            assert_eq!(announces(&json!({"spec": spec})), wanted, "{spec}");
        }
        let some = ServiceUse::new(false);
        assert!(some.follows(Collection::Nodes) && !some.follows(Collection::Services));
        some.set_announced(true);
        assert!(some.follows(Collection::Services) && some.follows(Collection::EndpointSlices));
        assert!(ServiceUse::new(true).follows(Collection::Services));
    }
}
