//! A resource beside the others of its cluster: what may not change, and what may not be there
//! twice.

use serde_json::Value;

use super::check::at;
use super::rules_of;
use crate::net::{Family, Prefix};
use crate::resource::{Kind, ValueError};
use crate::snapshot::Snapshot;

/// Changes of immutable fields, one entry each.
pub(super) fn immutable(kind: Kind, stored: &Value, new: &Value) -> Vec<ValueError> {
    let mut faults = Vec::new();
    for rule in rules_of(kind).unwrap_or_default() {
        let Some(reason) = rule.immutable else {
            continue;
        };
        let (is, wanted) = (value(kind, rule.path, stored), value(kind, rule.path, new));
        if is != wanted && !is.is_null() {
            faults.push(ValueError(format!(
                "{} {wanted}: it is {is} and cannot be changed; {reason}",
                rule.path
            )));
        }
    }
    faults
}

/// A field's value, with Calico's default where none is set.
fn value(kind: Kind, path: &str, resource: &Value) -> Value {
    let found = at(resource, path).filter(|v| **v != 0);
    if kind == Kind::IpPool && path == "spec.blockSize" && found.is_none() {
        let cidr = at(resource, "spec.cidr").and_then(Value::as_str);
        let prefix = cidr.and_then(|text| Prefix::parse_strict(text).ok());
        let family = prefix.map_or(Family::Ipv4, |p| p.family());
        return Value::from(crate::resource::default_block_len(family));
    }
    found.cloned().unwrap_or_default()
}

/// Conflicts of a resource with other resources of the cluster. `snapshot` holds pools and blocks.
pub(super) fn conflicts(
    kind: Kind,
    name: &str,
    new: &Value,
    snapshot: &Snapshot,
) -> Vec<ValueError> {
    let cidr = at(new, "spec.cidr").and_then(Value::as_str);
    let Some(cidr) = cidr.and_then(|text| Prefix::parse_strict(text).ok()) else {
        return Vec::new();
    };
    if kind != Kind::IpPool {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (other, pool) in &snapshot.pools {
        let range = pool.spec.prefix();
        if other.as_str() != name && range.overlaps(&cidr) {
            faults.push(ValueError(format!(
                "spec.cidr {cidr} overlaps {range} of IPPool {other}; an address belongs to one pool"
            )));
        }
    }
    let exists = snapshot.pools.keys().any(|other| other.as_str() == name);
    let len = value(kind, "spec.blockSize", new).as_u64();
    let inside = || snapshot.blocks.keys().filter(|block| cidr.covers(block));
    let differs = |block: &&Prefix| Some(u64::from(block.len())) != len;
    if let (false, Some(block)) = (exists, inside().find(differs)) {
        let count = inside().filter(|b| differs(b)).count();
        faults.push(ValueError(format!(
            "spec.blockSize {}: {count} block(s) of another size lie in {cidr}, such as {block}; use blockSize {}, or release their addresses first",
            len.unwrap_or_default(),
            block.len()
        )));
    }
    faults
}
