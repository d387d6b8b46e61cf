//! Between this node and the others: TCP 179, the path's MTU, and the tunnels end to end.
//!
//! A tunnel is tested with an echo to the other node's tunnel address, which comes back only when
//! UDP 4789 or protocol 4 passes. Only a running node on both ends has tunnels.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use caracal_agent::{
    Echo, EchoError, IPIP_DEVICE, Links, MtuSearch, PathVerdict as Found, SearchStep, vxlan_device,
};
use caracal_model::{Cidr, DoctorCode, EncapMode, Family, InsertEach, Node, NodeName, Snapshot};

use super::{CheckVerdict, DoctorFinding};

/// Nodes that are probed; a large cluster is not to hear from everybody at once.
const MOST: usize = 20;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Probes the other nodes, side by side.
pub(super) fn check_network(
    findings: &mut Vec<DoctorFinding>,
    snapshot: &Snapshot,
    me: &NodeName,
    links: &Links,
) {
    let others = snapshot.nodes.iter().filter(|(name, _)| *name != me);
    let others: Vec<(&NodeName, &Node)> = others.map(|(name, node)| (name, &**node)).collect();
    let (probed, rest) = others.split_at(others.len().min(MOST));
    let here = Here::new(snapshot, me, links);
    let mut found: BTreeMap<&NodeName, Vec<DoctorFinding>> = BTreeMap::new();
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
        findings.push(DoctorFinding::new(
            DoctorCode::Nodes,
            "other nodes",
            CheckVerdict::Skip,
            seen,
            "",
        ));
    }
}

/// Facts about this node that the probes need.
struct Here {
    port: u16,
    families: BTreeMap<Family, FamilyFacts>,
}

/// The same facts of one address family.
struct FamilyFacts {
    own: Cidr,
    /// MTU of the interface with the node's address.
    mtu: Option<u32>,
    vxlan: Option<Uses>,
    ipip: Option<Uses>,
}

/// Between which nodes a tunnel that is up carries packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uses {
    /// Of different subnets: no pool wants it `Always`.
    Far,
    All,
}

impl Here {
    fn new(snapshot: &Snapshot, me: &NodeName, links: &Links) -> Self {
        let of_family = |family| {
            let own = snapshot.nodes.get(me)?.spec.cidr(family)?;
            let pools = || snapshot.pools.values();
            let pools = || pools().filter(|p| p.spec.prefix().family() == family);
            let ipip = family == Family::Ipv4;
            let facts = FamilyFacts {
                own,
                mtu: links.holding(own.address).map(|link| link.mtu),
                vxlan: uses(
                    links,
                    vxlan_device(family),
                    pools().map(|p| p.spec.vxlan_mode),
                ),
                ipip: uses(links, IPIP_DEVICE, pools().map(|p| p.spec.ipip_mode)).filter(|_| ipip),
            };
            Some((family, facts))
        };
        let configured = snapshot.bgp_default().and_then(|bgp| bgp.spec.listen_port);
        Self {
            port: configured.unwrap_or(179),
            families: [Family::Ipv4, Family::Ipv6]
                .into_iter()
                .filter_map(of_family)
                .insert_each(),
        }
    }
}

fn uses(links: &Links, device: &str, mut modes: impl Iterator<Item = EncapMode>) -> Option<Uses> {
    links.by_name(device).filter(|link| link.up)?;
    let strongest = modes.try_fold(None, |uses, mode| match mode {
        EncapMode::Always => Err(Uses::All),
        EncapMode::CrossSubnet => Ok(Some(Uses::Far)),
        EncapMode::Never => Ok(uses),
    });
    strongest.unwrap_or_else(Some)
}

fn probe(here: &Here, name: &str, node: &Node) -> Vec<DoctorFinding> {
    let addresses = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.address(family));
    if addresses.iter().all(Option::is_none) {
        let seen = "it has no address in the datastore";
        return vec![DoctorFinding::new(
            DoctorCode::Nodes,
            name,
            CheckVerdict::Fail,
            seen,
            "start its node process, or delete the Node",
        )];
    }
    let mut found = Vec::new();
    for address in addresses.into_iter().flatten() {
        found.push(bgp(here.port, name, address));
        let facts = here.families.get(&Family::of(address));
        let mtu = facts.and_then(|facts| facts.mtu);
        if let (true, Some(facts)) = (path(mtu, name, address, &mut found), facts) {
            tunnels(facts, name, node, address, &mut found);
        }
    }
    found
}

fn bgp(port: u16, name: &str, address: IpAddr) -> DoctorFinding {
    const CHECK: DoctorCode = DoctorCode::TcpBgp;
    match TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE) {
        Ok(_) => DoctorFinding::ok(CHECK, name, format!("TCP {port} of {address} accepts")),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => DoctorFinding::new(
            CHECK,
            name,
            CheckVerdict::Fail,
            format!("TCP {port} refused by {address}"),
            format!(
                "nothing listens there, or a firewall rejects: start caracal on {name}, allow TCP {port} between nodes"
            ),
        ),
        Err(error) => DoctorFinding::new(
            CHECK,
            name,
            CheckVerdict::Fail,
            format!("TCP {port} of {address}: {error}"),
            format!(
                "allow TCP {port} between nodes in firewalls and security groups; look whether {address} can be reached at all"
            ),
        ),
    }
}

/// Echoes as large as our interface can send; true when small ones come back at least.
fn path(mtu: Option<u32>, name: &str, address: IpAddr, found: &mut Vec<DoctorFinding>) -> bool {
    const CHECK: DoctorCode = DoctorCode::MtuPath;
    if let Err(error) = Echo::to(address).send(PATIENCE) {
        let seen = format!("{address} does not answer to pings ({error})");
        let fix = match error {
            EchoError::Socket(_) => "needs root or the capability NET_RAW",
            EchoError::TooLarge | EchoError::Silence => {
                "allow ICMP echo between nodes; without it neither the MTU nor the tunnels can be tested"
            }
        };
        found.push(DoctorFinding::new(
            CHECK,
            name,
            CheckVerdict::Skip,
            seen,
            fix,
        ));
        return false;
    }
    let Some(mtu) = mtu else {
        return true;
    };
    found.push(match Echo::to(address).of_size(mtu).send(PATIENCE) {
        Ok(()) => DoctorFinding::ok(CHECK, name, format!("packets of {mtu} octets pass to {address}")),
        Err(error) => DoctorFinding::new(
            CHECK,
            name,
            CheckVerdict::Fail,
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
    let mut search = MtuSearch::new(small.size(), too_large, None);
    loop {
        match search.step() {
            SearchStep::Probe(size) => {
                search.heard(small.of_size(size).send(PATIENCE / 4).is_ok());
            }
            SearchStep::Done(Found::Mtu(mtu)) => return format!("; {mtu} octets do"),
            SearchStep::Done(Found::Unknown) => return String::new(),
        }
    }
}

fn tunnels(
    facts: &FamilyFacts,
    name: &str,
    node: &Node,
    address: IpAddr,
    found: &mut Vec<DoctorFinding>,
) {
    // Within a subnet a CrossSubnet pool does not use the tunnel, and the answer would prove
    // nothing.
    let far = !facts.own.prefix().contains(address);
    let used = |uses: Option<Uses>| uses == Some(Uses::All) || (far && uses.is_some());
    let vtep = node.spec.vxlan_address(Family::of(address));
    if let Some(vtep) = vtep.filter(|_| used(facts.vxlan)) {
        let fix = "allow UDP 4789 between nodes in firewalls and security groups";
        found.push(tunnel(DoctorCode::UdpVxlan, name, vtep, fix));
    }
    let ipip = node.spec.ipip_address().filter(|_| used(facts.ipip));
    if let Some(tunnel_address) = ipip {
        let fix = "allow IP protocol 4 between nodes; clouds that cannot (Azure) need VXLAN: caracal mode apply";
        found.push(tunnel(
            DoctorCode::ProtocolIpip,
            name,
            tunnel_address.into(),
            fix,
        ));
    }
}

fn tunnel(check: DoctorCode, name: &str, address: IpAddr, fix: &str) -> DoctorFinding {
    match Echo::to(address).send(PATIENCE) {
        Ok(()) => DoctorFinding::ok(check, name, format!("{address} answers through the tunnel")),
        Err(error) => DoctorFinding::new(
            check,
            name,
            CheckVerdict::Fail,
            format!("the node answers, but its tunnel address {address} does not ({error})"),
            format!("{fix}; and look whether caracal runs on {name}"),
        ),
    }
}
