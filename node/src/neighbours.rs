//! The kernel's table of neighbours: one for all network namespaces of the machine, with limits
//! that are made for small networks. Where it is full, packets to whoever is not in it are dropped.
//! `caracal doctor` and `caracal status` ask here.

use std::net::IpAddr;

use caracal_agent::Links;
use caracal_model::{EncapMode, Family, NodeName, Prefix, Snapshot};

/// What a family needs of the table, and what it holds.
pub(crate) struct NeighbourTable {
    family: Family,
    /// All that this node may speak with at once: its own pods, the nodes in its subnets, and those
    /// behind `tunl0`. Neighbours behind a VXLAN device are permanent, which the limits do not
    /// count.
    neighbours: usize,
    /// The limits, in entries.
    soft: usize,
    hard: usize,
}

impl NeighbourTable {
    /// Both families; without those whose limits a namespace does not show.
    pub(crate) fn of_machine(snapshot: &Snapshot, node: &NodeName, links: &Links) -> Vec<Self> {
        let subnets: Vec<Prefix> = links.subnets().collect();
        let table = |family| {
            let (soft, hard) = limits(family)?;
            Some(Self {
                family,
                neighbours: count(snapshot, node, &subnets, family),
                soft,
                hard,
            })
        };
        [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter_map(table)
            .collect()
    }

    /// The hard limit's name.
    pub(crate) fn name(&self) -> String {
        format!("net.{}.neigh.default.gc_thresh3", of(self.family))
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.neighbours >= self.hard
    }

    pub(crate) const fn is_short(&self) -> bool {
        self.neighbours >= self.soft || self.is_full()
    }

    /// What is seen, and what follows from it.
    pub(crate) fn seen(&self) -> String {
        let Self {
            family,
            neighbours,
            soft,
            hard,
        } = self;
        let follows = match (self.is_full(), self.is_short()) {
            (true, _) => ": packets to those that are not in it are dropped".to_owned(),
            (_, true) => format!("; above {soft} it is cleaned all the time"),
            _ => String::new(),
        };
        format!("{neighbours} neighbours of {family}, and the table holds {hard}{follows}")
    }

    /// What to do; nothing where it is large enough.
    pub(crate) fn fix(&self) -> String {
        if !self.is_short() {
            return String::new();
        }
        let name = self.name();
        // Half of what is wanted is room for routers and for other namespaces.
        let wanted = (2 * self.neighbours).next_power_of_two().max(1024);
        format!(
            "sysctl -w {name}={wanted} {}={} and name both in /etc/sysctl.d",
            name.replace("thresh3", "thresh2"),
            wanted / 2
        )
    }
}

/// The soft and the hard limit, in entries; `None` in a namespace that does not show them.
fn limits(family: Family) -> Option<(usize, usize)> {
    let limit = |name: &str| {
        let path = format!("/proc/sys/net/{}/neigh/default/{name}", of(family));
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse().ok()
    };
    Some((limit("gc_thresh2")?, limit("gc_thresh3")?))
}

const fn of(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    }
}

fn count(snapshot: &Snapshot, node: &NodeName, subnets: &[Prefix], family: Family) -> usize {
    let near = |address: IpAddr| subnets.iter().any(|subnet| subnet.contains(address));
    // IPIP carries IPv4 only.
    let pools = snapshot.pools.values().map(|pool| &pool.spec);
    let pools = pools.filter(|pool| family == Family::Ipv4 && snapshot.makes_routes(pool));
    let modes: Vec<EncapMode> = pools.map(|pool| pool.ipip_mode).collect();
    // The kernel makes a neighbour of each node that a packet goes to by `tunl0`.
    let by_tunnel = |near: bool| {
        let across = !near && modes.contains(&EncapMode::CrossSubnet);
        across || modes.contains(&EncapMode::Always)
    };
    let others = snapshot.nodes.iter().filter(|(name, _)| *name != node);
    let addresses = others.filter_map(|(_, other)| other.spec.address(family));
    let nodes = addresses
        .map(near)
        .map(|near| usize::from(near) + usize::from(by_tunnel(near)));
    let pods = snapshot.workloads_of(node);
    let pods = pods.flat_map(|pod| &pod.spec.ip_networks);
    nodes.sum::<usize>() + pods.filter(|network| network.family() == family).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_on_the_link_and_own_pods_are_neighbours() {
        let mut snapshot = Snapshot::default();
        let folder = "/calico/resources/v3/projectcalico.org";
        let put = |snapshot: &mut Snapshot, key: String, value: &str| {
            let revision = snapshot.revision + 1;
            snapshot.apply(&format!("{folder}/{key}"), Some(value.as_bytes()), revision);
        };
        for (name, v4, v6) in [
            ("a", "10.0.0.1/24", "fd00::1/64"),
            ("b", "10.0.0.2/24", "fd00::2/64"),
            ("far", "10.0.9.1/24", "fd00:9::1/64"),
        ] {
            let node = format!(
                r#"{{"kind":"Node","metadata":{{"name":"{name}"}},"spec":{{"bgp":{{"ipv4Address":"{v4}","ipv6Address":"{v6}"}}}}}}"#
            );
            put(&mut snapshot, format!("nodes/{name}"), &node);
        }
        for (node, n) in [("a", 5), ("a", 6), ("b", 7)] {
            let pod = format!(
                r#"{{"kind":"WorkloadEndpoint","metadata":{{"name":"w{n}","namespace":"default"}},
                    "spec":{{"node":"{node}","interfaceName":"cali{n}","ipNetworks":["10.244.0.{n}/32"]}}}}"#
            );
            put(
                &mut snapshot,
                format!("workloadendpoints/default/w{n}"),
                &pod,
            );
        }
        let subnets: Vec<Prefix> = ["10.0.0.0/24", "fd00::/64"]
            .map(|p| p.parse().unwrap())
            .into();
        let a = "a".into();
        assert_eq!(count(&snapshot, &a, &subnets, Family::Ipv4), 3);
        assert_eq!(count(&snapshot, &a, &subnets, Family::Ipv6), 1);
        // By `tunl0` nodes elsewhere are neighbours, too, and those on the link a second time.
        for (mode, expected) in [("CrossSubnet", 4), ("Always", 5), ("Never", 3)] {
            let pool = format!(
                r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"10.244.0.0/16","ipipMode":"{mode}"}}}}"#
            );
            put(&mut snapshot, "ippools/p".to_owned(), &pool);
            assert_eq!(
                count(&snapshot, &a, &subnets, Family::Ipv4),
                expected,
                "{mode}"
            );
            assert_eq!(count(&snapshot, &a, &subnets, Family::Ipv6), 1);
        }
    }

    #[test]
    fn a_table_that_is_too_small_is_named_with_its_remedy() {
        let table = |neighbours| NeighbourTable {
            family: Family::Ipv6,
            neighbours,
            soft: 512,
            hard: 1024,
        };
        assert!(!table(300).is_short() && table(300).fix().is_empty());
        assert!(table(512).is_short() && !table(512).is_full());
        let full = table(1500);
        assert!(full.is_full() && full.is_short());
        assert!(full.seen().contains("1500 neighbours of IPv6"));
        assert!(
            full.fix()
                .contains("sysctl -w net.ipv6.neigh.default.gc_thresh3=4096")
        );
        assert!(
            full.fix()
                .contains("net.ipv6.neigh.default.gc_thresh2=2048")
        );
    }
}
