//! Checks of a topology file that need more than one value: names, references, addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use serde_saphyr::{Location, Spanned};

use super::flannel::{self, FlannelInvalid, Keys};
use super::kinds::plural;
use super::{EncapMode, NodeKind, Topology};

/// A complaint and its place.
pub(super) struct Found {
    pub(super) line: u64,
    pub(super) column: u64,
    pub(super) reason: Invalid,
}

/// Fault of a well-formed topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A name that cannot be part of a namespace's or device's name.
    #[error(
        "{name:?} cannot name a {what}: use at most {max} of a-z, 0-9, '.' and '-', starting and ending with a letter or digit"
    )]
    Name {
        /// Kind of the named thing.
        what: &'static str,
        /// Name in the topology file.
        name: String,
        /// Longest name allowed.
        max: usize,
    },
    /// Two things of one name, or whose namespaces would have one name.
    #[error(
        "{name:?} is already taken; names of nodes, routers, pods' namespaces, 'etcd' and 'switch' are one set"
    )]
    Duplicate { name: String },
    /// A reference to nothing.
    #[error("no segment is called {name:?}; the segments are {known}")]
    UnknownSegment {
        /// Name in the topology file.
        name: String,
        /// The segments there are.
        known: String,
    },
    /// An address of another subnet, or one that no host may have.
    #[error("{address} is no host address of segment {segment} ({cidr})")]
    OutsideSegment {
        /// Address in the topology file.
        address: IpAddr,
        segment: String,
        /// Subnet of the segment.
        cidr: Prefix,
    },
    /// Two interfaces with one address.
    #[error("{address} is already the address of {owner}")]
    DuplicateAddress {
        /// Address in the topology file.
        address: IpAddr,
        /// What has the address already.
        owner: String,
    },
    /// Two subnets share addresses.
    #[error("{cidr} overlaps {other_cidr} of {other}")]
    Overlap {
        /// Prefix in the topology file.
        cidr: Prefix,
        /// Subnet of the other segment.
        other_cidr: Prefix,
        other: String,
    },
    /// A subnet too small or too large for a segment.
    #[error(
        "a segment of {cidr} is not possible; use a length from 8 to 29 for IPv4, 64 to 124 for IPv6"
    )]
    SegmentSize {
        /// Prefix in the topology file.
        cidr: Prefix,
    },
    /// A prefix of a family that has no place there.
    #[error("{cidr} is {}, but {what} is {wanted}", .cidr.family())]
    Family {
        /// Prefix in the topology file.
        cidr: Prefix,
        /// Setting in which the prefix is written.
        what: &'static str,
        wanted: Family,
    },
    /// A dual-stack segment beside one that is not, or a pool for a family that the segments lack.
    #[error(
        "either all segments and the pools are dual stack (cidr6, pool6), or none: {name} is not as the first segment"
    )]
    HalfDualStack {
        /// Segment or pool that differs from the first segment.
        name: String,
    },
    /// An IPv6 pool cannot use IPIP.
    #[error("there is no IPIP for IPv6 pools; use vxlanMode")]
    Ipip6,
    /// More interfaces than addresses, or than a bridge has ports.
    #[error("segment {segment} ({cidr}) has room for {room} interfaces, but {wanted} stand in it")]
    SegmentFull {
        segment: String,
        /// Subnet of the segment.
        cidr: Prefix,
        /// Number of addresses that fit.
        room: u128,
        /// Number of interfaces that are wanted.
        wanted: u128,
    },
    /// A router with nothing to route between.
    #[error("router {router} needs legs in at least two different segments")]
    TooFewLegs { router: String },
    /// IPIP and VXLAN at once.
    #[error("ipipMode and vxlanMode cannot both be other than Never in one pool")]
    TwoEncapsulations,
    /// A block size outside Calico's limits or larger than the pool.
    #[error(
        "blockSize {block_size} is not possible for pool {cidr}; use 20 to 32 (IPv6: 116 to 128), and not less than the pool's length"
    )]
    BlockSize {
        /// Length of a block in the topology file, in bits.
        block_size: u8,
        /// Prefix of the pool.
        cidr: Prefix,
    },
    /// A foreign speaker without configuration.
    #[error("node {node} is of kind gobgp and needs 'config'")]
    ConfigMissing { node: String },
    /// A configuration nobody would read.
    #[error("node {node} is of kind {kind}, which reads no 'config'")]
    ConfigUnused { node: String, kind: &'static str },
    /// Pods on a node that is not in the cluster.
    #[error("node {node} is of kind {kind} and cannot have pods")]
    PodsUnsupported { node: String, kind: &'static str },
    /// A resource nobody reads.
    #[error("{kind:?} is no kind of Calico resource this lab knows; known are {known}")]
    UnknownKind {
        /// Kind in the topology file.
        kind: String,
        /// Kinds that there are.
        known: String,
    },
    /// A resource of another API.
    #[error("apiVersion {seen:?} is not projectcalico.org/v3")]
    ApiVersion {
        /// Text in the topology file.
        seen: String,
    },
    /// A resource without a name.
    #[error("a {kind} resource needs metadata.name")]
    ResourceUnnamed { kind: String },
    /// A Node resource for a node of the lab.
    #[error(
        "set labels, asn and routeReflectorClusterID on node {node} itself instead of by a Node resource"
    )]
    NodeResource { node: String },
    /// Flannel's network, or what has no place in it.
    #[error(transparent)]
    Flannel(#[from] FlannelInvalid),
    /// A list that must not be empty.
    #[error("a topology needs at least one of its {what}")]
    Empty {
        /// Name of the list in the topology file.
        what: &'static str,
    },
}

fn at(location: &Location, reason: Invalid) -> Found {
    Found {
        line: location.line(),
        column: location.column(),
        reason,
    }
}

/// Longest name of a lab; with node and pod it stays far below the 255 octets of a file name.
pub(crate) const MAX_LAB_NAME: usize = 40;
/// `br-` and this many octets fit the kernel's 15.
const MAX_SEGMENT_NAME: usize = 12;
const MAX_NODE_NAME: usize = 63;
/// A Linux bridge has at most 1023 ports.
const MAX_PORTS: u128 = 1000;

pub(crate) fn valid_name(name: &str, max: usize) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= max
        && bytes.iter().all(|&b| inner(b) || b == b'-' || b == b'.')
        && inner(bytes[0])
        && inner(bytes[bytes.len() - 1])
}

fn check_name(what: &'static str, name: &Spanned<String>, max: usize) -> Result<(), Found> {
    if valid_name(&name.value, max) {
        return Ok(());
    }
    Err(at(
        &name.referenced,
        Invalid::Name {
            what,
            name: name.value.clone(),
            max,
        },
    ))
}

pub(super) fn check(t: &Topology, keys: &Keys) -> Result<(), Found> {
    check_name("topology", &t.name, MAX_LAB_NAME)?;
    for (what, empty) in [
        ("segments", t.segments.is_empty()),
        ("nodes", t.nodes.is_empty()),
    ] {
        if empty {
            return Err(at(&t.name.referenced, Invalid::Empty { what }));
        }
    }
    check_segment_families(t)?;
    flannel::check(t, keys).map_err(|(place, reason)| at(&place, reason.into()))?;
    if t.flannel.is_none() {
        check_pool_families(t)?;
        check_pool(t)?;
    }
    check_segments(t)?;
    check_routers(t)?;
    check_nodes(t)?;
    check_namespaces(t)?;
    check_addresses(t)?;
    check_room(t)?;
    check_resources(t)
}

fn fits(cidr: &Spanned<Prefix>, what: &'static str, wanted: Family) -> Result<(), Found> {
    let cidr_value = cidr.value;
    if cidr_value.family() == wanted {
        return Ok(());
    }
    let reason = Invalid::Family {
        cidr: cidr_value,
        what,
        wanted,
    };
    Err(at(&cidr.referenced, reason))
}

fn half(name: &str, place: &Location) -> Result<(), Found> {
    let name = name.to_owned();
    Err(at(place, Invalid::HalfDualStack { name }))
}

/// Families first: of the segments, then of the pools.
fn check_segment_families(t: &Topology) -> Result<(), Found> {
    let first = &t.segments[0];
    for segment in &t.segments {
        let family = first.cidr.value.family();
        fits(&segment.cidr, "cidr of the first segment", family)?;
        if let Some(second) = &segment.cidr6 {
            fits(second, "cidr6", Family::Ipv6)?;
            fits(&segment.cidr, "cidr beside cidr6", Family::Ipv4)?;
        }
        if segment.cidr6.is_some() != first.cidr6.is_some() {
            return half(&segment.name.value, &segment.name.referenced);
        }
    }
    Ok(())
}

fn check_pool_families(t: &Topology) -> Result<(), Found> {
    let first = &t.segments[0];
    if let Some(pool6) = &t.pool6 {
        fits(&pool6.cidr, "pool6", Family::Ipv6)?;
    }
    if t.pool6.is_some() != first.cidr6.is_some() {
        return half("pool6", &t.name.referenced);
    }
    let pool = &t.pool.cidr;
    fits(pool, "cidr of the first segment", first.cidr.value.family())
}

fn check_pool(t: &Topology) -> Result<(), Found> {
    for pool in std::iter::once(&t.pool).chain(&t.pool6) {
        let cidr = pool.cidr.value;
        if pool.ipip_mode != EncapMode::Never && pool.vxlan_mode.value != EncapMode::Never {
            return Err(at(&pool.vxlan_mode.referenced, Invalid::TwoEncapsulations));
        }
        if pool.ipip_mode != EncapMode::Never && pool.family() == Family::Ipv6 {
            return Err(at(&pool.cidr.referenced, Invalid::Ipip6));
        }
        let possible = match pool.family() {
            Family::Ipv4 => 20..=32,
            Family::Ipv6 => 116..=128,
        };
        let size = pool.block_size();
        if !possible.contains(&size) || size < cidr.len() {
            let reason = Invalid::BlockSize {
                block_size: size,
                cidr,
            };
            let place = pool
                .block_size
                .as_ref()
                .map_or(&pool.cidr.referenced, |s| &s.referenced);
            return Err(at(place, reason));
        }
    }
    Ok(())
}

fn check_segments(t: &Topology) -> Result<(), Found> {
    for (i, segment) in t.segments.iter().enumerate() {
        check_name("segment", &segment.name, MAX_SEGMENT_NAME)?;
        for other in &t.segments[..i] {
            if other.name.value == segment.name.value {
                let reason = Invalid::Duplicate {
                    name: segment.name.value.clone(),
                };
                return Err(at(&segment.name.referenced, reason));
            }
        }
        for subnet in std::iter::once(&segment.cidr).chain(&segment.cidr6) {
            check_subnet(t, subnet, &t.segments[..i])?;
        }
    }
    Ok(())
}

fn check_subnet(
    t: &Topology,
    subnet: &Spanned<Prefix>,
    before: &[super::Segment],
) -> Result<(), Found> {
    let (cidr, place) = (subnet.value, &subnet.referenced);
    let possible = match cidr.family() {
        Family::Ipv4 => 8..=29,
        Family::Ipv6 => 64..=124,
    };
    if !possible.contains(&cidr.len()) {
        return Err(at(place, Invalid::SegmentSize { cidr }));
    }
    let overlap = |other_cidr, other| {
        let reason = Invalid::Overlap {
            cidr,
            other_cidr,
            other,
        };
        Err(at(place, reason))
    };
    let mut ranges = t.pod_ranges().into_iter();
    if let Some((range, whose)) = ranges.find(|(range, _)| range.overlaps(&cidr)) {
        return overlap(range, whose.to_owned());
    }
    for other in before {
        if let Some(taken) = other.prefixes().find(|p| p.overlaps(&cidr)) {
            return overlap(taken, format!("segment {}", other.name.value));
        }
    }
    Ok(())
}

fn check_reference(t: &Topology, segment: &Spanned<String>) -> Result<(), Found> {
    if t.segment(&segment.value).is_some() {
        return Ok(());
    }
    let known: Vec<_> = t.segments.iter().map(|s| s.name.value.as_str()).collect();
    let reason = Invalid::UnknownSegment {
        name: segment.value.clone(),
        known: known.join(", "),
    };
    Err(at(&segment.referenced, reason))
}

fn check_routers(t: &Topology) -> Result<(), Found> {
    for router in &t.routers {
        check_name("router", &router.name, MAX_NODE_NAME)?;
        let mut seen = BTreeSet::new();
        for leg in &router.legs {
            check_reference(t, &leg.segment)?;
            seen.insert(&leg.segment.value);
        }
        if seen.len() < 2 || seen.len() < router.legs.len() {
            let reason = Invalid::TooFewLegs {
                router: router.name.value.clone(),
            };
            return Err(at(&router.name.referenced, reason));
        }
    }
    Ok(())
}

fn check_nodes(t: &Topology) -> Result<(), Found> {
    for node in &t.nodes {
        check_name("node", &node.name, MAX_NODE_NAME)?;
        check_reference(t, &node.segment)?;
        let name = node.name.value.clone();
        let kind = node.kind.as_str();
        let place = &node.name.referenced;
        match (node.kind, &node.config) {
            (NodeKind::Gobgp, None) => {
                return Err(at(place, Invalid::ConfigMissing { node: name }));
            }
            (NodeKind::Caracal | NodeKind::Plain, Some(_)) => {
                return Err(at(place, Invalid::ConfigUnused { node: name, kind }));
            }
            _ => {}
        }
        if !node.kind.is_member() && !node.pods.value.0.is_empty() {
            let reason = Invalid::PodsUnsupported { node: name, kind };
            return Err(at(&node.pods.referenced, reason));
        }
        for pod in &node.pods.value.0 {
            if !valid_name(pod, MAX_NODE_NAME) {
                let reason = Invalid::Name {
                    what: "pod",
                    name: pod.clone(),
                    max: MAX_NODE_NAME,
                };
                return Err(at(&node.pods.referenced, reason));
            }
        }
    }
    Ok(())
}

fn check_namespaces(t: &Topology) -> Result<(), Found> {
    let mut taken: BTreeSet<String> = ["etcd", "switch"].map(str::to_owned).into();
    let mut take = |name: String, place: &Location| {
        if taken.insert(name.clone()) {
            return Ok(());
        }
        Err(at(place, Invalid::Duplicate { name }))
    };
    for router in &t.routers {
        take(router.name.value.clone(), &router.name.referenced)?;
    }
    for node in &t.nodes {
        take(node.name.value.clone(), &node.name.referenced)?;
    }
    for node in &t.nodes {
        for pod in &node.pods.value.0 {
            take(format!("{}-{pod}", node.name.value), &node.pods.referenced)?;
        }
    }
    Ok(())
}

fn check_addresses(t: &Topology) -> Result<(), Found> {
    type Wish<'a> = (&'a str, &'a str, IpAddr, &'a Location);
    let mut wishes: Vec<Wish<'_>> = Vec::new();
    for n in &t.nodes {
        let (owner, segment) = (n.name.value.as_str(), n.segment.value.as_str());
        let first = n.address.iter().map(|a| (a.value, &a.referenced));
        let second = n.address6.iter().map(|a| (a.value.into(), &a.referenced));
        wishes.extend(first.chain(second).map(|(a, l)| (owner, segment, a, l)));
    }
    for (r, leg) in t
        .routers
        .iter()
        .flat_map(|r| r.legs.iter().map(move |l| (r, l)))
    {
        let (owner, segment) = (r.name.value.as_str(), leg.segment.value.as_str());
        let first = leg.address.iter().map(|a| (a.value, &a.referenced));
        let second = leg.address6.iter().map(|a| (a.value.into(), &a.referenced));
        wishes.extend(first.chain(second).map(|(a, l)| (owner, segment, a, l)));
    }
    let mut seen: Vec<(IpAddr, &str)> = Vec::new();
    for (owner, segment, address, place) in wishes {
        let s = t
            .segment(segment)
            .expect("invariant: references were checked");
        let cidr = s.prefix(Family::of(address)).unwrap_or(s.cidr.value);
        let offset = cidr.offset(address);
        if offset.is_none_or(|n| n == 0 || n == cidr.size() - 1) {
            let reason = Invalid::OutsideSegment {
                address,
                segment: segment.to_owned(),
                cidr,
            };
            return Err(at(place, reason));
        }
        if let Some((_, other)) = seen.iter().find(|(a, _)| *a == address) {
            let reason = Invalid::DuplicateAddress {
                address,
                owner: (*other).to_owned(),
            };
            return Err(at(place, reason));
        }
        seen.push((address, owner));
    }
    Ok(())
}

fn check_room(t: &Topology) -> Result<(), Found> {
    for segment in &t.segments {
        let name = &segment.name.value;
        let nodes = t.nodes.iter().filter(|n| n.segment.value == *name).count();
        let legs = t
            .routers
            .iter()
            .flat_map(|r| &r.legs)
            .filter(|l| l.segment.value == *name)
            .count();
        // etcd has a leg everywhere, and one address stays free for the dead default gateway.
        let wanted = nodes as u128 + legs as u128 + 2;
        for cidr in segment.prefixes() {
            let room = (cidr.size() - 2).min(MAX_PORTS);
            if wanted > room {
                let reason = Invalid::SegmentFull {
                    segment: name.clone(),
                    cidr,
                    room,
                    wanted,
                };
                return Err(at(&segment.cidr.referenced, reason));
            }
        }
    }
    Ok(())
}

fn check_resources(t: &Topology) -> Result<(), Found> {
    for resource in &t.resources {
        let place = &resource.referenced;
        let kind = resource.value.kind.clone();
        if plural(&kind).is_none() {
            let known = super::kinds::kinds().join(", ");
            return Err(at(place, Invalid::UnknownKind { kind, known }));
        }
        if let Some(seen) = &resource.value.api_version
            && seen != "projectcalico.org/v3"
        {
            return Err(at(place, Invalid::ApiVersion { seen: seen.clone() }));
        }
        let Some(name) = resource.value.name() else {
            return Err(at(place, Invalid::ResourceUnnamed { kind }));
        };
        if kind == "Node" && t.node(name).is_some() {
            return Err(at(
                place,
                Invalid::NodeResource {
                    node: name.to_owned(),
                },
            ));
        }
    }
    Ok(())
}
