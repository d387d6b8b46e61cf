//! Makes rules of the table of a policy's rules. One rule of a policy becomes several where
//! something of it is a list: nothing in the table is a set without a name.

use caracal_model::{Family, IcmpMatch, PolicyAction, PolicyPort, PolicyRule, Prefix, RuleSide};

use super::rule::{Action, End, FilterRule, Match, icmp_number};
use super::sets::SetMaker;

/// More ranges than this are a set.
const FEW: usize = 8;

/// Ways of which one has to be so; each is a number of questions that all have to be so.
type Ways = Vec<Vec<Match>>;

/// The rules of the table for one rule of a policy.
pub(super) fn rules(
    sets: &mut SetMaker<'_>,
    rule: &PolicyRule,
    decided: &Action,
) -> Vec<FilterRule> {
    let families = match (rule.family, asks_for_family(rule)) {
        (Some(family), _) => vec![Some(family)],
        (None, true) => vec![Some(Family::Ipv4), Some(Family::Ipv6)],
        (None, false) => vec![None],
    };
    let mut all = Vec::new();
    for family in families {
        for matches in ways(sets, rule, family) {
            let action = decided.clone();
            all.push(FilterRule { matches, action });
        }
    }
    all
}

/// What a rule does, where an allowed packet and a passed one go this way.
pub(super) fn decided(action: PolicyAction, allow: &Action, pass: &Action) -> Action {
    match action {
        PolicyAction::Allow => allow.clone(),
        PolicyAction::Deny => Action::Drop,
        PolicyAction::Log => Action::Log,
        PolicyAction::Pass => pass.clone(),
    }
}

/// True when a question is another one in each family.
fn asks_for_family(rule: &PolicyRule) -> bool {
    let side = |side: &RuleSide| {
        let mut ports = side.ports.iter().chain(&side.not_ports);
        !side.nets.is_empty()
            || !side.not_nets.is_empty()
            || side.selector.is_some()
            || side.not_selector.is_some()
            || ports.any(|port| matches!(port, PolicyPort::Named(_)))
    };
    rule.icmp.is_some() || rule.not_icmp.is_some() || side(&rule.source) || side(&rule.destination)
}

fn ways(sets: &mut SetMaker<'_>, rule: &PolicyRule, family: Option<Family>) -> Ways {
    let mut first = Vec::new();
    first.extend(family.map(Match::Family));
    for (number, not) in [(rule.protocol, false), (rule.not_protocol, true)] {
        first.extend(number.map(|number| Match::Protocol { number, not }));
    }
    let mut ways = vec![first];
    if let Some(family) = family {
        icmp(&mut ways, family, rule);
    }
    for (end, side) in [
        (End::Source, &rule.source),
        (End::Destination, &rule.destination),
    ] {
        if let Some(family) = family {
            addresses(sets, &mut ways, (end, family), side);
        }
        ports(sets, &mut ways, (end, family), side);
    }
    ways.retain(|way| is_possible(way));
    ways
}

/// False for a way that asks for two protocols at once, which `nft` does not take.
fn is_possible(way: &[Match]) -> bool {
    let mut asked = None;
    let mut excluded = [None, None];
    for part in way {
        let number = match part {
            Match::Protocol { number, not: true } => {
                excluded = [Some(*number), excluded[0]];
                continue;
            }
            Match::Protocol { number, not: false } => *number,
            Match::IcmpType { family, .. } | Match::IcmpCode { family, .. } => icmp_number(*family),
            _ => continue,
        };
        if asked.is_some_and(|asked| asked != number) {
            return false;
        }
        asked = Some(number);
    }
    asked.is_none() || !excluded.contains(&asked)
}

/// Each way that there is, with each of some questions.
fn multiply(ways: &mut Ways, questions: &[Vec<Match>]) {
    let mut all = Vec::with_capacity(ways.len() * questions.len());
    for way in ways.iter() {
        for question in questions {
            let mut way = way.clone();
            way.extend_from_slice(question);
            all.push(way);
        }
    }
    *ways = all;
}

/// Each way asks this, too.
fn narrow(ways: &mut Ways, question: &Match) {
    for way in ways.iter_mut() {
        way.push(question.clone());
    }
}

fn icmp(ways: &mut Ways, family: Family, rule: &PolicyRule) {
    let kind = |number, not| Match::IcmpType {
        family,
        number,
        not,
    };
    let code = |number, not| Match::IcmpCode {
        family,
        number,
        not,
    };
    if let Some(IcmpMatch {
        kind: number,
        code: wanted,
    }) = rule.icmp
    {
        narrow(ways, &kind(number, false));
        if let Some(number) = wanted {
            narrow(ways, &code(number, false));
        }
    }
    if let Some(IcmpMatch {
        kind: number,
        code: wanted,
    }) = rule.not_icmp
    {
        // What is not ICMP at all, another type, another code.
        let other = Match::Protocol {
            number: icmp_number(family),
            not: true,
        };
        let mut others = vec![vec![other], vec![kind(number, true)]];
        others.extend(wanted.map(|wanted| vec![kind(number, false), code(wanted, true)]));
        multiply(ways, &others);
    }
}

fn addresses(
    sets: &mut SetMaker<'_>,
    ways: &mut Ways,
    (end, family): (End, Family),
    side: &RuleSide,
) {
    if side.excludes(family) {
        ways.clear();
        return;
    }
    let of_family = |nets: &[Prefix]| -> Vec<Prefix> {
        let nets = nets.iter().copied();
        nets.filter(|net| net.family() == family).collect()
    };
    let in_set = |set, not| Match::Set {
        end,
        family,
        set,
        not,
    };
    let nets = of_family(&side.nets);
    let all = |nets: &[Prefix]| nets.iter().any(|net| net.len() == 0);
    match nets.len() {
        0 => {}
        _ if all(&nets) => {}
        1..=FEW => {
            let each = nets.iter().map(|net| {
                vec![Match::Net {
                    end,
                    net: *net,
                    not: false,
                }]
            });
            multiply(ways, &each.collect::<Vec<_>>());
        }
        _ => narrow(ways, &in_set(sets.ranges(family, &nets), false)),
    }
    let not_nets = of_family(&side.not_nets);
    match not_nets.len() {
        _ if all(&not_nets) => ways.clear(),
        0..=FEW => {
            for net in not_nets {
                narrow(
                    ways,
                    &Match::Net {
                        end,
                        net,
                        not: true,
                    },
                );
            }
        }
        _ => narrow(ways, &in_set(sets.ranges(family, &not_nets), true)),
    }
    if let Some(selector) = &side.selector {
        let members = sets.members(selector);
        let each = members
            .sets(family)
            .map(|set| vec![in_set(set.clone(), false)]);
        multiply(ways, &each.collect::<Vec<_>>());
    }
    if let Some(selector) = &side.not_selector {
        for set in sets.members(selector).sets(family) {
            narrow(ways, &in_set(set.clone(), true));
        }
    }
}

fn ports(
    sets: &mut SetMaker<'_>,
    ways: &mut Ways,
    (end, family): (End, Option<Family>),
    side: &RuleSide,
) {
    let mut question = |port: &PolicyPort, not| match (port, family) {
        (PolicyPort::Range(first, last), _) => Some(Match::Ports {
            end,
            first: *first,
            last: *last,
            not,
        }),
        (PolicyPort::Named(name), Some(family)) => {
            let set = sets.triples(family, side.selector.as_ref(), name);
            Some(Match::Triple {
                end,
                family,
                set,
                not,
            })
        }
        // A name asks for the family.
        (PolicyPort::Named(_), None) => None,
    };
    if !side.ports.is_empty() {
        let mut each = Vec::new();
        for port in &side.ports {
            each.extend(question(port, false).map(|question| vec![question]));
        }
        multiply(ways, &each);
    }
    for port in &side.not_ports {
        if let Some(question) = question(port, true) {
            narrow(ways, &question);
        }
    }
}
