//! The parts of our table that an entry makes: elements of sets and maps, and chains where clients
//! keep their endpoints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use caracal_model::{Family, Prefix};

use super::address::{ServiceAddress, ServiceTarget};
use super::entry::ServiceEntry;
use super::layout::{INTERVALS, SPARED, digit, word};
use crate::nft::{ElementData, Fields, SetElement};
use crate::transport::Transport;

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) set: String,
    pub(super) key: String,
    /// `None` in sets.
    pub(super) data: Option<String>,
}

impl Element {
    /// As the kernel has it. `None` in sets of intervals.
    pub(super) fn as_data(&self) -> Option<SetElement> {
        if INTERVALS.iter().any(|set| self.set.starts_with(set)) {
            return None;
        }
        let data = match self.data.as_deref() {
            None => None,
            Some("drop") => Some(ElementData::Drop),
            Some(data) => Some(match data.strip_prefix("goto ") {
                Some(chain) => ElementData::Goto(chain.to_owned()),
                None => ElementData::Value(fields(data)?),
            }),
        };
        let key = fields(&self.key)?;
        Some(SetElement { key, data })
    }
}

/// The fields of a key or value: addresses, a protocol, a port, and an index, in this order.
fn fields(text: &str) -> Option<Fields> {
    let (mut fields, mut has_port) = (Fields::default(), false);
    for field in text.split(" . ") {
        fields = if let Ok(address) = field.parse::<IpAddr>() {
            fields.address(address)
        } else if let Some(protocol) = Transport::from_word(field) {
            fields.protocol(protocol.number())
        } else if has_port {
            fields.number(field.parse().ok()?)
        } else {
            has_port = true;
            fields.port(field.parse().ok()?)
        };
    }
    Some(fields)
}

/// A part of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The chain that picks one of so many endpoints, of all Services that have as many.
    Pick(Endpoints, usize),
    /// The chains and maps of a service port whose clients keep their endpoints.
    Keeping(Keeping),
    /// Elements of [`Part::is_shared`] sets belong to several entries.
    Element(Element),
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
    /// The map of the endpoints by index, without the family's digit.
    const fn map(self) -> &'static str {
        match self {
            Self::Cluster => "endpoints",
            Self::Here => "here",
        }
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
pub(super) fn pick_of(name: &str) -> Option<Part> {
    let (map, count) = name.strip_prefix("pick-")?.split_once('-')?;
    let all = [Endpoints::Cluster, Endpoints::Here];
    let endpoints = all.into_iter().find(|endpoints| endpoints.map() == map)?;
    Some(Part::Pick(endpoints, count.parse().ok()?))
}

/// The rules of such a chain. An index whose endpoint has gone between two lookups is replaced by
/// the first one.
pub(super) fn pick_rules(endpoints: Endpoints, count: usize) -> Vec<String> {
    let map = endpoints.map();
    let rule = |family, protocol: Transport, count: usize| {
        let (n, ip, protocol) = (digit(family), word(family), protocol.as_str());
        let key = format!("{ip} daddr . meta l4proto . {protocol} dport");
        format!("dnat {ip} to {key} . numgen random mod {count} map @{map}{n}-{protocol}")
    };
    let mut rules = Vec::new();
    for count in [count, 1].into_iter().take(count.min(2)) {
        for family in [Family::Ipv4, Family::Ipv6] {
            rules.extend(Transport::ALL.map(|protocol| rule(family, protocol, count)));
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
        let (ip, seconds) = (word(self.family), self.seconds);
        let protocol = self.protocol.as_str();
        let known = format!("meta l4proto {protocol} dnat {ip} to {ip} saddr map @{clients}");
        let update = format!("update @{clients} {{ {ip} saddr timeout {seconds}s : {ip} daddr");
        match (self.family, self.port) {
            (Family::Ipv4, _) => Some([known, format!("{update} . th dport }}")]),
            (Family::Ipv6, Some(port)) => Some([format!("{known} : {port}"), update + " }"]),
            (Family::Ipv6, None) => None,
        }
    }

    /// Chains with their rules, in an order in which they can be made.
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

/// True for the name of a chain of [`Keeping::chains`].
pub(super) fn is_of_clients(name: &str) -> bool {
    ["affine", "keep"].iter().any(|of| name.starts_with(of)) && name.contains('/')
}

/// Sets whose elements belong to several entries.
pub(super) fn is_shared(part: &Part) -> bool {
    match part {
        Part::Pick(..) => false,
        Part::Keeping(_) => true,
        Part::Element(element) => ["cluster-ips", "hairpin"]
            .iter()
            .any(|set| element.set.starts_with(set)),
    }
}

/// A prefix as nftables prints it in a set.
fn range(prefix: &Prefix) -> String {
    match prefix.is_host() {
        true => prefix.address().to_string(),
        false => prefix.to_string(),
    }
}

/// Elements for ranges of addresses.
pub(super) fn ranges<'a>(
    set: &'static str,
    prefixes: impl IntoIterator<Item = &'a Prefix>,
) -> impl Iterator<Item = Part> {
    prefixes.into_iter().map(move |prefix| {
        Part::Element(Element {
            set: format!("{set}{}", digit(prefix.family())),
            key: range(prefix),
            data: None,
        })
    })
}

/// Elements for TCP endpoints that are left alone.
pub(super) fn spared(endpoints: &BTreeSet<SocketAddr>) -> impl Iterator<Item = Part> {
    endpoints.iter().map(|at| {
        let address = ServiceAddress {
            address: at.ip(),
            protocol: Transport::Tcp,
            port: at.port(),
        };
        Part::Element(Element {
            set: format!("{SPARED}{}", digit(address.family())),
            key: address.to_string(),
            data: None,
        })
    })
}

/// Elements for ports.
pub(super) fn ports<'a>(
    set: &'static str,
    ports: impl IntoIterator<Item = &'a (Transport, u16)>,
) -> impl Iterator<Item = Part> {
    ports.into_iter().map(move |(protocol, port)| {
        Part::Element(Element {
            set: set.to_owned(),
            key: format!("{} . {port}", protocol.as_str()),
            data: None,
        })
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

struct Parts<'a> {
    address: &'a ServiceAddress,
    entry: &'a ServiceEntry,
    made: BTreeSet<Part>,
}

impl Parts<'_> {
    fn make(&mut self) {
        let (address, entry) = (self.address, self.entry);
        let own = address.address.to_string();
        if !entry.is_external() {
            self.element("cluster-ips", own, None);
        }
        for own in entry.own.union(&entry.unplaced) {
            self.element("hairpin", format!("{own} . {own}"), None);
        }
        if let Some(sources) = &entry.sources {
            self.element("limited", address.to_string(), None);
            for source in sources {
                self.element("senders", format!("{address} . {}", range(source)), None);
            }
        }
        self.element("hits", address.to_string(), None);
        let (cluster, here) = (entry.cluster.len(), entry.here.len());
        match (entry.is_external(), entry.local) {
            (_, _) if cluster == 0 && here == 0 => self.verdict("refused", "goto refusal"),
            (_, false) => {
                self.endpoints(Endpoints::Cluster);
                self.lead("services", Endpoints::Cluster);
                self.remember_client("keep", Endpoints::Cluster.suffix());
                if entry.is_external() {
                    self.element("masqueraded", address.to_string(), None);
                }
            }
            (false, true) if here == 0 => self.verdict("refused", "drop"),
            (false, true) => {
                self.endpoints(Endpoints::Here);
                self.lead("services", Endpoints::Here);
                self.remember_client("keep", Endpoints::Here.suffix());
            }
            (true, true) => {
                self.verdict("services", "goto by-sender");
                self.element("from-node", address.to_string(), None);
                self.endpoints(Endpoints::Cluster);
                self.lead("inside", Endpoints::Cluster);
                if here > 0 {
                    self.endpoints(Endpoints::Here);
                    self.lead("outside", Endpoints::Here);
                } else {
                    self.verdict("refused", "drop");
                }
                self.remember_client("keep", "any");
            }
        }
    }

    fn element(&mut self, set: &str, key: String, data: Option<String>) {
        let set = format!("{set}{}", digit(self.address.family()));
        self.made.insert(Part::Element(Element { set, key, data }));
    }

    fn verdict(&mut self, map: &str, verdict: &str) {
        self.element(map, self.address.to_string(), Some(verdict.to_owned()));
    }

    fn targets(&self, endpoints: Endpoints) -> &[ServiceTarget] {
        match endpoints {
            Endpoints::Cluster => &self.entry.cluster,
            Endpoints::Here => &self.entry.here,
        }
    }

    /// Endpoints by index.
    fn endpoints(&mut self, endpoints: Endpoints) {
        let elements: Vec<(String, String)> = (0..)
            .zip(self.targets(endpoints))
            .map(|(index, target): (u32, _)| {
                (format!("{} . {index}", self.address), target.to_string())
            })
            .collect();
        let n = digit(self.address.family());
        let protocol = self.address.protocol.as_str();
        for (key, target) in elements {
            self.made.insert(Part::Element(Element {
                set: format!("{}{n}-{protocol}", endpoints.map()),
                key,
                data: Some(target),
            }));
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
                self.made.insert(Part::Element(Element {
                    set: format!("{PICKS}{n}{suffix}/{}", affinity.of),
                    key: self.address.to_string(),
                    data: Some(format!("goto {}", pick_chain(endpoints, count))),
                }));
                format!("affine{n}{suffix}/{}", affinity.of)
            }
        };
        self.verdict(map, &format!("goto {chain}"));
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
        self.verdict(map, &format!("goto keep{n}{suffix}/{}", affinity.of));
        self.made.insert(Part::Keeping(Keeping {
            of: affinity.of.clone(),
            family: self.address.family(),
            protocol: self.address.protocol,
            seconds: affinity.seconds,
            port: self.one_port(),
        }));
    }
}
