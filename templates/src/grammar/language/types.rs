//! Which types go together.

use caracal_bgp::{Method, Operator, SetKind, ValueType};

use ValueType as T;

/// A property of the language: its name, what it is of, and what it gives. With an argument there
/// is a list of its types.
pub(super) fn method(name: &str) -> Option<(Method, bool)> {
    Some(match name {
        "first" => (Method::First, false),
        "last" => (Method::Last, false),
        "last_nonaggregated" => (Method::LastNonaggregated, false),
        "len" => (Method::Len, false),
        "prepend" => (Method::Prepend, true),
        "add" => (Method::Add, true),
        "delete" => (Method::Delete, true),
        "filter" => (Method::Filter, true),
        "min" => (Method::Min, false),
        "max" => (Method::Max, false),
        "mask" => (Method::Mask, true),
        "is_v4" => (Method::IsV4, false),
        "ip" => (Method::Ip, false),
        "type" => (Method::Type, false),
        "asn" => (Method::Asn, false),
        "data" | "data1" => (Method::Data, false),
        "data2" => (Method::Data2, false),
        _ => return None,
    })
}

/// The type of a list's elements.
pub(super) const fn element(list: ValueType) -> Option<ValueType> {
    Some(match list {
        T::Path => T::Int,
        T::Communities => T::Pair,
        T::ExtCommunities => T::Extended,
        T::LargeCommunities => T::Large,
        T::Unknown => T::Unknown,
        _ => return None,
    })
}

/// The type of a property or method; `None`: there is none of this kind.
pub(super) fn method_type(
    method: Method,
    subject: ValueType,
    argument: Option<ValueType>,
) -> Option<ValueType> {
    if subject == T::Unknown {
        return Some(T::Unknown);
    }
    let list = element(subject);
    match (method, subject) {
        (Method::First | Method::Last | Method::LastNonaggregated, T::Path)
        | (Method::Asn | Method::Data, T::Pair)
        | (Method::Asn | Method::Data | Method::Data2, T::Large)
        | (Method::Len, T::Prefix) => return Some(T::Int),
        (Method::Len, _) => return list.map(|_| T::Int),
        (Method::Ip, T::Prefix) => return Some(T::Ip),
        (Method::Type, T::Prefix) => return Some(T::Enum(5)),
        (Method::IsV4, T::Ip) => return Some(T::Bool),
        (Method::Min | Method::Max, T::Path) => return None,
        (Method::Min | Method::Max, _) => return list,
        _ => {}
    }
    let given = argument?;
    let takes = match (method, subject) {
        (Method::Prepend, T::Path) => given.fits(T::Int),
        (Method::Mask, T::Ip) => return given.fits(T::Int).then_some(T::Ip),
        (Method::Add, T::Path) => false,
        (Method::Add, _) => is_part(list?, given) || given.fits(subject),
        (Method::Delete | Method::Filter, T::Path) => {
            given.fits(T::Int) || given.fits(T::Set(SetKind::Int))
        }
        (Method::Delete | Method::Filter, _) => {
            is_part(list?, given) || given.fits(subject) || holds_elements(list?, given)
        }
        _ => false,
    };
    takes.then_some(subject)
}

/// Router ids stand in lists of communities, too.
fn is_part(element: ValueType, given: ValueType) -> bool {
    given.fits(element) || (element == T::Pair && given == T::Quad)
}

fn holds_elements(element: ValueType, set: ValueType) -> bool {
    match set {
        T::EmptySet | T::Unknown => true,
        T::Set(SetKind::Quad) => element == T::Pair,
        T::Set(kind) => element.set_kind() == Some(kind),
        _ => false,
    }
}

/// The type of an operator's answer; `None`: it is not for these types.
pub(super) fn operator_type(
    operator: Operator,
    left: ValueType,
    right: ValueType,
) -> Option<ValueType> {
    use Operator as O;
    let fits = match operator {
        O::Add | O::Subtract | O::Multiply | O::Divide => {
            return (left.fits(T::Int) && right.fits(T::Int)).then_some(T::Int);
        }
        O::Equal | O::NotEqual => left.fits(right) || right.fits(left),
        O::Less | O::LessOrEqual | O::Greater | O::GreaterOrEqual => {
            let ordered = |value: ValueType| {
                value.set_kind().is_some()
                    || matches!(value, T::Unknown | T::Bool | T::Text | T::Prefix)
            };
            left.fits(right) && ordered(left) && ordered(right)
        }
        O::Match | O::NotMatch => may_match(left, right),
    };
    fits.then_some(T::Bool)
}

fn may_match(left: ValueType, right: ValueType) -> bool {
    match (left, right) {
        (T::Unknown, _) | (_, T::Unknown) => true,
        (T::Text, T::Text)
        | (T::Ip | T::Prefix, T::Prefix)
        | (T::Prefix, T::PrefixSet | T::EmptySet)
        | (T::Path, T::Mask)
        | (T::Int, T::Path)
        | (T::Pair | T::Quad, T::Communities)
        | (T::Extended, T::ExtCommunities)
        | (T::Large, T::LargeCommunities) => true,
        (_, T::Set(_) | T::EmptySet) => {
            let whole = |element| holds_elements(element, right);
            match left.set_kind() {
                Some(kind) => right == T::EmptySet || right == T::Set(kind),
                None => element(left).is_some_and(whole),
            }
        }
        _ => false,
    }
}
