//! Network policy as data: policies of Calico and of Kubernetes, tiers, profiles, sets of
//! addresses, and the labels, addresses and ports of all endpoints.
//!
//! * `fields` reads JSON, `calico` and `kubernetes` make the one form of policies (`rule`) of it;
//!   `host` reads interfaces of nodes themselves.
//! * `judge` says what becomes of a packet, policy by policy.
//!
//! What cannot be understood is told ([`PolicyData::faults`]) and is closed in its direction: a
//! rule that would have allowed matches nothing, any other rule denies everything, and a policy of
//! which it is not known whom it selects denies all that it may select.

mod calico;
mod fields;
mod host;
mod judge;
mod kubernetes;
mod rule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use self::fields::{Fault, Fields, Read};
use crate::keys::RESOURCES;
use crate::net::Prefix;
use crate::selector::Selector;
use crate::shared_map::SharedMap;

pub use judge::{Decision, Packet, Verdict};
pub use rule::{
    IcmpMatch, Policy, PolicyAction, PolicyDirection, PolicyKind, PolicyOrder, PolicyPort,
    PolicyProfile, PolicyRule, PolicyStage, PolicyTier, RuleSide,
};

/// Labels that Calico gives to what is in a namespace.
pub(crate) const NAMESPACE: &str = "projectcalico.org/namespace";
const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";
const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";

/// Kinds that policy is made of, by their plural in keys.
pub const POLICY_DATA_KINDS: [&str; 8] = [
    GLOBAL_POLICIES,
    GLOBAL_SETS,
    POLICIES,
    SETS,
    PROFILES,
    TIERS,
    ENDPOINTS,
    HOSTS,
];
const GLOBAL_POLICIES: &str = "globalnetworkpolicies";
const GLOBAL_SETS: &str = "globalnetworksets";
const POLICIES: &str = "networkpolicies";
const SETS: &str = "networksets";
const PROFILES: &str = "profiles";
const TIERS: &str = "tiers";
const ENDPOINTS: &str = "workloadendpoints";
const HOSTS: &str = "hostendpoints";
/// The interface of a host endpoint that is of all interfaces of its node.
pub const ALL_INTERFACES: &str = "*";
/// Before the name of a policy of Kubernetes', among Calico's.
const OF_KUBERNETES: &str = "knp.default.";
/// `apiVersion`s of Kubernetes' own kinds.
const KUBERNETES_GROUP: &str = "networking.k8s.io/";
const CLUSTER_GROUP: &str = "policy.networking.k8s.io/";

fn having(label: &str) -> Selector {
    Selector::Has(label.to_owned())
}

/// What is in a namespace; everything where that is empty.
fn of_namespace(namespace: &str) -> Selector {
    match namespace {
        "" => Selector::All,
        name => Selector::Equal(NAMESPACE.to_owned(), name.to_owned()),
    }
}

/// A port of an endpoint that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// Number of the protocol.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// An endpoint, as far as policies ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyEndpoint {
    /// Node of the endpoint.
    pub node: String,
    /// The interface on that node; of a host endpoint maybe [`ALL_INTERFACES`], or empty: it is
    /// known by the addresses then.
    pub interface: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// Profiles, from which it inherits labels that it has not itself.
    pub profiles: Vec<String>,
    /// Its ports with names.
    pub ports: Vec<NamedPort>,
}

impl PolicyEndpoint {
    /// The namespace that its own labels name.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.labels.get(NAMESPACE).map(String::as_str)
    }
}

/// The namespace outside of which a selector selects no endpoint.
#[must_use]
pub fn namespace_of_selector(selector: &Selector) -> Option<&str> {
    match selector {
        Selector::Equal(key, name) if key == NAMESPACE => Some(name),
        Selector::And(parts) => parts.iter().find_map(namespace_of_selector),
        _ => None,
    }
}

/// A set of addresses with labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// Its addresses.
    pub nets: Vec<Prefix>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// The profile from which it inherits.
    pub profiles: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Policy(Policy),
    Tier(PolicyTier),
    Profile(PolicyProfile),
    Set(AddressSet),
    Endpoint(PolicyEndpoint),
    Host(PolicyEndpoint),
    /// It cannot be read, and nothing was there before.
    Nothing,
}

#[derive(Debug, PartialEq)]
struct Entry {
    content: Content,
    /// What of it cannot be understood.
    faults: Vec<String>,
    /// It is not even JSON: what was there before counts.
    is_unread: bool,
}

/// All that policy is made of. Copies are cheap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyData(SharedMap<String, Arc<Entry>>);

impl PolicyData {
    /// Takes over what stands under a path. `None` = policy is not made of it; else whether it
    /// differs from before.
    pub fn apply(&mut self, path: &str, value: Option<&[u8]>) -> Option<bool> {
        let place = path.strip_prefix(RESOURCES)?;
        let (kind, name) = place.split_once('/')?;
        if !POLICY_DATA_KINDS.contains(&kind) {
            return None;
        }
        let before = self.0.get(place);
        let entry = match value {
            None => None,
            Some(text) => match serde_json::from_slice::<Value>(text) {
                Ok(value) => read(kind, name, &value)?.map(|(content, faults)| Entry {
                    content,
                    faults,
                    is_unread: false,
                }),
                Err(error) => Some(unread(kind, name, before, error.to_string())),
            },
        };
        Some(match entry {
            Some(entry) if before.is_some_and(|before| **before == entry) => false,
            Some(entry) => {
                self.0.insert(place.to_owned(), Arc::new(entry));
                true
            }
            None => before.is_some() && self.0.remove(&place.to_owned()).is_some(),
        })
    }

    /// What was read before stays, where a value is not even JSON now.
    pub(crate) fn keep_last_good(&mut self, before: &Self) {
        let mut kept = Vec::new();
        for (place, entry) in &self.0 {
            if let Some(good) = before.0.get(place).filter(|_| entry.is_unread)
                && good.content != Content::Nothing
            {
                let entry = Entry {
                    content: good.content.clone(),
                    faults: entry.faults.clone(),
                    is_unread: true,
                };
                kept.push((place.clone(), Arc::new(entry)));
            }
        }
        for (place, entry) in kept {
            self.0.insert(place, entry);
        }
    }

    fn of(&self, kind: &str) -> impl Iterator<Item = (&str, &Content)> {
        // '0' is what follows '/'.
        let range = format!("{kind}/")..format!("{kind}0");
        let length = kind.len() + 1;
        self.0
            .range(range)
            .map(move |(place, entry)| (&place[length..], &entry.content))
    }

    fn at(&self, kind: &str, name: &str) -> Option<&Content> {
        let entry = self.0.get(format!("{kind}/{name}").as_str());
        entry.map(|entry| &entry.content)
    }

    /// All policies, in no order that means something.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let all = self.of(GLOBAL_POLICIES).chain(self.of(POLICIES));
        all.filter_map(|(_, content)| match content {
            Content::Policy(policy) => Some(policy),
            _ => None,
        })
    }

    /// A tier by its name.
    #[must_use]
    pub fn tier(&self, name: &str) -> Option<PolicyTier> {
        match self.at(TIERS, name) {
            Some(Content::Tier(tier)) => Some(*tier),
            _ => None,
        }
    }

    /// A profile by its name.
    #[must_use]
    pub fn profile(&self, name: &str) -> Option<&PolicyProfile> {
        match self.at(PROFILES, name) {
            Some(Content::Profile(profile)) => Some(profile),
            _ => None,
        }
    }

    /// All endpoints by namespace and name.
    pub fn endpoints(&self) -> impl Iterator<Item = (&str, &PolicyEndpoint)> {
        self.of(ENDPOINTS)
            .filter_map(|(name, content)| match content {
                Content::Endpoint(endpoint) => Some((name, endpoint)),
                _ => None,
            })
    }

    /// All host endpoints by name: interfaces of nodes themselves.
    pub fn host_endpoints(&self) -> impl Iterator<Item = (&str, &PolicyEndpoint)> {
        self.of(HOSTS).filter_map(|(name, content)| match content {
            Content::Host(endpoint) => Some((name, endpoint)),
            _ => None,
        })
    }

    /// Everything that selectors of rules select but sets of addresses.
    pub fn members(&self) -> impl Iterator<Item = &PolicyEndpoint> {
        let hosts = self.host_endpoints();
        let all = self.endpoints().chain(hosts);
        all.map(|(_, endpoint)| endpoint)
    }

    /// All sets of addresses.
    pub fn sets(&self) -> impl Iterator<Item = &AddressSet> {
        let all = self.of(GLOBAL_SETS).chain(self.of(SETS));
        all.filter_map(|(_, content)| match content {
            Content::Set(set) => Some(set),
            _ => None,
        })
    }

    /// The profiles of these names that are there, from which labels are inherited in this order.
    #[must_use]
    pub fn parents(&self, profiles: &[String]) -> Vec<&PolicyProfile> {
        profiles
            .iter()
            .filter_map(|name| self.profile(name))
            .collect()
    }

    /// True for an endpoint or set that a selector selects.
    #[must_use]
    pub fn selects(
        &self,
        selector: &Selector,
        labels: &BTreeMap<String, String>,
        profiles: &[String],
    ) -> bool {
        is_selected(selector, labels, &self.parents(profiles))
    }

    /// True for a policy that is judged by, and for a host endpoint whose packets are judged.
    pub(crate) fn enforces(&self, plural: &str, name: &str) -> bool {
        match self.at(plural, name) {
            Some(Content::Policy(policy)) => policy.stage != PolicyStage::Untracked,
            Some(Content::Host(_)) => true,
            _ => false,
        }
    }

    /// What cannot be understood: path, and what of it.
    pub fn faults(&self) -> impl Iterator<Item = (String, &str)> {
        self.0.iter().flat_map(|(place, entry)| {
            let faults = entry.faults.iter();
            faults.map(move |fault| (format!("{RESOURCES}{place}"), fault.as_str()))
        })
    }
}

/// True for what has these labels, and inherits from these profiles what it has not itself.
#[must_use]
pub fn is_selected(
    selector: &Selector,
    labels: &BTreeMap<String, String>,
    parents: &[&PolicyProfile],
) -> bool {
    let inherited = |key: &str| {
        let mut all = parents.iter().filter_map(|parent| parent.labels.get(key));
        all.next().map(String::as_str)
    };
    selector.matches_by(&|key| {
        labels
            .get(key)
            .map(String::as_str)
            .or_else(|| inherited(key))
    })
}

/// What is not JSON: what was there before, or what a value that says nothing is.
fn unread(kind: &str, name: &str, before: Option<&Arc<Entry>>, error: String) -> Entry {
    let (content, consequence) = match before {
        Some(before) if before.content != Content::Nothing => {
            (before.content.clone(), "; the last good value stays in use")
        }
        _ => {
            let nothing = || (Content::Nothing, Vec::new());
            let (content, _) = read(kind, name, &Value::Null)
                .flatten()
                .unwrap_or_else(nothing);
            (content, "")
        }
    };
    Entry {
        content,
        faults: vec![error + consequence],
        is_unread: true,
    }
}

/// Reads a value. The outer `None`: it is of a kind by which nobody judges here; the inner one: it
/// says nothing.
fn read(kind: &str, name: &str, value: &Value) -> Option<Option<(Content, Vec<String>)>> {
    let version = value["apiVersion"].as_str().unwrap_or_default();
    let (namespace, own_name) = name.split_once('/').unwrap_or(("", name));
    let policy = |(policy, faults)| (Content::Policy(policy), faults);
    let of = |read: Read<Content>| match read {
        Ok(content) => (content, Vec::new()),
        Err(Fault(fault)) => (Content::Nothing, vec![fault]),
    };
    Some(Some(match kind {
        GLOBAL_POLICIES if version.starts_with(CLUSTER_GROUP) => return None,
        GLOBAL_POLICIES => policy(calico::policy(value, "", name)),
        POLICIES if version.starts_with(KUBERNETES_GROUP) => {
            let own = own_name.strip_prefix(OF_KUBERNETES).unwrap_or(own_name);
            policy(kubernetes::policy(value, namespace, own))
        }
        POLICIES => policy(calico::policy(value, namespace, own_name)),
        TIERS => of(calico::tier(value).map(Content::Tier)),
        PROFILES => {
            let (profile, faults) = calico::profile(value);
            (Content::Profile(profile), faults)
        }
        GLOBAL_SETS | SETS => of(set(value, namespace).map(Content::Set)),
        // A mistake in it is told with the snapshot's.
        ENDPOINTS => match endpoint(value) {
            Ok(endpoint) => (Content::Endpoint(endpoint), Vec::new()),
            Err(_) => (Content::Nothing, Vec::new()),
        },
        HOSTS => {
            let (host, faults) = host::endpoint(value);
            (host.map_or(Content::Nothing, Content::Host), faults)
        }
        _ => return None,
    }))
}

fn set(value: &Value, namespace: &str) -> Read<AddressSet> {
    let (mut labels, nets) = calico::addresses(value)?;
    let mut profiles = Vec::new();
    if !namespace.is_empty() {
        labels.insert(NAMESPACE.to_owned(), namespace.to_owned());
        profiles.push(format!("kns.{namespace}"));
    }
    Ok(AddressSet {
        nets,
        labels,
        profiles,
    })
}

fn endpoint(value: &Value) -> Read<PolicyEndpoint> {
    let metadata = Fields::of(&value["metadata"], "metadata")?;
    let spec = Fields::of(&value["spec"], "spec")?;
    let profiles = spec.list("profiles")?.iter();
    let profiles = profiles.filter_map(|name| name.as_str().map(str::to_owned));
    Ok(PolicyEndpoint {
        node: spec.text("node")?.to_owned(),
        interface: spec.text("interfaceName")?.to_owned(),
        addresses: spec
            .prefixes("ipNetworks")?
            .iter()
            .map(Prefix::address)
            .collect(),
        labels: calico::labels(metadata, "labels")?,
        profiles: profiles.collect(),
        ports: host::named_ports(spec)?,
    })
}
