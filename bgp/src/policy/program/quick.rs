//! Conditions of the forms that stand in most filters, answered without a value for each part of
//! them: a route server asks ten of them about each of a million routes.
//!
//! Every other form, and whatever does not fit together, is left to the machine, which says what is
//! wrong. What is answered here is answered the same there.

use super::list;
use super::set::ValueSet;
use super::tree::{Attribute, Expression, Method, Operator};
use super::value::{RouteList, Value};
use crate::policy::RouteView;

/// Whether a condition holds; `None`: its form is another one.
pub(super) fn answer(route: &RouteView<'_>, condition: &Expression) -> Option<bool> {
    let Expression::Binary(operator, both) = condition else {
        return None;
    };
    let [left, right] = &**both;
    match operator {
        Operator::Match => matches(route, left, right),
        Operator::NotMatch => matches(route, left, right).map(|yes| !yes),
        Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide => None,
        Operator::Equal => compared(route, left, right, u32::eq),
        Operator::NotEqual => compared(route, left, right, u32::ne),
        Operator::Less => compared(route, left, right, u32::lt),
        Operator::LessOrEqual => compared(route, left, right, u32::le),
        Operator::Greater => compared(route, left, right, u32::gt),
        Operator::GreaterOrEqual => compared(route, left, right, u32::ge),
    }
}

/// `net ~ [PREFIX …]`, `bgp_path ~ [= … =]`, `(A, B) ~ bgp_community`.
fn matches(route: &RouteView<'_>, left: &Expression, right: &Expression) -> Option<bool> {
    match (left, right) {
        (Expression::Attribute(Attribute::Net), Expression::Constant(Value::Set(set))) => {
            match &**set {
                ValueSet::Prefixes(set) => Some(set.matches(&route.prefix)),
                ValueSet::Empty | ValueSet::Ranges(..) => None,
            }
        }
        (Expression::Attribute(Attribute::Path), Expression::Constant(Value::Mask(mask))) => {
            Some(mask.fits(&route.attrs.as_path))
        }
        (Expression::Constant(Value::Pair(pair)), Expression::Attribute(attribute)) => {
            let communities = route.attrs.communities.iter();
            let mut communities = communities.map(|community| community.0);
            (*attribute == Attribute::Communities)
                .then(|| communities.any(|community| community == *pair))
        }
        _ => None,
    }
}

fn compared(
    route: &RouteView<'_>,
    left: &Expression,
    right: &Expression,
    holds: fn(&u32, &u32) -> bool,
) -> Option<bool> {
    Some(holds(&number(route, left)?, &number(route, right)?))
}

/// A number of the file, or a property of the path that is one.
fn number(route: &RouteView<'_>, expression: &Expression) -> Option<u32> {
    let value = match expression {
        Expression::Constant(Value::Int(number)) => return Some(*number),
        Expression::Method(method @ (Method::Len | Method::First | Method::Last), of, None) => {
            let Expression::Attribute(Attribute::Path) = **of else {
                return None;
            };
            list::method(
                Some(&route.attrs),
                *method,
                &Value::Route(RouteList::Path),
                None,
            )?
        }
        _ => return None,
    };
    match value {
        Value::Int(number) => Some(number),
        _ => None,
    }
}
