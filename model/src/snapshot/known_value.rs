//! Reads of a value just what is kept of it, without making the rest: most blocks and endpoints are
//! other nodes', and each of their blocks is read again whenever a pod of theirs comes or goes.
//! What concerns the node is read whole, and so is a value with something wrong in it, for the
//! reason.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::known_block::Holder;
use super::{Holders, KnownBlock, Networks};
use crate::ipam::{Block, BlockOwner};
use crate::names::NodeName;
use crate::net::Prefix;
use crate::resource::ValueError;

#[derive(Deserialize)]
struct Value<'a> {
    cidr: Prefix,
    #[serde(borrow, default)]
    affinity: Option<Text<'a>>,
    #[serde(default)]
    allocations: Option<Allocations>,
    #[serde(default)]
    unallocated: Option<Largest>,
    #[serde(borrow, default)]
    attributes: Option<Vec<Attribute<'a>>>,
    #[serde(default, rename = "podCIDR")]
    is_pod_cidr: bool,
}

/// Indices of attributes, by ordinal.
struct Allocations(Vec<Option<usize>>);

/// The largest number of a list.
struct Largest(Option<usize>);

/// Ordinals of a block of the usual length.
const ORDINALS: usize = 64;

impl<'de> Deserialize<'de> for Allocations {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut all = Vec::with_capacity(ORDINALS);
        each(d, &mut |index| all.push(index))?;
        Ok(Self(all))
    }
}

impl<'de> Deserialize<'de> for Largest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let mut largest = None;
        let mut null = false;
        each(d, &mut |number| {
            null |= number.is_none();
            largest = largest.max(number);
        })?;
        match null {
            true => Err(de::Error::custom("null among ordinals")),
            false => Ok(Self(largest)),
        }
    }
}

/// Hands on each number of a list, or `None` for a null.
fn each<'de, D: Deserializer<'de>>(
    d: D,
    take: &mut dyn FnMut(Option<usize>),
) -> Result<(), D::Error> {
    struct Numbers<'t>(&'t mut dyn FnMut(Option<usize>));
    impl<'de> Visitor<'de> for Numbers<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of numbers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
            while let Some(number) = list.next_element()? {
                (self.0)(number);
            }
            Ok(())
        }
    }
    d.deserialize_seq(Numbers(take))
}

#[derive(Deserialize)]
struct Endpoint<'a> {
    #[serde(rename = "metadata")]
    _metadata: IgnoredAny,
    #[serde(borrow)]
    spec: EndpointSpec<'a>,
}

#[derive(Deserialize)]
struct EndpointSpec<'a> {
    #[serde(borrow)]
    node: Cow<'a, str>,
    #[serde(default, rename = "ipNetworks")]
    ip_networks: Option<Vec<Prefix>>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Attribute<'a> {
    #[serde(borrow, default)]
    secondary: Option<Secondary<'a>>,
    #[serde(default, rename = "releasedAt")]
    released_at: Option<IgnoredAny>,
}

/// What is read of an attribute's texts.
#[derive(Default)]
struct Secondary<'a> {
    node: Option<Cow<'a, str>>,
    namespace: Option<Cow<'a, str>>,
    pod: Option<Cow<'a, str>>,
    has_type: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Secondary<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Secondary<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
                let mut found = Secondary::default();
                while let Some((Text(key), Text(value))) = pairs.next_entry()? {
                    match &*key {
                        "node" => found.node = Some(value),
                        "namespace" => found.namespace = Some(value),
                        "pod" => found.pod = Some(value),
                        "type" => found.has_type = true,
                        _ => {}
                    }
                }
                Ok(found)
            }
        }
        d.deserialize_map(Pairs)
    }
}

/// Compact form of the block under a key, for a node; without a node the whole block. Notes who
/// holds the addresses of one that does not concern the node.
pub(super) fn block(
    key: Prefix,
    value: &[u8],
    node: Option<&NodeName>,
    interned: &dyn Fn(&str) -> NodeName,
    holders: &mut Option<Holders>,
) -> Result<KnownBlock, ValueError> {
    if let Some(node) = node
        && let Ok((known, read)) = known(value, interned)
        && known.cidr == key
        && !known.concerns(node)
    {
        if let Some(holders) = holders {
            read.note(holders);
        }
        return Ok(known);
    }
    let block = Block::from_json(value)?;
    if block.cidr == key {
        return Ok(KnownBlock::new(block, node));
    }
    Err(ValueError(format!(
        "the block says {} under the key of {key}",
        block.cidr
    )))
}

/// Node and addresses of an endpoint of another node than `me`. `None`: it is to be read whole.
pub(super) fn elsewhere(
    value: &[u8],
    me: &NodeName,
    interned: &dyn Fn(&str) -> NodeName,
) -> Option<(NodeName, Networks)> {
    let text = std::str::from_utf8(value).ok()?;
    let Endpoint { spec, .. } = serde_json::from_str(text).ok()?;
    let networks = spec.ip_networks.unwrap_or_default();
    (spec.node != me.as_str()).then(|| (interned(&spec.node), networks.as_slice().into()))
}

impl Value<'_> {
    /// Notes the pods that addresses are given to.
    fn note(&self, holders: &mut Holders) {
        let attributes = self.attributes.as_deref().unwrap_or_default();
        let held = self
            .allocations
            .iter()
            .flat_map(|all| all.0.iter().flatten());
        for attribute in held.filter_map(|index| attributes.get(*index)) {
            let Some(secondary) = &attribute.secondary else {
                continue;
            };
            if attribute.released_at.is_none()
                && !secondary.has_type
                && let Some(node) = &secondary.node
                && let Some(namespace) = &secondary.namespace
                && let Some(pod) = &secondary.pod
            {
                holders.add(namespace, node, pod);
            }
        }
    }
}

fn known<'a>(
    value: &'a [u8],
    interned: &dyn Fn(&str) -> NodeName,
) -> Result<(KnownBlock, Value<'a>), serde_json::Error> {
    let wrong = de::Error::custom;
    // As a text, which it is checked for at once and not string by string.
    let text = std::str::from_utf8(value).map_err(|_| wrong("no text"))?;
    let value: Value<'_> = serde_json::from_str(text)?;
    let allocations = value.allocations.as_ref().map(|all| all.0.as_slice());
    let allocations = allocations.unwrap_or_default();
    let attributes = value.attributes.as_deref().unwrap_or_default();
    let size = allocations.len();
    let largest_free = value.unallocated.as_ref().and_then(|free| free.0);
    let without = value.is_pod_cidr && size == 0;
    let complete = without || u128::try_from(size).ok() == Some(value.cidr.size());
    if !complete || largest_free.is_some_and(|ordinal| ordinal >= size) {
        return Err(wrong("another number of addresses"));
    }
    let owner = match &value.affinity {
        None => None,
        Some(Text(text)) => Some(BlockOwner::from_text(text).ok_or_else(|| wrong("no owner"))?),
    };
    let owner = owner.map(|owner| match owner {
        BlockOwner::Host(name) => BlockOwner::Host(interned(name.as_str())),
        other @ BlockOwner::Virtual(_) => other,
    });
    let mut known = KnownBlock::empty(value.cidr, owner, size);
    for (ordinal, index) in allocations.iter().enumerate() {
        let Some(index) = index else { continue };
        let attribute = attributes.get(*index);
        let attribute = attribute.ok_or_else(|| wrong("no such attribute"))?;
        let secondary = attribute.secondary.as_ref();
        let holder = Holder::from_facts(
            attribute.released_at.is_some(),
            secondary.is_some_and(|s| s.has_type),
        );
        let user = secondary.and_then(|s| s.node.as_deref());
        known.add(ordinal, holder, user, interned);
    }
    Ok((known, value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::ipam::AllocationAttribute;
    use crate::resource::WorkloadEndpoint;

    fn attribute() -> impl Strategy<Value = AllocationAttribute> {
        let node = proptest::option::of(prop_oneof!["a", "b", "c", "ä\"\\\\b"]);
        (node, any::<bool>(), any::<bool>()).prop_map(|(node, device, cooling)| {
            let mut attribute = AllocationAttribute::default();
            let secondary = &mut attribute.secondary;
            secondary.extend(node.map(|node| ("node".to_owned(), node)));
            secondary.insert("pod".to_owned(), "web-0".to_owned());
            if device {
                secondary.insert("type".to_owned(), "vxlanTunnelAddress".to_owned());
            }
            attribute.released_at = cooling.then(|| "2026-01-01T00:00:00Z".to_owned());
            attribute
        })
    }

    #[test]
    fn of_an_endpoint_elsewhere_its_node_and_addresses_are_read() {
        let me = NodeName::from("a");
        let read = |spec: &str| {
            let value = format!(r#"{{"metadata":{{"name":"x","labels":{{"a":"b"}}}},{spec}}}"#);
            let whole = WorkloadEndpoint::from_json(value.as_bytes());
            let part = elsewhere(value.as_bytes(), &me, &|node| node.into());
            let whole = whole.ok().filter(|e| e.spec.node != "a");
            let whole = whole.map(|e| {
                (
                    e.spec.node.as_str().into(),
                    (&e.spec.ip_networks[..]).into(),
                )
            });
            (part, whole)
        };
        for (spec, is_read) in [
            (
                r#""spec":{"node":"b","ipNetworks":["10.0.0.1/32"],"mac":"x","more":[1]}"#,
                true,
            ),
            (
                r#""spec":{"node":"\u0062","ipNetworks":["10.0.0.1/32","fd00::1/128"]}"#,
                true,
            ),
            (
                r#""kind":7,"spec":{"ipNetworks":null,"node":"b"},"status":null"#,
                true,
            ),
            (r#""spec":{"node":"a","ipNetworks":["10.0.0.1/32"]}"#, false),
            (r#""spec":{"node":"b","ipNetworks":["10.0.0.1/99"]}"#, false),
            (r#""spec":{"node":7}"#, false),
            (r#""spec":null"#, false),
            (r#""spec":{"node":"b""#, false),
        ] {
            let (part, whole) = read(spec);
            assert_eq!(part.is_some(), is_read, "{spec}");
            // A mistake in what is not read is told by the endpoint's own node.
            assert!(
                part == whole || whole.is_none() || !is_read,
                "{spec}: {part:?} {whole:?}"
            );
        }
    }

    proptest! {
        /// Reading a value in part must give the compact form of the whole value.
        #[test]
        fn what_is_read_is_what_is_kept_of_the_whole(
            owner in proptest::option::of(prop_oneof!["host:a", "host:b", "virtual:load-balancer"]),
            attributes in proptest::collection::vec(attribute(), 0..6),
            places in proptest::collection::vec(proptest::option::of(0..6_usize), 16),
        ) {
            let mut block = Block::new("10.0.0.0/28".parse().unwrap(), None, 1);
            block.affinity = owner;
            for (ordinal, place) in places.iter().enumerate() {
                block.allocations[ordinal] = place.filter(|index| *index < attributes.len());
            }
            block.attributes = attributes;
            let json = block.to_json();
            let (read, _) = known(&json, &|name| name.into()).unwrap();
            prop_assert_eq!(&read, &KnownBlock::from(&block));
            for node in ["a", "b", "d"].map(NodeName::from) {
                let kept = super::block(block.cidr, &json, Some(&node), &|n| n.into(), &mut None);
                prop_assert_eq!(kept.unwrap(), KnownBlock::new(block.clone(), Some(&node)));
            }
        }
    }
}
