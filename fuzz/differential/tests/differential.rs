//! Three decoders over the same octets: what we accept, the others accept, and all three read the
//! same.
//!
//! The other direction does not hold and is not meant to: the others are libraries for looking at
//! what somebody has recorded, and leave to their caller much of what RFC 4271 §6 and RFC 7606 have
//! a speaker check.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

use bytes::BytesMut;
use caracal_bgp::{
    Aggregator, AsPath, Asn, ClusterId, Community, FamilySet, LargeCommunity, MessageFormat,
    Notification, NotificationCode, OpenMessage, Origin, PathAttrs, RouterId, Segment,
    UpdateMessage, encode_notification, encode_open, encode_update,
};
use caracal_differential::{Facts, Form, Routes, bgpkit, clean, ours, routecore};
use caracal_model::Prefix;
use proptest::collection::{btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;

const MODERN: Form = Form {
    four_octet_as: true,
    path_ids: false,
};

/// A decoder with what it does otherwise, for a reason.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Other {
    Bgpkit,
    Routecore,
}

impl Other {
    fn read(self, octets: &[u8], form: Form) -> Option<Facts> {
        match self {
            Self::Bgpkit => bgpkit(octets, form),
            // It panics on capabilities whose length surprises it.
            Self::Routecore => std::panic::catch_unwind(|| routecore(octets, form)).unwrap_or(None),
        }
    }

    /// Takes out of what we read what the other one does not say, or says otherwise, with the
    /// reason.
    fn adjusted(self, ours: &Routes, theirs: &Routes, form: Form) -> (Routes, Routes) {
        let (mut ours, mut theirs) = (ours.clone().meaning(), theirs.clone().meaning());
        // Octets of extended communities are not public in bgpkit-parser.
        if theirs.extended.is_none() {
            ours.extended = None;
        }
        // RFC 6793 §4.2.3: a speaker merges AS4_PATH and AS4_AGGREGATOR into what it reads from a
        // peer of two octets. routecore hands out the attributes as they stand.
        if self == Self::Routecore && !form.four_octet_as {
            (ours.as_path, theirs.as_path) = Default::default();
            (ours.aggregator, theirs.aggregator) = Default::default();
        }
        // RFC 4271 §4.3: a prefix in both lists is announced. We leave that to the table, as the
        // others do. RFC 7607 and RFC 4760 §3: NEXT_HOP beside MP_REACH_NLRI alone says nothing; we
        // do not keep it.
        if ours.next_hop.is_none() {
            theirs.next_hop = None;
        }
        (ours, theirs)
    }

    /// Messages about which this decoder has nothing to say that could be compared, and why.
    fn leaves_out(self, octets: &[u8], said: &Facts, form: Form) -> Option<&'static str> {
        match (self, said) {
            (_, Facts::Update(_))
                if attributes(octets)
                    .iter()
                    .any(|(_, code, _)| !KNOWN.contains(code)) =>
            {
                Some(
                    "RFC 4271 §5: what we do not know we pass on, or not, without a look inside; the others know more and look",
                )
            }
            (_, Facts::Update(_)) if attributes(octets).iter().any(is_foreign) => Some(
                "RFC 4760 §6, §7: a family that was not negotiated is ignored; the others have negotiated nothing",
            ),
            (Self::Bgpkit, Facts::Update(_)) if attributes(octets).iter().any(is_partial) => Some(
                "RFC 7606 §3 c: of the flags, Optional and Transitive count; it minds Partial as well",
            ),
            (Self::Routecore, Facts::Update(_)) if has_host_bits(octets, form) => Some(
                "RFC 4271 §4.3: bits of a prefix beyond its length are irrelevant; it refuses them",
            ),
            (Self::Routecore, Facts::Refresh(..)) => Some("it is not asked about ROUTE-REFRESH"),
            (Self::Bgpkit, Facts::Update(routes)) if !form.path_ids => {
                let mut all = routes.announced.iter().chain(&routes.withdrawn);
                all.any(|(prefix, _)| prefix.ends_with("/0")).then_some(
                    "made for recordings without OPENs, it guesses path identifiers where an octet is 0, as that of the \
                     default route is; RFC 7911 §3 has them negotiated",
                )
            }
            _ => None,
        }
    }
}

/// Compares all decoders on octets that we accept. `changed`: nobody ever sent them.
fn compare(octets: &[u8], form: Form, changed: bool) -> Result<(), String> {
    if !clean(octets, form) {
        return Ok(());
    }
    let said = ours(octets, form).unwrap();
    for other in [Other::Bgpkit, Other::Routecore] {
        if other.leaves_out(octets, &said, form).is_some() {
            continue;
        }
        let theirs = other.read(octets, form);
        let Some(theirs) = theirs else {
            // RFC 5492 §4: a capability that one does not know has any length. Which ones one knows
            // differs.
            if changed && matches!(said, Facts::Open { .. }) {
                continue;
            }
            return Err(format!("{other:?} refuses {said:#?}"));
        };
        let same = match (&said, &theirs) {
            // RFC 4271 §6.5 gives Hold Timer Expired no subcode, and routecore none to look at, as
            // with codes unknown to it.
            (
                Facts::Notification {
                    code: (4 | 0 | 8.., _),
                    data,
                },
                Facts::Notification {
                    code: (_, 0),
                    data: theirs,
                },
            ) if other == Other::Routecore => data == theirs,
            (Facts::Update(ours), Facts::Update(theirs)) => {
                let (ours, theirs) = other.adjusted(ours, theirs, form);
                if ours == theirs {
                    continue;
                }
                return Err(format!("{other:?}: {theirs:#?}\nours: {ours:#?}"));
            }
            (ours, theirs) => ours == theirs,
        };
        if !same {
            return Err(format!("{other:?}: {theirs:#?}\nours: {said:#?}"));
        }
    }
    Ok(())
}

/// The path attributes that we know (RFC 4271, 1997, 4456, 4760, 4360, 6793, 8092).
const KNOWN: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 32];

/// A path attribute: flags, code, value.
type Attribute<'a> = (u8, u8, &'a [u8]);

/// The path attributes of an UPDATE.
fn attributes(octets: &[u8]) -> Vec<Attribute<'_>> {
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
    let at = 21 + u16_at(19);
    let mut list = &octets[at + 2..at + 2 + u16_at(at)];
    let mut found = Vec::new();
    while let [flags, code, rest @ ..] = list {
        let (head, len) = if flags & 0x10 == 0 {
            (1, usize::from(rest[0]))
        } else {
            (2, usize::from(u16::from_be_bytes([rest[0], rest[1]])))
        };
        let (value, after) = rest[head..].split_at(len);
        found.push((*flags, *code, value));
        list = after;
    }
    found
}

/// The Partial bit, which RFC 4271 §4.3 allows on optional transitive attributes only.
fn is_partial((flags, code, _): &Attribute<'_>) -> bool {
    flags & 0x20 != 0 && !matches!(code, 7 | 8 | 16 | 17 | 18 | 32)
}

/// A prefix has bits beyond its length.
fn has_host_bits(octets: &[u8], form: Form) -> bool {
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([octets[at], octets[at + 1]]));
    let at = 21 + u16_at(19);
    let mut lists = vec![&octets[21..at], &octets[at + 2 + u16_at(at)..]];
    for (_, code, value) in attributes(octets) {
        match code {
            14 => lists.push(&value[5 + usize::from(value[3])..]),
            15 => lists.push(&value[3..]),
            _ => {}
        }
    }
    lists.into_iter().any(|mut list| {
        while !list.is_empty() {
            list = if form.path_ids { &list[4..] } else { list };
            let bits = usize::from(list[0]);
            let (prefix, rest) = list[1..].split_at(bits.div_ceil(8));
            let unused = (8 - bits % 8) % 8;
            if prefix
                .last()
                .is_some_and(|last| last & ((1 << unused) - 1) != 0)
            {
                return true;
            }
            list = rest;
        }
        false
    })
}

/// An attribute with prefixes of a family that is neither IPv4 nor IPv6 unicast.
fn is_foreign((_, code, value): &Attribute<'_>) -> bool {
    matches!(code, 14 | 15) && !matches!(value, [0, 1 | 2, 1, ..])
}

fn messages(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = stream;
    while rest.len() >= 19 {
        let len = usize::from(u16::from_be_bytes([rest[16], rest[17]]));
        found.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    assert!(rest.is_empty(), "a message was cut off");
    found
}

/// Recorded messages of real speakers: file name, its form.
const RECORDED: [(&str, Form); 5] = [
    ("bird-internal", MODERN),
    ("bird-external", MODERN),
    (
        "bird-external-two-octet",
        Form {
            four_octet_as: false,
            path_ids: false,
        },
    ),
    (
        "bird-add-paths",
        Form {
            four_octet_as: true,
            path_ids: true,
        },
    ),
    ("gobgp-external", MODERN),
];

fn recorded(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded");
    messages(&std::fs::read(folder.join(name)).unwrap())
}

#[test]
fn recorded_sessions_of_bird_and_gobgp() {
    for (name, form) in RECORDED {
        let messages = recorded(name);
        let mut announced = 0;
        for (n, message) in messages.iter().enumerate() {
            assert!(clean(message, form), "{name}, message {n}");
            if let Some(Facts::Update(routes)) = ours(message, form) {
                announced += routes.announced.len();
            }
            if let Err(difference) = compare(message, form, false) {
                panic!("{name}, message {n}: {difference}");
            }
        }
        assert!(announced >= 5, "{name}: {announced} routes");
        let kinds: BTreeSet<u8> = messages.iter().map(|message| message[18]).collect();
        assert_eq!(kinds, BTreeSet::from([1, 2, 3, 4]), "{name}");
    }
}

/// xorshift64*: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(value).unwrap() % end.max(1)
    }
}

/// Octets of real messages, a few of them changed: whatever is still good to us must read the same
/// everywhere.
#[test]
fn recorded_messages_with_changed_octets() {
    const ROUNDS: usize = 40_000;
    let all: Vec<(Vec<u8>, Form)> = RECORDED
        .into_iter()
        .flat_map(|(name, form)| recorded(name).into_iter().map(move |m| (m, form)))
        .collect();
    let mut random = Random(0x00ca_7aca_1000_0002);
    let mut good = 0;
    for round in 0..ROUNDS {
        let (message, form) = &all[random.below(all.len())];
        let mut message = message.clone();
        for _ in 0..=random.below(2) {
            // The header says what it is and how long, and that is not in question here.
            let at = 19 + random.below(message.len() - 19);
            if let Some(octet) = message.get_mut(at) {
                *octet ^= 1 << random.below(8);
            }
        }
        good += usize::from(clean(&message, *form));
        if let Err(difference) = compare(&message, *form, true) {
            panic!("round {round}: {}\n{difference}", message.escape_ascii());
        }
    }
    // Otherwise nothing was compared.
    assert!(good > ROUNDS / 10, "{good}");
}

fn asn() -> impl Strategy<Value = Asn> {
    prop_oneof![1u32..65536, 65536u32..=u32::MAX]
        .prop_filter("AS_TRANS stands for others", |n| *n != 23456)
        .prop_map(Asn)
}

fn as_path() -> impl Strategy<Value = AsPath> {
    let segment = prop_oneof![
        3 => vec(asn(), 1..8).prop_map(Segment::Sequence),
        1 => vec(asn(), 1..4).prop_map(Segment::Set),
    ];
    vec(segment, 0..3).prop_map(AsPath::new)
}

prop_compose! {
    fn attrs()(
        origin in prop_oneof![Just(Origin::Igp), Just(Origin::Egp), Just(Origin::Incomplete)],
        as_path in as_path(),
        hop in 0x0a00_0001u32..0x0aff_fffe,
        med in of(any::<u32>()),
        local_pref in of(any::<u32>()),
        atomic_aggregate in any::<bool>(),
        aggregator in of((asn(), any::<[u8; 4]>())),
        communities in btree_set(any::<u32>(), 0..4),
        extended in btree_set(any::<[u8; 8]>(), 0..3),
        large in btree_set(any::<(u32, u32, u32)>(), 0..3),
        originator in of(1u32..),
        clusters in vec(any::<u32>(), 0..3),
    ) -> PathAttrs {
        PathAttrs {
            origin,
            as_path,
            next_hop: Some(std::net::Ipv4Addr::from(hop).into()),
            med,
            local_pref,
            atomic_aggregate,
            aggregator: aggregator.map(|(asn, router)| Aggregator { asn, router: router.into() }),
            communities: communities.into_iter().map(Community).collect(),
            ext_communities: extended.into_iter().collect(),
            large_communities: large.into_iter().map(|(a, b, c)| LargeCommunity(a, b, c)).collect(),
            originator_id: originator.map(|id| RouterId(id.into())),
            cluster_list: clusters.into_iter().map(|id| ClusterId(id.into())).collect(),
            ..PathAttrs::default()
        }
    }
}

fn prefixes(six: bool) -> impl Strategy<Value = Vec<Prefix>> {
    let one = (any::<u128>(), 0u8..=128).prop_map(move |(octets, len)| {
        if six {
            Prefix::truncated(std::net::Ipv6Addr::from(octets).into(), len)
        } else {
            let [a, b, c, d, ..] = octets.to_be_bytes();
            Prefix::truncated([a, b, c, d].into(), len % 33)
        }
    });
    btree_set(one, 0..6).prop_map(|set| set.into_iter().collect())
}

prop_compose! {
    fn update()(
        (withdrawn, announced, six) in any::<bool>().prop_flat_map(|six| (prefixes(six), prefixes(six), Just(six))),
        mut attrs in attrs(),
        ids in vec(any::<u32>(), 12),
        end in of(any::<bool>()),
    ) -> (UpdateMessage, Vec<u32>) {
        if six {
            attrs.next_hop = Some("2001:db8::1".parse().unwrap());
        }
        let attrs = (!announced.is_empty()).then_some(attrs);
        let end_of_rib = end.filter(|_| announced.is_empty() && withdrawn.is_empty());
        let end_of_rib = end_of_rib.map(|six| if six {
            caracal_model::Family::Ipv6
        } else {
            caracal_model::Family::Ipv4
        });
        (UpdateMessage { withdrawn, announced, attrs, end_of_rib, ..UpdateMessage::default() }, ids)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn generated_updates((mut update, ids) in update(), four_octet_as in any::<bool>(), path_ids in any::<bool>()) {
        let form = Form { four_octet_as, path_ids };
        let ids_of = if path_ids { FamilySet::ALL } else { FamilySet::NONE };
        if path_ids {
            let (first, second) = ids.split_at(6);
            update.withdrawn_ids = first[..update.withdrawn.len()].to_vec();
            update.announced_ids = second[..update.announced.len()].to_vec();
        }
        let format = MessageFormat {
            four_octet_as,
            internal: true,
            families: FamilySet::ALL,
            path_ids_in: ids_of,
            path_ids_out: ids_of,
            ..MessageFormat::default()
        };
        let mut stream = BytesMut::new();
        encode_update(&update, &format, &mut stream).unwrap();
        for message in messages(&stream) {
            prop_assert!(clean(&message, form), "{:?}", update);
            if let Err(difference) = compare(&message, form, false) {
                prop_assert!(false, "{}", difference);
            }
        }
    }

    #[test]
    fn generated_notifications(code in 1u8..=8, subcode in any::<u8>(), data in vec(any::<u8>(), 0..40)) {
        let notification = Notification::with_data(NotificationCode::from_octets(code, subcode), data.into());
        let mut octets = BytesMut::new();
        encode_notification(&notification, &mut octets);
        if let Err(difference) = compare(&octets, MODERN, false) {
            prop_assert!(false, "{}", difference);
        }
    }

    #[test]
    fn generated_opens(asn in asn(), hold in prop_oneof![Just(0u16), 3u16..], id in 1u32.., names in vec(0usize..6, 0..6)) {
        use caracal_bgp::{AddPathMode, Capability};
        let six = caracal_model::Family::Ipv6;
        let all = [
            Capability::Multiprotocol(six.into()),
            Capability::RouteRefresh,
            Capability::EnhancedRouteRefresh,
            Capability::ExtendedMessage,
            Capability::FourOctetAs(asn),
            Capability::AddPath(vec![(six.into(), AddPathMode::Both)]),
        ];
        let mut capabilities: Vec<Capability> = names.into_iter().map(|n| all[n].clone()).collect();
        // Without the capability a number of four octets is not in the message.
        capabilities.push(Capability::FourOctetAs(asn));
        let open = OpenMessage { asn, hold_time: hold, router_id: RouterId(id.into()), capabilities };
        let mut octets = BytesMut::new();
        encode_open(&open, &mut octets);
        if let Err(difference) = compare(&octets, MODERN, false) {
            prop_assert!(false, "{}", difference);
        }
    }
}
