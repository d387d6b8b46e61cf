//! Our decoder.

use caracal_bgp::{
    FamilySet, Message, MessageFormat, PathAttrs, RefreshKind, SegmentKind, UpdateMessage,
    decode_message,
};
use caracal_model::Prefix;

use crate::{Facts, Form, Nlri, Routes, push_segment};

fn format(form: Form) -> MessageFormat {
    let ids = if form.path_ids {
        FamilySet::ALL
    } else {
        FamilySet::NONE
    };
    MessageFormat {
        four_octet_as: form.four_octet_as,
        extended_receive: true,
        extended_send: true,
        internal: true,
        families: FamilySet::ALL,
        extended_next_hop: false,
        path_ids_in: ids,
        path_ids_out: ids,
    }
}

/// Reads one whole message. `None`: it ends the session.
#[must_use]
pub fn read(octets: &[u8], form: Form) -> Option<Facts> {
    let message = decode_message(octets, &format(form)).ok()?;
    Some(match message {
        Message::Open(open) => Facts::Open {
            asn: open.asn.0,
            hold_time: open.hold_time,
            router_id: open.router_id.0.octets(),
            capabilities: open.capabilities.iter().map(|c| c.code()).collect(),
        },
        Message::Update(decoded) => {
            let mut routes = Routes::default();
            for (n, update) in decoded.into_updates().enumerate() {
                take(update, n > 0, &mut routes);
            }
            Facts::Update(Box::new(routes))
        }
        Message::Notification(notification) => Facts::Notification {
            code: notification.code.octets(),
            data: notification.data.to_vec(),
        },
        Message::Keepalive => Facts::Keepalive,
        Message::RouteRefresh(refresh) => Facts::Refresh(
            refresh.family.afi,
            match refresh.kind {
                RefreshKind::Request => 0,
                RefreshKind::Begin => 1,
                RefreshKind::End => 2,
                RefreshKind::Other(subtype) => subtype,
            },
            refresh.family.safi,
        ),
    })
}

/// True when nothing was wrong with the message, not even something that a session survives (RFC
/// 7606).
#[must_use]
pub fn clean(octets: &[u8], form: Form) -> bool {
    match decode_message(octets, &format(form)) {
        Ok(Message::Update(decoded)) => decoded.faults.is_empty(),
        Ok(_) => true,
        Err(_) => false,
    }
}

fn nlri(prefixes: &[Prefix], ids: &[u32], form: bool) -> impl Iterator<Item = Nlri> {
    let id = move |n: usize| form.then(|| ids.get(n).copied().unwrap_or_default());
    let named = prefixes.iter().enumerate();
    named
        .map(move |(n, prefix)| (prefix.to_string(), id(n)))
        .collect::<Vec<_>>()
        .into_iter()
}

fn take(update: UpdateMessage, mp: bool, routes: &mut Routes) {
    let withdrawn_ids = !update.withdrawn_ids.is_empty();
    let announced_ids = !update.announced_ids.is_empty();
    routes.withdrawn.extend(nlri(
        &update.withdrawn,
        &update.withdrawn_ids,
        withdrawn_ids,
    ));
    routes.announced.extend(nlri(
        &update.announced,
        &update.announced_ids,
        announced_ids,
    ));
    let Some(attrs) = update.attrs else { return };
    let next_hop = attrs.next_hop.map(|hop| hop.to_string());
    if mp || attrs.next_hop.is_some_and(|hop| hop.is_ipv6()) {
        routes.mp_next_hop = next_hop;
    } else {
        routes.next_hop = next_hop;
    }
    attributes(&attrs, routes);
}

fn attributes(attrs: &PathAttrs, routes: &mut Routes) {
    routes.origin = Some(attrs.origin as u8);
    routes.as_path = Vec::new();
    for segment in attrs.as_path.segments() {
        let (kind, asns) = match segment {
            (SegmentKind::Sequence, asns) => ('+', asns),
            (SegmentKind::Set, asns) => ('*', asns),
        };
        push_segment(&mut routes.as_path, kind, asns.iter().map(|asn| asn.0));
    }
    routes.med = attrs.med;
    routes.local_pref = attrs.local_pref;
    routes.atomic_aggregate = attrs.atomic_aggregate;
    routes.aggregator = attrs
        .aggregator
        .map(|aggregator| (aggregator.asn.0, aggregator.router.octets()));
    routes.communities = attrs.communities.iter().map(|c| c.0).collect();
    routes.extended = Some(attrs.ext_communities.iter().copied().collect());
    let large = attrs.large_communities.iter();
    routes.large = large.map(|c| (c.0, c.1, c.2)).collect();
    routes.originator = attrs.originator_id.map(|id| id.0.octets());
    let clusters = attrs.cluster_list.iter();
    routes.clusters = clusters.map(|id| u32::from(id.0)).collect();
}
