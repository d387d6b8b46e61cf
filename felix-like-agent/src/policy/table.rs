//! What has to be in the table: for each endpoint of this node the list of policies that judge its
//! packets, as chains, and the sets that these ask.
//!
//! A chain is named by what is in it, the names of those that it leads to included. So endpoints
//! that are judged alike share their chains, and a chain never changes: a policy that differs is
//! another chain, and the elements of the maps that led to the old one lead there.

use std::collections::BTreeMap;

use caracal_model::{
    Family, NodeName, Policy, PolicyData, PolicyDirection, PolicyEndpoint, PolicyKind, PolicyOrder,
    PolicyProfile, PolicyStage, is_selected, namespace_of_selector,
};

use super::hosts::JudgingHosts;
use super::layout::{
    ALLOWED_EARLY, DISPATCH, EARLY, FROM, FROM_DISPATCH, FROM_TO_NODE, HOST_IN, HOST_OUT, LEAVE,
    THROUGH_IN, THROUGH_OUT, TO, TO_NODE, is_plain,
};
use super::rule::{Action, FilterRule};
use super::sets::{SetMaker, content_name};
use super::{PolicySettings, compile, layout};
use crate::links::Links;
use crate::nft::{Field, Fields, InterfaceName, Sets};

/// Names of policies that share a chain are told until they are so long together.
const LONG: usize = 200;

/// A way of packets past an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Out of it, and on to somebody else.
    Out,
    /// Out of it, to this node itself.
    OutToNode,
    /// To it.
    In,
    /// To this node itself, by an interface of a host endpoint.
    HostIn,
    /// From this node itself, by such an interface.
    HostOut,
    /// Through the node, and in by such an interface.
    ThroughIn,
    /// The same, and out by it.
    ThroughOut,
    /// In by such an interface, before translation.
    Early,
}

impl Way {
    /// Past endpoints.
    const ENDPOINTS: [Self; 3] = [Self::Out, Self::OutToNode, Self::In];
    /// Past host endpoints.
    const HOSTS: [Self; 5] = [
        Self::HostIn,
        Self::HostOut,
        Self::ThroughIn,
        Self::ThroughOut,
        Self::Early,
    ];

    const fn direction(self) -> PolicyDirection {
        match self {
            Self::Out | Self::OutToNode | Self::HostOut | Self::ThroughOut => {
                PolicyDirection::Egress
            }
            Self::In | Self::HostIn | Self::ThroughIn | Self::Early => PolicyDirection::Ingress,
        }
    }

    /// True where a policy judges.
    fn is_of(self, policy: &Policy) -> bool {
        match self {
            Self::Early => policy.stage == PolicyStage::BeforeTranslation,
            // Neither from the node nor to it.
            Self::ThroughIn | Self::ThroughOut => {
                policy.stage == PolicyStage::Filter && policy.on_forward
            }
            _ => policy.stage == PolicyStage::Filter,
        }
    }

    /// Where a packet goes that no policy has decided; `None` = profiles judge it.
    fn undecided(self) -> Option<Action> {
        match self {
            Self::ThroughIn | Self::ThroughOut => Some(self.allow()),
            Self::Early => Some(Action::Accept),
            _ => None,
        }
    }

    /// The map by interface, and that by family for all others.
    const fn maps(self) -> [&'static str; 2] {
        match self {
            Self::Out => [FROM; 2],
            Self::OutToNode => [FROM_TO_NODE; 2],
            Self::In => [TO; 2],
            Self::HostIn => HOST_IN,
            Self::HostOut => HOST_OUT,
            Self::ThroughIn => THROUGH_IN,
            Self::ThroughOut => THROUGH_OUT,
            Self::Early => EARLY,
        }
    }

    /// Beginning of the names of its chains.
    const fn beginning(self) -> &'static str {
        match self {
            Self::Out => "out-",
            Self::OutToNode => "node-",
            Self::In => "in-",
            Self::HostIn => "host-in-",
            Self::HostOut => "host-out-",
            Self::ThroughIn => "through-in-",
            Self::ThroughOut => "through-out-",
            Self::Early => "early-",
        }
    }

    fn allow(self) -> Action {
        match self {
            Self::Out => Action::Goto(DISPATCH.into()),
            Self::OutToNode => Action::Goto(TO_NODE.into()),
            Self::In => Action::Goto(LEAVE.into()),
            Self::ThroughIn => Action::Goto(FROM_DISPATCH.into()),
            Self::HostIn | Self::HostOut | Self::ThroughOut => Action::Accept,
            Self::Early => Action::Goto(ALLOWED_EARLY.into()),
        }
    }
}

/// How much is in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    /// Endpoints that are judged.
    pub endpoints: usize,
    /// Chains of policies; those that say the same are one.
    pub policies: usize,
    /// Sets of addresses and ports.
    pub sets: usize,
    /// Elements of the sets.
    pub elements: usize,
}

/// Content of the table, without what does not depend on policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyTable {
    /// The chains that the kernel calls, in the words of `nft`; empty = not known.
    pub(super) base: String,
    pub(super) sets: Sets,
    /// Chains by name; `None` = it is there, and it is not known what is in it.
    pub(super) chains: BTreeMap<Box<str>, Option<Vec<FilterRule>>>,
    /// By map and interface the chain.
    pub(super) leads: BTreeMap<(&'static str, Fields), Box<str>>,
    /// What the policies are called whose chains these are.
    pub(super) policies: BTreeMap<Box<str>, String>,
    /// Host endpoints that judge, with their interfaces.
    hosts: BTreeMap<String, Vec<String>>,
}

impl PolicyTable {
    /// True when this interface has its lists.
    pub(crate) fn has(&self, interface: &str) -> bool {
        let key = |name| Fields::from([Field::Interface(name)]);
        let name = InterfaceName::new(interface);
        name.is_some_and(|name| self.leads.contains_key(&(TO, key(name))))
    }

    /// The interfaces that a host endpoint judges.
    pub(crate) fn interfaces_of(&self, host: &str) -> &[String] {
        self.hosts.get(host).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn counts(&self) -> PolicyCounts {
        let sets = self.sets.iter();
        PolicyCounts {
            endpoints: self.leads.keys().filter(|(map, _)| *map == TO).count(),
            policies: self.policies.len(),
            sets: sets.count(),
            elements: self.sets.iter().map(|(_, elements)| elements.len()).sum(),
        }
    }

    /// Takes the chains for what was written last: their listing is as it was then.
    pub(crate) fn trust(&mut self, written: &Self) {
        self.base.clone_from(&written.base);
        for (chain, rules) in &mut self.chains {
            *rules = written.chains.get(chain).cloned().flatten();
        }
    }

    /// The table of a node on which nothing is known of any endpoint: it lets none of them through.
    pub(crate) fn closed(settings: &PolicySettings) -> Self {
        Self {
            base: layout::base(settings),
            ..Self::default()
        }
    }

    /// The table for a node, which has these interfaces.
    pub(crate) fn plan(
        data: &PolicyData,
        me: &NodeName,
        settings: &PolicySettings,
        links: &Links,
    ) -> Self {
        let mut lists = Lists {
            order: TierOrder::new(data),
            maker: ChainMaker {
                data,
                sets: SetMaker::new(data),
                chains: BTreeMap::new(),
                policies: BTreeMap::new(),
            },
            known: BTreeMap::new(),
            leads: BTreeMap::new(),
        };
        for (_, endpoint) in data.endpoints() {
            if endpoint.node != me.as_str() || !is_plain(&endpoint.interface) {
                continue;
            }
            if let Some(interface) = InterfaceName::new(&endpoint.interface) {
                for way in Way::ENDPOINTS {
                    let chain = lists.of(way, endpoint);
                    lists.lead(way.maps()[0], Field::Interface(interface), chain);
                }
            }
        }
        let hosts = JudgingHosts::of(data, me, settings, links);
        for way in Way::HOSTS {
            let [by_interface, of_others] = way.maps();
            for (interface, (_, endpoint)) in &hosts.by_interface {
                let chain = lists.of(way, endpoint);
                lists.lead(by_interface, Field::Interface(*interface), chain);
            }
            if let Some((_, endpoint)) = hosts.all_others {
                let chain = lists.of(way, endpoint);
                for family in [Family::Ipv4, Family::Ipv6] {
                    lists.lead(of_others, Field::Family(family), chain.clone());
                }
            }
        }
        Self {
            base: layout::base(settings),
            sets: lists.maker.sets.finish(),
            chains: lists.maker.chains,
            leads: lists.leads,
            policies: lists.maker.policies,
            hosts: hosts.interfaces(),
        }
    }
}

/// Lists of policies as endpoints come to them: those that are judged alike share one.
struct Lists<'a> {
    order: TierOrder<'a>,
    maker: ChainMaker<'a>,
    known: BTreeMap<(Way, Vec<usize>, Vec<String>), Box<str>>,
    leads: BTreeMap<(&'static str, Fields), Box<str>>,
}

impl Lists<'_> {
    fn of(&mut self, way: Way, endpoint: &PolicyEndpoint) -> Box<str> {
        let policies = self.order.of(self.maker.data, endpoint, way);
        let key = (way, policies, endpoint.profiles.clone());
        if let Some(chain) = self.known.get(&key) {
            return chain.clone();
        }
        let chain = self.maker.list(&self.order, way, &key.1, &key.2);
        self.known.insert(key, chain.clone());
        chain
    }

    fn lead(&mut self, map: &'static str, key: Field, chain: Box<str>) {
        self.leads.insert((map, [key].into()), chain);
    }
}

/// All policies in the order in which they judge: by tier, and within it.
struct TierOrder<'a> {
    policies: Vec<(&'a Policy, Tier)>,
}

/// Number of a tier in their order, and whether it passes on what it leaves undecided.
type Tier = (usize, bool);

/// Place of a tier: those that are there come first.
type TierPlace<'a> = (bool, PolicyOrder, &'a str);

impl<'a> TierOrder<'a> {
    fn new(data: &'a PolicyData) -> Self {
        let mut all: Vec<(TierPlace<'_>, bool, &Policy)> = Vec::new();
        for policy in data.policies() {
            let tier = data.tier(&policy.tier);
            let order = tier.map_or(PolicyOrder::LAST, |tier| tier.order);
            let place = (tier.is_none(), order, policy.tier.as_str());
            all.push((place, tier.is_some_and(|tier| tier.passes), policy));
        }
        all.sort_by(|(tier, _, a), (other, _, b)| {
            tier.cmp(other).then_with(|| within(a).cmp(&within(b)))
        });
        let mut policies = Vec::with_capacity(all.len());
        let (mut number, mut last) = (0, None);
        for (place, passes, policy) in all {
            if last.is_some_and(|last| last != place) {
                number += 1;
            }
            last = Some(place);
            policies.push((policy, (number, passes)));
        }
        Self { policies }
    }

    /// Those that judge an endpoint on a way, by their numbers.
    fn of(&self, data: &PolicyData, endpoint: &PolicyEndpoint, way: Way) -> Vec<usize> {
        let parents = data.parents(&endpoint.profiles);
        let mut numbers = Vec::new();
        for (number, (policy, _)) in self.policies.iter().enumerate() {
            let elsewhere = namespace_of_selector(&policy.selector)
                .is_some_and(|of| endpoint.namespace().is_some_and(|own| own != of));
            if !elsewhere
                && policy.rules(way.direction()).is_some()
                && way.is_of(policy)
                && is_selected(&policy.selector, &endpoint.labels, &parents)
            {
                numbers.push(number);
            }
        }
        numbers
    }
}

/// Place of a policy within its tier.
fn within(policy: &Policy) -> (PolicyOrder, &str, &str, PolicyKind) {
    (policy.order, &policy.name, &policy.namespace, policy.kind)
}

struct ChainMaker<'a> {
    data: &'a PolicyData,
    sets: SetMaker<'a>,
    chains: BTreeMap<Box<str>, Option<Vec<FilterRule>>>,
    policies: BTreeMap<Box<str>, String>,
}

impl ChainMaker<'_> {
    /// The chain of a list of policies, which always decides. It is made from its end.
    fn list(
        &mut self,
        order: &TierOrder<'_>,
        way: Way,
        policies: &[usize],
        profiles: &[String],
    ) -> Box<str> {
        let mut next = match way.undecided() {
            Some(action) => self.chain(way.beginning(), vec![action.into()]),
            None => self.profiles(way, profiles),
        };
        let tier_of = |number: &usize| order.policies[*number].1;
        for tier in policies.chunk_by(|a, b| tier_of(a).0 == tier_of(b).0).rev() {
            let pass = Action::Goto(next.clone());
            let mut rules = Vec::new();
            for number in tier {
                let policy = order.policies[*number].0;
                let judged = policy.rules(way.direction()).unwrap_or_default();
                let mut own = Vec::new();
                for rule in judged {
                    let decided = compile::decided(rule.action, &way.allow(), &pass);
                    own.extend(compile::rules(&mut self.sets, rule, &decided));
                }
                if !own.is_empty() {
                    let chain = self.chain("policy-", own);
                    // Two that say the same share one.
                    let titles = self.policies.entry(chain.clone()).or_default();
                    let title = policy.title();
                    if titles.len() < LONG && !titles.contains(&title) {
                        let and = if titles.is_empty() { "" } else { ", " };
                        *titles += &format!("{and}{title}");
                    }
                    rules.push(Action::Jump(chain).into());
                }
            }
            // Before translation what is left undecided is for the policies behind it.
            let passes = tier.first().is_some_and(|number| tier_of(number).1);
            rules.push(match passes || way == Way::Early {
                true => pass.into(),
                false => Action::Refuse.into(),
            });
            next = self.chain(way.beginning(), rules);
        }
        next
    }

    /// What judges after all policies.
    fn profiles(&mut self, way: Way, names: &[String]) -> Box<str> {
        let mut rules: Vec<FilterRule> = Vec::new();
        for name in names {
            let Some(profile) = self.data.profile(name) else {
                rules.push(match name == PolicyProfile::ALLOW_ALL {
                    true => way.allow().into(),
                    false => Action::Refuse.into(),
                });
                break;
            };
            for rule in profile.rules(way.direction()) {
                // There is no tier behind profiles.
                let decided = compile::decided(rule.action, &way.allow(), &Action::Drop);
                rules.extend(compile::rules(&mut self.sets, rule, &decided));
            }
        }
        rules.push(Action::Refuse.into());
        self.chain(way.beginning(), rules)
    }

    fn chain(&mut self, beginning: &str, rules: Vec<FilterRule>) -> Box<str> {
        let mut text = String::new();
        for rule in &rules {
            text.push_str(&rule.to_string());
            text.push('\n');
        }
        let name: Box<str> = content_name(beginning, &text).into();
        self.chains.insert(name.clone(), Some(rules));
        name
    }
}
