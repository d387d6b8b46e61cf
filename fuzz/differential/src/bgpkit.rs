//! bgpkit-parser.

use bgpkit_parser::models::{
    AsPath, AsPathSegment, Asn, AsnLength, AttributeValue, BgpMessage, BgpOpenMessage,
    BgpUpdateMessage, NetworkPrefix, NextHopAddress, ParamValue,
};
use bgpkit_parser::parser::bgp::parse_bgp_message;
use bytes::Bytes;

use crate::{Facts, Form, Nlri, Routes, push_segment};

/// Reads one whole message. `None`: it is refused.
#[must_use]
pub fn read(octets: &[u8], form: Form) -> Option<Facts> {
    let length = if form.four_octet_as {
        AsnLength::Bits32
    } else {
        AsnLength::Bits16
    };
    let mut octets = Bytes::copy_from_slice(octets);
    Some(
        match parse_bgp_message(&mut octets, form.path_ids, &length).ok()? {
            BgpMessage::Open(message) => open(&message),
            BgpMessage::Update(message) => Facts::Update(Box::new(update(&message)?)),
            BgpMessage::Notification(message) => Facts::Notification {
                code: message.error.get_codes(),
                data: message.data,
            },
            BgpMessage::KeepAlive => Facts::Keepalive,
            BgpMessage::RouteRefresh(refresh) => {
                Facts::Refresh(refresh.afi, refresh.subtype, refresh.safi)
            }
        },
    )
}

fn number(asn: Asn) -> u32 {
    asn.to_u32()
}

fn open(message: &BgpOpenMessage) -> Facts {
    // RFC 6793 §4.1: of two such capabilities, which nobody sends, the first counts.
    let mut four_octet = None;
    let mut capabilities = Vec::new();
    for parameter in &message.opt_params {
        let ParamValue::Capacities(list) = &parameter.param_value else {
            continue;
        };
        for capability in list {
            capabilities.push(capability.ty.into());
            use bgpkit_parser::models::CapabilityValue::FourOctetAs;
            if let FourOctetAs(four) = &capability.value {
                four_octet.get_or_insert(four.asn);
            }
        }
    }
    Facts::Open {
        asn: four_octet.unwrap_or(number(message.asn)),
        hold_time: message.hold_time,
        router_id: message.bgp_identifier.octets(),
        capabilities,
    }
}

fn nlri(prefixes: &[NetworkPrefix]) -> impl Iterator<Item = Nlri> {
    prefixes
        .iter()
        .map(|prefix| (prefix.prefix.trunc().to_string(), prefix.path_id))
}

fn path(path: &AsPath) -> Vec<(char, Vec<u32>)> {
    let mut segments = Vec::new();
    for segment in path.iter_segments() {
        let (kind, asns) = match segment {
            AsPathSegment::AsSequence(asns) => ('+', asns),
            AsPathSegment::AsSet(asns) => ('*', asns),
            AsPathSegment::ConfedSequence(asns) => ('(', asns),
            AsPathSegment::ConfedSet(asns) => ('[', asns),
        };
        push_segment(&mut segments, kind, asns.iter().map(|asn| number(*asn)));
    }
    segments
}

/// `None` when it found something that RFC 7606 has words for.
fn update(message: &BgpUpdateMessage) -> Option<Routes> {
    let attributes = &message.attributes;
    if attributes.has_validation_warnings() {
        return None;
    }
    let mut routes = Routes {
        withdrawn: nlri(&message.withdrawn_prefixes).collect(),
        announced: nlri(&message.announced_prefixes).collect(),
        ..Routes::default()
    };
    for attribute in attributes {
        match attribute {
            AttributeValue::Origin(origin) => routes.origin = Some(*origin as u8),
            AttributeValue::AsPath(as_path) => routes.as_path = path(as_path),
            AttributeValue::NextHop(hop) => routes.next_hop = Some(hop.to_string()),
            AttributeValue::MultiExitDiscriminator(value) => routes.med = Some(*value),
            AttributeValue::LocalPreference(value) => routes.local_pref = Some(*value),
            AttributeValue::AtomicAggregate => routes.atomic_aggregate = true,
            AttributeValue::Aggregator { asn, id } => {
                routes.aggregator = Some((number(*asn), id.octets()));
            }
            AttributeValue::As4Aggregator { asn, id } => {
                routes.aggregator = Some((number(*asn), id.octets()));
            }
            AttributeValue::Communities(list) => {
                use bgpkit_parser::models::Community;
                let number = |community: &Community| match community {
                    Community::NoExport => 0xffff_ff01,
                    Community::NoAdvertise => 0xffff_ff02,
                    Community::NoExportSubConfed => 0xffff_ff03,
                    Community::Custom(asn, value) => (number(*asn) << 16) | u32::from(*value),
                };
                routes.communities = list.iter().map(number).collect();
            }
            AttributeValue::LargeCommunities(list) => {
                routes.large = list
                    .iter()
                    .map(|c| (c.global_admin, c.local_data[0], c.local_data[1]))
                    .collect();
            }
            AttributeValue::OriginatorId(id) => routes.originator = Some(id.octets()),
            AttributeValue::Clusters(list) => routes.clusters.clone_from(list),
            AttributeValue::MpReachNlri(reach) => {
                routes.announced.extend(nlri(&reach.prefixes));
                routes.mp_next_hop = reach.next_hop.as_ref().map(|hop| match hop {
                    NextHopAddress::Ipv4(hop) => hop.to_string(),
                    NextHopAddress::Ipv6(hop) | NextHopAddress::Ipv6LinkLocal(hop, _) => {
                        hop.to_string()
                    }
                    other => format!("{other:?}"),
                });
            }
            AttributeValue::MpUnreachNlri(unreach) => {
                routes.withdrawn.extend(nlri(&unreach.prefixes));
            }
            _ => {}
        }
    }
    if let Some(whole) = attributes.effective_as_path() {
        routes.as_path = path(&whole);
    }
    Some(routes)
}
