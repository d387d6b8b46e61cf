//! Policies as they are judged: what both forms of them, Kubernetes' and Calico's, come to.

use std::cmp::Ordering;

use super::fields::{Fault, Read};
use crate::net::{Family, Prefix};
use crate::selector::Selector;

/// Numbers of the protocols that have ports.
const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// Rules of a table of the kernel's that one direction of a policy may become. Each of a list of
/// ports is one, for each range of addresses.
const MOST_RULES: usize = 10_000;
/// More ranges than this are a set, which is one.
const FEW: usize = 8;

/// How many more rules of the kernel's a policy may become.
pub(super) struct Budget(usize);

impl Budget {
    pub(super) const fn new() -> Self {
        Self(MOST_RULES)
    }

    /// Takes what a rule of the policy becomes.
    pub(super) fn take(&mut self, rules: usize) -> Read<()> {
        match self.0.checked_sub(rules) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(Fault::new(
                "ports",
                format!(
                    "this rule becomes {rules} rules of the kernel's with each port and range of addresses, and one \
                     direction of a policy may become {MOST_RULES}: join ports to ranges, or say it in a policy of \
                     its own with fewer"
                ),
            )),
        }
    }
}

/// What a rule does with a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyAction {
    /// The direction is accepted.
    Allow,
    /// The packet is dropped.
    Deny,
    /// It is logged, and the next rule judges.
    Log,
    /// The next tier judges.
    Pass,
}

/// Ports of one end of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyPort {
    /// From the first to the last one.
    Range(u16, u16),
    /// A name of a port, which each endpoint has as it likes.
    Named(String),
}

/// A type of ICMP, and a code of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IcmpMatch {
    /// Type.
    pub kind: u8,
    /// `None` = each.
    pub code: Option<u8>,
}

/// What a rule asks of one end of a packet. What is empty asks nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSide {
    /// The address is in one of these.
    pub nets: Vec<Prefix>,
    /// It is in none of these.
    pub not_nets: Vec<Prefix>,
    /// It is that of an endpoint, or in a set of addresses, with such labels.
    pub selector: Option<Selector>,
    /// It is not.
    pub not_selector: Option<Selector>,
    /// The port is one of these.
    pub ports: Vec<PolicyPort>,
    /// It is none of these.
    pub not_ports: Vec<PolicyPort>,
}

impl RuleSide {
    /// True for a rule that the other family's packets never match: all that it says of addresses
    /// is of one family.
    #[must_use]
    pub fn excludes(&self, family: Family) -> bool {
        [&self.nets, &self.not_nets]
            .into_iter()
            .any(|nets| !nets.is_empty() && nets.iter().all(|net| net.family() != family))
    }
}

impl RuleSide {
    /// Rules of the kernel's for packets of a family.
    fn rules(&self, family: Family) -> usize {
        if self.excludes(family) {
            return 0;
        }
        let nets = self.nets.iter().filter(|net| net.family() == family);
        let nets = match nets.count() {
            few @ 1..=FEW => few,
            _ => 1,
        };
        nets.saturating_mul(self.ports.len().max(1))
    }
}

/// A rule of a policy or profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// What it does.
    pub action: PolicyAction,
    /// `ipVersion`.
    pub family: Option<Family>,
    /// Number of the protocol.
    pub protocol: Option<u8>,
    /// Every protocol but this one.
    pub not_protocol: Option<u8>,
    /// Of ICMP in the family of the packet.
    pub icmp: Option<IcmpMatch>,
    /// What of ICMP it does not match.
    pub not_icmp: Option<IcmpMatch>,
    /// Where the packet comes from.
    pub source: RuleSide,
    /// Where it goes.
    pub destination: RuleSide,
}

impl PolicyRule {
    /// A rule that matches everything.
    #[must_use]
    pub fn of_all(action: PolicyAction) -> Self {
        Self {
            action,
            family: None,
            protocol: None,
            not_protocol: None,
            icmp: None,
            not_icmp: None,
            source: RuleSide::default(),
            destination: RuleSide::default(),
        }
    }

    /// Rules of the kernel's that it becomes.
    pub(super) fn rules(&self) -> usize {
        let each = [Family::Ipv4, Family::Ipv6].into_iter().map(|family| {
            let sides = (self.source.rules(family), self.destination.rules(family));
            sides.0.saturating_mul(sides.1)
        });
        each.fold(0, usize::saturating_add)
    }

    /// True when it asks for a number of a port.
    pub(super) fn has_numbered_ports(&self) -> bool {
        let sides = [&self.source, &self.destination];
        let mut ports = sides
            .into_iter()
            .flat_map(|s| s.ports.iter().chain(&s.not_ports));
        ports.any(|port| matches!(port, PolicyPort::Range(..)))
    }

    /// True when packets of its protocol have ports.
    pub(super) fn protocol_has_ports(&self) -> bool {
        self.protocol
            .is_some_and(|protocol| WITH_PORTS.contains(&protocol))
    }
}

/// The direction of a packet, as its endpoint sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyDirection {
    /// To the endpoint.
    Ingress,
    /// From it.
    Egress,
}

impl PolicyDirection {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// In small letters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// Where a policy is among the others of its tier; absent is last.
#[derive(Clone, Copy, Debug)]
pub struct PolicyOrder(f64);

impl PolicyOrder {
    /// Behind all that have one.
    pub const LAST: Self = Self(f64::INFINITY);

    /// `None` = no number.
    pub(super) fn new(order: f64) -> Option<Self> {
        // Of zeros there is one.
        order.is_finite().then_some(Self(order + 0.0))
    }
}

impl PartialEq for PolicyOrder {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PolicyOrder {}

impl PartialOrd for PolicyOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PolicyOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A kind of policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyKind {
    /// Calico's, of the cluster.
    Global,
    /// Kubernetes' own.
    Kubernetes,
    /// Calico's, of a namespace.
    Network,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its kind.
    pub kind: PolicyKind,
    /// As people call it.
    pub name: String,
    /// Empty for one of the cluster.
    pub namespace: String,
    /// Name of its tier.
    pub tier: String,
    /// Its place in the tier.
    pub order: PolicyOrder,
    /// The endpoints that it judges.
    pub selector: Selector,
    /// Rules for packets to them; `None` = it does not judge these.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Rules for packets from them.
    pub egress: Option<Vec<PolicyRule>>,
    /// `applyOnForward`: of a host endpoint it judges what passes through the node, too.
    pub on_forward: bool,
    /// At which place of a packet's way it judges.
    pub stage: PolicyStage,
}

/// A place on the way of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyStage {
    /// After translation: addresses and ports are those of endpoints.
    #[default]
    Filter,
    /// `preDNAT`: as the packet came. Of host endpoints, and packets to them alone.
    BeforeTranslation,
    /// `doNotTrack`: nothing judges here.
    Untracked,
}

impl Policy {
    /// Rules of a direction, where the policy has it.
    #[must_use]
    pub fn rules(&self, direction: PolicyDirection) -> Option<&[PolicyRule]> {
        let rules = match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        };
        rules.as_deref()
    }

    /// Order within a tier.
    pub(super) fn place(&self) -> (PolicyOrder, &str, &str, PolicyKind) {
        (self.order, &self.name, &self.namespace, self.kind)
    }

    /// Kind and name, as `kubectl` takes them.
    #[must_use]
    pub fn title(&self) -> String {
        let kind = match self.kind {
            PolicyKind::Global => "GlobalNetworkPolicy",
            PolicyKind::Kubernetes => "NetworkPolicy (Kubernetes)",
            PolicyKind::Network => "NetworkPolicy",
        };
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{kind} {}{slash}{}", self.namespace, self.name)
    }
}

/// A tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyTier {
    /// Its place among the others.
    pub order: PolicyOrder,
    /// What it leaves undecided is for the next one; else it is dropped.
    pub passes: bool,
}

/// A profile: rules after all policies, and labels that its endpoints inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyProfile {
    /// Rules for packets to an endpoint.
    pub ingress: Vec<PolicyRule>,
    /// And from it.
    pub egress: Vec<PolicyRule>,
    /// `labelsToApply`.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl PolicyProfile {
    /// The name of one that clients make up: it allows everything.
    pub const ALLOW_ALL: &str = "projectcalico-default-allow";

    /// Rules of a direction.
    #[must_use]
    pub fn rules(&self, direction: PolicyDirection) -> &[PolicyRule] {
        match direction {
            PolicyDirection::Ingress => &self.ingress,
            PolicyDirection::Egress => &self.egress,
        }
    }
}
