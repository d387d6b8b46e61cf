//! Speakers on loopback addresses, and a way to wait for what they do.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use caracal_bgp::{
    Asn, CALICO_LOCAL_PREF, FibFeed, LearnedRoute, Listen, Origination, Originations, PeerConfig,
    PeerName, PeerStatus, RouteInfo, RouterId, SessionState, Speaker, SpeakerConfig, SpeakerHandle,
    SpeakerOptions,
};
use caracal_model::Prefix;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const AS: Asn = Asn(64512);

/// Asks until the answer is `Ok`; after [`LIMIT`] it panics with the last answer.
pub(crate) async fn wait_for<T, E: Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(last) => {
                assert!(
                    Instant::now() < deadline,
                    "waited {LIMIT:?} for {what}; last: {last:#?}"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A network of speakers on addresses 127.NET.0.1, 127.NET.0.2, … and one port of their own.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    pub(crate) number: u8,
    pub(crate) port: u16,
}

impl Net {
    pub(crate) fn new(number: u8) -> Self {
        let probe = TcpListener::bind((Ipv4Addr::new(127, number, 0, 1), 0)).unwrap();
        Self {
            number,
            port: probe.local_addr().unwrap().port(),
        }
    }

    pub(crate) fn address(self, n: u8) -> IpAddr {
        [127, self.number, 0, n].into()
    }

    /// Speaker `n` of an AS, without peers.
    pub(crate) fn config(self, n: u8, local_as: Asn) -> SpeakerConfig {
        SpeakerConfig {
            local_as,
            router_id: RouterId([10, 0, 0, n].into()),
            listen: Some(Listen {
                address: Some(self.address(n)),
                second: None,
                port: self.port,
            }),
            peers: BTreeMap::new(),
            originate: Originations::default(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        }
    }

    /// Speaker `to` as a peer of speaker `from`.
    pub(crate) fn peer(self, from: u8, to: u8, remote_as: Asn) -> (PeerName, PeerConfig) {
        let mut peer = PeerConfig::new(self.address(to), remote_as);
        peer.port = self.port;
        peer.source = Some(self.address(from));
        peer.kind = "mesh".to_owned();
        (name(to), peer)
    }

    /// Speaker `n` of a full mesh of `all`, which originates prefix `n`.
    pub(crate) fn mesh_member(self, n: u8, all: &[u8]) -> SpeakerConfig {
        let mut config = self.config(n, AS);
        config.peers = all
            .iter()
            .filter(|to| **to != n)
            .map(|to| self.peer(n, *to, AS))
            .collect();
        originate(&mut config, n);
        config
    }
}

pub(crate) fn name(n: u8) -> PeerName {
    PeerName::from(format!("p{n}"))
}

pub(crate) fn prefix(n: u8) -> Prefix {
    Prefix::v4([10, 244, n, 0].into(), 26)
}

pub(crate) fn originate(config: &mut SpeakerConfig, n: u8) {
    let route = Origination {
        local_pref: Some(CALICO_LOCAL_PREF),
        ..Origination::default()
    };
    config.originate.insert(prefix(n), route);
}

/// A speaker with all routes that it has published to the forwarding side.
pub(crate) struct Node {
    pub(crate) config: SpeakerConfig,
    pub(crate) speaker: SpeakerHandle,
    pub(crate) fib: Arc<Mutex<Fib>>,
}

#[derive(Debug, Default)]
pub(crate) struct Fib {
    pub(crate) routes: BTreeMap<Prefix, LearnedRoute>,
    /// Prefixes that were withdrawn at least once.
    pub(crate) withdrawn: Vec<Prefix>,
}

pub(crate) async fn follow(feed: FibFeed, fib: Arc<Mutex<Fib>>) {
    while let Some(changes) = feed.changed().await {
        let mut fib = fib.lock().unwrap();
        for (prefix, route) in changes {
            if let Some(route) = route {
                fib.routes.insert(prefix, route);
            } else {
                fib.routes.remove(&prefix);
                fib.withdrawn.push(prefix);
            }
        }
    }
}

impl Node {
    pub(crate) async fn start(config: SpeakerConfig) -> Self {
        Self::start_with(config, SpeakerOptions::default()).await
    }

    pub(crate) async fn start_with(config: SpeakerConfig, options: SpeakerOptions) -> Self {
        let speaker = Speaker::spawn(config.clone(), options);
        let fib = Arc::new(Mutex::new(Fib::default()));
        tokio::spawn(follow(speaker.fib().await.unwrap(), fib.clone()));
        Self {
            config,
            speaker,
            fib,
        }
    }

    pub(crate) async fn peer(&self, n: u8) -> PeerStatus {
        let status = self.speaker.status().await.unwrap();
        status
            .peers
            .into_iter()
            .find(|peer| peer.name == name(n))
            .unwrap()
    }

    pub(crate) async fn established(&self, n: u8) -> PeerStatus {
        wait_for("an established session", async || {
            let peer = self.peer(n).await;
            if peer.state == SessionState::Established {
                Ok(peer)
            } else {
                Err(peer)
            }
        })
        .await
    }

    /// Waits for the forwarding table to hold exactly these prefixes.
    pub(crate) async fn holds(&self, expected: &[u8]) {
        wait_for(&format!("routes {expected:?}"), async || {
            let held: Vec<_> = self.fib.lock().unwrap().routes.keys().copied().collect();
            let wanted: Vec<_> = expected.iter().copied().map(prefix).collect();
            if held == wanted {
                Ok(())
            } else {
                Err((held, self.speaker.status().await))
            }
        })
        .await;
    }

    pub(crate) fn route(&self, n: u8) -> LearnedRoute {
        self.fib.lock().unwrap().routes[&prefix(n)].clone()
    }

    /// What a peer has announced, as received.
    pub(crate) async fn received(&self, from: u8, n: u8) -> RouteInfo {
        let all = self.speaker.received(name(from)).await.unwrap().unwrap();
        all.into_iter()
            .find(|route| route.prefix == prefix(n))
            .unwrap()
    }

    pub(crate) async fn reconfigure(&mut self, change: impl FnOnce(&mut SpeakerConfig)) {
        change(&mut self.config);
        self.speaker.reconfigure(self.config.clone()).await.unwrap();
    }
}

/// Waits for a route to be kept only because its peer restarts.
pub(crate) async fn stale(node: &Node, n: u8) {
    wait_for("a stale route", async || {
        let route = node.route(n);
        if route.stale { Ok(()) } else { Err(route) }
    })
    .await;
}
