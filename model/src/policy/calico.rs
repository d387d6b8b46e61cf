//! Calico's policies, tiers, profiles and sets of addresses, as they stand in the datastore.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Fault, Fields, Read, bad, octet, port, protocol};
use super::rule::{
    Budget, IcmpMatch, Policy, PolicyAction, PolicyKind, PolicyOrder, PolicyPort, PolicyProfile,
    PolicyRule, PolicyStage, PolicyTier, RuleSide,
};
use super::{NAMESPACE, SERVICE_ACCOUNT, having};
use crate::net::{Family, Prefix};
use crate::selector::Selector;

const DEFAULT_TIER: &str = "default";
/// The annotation with the name that people gave.
const METADATA: &str = "projectcalico.org/metadata";

const RULE_FIELDS: [&str; 9] = [
    "action",
    "ipVersion",
    "protocol",
    "notProtocol",
    "icmp",
    "notICMP",
    "source",
    "destination",
    "metadata",
];
const SIDE_FIELDS: [&str; 8] = [
    "nets",
    "notNets",
    "selector",
    "notSelector",
    "namespaceSelector",
    "serviceAccounts",
    "ports",
    "notPorts",
];

/// A policy, and what of it cannot be understood.
pub(super) type WithFaults<T> = (T, Vec<String>);

/// Reads a policy of a namespace, or of the cluster where that is empty. What cannot be understood
/// denies in its direction.
pub(super) fn policy(value: &Value, namespace: &str, key: &str) -> WithFaults<Policy> {
    let mut faults = Vec::new();
    let spec = noted(&mut faults, Fields::of(&value["spec"], "spec"));
    // A value that is no object at all.
    let is_unread = spec.is_none() || !value.is_object();
    let spec = spec.unwrap_or_else(Fields::none);
    let order = in_spec(&mut faults, read_order(spec)).unwrap_or(PolicyOrder::LAST);
    let tier = in_spec(&mut faults, spec.text("tier")).filter(|tier| !tier.is_empty());
    let subject = in_spec(&mut faults, subject(spec, namespace));
    let places = in_spec(&mut faults, places(spec));
    let denies = is_unread || subject.is_none() || places.is_none();
    let (on_forward, stage) = places.unwrap_or((true, PolicyStage::Filter));
    let [ingress, egress] = ["ingress", "egress"].map(|direction| {
        let rules = in_spec(&mut faults, spec.list(direction));
        let rules = rules.map(|rules| all_rules(rules, direction, namespace, &mut faults));
        let rules = rules.filter(|_| !denies);
        rules.unwrap_or_else(|| vec![PolicyRule::of_all(PolicyAction::Deny)])
    });
    let types = in_spec(&mut faults, types(spec));
    let [has_ingress, has_egress] = types.unwrap_or([true, true]);
    let policy = Policy {
        kind: match namespace.is_empty() {
            true => PolicyKind::Global,
            false => PolicyKind::Network,
        },
        name: given_name(value, key).unwrap_or_else(|| key.to_owned()),
        namespace: namespace.to_owned(),
        tier: tier.unwrap_or(DEFAULT_TIER).to_owned(),
        order,
        selector: subject.unwrap_or_else(|| super::of_namespace(namespace)),
        ingress: has_ingress.then_some(ingress),
        egress: has_egress.then_some(egress),
        on_forward,
        stage,
    };
    (policy, faults)
}

/// Notes why something cannot be read.
pub(super) fn noted<T>(faults: &mut Vec<String>, read: Read<T>) -> Option<T> {
    read.map_err(|Fault(fault)| faults.push(fault)).ok()
}

/// The same of a field of `spec`.
pub(super) fn in_spec<T>(faults: &mut Vec<String>, read: Read<T>) -> Option<T> {
    noted(faults, read.map_err(|fault| fault.inside("spec")))
}

/// The name that people gave, which the key may have in an older form.
fn given_name(value: &Value, key: &str) -> Option<String> {
    let annotation = value["metadata"]["annotations"].get(METADATA);
    let kept: Option<Value> = annotation
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str(text).ok());
    let kept = kept.as_ref().and_then(|kept| kept["name"].as_str());
    match kept {
        Some(name) => Some(name.to_owned()),
        None => key.strip_prefix("default.").map(str::to_owned),
    }
}

fn read_order(spec: Fields<'_>) -> Read<PolicyOrder> {
    match spec.get("order") {
        Value::Null => Ok(PolicyOrder::LAST),
        value => {
            let order = value.as_f64().and_then(PolicyOrder::new);
            order.ok_or_else(|| bad("order", value, "a number"))
        }
    }
}

/// Absent is both, as Felix reads it.
fn types(spec: Fields<'_>) -> Read<[bool; 2]> {
    let mut has = [false, false];
    let types = spec.list("types")?;
    for value in types {
        match value.as_str() {
            Some("Ingress") => has[0] = true,
            Some("Egress") => has[1] = true,
            _ => return Err(bad("types", value, "Ingress or Egress")),
        }
    }
    Ok(if types.is_empty() { [true, true] } else { has })
}

/// Whether it judges what passes through a node, and at which place.
fn places(spec: Fields<'_>) -> Read<(bool, PolicyStage)> {
    let stage = match (spec.flag("preDNAT")?, spec.flag("doNotTrack")?) {
        (_, true) => PolicyStage::Untracked,
        (true, false) => PolicyStage::BeforeTranslation,
        (false, false) => PolicyStage::Filter,
    };
    Ok((spec.flag("applyOnForward")?, stage))
}

/// The endpoints that a policy judges.
fn subject(spec: Fields<'_>, namespace: &str) -> Read<Selector> {
    let own = spec.selector("selector")?;
    let parents = match namespace.is_empty() {
        true => spec.selector("namespaceSelector")?.map(of_namespaces),
        false => Some(super::of_namespace(namespace)),
    };
    let accounts = spec.selector("serviceAccountSelector")?.map(of_accounts);
    Ok(Selector::all_of(
        [own, parents, accounts].into_iter().flatten(),
    ))
}

fn of_namespaces(selector: Selector) -> Selector {
    selector.of_parents("pcns.", &having(NAMESPACE))
}

fn of_accounts(selector: Selector) -> Selector {
    selector.of_parents("pcsa.", &having(SERVICE_ACCOUNT))
}

/// Reads rules. One that cannot be understood and would have allowed matches nothing; of any other
/// it is not known what it spares, so that it denies everything.
fn all_rules(
    rules: &[Value],
    direction: &str,
    namespace: &str,
    faults: &mut Vec<String>,
) -> Vec<PolicyRule> {
    let (mut read, mut budget) = (Vec::new(), Budget::new());
    for (at, value) in rules.iter().enumerate() {
        let rule = rule(value, namespace);
        match rule.and_then(|rule| budget.take(rule.rules()).map(|()| rule)) {
            Ok(rule) => read.push(rule),
            Err(fault) => {
                let Fault(text) = fault.inside(&format!("spec.{direction}[{at}]"));
                faults.push(text);
                match value["action"].as_str() {
                    Some("Allow" | "Log") => {}
                    _ => read.push(PolicyRule::of_all(PolicyAction::Deny)),
                }
            }
        }
    }
    read
}

fn rule(value: &Value, namespace: &str) -> Read<PolicyRule> {
    let fields = Fields::only(value, "rule", &RULE_FIELDS)?;
    let action = match fields.text("action")? {
        "Allow" => PolicyAction::Allow,
        "Deny" => PolicyAction::Deny,
        "Log" => PolicyAction::Log,
        "Pass" => PolicyAction::Pass,
        _ => {
            return Err(bad(
                "action",
                fields.get("action"),
                "Allow, Deny, Log or Pass",
            ));
        }
    };
    let family = match fields.get("ipVersion") {
        Value::Null => None,
        value => match value.as_u64() {
            Some(4) => Some(Family::Ipv4),
            Some(6) => Some(Family::Ipv6),
            _ => return Err(bad("ipVersion", value, "4 or 6")),
        },
    };
    let number = |field: &str| match fields.get(field) {
        Value::Null => Ok(None),
        value => {
            let number = protocol(value).ok_or_else(|| bad(field, value, "a protocol"));
            number.map(Some)
        }
    };
    let rule = PolicyRule {
        action,
        family,
        protocol: number("protocol")?,
        not_protocol: number("notProtocol")?,
        icmp: icmp(fields.get("icmp"), "icmp")?,
        not_icmp: icmp(fields.get("notICMP"), "notICMP")?,
        source: side(fields.get("source"), namespace).map_err(|f| f.inside("source"))?,
        destination: side(fields.get("destination"), namespace)
            .map_err(|f| f.inside("destination"))?,
    };
    match rule.has_numbered_ports() && !rule.protocol_has_ports() {
        true => Err(Fault::new(
            "protocol",
            "ports need protocol TCP, UDP or SCTP",
        )),
        false => Ok(rule),
    }
}

fn icmp(value: &Value, field: &str) -> Read<Option<IcmpMatch>> {
    let within = |fault: Fault| fault.inside(field);
    let fields = Fields::only(value, "value", &["type", "code"]).map_err(within)?;
    let number = |of: &str| match fields.get(of) {
        Value::Null => Ok(None),
        value => {
            let number = octet(value).ok_or_else(|| bad(of, value, "a number below 256"));
            number.map(Some).map_err(|fault| fault.inside(field))
        }
    };
    match (number("type")?, number("code")?) {
        (Some(kind), code) => Ok(Some(IcmpMatch { kind, code })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Fault::new(field, "a code needs a type")),
    }
}

fn side(value: &Value, namespace: &str) -> Read<RuleSide> {
    let fields = Fields::only(value, "side", &SIDE_FIELDS)?;
    let own = fields.selector("selector")?;
    let not_selector = fields.selector("notSelector")?;
    let parents = fields.selector("namespaceSelector")?.map(of_namespaces);
    let accounts = service_accounts(fields.get("serviceAccounts"))?;
    let asks = own.is_some() || not_selector.is_some() || accounts.is_some();
    let within = match parents {
        None if asks && !namespace.is_empty() => Some(super::of_namespace(namespace)),
        parents => parents,
    };
    let parts = [within, own, accounts];
    let is_positive = parts.iter().any(Option::is_some);
    let positive = Selector::all_of(parts.into_iter().flatten());
    // A negative one beside it takes away from the members; alone it is everybody else.
    let (selector, not_selector) = match (is_positive, not_selector) {
        (true, Some(not)) => {
            let both = [positive, Selector::Not(Box::new(not))];
            (Some(Selector::all_of(both)), None)
        }
        (true, None) => (Some(positive), None),
        (false, not) => (None, not),
    };
    Ok(RuleSide {
        nets: fields.prefixes("nets")?,
        not_nets: fields.prefixes("notNets")?,
        selector,
        not_selector,
        ports: ports(fields, "ports")?,
        not_ports: ports(fields, "notPorts")?,
    })
}

fn service_accounts(value: &Value) -> Read<Option<Selector>> {
    let within = |fault: Fault| fault.inside("serviceAccounts");
    let fields = Fields::only(value, "value", &["names", "selector"]).map_err(within)?;
    let mut names = std::collections::BTreeSet::new();
    for value in fields.list("names").map_err(within)? {
        let name = value.as_str().ok_or_else(|| bad("names", value, "a text"));
        names.insert(name.map_err(within)?.to_owned());
    }
    let named = (!names.is_empty()).then(|| Selector::In(SERVICE_ACCOUNT.to_owned(), names));
    let selector = fields
        .selector("selector")
        .map_err(within)?
        .map(of_accounts);
    Ok(match (named, selector) {
        (None, None) => None,
        (named, selector) => Some(Selector::all_of(named.into_iter().chain(selector))),
    })
}

fn ports(fields: Fields<'_>, field: &str) -> Read<Vec<PolicyPort>> {
    let each = |value: &Value| {
        let wrong = || bad(field, value, "a port, a range such as \"80:90\", or a name");
        if value.is_number() {
            let number = port(value).ok_or_else(wrong)?;
            return Ok(PolicyPort::Range(number, number));
        }
        let text = value
            .as_str()
            .filter(|text| !text.is_empty())
            .ok_or_else(wrong)?;
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(PolicyPort::Range(first, last)),
            (Err(_), Err(_)) if !text.contains(':') => Ok(PolicyPort::Named(text.to_owned())),
            _ => Err(wrong()),
        }
    };
    fields.list(field)?.iter().map(each).collect()
}

/// Reads a tier.
pub(super) fn tier(value: &Value) -> Read<PolicyTier> {
    let spec = Fields::of(&value["spec"], "spec")?;
    let passes = match spec.text("defaultAction")? {
        "" | "Deny" => false,
        "Pass" => true,
        _ => {
            return Err(bad(
                "defaultAction",
                spec.get("defaultAction"),
                "Deny or Pass",
            ));
        }
    };
    Ok(PolicyTier {
        order: read_order(spec)?,
        passes,
    })
}

/// Reads a profile, and what of it cannot be understood.
pub(super) fn profile(value: &Value) -> WithFaults<PolicyProfile> {
    let mut faults = Vec::new();
    let spec = noted(&mut faults, Fields::of(&value["spec"], "spec"));
    let spec = spec.unwrap_or_else(Fields::none);
    let [ingress, egress] = ["ingress", "egress"].map(|direction| {
        let rules = in_spec(&mut faults, spec.list(direction)).unwrap_or_default();
        all_rules(rules, direction, "", &mut faults)
    });
    let labels = in_spec(&mut faults, labels(spec, "labelsToApply")).unwrap_or_default();
    let profile = PolicyProfile {
        ingress,
        egress,
        labels,
    };
    (profile, faults)
}

/// Reads labels.
pub(super) fn labels(fields: Fields<'_>, field: &str) -> Read<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let map = Fields::of(fields.get(field), field)?;
    for (key, value) in map.entries() {
        let text = value.as_str().ok_or_else(|| bad(key, value, "a text"));
        labels.insert(
            key.clone(),
            text.map_err(|fault| fault.inside(field))?.to_owned(),
        );
    }
    Ok(labels)
}

/// Labels and addresses of a set.
pub(super) fn addresses(value: &Value) -> Read<(BTreeMap<String, String>, Vec<Prefix>)> {
    let metadata = Fields::of(&value["metadata"], "metadata")?;
    let spec = Fields::of(&value["spec"], "spec")?;
    Ok((labels(metadata, "labels")?, spec.prefixes("nets")?))
}
