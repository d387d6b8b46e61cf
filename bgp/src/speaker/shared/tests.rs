//! A member must read from the shared encoding exactly the updates that it would get alone.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::config::{Originations, PeerConfig, SpeakerConfig};
use crate::rib::{Outbound, Rib, RibOptions, SessionInfo, SessionOptions};
use crate::types::{Asn, ClusterId, Community, PeerName, RouterId};
use crate::wire::format::{FamilySet, MAX_MESSAGE_LEN};
use crate::wire::frame_len;
use crate::wire::update::UpdateMessage;
use crate::wire::{Message, decode_message};

const CLIENTS: u8 = 4;

fn address(client: u8) -> IpAddr {
    [10, 0, 0, client].into()
}

fn name(client: u8) -> PeerName {
    PeerName::from(format!("c{client}"))
}

/// A reflector with clients that are all established, and so one update group.
fn reflector(now: Instant) -> Rib {
    let own = RouterId([10, 0, 0, 100].into());
    let peer = |client: u8| {
        let mut peer = PeerConfig::new(address(client), Asn(64512));
        peer.client_of = Some(ClusterId(own.0));
        (name(client), peer)
    };
    let config = SpeakerConfig {
        local_as: Asn(64512),
        router_id: own,
        listen: None,
        peers: (1..=CLIENTS).map(peer).collect(),
        originate: Originations::default(),
        filters: BTreeMap::new(),
        stations: BTreeMap::new(),
    };
    let (mut rib, _) = Rib::new(now, &config, RibOptions::default());
    for client in 1..=CLIENTS {
        let session = SessionInfo {
            families: vec![Family::Ipv4],
            router_id: RouterId([10, 0, 0, client].into()),
            local_address: own.0.into(),
            remote_address: address(client),
            graceful_restart: None,
            options: SessionOptions::default(),
            capabilities: vec![],
        };
        rib.peer_up(now, &name(client), session);
    }
    rib
}

fn format() -> MessageFormat {
    MessageFormat {
        four_octet_as: true,
        internal: true,
        families: FamilySet::from_iter([Family::Ipv4]),
        ..MessageFormat::default()
    }
}

/// State of a receiver after some updates: next hop and MED by prefix, `None` when withdrawn.
type Told = BTreeMap<Prefix, Option<(Option<IpAddr>, Option<u32>)>>;

fn read(mut octets: BytesMut) -> Told {
    let mut seen = Told::new();
    while let Some(len) = frame_len(&octets, MAX_MESSAGE_LEN).unwrap() {
        let message = octets.split_to(len);
        let Message::Update(decoded) = decode_message(&message, &format()).unwrap() else {
            panic!("not an UPDATE");
        };
        assert!(decoded.faults.is_empty());
        for update in decoded.into_updates() {
            for prefix in update.withdrawn {
                assert!(seen.insert(prefix, None).is_none(), "{prefix} twice");
            }
            for prefix in update.announced {
                let attrs = update.attrs.as_ref().unwrap();
                let update = Some((attrs.next_hop, attrs.med));
                assert!(seen.insert(prefix, update).is_none(), "{prefix} twice");
            }
        }
    }
    assert!(octets.is_empty());
    seen
}

/// A client announces (next hop, MED) or withdraws a prefix.
type Step = (u8, u8, Option<(u8, u32)>);

fn step() -> impl Strategy<Value = Step> {
    (
        1..=CLIENTS,
        0..6u8,
        proptest::option::of((1..=CLIENTS + 1, 0..3u32)),
    )
}

fn update((_, prefix, route): Step) -> UpdateMessage {
    let prefix = Prefix::v4([10, 244, prefix, 0].into(), 24);
    match route {
        None => UpdateMessage {
            withdrawn: vec![prefix],
            ..UpdateMessage::default()
        },
        Some((hop, med)) => UpdateMessage {
            announced: vec![prefix],
            attrs: Some(PathAttrs {
                next_hop: Some(address(hop)),
                med: Some(med),
                ..PathAttrs::default()
            }),
            ..UpdateMessage::default()
        },
    }
}

/// A change of `prefixes` prefixes with so many communities, and a member that is sent them.
pub(in crate::speaker) fn change_of(prefixes: u32, communities: u32) -> (GroupUpdate, Member) {
    let now = Instant::now();
    let mut rib = reflector(now);
    let prefix = |n: u32| Prefix::v4((0x1000_0000 + (n << 8)).into(), 24);
    let mut announced = UpdateMessage {
        announced: (0..prefixes).map(prefix).collect(),
        ..update((1, 0, Some((1, 0))))
    };
    let attrs = announced.attrs.as_mut().unwrap();
    attrs.communities = (0..communities).map(Community).collect();
    let out = rib.apply(now, &name(1), announced).out;
    let groups = out.into_iter().filter_map(|out| match out {
        Outbound::Group(group) => Some(group),
        _ => None,
    });
    let group = groups.last().unwrap();
    let member = group.members[2];
    (group, member)
}

proptest! {
    #[test]
    fn members_read_what_they_would_be_told_alone(
        batches in proptest::collection::vec(proptest::collection::vec(step(), 1..12), 1..6),
    ) {
        let now = Instant::now();
        let mut rib = reflector(now);
        let mut together = reflector(now);
        for batch in batches {
            for step in &batch {
                rib.receive(now, &name(step.0), update(*step));
                together.apply(now, &name(step.0), update(*step));
            }
            for out in rib.decide(now).out {
                let Outbound::Group(group) = out else { panic!("not for the group") };
                prop_assert_eq!(group.members.len(), usize::from(CLIENTS));
                let shared: Vec<_> = SharedUpdate::new(group.clone(), 6).collect();
                let [shared] = &shared[..] else { panic!("more than one") };
                for member in &group.members {
                    let mut octets = BytesMut::new();
                    shared.encode(member, &format(), &mut octets, &mut Vec::new());
                    let said = |(p, attrs): (Prefix, Option<std::sync::Arc<PathAttrs>>)| {
                        (p, attrs.map(|a| (a.next_hop, a.med)))
                    };
                    let alone = group.for_member(member).map(|route| (route.prefix, route.attrs));
                    let alone: Told = alone.map(said).collect();
                    let kept: Told = shared.for_member(member).map(said).collect();
                    prop_assert!(shared.concerns(member) || alone.is_empty());
                    prop_assert_eq!(&kept, &alone);
                    prop_assert_eq!(read(octets), alone);
                }
            }
        }
        // Deciding many UPDATEs at once ends where deciding each ends.
        for client in 1..=CLIENTS {
            prop_assert_eq!(rib.advertised(&name(client)), together.advertised(&name(client)));
        }
    }
}

#[test]
fn who_sent_all_of_a_change_is_told_nothing() {
    let now = Instant::now();
    let mut rib = reflector(now);
    let out = rib.apply(now, &name(1), update((1, 0, Some((1, 0))))).out;
    let [Outbound::Group(group)] = &out[..] else {
        panic!("one group");
    };
    let shared: Vec<_> = SharedUpdate::new(group.clone(), 6).collect();
    let concerned: Vec<bool> = group
        .members
        .iter()
        .map(|m| shared[0].concerns(m))
        .collect();
    assert_eq!(
        concerned.iter().filter(|concerned| **concerned).count(),
        usize::from(CLIENTS) - 1
    );
}
