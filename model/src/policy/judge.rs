//! What becomes of a packet, judged policy by policy as Calico documents it. Nothing here is shared
//! with what makes tables for the kernel: each is the other's test.

use std::fmt;
use std::net::IpAddr;

use super::rule::{
    IcmpMatch, Policy, PolicyAction, PolicyDirection, PolicyOrder, PolicyPort, PolicyRule,
    PolicyStage, RuleSide,
};
use super::{PolicyData, PolicyEndpoint, PolicyProfile};
use crate::net::Family;
use crate::selector::Selector;

/// The first packet of a flow, with the addresses that it has after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// Number of the protocol.
    pub protocol: u8,
    /// Ports of source and destination, in protocols that have them.
    pub ports: (u16, u16),
    /// Type and code of ICMP.
    pub icmp: (u8, u8),
}

impl Packet {
    fn family(&self) -> Family {
        Family::of(self.destination)
    }
}

/// Who decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A rule of a policy: the policy, and the number of the rule, from 0.
    Rule(String, usize),
    /// Policies of this tier apply, and none of their rules matched.
    EndOfTier(String),
    /// A rule of a profile.
    Profile(String, usize),
    /// The endpoint names a profile that is not there.
    MissingProfile(String),
    /// No policy applies, and no profile allows it.
    NoProfile,
    /// No policy for what passes through a host endpoint's node decides.
    NotOnForward,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(policy, at) => write!(f, "rule {} of {policy}", at + 1),
            Self::EndOfTier(tier) => {
                write!(
                    f,
                    "tier {tier}: policies apply, and none of their rules matches"
                )
            }
            Self::Profile(profile, at) => write!(f, "rule {} of Profile {profile}", at + 1),
            Self::MissingProfile(profile) => write!(f, "Profile {profile}, which is missing"),
            Self::NoProfile => f.write_str("no rule: no policy applies, and no profile allows it"),
            Self::NotOnForward => f.write_str("no rule: no policy with applyOnForward decides"),
        }
    }
}

/// What becomes of a packet, and because of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True when it passes.
    pub allowed: bool,
    /// Who decided.
    pub by: Decision,
}

/// One end of a packet.
#[derive(Clone, Copy)]
struct End {
    address: IpAddr,
    protocol: u8,
    port: u16,
}

/// How a packet comes to policies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the endpoint, or from it.
    ToOrFrom,
    /// Through the node of a host endpoint: policies with `applyOnForward` alone judge.
    Through,
    /// By an interface of a host endpoint, before translation. A tier passes on what it leaves
    /// undecided.
    BeforeTranslation,
}

impl Way {
    fn has(self, policy: &Policy) -> bool {
        match self {
            Self::ToOrFrom => policy.stage == PolicyStage::Filter,
            Self::Through => policy.stage == PolicyStage::Filter && policy.on_forward,
            Self::BeforeTranslation => policy.stage == PolicyStage::BeforeTranslation,
        }
    }
}

impl PolicyData {
    /// Judges the first packet of a flow to or from an endpoint; of a host endpoint, to or from
    /// programs of its node.
    #[must_use]
    pub fn judge(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
        packet: &Packet,
    ) -> Verdict {
        let verdict = self.judge_by_tiers(endpoint, direction, packet, Way::ToOrFrom);
        verdict.unwrap_or_else(|| self.judge_by_profiles(endpoint, direction, packet))
    }

    /// Judges the first packet of a flow that passes through the node of a host endpoint, and comes
    /// in by its interface or goes out by it.
    #[must_use]
    pub fn judge_forwarded(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
        packet: &Packet,
    ) -> Verdict {
        let verdict = self.judge_by_tiers(endpoint, direction, packet, Way::Through);
        verdict.unwrap_or_else(|| self::verdict(true, Decision::NotOnForward))
    }

    /// Judges the first packet of a flow that comes in by an interface of a host endpoint, as it is
    /// before translation: by policies with `preDNAT`. `None`: none decides, and the packet goes
    /// on. One that is allowed passes the host endpoint; what it is for may judge it then.
    #[must_use]
    pub fn judge_before_translation(
        &self,
        endpoint: &PolicyEndpoint,
        packet: &Packet,
    ) -> Option<Verdict> {
        let ingress = PolicyDirection::Ingress;
        self.judge_by_tiers(endpoint, ingress, packet, Way::BeforeTranslation)
    }

    /// `None`: no tier decides.
    fn judge_by_tiers(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
        packet: &Packet,
        way: Way,
    ) -> Option<Verdict> {
        for (tier, passes, mut policies) in self.tiers_of(endpoint, direction) {
            policies.retain(|policy| way.has(policy));
            if policies.is_empty() {
                continue;
            }
            let mut goes_on = false;
            'tier: for policy in policies {
                let rules = policy.rules(direction).unwrap_or_default();
                for (at, rule) in rules.iter().enumerate() {
                    if !self.matches(rule, packet) {
                        continue;
                    }
                    let by = || Decision::Rule(policy.title(), at);
                    match rule.action {
                        PolicyAction::Allow => return Some(verdict(true, by())),
                        PolicyAction::Deny => return Some(verdict(false, by())),
                        PolicyAction::Pass => {
                            goes_on = true;
                            break 'tier;
                        }
                        PolicyAction::Log => {}
                    }
                }
            }
            if !goes_on && !passes && way != Way::BeforeTranslation {
                return Some(verdict(false, Decision::EndOfTier(tier.to_owned())));
            }
        }
        None
    }

    /// The policies that judge an endpoint in a direction, in their order.
    #[must_use]
    pub fn policies_of(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
    ) -> Vec<&Policy> {
        self.on_way(endpoint, direction, Way::ToOrFrom)
    }

    /// Those that judge before translation what comes in by an interface of a host endpoint, in
    /// their order.
    #[must_use]
    pub fn policies_before_translation(&self, endpoint: &PolicyEndpoint) -> Vec<&Policy> {
        self.on_way(endpoint, PolicyDirection::Ingress, Way::BeforeTranslation)
    }

    fn on_way(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
        way: Way,
    ) -> Vec<&Policy> {
        let tiers = self.tiers_of(endpoint, direction).into_iter();
        let all = tiers.flat_map(|(_, _, policies)| policies);
        all.filter(|policy| way.has(policy)).collect()
    }

    fn judge_by_profiles(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
        packet: &Packet,
    ) -> Verdict {
        for name in &endpoint.profiles {
            let Some(profile) = self.profile(name) else {
                return match name == PolicyProfile::ALLOW_ALL {
                    true => verdict(true, Decision::Profile(name.clone(), 0)),
                    false => verdict(false, Decision::MissingProfile(name.clone())),
                };
            };
            for (at, rule) in profile.rules(direction).iter().enumerate() {
                if !self.matches(rule, packet) {
                    continue;
                }
                let by = || Decision::Profile(name.clone(), at);
                match rule.action {
                    PolicyAction::Allow => return verdict(true, by()),
                    PolicyAction::Deny => return verdict(false, by()),
                    // There is no tier behind profiles.
                    PolicyAction::Pass => return verdict(false, by()),
                    PolicyAction::Log => {}
                }
            }
        }
        verdict(false, Decision::NoProfile)
    }

    /// The tiers with policies that judge an endpoint, in their order: name, whether it passes on
    /// what it leaves undecided, its policies in their order.
    fn tiers_of(
        &self,
        endpoint: &PolicyEndpoint,
        direction: PolicyDirection,
    ) -> Vec<(&str, bool, Vec<&Policy>)> {
        let mut policies = Vec::new();
        for policy in self.policies() {
            let judges = policy.rules(direction).is_some();
            if judges && self.selects(&policy.selector, &endpoint.labels, &endpoint.profiles) {
                policies.push(policy);
            }
        }
        policies.sort_by(|a, b| a.place().cmp(&b.place()));
        let mut names: Vec<&str> = policies.iter().map(|policy| policy.tier.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let mut tiers = Vec::new();
        for name in names {
            let of = policies
                .iter()
                .copied()
                .filter(|policy| policy.tier == name);
            let tier = self.tier(name);
            let order = tier.map_or(PolicyOrder::LAST, |tier| tier.order);
            let passes = tier.is_some_and(|tier| tier.passes);
            tiers.push((tier.is_none(), order, name, passes, of.collect()));
        }
        tiers.sort_by(|a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)));
        let tiers = tiers.into_iter();
        tiers
            .map(|(_, _, name, passes, of)| (name, passes, of))
            .collect()
    }

    fn matches(&self, rule: &PolicyRule, packet: &Packet) -> bool {
        let family = packet.family();
        let icmp = match family {
            Family::Ipv4 => 1,
            Family::Ipv6 => 58,
        };
        let is_icmp = |wanted: &IcmpMatch| {
            let (kind, code) = packet.icmp;
            packet.protocol == icmp
                && wanted.kind == kind
                && wanted.code.is_none_or(|wanted| wanted == code)
        };
        let end = |address, port| End {
            address,
            protocol: packet.protocol,
            port,
        };
        let sides = [
            (&rule.source, end(packet.source, packet.ports.0)),
            (&rule.destination, end(packet.destination, packet.ports.1)),
        ];
        rule.family.is_none_or(|wanted| wanted == family)
            && rule.protocol.is_none_or(|wanted| wanted == packet.protocol)
            && rule.not_protocol != Some(packet.protocol)
            && rule.icmp.as_ref().is_none_or(is_icmp)
            && !rule.not_icmp.as_ref().is_some_and(is_icmp)
            && sides
                .into_iter()
                .all(|(side, end)| !side.excludes(family) && self.side_matches(side, end))
    }

    fn side_matches(&self, side: &RuleSide, end: End) -> bool {
        let is_in = |nets: &[crate::net::Prefix]| nets.iter().any(|net| net.contains(end.address));
        let has = |ports: &[PolicyPort]| {
            ports.iter().any(|port| match port {
                PolicyPort::Range(first, last) => {
                    matches!(end.protocol, 6 | 17 | 132) && (*first..=*last).contains(&end.port)
                }
                PolicyPort::Named(name) => self.has_port(side.selector.as_ref(), name, end),
            })
        };
        (side.nets.is_empty() || is_in(&side.nets))
            && !is_in(&side.not_nets)
            && side
                .selector
                .as_ref()
                .is_none_or(|s| self.is_member(s, end.address))
            && !side
                .not_selector
                .as_ref()
                .is_some_and(|s| self.is_member(s, end.address))
            && (side.ports.is_empty() || has(&side.ports))
            && !has(&side.not_ports)
    }

    /// True when an endpoint that is selected has the address, or a set that is selected.
    fn is_member(&self, selector: &Selector, address: IpAddr) -> bool {
        let mut endpoints = self.members();
        let mut sets = self.sets();
        endpoints.any(|endpoint| {
            endpoint.addresses.contains(&address)
                && self.selects(selector, &endpoint.labels, &endpoint.profiles)
        }) || sets.any(|set| {
            set.nets.iter().any(|net| net.contains(address))
                && self.selects(selector, &set.labels, &set.profiles)
        })
    }

    /// True when this is the port that an endpoint with the address calls so.
    fn has_port(&self, selector: Option<&Selector>, name: &str, end: End) -> bool {
        let mut endpoints = self.members();
        endpoints.any(|endpoint| {
            let mut ports = endpoint.ports.iter();
            endpoint.addresses.contains(&end.address)
                && ports.any(|p| p.name == name && p.protocol == end.protocol && p.port == end.port)
                && selector.is_none_or(|selector| {
                    self.selects(selector, &endpoint.labels, &endpoint.profiles)
                })
        })
    }
}

const fn verdict(allowed: bool, by: Decision) -> Verdict {
    Verdict { allowed, by }
}
