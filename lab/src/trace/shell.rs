//! The kernels of a lab's namespaces, asked with `ip`, `bridge` and `nft`.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use caracal_model::Family;

use super::service::{ServicePort, Translation, ways};
use super::walk::walk;
use super::{Interface, Look, Lookup, Neighbour, Packet, TraceReport, parse};
use crate::lab::{Lab, UnknownTarget};
use crate::program::{self, ProgramError};
use crate::state::PodState;
use crate::{error_chain, netns};

/// Each question is answered at once.
const CALL: Duration = Duration::from_secs(30);
/// Octets of IP and ICMP headers in a ping.
const PING_V4: u32 = 28;
const PING_V6: u32 = 48;
/// A service accepts a connection within this time.
const CONNECTION: Duration = Duration::from_secs(5);

/// Why a trace cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is no such pod.
    #[error(transparent)]
    Target(#[from] UnknownTarget),
    /// Something else than a pod.
    #[error("{target} is no pod, and no service's ADDRESS:PORT[/PROTOCOL]; the pods are: {known}")]
    NoPod {
        /// Name that was asked for.
        target: String,
        /// Pods of the lab.
        known: String,
    },
    /// The pods have no address of the same family.
    #[error("{from} and {to} have no addresses of the same family")]
    NoFamily {
        /// Pod that sends.
        from: String,
        /// Pod that receives.
        to: String,
    },
    /// Pods of flannel's are on bridges, which the walk does not know.
    #[error(
        "caracal trace follows pods of caracal node, and not those of flannel on a bridge; compare caracal lab exec {node} -- ip route, ip neigh, bridge fdb"
    )]
    Flannel {
        /// A node of the lab.
        node: String,
    },
    /// The program that pings.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl Lab {
    /// Follows packets from a pod (`NODE/POD`) to another one, or to a service's
    /// `ADDRESS:PORT[/PROTOCOL]`, both ways.
    ///
    /// # Errors
    /// [`TraceError`]; a broken way is none.
    pub fn trace(&self, from: &str, to: &str) -> Result<TraceReport, TraceError> {
        let a = self.pod(from)?;
        if self.topology.flannel().is_some() {
            let node = a.node.clone();
            return Err(TraceError::Flannel { node });
        }
        let look = Shell::new(self);
        match to.parse() {
            Ok(service) => self.trace_service(&look, a, service),
            Err(()) => self.trace_pods(&look, a, self.pod(to)?),
        }
    }

    fn trace_service(
        &self,
        look: &Shell<'_>,
        from: &PodState,
        to: ServicePort,
    ) -> Result<TraceReport, TraceError> {
        let family = Family::of(to.at.ip());
        let label = from.label();
        let Some(own) = from.address_of(family) else {
            let to = to.to_string();
            return Err(TraceError::NoFamily { from: label, to });
        };
        let holder = |address: IpAddr| {
            let pods = &self.state().pods;
            let has = |pod: &&PodState| pod.address_of(Family::of(address)) == Some(address);
            let pod = pods.iter().find(has).map(PodState::label);
            let node = || {
                let mut nodes = self.layout().nodes.iter();
                nodes.find(|node| node.uplink.addresses().any(|(own, _)| own == address))
            };
            pod.or_else(|| node().map(|node| node.name.clone()))
        };
        let directions = ways(look, (&label, own), &from.node, to, holder);
        let connect = || TcpStream::connect_timeout(&to.at, CONNECTION);
        let connection = (to.protocol == "tcp").then(|| {
            let connected = netns::run(&from.netns, connect).map_err(|e| error_chain(&e))?;
            let refused = |e| format!("{} accepts no connection ({e})", to.at);
            connected.map_err(refused)?;
            Ok(format!("{} accepts one", to.at))
        });
        Ok(TraceReport {
            directions,
            ping: None,
            connection,
        })
    }

    fn trace_pods(
        &self,
        look: &Shell<'_>,
        a: &PodState,
        b: &PodState,
    ) -> Result<TraceReport, TraceError> {
        let (from, to) = (&*a.label(), &*b.label());
        let mut directions = Vec::new();
        let mut pings = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            let (Some(a), Some(b)) = (a.address_of(family), b.address_of(family)) else {
                continue;
            };
            directions.push(walk(look, (from, a), (to, b)));
            directions.push(walk(look, (to, b), (from, a)));
            let mtu = look
                .interfaces(from)
                .ok()
                .and_then(|all| all.into_iter().find(|i| i.addresses.contains(&a)))
                .map_or(1280, |interface| interface.mtu);
            pings.push(self.full_size_ping(from, b, mtu)?);
        }
        if directions.is_empty() {
            return Err(TraceError::NoFamily {
                from: from.to_owned(),
                to: to.to_owned(),
            });
        }
        let pings: Result<Vec<String>, String> = pings.into_iter().collect();
        Ok(TraceReport {
            directions,
            ping: Some(pings.map(|answers| answers.join("; "))),
            connection: None,
        })
    }

    fn pod(&self, target: &str) -> Result<&PodState, TraceError> {
        self.netns(target)?;
        let pods = &self.state().pods;
        let found = pods.iter().find(|pod| pod.label() == target);
        found.ok_or_else(|| TraceError::NoPod {
            target: target.to_owned(),
            known: pods
                .iter()
                .map(PodState::label)
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// A ping that just fits the sender's MTU and must not be fragmented.
    fn full_size_ping(
        &self,
        from: &str,
        to: IpAddr,
        mtu: u32,
    ) -> Result<Result<String, String>, TraceError> {
        let netns = self.netns(from)?;
        let headers = if to.is_ipv4() { PING_V4 } else { PING_V6 };
        let size = mtu.saturating_sub(headers);
        let mut command = program::command("ping").map_err(ProgramError::from)?;
        let size = size.to_string();
        command.args([
            "-n", "-c", "3", "-i", "0.2", "-W", "1", "-M", "do", "-s", &size,
        ]);
        command.arg(to.to_string());
        let output = program::output(Some(&netns), &mut command, b"", CALL)?;
        Ok(if output.status.success() {
            Ok(format!("{to} answers to packets of {mtu} octets"))
        } else {
            let mut lines = output.stderr.lines().chain(output.stdout.lines());
            let words = lines.rfind(|l| !l.trim().is_empty() && !l.starts_with("rtt"));
            Err(format!(
                "{to} does not answer to packets of {mtu} octets ({})",
                words.unwrap_or_default()
            ))
        })
    }
}

/// Connections by place and device.
type Cables = BTreeMap<(String, String), Vec<(String, String)>>;

struct Shell<'a> {
    lab: &'a Lab,
    cables: Cables,
}

impl<'a> Shell<'a> {
    fn new(lab: &'a Lab) -> Self {
        Self {
            lab,
            cables: cables(lab),
        }
    }

    fn run(
        &self,
        place: &str,
        program: &str,
        arguments: &[&str],
    ) -> Result<program::ProgramOutput, String> {
        let netns = self.lab.netns(place).map_err(|e| e.to_string())?;
        let mut command = program::command(program).map_err(|e| e.to_string())?;
        command.args(arguments);
        program::output(Some(&netns), &mut command, b"", CALL).map_err(|e| error_chain(&e))
    }

    /// The standard output of a program that has to succeed.
    fn ask(&self, place: &str, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = self.run(place, program, arguments)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(format!(
            "{program} {} says {:?}",
            arguments.join(" "),
            output.stderr.trim()
        ))
    }
}

fn unreadable(error: &serde_json::Error) -> String {
    format!("the answer cannot be read: {error}")
}

impl Look for Shell<'_> {
    fn interfaces(&self, place: &str) -> Result<Vec<Interface>, String> {
        let text = self.ask(place, "ip", &["-d", "-j", "address", "show"])?;
        parse::interfaces(&text).map_err(|e| unreadable(&e))
    }

    fn lookup(
        &self,
        place: &str,
        packet: &Packet,
        arrives: Option<&str>,
    ) -> Result<Lookup, String> {
        let destination = packet.destination.to_string();
        let source = packet.source.to_string();
        let mut arguments = vec!["-j", "route", "get", &destination];
        if let Some(arrives) = arrives {
            arguments.extend(["from", &source, "iif", arrives]);
        }
        let output = self.run(place, "ip", &arguments)?;
        parse::lookup(&output.stdout, &output.stderr)
    }

    fn neighbour(
        &self,
        place: &str,
        dev: &str,
        address: IpAddr,
    ) -> Result<Option<Neighbour>, String> {
        let text = self.ask(place, "ip", &["-j", "neighbour", "show", "dev", dev])?;
        parse::neighbour(&text, address).map_err(|e| unreadable(&e))
    }

    fn fdb(&self, place: &str, dev: &str, mac: &str) -> Result<Option<IpAddr>, String> {
        let text = self.ask(place, "bridge", &["-j", "fdb", "show", "dev", dev])?;
        parse::fdb(&text, mac).map_err(|e| unreadable(&e))
    }

    fn sysctl(&self, place: &str, key: &str) -> Option<String> {
        let netns = self.lab.netns(place).ok()?;
        let read = || std::fs::read_to_string(format!("/proc/sys/{key}"));
        let text = netns::run(&netns, read).ok()?.ok()?;
        Some(text.trim().to_owned())
    }

    fn masquerades(&self, place: &str, packet: &Packet) -> Result<bool, String> {
        // Without nftables or without our table nothing is masqueraded by us.
        let Ok(listing) = self.ask(place, "nft", &["list", "table", "inet", "caracal"]) else {
            return Ok(false);
        };
        let family = if packet.source.is_ipv4() { "ip" } else { "ip6" };
        Ok(parse::masquerades(
            &listing,
            family,
            packet.source,
            packet.destination,
        ))
    }

    fn translation(&self, place: &str, to: ServicePort) -> Result<Translation, String> {
        let listing = ["list", "table", "inet", "caracal-services"];
        let listing = self.ask(place, "nft", &listing).map_err(|why| {
            format!("no table translates services here (CARACAL_SERVICES=on): {why}")
        })?;
        Ok(Translation::read(&listing, to))
    }

    fn beside(&self, place: &str, dev: &str) -> Vec<(String, String)> {
        let key = (place.to_owned(), dev.to_owned());
        self.cables.get(&key).cloned().unwrap_or_default()
    }

    fn is_pod(&self, place: &str) -> bool {
        place.contains('/')
    }
}

fn cables(lab: &Lab) -> Cables {
    let mut segments: BTreeMap<&str, Vec<(String, String)>> = BTreeMap::new();
    for router in &lab.layout().routers {
        for leg in &router.legs {
            let end = (router.name.clone(), leg.device.clone());
            segments.entry(&leg.segment).or_default().push(end);
        }
    }
    for node in &lab.layout().nodes {
        let end = (node.name.clone(), node.uplink.device.clone());
        segments.entry(&node.uplink.segment).or_default().push(end);
    }
    let mut cables = Cables::new();
    for ends in segments.values() {
        for end in ends {
            let others = ends.iter().filter(|other| *other != end).cloned();
            cables.insert(end.clone(), others.collect());
        }
    }
    for pod in &lab.state().pods {
        if let Some(host) = &pod.host_interface {
            let node = (pod.node.clone(), host.clone());
            let pod = (pod.label(), crate::cni::INTERFACE.to_owned());
            cables.insert(node.clone(), vec![pod.clone()]);
            cables.insert(pod, vec![node]);
        }
    }
    cables
}
