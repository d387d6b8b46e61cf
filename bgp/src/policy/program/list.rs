//! AS paths and lists of communities: what they hold, their properties, and copies with changes.
//!
//! A list of communities is read and made by the numbers of its elements, so that there is one
//! mechanism for three kinds. `None` is the answer where types do not go together.

use std::sync::Arc;

use super::set::{SetKind, ValueSet};
use super::tree::Method;
use super::value::{RouteList, Value, ext_key, large_key};
use crate::attrs::{AsPath, PathAttrs, Segment, SegmentKind};
use crate::types::{Asn, Community, ExtCommunity, LargeCommunity};

fn path<'v>(attrs: Option<&'v PathAttrs>, value: &'v Value) -> Option<&'v AsPath> {
    match value {
        Value::Path(path) => Some(path),
        Value::Route(RouteList::Path) => attrs.map(|attrs| &attrs.as_path),
        _ => None,
    }
}

/// The kind of a list's elements.
const fn kind(list: &Value) -> Option<SetKind> {
    Some(match list {
        Value::Communities(_) | Value::Route(RouteList::Communities | RouteList::Clusters) => {
            SetKind::Pair
        }
        Value::ExtCommunities(_) | Value::Route(RouteList::ExtCommunities) => SetKind::Extended,
        Value::LargeCommunities(_) | Value::Route(RouteList::LargeCommunities) => SetKind::Large,
        _ => return None,
    })
}

/// True when one of the list's numbers meets the condition.
fn any(
    attrs: Option<&PathAttrs>,
    list: &Value,
    condition: &mut dyn FnMut(u128) -> bool,
) -> Option<bool> {
    let standard = |list: &[Community], condition: &mut dyn FnMut(u128) -> bool| {
        list.iter().any(|c| condition(c.0.into()))
    };
    let extended = |list: &[[u8; 8]], condition: &mut dyn FnMut(u128) -> bool| {
        list.iter().any(|c| condition(ext_key(ExtCommunity(*c))))
    };
    let large = |list: &[LargeCommunity], condition: &mut dyn FnMut(u128) -> bool| {
        list.iter().any(|c| condition(large_key(*c)))
    };
    Some(match list {
        Value::Communities(list) => standard(list, condition),
        Value::ExtCommunities(list) => extended(list, condition),
        Value::LargeCommunities(list) => large(list, condition),
        Value::Route(RouteList::Communities) => standard(&attrs?.communities, condition),
        Value::Route(RouteList::Clusters) => {
            let mut clusters = attrs?.cluster_list.iter();
            clusters.any(|id| condition(id.0.to_bits().into()))
        }
        Value::Route(RouteList::ExtCommunities) => extended(&attrs?.ext_communities, condition),
        Value::Route(RouteList::LargeCommunities) => large(&attrs?.large_communities, condition),
        _ => return None,
    })
}

fn keys(attrs: Option<&PathAttrs>, list: &Value) -> Option<Vec<u128>> {
    let mut keys = Vec::new();
    any(attrs, list, &mut |key| {
        keys.push(key);
        false
    })?;
    Some(keys)
}

/// The lowest 32 bits.
#[allow(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low(key: u128) -> u32 {
    key as u32
}

const fn extended(key: u128) -> ExtCommunity {
    ExtCommunity::generic(low(key >> 32), low(key))
}

const fn large(key: u128) -> LargeCommunity {
    LargeCommunity(low(key >> 64), low(key >> 32), low(key))
}

/// A list of these numbers.
fn list(kind: SetKind, mut keys: Vec<u128>) -> Value {
    keys.sort_unstable();
    keys.dedup();
    let keys = keys.into_iter();
    match kind {
        SetKind::Extended => Value::ExtCommunities(keys.map(|key| extended(key).0).collect()),
        SetKind::Large => Value::LargeCommunities(keys.map(large).collect()),
        _ => Value::Communities(keys.map(|key| Community(low(key))).collect()),
    }
}

fn element(kind: SetKind, key: u128) -> Value {
    match kind {
        SetKind::Extended => Value::Extended(extended(key)),
        SetKind::Large => Value::Large(large(key)),
        _ => Value::Pair(low(key)),
    }
}

/// The number of a value that may stand in a list of this kind. Router ids stand in lists of
/// communities, too.
fn key_in(kind: SetKind, value: &Value) -> Option<u128> {
    let (own, key) = value.key()?;
    (own == kind || (own, kind) == (SetKind::Quad, SetKind::Pair)).then_some(key)
}

/// True when the set may be asked for values of the kind.
fn asks(set: &ValueSet, kind: SetKind) -> bool {
    match set {
        ValueSet::Empty => true,
        ValueSet::Ranges(own, _) => *own == kind || (*own, kind) == (SetKind::Quad, SetKind::Pair),
        ValueSet::Prefixes(_) => false,
    }
}

/// The kind under which the set has its numbers.
const fn own_kind(set: &ValueSet, kind: SetKind) -> SetKind {
    match set {
        ValueSet::Ranges(own, _) => *own,
        _ => kind,
    }
}

/// `LEFT ~ RIGHT`.
pub(super) fn matches(attrs: Option<&PathAttrs>, left: &Value, right: &Value) -> Option<bool> {
    match right {
        Value::Set(set) => {
            if let Some(path) = path(attrs, left) {
                let holds = |asn: Asn| set.holds(SetKind::Int, asn.0.into());
                return asks(set, SetKind::Int).then(|| path.asns().any(holds));
            }
            if let Some(kind) = kind(left) {
                let own = own_kind(set, kind);
                let holds = &mut |key| set.holds(own, key);
                return if asks(set, kind) {
                    any(attrs, left, holds)
                } else {
                    None
                };
            }
            let (kind, key) = left.key()?;
            let same = matches!(&**set, ValueSet::Empty) || own_kind(set, kind) == kind;
            (same && asks(set, kind)).then(|| set.holds(kind, key))
        }
        Value::Mask(mask) => path(attrs, left).map(|path| mask.fits(path)),
        _ => {
            if let Some(path) = path(attrs, right) {
                let Value::Int(asn) = left else { return None };
                return Some(path.asns().any(|seen| seen.0 == *asn));
            }
            let wanted = key_in(kind(right)?, left)?;
            any(attrs, right, &mut |key| key == wanted)
        }
    }
}

/// A property or method of a path or list.
pub(super) fn method(
    attrs: Option<&PathAttrs>,
    method: Method,
    subject: &Value,
    argument: Option<&Value>,
) -> Option<Value> {
    if let Some(path) = path(attrs, subject) {
        return path_method(method, path, argument);
    }
    let kind = kind(subject)?;
    match (method, argument) {
        (Method::Len, None) => {
            let mut count = 0u32;
            any(attrs, subject, &mut |_| {
                count += 1;
                false
            })?;
            return Some(Value::Int(count));
        }
        (Method::Min | Method::Max, None) => {
            let keys = keys(attrs, subject)?.into_iter();
            let found = match method {
                Method::Min => keys.min(),
                _ => keys.max(),
            };
            return Some(found.map_or(Value::Void, |key| element(kind, key)));
        }
        _ => {}
    }
    let argument = argument?;
    let mut all = keys(attrs, subject)?;
    if let Value::Set(set) = argument {
        let own = own_kind(set, kind);
        let keep = match method {
            Method::Delete => false,
            Method::Filter => true,
            _ => return None,
        };
        if !asks(set, kind) {
            return None;
        }
        all.retain(|key| set.holds(own, *key) == keep);
        return Some(list(kind, all));
    }
    let given = match key_in(kind, argument) {
        Some(key) => vec![key],
        None if self::kind(argument) == Some(kind) => keys(attrs, argument)?,
        None => return None,
    };
    match method {
        Method::Add => all.extend(given),
        Method::Delete => all.retain(|key| !given.contains(key)),
        Method::Filter => all.retain(|key| given.contains(key)),
        _ => return None,
    }
    Some(list(kind, all))
}

fn path_method(method: Method, path: &AsPath, argument: Option<&Value>) -> Option<Value> {
    let number = |asn: Option<Asn>| Value::Int(asn.map_or(0, |asn| asn.0));
    Some(match (method, argument) {
        (Method::First, None) => number(path.first_as()),
        (Method::Last, None) => {
            let (kind, asns) = path.segments().last().unzip();
            let sequence = kind == Some(SegmentKind::Sequence);
            number(
                asns.filter(|_| sequence)
                    .and_then(|asns| asns.last().copied()),
            )
        }
        (Method::LastNonaggregated, None) => {
            let (kind, asns) = path.segments().next().unzip();
            let sequence = kind == Some(SegmentKind::Sequence);
            number(
                asns.filter(|_| sequence)
                    .and_then(|asns| asns.last().copied()),
            )
        }
        (Method::Len, None) => Value::Int(u32::try_from(path.path_len()).unwrap_or(u32::MAX)),
        (Method::Prepend, Some(Value::Int(asn))) => {
            let mut longer = path.clone();
            longer.prepend(Asn(*asn));
            Value::Path(Arc::new(longer))
        }
        (Method::Delete | Method::Filter, Some(argument)) => {
            let holds = |asn: Asn| match argument {
                Value::Int(number) => asn.0 == *number,
                Value::Set(set) => set.holds(SetKind::Int, asn.0.into()),
                _ => false,
            };
            let of_numbers = match argument {
                Value::Int(_) => true,
                Value::Set(set) => asks(set, SetKind::Int),
                _ => false,
            };
            if !of_numbers {
                return None;
            }
            let keep = method == Method::Filter;
            let segments = path.segments().map(|(kind, asns)| {
                let kept = asns.iter().copied().filter(|asn| holds(*asn) == keep);
                match kind {
                    SegmentKind::Sequence => Segment::Sequence(kept.collect()),
                    SegmentKind::Set => Segment::Set(kept.collect()),
                }
            });
            Value::Path(Arc::new(AsPath::new(segments)))
        }
        _ => return None,
    })
}

/// The elements of a settled path or list.
pub(super) fn elements(value: &Value) -> Option<Vec<Value>> {
    if let Some(path) = path(None, value) {
        return Some(path.asns().map(|asn| Value::Int(asn.0)).collect());
    }
    let kind = kind(value)?;
    let keys = keys(None, value)?;
    Some(keys.into_iter().map(|key| element(kind, key)).collect())
}
