//! Effect of a change in the datastore on a node, before it is made: the plan of a snapshot that is
//! not written yet, for a node whose kernel cannot be read from here.
//!
//! The node is taken to have one interface with the addresses that the datastore says, and no route
//! of anybody else's: a next hop outside its subnets counts as unreachable. That errs towards a
//! warning.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::{Family, InsertEach, NodeName, Prefix, Problem, SharedMap, Snapshot};

use crate::desired::Desired;
use crate::kernel_objects::RouteKind;
use crate::learned::Learned;
use crate::links::{Link, Links};
use crate::plan::{HostRoutes, KernelSupport, PlanInputs, plan};
use crate::settings::{Overrides, Settings};

/// Name of the interface that a forecast node has.
pub(crate) const UPLINK: &str = "uplink";

/// Assumptions about a node.
#[derive(Clone, Debug)]
pub struct Assumed {
    /// MTU of its interface, in octets.
    pub mtu: u32,
    /// Assumed support of its kernel.
    pub kernel: KernelSupport,
}

/// The plan of a node.
#[must_use]
pub fn forecast(
    snapshot: &Snapshot,
    me: &NodeName,
    learned: &SharedMap<Prefix, Learned>,
    assumed: &Assumed,
) -> Desired {
    let mut uplink = Link::new(2, UPLINK);
    uplink.mtu = assumed.mtu;
    if let Some(node) = snapshot.nodes.get(me) {
        let cidrs = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.cidr(family));
        uplink.addresses.extend(cidrs.into_iter().flatten());
    }
    let links: Links = [Link::new(1, "lo"), uplink].into_iter().collect();
    let (settings, _) = Settings::resolve(&Settings::default(), snapshot, me, &Overrides::new());
    let inputs = PlanInputs {
        lifelines: &BTreeSet::new(),
        snapshot,
        me,
        learned,
        links: &links,
        host_routes: &HostRoutes::default(),
        settings: &settings,
        kernel: &assumed.kernel,
    };
    let learned = inputs.resolved();
    plan(&PlanInputs {
        learned: &learned,
        ..inputs
    })
}

/// Changes on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanChange {
    /// Tunnel devices that come, with their MTU.
    pub devices_come: Vec<(String, u32)>,
    /// Tunnel devices that go.
    pub devices_go: Vec<String>,
    /// How many routes to other nodes change from one kind to another; `None` = no route.
    pub routes: BTreeMap<(Option<RouteKind>, Option<RouteKind>), usize>,
    /// MTU for new workloads, before and after.
    pub workload_mtu: (u32, u32),
    /// Why the node would be cut off from others: no reason, no objection.
    pub stranded: Vec<String>,
}

/// Compares two plans of one node.
#[must_use]
pub fn compare_plans(before: &Desired, after: &Desired) -> PlanChange {
    let mut change = PlanChange {
        devices_come: after
            .tunnels
            .values()
            .filter(|t| !before.tunnels.contains_key(&t.name))
            .map(|t| (t.name.to_string(), t.mtu))
            .collect(),
        devices_go: before
            .tunnels
            .keys()
            .filter(|name| !after.tunnels.contains_key(*name))
            .map(ToString::to_string)
            .collect(),
        workload_mtu: (before.workload_mtu, after.workload_mtu),
        stranded: new_problems(before, after),
        ..PlanChange::default()
    };
    let routes = before.routes.iter().chain(&after.routes);
    let destinations = routes.filter(|(_, planned)| !planned.is_vtep());
    let prefixes: BTreeSet<&Prefix> = destinations.map(|(prefix, _)| prefix).insert_each();
    let mut lost = Vec::new();
    for prefix in prefixes {
        let kind = |desired: &Desired| desired.routes.get(prefix).map(|p| p.kind);
        let (from, to) = (kind(before), kind(after));
        if from != to {
            *change.routes.entry((from, to)).or_insert(0) += 1;
        }
        if to.is_none() {
            lost.push(prefix.to_string());
        }
    }
    if !lost.is_empty() && change.stranded.is_empty() {
        change.stranded.push(format!(
            "no route is left to {}: BGP announces none to this node and the mode makes none",
            lost.join(", ")
        ));
    }
    change
}

fn new_problems(before: &Desired, after: &Desired) -> Vec<String> {
    let reasons = |desired: &Desired| -> BTreeSet<Problem> { desired.problems.clone() };
    let before = reasons(before);
    let new = after.problems.iter().filter(|p| !before.contains(*p));
    new.map(|p| p.reason.clone()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_model::{Block, BlockOwner};

    use super::*;

    /// Nodes a, b in one subnet and c in another, a block each, and a pool.
    fn snapshot(pool: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut put = |kind: &str, name: &str, spec: &str| {
            let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
            let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{spec}}}}}"#);
            snapshot.apply(&path, Some(value.as_bytes()), 1);
        };
        for (n, name, address) in [
            (0, "a", "10.0.0.1/24"),
            (1, "b", "10.0.0.2/24"),
            (2, "c", "10.0.1.3/24"),
        ] {
            let spec = format!(
                r#""ipv4VXLANTunnelAddr":"10.244.{n}.1","bgp":{{"ipv4Address":"{address}","ipv4IPIPTunnelAddr":"10.244.{n}.1"}}"#
            );
            put("nodes", name, &spec);
        }
        put("ippools", "p", &format!(r#""cidr":"10.244.0.0/16"{pool}"#));
        for (n, name) in ["a", "b", "c"].iter().enumerate() {
            let cidr = format!("10.244.{n}.0/26").parse().unwrap();
            let owner = BlockOwner::Host((*name).into());
            let block = Block::new(cidr, Some(&owner), 1);
            let key = caracal_model::Key::Block(cidr).to_path();
            snapshot.apply(&key, Some(&block.to_json()), 1);
        }
        snapshot
    }

    fn change(before: &str, after: &str, kernel: &KernelSupport, bgp: bool) -> PlanChange {
        let mut learned = SharedMap::default();
        if bgp {
            for (prefix, hop) in [("10.244.1.0/26", "10.0.0.2"), ("10.244.2.0/26", "10.0.1.3")] {
                let path = Learned::internal(hop.parse().unwrap());
                learned.insert(prefix.parse().unwrap(), path);
            }
        }
        let assumed = Assumed {
            mtu: 1500,
            kernel: kernel.clone(),
        };
        let of = |pool: &str| forecast(&snapshot(pool), &"a".into(), &learned, &assumed);
        compare_plans(&of(before), &of(after))
    }

    const ALWAYS: &str = r#","vxlanMode":"Always""#;
    const CROSS: &str = r#","vxlanMode":"CrossSubnet""#;

    /// On IPv6 the VTEPs have routes of their own, which are nobody's loss.
    #[test]
    fn vteps_neither_count_nor_strand() {
        let mut snapshot = Snapshot::default();
        let mut put = |kind: &str, name: &str, spec: &str, revision| {
            let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
            let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{spec}}}}}"#);
            snapshot.apply(&path, Some(value.as_bytes()), revision);
            snapshot.clone()
        };
        for n in [1, 2] {
            let spec = format!(
                r#""ipv6VXLANTunnelAddr":"fd00:244::{n}:1","bgp":{{"ipv6Address":"fd00:a::{n}/64"}}"#
            );
            put("nodes", &format!("n{n}"), &spec, 1);
        }
        let mut block = Block::new("fd00:244::2:0/122".parse().unwrap(), None, 1);
        block.affinity = Some("host:n2".to_owned());
        let pool = r#""cidr":"fd00:244::/64","vxlanMode":"#;
        let mut encapsulated = put("ippools", "p", &format!(r#"{pool}"Always""#), 1);
        let mut plain = put("ippools", "p", &format!(r#"{pool}"Never""#), 2);
        for snapshot in [&mut encapsulated, &mut plain] {
            let key = caracal_model::Key::Block(block.cidr).to_path();
            snapshot.apply(&key, Some(&block.to_json()), 3);
        }
        let assumed = Assumed {
            mtu: 1500,
            kernel: KernelSupport::default(),
        };
        let hop = "fd00:a::2".parse().unwrap();
        let learned = [(block.cidr, Learned::internal(hop))].into_iter().collect();
        let plan_of = |s: &Snapshot| forecast(s, &"n1".into(), &learned, &assumed);
        let (encapsulated, plain) = (plan_of(&encapsulated), plan_of(&plain));
        let change = compare_plans(&encapsulated, &plain);
        assert_eq!(change.stranded, Vec::<String>::new());
        let once = |from, to| BTreeMap::from([((Some(from), Some(to)), 1)]);
        assert_eq!(change.routes, once(RouteKind::Vxlan, RouteKind::Direct));
        assert_eq!(change.workload_mtu, (1430, 1500));
        let back = compare_plans(&plain, &encapsulated);
        assert_eq!(back.routes, once(RouteKind::Direct, RouteKind::Vxlan));
    }

    #[test]
    fn devices_routes_and_mtu_are_told() {
        let change = change(
            CROSS,
            r#","ipipMode":"Always""#,
            &KernelSupport::default(),
            true,
        );
        assert_eq!(change.devices_come, [("tunl0".to_owned(), 1480)]);
        assert_eq!(change.devices_go, ["vxlan.calico"]);
        let (direct, vxlan, ipip) = (RouteKind::Direct, RouteKind::Vxlan, RouteKind::Ipip);
        let expected = [
            ((Some(vxlan), Some(ipip)), 1),
            ((Some(direct), Some(ipip)), 1),
        ];
        assert_eq!(change.routes, expected.into());
        assert_eq!(change.workload_mtu, (1450, 1480));
        assert_eq!(change.stranded, Vec::<String>::new());
    }

    #[test]
    fn what_would_strand_a_node_has_a_reason() {
        let able = KernelSupport::default();
        let unable = KernelSupport {
            vxlan: Err("Operation not supported".to_owned()),
            ..KernelSupport::default()
        };
        for (before, after, kernel, bgp, reason) in [
            (ALWAYS, "", &able, true, "neither on a link of this node"),
            (
                ALWAYS,
                "",
                &able,
                false,
                "no route is left to 10.244.1.0/26, 10.244.2.0/26",
            ),
            ("", ALWAYS, &unable, true, "this kernel has no vxlan module"),
        ] {
            let change = change(before, after, kernel, bgp);
            assert!(
                change.stranded.iter().any(|s| s.contains(reason)),
                "{reason}: {:?}",
                change.stranded
            );
        }
        assert_eq!(
            change(CROSS, ALWAYS, &able, true).stranded,
            Vec::<String>::new()
        );
        assert_eq!(
            change(CROSS, CROSS, &able, true),
            PlanChange {
                workload_mtu: (1450, 1450),
                ..PlanChange::default()
            }
        );
    }
}
