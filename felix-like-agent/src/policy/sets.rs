//! Sets of the table: addresses by selector, ports with names by selector and name, and ranges of
//! addresses. Each is named by what it is made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use caracal_model::{
    Family, PolicyData, PolicyEndpoint, PolicyProfile, Prefix, Selector, is_selected,
    namespace_of_selector, outermost,
};
use sha1::{Digest, Sha1};

use crate::nft::{Field, Fields, SetName, Sets};
use crate::transport::Transport;

/// Beginnings of the names of sets, and what is in them.
const ADDRESSES: char = 's';
const RANGES: char = 'c';
const TRIPLES: char = 'p';

/// `4` or `6`.
const fn digit(family: Family) -> char {
    match family {
        Family::Ipv4 => '4',
        Family::Ipv6 => '6',
    }
}

/// A name that says what something is made of. Whoever may write a policy chooses the text: no
/// other text that has the name can be found.
pub(super) fn content_name(beginning: &str, text: &str) -> String {
    let mut name = beginning.to_owned();
    for octet in &Sha1::digest(text)[..16] {
        name.push_str(&format!("{octet:02x}"));
    }
    name
}

/// How a set is declared.
pub(super) fn declaration(set: &str) -> Option<String> {
    let mut letters = set.chars();
    let (kind, digit) = (letters.next()?, letters.next()?);
    let address = match digit {
        '4' => "ipv4_addr",
        '6' => "ipv6_addr",
        _ => return None,
    };
    Some(match kind {
        ADDRESSES => format!("type {address};"),
        RANGES => format!("type {address}; flags interval;"),
        TRIPLES => format!("type {address} . inet_proto . inet_service;"),
        _ => return None,
    })
}

/// The members of a selector.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// The set of its endpoints' addresses, by family.
    hosts: [SetName; 2],
    /// The set of ranges of its sets of addresses, where there are some.
    ranges: [Option<SetName>; 2],
}

impl Members {
    /// The sets of a family.
    pub(super) fn sets(&self, family: Family) -> impl Iterator<Item = &SetName> {
        let at = usize::from(family == Family::Ipv6);
        std::iter::once(&self.hosts[at]).chain(&self.ranges[at])
    }
}

/// An endpoint, and the profiles that it inherits from.
type Labelled<'a> = (&'a PolicyEndpoint, Vec<&'a PolicyProfile>);

/// Makes sets as rules ask for them.
pub(super) struct SetMaker<'a> {
    data: &'a PolicyData,
    endpoints: Vec<Labelled<'a>>,
    /// Places in the list by namespace: most selectors are of one.
    within: BTreeMap<&'a str, Vec<usize>>,
    sets: Sets,
    members: BTreeMap<String, Members>,
}

impl<'a> SetMaker<'a> {
    pub(super) fn new(data: &'a PolicyData) -> Self {
        let mut endpoints = Vec::new();
        let mut within: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for endpoint in data.members() {
            // Without a namespace of its own it may inherit one.
            let namespace = endpoint.namespace().unwrap_or_default();
            within.entry(namespace).or_default().push(endpoints.len());
            endpoints.push((endpoint, data.parents(&endpoint.profiles)));
        }
        Self {
            data,
            endpoints,
            within,
            sets: Sets::default(),
            members: BTreeMap::new(),
        }
    }

    /// The endpoints that a selector selects.
    fn selected(&self, selector: &Selector) -> Vec<&'a PolicyEndpoint> {
        let mut all = Vec::new();
        let mut add = |(endpoint, parents): &Labelled<'a>| {
            if is_selected(selector, &endpoint.labels, parents) {
                all.push(*endpoint);
            }
        };
        match namespace_of_selector(selector) {
            None => self.endpoints.iter().for_each(add),
            Some(namespace) => {
                for namespace in ["", namespace] {
                    for at in self.within.get(namespace).into_iter().flatten() {
                        add(&self.endpoints[*at]);
                    }
                }
            }
        }
        all
    }

    pub(super) fn finish(self) -> Sets {
        self.sets
    }

    /// The sets of a selector's members.
    pub(super) fn members(&mut self, selector: &Selector) -> Members {
        let text = selector.to_string();
        if let Some(known) = self.members.get(&text) {
            return known.clone();
        }
        let mut hosts: [Vec<Fields>; 2] = Default::default();
        for endpoint in self.selected(selector) {
            for address in &endpoint.addresses {
                let at = usize::from(address.is_ipv6());
                hosts[at].push([Field::from(*address)].into());
            }
        }
        let mut nets: [Vec<Prefix>; 2] = Default::default();
        for set in self.data.sets() {
            if self.data.selects(selector, &set.labels, &set.profiles) {
                for net in &set.nets {
                    nets[usize::from(net.family() == Family::Ipv6)].push(*net);
                }
            }
        }
        let [v4, v6] = nets;
        let [hosts4, hosts6] = hosts;
        let members = Members {
            hosts: [(Family::Ipv4, hosts4), (Family::Ipv6, hosts6)].map(|(family, hosts)| {
                let name = content_name(&format!("{ADDRESSES}{}-", digit(family)), &text);
                self.sets.put(&name, hosts);
                name.into()
            }),
            ranges: [(Family::Ipv4, v4), (Family::Ipv6, v6)]
                .map(|(family, nets)| (!nets.is_empty()).then(|| self.ranges(family, &nets))),
        };
        self.members.insert(text, members.clone());
        members
    }

    /// The set of some ranges of a family. Its name changes with what is in it: a set of intervals
    /// is filled before a rule names it, and never changed.
    pub(super) fn ranges(&mut self, family: Family, nets: &[Prefix]) -> SetName {
        let mut text = String::new();
        let mut all = Vec::new();
        for net in halved(outermost(nets.iter().copied())) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{net}");
            all.push(Fields::from([Field::from(&net)]));
        }
        let name = content_name(&format!("{RANGES}{}-", digit(family)), &text);
        self.sets.put(&name, all);
        name.into()
    }

    /// The set of the ports that endpoints of a selector call so.
    pub(super) fn triples(
        &mut self,
        family: Family,
        selector: Option<&Selector>,
        port: &str,
    ) -> SetName {
        let selector = selector.unwrap_or(&Selector::All);
        let text = format!("{selector}\n{port}");
        let name = content_name(&format!("{TRIPLES}{}-", digit(family)), &text);
        let mut all = Vec::new();
        for endpoint in self.selected(selector) {
            let mut ports = Vec::new();
            for named in endpoint.ports.iter().filter(|named| named.name == port) {
                let protocol = Transport::from_number(named.protocol);
                ports.extend(protocol.map(|protocol| (protocol, named.port)));
            }
            for address in endpoint
                .addresses
                .iter()
                .filter(|a| Family::of(**a) == family)
            {
                for (protocol, port) in &ports {
                    let triple = [
                        Field::from(*address),
                        Field::Protocol(*protocol),
                        Field::Port(*port),
                    ];
                    all.push(triple.into());
                }
            }
        }
        self.sets.put(&name, all);
        name.into()
    }
}

/// All addresses of a family have no form in a set: two halves have.
fn halved(nets: impl IntoIterator<Item = Prefix>) -> Vec<Prefix> {
    let mut all = Vec::new();
    for net in nets {
        if net.len() > 0 {
            all.push(net);
            continue;
        }
        let low = Prefix::truncated(net.address(), 1);
        let high = net
            .nth(low.size())
            .map(|address| Prefix::truncated(address, 1));
        all.extend([Some(low), high].into_iter().flatten());
    }
    all
}
