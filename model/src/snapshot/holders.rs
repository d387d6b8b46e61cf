//! Pods that hold addresses, as blocks name them: an endpoint that is one of these says nothing
//! that its block does not say, and its value need not be read.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::resource::push_endpoint_name;

/// A set of pods with their nodes. Only hashes are kept: a cluster has many pods, and the set lives
/// as long as a list is read.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    pods: HashSet<u64>,
    seed: RandomState,
}

impl Holders {
    pub(super) fn add(&mut self, namespace: &str, node: &str, pod: &str) {
        let mut place = [namespace, "/"].concat();
        push_endpoint_name(&mut place, [node, "k8s", pod, ""]);
        self.pods.insert(self.seed.hash_one(place.as_str()));
    }

    /// Whether the endpoint of a key, `NAMESPACE/NAME`, is that of such a pod: whichever of its
    /// interfaces it is of.
    #[must_use]
    pub fn include(&self, place: &str) -> bool {
        let pod = without_interface(place);
        pod.is_some_and(|pod| self.pods.contains(&self.seed.hash_one(pod)))
    }
}

/// Everything up to the last `-` that is not a doubled one, with it.
fn without_interface(place: &str) -> Option<&str> {
    let octets = place.as_bytes();
    let mut end = octets.len();
    while let Some(at) = octets[..end].iter().rposition(|octet| *octet == b'-') {
        let single = at == 0 || octets[at - 1] != b'-';
        if single {
            return Some(&place[..=at]);
        }
        end = at - 1;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::resource::endpoint_name;

    #[test]
    fn an_endpoint_is_found_by_its_pod() {
        let mut holders = Holders::default();
        holders.add("default", "node-1", "web-0");
        let place = |node: &str, pod: &str, interface: &str| {
            format!("default/{}", endpoint_name(node, "k8s", pod, interface))
        };
        assert!(holders.include(&place("node-1", "web-0", "eth0")));
        assert!(holders.include(&place("node-1", "web-0", "bond-0")));
        for (node, pod) in [
            ("node-1", "web-1"),
            ("node", "1-web-0"),
            ("node-2", "web-0"),
        ] {
            assert!(!holders.include(&place(node, pod, "eth0")), "{node} {pod}");
        }
        assert!(!holders.include("other/node--1-k8s-web--0-eth0"));
        for odd in ["", "-", "--", "x", "default/mine", "default/a--b"] {
            assert!(!holders.include(odd), "{odd}");
        }
    }
}
