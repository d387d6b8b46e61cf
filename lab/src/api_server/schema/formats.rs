//! Formats of strings and numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::Timestamp;
use serde_json::Value;

/// Is a value of the format? Formats that are not known hold for everything, as on a real server.
pub(super) fn holds(format: &str, value: &Value) -> bool {
    match value {
        Value::Number(number) => match format {
            "int32" => number.as_i64().is_none_or(|n| i32::try_from(n).is_ok()),
            _ => true,
        },
        Value::String(text) => match format {
            "date-time" => Timestamp::parse_rfc3339(text).is_some(),
            "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
            "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
            "cidr" => is_cidr(text),
            _ => true,
        },
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= most)
}
