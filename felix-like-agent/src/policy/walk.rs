//! What the table does with a packet, as the kernel goes through it, and which changes of it may
//! forbid what was allowed.

use std::cmp::Ordering;
use std::net::IpAddr;

use caracal_model::{Family, Packet};

use super::layout::{ALLOWED_EARLY, DISPATCH, FROM, FROM_DISPATCH, LEAVE, TO, TO_NODE};
use super::rule::{Action, End, FilterRule, Match, icmp_number};
use super::table::PolicyTable;
use crate::nft::{Field, Fields, InterfaceName, Sets};
use crate::transport::Transport;

impl PolicyTable {
    /// Whether the first packet of a flow may leave an endpoint; `None` = none has the interface.
    pub(crate) fn lets_out(&self, interface: InterfaceName, packet: &Packet) -> Option<bool> {
        self.decides(FROM, Field::Interface(interface), packet)
    }

    /// Whether it may enter one.
    pub(crate) fn lets_in(&self, interface: InterfaceName, packet: &Packet) -> Option<bool> {
        self.decides(TO, Field::Interface(interface), packet)
    }

    /// What the chain to which a map leads decides.
    pub(super) fn decides(&self, map: &'static str, key: Field, packet: &Packet) -> Option<bool> {
        self.walk(self.leads.get(&(map, [key].into()))?, packet)
    }

    /// `None`: the end of the chain was reached.
    fn walk(&self, chain: &str, packet: &Packet) -> Option<bool> {
        let rules = self.chains.get(chain)?.iter().flatten();
        for rule in rules.filter(|rule| self.matches(rule, packet)) {
            match &rule.action {
                Action::Accept => return Some(true),
                Action::Drop | Action::Refuse => return Some(false),
                Action::Log => {}
                Action::Goto(to) if leads_on(to) => return Some(true),
                Action::Goto(to) => return self.walk(to, packet),
                Action::Jump(to) => {
                    if let Some(verdict) = self.walk(to, packet) {
                        return Some(verdict);
                    }
                }
            }
        }
        None
    }

    fn matches(&self, rule: &FilterRule, packet: &Packet) -> bool {
        let family = Family::of(packet.source);
        let is_icmp = |of: &Family| *of == family && packet.protocol == icmp_number(family);
        let at = |end: &End| match end {
            End::Source => (packet.source, packet.ports.0),
            End::Destination => (packet.destination, packet.ports.1),
        };
        rule.matches.iter().all(|part| match part {
            Match::Family(of) => *of == family,
            Match::Protocol { number, not } => (packet.protocol == *number) != *not,
            Match::Net { end, net, not } => {
                net.family() == family && net.contains(at(end).0) != *not
            }
            Match::Set {
                end,
                family: of,
                set,
                not,
            } => *of == family && holds(self.sets.of(set), at(end).0) != *not,
            Match::Ports {
                end,
                first,
                last,
                not,
            } => (*first..=*last).contains(&at(end).1) != *not,
            Match::Triple {
                end,
                family: of,
                set,
                not,
            } => {
                let (address, port) = at(end);
                let is_in = triple(address, packet.protocol, port)
                    .is_some_and(|key| self.sets.of(set).binary_search(&key).is_ok());
                *of == family && is_in != *not
            }
            Match::IcmpType {
                family,
                number,
                not,
            } => is_icmp(family) && (packet.icmp.0 == *number) != *not,
            Match::IcmpCode {
                family,
                number,
                not,
            } => is_icmp(family) && (packet.icmp.1 == *number) != *not,
        })
    }

    /// Whether something that was allowed may not be so any more. Pods that come and go in sets
    /// that only allow or only deny change nothing for flows that are there, and are most changes.
    pub(crate) fn may_forbid_since(&self, before: Option<&Self>) -> bool {
        let Some(before) = before.filter(|before| before.base == self.base) else {
            return true;
        };
        let mut leads = self.leads.iter();
        if leads.any(|(at, chain)| before.leads.get(at) != Some(chain)) {
            return true;
        }
        self.sets.iter().any(|(set, now)| {
            let (gone, added) = Sets::differing(before.sets.of(set), now);
            (!gone.is_empty() && self.may_forbid(set, false))
                || (!added.is_empty() && self.may_forbid(set, true))
        })
    }

    /// Whether a rule forbids more when something comes into a set, or leaves it.
    fn may_forbid(&self, set: &str, comes: bool) -> bool {
        let chains = self.chains.values().flatten();
        chains.flatten().any(|rule| {
            let asks = rule.matches.iter().filter_map(|part| match part {
                Match::Set { set: of, not, .. } | Match::Triple { set: of, not, .. }
                    if **of == *set =>
                {
                    Some(*not)
                }
                _ => None,
            });
            let matches_more = |not: bool| comes != not;
            asks.into_iter().any(|not| match &rule.action {
                Action::Log => false,
                Action::Accept => !matches_more(not),
                Action::Goto(to) if leads_on(to) => !matches_more(not),
                Action::Drop | Action::Refuse => matches_more(not),
                // Another tier decides.
                Action::Goto(_) | Action::Jump(_) => true,
            })
        })
    }
}

/// A chain behind those of policies: the packet is allowed.
fn leads_on(chain: &str) -> bool {
    [FROM_DISPATCH, DISPATCH, LEAVE, TO_NODE, ALLOWED_EARLY].contains(&chain)
}

fn triple(address: IpAddr, protocol: u8, port: u16) -> Option<Fields> {
    let protocol = Transport::from_number(protocol)?;
    let fields = [
        Field::Address(address),
        Field::Protocol(protocol),
        Field::Port(port),
    ];
    Some(fields.into())
}

/// True for an address that a set of addresses or of ranges has: ranges come behind addresses, and
/// none lies over another.
fn holds(set: &[Fields], address: IpAddr) -> bool {
    let begins_before = |key: &Fields| match key.iter().next() {
        Some(Field::Range(range)) => range.address().cmp(&address) != Ordering::Greater,
        _ => true,
    };
    let before = &set[..set.partition_point(begins_before)];
    let in_range = before.last().and_then(|key| key.iter().next());
    matches!(in_range, Some(Field::Range(range)) if range.contains(address))
        || set.binary_search(&[Field::Address(address)].into()).is_ok()
}
