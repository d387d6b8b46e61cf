//! Arithmetic, and extended communities made of numbers.

use std::net::IpAddr;

use super::stop::{Answer, fault};
use super::tree::Operator;
use super::value::Value;
use crate::types::{Administrator, Asn, ExtCommunity, ExtKind};

/// Numbers of 32 bits, which wrap around as in BIRD.
pub(super) fn arithmetic(operator: Operator, left: &Value, right: &Value) -> Answer<Value> {
    let (Value::Int(a), Value::Int(b)) = (left, right) else {
        return fault(format!(
            "arithmetic with {} and {}",
            left.value_type().what(),
            right.value_type().what()
        ));
    };
    Ok(Value::Int(match operator {
        Operator::Add => a.wrapping_add(*b),
        Operator::Subtract => a.wrapping_sub(*b),
        Operator::Multiply => a.wrapping_mul(*b),
        _ => match a.checked_div(*b) {
            Some(quotient) => quotient,
            None => return fault("division by zero"),
        },
    }))
}

/// An extended community of a kind, or of any by its two halves.
pub(super) fn extended(kind: Option<ExtKind>, first: &Value, second: &Value) -> Answer<Value> {
    let Value::Int(number) = second else {
        return fault("the last part of an extended community is a number");
    };
    let administrator = match first {
        Value::Int(asn) => Administrator::As(Asn(*asn)),
        Value::Ip(IpAddr::V4(address)) => Administrator::Address(*address),
        Value::Quad(quad) => Administrator::Address((*quad).into()),
        other => {
            return fault(format!(
                "{} in an extended community",
                other.value_type().what()
            ));
        }
    };
    let community = match (kind, administrator) {
        (None, Administrator::As(asn)) => Some(ExtCommunity::generic(asn.0, *number)),
        (None, Administrator::Address(_)) => None,
        (Some(kind), administrator) => ExtCommunity::known(kind, administrator, *number),
    };
    match community {
        Some(community) => Ok(Value::Extended(community)),
        None => fault("a number up to 65535 beside an address or an AS above 65535"),
    }
}
