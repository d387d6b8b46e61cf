//! TOPO-1: the order in which resources come.

use super::cluster::snapshot;
use super::*;

const MANY: &str = "
kind: BGPPeer
metadata: {name: a}
spec: {nodeSelector: all(), peerSelector: has(rr), filters: [f]}
---
kind: BGPPeer
metadata: {name: b}
spec: {peerIP: 10.0.0.2, asNumber: 64512}
---
kind: BGPPeer
metadata: {name: c}
spec: {peerIP: 10.0.0.2, asNumber: 64513, filters: [f]}
---
kind: BGPPeer
metadata: {name: d}
spec: {node: n1, peerIP: 10.0.0.2, asNumber: 64514}
---
kind: BGPFilter
metadata: {name: f}
spec: {exportV4: [{action: Accept}], importV4: [{action: Sometimes}]}
---
kind: IPPool
metadata: {name: p}
spec: {cidr: 10.244.0.0/16}
---
kind: IPPool
metadata: {name: q}
spec: {cidr: 10.245.0.0/16, disableBGPExport: true}
---
kind: BGPConfiguration
metadata: {name: default}
spec: {prefixAdvertisements: [{cidr: 10.244.0.0/16, communities: ['1:1']}]}
---
kind: BGPConfiguration
metadata: {name: node.n1}
spec: {listenPort: 1179, asNumber: 4}
---
kind: Node
metadata: {name: n1, labels: {rr: ''}}
spec: {bgp: {ipv4Address: 10.0.0.1/24}}
---
kind: Node
metadata: {name: n2, labels: {rr: ''}}
spec: {bgp: {ipv4Address: 10.0.0.2/24, routeReflectorClusterID: 1.1.1.1}}
---
kind: Node
metadata: {name: n3}
spec: {bgp: {ipv4Address: 10.0.0.2/24}}
---
kind: Node
metadata: {name: n4}
spec: {bgp: {ipv4Address: 10.0.0.4/24, asNumber: 65000}}
";

proptest! {
    /// TOPO-1: the order in which resources arrive never shows in a plan.
    #[test]
    fn topo_1_order_does_not_matter(order in Just(MANY.split("---\n").collect::<Vec<_>>()).prop_shuffle()) {
        let expected = snapshot(&[MANY]);
        let shuffled = snapshot(&order);
        for node in ["n1", "n2", "n3", "n4"] {
            let node = node.into();
            let options = PlanOptions::default();
            prop_assert_eq!(plan(&shuffled, &node, &options), plan(&expected, &node, &options));
        }
    }
}
