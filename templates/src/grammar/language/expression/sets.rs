//! Sets and path masks: what stands between brackets.

use std::sync::Arc;

use caracal_bgp::{Administrator, Asn};
use caracal_bgp::{
    Expression, ExtCommunity, ExtKind, MaskPart, PathMask, PrefixSet, SetKind, SetPattern, Value,
    ValueSet, ValueType,
};
use caracal_model::Prefix;
use nom::Err;

use super::super::super::lexer::{ParseFault, Res, one_of_words, skip, symbol, token, u8_number};
use super::super::literal::literal;
use super::super::scope::{Named, Scope};
use super::{computed, extended_kind, fault, term};

/// `[= … =]` or `[ … ]`.
pub(super) fn brackets<'a>(scope: &mut Scope<'a>, at: &'a str) -> Res<'a, (Expression, ValueType)> {
    if let Some(inside) = at.strip_prefix("[=") {
        let (rest, parts) = mask(scope, at, inside)?;
        return Ok((rest, (Expression::Mask(parts.into()), ValueType::Mask)));
    }
    let (rest, set) = set(scope, &at[1..], "]")?;
    let value = Value::Set(Arc::new(set));
    let value_type = value.value_type();
    Ok((rest, (Expression::Constant(value), value_type)))
}

fn mask<'a>(scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, Vec<MaskPart>> {
    let mut parts = Vec::new();
    let mut rest = s;
    loop {
        let (after, word) = match one_of_words(&["=]", "*", "?", "+"], rest) {
            Ok((after, word)) => (after, word),
            Err(_) => (rest, ""),
        };
        match word {
            "=]" => break rest = after,
            "*" => parts.push(MaskPart::Any),
            "?" => parts.push(MaskPart::One),
            "+" if !matches!(parts.last(), None | Some(MaskPart::Any | MaskPart::More)) => {
                parts.push(MaskPart::More);
            }
            "+" => return Err(fault(skip(rest), "an AS number before \"+\"")),
            _ => {
                let (after, part) = mask_part(scope, rest)?;
                parts.push(part);
                rest = after;
                continue;
            }
        }
        rest = after;
    }
    if parts.len() > PathMask::MOST {
        let what = format!("a mask of at most {} parts", PathMask::MOST);
        return Err(fault(at, what));
    }
    Ok((rest, parts))
}

/// `N`, `N..M`, a set, the name of a constant or variable, `(E)`.
fn mask_part<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, MaskPart> {
    let at = skip(s);
    let (rest, low) = mask_value(scope, at)?;
    if !skip(rest).starts_with("..") {
        return Ok((rest, MaskPart::Value(low)));
    }
    let (rest, _) = token("..")(rest)?;
    let (rest, high) = mask_value(scope, rest)?;
    Ok((rest, MaskPart::Range(low, high)))
}

fn mask_value<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Expression> {
    let at = skip(s);
    if let (rest, Some(value)) = literal(at)? {
        return match value {
            Value::Int(_) => Ok((rest, Expression::Constant(value))),
            _ => Err(fault(at, "an AS number, a set of them, \"*\" or \"?\"")),
        };
    }
    if let Some(inside) = at.strip_prefix('[') {
        let (rest, set) = set(scope, inside, "]")?;
        let value = Value::Set(Arc::new(set));
        if !value.value_type().fits(ValueType::Set(SetKind::Int)) {
            return Err(fault(at, "a set of AS numbers"));
        }
        return Ok((rest, Expression::Constant(value)));
    }
    if let Some(inside) = at.strip_prefix('(') {
        let (rest, value) = term(scope, inside)?;
        let (rest, _) = token(")")(rest)?;
        return Ok((rest, value.of(ValueType::Int)?));
    }
    let Ok((rest, name)) = symbol(at) else {
        let what = "an AS number, a set, \"*\", \"?\", \"+\" or \"=]\"";
        return Err(fault(at, what));
    };
    let numbers =
        |found: ValueType| found.fits(ValueType::Int) || found.fits(ValueType::Set(SetKind::Int));
    let variable = scope.variable(name.value);
    if let Some(variable) = variable.filter(|variable| numbers(variable.value_type)) {
        return Ok((rest, Expression::Variable(variable.slot)));
    }
    match scope.find(name.value) {
        Some(Named::Constant(value)) if numbers(value.value_type()) => {
            Ok((rest, Expression::Constant(value.clone())))
        }
        _ => Err(fault(at, "the name of a number or of a set of numbers")),
    }
}

/// Elements of a set, as they are gathered.
enum Gathered {
    Nothing,
    Ranges(SetKind, Vec<(u128, u128)>),
    Prefixes(Vec<SetPattern>),
}

/// Elements up to `end`.
pub(in crate::grammar::language) fn set<'a>(
    scope: &mut Scope<'a>,
    s: &'a str,
    end: &'static str,
) -> Res<'a, ValueSet> {
    let mut gathered = Gathered::Nothing;
    let mut rest = s;
    if let Ok((rest, _)) = token(end)(rest) {
        return Ok((rest, ValueSet::Empty));
    }
    loop {
        let at = skip(rest);
        rest = element(scope, at, &mut gathered)?.0;
        let (after, word) = one_of_words(&[",", end], rest)?;
        rest = after;
        if word == end {
            break;
        }
    }
    let set = match gathered {
        Gathered::Nothing => ValueSet::Empty,
        Gathered::Ranges(kind, ranges) => ValueSet::ranges(kind, ranges),
        Gathered::Prefixes(patterns) => ValueSet::Prefixes(PrefixSet::new(patterns)),
    };
    Ok((rest, set))
}

impl Gathered {
    fn range<'a>(
        &mut self,
        at: &'a str,
        kind: SetKind,
        low: u128,
        high: u128,
    ) -> Result<(), Err<ParseFault<'a>>> {
        if low > high {
            return Err(fault(at, "a range whose first value is not above its last"));
        }
        match self {
            Self::Nothing => *self = Self::Ranges(kind, vec![(low, high)]),
            Self::Ranges(own, ranges) if *own == kind => ranges.push((low, high)),
            _ => return Err(fault(at, "elements of one type in a set")),
        }
        Ok(())
    }

    fn prefix<'a>(&mut self, at: &'a str, pattern: SetPattern) -> Result<(), Err<ParseFault<'a>>> {
        match self {
            Self::Nothing => *self = Self::Prefixes(vec![pattern]),
            Self::Prefixes(patterns) => {
                let first = patterns.first().map(|first| first.prefix.family());
                if first != Some(pattern.prefix.family()) {
                    return Err(fault(at, "prefixes of one family in a set"));
                }
                patterns.push(pattern);
            }
            Self::Ranges(..) => return Err(fault(at, "elements of one type in a set")),
        }
        Ok(())
    }
}

fn element<'a>(scope: &mut Scope<'a>, at: &'a str, into: &mut Gathered) -> Res<'a, ()> {
    if let Some(inside) = at.strip_prefix('(') {
        if let Some((rest, kind)) = extended_kind(inside) {
            return extended_element(scope, at, kind, rest, into);
        }
        let (rest, first) = component(scope, inside)?;
        if token(",")(rest).is_ok() {
            return tuple(scope, at, first, rest, into);
        }
    }
    let (rest, low) = atom(scope, at)?;
    if let Value::Prefix(prefix) = low {
        let (rest, pattern) = lengths(prefix, rest)?;
        into.prefix(at, pattern)?;
        return Ok((rest, ()));
    }
    let Some((kind, first)) = low.key() else {
        return Err(fault(
            at,
            format!("an element of a set (this is {})", low.value_type().what()),
        ));
    };
    let (rest, last) = if skip(rest).starts_with("..") {
        let (rest, _) = token("..")(rest)?;
        let high_at = skip(rest);
        let (rest, high) = atom(scope, high_at)?;
        match high.key() {
            Some((same, last)) if same == kind => (rest, last),
            _ => return Err(fault(high_at, "the end of the range, of the same type")),
        }
    } else {
        (rest, first)
    };
    into.range(at, kind, first, last)?;
    Ok((rest, ()))
}

/// A literal, the name of a constant or word, `(E)`.
fn atom<'a>(scope: &mut Scope<'a>, at: &'a str) -> Res<'a, Value> {
    if let (rest, Some(value)) = literal(at)? {
        return Ok((rest, value));
    }
    if let Some(inside) = at.strip_prefix('(') {
        let (rest, value) = computed(scope, inside)?;
        let (rest, _) = token(")")(rest)?;
        return Ok((rest, value));
    }
    let Ok((rest, name)) = symbol(at) else {
        return Err(Err::Error(ParseFault::new(at, "an element of the set")));
    };
    if let Some(Named::Constant(value)) = scope.find(name.value) {
        return match value {
            Value::Prefix(_) => Err(fault(at, "the prefix itself: BIRD takes no constant here")),
            value => Ok((rest, value.clone())),
        };
    }
    match caracal_bgp::enumeration_word(name.value) {
        Some(value) => Ok((rest, value)),
        None => Err(fault(
            at,
            format!(
                "a value or the name of a constant; {:?} is not defined",
                name.value
            ),
        )),
    }
}

/// Behind a prefix: `+`, `-`, `{MIN,MAX}` or nothing.
fn lengths(prefix: Prefix, s: &str) -> Res<'_, SetPattern> {
    let (own, bits) = (prefix.len(), prefix.family().bits());
    let pattern = |min, max| SetPattern { prefix, min, max };
    if let Some(rest) = s.strip_prefix('+') {
        return Ok((rest, pattern(own, bits)));
    }
    if let Some(rest) = s.strip_prefix('-') {
        return Ok((rest, pattern(0, own)));
    }
    let Some(inside) = s.strip_prefix('{') else {
        return Ok((s, pattern(own, own)));
    };
    let (rest, min) = u8_number(inside)?;
    let (rest, _) = token(",")(rest)?;
    let (rest, max) = u8_number(rest)?;
    let (rest, _) = token("}")(rest)?;
    if min > max || max > bits {
        let what = format!("lengths {{MIN,MAX}} with MIN <= MAX <= {bits}");
        return Err(fault(s, what));
    }
    Ok((rest, pattern(min, max)))
}

/// A part of a tuple: the first and last number; `None`: `*`.
type Component = Option<(u32, u32)>;

fn component<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Component> {
    if let Ok((rest, _)) = token("*")(s) {
        return Ok((rest, None));
    }
    let (rest, low) = number(scope, s)?;
    if !skip(rest).starts_with("..") {
        return Ok((rest, Some((low, low))));
    }
    let (rest, _) = token("..")(rest)?;
    let at = skip(rest);
    let (rest, high) = number(scope, rest)?;
    if high < low {
        return Err(fault(at, "a range whose first value is not above its last"));
    }
    Ok((rest, Some((low, high))))
}

fn number<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, u32> {
    let at = skip(s);
    match computed(scope, s)? {
        (rest, Value::Int(number)) => Ok((rest, number)),
        // What stands in parentheses alone may be of any type.
        (rest, _) if token(")")(rest).is_ok() => Ok((rest, 0)),
        (_, other) => Err(fault(
            at,
            format!("a number (this is {})", other.value_type().what()),
        )),
    }
}

/// Behind the first part of a pair or of a large community.
fn tuple<'a>(
    scope: &mut Scope<'a>,
    at: &'a str,
    first: Component,
    s: &'a str,
    into: &mut Gathered,
) -> Res<'a, ()> {
    let (rest, _) = token(",")(s)?;
    let (rest, second) = component(scope, rest)?;
    if let Ok((rest, _)) = token(",")(rest) {
        let (rest, third) = component(scope, rest)?;
        let (rest, _) = token(")")(rest)?;
        let all = [first, second, third];
        only_open_behind(at, &all)?;
        let ends = |end: fn((u32, u32)) -> u32| {
            all.iter().fold(0u128, |key, part| {
                key << 32 | u128::from(end(part.unwrap_or((0, u32::MAX))))
            })
        };
        into.range(
            at,
            SetKind::Large,
            ends(|(low, _)| low),
            ends(|(_, high)| high),
        )?;
        return Ok((rest, ()));
    }
    let (rest, _) = token(")")(rest)?;
    let whole = (0, u32::from(u16::MAX));
    let ((a, b), (c, d)) = (first.unwrap_or(whole), second.unwrap_or(whole));
    if b > whole.1 || d > whole.1 {
        return Err(fault(at, "parts of a pair up to 65535"));
    }
    if (c, d) == whole {
        into.range(at, SetKind::Pair, (a << 16).into(), (b << 16 | d).into())?;
        return Ok((rest, ()));
    }
    for asn in a..=b {
        into.range(
            at,
            SetKind::Pair,
            (asn << 16 | c).into(),
            (asn << 16 | d).into(),
        )?;
    }
    Ok((rest, ()))
}

/// Behind a range or `*` stands nothing but `*`.
fn only_open_behind<'a>(at: &'a str, parts: &[Component]) -> Result<(), Err<ParseFault<'a>>> {
    let mut open = false;
    for part in parts {
        if open && part.is_some() {
            return Err(fault(at, "\"*\" in each part behind a range or \"*\""));
        }
        open |= part.is_none_or(|(low, high)| low != high);
    }
    Ok(())
}

/// Behind `(rt,`.
fn extended_element<'a>(
    scope: &mut Scope<'a>,
    at: &'a str,
    kind: Option<ExtKind>,
    s: &'a str,
    into: &mut Gathered,
) -> Res<'a, ()> {
    let (rest, first) = component(scope, s)?;
    let (rest, _) = token(",")(rest)?;
    let (rest, second) = component(scope, rest)?;
    let (rest, _) = token(")")(rest)?;
    only_open_behind(at, &[first, second])?;
    let two_octets = u32::from(u16::MAX);
    let (low_as, high_as) = match (kind, first) {
        (_, Some(both)) => both,
        (Some(_), None) => (0, two_octets),
        (None, None) => (0, u32::MAX),
    };
    let most = match kind {
        Some(_) if high_as > two_octets => two_octets,
        _ => u32::MAX,
    };
    let (low, high) = second.unwrap_or((0, most));
    let community = |asn, number| match kind {
        Some(kind) => ExtCommunity::known(kind, Administrator::As(Asn(asn)), number),
        None => Some(ExtCommunity::generic(asn, number)),
    };
    let same_form = kind.is_none() || (low_as > two_octets) == (high_as > two_octets);
    let ends = (community(low_as, low), community(high_as, high));
    let (Some(low), Some(high)) = ends else {
        return Err(fault(at, "a number up to 65535 beside an AS above 65535"));
    };
    if !same_form {
        return Err(fault(at, "AS numbers on one side of 65535"));
    }
    let key = |community: ExtCommunity| u128::from(u64::from_be_bytes(community.0));
    into.range(at, SetKind::Extended, key(low), key(high))?;
    Ok((rest, ()))
}
