//! The parts of our table that an entry makes: elements of sets and maps, and chains where clients
//! keep their endpoints.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::address::{ServiceAddress, ServiceTarget};
use super::entry::ServiceEntry;
use super::layout::{SPARED, digit, word};
use crate::nft::{Element, ElementData, Field, Fields, PickRule, SetName};
use crate::transport::Transport;

/// A part of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The chain that picks one of so many endpoints, of all Services that have as many.
    Pick(Endpoints, usize),
    /// The chains and maps of a service port whose clients keep their endpoints.
    Keeping(Keeping),
    /// Elements of [`is_shared`] sets belong to several entries.
    Element(SetName, Element),
}

/// Which endpoints of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Endpoints {
    /// All.
    Cluster,
    /// Those on this node.
    Here,
}

impl Endpoints {
    /// Start of the names of maps of the endpoints by index.
    const fn map(self) -> &'static str {
        match self {
            Self::Cluster => "endpoints",
            Self::Here => "here",
        }
    }

    /// The map of the endpoints of this family and protocol by index.
    fn map_of(self, family: Family, protocol: Transport) -> SetName {
        format!("{}{}-{}", self.map(), digit(family), protocol.as_str()).into()
    }

    /// Behind the family's digit in names of chains and maps of a service port.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Cluster => "",
            Self::Here => "here",
        }
    }
}

/// Name of the chain that picks one of `count` endpoints.
pub(super) fn pick_chain(endpoints: Endpoints, count: usize) -> String {
    format!("pick-{}-{count}", endpoints.map())
}

/// The chain of such a name.
pub(super) fn pick_of(name: &str) -> Option<(Endpoints, usize)> {
    let (map, count) = name.strip_prefix("pick-")?.split_once('-')?;
    let all = [Endpoints::Cluster, Endpoints::Here];
    let endpoints = all.into_iter().find(|endpoints| endpoints.map() == map)?;
    let count = count.parse().ok()?;
    (name == pick_chain(endpoints, count)).then_some((endpoints, count))
}

/// The rules of such a chain. An index whose endpoint has gone between two lookups is replaced by
/// the first one.
pub(super) fn pick_rules(endpoints: Endpoints, count: usize) -> Vec<PickRule> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let mut rules = Vec::new();
    for among in if count > 1 {
        vec![count, 1]
    } else {
        vec![count]
    } {
        for family in [Family::Ipv4, Family::Ipv6] {
            for protocol in Transport::ALL {
                rules.push(PickRule {
                    family,
                    protocol,
                    map: endpoints.map_of(family, protocol),
                    among,
                });
            }
        }
    }
    rules
}

/// A service port whose clients keep their endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Keeping {
    pub(super) of: String,
    pub(super) family: Family,
    pub(super) protocol: Transport,
    pub(super) seconds: u32,
    /// The port of the endpoints. `None` = not all have the same.
    pub(super) port: Option<u16>,
}

/// Start of the names of maps from clients to their endpoints.
pub(super) const CLIENTS: &str = "clients";
/// Start of the names of maps from addresses to the chains that pick an endpoint for a new client:
/// when an endpoint comes or goes, chains stay as they are.
const PICKS: &str = "picks";

impl Keeping {
    fn name(&self, what: &str, endpoints: Endpoints) -> String {
        let suffix = endpoints.suffix();
        format!("{what}{}{suffix}/{}", digit(self.family), self.of)
    }

    /// Maps from clients to endpoints.
    pub(super) fn maps(&self) -> [String; 2] {
        [Endpoints::Cluster, Endpoints::Here].map(|e| self.name(CLIENTS, e))
    }

    /// Maps to the chains that pick, with their declaration.
    pub(super) fn picks(&self) -> [(String, String); 2] {
        let n = digit(self.family);
        let types = format!("type ipv{n}_addr . inet_proto . inet_service : verdict;");
        [Endpoints::Cluster, Endpoints::Here].map(|e| (self.name(PICKS, e), types.clone()))
    }

    /// The declaration of a map from clients. nft 1.0.6 cannot write a rule that puts an IPv6
    /// address together with a port into a map, so that of IPv6 has addresses alone.
    pub(super) fn declared(&self) -> &'static str {
        match self.family {
            Family::Ipv4 => "type ipv4_addr : ipv4_addr . inet_service",
            Family::Ipv6 => "type ipv6_addr : ipv6_addr",
        }
    }

    /// Rules that lead a known client to its endpoint, and that remember one. Empty where the
    /// endpoint cannot be said.
    fn memory(&self, clients: &str) -> Option<[String; 2]> {
        let (ip, time) = (word(self.family), duration(self.seconds));
        let protocol = self.protocol.as_str();
        let known = format!("meta l4proto {protocol} dnat {ip} to {ip} saddr map @{clients}");
        let update = format!("update @{clients} {{ {ip} saddr timeout {time} : {ip} daddr");
        match (self.family, self.port) {
            (Family::Ipv4, _) => Some([known, format!("{update} . th dport }}")]),
            (Family::Ipv6, Some(port)) => Some([format!("{known} : {port}"), update + " }"]),
            (Family::Ipv6, None) => None,
        }
    }

    /// Chains with their rules, in an order in which they can be made. The rules stand as nftables
    /// 1.0.6 prints them, but for space around colons.
    pub(super) fn chains(&self) -> Vec<(String, Vec<String>)> {
        let (n, ip) = (digit(self.family), word(self.family));
        let mut chains = Vec::new();
        for endpoints in [Endpoints::Cluster, Endpoints::Here] {
            let clients = self.name(CLIENTS, endpoints);
            let picks = self.name(PICKS, endpoints);
            let pick = format!("{ip} daddr . meta l4proto . th dport vmap @{picks}");
            let memory = self.memory(&clients);
            let (known, keep) = memory.map(|[known, keep]| (known, keep)).unzip();
            let known = known.into_iter().chain([pick]).collect();
            chains.push((self.name("affine", endpoints), known));
            chains.push((self.name("keep", endpoints), keep.into_iter().collect()));
        }
        let [inside, outside] = [Endpoints::Cluster, Endpoints::Here].map(|e| self.name("keep", e));
        let sorted = vec![
            format!("{ip} saddr @pods{n} goto {inside}"),
            format!("fib saddr type local goto {inside}"),
            format!("goto {outside}"),
        ];
        chains.push((self.sorting(), sorted));
        chains
    }

    /// Chain that tells clients inside the cluster from those outside.
    fn sorting(&self) -> String {
        format!("keep{}any/{}", digit(self.family), self.of)
    }
}

/// The service port whose clients keep their endpoints, where the part is that.
pub(super) const fn keeping(part: &Part) -> Option<&Keeping> {
    match part {
        Part::Keeping(keeping) => Some(keeping),
        _ => None,
    }
}

/// A time as nftables prints it: `1d1h1m1s`, without units of which there is none.
fn duration(seconds: u32) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let units = [
        (hours / 24, "d"),
        (hours % 24, "h"),
        (minutes % 60, "m"),
        (seconds % 60, "s"),
    ];
    let units = units.iter().filter(|(number, _)| *number > 0);
    units
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect()
}

/// True for the name of a map of clients, or of one that leads them to chains.
pub(super) fn is_map_of_clients(name: &str) -> bool {
    [CLIENTS, PICKS].iter().any(|of| name.starts_with(of)) && name.contains('/')
}

/// True for the name of a chain of [`Keeping::chains`].
pub(super) fn is_of_clients(name: &str) -> bool {
    ["affine", "keep"].iter().any(|of| name.starts_with(of)) && name.contains('/')
}

/// Sets whose elements belong to several entries.
pub(super) fn is_shared(part: &Part) -> bool {
    match part {
        Part::Pick(..) => false,
        Part::Keeping(_) => true,
        Part::Element(set, _) => ["cluster-ips", "hairpin"]
            .iter()
            .any(|of| set.starts_with(of)),
    }
}

/// An element of a set of a family.
fn element_of(set: &str, family: Family, key: impl Into<Fields>) -> Part {
    let set = format!("{set}{}", digit(family));
    Part::Element(set.into(), key.into().into())
}

/// Elements for ranges of addresses.
pub(super) fn ranges<'a>(
    set: &'static str,
    prefixes: impl IntoIterator<Item = &'a Prefix>,
) -> impl Iterator<Item = Part> {
    let prefixes = prefixes.into_iter();
    prefixes.map(move |prefix| element_of(set, prefix.family(), [prefix.into()]))
}

/// Elements for TCP endpoints that are left alone.
pub(super) fn spared(endpoints: &BTreeSet<SocketAddr>) -> impl Iterator<Item = Part> {
    endpoints.iter().map(|at| {
        let address = ServiceAddress {
            address: at.ip(),
            protocol: Transport::Tcp,
            port: at.port(),
        };
        element_of(SPARED, address.family(), address.fields())
    })
}

/// Elements for ports.
pub(super) fn ports<'a>(
    set: &'static str,
    ports: impl IntoIterator<Item = &'a (Transport, u16)>,
) -> impl Iterator<Item = Part> {
    ports.into_iter().map(move |(protocol, port)| {
        let key = Fields::from([Field::Protocol(*protocol), Field::Port(*port)]);
        Part::Element(set.into(), key.into())
    })
}

/// The parts of an entry.
pub(super) fn parts(address: &ServiceAddress, entry: &ServiceEntry) -> BTreeSet<Part> {
    let mut parts = Parts {
        address,
        entry,
        made: BTreeSet::new(),
    };
    parts.make();
    parts.made
}

fn goto(chain: impl Into<Box<str>>) -> ElementData {
    ElementData::Goto(chain.into())
}

struct Parts<'a> {
    address: &'a ServiceAddress,
    entry: &'a ServiceEntry,
    made: BTreeSet<Part>,
}

impl<'a> Parts<'a> {
    fn make(&mut self) {
        let (address, entry) = (self.address, self.entry);
        let [host, protocol, port] = address.fields();
        if !entry.is_external() {
            self.element("cluster-ips", [host]);
        }
        for own in entry.own.union(&entry.unplaced) {
            self.element("hairpin", [Field::Address(*own); 2]);
        }
        if let Some(sources) = &entry.sources {
            self.element("limited", address.fields());
            for source in sources {
                self.element("senders", [host, protocol, port, source.into()]);
            }
        }
        self.element("hits", address.fields());
        let (cluster, here) = (entry.cluster.len(), entry.here.len());
        match (entry.is_external(), entry.local) {
            (_, _) if cluster == 0 && here == 0 => self.verdict("refused", goto("refusal")),
            (_, false) => {
                self.endpoints(Endpoints::Cluster);
                self.lead("services", Endpoints::Cluster);
                self.remember_client("keep", Endpoints::Cluster.suffix());
                if entry.is_external() {
                    self.element("masqueraded", address.fields());
                }
            }
            (false, true) if here == 0 => self.verdict("refused", ElementData::Drop),
            (false, true) => {
                self.endpoints(Endpoints::Here);
                self.lead("services", Endpoints::Here);
                self.remember_client("keep", Endpoints::Here.suffix());
            }
            (true, true) => {
                self.verdict("services", goto("by-sender"));
                self.element("from-node", address.fields());
                self.endpoints(Endpoints::Cluster);
                self.lead("inside", Endpoints::Cluster);
                if here > 0 {
                    self.endpoints(Endpoints::Here);
                    self.lead("outside", Endpoints::Here);
                } else {
                    self.verdict("refused", ElementData::Drop);
                }
                self.remember_client("keep", "any");
            }
        }
    }

    fn element(&mut self, set: &str, key: impl Into<Fields>) {
        let family = self.address.family();
        self.made.insert(element_of(set, family, key));
    }

    fn verdict(&mut self, map: &str, verdict: ElementData) {
        let map = format!("{map}{}", digit(self.address.family()));
        self.lead_to(map, verdict);
    }

    fn lead_to(&mut self, map: String, verdict: ElementData) {
        let element = Element::leading(self.address.fields().into(), verdict);
        self.made.insert(Part::Element(map.into(), element));
    }

    fn targets(&self, endpoints: Endpoints) -> &'a [ServiceTarget] {
        match endpoints {
            Endpoints::Cluster => &self.entry.cluster,
            Endpoints::Here => &self.entry.here,
        }
    }

    /// Endpoints by index.
    fn endpoints(&mut self, endpoints: Endpoints) {
        let set = endpoints.map_of(self.address.family(), self.address.protocol);
        let [address, protocol, port] = self.address.fields();
        for (index, target) in (0..).zip(self.targets(endpoints)) {
            let key = [address, protocol, port, Field::Index(index)];
            let to = ElementData::Value(target.address, target.port);
            let element = Element::leading(key.into(), to);
            self.made.insert(Part::Element(Arc::clone(&set), element));
        }
    }

    /// Leads to one of the endpoints.
    fn lead(&mut self, map: &str, endpoints: Endpoints) {
        let count = self.targets(endpoints).len();
        self.made.insert(Part::Pick(endpoints, count));
        let chain = match &self.entry.affinity {
            None => pick_chain(endpoints, count),
            Some(affinity) => {
                let (n, suffix) = (digit(self.address.family()), endpoints.suffix());
                let picks = format!("{PICKS}{n}{suffix}/{}", affinity.of);
                self.lead_to(picks, goto(pick_chain(endpoints, count)));
                format!("affine{n}{suffix}/{}", affinity.of)
            }
        };
        self.verdict(map, goto(chain));
    }

    /// The port of all endpoints, when it is one.
    fn one_port(&self) -> Option<u16> {
        let mut ports = self
            .entry
            .cluster
            .iter()
            .chain(&self.entry.here)
            .map(|t| t.port);
        let first = ports.next()?;
        ports.all(|port| port == first).then_some(first)
    }

    /// Remembers the endpoint of a client.
    fn remember_client(&mut self, map: &str, suffix: &str) {
        let Some(affinity) = &self.entry.affinity else {
            return;
        };
        let n = digit(self.address.family());
        self.verdict(map, goto(format!("keep{n}{suffix}/{}", affinity.of)));
        self.made.insert(Part::Keeping(Keeping {
            of: affinity.of.clone(),
            family: self.address.family(),
            protocol: self.address.protocol,
            seconds: affinity.seconds,
            port: self.one_port(),
        }));
    }
}
