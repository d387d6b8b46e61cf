//! Which host endpoint judges which interface of this node.

use std::collections::BTreeMap;

use caracal_model::{ALL_INTERFACES, NodeName, PolicyData, PolicyEndpoint};

use super::PolicySettings;
use super::layout::is_plain;
use crate::links::Links;
use crate::nft::InterfaceName;

type Named<'a> = (&'a str, &'a PolicyEndpoint);

/// Host endpoints of a node that judge.
#[derive(Debug, Default)]
pub(super) struct JudgingHosts<'a> {
    pub(super) by_interface: BTreeMap<InterfaceName, Named<'a>>,
    /// The one of all other interfaces.
    pub(super) all_others: Option<Named<'a>>,
}

impl<'a> JudgingHosts<'a> {
    /// Of several for one interface it is the one whose name is first, whether it names the
    /// interface or an address of it. What is an endpoint's interface is judged by that alone.
    pub(super) fn of(
        data: &'a PolicyData,
        me: &NodeName,
        settings: &PolicySettings,
        links: &Links,
    ) -> Self {
        let mut found = Self::default();
        let is_pods = |name: &str| settings.interfaces.iter().any(|of| name.starts_with(of));
        for named in own(data, me) {
            let (_, endpoint) = named;
            let mut judge = |interface: &str| {
                let name = InterfaceName::new(interface).filter(|_| is_plain(interface));
                if let Some(name) = name.filter(|_| !is_pods(interface)) {
                    found.by_interface.entry(name).or_insert(named);
                }
            };
            match &*endpoint.interface {
                ALL_INTERFACES => {
                    found.all_others.get_or_insert(named);
                }
                "" => {
                    let has = |address| endpoint.addresses.contains(address);
                    let links = links.iter();
                    let links = links.filter(|l| l.addresses.iter().any(|a| has(&a.address)));
                    links.for_each(|link| judge(link.name.as_str()));
                }
                interface => judge(interface),
            }
        }
        found
    }

    /// Names of host endpoints with the interfaces that they judge.
    pub(super) fn interfaces(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (interface, (name, _)) in &self.by_interface {
            let of = all.entry((*name).to_owned()).or_default();
            of.push(interface.to_string());
        }
        let others = self.all_others.iter();
        all.extend(others.map(|(name, _)| ((*name).to_owned(), vec![ALL_INTERFACES.to_owned()])));
        all
    }
}

fn own<'a>(data: &'a PolicyData, me: &NodeName) -> impl Iterator<Item = Named<'a>> {
    let all = data.host_endpoints();
    all.filter(move |(_, endpoint)| endpoint.node == me.as_str())
}

/// True when a host endpoint of a node is known by addresses alone.
pub(crate) fn asks_for_addresses(data: &PolicyData, me: &NodeName) -> bool {
    own(data, me).any(|(_, endpoint)| endpoint.interface.is_empty())
}
