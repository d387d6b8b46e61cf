//! The smallest pieces of BIRD's language, as text: prefixes and their sets, quoted strings.

use std::net::IpAddr;

use caracal_bgp::PrefixPattern;
use caracal_model::{IfName, Prefix};

use crate::RenderError;

/// The link of a link-local address, as it stands behind it.
pub(crate) fn link(interface: Option<&IfName>) -> String {
    interface.map_or_else(String::new, |name| format!("%'{name}'"))
}

/// An address without a dotted quad inside an IPv6 one, which BIRD does not read.
pub(crate) fn address(address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            let segments: Vec<_> = v6.segments().iter().map(|s| format!("{s:x}")).collect();
            segments.join(":")
        }
        other => other.to_string(),
    }
}

pub(crate) fn prefix(prefix: &Prefix) -> String {
    format!("{}/{}", address(prefix.address()), prefix.len())
}

/// `P`, `P+` or `P{min,max}`.
pub(crate) fn pattern(pattern: &PrefixPattern, what: &str) -> Result<String, RenderError> {
    let own = pattern.prefix.len();
    let bits = pattern.prefix.family().bits();
    if !(own <= pattern.min && pattern.min <= pattern.max && pattern.max <= bits) {
        return Err(RenderError::Inexpressible {
            what: what.to_owned(),
            value: format!("the prefix pattern {pattern}"),
            reason: "lengths go from at least the prefix's own up to at most the family's bits",
        });
    }
    let prefix = prefix(&pattern.prefix);
    Ok(match (pattern.min, pattern.max) {
        (min, max) if min == own && max == own => prefix,
        (min, max) if min == own && max == bits => format!("{prefix}+"),
        (min, max) => format!("{prefix}{{{min},{max}}}"),
    })
}

/// The content of a quoted string: BIRD has no escapes.
pub(crate) fn quotable(text: &str, what: &str) -> Result<String, RenderError> {
    if text.contains(|c: char| c == '"' || c.is_control()) {
        return Err(RenderError::Inexpressible {
            what: what.to_owned(),
            value: "a text with a quotation mark or a control character".to_owned(),
            reason: "BIRD's strings have no escapes",
        });
    }
    Ok(text.to_owned())
}
