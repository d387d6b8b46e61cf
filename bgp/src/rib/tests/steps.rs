//! Whatever one step changes, and whatever is still under way then: at rest a peer has what the
//! table says it should have (RFC 4271 §9.2).

use proptest::prelude::*;

use super::*;
use crate::config::{AddPath, NextHopMode, OwnNextHops, PathCount};
use crate::policy::{
    Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern,
};
use crate::types::ClusterId;

const PEERS: std::ops::Range<u8> = 2..7;
/// Half of them are IPv4.
const PREFIXES: u8 = 8;

#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    Up(u8),
    Down(u8),
    /// An UPDATE of a peer about a prefix, on which nothing is decided yet; `None` withdraws.
    Receive(u8, u8, u32, Option<Variant>),
    Decide,
    Work(usize, usize),
}

/// A new configuration; `None`: as it was.
#[derive(Clone, Debug)]
struct Step {
    own: Option<BTreeMap<u8, u32>>,
    filters: Option<[u8; 2]>,
    peers: BTreeMap<u8, Option<Rules>>,
}

/// Configuration of a peer.
#[derive(Clone, Copy, Debug)]
struct Rules {
    import: bool,
    export: Option<u8>,
    client: bool,
    own_next_hop: bool,
    both_families: bool,
}

/// Attributes from a small set, so that ties and repetitions are common.
#[derive(Clone, Copy, Debug)]
struct Variant {
    local_pref: u32,
    med: u32,
}

fn rules() -> impl Strategy<Value = Rules> {
    let export = prop_oneof![Just(None), (0u8..2).prop_map(Some)];
    let weighted = prop::bool::weighted;
    (
        weighted(0.3),
        export,
        weighted(0.3),
        weighted(0.2),
        weighted(0.9),
    )
        .prop_map(
            |(import, export, client, own_next_hop, both_families)| Rules {
                import,
                export,
                client,
                own_next_hop,
                both_families,
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    let own = prop::collection::btree_map(0..PREFIXES, 0u32..2, 0..6);
    let peers = prop::collection::btree_map(PEERS, prop::option::weighted(0.9, rules()), 0..4);
    let filters = prop::array::uniform2(0..PREFIXES + 2);
    let own = prop::option::weighted(0.7, own);
    let filters = prop::option::weighted(0.5, filters);
    (own, filters, peers).prop_map(|(own, filters, peers)| Step {
        own,
        filters,
        peers,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let variant = (100u32..102, 0u32..2).prop_map(|(local_pref, med)| Variant { local_pref, med });
    let variant = prop::option::weighted(0.7, variant);
    prop_oneof![
        4 => step().prop_map(Event::Step),
        3 => PEERS.prop_map(Event::Up),
        1 => PEERS.prop_map(Event::Down),
        8 => (PEERS, 0..PREFIXES, 1u32..3, variant).prop_map(|(n, to, id, v)| Event::Receive(n, to, id, v)),
        2 => Just(Event::Decide),
        3 => (0usize..4, 0usize..4).prop_map(|(times, slots)| Event::Work(times, slots)),
    ]
}

fn destination(n: u8) -> Prefix {
    match n.checked_sub(PREFIXES / 2) {
        None => prefix(n),
        Some(n) => Prefix::v6([0xfd00, n.into(), 0, 0, 0, 0, 0, 0].into(), 64),
    }
}

fn address_of(family: Family, n: u8) -> IpAddr {
    match family {
        Family::Ipv4 => address(n),
        Family::Ipv6 => [0xfd01, 0, 0, 0, 0, 0, 0, n.into()].into(),
    }
}

/// Rejects one prefix, or none, and gives the others a LOCAL_PREF.
fn filter(rejected: u8) -> Filter {
    let patterns = vec![PrefixPattern::exact(destination(
        rejected.min(PREFIXES - 1),
    ))];
    let conditions = vec![FilterCondition::Prefix {
        patterns,
        negated: false,
    }];
    let reject = FilterTerm {
        conditions,
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    let prefer = FilterTerm {
        conditions: vec![],
        actions: vec![FilterAction::SetLocalPref(100 + u32::from(rejected))],
        verdict: None,
    };
    let rejects = (rejected < PREFIXES).then_some(reject);
    Filter::from(Vec::from_iter(rejects.into_iter().chain([prefer])))
}

/// Internal peers are 2 to 4; 3 and 6 take several paths.
fn peer(n: u8, rules: Rules) -> PeerConfig {
    let (_, base) = if n < 5 {
        internal_peer(n)
    } else {
        external_peer(n)
    };
    let filters = ["f", "g"].map(str::to_owned);
    let count = if n == 3 {
        PathCount::All
    } else {
        PathCount::Best(2)
    };
    PeerConfig {
        import: filters[..usize::from(rules.import)].to_vec(),
        export: rules
            .export
            .map(|which| filters[usize::from(which)].clone())
            .into_iter()
            .collect(),
        client_of: rules.client.then(|| ClusterId([7, 7, 7, 7].into())),
        next_hop: if rules.own_next_hop {
            NextHopMode::Own.into()
        } else {
            NextHopMode::Auto.into()
        },
        own_next_hops: OwnNextHops {
            ipv4: None,
            ipv6: Some([0xfd01, 0, 0, 0, 0, 0, 0, 1].into()),
        },
        families: families(rules.both_families),
        graceful_restart: None,
        add_path: AddPath {
            receive: sends_several(n),
            send: takes_several(n).then_some(count),
        },
        ..base
    }
}

fn families(both: bool) -> Vec<Family> {
    let both = both.then_some(Family::Ipv6);
    [Family::Ipv4].into_iter().chain(both).collect()
}

const fn takes_several(n: u8) -> bool {
    matches!(n, 3 | 6)
}

const fn sends_several(n: u8) -> bool {
    matches!(n, 2 | 6)
}

fn update(n: u8, to: u8, id: u32, variant: Option<Variant>) -> UpdateMessage {
    let (to, ids) = (destination(to), vec![id; usize::from(sends_several(n))]);
    let Some(Variant { local_pref, med }) = variant else {
        return UpdateMessage {
            withdrawn: vec![to],
            withdrawn_ids: ids,
            ..UpdateMessage::default()
        };
    };
    let base = if n < 5 {
        attrs(n)
    } else {
        external(n, &[65000 + u32::from(n)])
    };
    let attrs = PathAttrs {
        next_hop: Some(address_of(to.family(), n)),
        local_pref: base.local_pref.map(|_| local_pref),
        // So that the paths of one peer differ.
        med: Some(med + 2 * id * u32::from(sends_several(n))),
        ..base
    };
    UpdateMessage {
        announced: vec![to],
        announced_ids: ids,
        attrs: Some(attrs),
        ..UpdateMessage::default()
    }
}

/// What a peer has announced, by peer, prefix and path identifier.
type Announced = BTreeMap<(u8, u8, u32), Variant>;

/// A table, and beside it what its peers have announced.
struct Model {
    net: Net,
    announced: Announced,
}

impl Model {
    fn new(inline: usize) -> Self {
        let mut net = Net::new(config());
        net.in_slices = true;
        net.rib.inline = inline;
        Self {
            net,
            announced: Announced::new(),
        }
    }

    fn is_up(&self, n: u8) -> bool {
        self.net.rib.session(&name(n)).is_some()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step(step) => self.step(step),
            Event::Up(n) => self.up(n),
            Event::Down(n) => {
                if self.net.rib.peer_id(&name(n)).is_some() {
                    self.net.down(n, false);
                    self.announced.retain(|(peer, _, _), _| *peer != n);
                }
            }
            Event::Receive(n, to, id, variant) => self.receive(n, to, id, variant),
            Event::Decide => {
                let changes = self.net.rib.decide(self.net.now);
                self.net.mirror(changes);
            }
            Event::Work(times, slots) => self.net.work(times, slots),
        }
    }

    fn up(&mut self, n: u8) {
        let Some(config) = self.net.config.peers.get(&name(n)) else {
            return;
        };
        let several = if takes_several(n) {
            config.families.clone()
        } else {
            vec![]
        };
        let info = SessionInfo {
            families: config.families.clone(),
            graceful_restart: None,
            options: SessionOptions {
                path_ids_out: several,
                ..SessionOptions::default()
            },
            ..session(n)
        };
        self.announced.retain(|(peer, _, _), _| *peer != n);
        self.net.up_with(n, info);
    }

    fn receive(&mut self, n: u8, to: u8, id: u32, variant: Option<Variant>) {
        let Some(session) = self.net.rib.session(&name(n)) else {
            return;
        };
        if !session.families.contains(&destination(to).family()) {
            return;
        }
        let key = (n, to, if sends_several(n) { id } else { 0 });
        match variant {
            Some(variant) => self.announced.insert(key, variant),
            None => self.announced.remove(&key),
        };
        let update = update(n, to, id, variant);
        self.net.rib.receive(self.net.now, &name(n), update);
    }

    fn step(&mut self, step: Step) {
        let id = |n| Some((n, self.net.rib.peer_id(&name(n))?));
        let mut ended: BTreeMap<_, _> = PEERS.filter(|n| self.is_up(*n)).filter_map(id).collect();
        let config = &mut self.net.config;
        if let Some(own) = step.own {
            let route = |med| Origination {
                med: Some(med),
                ..Origination::default()
            };
            let own = own.into_iter();
            config.originate = own.map(|(n, med)| (destination(n), route(med))).collect();
        }
        if let Some(filters) = step.filters {
            let names = ["f", "g"].map(str::to_owned);
            config.filters = names.into_iter().zip(filters.map(filter)).collect();
        }
        for (n, rules) in step.peers {
            match rules {
                Some(rules) => config.peers.insert(name(n), peer(n, rules)),
                None => config.peers.remove(&name(n)),
            };
        }
        let changes = self.net.rib.reconfigure(self.net.now, &config.clone());
        ended.retain(|n, _| !self.is_up(*n));
        for (n, id) in ended {
            // The session ends with all that the peer knew, and it hears nothing more.
            self.net.adj_out.remove(&id);
            self.net.adj_out_paths.remove(&id);
            self.net.station.retain(|path, _| path.peer != id);
            self.announced.retain(|(peer, _, _), _| *peer != n);
        }
        self.net.mirror(changes);
    }

    /// Does all that is left.
    fn rest(&mut self, slots: usize) {
        self.happen(Event::Decide);
        self.net.rest(slots);
    }

    /// The same peers with the same routes, at a table that has seen nothing else.
    fn fresh(&self) -> Self {
        let mut fresh = Self::new(jobs::INLINE);
        fresh.net = Net::new(self.net.config.clone());
        for n in PEERS.filter(|n| self.is_up(*n)) {
            fresh.up(n);
        }
        for ((n, to, id), variant) in self.announced.iter().rev() {
            fresh.receive(*n, *to, *id, Some(*variant));
        }
        fresh.rest(usize::MAX);
        fresh
    }

    /// What a peer has; which identifiers paths have got is of no interest.
    fn has(&self, n: u8) -> BTreeMap<Prefix, Vec<String>> {
        let mut all: BTreeMap<Prefix, Vec<String>> = BTreeMap::new();
        let Some(id) = self.net.rib.peer_id(&name(n)) else {
            return all;
        };
        let one = self.net.adj_out.get(&id).into_iter().flatten();
        let several = self.net.adj_out_paths.get(&id).into_iter().flatten();
        let several = several.map(|((prefix, _), attrs)| (prefix, attrs));
        for (prefix, attrs) in one.chain(several) {
            all.entry(*prefix).or_default().push(format!("{attrs:?}"));
        }
        all.values_mut().for_each(|paths| paths.sort());
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Own routes, filters and peers change in one step, learned routes come and go, and work is
    /// cut anywhere.
    #[test]
    fn rfc4271_9_2_at_rest_a_peer_has_what_it_should_have(
        inline in prop_oneof![0usize..4, Just(jobs::INLINE)],
        events in prop::collection::vec(event(), 1..60),
        last in 1usize..4,
    ) {
        let mut model = Model::new(inline);
        let both = Rules {
            import: false,
            export: None,
            client: false,
            own_next_hop: false,
            both_families: true,
        };
        let peers = PEERS.map(|n| (n, Some(both))).collect();
        model.step(Step { own: None, filters: Some([0, 1]), peers });
        PEERS.for_each(|n| model.up(n));
        for event in events {
            model.happen(event);
        }
        model.rest(last);
        model.net.check();
        let fresh = model.fresh();
        fresh.net.check();
        prop_assert_eq!(&model.net.fib, &fresh.net.fib);
        for n in PEERS {
            prop_assert_eq!(model.has(n), fresh.has(n), "peer {}", n);
        }
    }
}
