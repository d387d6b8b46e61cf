//! `"subnet": "usePodCidr"` of the IPAM plugin `host-local`: the range of the node's pods takes the
//! place of the word, at the top and in each of `ranges`.

use caracal_model::{Family, Prefix};
use serde_json::Value;

use super::ConfigError;

/// The plugin that the words are for.
const HOST_LOCAL: &str = "host-local";

/// The words, in any case, and the families that they stand for.
const WORDS: [(&str, Family); 2] = [
    ("usePodCidr", Family::Ipv4),
    ("usePodCidrIPv6", Family::Ipv6),
];

/// Ranges for calls that free addresses: `host-local` finds those by the container, and only wants
/// ranges that can be read.
const ANY: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The family of a word.
fn word(subnet: &Value) -> Option<Family> {
    let subnet = subnet.as_str()?;
    let mut words = WORDS.iter();
    let found = words.find(|(word, _)| word.eq_ignore_ascii_case(subnet));
    found.map(|(_, family)| *family)
}

/// All places of the configuration where a word may stand.
fn subnets(conf: &mut Value) -> Vec<&mut Value> {
    let Some(ipam) = conf.get_mut("ipam").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (key, value) in ipam {
        match (key.as_str(), value) {
            ("subnet", value) => found.push(value),
            ("ranges", Value::Array(sets)) => {
                let ranges = sets.iter_mut().filter_map(Value::as_array_mut).flatten();
                found.extend(ranges.filter_map(|range| range.get_mut("subnet")));
            }
            _ => {}
        }
    }
    found
}

/// True when a configuration names the node's own range.
pub(crate) fn is_wanted(conf: &Value) -> bool {
    let mut conf = conf.clone();
    subnets(&mut conf)
        .iter()
        .any(|subnet| word(subnet).is_some())
}

/// Refuses the words where `host-local` is not the plugin.
///
/// # Errors
/// [`ConfigError::Unsupported`].
pub(crate) fn check(conf: &Value) -> Result<(), ConfigError> {
    if !is_wanted(conf) || conf["ipam"]["type"] == HOST_LOCAL {
        return Ok(());
    }
    Err(ConfigError::Unsupported {
        key: "ipam.subnet",
        value: "usePodCidr".to_owned(),
        hint: "it is for the IPAM plugin host-local; write the node's range, or use \"host-local\"",
    })
}

/// Puts the ranges of a node into a configuration.
///
/// # Errors
/// [`ConfigError::Invalid`] when the node has no range of the family.
pub(crate) fn fill(conf: &mut Value, ranges: &[Prefix]) -> Result<(), ConfigError> {
    for subnet in subnets(conf) {
        let Some(family) = word(subnet) else { continue };
        let range = ranges.iter().find(|range| range.family() == family);
        let range = range.ok_or_else(|| ConfigError::Invalid {
            key: "ipam.subnet",
            reason: format!(
                "{subnet}: the Node has no {family} range in spec.podCIDRs; does the controller manager give them out \
                 (--allocate-node-cidrs, --cluster-cidr)?"
            ),
        })?;
        *subnet = range.to_string().into();
    }
    Ok(())
}

/// Puts ranges in for a call that needs none.
pub(crate) fn fill_with_any(conf: &mut Value) {
    for subnet in subnets(conf) {
        match word(subnet) {
            Some(Family::Ipv4) => *subnet = ANY[0].into(),
            Some(Family::Ipv6) => *subnet = ANY[1].into(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn ranges(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_words_stand_for_the_nodes_ranges() {
        let mut conf = json!({"mtu": 1400, "ipam": {"type": "host-local", "subnet": "UsePodCidr",
            "ranges": [[{"subnet": "usePodCidr", "rangeStart": "x"}, {"subnet": "10.9.0.0/24"}],
                [{"subnet": "usePodCidrIPv6"}]]}});
        assert!(is_wanted(&conf));
        check(&conf).unwrap();
        let mut any = conf.clone();
        fill_with_any(&mut any);
        assert_eq!(any["ipam"]["subnet"], "0.0.0.0/0");
        assert_eq!(any["ipam"]["ranges"][1][0]["subnet"], "::/0");
        let mut lost = conf.clone();
        let said = fill(&mut lost, &ranges(&["10.244.1.0/24"])).unwrap_err();
        assert!(said.to_string().contains("has no IPv6 range"), "{said}");
        fill(&mut conf, &ranges(&["fd00:1::/64", "10.244.1.0/24"])).unwrap();
        let filled = json!({"mtu": 1400, "ipam": {"type": "host-local", "subnet": "10.244.1.0/24",
            "ranges": [[{"subnet": "10.244.1.0/24", "rangeStart": "x"}, {"subnet": "10.9.0.0/24"}],
                [{"subnet": "fd00:1::/64"}]]}});
        assert_eq!(conf, filled);
        assert!(!is_wanted(&conf));
    }

    #[test]
    fn other_plugins_do_not_know_the_words() {
        for kind in [json!("caracal-ipam"), json!(null), json!("static")] {
            let conf = json!({"ipam": {"type": kind, "subnet": "usePodCidr"}});
            let said = check(&conf).unwrap_err().to_string();
            assert!(said.contains("host-local"), "{said}");
        }
        for conf in [json!({}), json!({"ipam": {"subnet": "10.0.0.0/8"}})] {
            assert!(!is_wanted(&conf));
            check(&conf).unwrap();
        }
    }
}
