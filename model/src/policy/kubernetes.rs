//! Kubernetes' NetworkPolicy, in the form of Calico's rules.

use std::collections::BTreeMap;

use serde_json::Value;

use super::calico::{WithFaults, labels};
use super::fields::{Fault, Fields, Read, bad, port, protocol};
use super::rule::{
    Budget, Policy, PolicyAction, PolicyKind, PolicyOrder, PolicyPort, PolicyRule, PolicyStage,
    RuleSide,
};
use super::{NAMESPACE, ORCHESTRATOR, having, of_namespace};
use crate::net::{Family, Prefix};
use crate::selector::Selector;

/// Where Calico puts these policies among its own, and in which tier.
const ORDER: f64 = 1000.0;
const TIER: &str = "default";
const TCP: u8 = 6;

/// Reads a policy. A rule that cannot be understood would only have allowed something, and is left
/// out; where it cannot be said whom a policy isolates, it isolates its namespace.
pub(super) fn policy(value: &Value, namespace: &str, name: &str) -> WithFaults<Policy> {
    let mut faults = Vec::new();
    let mut note = |Fault(fault)| faults.push(fault);
    let spec = Fields::only(
        &value["spec"],
        "value",
        &["podSelector", "policyTypes", "ingress", "egress"],
    );
    let (spec, is_unread) = match spec {
        Ok(spec) => (spec, !spec.has("podSelector") && !value["spec"].is_object()),
        Err(fault) => {
            note(fault.inside("spec"));
            (
                Fields::of(&value["spec"], "spec").unwrap_or_else(|_| Fields::none()),
                true,
            )
        }
    };
    let selected = label_selector(spec.get("podSelector"), "spec.podSelector");
    let selected = selected.map_err(&mut note).ok();
    let [has_ingress, has_egress] = types(spec).map_err(&mut note).unwrap_or([true, true]);
    let mut rules = |has: bool, direction: &str, peers: &str| {
        has.then(|| {
            let list = spec.list(direction).map_err(&mut note).unwrap_or_default();
            let (mut rules, mut budget) = (Vec::new(), Budget::new());
            for (at, rule) in list.iter().enumerate() {
                let field = format!("spec.{direction}[{at}]");
                let place = (peers, namespace);
                let read = read_rule(rule, place, &mut budget, &mut |fault: Fault| {
                    note(fault.inside(&field));
                });
                match read {
                    Ok(read) => rules.extend(read),
                    Err(fault) => note(fault.inside(&field)),
                }
            }
            // Nobody is meant for sure: nobody is let in.
            if is_unread || selected.is_none() {
                rules.clear();
            }
            rules
        })
    };
    let ingress = rules(has_ingress, "ingress", "from");
    let egress = rules(has_egress, "egress", "to");
    let subject = [Some(pods()), selected, Some(of_namespace(namespace))];
    let policy = Policy {
        kind: PolicyKind::Kubernetes,
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        tier: TIER.to_owned(),
        order: PolicyOrder::new(ORDER).unwrap_or(PolicyOrder::LAST),
        selector: Selector::all_of(subject.into_iter().flatten()),
        ingress,
        egress,
        on_forward: false,
        stage: PolicyStage::Filter,
    };
    (policy, faults)
}

/// Everything that is a pod.
fn pods() -> Selector {
    Selector::Equal(ORCHESTRATOR.to_owned(), "k8s".to_owned())
}

/// Directions: ingress always, egress where there are such rules; unless the policy says.
fn types(spec: Fields<'_>) -> Read<[bool; 2]> {
    let types = spec.list("policyTypes")?;
    if types.is_empty() {
        return Ok([true, spec.has("egress")]);
    }
    let mut has = [false, false];
    for value in types {
        match value.as_str() {
            Some("Ingress") => has[0] = true,
            Some("Egress") => has[1] = true,
            _ => return Err(bad("spec.policyTypes", value, "Ingress or Egress")),
        }
    }
    Ok(has)
}

/// `matchLabels` and `matchExpressions`.
fn label_selector(value: &Value, field: &str) -> Read<Selector> {
    let fields = Fields::only(value, "value", &["matchLabels", "matchExpressions"])
        .map_err(|fault| fault.inside(field))?;
    let labels: BTreeMap<String, String> =
        labels(fields, "matchLabels").map_err(|fault| fault.inside(field))?;
    let equal = |(key, value)| Selector::Equal(key, value);
    let mut parts: Vec<Selector> = labels.into_iter().map(equal).collect();
    for value in fields
        .list("matchExpressions")
        .map_err(|fault| fault.inside(field))?
    {
        let part = expression(value).map_err(|fault| fault.inside(field))?;
        parts.push(part);
    }
    Ok(Selector::all_of(parts))
}

fn expression(value: &Value) -> Read<Selector> {
    let fields = Fields::only(value, "matchExpressions", &["key", "operator", "values"])?;
    let key = fields.text("key")?.to_owned();
    if key.is_empty() {
        return Err(bad("key", fields.get("key"), "the name of a label"));
    }
    let mut values = std::collections::BTreeSet::new();
    for value in fields.list("values")? {
        let text = value
            .as_str()
            .ok_or_else(|| bad("values", value, "a text"))?;
        values.insert(text.to_owned());
    }
    Ok(match fields.text("operator")? {
        "In" => Selector::In(key, values),
        "NotIn" => Selector::NotIn(key, values),
        "Exists" => Selector::Has(key),
        "DoesNotExist" => Selector::Not(Box::new(Selector::Has(key))),
        _ => {
            let known = "In, NotIn, Exists or DoesNotExist";
            return Err(bad("operator", fields.get("operator"), known));
        }
    })
}

/// One rule a peer and protocol. A peer that cannot be understood allows nothing, and the others
/// do.
fn read_rule(
    value: &Value,
    (peers, namespace): (&str, &str),
    budget: &mut Budget,
    note: &mut dyn FnMut(Fault),
) -> Read<Vec<PolicyRule>> {
    let fields = Fields::only(value, "rule", &["ports", peers])?;
    let ports = ports(fields)?;
    let list = fields.list(peers)?;
    let mut sides = Vec::new();
    for (at, value) in list.iter().enumerate() {
        match peer(value, namespace) {
            Ok(side) => sides.push(side),
            Err(fault) => note(fault.inside(&format!("{peers}[{at}]"))),
        }
    }
    if list.is_empty() {
        sides.push(RuleSide::default());
    }
    // Before thousands of ports are copied for each of thousands of peers.
    let ways = ports.values().map(|ports| ports.len().max(1));
    let ways = ways.fold(0, usize::saturating_add);
    let families = |side: &RuleSide| {
        let families = [Family::Ipv4, Family::Ipv6].into_iter();
        families.filter(|family| !side.excludes(*family)).count()
    };
    let ends = sides.iter().map(families).fold(0, usize::saturating_add);
    budget.take(ends.saturating_mul(ways))?;
    let mut rules = Vec::new();
    for side in sides {
        for (protocol, ports) in &ports {
            let mut rule = PolicyRule::of_all(PolicyAction::Allow);
            rule.protocol = *protocol;
            match peers {
                "from" => rule.source = side.clone(),
                _ => rule.destination = side.clone(),
            }
            rule.destination.ports.clone_from(ports);
            rules.push(rule);
        }
    }
    Ok(rules)
}

fn peer(value: &Value, namespace: &str) -> Read<RuleSide> {
    let fields = Fields::only(
        value,
        "peer",
        &["podSelector", "namespaceSelector", "ipBlock"],
    )?;
    let [by_pod, by_namespace, by_block] =
        ["podSelector", "namespaceSelector", "ipBlock"].map(|field| fields.has(field));
    if by_block {
        if by_pod || by_namespace {
            return Err(Fault::new("ipBlock", "stands beside no selector"));
        }
        return block(fields.get("ipBlock"));
    }
    if !by_pod && !by_namespace {
        return Err(Fault::new("peer", "it selects nothing"));
    }
    let own = label_selector(fields.get("podSelector"), "podSelector")?;
    let within = match by_namespace {
        false => of_namespace(namespace),
        true => {
            let parents = label_selector(fields.get("namespaceSelector"), "namespaceSelector")?;
            parents.of_parents("pcns.", &having(NAMESPACE))
        }
    };
    Ok(RuleSide {
        selector: Some(Selector::all_of([pods(), own, within])),
        ..RuleSide::default()
    })
}

fn block(value: &Value) -> Read<RuleSide> {
    let fields =
        Fields::only(value, "ipBlock", &["cidr", "except"]).map_err(|f| f.inside("ipBlock"))?;
    let cidr: Prefix = match fields.prefix("cidr")? {
        Some(cidr) => cidr,
        None => {
            return Err(bad(
                "ipBlock.cidr",
                fields.get("cidr"),
                "a range of addresses",
            ));
        }
    };
    Ok(RuleSide {
        nets: vec![cidr],
        not_nets: fields.prefixes("except")?,
        ..RuleSide::default()
    })
}

/// Ports by protocol; one entry without a protocol where all are meant.
fn ports(fields: Fields<'_>) -> Read<BTreeMap<Option<u8>, Vec<PolicyPort>>> {
    let mut all: BTreeMap<Option<u8>, Vec<PolicyPort>> = BTreeMap::new();
    let list = fields.list("ports")?;
    if list.is_empty() {
        all.insert(None, Vec::new());
    }
    // A protocol of which some entry means each port.
    let mut whole = Vec::new();
    for value in list {
        let (number, port) = one_port(value)?;
        let ports = all.entry(Some(number)).or_default();
        match port {
            Some(port) => ports.push(port),
            None => whole.push(number),
        }
    }
    for number in whole {
        all.insert(Some(number), Vec::new());
    }
    Ok(all)
}

fn one_port(value: &Value) -> Read<(u8, Option<PolicyPort>)> {
    let fields = Fields::only(value, "ports", &["protocol", "port", "endPort"])?;
    let number = match fields.get("protocol") {
        Value::Null => TCP,
        value => match protocol(value).filter(|number| [6, 17, 132].contains(number)) {
            Some(number) => number,
            None => return Err(bad("protocol", value, "TCP, UDP or SCTP")),
        },
    };
    let first = fields.get("port");
    let last = fields.get("endPort");
    let wrong = || bad("ports.port", first, "a number of a port, or a name of one");
    let named = match first {
        Value::Null if last.is_null() => None,
        Value::String(name) if last.is_null() && !name.is_empty() => {
            Some(PolicyPort::Named(name.clone()))
        }
        first => {
            let first = port(first).ok_or_else(wrong)?;
            let last = match last {
                Value::Null => first,
                last => {
                    let end = port(last).filter(|last| *last >= first);
                    end.ok_or_else(|| bad("ports.endPort", last, "a port that is not lower"))?
                }
            };
            Some(PolicyPort::Range(first, last))
        }
    };
    Ok((number, named))
}
