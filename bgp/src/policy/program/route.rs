//! The attributes of a route as the language sees them.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use caracal_model::Family;

use super::tree::Attribute;
use super::value::{DESTINATION, ORIGIN, RouteList, SCOPE, SOURCE, Value};
use crate::attrs::{Origin, PathAttrs, RouteType};
use crate::policy::{RouteSource, RouteView};
use crate::types::{Asn, Community};

/// BIRD's number of `SCOPE_UNIVERSE`, which all routes have that no filter of its own changed.
const UNIVERSE: u8 = 4;

/// BIRD's LOCAL_PREF of a route that came without.
const DEFAULT_LOCAL_PREF: u32 = 100;

/// A list of the route, copied.
pub(super) fn copied(attrs: &PathAttrs, which: RouteList) -> Value {
    match which {
        RouteList::Path => Value::Path(Arc::new(attrs.as_path.clone())),
        RouteList::Communities => Value::Communities(attrs.communities[..].into()),
        RouteList::ExtCommunities => Value::ExtCommunities(attrs.ext_communities[..].into()),
        RouteList::LargeCommunities => Value::LargeCommunities(attrs.large_communities[..].into()),
        RouteList::Clusters => {
            let clusters = attrs.cluster_list.iter();
            Value::Communities(clusters.map(|id| Community(id.0.to_bits())).collect())
        }
    }
}

/// The value of an attribute. A list is not copied.
pub(super) fn read(route: &RouteView<'_>, attribute: Attribute) -> Value {
    let attrs = &*route.attrs;
    let own = route.source == RouteSource::Static;
    let number = |value: Option<u32>| value.map_or(Value::Void, Value::Int);
    match attribute {
        Attribute::Net => Value::Prefix(route.prefix),
        Attribute::Source => Value::Enum(SOURCE, source(attrs.route_type, own)),
        Attribute::Destination => Value::Enum(DESTINATION, destination(attrs.route_type, own)),
        Attribute::Interface => Value::Interface,
        Attribute::Protocol => Value::Protocol,
        Attribute::From => address(route.sender.address),
        Attribute::Gateway => address(route.gateway),
        Attribute::Scope => Value::Enum(SCOPE, UNIVERSE),
        Attribute::Preference => Value::Int(route.sender.preference.into()),
        // Only a filter of BIRD's gives a route one.
        Attribute::IgpMetric => Value::Void,
        Attribute::LocalPref => match attrs.local_pref {
            None if !own => Value::Int(DEFAULT_LOCAL_PREF),
            known => number(known),
        },
        Attribute::Med => number(attrs.med),
        Attribute::Origin => {
            let number = match attrs.origin {
                Origin::Igp => 0,
                Origin::Egp => 1,
                Origin::Incomplete => 2,
            };
            Value::Enum(ORIGIN, number)
        }
        Attribute::NextHop => route.bgp_next_hop().map_or(Value::Void, Value::Ip),
        Attribute::OriginatorId => attrs
            .originator_id
            .map_or(Value::Void, |id| Value::Quad(id.number())),
        Attribute::ClusterList => Value::Route(RouteList::Clusters),
        Attribute::AtomicAggregate => present(attrs.atomic_aggregate),
        Attribute::Aggregator => present(attrs.aggregator.is_some()),
        // It is not transitive, and we know nothing of it (RFC 7311).
        Attribute::AccumulatedMetric => Value::Void,
        Attribute::OnlyToCustomer => number(attrs.only_to_customer().map(|asn| asn.0)),
        Attribute::PreferredSource => route.preferred_source.map_or(Value::Void, Value::Ip),
        Attribute::Path => Value::Route(RouteList::Path),
        Attribute::Communities => Value::Route(RouteList::Communities),
        Attribute::ExtCommunities => Value::Route(RouteList::ExtCommunities),
        Attribute::LargeCommunities => Value::Route(RouteList::LargeCommunities),
    }
}

/// An address of the route; BIRD has an unspecified one where there is none.
fn address(of_route: Option<IpAddr>) -> Value {
    Value::Ip(of_route.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)))
}

/// An attribute without a value that the language knows.
const fn present(is_there: bool) -> Value {
    match is_there {
        true => Value::Bool(true),
        false => Value::Void,
    }
}

/// BIRD's number of `RTS_…`.
const fn source(route_type: RouteType, own: bool) -> u8 {
    match route_type {
        RouteType::Interface => 3,
        RouteType::Inherited => 2,
        _ if own => 1,
        _ => 11,
    }
}

/// BIRD's number of `RTD_…`.
const fn destination(route_type: RouteType, own: bool) -> u8 {
    match route_type {
        RouteType::Learned if own => 2,
        RouteType::Learned
        | RouteType::Via
        | RouteType::Multipath
        | RouteType::Recursive
        | RouteType::Interface
        | RouteType::Inherited => 1,
        RouteType::Blackhole => 2,
        RouteType::Unreachable => 3,
        RouteType::Prohibit => 4,
    }
}

/// True when the route has the attribute. An empty list is none.
pub(super) fn defined(route: &RouteView<'_>, attribute: Attribute) -> bool {
    let attrs = &*route.attrs;
    match read(route, attribute) {
        Value::Void => false,
        Value::Route(RouteList::Path) => {
            route.source == RouteSource::Bgp || !attrs.as_path.is_empty()
        }
        Value::Route(RouteList::Communities) => !attrs.communities.is_empty(),
        Value::Route(RouteList::ExtCommunities) => !attrs.ext_communities.is_empty(),
        Value::Route(RouteList::LargeCommunities) => !attrs.large_communities.is_empty(),
        Value::Route(RouteList::Clusters) => !attrs.cluster_list.is_empty(),
        _ => true,
    }
}

/// Sets an attribute, or says why not.
pub(super) fn set(
    route: &mut RouteView<'_>,
    attribute: Attribute,
    value: Value,
) -> Result<(), String> {
    if let (Attribute::PreferredSource, Value::Ip(address)) = (attribute, &value) {
        if Family::of(*address) != route.prefix.family() {
            return Err(format!(
                "packets to {} have no source {address}",
                route.prefix
            ));
        }
        route.preferred_source = Some(*address);
        return Ok(());
    }
    if let (Attribute::NextHop, Value::Ip(address)) = (attribute, &value) {
        route.told_next_hop = Some(*address);
        return Ok(());
    }
    route.med_is_set |= attribute == Attribute::Med;
    let attrs = route.attrs.to_mut();
    match (attribute, value) {
        (Attribute::LocalPref, Value::Int(number)) => attrs.local_pref = Some(number),
        (Attribute::Med, Value::Int(number)) => attrs.med = Some(number),
        (Attribute::OnlyToCustomer, Value::Int(number)) => {
            attrs.set_only_to_customer(Some(Asn(number)));
        }
        (Attribute::Origin, Value::Enum(ORIGIN, number)) => {
            attrs.origin = match number {
                0 => Origin::Igp,
                1 => Origin::Egp,
                _ => Origin::Incomplete,
            };
        }
        (Attribute::Path, Value::Path(path)) => attrs.as_path = Arc::unwrap_or_clone(path),
        (Attribute::Communities, Value::Communities(list)) => attrs.communities = list.to_vec(),
        (Attribute::ExtCommunities, Value::ExtCommunities(list)) => {
            attrs.ext_communities = list.to_vec().into();
        }
        (Attribute::LargeCommunities, Value::LargeCommunities(list)) => {
            attrs.large_communities = list.to_vec().into();
        }
        (_, value) => {
            return Err(format!(
                "the attribute is {}, and is set to {}",
                attribute.value_type().what(),
                value.value_type().what()
            ));
        }
    }
    Ok(())
}

/// Takes an attribute away, or says why not.
pub(super) fn unset(route: &mut RouteView<'_>, attribute: Attribute) -> Result<(), String> {
    if attribute == Attribute::PreferredSource {
        route.preferred_source = None;
        return Ok(());
    }
    let attrs = route.attrs.to_mut();
    match attribute {
        Attribute::LocalPref => attrs.local_pref = None,
        Attribute::Med => attrs.med = None,
        Attribute::OnlyToCustomer => attrs.set_only_to_customer(None),
        Attribute::Communities => attrs.communities.clear(),
        Attribute::ExtCommunities => attrs.ext_communities.clear(),
        Attribute::LargeCommunities => attrs.large_communities.clear(),
        Attribute::AtomicAggregate => attrs.atomic_aggregate = false,
        Attribute::Aggregator => attrs.aggregator = None,
        Attribute::AccumulatedMetric => {}
        _ => return Err("this attribute cannot be taken away".to_owned()),
    }
    Ok(())
}
