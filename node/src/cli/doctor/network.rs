//! Between this node and the others: TCP 179, the path's MTU, and the tunnels end to end.
//!
//! A tunnel is tested with an echo to the other node's tunnel address, which comes back only when UDP 4789 or protocol 4
//! passes. Only a running node on both ends has tunnels.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use caracal_agent::dataplane::echo::{Echo, EchoError};
use caracal_agent::desired::{IPIP_DEVICE, vxlan_device};
use caracal_agent::links::Links;
use caracal_agent::paths::{Search, Step, Verdict as Found};
use caracal_model::Snapshot;
use caracal_model::names::NodeName;
use caracal_model::net::Family;
use caracal_model::resource::{EncapMode, Node};

use super::{Finding, Verdict};

/// Nodes that are probed; a large cluster is not to hear from everybody at once.
const MOST: usize = 20;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Probes the other nodes, side by side.
pub(super) fn look(findings: &mut Vec<Finding>, snapshot: &Snapshot, me: &NodeName, links: &Links) {
    let others = snapshot.nodes.iter().filter(|(name, _)| *name != me);
    let others: Vec<(&NodeName, &Node)> = others.map(|(name, node)| (name, &**node)).collect();
    let (probed, rest) = others.split_at(others.len().min(MOST));
    let here = Here::of(snapshot, me, links);
    let mut found: BTreeMap<&NodeName, Vec<Finding>> = BTreeMap::new();
    std::thread::scope(|scope| {
        let start = |(name, node): &(&'_ NodeName, &'_ Node)| {
            let (name, node, here) = (name.to_string(), (*node).clone(), &here);
            scope.spawn(move || probe(here, &name, &node))
        };
        let running: Vec<_> = probed.iter().map(|pair| (pair.0, start(pair))).collect();
        for (name, thread) in running {
            // A probe that panicked is a bug that its message has told already.
            found.insert(name, thread.join().unwrap_or_default());
        }
    });
    findings.extend(found.into_values().flatten());
    if !rest.is_empty() {
        let seen = format!("{} more nodes were not probed", rest.len());
        findings.push(Finding::new(
            "nodes",
            "other nodes",
            Verdict::Skip,
            seen,
            "",
        ));
    }
}

/// What probes need to know of this node.
struct Here {
    /// MTU of the interface with the node's address.
    mtu: BTreeMap<Family, u32>,
    vxlan: bool,
    ipip: bool,
    /// `Always` somewhere: a tunnel carries packets between nodes of one subnet as well.
    vxlan_always: bool,
    ipip_always: bool,
    own: Option<caracal_model::net::Cidr>,
    port: u16,
}

impl Here {
    fn of(snapshot: &Snapshot, me: &NodeName, links: &Links) -> Self {
        let own = snapshot
            .nodes
            .get(me)
            .and_then(|n| n.spec.cidr(Family::Ipv4));
        let address = |family| Some((family, snapshot.nodes.get(me)?.spec.address(family)?));
        let families = [Family::Ipv4, Family::Ipv6].into_iter().filter_map(address);
        let mtu = families.filter_map(|(f, address)| Some((f, links.holding(address)?.mtu)));
        let is_up = |name: &str| links.by_name(name).is_some_and(|link| link.up);
        let uses = |mode: &dyn Fn(&caracal_model::resource::ip_pool::IpPoolSpec) -> bool| {
            snapshot.pools.values().any(|pool| mode(&pool.spec))
        };
        let configured = snapshot.bgp_default().and_then(|bgp| bgp.spec.listen_port);
        Self {
            mtu: mtu.collect(),
            vxlan: is_up(vxlan_device(Family::Ipv4)) && uses(&|p| p.vxlan_mode != EncapMode::Never),
            ipip: is_up(IPIP_DEVICE) && uses(&|p| p.ipip_mode != EncapMode::Never),
            vxlan_always: uses(&|p| p.vxlan_mode == EncapMode::Always),
            ipip_always: uses(&|p| p.ipip_mode == EncapMode::Always),
            own,
            port: configured.unwrap_or(179),
        }
    }
}

fn probe(here: &Here, name: &str, node: &Node) -> Vec<Finding> {
    let addresses = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.address(family));
    let Some(address) = addresses.into_iter().flatten().next() else {
        let seen = "it has no address in the datastore";
        return vec![Finding::new(
            "nodes",
            name,
            Verdict::Fail,
            seen,
            "start its node process, or delete the Node",
        )];
    };
    let mut found = vec![bgp(here, name, address)];
    for address in addresses.into_iter().flatten() {
        let answers = path(here, name, address, &mut found);
        if let (IpAddr::V4(address), true) = (address, answers) {
            tunnels(here, name, node, address, &mut found);
        }
    }
    found
}

fn bgp(here: &Here, name: &str, address: IpAddr) -> Finding {
    const CHECK: &str = "tcp.bgp";
    let port = here.port;
    match TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE) {
        Ok(_) => Finding::ok(CHECK, name, format!("TCP {port} of {address} accepts")),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Finding::new(
            CHECK,
            name,
            Verdict::Fail,
            format!("TCP {port} refused by {address}"),
            format!(
                "nothing listens there, or a firewall rejects: start caracal on {name}, allow TCP {port} between nodes"
            ),
        ),
        Err(error) => Finding::new(
            CHECK,
            name,
            Verdict::Fail,
            format!("TCP {port} of {address}: {error}"),
            format!(
                "allow TCP {port} between nodes in firewalls and security groups; look whether {address} can be reached at all"
            ),
        ),
    }
}

/// Echoes as large as our interface can send; true when small ones come back at least.
fn path(here: &Here, name: &str, address: IpAddr, found: &mut Vec<Finding>) -> bool {
    const CHECK: &str = "mtu.path";
    if let Err(error) = Echo::to(address).send(PATIENCE) {
        let seen = format!("{address} does not answer to pings ({error})");
        let fix = match error {
            EchoError::Socket(_) => "needs root or the capability NET_RAW",
            EchoError::TooLarge | EchoError::Silence => {
                "allow ICMP echo between nodes; without it neither the MTU nor the tunnels can be tested"
            }
        };
        found.push(Finding::new(CHECK, name, Verdict::Skip, seen, fix));
        return false;
    }
    let Some(&mtu) = here.mtu.get(&Family::of(address)) else {
        return true;
    };
    found.push(match Echo::to(address).of_size(mtu).send(PATIENCE) {
        Ok(()) => Finding::ok(CHECK, name, format!("packets of {mtu} octets pass to {address}")),
        Err(error) => Finding::new(
            CHECK,
            name,
            Verdict::Fail,
            format!(
                "packets of {mtu} octets, which this node's interface sends, do not arrive at {address} ({error}){}",
                passes(address, mtu)
            ),
            "set the interface's MTU to what the path carries, on all nodes; until then a running node gives routes and new pods an MTU that fits",
        ),
    });
    true
}

/// The largest size that passes.
fn passes(address: IpAddr, too_large: u32) -> String {
    let small = Echo::to(address);
    let mut search = Search::new(small.size(), too_large, None);
    loop {
        match search.step() {
            Step::Probe(size) => {
                search.heard(small.of_size(size).send(PATIENCE / 4).is_ok());
            }
            Step::Done(Found::Mtu(mtu)) => return format!("; {mtu} octets do"),
            Step::Done(Found::Unknown) => return String::new(),
        }
    }
}

fn tunnels(here: &Here, name: &str, node: &Node, address: Ipv4Addr, found: &mut Vec<Finding>) {
    // Within a subnet a CrossSubnet pool does not use the tunnel, and the answer would prove nothing.
    let far = here
        .own
        .is_none_or(|own| !own.prefix().contains(address.into()));
    let vtep = node.spec.vxlan_address(Family::Ipv4);
    if let (true, Some(IpAddr::V4(vtep))) = (here.vxlan && (far || here.vxlan_always), vtep) {
        let echo = Echo::to(vtep.into());
        let fix = "allow UDP 4789 between nodes in firewalls and security groups";
        found.push(tunnel("udp.vxlan", name, &echo, vtep, fix));
    }
    if let (true, Some(tunnel_address)) = (
        here.ipip && (far || here.ipip_always),
        node.spec.ipip_address(),
    ) {
        let echo = Echo::to(tunnel_address.into());
        let fix = "allow IP protocol 4 between nodes; clouds that cannot (Azure) need VXLAN: caracal mode apply";
        found.push(tunnel("protocol.ipip", name, &echo, tunnel_address, fix));
    }
}

fn tunnel(check: &'static str, name: &str, echo: &Echo, address: Ipv4Addr, fix: &str) -> Finding {
    match echo.send(PATIENCE) {
        Ok(()) => Finding::ok(check, name, format!("{address} answers through the tunnel")),
        Err(error) => Finding::new(
            check,
            name,
            Verdict::Fail,
            format!("the node answers, but its tunnel address {address} does not ({error})"),
            format!("{fix}; and look whether caracal runs on {name}"),
        ),
    }
}
