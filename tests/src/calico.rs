//! A node as Calico leaves it: the same pods, devices and data in etcd, but routes by BIRD and
//! Felix instead of ours.

use caracal_lab::{Lab, Route, RouteKind, error_chain};

use caracal_model::Family;

use crate::SECOND;
use crate::datastore::{is_kubernetes, kubectl};
use crate::loss::routes_by_kind;
use crate::scenario::ip;

/// Kernel protocol of our routes, as `ip` prints it.
const OURS: &str = "80";

/// Makes the routes of a node Calico's, after its process was stopped: BIRD's blackholes and ways
/// to other nodes (over IPIP as well), Felix's ways through VXLAN and to workloads.
///
/// # Panics
/// When a route of ours is left.
pub fn hand_routes_to_calico(lab: &Lab, node: &str) {
    let lines: Vec<String> = routes_by_kind(lab, node)
        .iter()
        .filter(|(_, route)| route.protocol.as_deref() == Some(OURS))
        .flat_map(|(kind, route)| calicos(*kind, route))
        .collect();
    // In one batch `ip` takes a protocol by name for the number that it read last.
    let (deletes, puts): (Vec<String>, Vec<String>) = lines
        .into_iter()
        .partition(|line| line.starts_with("route del"));
    ip(lab, node, &puts);
    ip(lab, node, &deletes);
    let left = routes_with_protocol(lab, node, OURS);
    assert_eq!(
        left,
        Vec::<String>::new(),
        "{node}: routes of ours are left: {:#?}",
        lab.routes(node)
    );
}

/// Commands that give a route to Calico, without a moment in which it is missing.
fn calicos(kind: RouteKind, route: &Route) -> Vec<String> {
    let (dst, dev) = (&route.dst, route.dev.as_deref().unwrap_or_default());
    // Workload routes of IPv6: Calico's and ours have the same metric, so `replace` changes them in
    // place.
    let is_ipv6 = route.destination().map(|p| p.family()) == Some(Family::Ipv6);
    let via = route.gateway.map(|g| g.to_string()).unwrap_or_default();
    let metric = route.metric.unwrap_or(0);
    match kind {
        RouteKind::Blackhole => vec![
            format!("route add blackhole {dst} proto bird"),
            format!("route del blackhole {dst} proto {OURS} metric {metric}"),
        ],
        RouteKind::Direct => vec![format!(
            "route replace {dst} via {via} dev {dev} proto bird"
        )],
        RouteKind::Ipip => vec![format!(
            "route replace {dst} via {via} dev {dev} proto bird onlink"
        )],
        // A VTEP on the link of its tunnel.
        RouteKind::Vxlan if route.gateway.is_none() => {
            vec![format!("route replace {dst} dev {dev} proto boot")]
        }
        RouteKind::Vxlan => vec![format!(
            "route replace {dst} via {via} dev {dev} proto boot onlink"
        )],
        RouteKind::Local if is_ipv6 => vec![format!("route replace {dst} dev {dev} proto boot")],
        RouteKind::Local => vec![
            format!("route add {dst} dev {dev} proto boot scope link"),
            format!("route del {dst} dev {dev} proto {OURS} metric {metric}"),
        ],
        RouteKind::Underlay | RouteKind::Udp => Vec::new(),
    }
}

/// Destinations of a node's routes that have a protocol, sorted.
///
/// # Panics
/// When `ip` fails.
#[must_use]
pub fn routes_with_protocol(lab: &Lab, node: &str, protocol: &str) -> Vec<String> {
    let routes = lab
        .routes(node)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let mut found: Vec<String> = routes
        .into_iter()
        .filter(|route| route.protocol.as_deref() == Some(protocol))
        .map(|route| route.dst)
        .collect();
    found.sort();
    found
}

/// Removes what Calico would not have from the datastore: liveness leases.
///
/// # Panics
/// When the datastore does not take it.
pub fn remove_liveness_leases(lab: &Lab) {
    if is_kubernetes(lab) {
        let delete = ["-n", "kube-system", "delete", "leases", "--all"];
        kubectl(lab, &delete, b"");
        return;
    }
    let _count = lab
        .etcdctl(&["del", "/caracal/", "--prefix"], b"")
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
}

/// The kernel's index of a device, which changes when it is made anew.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn device_index(lab: &Lab, node: &str, device: &str) -> String {
    let mut command = caracal_lab::program_command("ip").expect("ip is installed");
    command.args(["-o", "link", "show", "dev", device]);
    let netns = lab.netns(node).expect("a node of the lab");
    let line = caracal_lab::call_program(Some(&netns), &mut command, b"", SECOND * 30)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    line.split(':').next().unwrap_or_default().to_owned()
}
