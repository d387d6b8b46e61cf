//! A table with a mirror: everything that the table says is applied to copies of what peers and the
//! forwarding table know, and the copies must equal what the table says when asked.
#![allow(clippy::unwrap_used)]

mod add_path;
mod export;
mod learning;
mod limits;
mod long_lived;
mod monitor;
mod mrt;
mod next_hops;
mod origin;
mod reconfigure;
mod refresh;
mod restart;
mod screen;
mod sender;
mod sequences;
mod slices;
mod steps;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_model::{Family, Prefix};

use super::*;
use crate::attrs::AsPath;
use crate::attrs::PathAttrs;
use crate::config::{PeerConfig, StaticWay};
use crate::types::{Asn, RouterId};

const OWN_AS: Asn = Asn(64512);

fn prefix(n: u8) -> Prefix {
    Prefix::v4([10, 244, n, 0].into(), 24)
}

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn name(n: u8) -> PeerName {
    PeerName::from(format!("p{n}"))
}

/// A route of ours that leads there.
fn led(way: StaticWay) -> Origination {
    Origination {
        way,
        ..Origination::default()
    }
}

/// Attributes as an internal peer sends them.
fn attrs(next_hop: u8) -> PathAttrs {
    PathAttrs {
        next_hop: Some(address(next_hop)),
        local_pref: Some(100),
        ..PathAttrs::default()
    }
}

/// Attributes as an external peer sends them.
fn external(next_hop: u8, path: &[u32]) -> PathAttrs {
    let path: Vec<Asn> = path.iter().copied().map(Asn).collect();
    PathAttrs {
        as_path: AsPath::sequence(path),
        local_pref: None,
        ..attrs(next_hop)
    }
}

fn session(n: u8) -> SessionInfo {
    SessionInfo {
        families: vec![Family::Ipv4],
        router_id: RouterId([1, 0, 0, n].into()),
        local_address: address(1),
        remote_address: address(n),
        graceful_restart: Some(RemoteRestart {
            restarting: false,
            time: Duration::from_secs(120),
            families: vec![(Family::Ipv4, true)],
        }),
        options: SessionOptions::default(),
        capabilities: vec![],
    }
}

fn config() -> SpeakerConfig {
    SpeakerConfig {
        local_as: OWN_AS,
        router_id: RouterId([1, 0, 0, 1].into()),
        listen: None,
        peers: BTreeMap::new(),
        originate: Originations::default(),
        filters: BTreeMap::new(),
        stations: BTreeMap::new(),
    }
}

/// A configuration with these peers.
fn with_peers(peers: impl IntoIterator<Item = (u8, PeerConfig)>) -> SpeakerConfig {
    let peers = peers.into_iter().map(|(n, peer)| (name(n), peer)).collect();
    SpeakerConfig { peers, ..config() }
}

fn internal_peer(n: u8) -> (u8, PeerConfig) {
    (n, PeerConfig::new(address(n), OWN_AS))
}

fn external_peer(n: u8) -> (u8, PeerConfig) {
    (n, PeerConfig::new(address(n), Asn(65000 + u32::from(n))))
}

type AdjRibOut = BTreeMap<Prefix, Arc<PathAttrs>>;

struct Net {
    rib: Rib,
    now: Instant,
    config: SpeakerConfig,
    /// Routes advertised to each peer.
    adj_out: BTreeMap<PeerId, AdjRibOut>,
    /// The same for peers that take several paths.
    adj_out_paths: BTreeMap<PeerId, BTreeMap<(Prefix, u32), Arc<PathAttrs>>>,
    /// End-of-RIB markers in the order in which they were sent.
    markers: Vec<(PeerId, Family)>,
    /// Marked refreshes in the order in which they were sent.
    refreshes: Vec<(PeerId, Family)>,
    /// Words about too many prefixes.
    notices: Vec<Outbound>,
    /// Routes published to the forwarding side.
    fib: BTreeMap<Prefix, LearnedRoute>,
    /// Work is done in slices: a withdrawal may come before what it withdraws has been told.
    in_slices: bool,
    /// Routes sent to a monitoring station.
    station: BTreeMap<PathName, monitor::Views>,
}

impl Net {
    fn new(config: SpeakerConfig) -> Self {
        Self::with_options(config, RibOptions::default())
    }

    fn with_options(config: SpeakerConfig, options: RibOptions) -> Self {
        let now = Instant::now();
        let (mut rib, changes) = Rib::new(now, &config, options);
        rib.monitor(true);
        let mut net = Self {
            rib,
            now,
            config,
            adj_out: BTreeMap::new(),
            adj_out_paths: BTreeMap::new(),
            markers: Vec::new(),
            refreshes: Vec::new(),
            notices: Vec::new(),
            fib: BTreeMap::new(),
            in_slices: false,
            station: BTreeMap::new(),
        };
        net.mirror(changes);
        net
    }

    /// A table with internal peers that are all up.
    fn mesh(peers: impl IntoIterator<Item = u8> + Clone) -> Self {
        let mut net = Self::new(with_peers(peers.clone().into_iter().map(internal_peer)));
        for n in peers {
            net.up(n);
        }
        net
    }

    fn mirror(&mut self, changes: Changes) {
        self.tell_station();
        for prefix in changes.prefixes {
            match self.rib.learned(&prefix) {
                Some(route) => self.fib.insert(prefix, route),
                None => self.fib.remove(&prefix),
            };
        }
        for out in changes.out {
            match out {
                Outbound::Group(update) | Outbound::Paths(update) => {
                    for member in &update.members {
                        self.deliver(member.peer, update.for_member(member));
                    }
                }
                Outbound::Peer { peer, routes } => self.deliver(peer, routes),
                Outbound::RefreshBegin { peer, family } => {
                    let adj_out_paths = self.adj_out_paths.entry(peer).or_default();
                    adj_out_paths.retain(|(prefix, _), _| prefix.family() != family);
                    let adj_out = self.adj_out.entry(peer).or_default();
                    adj_out.retain(|prefix, _| prefix.family() != family);
                }
                Outbound::RefreshEnd { peer, family } => self.refreshes.push((peer, family)),
                notice @ (Outbound::PrefixLimit { .. } | Outbound::PrefixWarning { .. }) => {
                    self.notices.push(notice);
                }
                Outbound::EndOfRib { peer, family } => self.markers.push((peer, family)),
            }
        }
    }

    fn deliver(&mut self, peer: PeerId, routes: impl IntoIterator<Item = RouteChange>) {
        let in_slices = self.in_slices;
        let adj_out = self.adj_out.entry(peer).or_default();
        let adj_out_paths = self.adj_out_paths.entry(peer).or_default();
        for route in routes {
            let RouteChange {
                prefix,
                path_id,
                attrs,
            } = route;
            let is_withdrawn = attrs.is_none();
            let known = match (path_id.map(PathId::get), attrs) {
                (None, Some(attrs)) => adj_out.insert(prefix, attrs),
                (None, None) => adj_out.remove(&prefix),
                (Some(id), Some(attrs)) => adj_out_paths.insert((prefix, id), attrs),
                (Some(id), None) => adj_out_paths.remove(&(prefix, id)),
            };
            assert!(
                known.is_some() || in_slices || !is_withdrawn,
                "{prefix} {path_id:?} withdrawn without having been announced"
            );
        }
    }

    /// The mirror equals what the table says when asked.
    fn check(&self) {
        let learned: BTreeMap<_, _> = self.rib.all_learned().collect();
        assert_eq!(self.fib, learned, "forwarding table");
        self.check_station();
        for name in self.config.peers.keys() {
            let id = self.rib.peer_id(name).unwrap();
            let adj_out: Vec<_> = self.adj_out.get(&id).into_iter().flatten().collect();
            let asked = self.rib.advertised(name).unwrap();
            let advertised = asked.len();
            let (paths, asked): (Vec<_>, Vec<_>) =
                asked.into_iter().partition(|route| route.path_id.is_some());
            let adj_out_paths = self.adj_out_paths.get(&id).into_iter().flatten();
            let adj_out_paths: Vec<_> = adj_out_paths
                .map(|((prefix, path_id), attrs)| AdvertisedRoute {
                    prefix: *prefix,
                    path_id: Some(*path_id),
                    attrs: AttrsInfo::from(&**attrs),
                })
                .collect();
            assert_eq!(adj_out_paths, paths, "{name}");
            assert_eq!(adj_out.len(), asked.len(), "{name}");
            for ((prefix, attrs), asked) in adj_out.into_iter().zip(asked) {
                assert_eq!(
                    (*prefix, AttrsInfo::from(&**attrs)),
                    (asked.prefix, asked.attrs)
                );
            }
            let counts = self.rib.peer_counts(name).unwrap();
            assert_eq!(self.rib.all_peer_counts()[&id], counts, "{name}");
            assert_eq!(counts.advertised, advertised, "{name}");
            let received = self.rib.received(name).unwrap();
            let refused = |r: &&RouteInfo| matches!(r.status, PathStatus::Refused { .. });
            assert_eq!(counts.received, received.len());
            assert_eq!(
                counts.accepted,
                received.len() - received.iter().filter(refused).count()
            );
        }
    }

    fn up(&mut self, n: u8) {
        self.up_with(n, session(n));
    }

    fn up_with(&mut self, n: u8, session: SessionInfo) {
        let id = self.rib.peer_id(&name(n)).unwrap();
        self.adj_out.remove(&id);
        self.adj_out_paths.remove(&id);
        self.station.retain(|path, _| path.peer != id);
        let changes = self.rib.peer_up(self.now, &name(n), session);
        self.mirror(changes);
    }

    fn down(&mut self, n: u8, graceful: bool) {
        let changes = self.rib.peer_down(self.now, &name(n), graceful);
        self.adj_out.remove(&self.rib.peer_id(&name(n)).unwrap());
        self.adj_out_paths
            .remove(&self.rib.peer_id(&name(n)).unwrap());
        self.mirror(changes);
    }

    fn apply(&mut self, n: u8, update: UpdateMessage) {
        let changes = self.rib.apply(self.now, &name(n), update);
        self.mirror(changes);
    }

    fn announce(&mut self, n: u8, prefixes: &[u8], attrs: PathAttrs) {
        let announced = prefixes.iter().copied().map(prefix).collect();
        self.apply(
            n,
            UpdateMessage {
                announced,
                attrs: Some(attrs),
                ..UpdateMessage::default()
            },
        );
    }

    fn withdraw(&mut self, n: u8, prefixes: &[u8]) {
        let withdrawn = prefixes.iter().copied().map(prefix).collect();
        self.apply(
            n,
            UpdateMessage {
                withdrawn,
                ..UpdateMessage::default()
            },
        );
    }

    fn end_of_rib(&mut self, n: u8) {
        self.apply(n, UpdateMessage::end_of_rib(Family::Ipv4));
    }

    fn advance(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let changes = self.rib.handle_timeout(self.now);
        self.mirror(changes);
    }

    fn reconfigure(&mut self, change: impl FnOnce(&mut SpeakerConfig)) {
        change(&mut self.config);
        let changes = self.rib.reconfigure(self.now, &self.config.clone());
        self.mirror(changes);
    }

    /// Does work that is left, as often as `times` and as much at a time.
    fn work(&mut self, times: usize, slots: usize) {
        for _ in 0..times {
            if !self.rib.has_work() {
                return;
            }
            let changes = self.rib.work(self.now, slots);
            self.mirror(changes);
        }
    }

    /// Does all work that is left, so much at a time.
    fn rest(&mut self, slots: usize) {
        self.work(10_000, slots);
        assert!(!self.rib.has_work(), "{:?}", self.rib.progress());
    }

    /// Routes advertised to a peer.
    fn adj_out(&self, n: u8) -> AdjRibOut {
        let id = self.rib.peer_id(&name(n)).unwrap();
        self.adj_out.get(&id).cloned().unwrap_or_default()
    }

    fn adj_out_prefixes(&self, n: u8) -> Vec<Prefix> {
        self.adj_out(n).into_keys().collect()
    }

    /// The next hops of a prefix in the forwarding table.
    fn hops(&self, n: u8) -> Vec<IpAddr> {
        self.fib
            .get(&prefix(n))
            .map(|route| route.next_hops.clone())
            .unwrap_or_default()
    }
}
