//! BGPFilter resources as the speaker's route policy.
//!
//! A BGPFilter has four lists of rules, import and export for either family; each that is used
//! becomes one [`Filter`] with Calico's name for it. A filter that a peer names and that does not
//! exist is passed over, as in Calico; one that exists and cannot be understood refuses every
//! route, because the other way to be wrong leaks routes.

use std::collections::{BTreeMap, BTreeSet};

use caracal_bgp::{
    AnyCommunity, Asn, Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PeerKind,
    PeerName, PrefixPattern, RouteSource,
};
use caracal_model::{
    AsNumber, BgpFilterOperation, BgpFilterRule, BgpFilterSpec, Family, FieldNote, InsertEach, Key,
    Kind, Prefix, PrefixLength, ProblemCode,
};
use sha2::{Digest, Sha256};

use crate::Problems;
use crate::announce::EXPORT_FILTER;
use crate::common::path;
use crate::session::PlannedSession;
use crate::settings::PRIORITY_BASE;
use crate::view::NodeView;

/// Direction of a filter: import or export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// From the peer to us.
    Import,
    /// From us to the peer.
    Export,
}

/// Gives every session its filters, the built-in export filter last, and returns the filters in
/// use.
pub(crate) fn attach(
    view: &NodeView<'_>,
    sessions: &mut BTreeMap<PeerName, PlannedSession>,
    problems: &mut Problems,
) -> BTreeMap<String, Filter> {
    let mut filters = BTreeMap::new();
    for session in sessions.values_mut() {
        for name in session.filters.clone() {
            for direction in DIRECTIONS {
                let family = Family::of(session.address);
                let function = function_name(&name, direction, family);
                let filter = match find(view, &name, direction, family) {
                    Found::Missing => {
                        problems.note(
                            ProblemCode::BgpFilterMissing,
                            session.subject.clone(),
                            format!("spec.filters names BGPFilter {name:?}, which does not exist; it is passed over"),
                        );
                        continue;
                    }
                    Found::Rules([]) => continue,
                    Found::Rules(rules) => filters
                        .entry(function.clone())
                        .or_insert_with(|| translate(&name, rules, direction, family, problems)),
                    Found::Refused => filters.entry(function.clone()).or_insert_with(refuse_all),
                };
                debug_assert!(!filter.terms.is_empty(), "rules have terms");
                match direction {
                    Direction::Import => session.peer.import.push(function),
                    Direction::Export => session.peer.export.push(function),
                }
            }
        }
        session.peer.export.push(EXPORT_FILTER.to_owned());
    }
    filters
}

/// Both ways.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Import, Direction::Export];

/// Rules of a filter for one direction and family.
pub(crate) enum Found<'a> {
    /// There is no such filter.
    Missing,
    /// These rules; none has nothing to say.
    Rules(&'a [BgpFilterRule]),
    /// It cannot be understood: its value does not parse and no good one is known, or it has a
    /// field that no BGPFilter has. What its writer wanted to keep in would get out.
    Refused,
}

/// Looks a filter up.
pub(crate) fn find<'a>(
    view: &NodeView<'a>,
    name: &str,
    direction: Direction,
    family: Family,
) -> Found<'a> {
    let path = path(Kind::BgpFilter, name);
    let wrong = |note: &FieldNote| note.is_unknown() && note.is_about_content();
    let unknown = |notes: &Vec<FieldNote>| notes.iter().any(wrong);
    match view.snapshot.bgp_filters.get(name) {
        Some(_) if view.snapshot.notes.get(&path).is_some_and(unknown) => Found::Refused,
        Some(resource) => Found::Rules(rules(&resource.spec, direction, family)),
        None if view.snapshot.invalid.contains_key(&path) => Found::Refused,
        None => Found::Missing,
    }
}

/// The names of all filters, those that cannot be read included.
pub(crate) fn names(view: &NodeView<'_>) -> BTreeSet<String> {
    let unreadable = view
        .snapshot
        .invalid
        .keys()
        .filter_map(|path| match Key::parse(path) {
            Ok(Key::Resource {
                kind: Kind::BgpFilter,
                name,
                ..
            }) => Some(name),
            _ => None,
        });
    let readable = view.snapshot.bgp_filters.keys().cloned();
    readable.chain(unreadable).insert_each()
}

fn rules(spec: &BgpFilterSpec, direction: Direction, family: Family) -> &[BgpFilterRule] {
    match (direction, family) {
        (Direction::Import, Family::Ipv4) => &spec.import_v4,
        (Direction::Import, Family::Ipv6) => &spec.import_v6,
        (Direction::Export, Family::Ipv4) => &spec.export_v4,
        (Direction::Export, Family::Ipv6) => &spec.export_v6,
    }
}

/// `bgp_NAME_importFilterV4`. A NAME of more than 45 characters is cut to 28 and told apart by a
/// hash.
#[must_use]
pub(crate) fn function_name(filter: &str, direction: Direction, family: Family) -> String {
    const MAX_NAME: usize = 45;
    const KEPT: usize = 28;
    let name = if filter.chars().count() > MAX_NAME {
        let kept: String = filter.chars().take(KEPT).collect();
        let digest = Sha256::digest(filter);
        let hash: String = digest[..8].iter().map(|b| format!("{b:02X}")).collect();
        format!("{kept}_{hash}")
    } else {
        filter.to_owned()
    };
    let direction = match direction {
        Direction::Import => "import",
        Direction::Export => "export",
    };
    let family = match family {
        Family::Ipv4 => "V4",
        Family::Ipv6 => "V6",
    };
    format!("bgp_{name}_{direction}Filter{family}")
}

pub(crate) fn translate(
    name: &str,
    rules: &[BgpFilterRule],
    direction: Direction,
    family: Family,
    problems: &mut Problems,
) -> Filter {
    let mut terms = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        match term(rule, family) {
            Ok(term) => terms.push(term),
            Err(reason) => {
                let list = match (direction, family) {
                    (Direction::Import, Family::Ipv4) => "importV4",
                    (Direction::Import, Family::Ipv6) => "importV6",
                    (Direction::Export, Family::Ipv4) => "exportV4",
                    (Direction::Export, Family::Ipv6) => "exportV6",
                };
                problems.note(
                    ProblemCode::BgpFilter,
                    path(Kind::BgpFilter, name),
                    format!("spec.{list}[{index}]: {reason}; the list refuses every route until it is corrected"),
                );
                return refuse_all();
            }
        }
    }
    Filter::from(terms)
}

pub(crate) fn refuse_all() -> Filter {
    Filter::from(vec![FilterTerm {
        conditions: Vec::new(),
        actions: Vec::new(),
        verdict: Some(FilterVerdict::Reject),
    }])
}

/// Conditions stand in Calico's order: range, source, interface, community, AS path, priority.
fn term(rule: &BgpFilterRule, family: Family) -> Result<FilterTerm, String> {
    let mut conditions = Vec::new();
    match rule.peer_type.as_str() {
        "" => {}
        "eBGP" => conditions.push(FilterCondition::PeerKind(PeerKind::External)),
        "iBGP" => conditions.push(FilterCondition::PeerKind(PeerKind::Internal)),
        other => return Err(format!("peerType {other:?} is not eBGP or iBGP")),
    }
    conditions.extend(range(rule, family)?);
    match rule.source.as_str() {
        "" => {}
        "RemotePeers" => conditions.push(FilterCondition::Source(RouteSource::Bgp)),
        other => return Err(format!("source {other:?} is not RemotePeers")),
    }
    if !rule.interface.is_empty() {
        conditions.push(FilterCondition::Interface(rule.interface.clone()));
    }
    for text in rule.communities.iter().flat_map(|c| &c.values) {
        conditions.push(FilterCondition::Community(community(text)?));
    }
    if !rule.as_path_prefix.is_empty() {
        conditions.push(FilterCondition::AsPathPrefix(numbers(&rule.as_path_prefix)));
    }
    if let Some(priority) = rule.priority {
        conditions.push(FilterCondition::LocalPref(local_pref(priority)?));
    }
    let verdict = match rule.action.as_str() {
        "Accept" => FilterVerdict::Accept,
        "Reject" if rule.operations.is_empty() => FilterVerdict::Reject,
        "Reject" => return Err("operations go with the action Accept only".to_owned()),
        other => return Err(format!("action {other:?} is not Accept or Reject")),
    };
    let actions = rule
        .operations
        .iter()
        .map(action)
        .collect::<Result<_, _>>()?;
    Ok(FilterTerm {
        conditions,
        actions,
        verdict: Some(verdict),
    })
}

fn range(rule: &BgpFilterRule, family: Family) -> Result<Option<FilterCondition>, String> {
    let (cidr, operator) = match (&rule.cidr, rule.match_operator.as_str()) {
        (None, "") if rule.prefix_length.is_some() => {
            return Err("prefixLength needs cidr".to_owned());
        }
        (None, "") => return Ok(None),
        (Some(cidr), operator) if !operator.is_empty() => (*cidr, operator),
        _ => return Err("cidr and matchOperator go together".to_owned()),
    };
    if cidr.family() != family {
        return Err(format!("cidr {cidr} is of the other address family"));
    }
    let (within, negated) = match operator {
        "Equal" => (false, false),
        "NotEqual" => (false, true),
        "In" => (true, false),
        "NotIn" => (true, true),
        other => {
            return Err(format!(
                "matchOperator {other:?} is not Equal, NotEqual, In or NotIn"
            ));
        }
    };
    let pattern = match rule.prefix_length {
        Some(length) => bounded(cidr, length)?,
        None if within => PrefixPattern::or_longer(cidr),
        None => PrefixPattern::exact(cidr),
    };
    Ok(Some(FilterCondition::Prefix {
        patterns: vec![pattern],
        negated,
    }))
}

/// Bounds outside of what the range can hold are moved to its edge, as Calico does.
fn bounded(prefix: Prefix, length: PrefixLength) -> Result<PrefixPattern, String> {
    let bits = prefix.family().bits();
    let min = length.min.unwrap_or(0).max(prefix.len());
    let max = length.max.unwrap_or(bits).min(bits);
    if min > max {
        return Err(format!(
            "prefixLength {min} to {max} holds no length that {prefix} can have"
        ));
    }
    Ok(PrefixPattern { prefix, min, max })
}

fn community(text: &str) -> Result<AnyCommunity, String> {
    text.parse()
        .map_err(|e: caracal_bgp::CommunityError| e.to_string())
}

fn numbers(list: &[AsNumber]) -> Vec<Asn> {
    list.iter().map(|asn| Asn(asn.0)).collect()
}

fn local_pref(priority: u32) -> Result<u32, String> {
    PRIORITY_BASE
        .checked_sub(priority)
        .ok_or_else(|| format!("priority {priority} exceeds {PRIORITY_BASE}"))
}

fn action(operation: &BgpFilterOperation) -> Result<FilterAction, String> {
    match (
        &operation.add_community,
        &operation.prepend_as_path,
        &operation.set_priority,
    ) {
        (Some(add), None, None) => Ok(FilterAction::AddCommunity(community(&add.value)?)),
        (None, Some(prepend), None) if !prepend.prefix.is_empty() => {
            Ok(FilterAction::PrependAsPath(numbers(&prepend.prefix)))
        }
        (None, None, Some(set)) => Ok(FilterAction::SetLocalPref(local_pref(set.value)?)),
        _ => Err(
            "an operation is exactly one of addCommunity, prependASPath (not empty) and setPriority"
                .to_owned(),
        ),
    }
}
