//! routecore.

use routecore::bgp::message::{Message, SessionConfig, UpdateMessage};
use routecore::bgp::nlri::afisafi::{Addpath, IsPrefix, Nlri as Parsed};
use routecore::bgp::path_attributes::{PathAttribute, PathAttributeType};
use routecore::bgp::types::{AddpathDirection, AfiSafiType, NextHop};

use crate::{Facts, Form, Nlri, Routes, push_segment};

fn config(form: Form) -> SessionConfig {
    let mut config = if form.four_octet_as {
        SessionConfig::modern()
    } else {
        SessionConfig::legacy()
    };
    if form.path_ids {
        for family in [AfiSafiType::Ipv4Unicast, AfiSafiType::Ipv6Unicast] {
            config.add_addpath(family, AddpathDirection::SendReceive);
        }
    }
    config
}

/// Reads one whole message. `None`: it is refused.
#[must_use]
pub fn read(octets: &[u8], form: Form) -> Option<Facts> {
    // It leaves ROUTE-REFRESH alone, and knows no Notification data of length zero.
    if octets.get(18) == Some(&5) {
        return None;
    }
    Some(
        match Message::from_octets(octets, Some(&config(form))).ok()? {
            Message::Open(open) => Facts::Open {
                asn: open.my_asn().into_u32(),
                hold_time: open.holdtime(),
                router_id: open.identifier().try_into().ok()?,
                capabilities: open.capabilities().map(|c| c.typ().into()).collect(),
            },
            Message::Update(message) => Facts::Update(Box::new(update(&message)?)),
            Message::Notification(message) => Facts::Notification {
                code: (message.code().into(), message.details().raw()[1]),
                data: message.data().unwrap_or_default().to_vec(),
            },
            Message::Keepalive(_) => Facts::Keepalive,
            Message::RouteRefresh(_) => return None,
        },
    )
}

fn nlri<O>(parsed: Parsed<O>) -> Option<Nlri> {
    Some(match parsed {
        Parsed::Ipv4Unicast(nlri) => (nlri.prefix().to_string(), None),
        Parsed::Ipv6Unicast(nlri) => (nlri.prefix().to_string(), None),
        Parsed::Ipv4UnicastAddpath(nlri) => {
            (nlri.prefix().to_string(), Some(Addpath::path_id(&nlri).0))
        }
        Parsed::Ipv6UnicastAddpath(nlri) => {
            (nlri.prefix().to_string(), Some(Addpath::path_id(&nlri).0))
        }
        _ => return None,
    })
}

fn update(message: &UpdateMessage<&[u8]>) -> Option<Routes> {
    let mut routes = Routes::default();
    for found in message.withdrawals().ok()? {
        routes.withdrawn.extend(nlri(found.ok()?));
    }
    for found in message.announcements().ok()? {
        routes.announced.extend(nlri(found.ok()?));
    }
    let hop = |hop: NextHop| match hop {
        NextHop::Unicast(address) => address.to_string(),
        NextHop::Ipv6LL { global, .. } => global.to_string(),
        other => format!("{other:?}"),
    };
    routes.next_hop = message.conventional_next_hop().ok()?.map(hop);
    routes.mp_next_hop = message.mp_next_hop().ok()?.map(hop);
    routes.origin = message.origin().ok()?.map(Into::into);
    if let Some(path) = message.aspath().ok()? {
        for segment in path.segments() {
            // Its type shows only in print.
            let kind = match segment.to_string().split('(').next() {
                Some("AS_SEQUENCE") => '+',
                Some("AS_SET") => '*',
                _ => '?',
            };
            let asns = segment.asns().map(|asn| asn.into_u32());
            push_segment(&mut routes.as_path, kind, asns);
        }
    }
    routes.med = message.multi_exit_disc().ok()?.map(|med| med.0);
    routes.local_pref = message.local_pref().ok()?.map(|pref| pref.0);
    routes.atomic_aggregate = message.is_atomic_aggregate().ok()?;
    routes.aggregator = message
        .aggregator()
        .ok()?
        .map(|found| (found.asn().into_u32(), found.address().octets()));
    if let Some(list) = message.communities().ok()? {
        routes.communities = list.map(|c| u32::from_be_bytes(c.to_raw())).collect();
    }
    let extended = message.ext_communities().ok()?;
    routes.extended = Some(extended.into_iter().flatten().map(|c| c.to_raw()).collect());
    if let Some(list) = message.large_communities().ok()? {
        let parts = |octets: [u8; 12]| {
            let part = |n: usize| {
                let mut four = [0; 4];
                four.copy_from_slice(&octets[4 * n..4 * n + 4]);
                u32::from_be_bytes(four)
            };
            (part(0), part(1), part(2))
        };
        routes.large = list.map(|c| parts(c.to_raw())).collect();
    }
    let attributes = message.path_attributes().ok()?;
    for kind in [
        PathAttributeType::OriginatorId,
        PathAttributeType::ClusterList,
    ] {
        let Some(attribute) = attributes.get(kind) else {
            continue;
        };
        match attribute.to_owned().ok()? {
            PathAttribute::OriginatorId(id) => routes.originator = Some(id.0.octets()),
            PathAttribute::ClusterList(list) => {
                let clusters = list.cluster_ids().iter();
                routes.clusters = clusters
                    .map(|id| u32::from_be_bytes((*id).into()))
                    .collect();
            }
            _ => return None,
        }
    }
    Some(routes)
}
