//! The core with sessions that the test plays itself, on virtual time.
#![allow(clippy::unwrap_used)]

mod convergence;
mod disable;
mod operate;

use std::cell::RefCell;
use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use tokio::sync::oneshot;

use super::*;
use crate::attrs::PathAttrs;
use crate::bmp::{BmpPeerDown, MonitoredSession};
use crate::config::{GracefulRestart, Origination, Originations, PeerConfig};
use crate::opens::SessionOpens;
use crate::rib::{LearnedRoute, RemoteRestart, SessionInfo, SessionOptions};
use crate::speaker::feed::{Marker, OutBatch};
use crate::speaker::message::{ListenerStart, SessionStart};
use crate::speaker::status::PeerStatus;
use crate::speaker::{Running, Speaker, SpeakerHandle};
use crate::types::{Asn, RouterId};
use crate::wire::format::MessageFormat;
use crate::wire::update::UpdateMessage;

thread_local! {
    /// Where the sessions that the core starts report. A test and its core share a thread.
    static STARTS: RefCell<Option<mpsc::Sender<Played>>> = const { RefCell::new(None) };
}

/// A session task in the hands of the test; the task ends when this is dropped.
struct Played {
    start: SessionStart,
    feed: Arc<OutFeed>,
    _alive: oneshot::Sender<()>,
}

fn play(start: SessionStart) -> Running {
    let starts = STARTS.with_borrow(Clone::clone).unwrap();
    Box::pin(async move {
        let (alive, ended) = oneshot::channel();
        let feed = Arc::new(OutFeed::new());
        assert!(
            starts
                .send(Played {
                    start,
                    feed,
                    _alive: alive
                })
                .await
                .is_ok()
        );
        let _ = ended.await;
    })
}

fn no_listener(_: ListenerStart) -> Running {
    Box::pin(std::future::pending())
}

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn prefix(n: u8) -> Prefix {
    Prefix::v4([10, 244, n, 0].into(), 24)
}

fn name(n: u8) -> PeerName {
    PeerName::from(format!("p{n}"))
}

fn config(peers: &[u8]) -> SpeakerConfig {
    let peer = |n: &u8| (name(*n), PeerConfig::new(address(*n), Asn(64512)));
    SpeakerConfig {
        local_as: Asn(64512),
        router_id: RouterId([1, 0, 0, 1].into()),
        listen: None,
        peers: peers.iter().map(peer).collect(),
        originate: Originations::default(),
        filters: BTreeMap::new(),
        stations: BTreeMap::new(),
    }
}

/// A core and the sessions that it has started.
struct Stage {
    speaker: SpeakerHandle,
    starts: mpsc::Receiver<Played>,
}

impl Stage {
    fn new(config: SpeakerConfig, options: SpeakerOptions) -> Self {
        let (report, starts) = mpsc::channel(64);
        STARTS.set(Some(report));
        let tasks = Tasks {
            session: play,
            listener: no_listener,
        };
        Self {
            speaker: Speaker::spawn_with(config, options, tasks),
            starts,
        }
    }

    async fn session(&mut self) -> Played {
        self.starts.recv().await.unwrap()
    }

    /// The sessions of these peers, established, in the order of the names.
    async fn established(config: SpeakerConfig) -> (Self, Vec<Played>) {
        let mut stage = Self::new(config.clone(), SpeakerOptions::default());
        let mut sessions = Vec::new();
        for _ in &config.peers {
            let session = stage.session().await;
            session.up().await;
            sessions.push(session);
        }
        (stage, sessions)
    }

    /// Asks for a peer's status until it is as expected. Commands and sessions have a channel each,
    /// so a command can overtake what a session has said.
    async fn peer(&self, n: u8, expected: impl Fn(&PeerStatus) -> bool) -> PeerStatus {
        let mut last = None;
        for _ in 0..1000 {
            let status = self.speaker.status().await.unwrap();
            let peer = status
                .peers
                .into_iter()
                .find(|peer| peer.name == name(n))
                .unwrap();
            if expected(&peer) {
                return peer;
            }
            last = Some(peer);
            tokio::task::yield_now().await;
        }
        panic!("not as expected: {last:#?}");
    }

    async fn established_peer(&self, n: u8) -> PeerStatus {
        self.peer(n, |peer| peer.state == SessionState::Established)
            .await
    }

    /// Reconfigures to what `change` makes of the configuration.
    async fn reconfigure(
        &self,
        config: &mut SpeakerConfig,
        change: impl FnOnce(&mut SpeakerConfig),
    ) {
        change(config);
        self.speaker.reconfigure(config.clone()).await.unwrap();
    }
}

impl Played {
    async fn say(&self, message: ToCore) {
        self.start.core.send(message).await.unwrap();
    }

    async fn up(&self) {
        self.up_with(SessionOptions::default()).await;
    }

    async fn up_with(&self, options: SessionOptions) {
        self.up_as(options, &[Family::Ipv4]).await;
    }

    async fn up_for(&self, families: &[Family]) {
        self.up_as(SessionOptions::default(), families).await;
    }

    async fn up_as(&self, options: SessionOptions, families: &[Family]) {
        let restart = RemoteRestart {
            restarting: false,
            time: Duration::from_secs(120),
            families: vec![(Family::Ipv4, true)],
        };
        let session = SessionInfo {
            families: families.to_vec(),
            router_id: RouterId([2, 0, 0, 1].into()),
            local_address: address(1),
            remote_address: self.start.config.address,
            graceful_restart: Some(restart),
            options,
            capabilities: vec![],
        };
        let monitored = Box::new(MonitoredSession {
            local: (address(1), 40000).into(),
            remote: (self.start.config.address, 179).into(),
            asn: self.start.config.remote_as,
            router_id: session.router_id,
            format: MessageFormat::default(),
            opens: SessionOpens::default(),
        });
        let (peer, feed) = (self.start.key, self.feed.clone());
        self.say(ToCore::Up {
            peer,
            session,
            feed,
            monitored,
        })
        .await;
    }

    async fn down(&self, graceful: bool) {
        let peer = self.start.key;
        self.say(ToCore::Down {
            peer,
            reason: "hold timer expired".into(),
            graceful,
            end: BmpPeerDown::Remote,
        })
        .await;
    }

    async fn update(&self, update: UpdateMessage) {
        self.say(ToCore::Update {
            peer: self.start.key,
            update,
        })
        .await;
    }

    async fn announce(&self, n: u8) {
        let next_hop = Some(self.start.config.address);
        let attrs = Some(PathAttrs {
            next_hop,
            ..PathAttrs::default()
        });
        self.update(UpdateMessage {
            announced: vec![prefix(n)],
            attrs,
            ..UpdateMessage::default()
        })
        .await;
    }

    /// Everything the core has queued, up to the next End-of-RIB.
    async fn next_batch(&self) -> OutBatch {
        self.feed.ready().await;
        self.feed.take(1000)
    }
}

async fn change(fib: &FibFeed) -> Vec<(Prefix, Option<LearnedRoute>)> {
    fib.changed().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn routes_flow_from_a_session_to_the_forwarding_table_and_own_routes_to_sessions() {
    let mut config = config(&[2, 3]);
    config.originate.insert(prefix(9), Origination::default());
    let (stage, sessions) = Stage::established(config).await;
    for session in &sessions {
        let batch = session.next_batch().await;
        assert_eq!(batch.announced.len(), 1);
        assert_eq!(batch.announced[0].1, [prefix(9)]);
        assert_eq!(batch.markers, [Marker::EndOfRib(Family::Ipv4)]);
    }
    let fib = stage.speaker.fib().await.unwrap();
    sessions[0].announce(1).await;
    let [(seen, Some(route))] = &change(&fib).await[..] else {
        panic!("one route")
    };
    assert_eq!(
        (*seen, &route.peer, &route.next_hops[..]),
        (prefix(1), &name(2), &[address(2)][..])
    );
    let late = stage.speaker.fib().await.unwrap();
    assert_eq!(
        change(&late).await.len(),
        1,
        "a late subscriber gets everything"
    );
    sessions[0].down(false).await;
    assert_eq!(change(&fib).await, [(prefix(1), None)]);
    let peer = stage.peer(2, |peer| peer.state == SessionState::Idle).await;
    assert_eq!(peer.reason.as_deref(), Some("hold timer expired"));
    assert!(
        sessions[1].feed.is_empty(),
        "internal routes are not for internal peers"
    );
}

#[tokio::test(start_paused = true)]
async fn stale_routes_go_by_the_clock_without_any_message() {
    let (stage, sessions) = Stage::established(config(&[2])).await;
    let fib = stage.speaker.fib().await.unwrap();
    sessions[0].announce(1).await;
    sessions[0]
        .update(UpdateMessage::end_of_rib(Family::Ipv4))
        .await;
    assert_eq!(change(&fib).await.len(), 1);
    let before = tokio::time::Instant::now();
    sessions[0].down(true).await;
    let [(_, Some(route))] = &change(&fib).await[..] else {
        panic!("one route")
    };
    assert!(route.stale);
    assert_eq!(change(&fib).await, [(prefix(1), None)]);
    assert!(before.elapsed() >= Duration::from_secs(120));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_one_peer_does_not_touch_the_other() {
    let mut config = config(&[2, 3]);
    let (mut stage, mut sessions) = Stage::established(config.clone()).await;
    sessions[1].next_batch().await;
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().hold_time = Duration::from_secs(9);
        })
        .await;
    let mut old = sessions.remove(0);
    let batch = old.start.control.recv().await.unwrap();
    assert!(
        matches!(batch, ToSession::Shutdown(Shutdown::Restart)),
        "{batch:?}"
    );
    // Late messages of the old session are not taken for messages of the new one.
    old.up().await;
    old.announce(7).await;
    drop(old);
    let new = stage.session().await;
    assert_eq!(new.start.config.hold_time, Duration::from_secs(9));
    assert!(new.start.had_session, "forwarding outlives the session");
    new.up().await;
    stage.established_peer(2).await;
    assert!(stage.speaker.routes().await.unwrap().is_empty());
    assert!(
        sessions[0].start.control.try_recv().is_err(),
        "nothing was said to the other"
    );
    assert!(sessions[0].feed.is_empty());
    stage.established_peer(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_becomes_another_one_is_told_to_drop_our_routes() {
    let mut config = config(&[2]);
    let (stage, mut sessions) = Stage::established(config.clone()).await;
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().remote_as = Asn(1);
        })
        .await;
    let batch = sessions[0].start.control.recv().await.unwrap();
    let ToSession::Shutdown(Shutdown::Cease { subcode, .. }) = batch else {
        panic!("{batch:?}")
    };
    assert_eq!(subcode, 6, "Other Configuration Change");
}

#[tokio::test(start_paused = true)]
async fn a_soft_change_reaches_the_running_session() {
    let mut config = config(&[2]);
    let (stage, mut sessions) = Stage::established(config.clone()).await;
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().ttl = Some(7)
        })
        .await;
    let Some(ToSession::Config(new)) = sessions[0].start.control.recv().await else {
        panic!()
    };
    assert_eq!(new.ttl, Some(7));
    let graceful_restart = Some(GracefulRestart {
        restart_time: Duration::from_secs(7),
    });
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().graceful_restart = graceful_restart
        })
        .await;
    let Some(ToSession::Config(new)) = sessions[0].start.control.recv().await else {
        panic!("the restart time is for the next OPEN")
    };
    assert_eq!(new.graceful_restart, graceful_restart);
    stage.established_peer(2).await;
}

#[tokio::test(start_paused = true)]
async fn configuration_is_offered_again_to_a_session_that_was_busy() {
    let mut config = config(&[2]);
    let (stage, mut sessions) = Stage::established(config.clone()).await;
    for ttl in 1..=40 {
        stage
            .reconfigure(&mut config, |config| {
                config.peers.get_mut(&name(2)).unwrap().ttl = Some(ttl);
            })
            .await;
    }
    let mut last = None;
    while last != Some(40) {
        let Some(ToSession::Config(new)) = sessions[0].start.control.recv().await else {
            panic!()
        };
        last = new.ttl;
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_removed_and_added_again_gets_one_session_at_a_time() {
    let mut config = config(&[2, 3]);
    let (mut stage, mut sessions) = Stage::established(config.clone()).await;
    sessions[0].announce(1).await;
    stage.peer(2, |peer| peer.routes.received == 1).await;
    stage
        .reconfigure(&mut config, |config| drop(config.peers.remove(&name(2))))
        .await;
    assert!(stage.speaker.routes().await.unwrap().is_empty());
    assert_eq!(stage.speaker.received(name(2)).await.unwrap(), None);
    let peer = PeerConfig::new(address(4), Asn(64512));
    stage
        .reconfigure(&mut config, |config| {
            drop(config.peers.insert(name(2), peer))
        })
        .await;
    assert!(
        stage.starts.try_recv().is_err(),
        "the old session has not ended"
    );
    drop(sessions.remove(0));
    assert_eq!(stage.session().await.start.config.address, address(4));
}

#[tokio::test(start_paused = true)]
async fn a_session_task_that_ends_by_itself_is_restarted() {
    let (mut stage, mut sessions) = Stage::established(config(&[2])).await;
    sessions[0].announce(1).await;
    stage.peer(2, |peer| peer.routes.received == 1).await;
    drop(sessions.remove(0));
    let again = stage.session().await;
    assert!(stage.speaker.routes().await.unwrap().is_empty());
    again.up().await;
    stage.established_peer(2).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_sessions_and_withdraws_nothing_from_the_forwarding_table() {
    let (stage, sessions) = Stage::established(config(&[2])).await;
    let fib = stage.speaker.fib().await.unwrap();
    sessions[0].announce(1).await;
    assert_eq!(change(&fib).await.len(), 1);
    let speaker = stage.speaker.clone();
    let shutdown = tokio::spawn(async move { speaker.shutdown(true).await });
    let mut session = sessions.into_iter().next().unwrap();
    let batch = session.start.control.recv().await.unwrap();
    assert!(matches!(batch, ToSession::Shutdown(Shutdown::Restart)));
    // More than the channel holds: the core keeps reading, or this would never end.
    for _ in 0..1000 {
        session.down(true).await;
    }
    drop(session);
    shutdown.await.unwrap().unwrap();
    assert_eq!(fib.changed().await, None);
    assert!(stage.speaker.status().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_does_not_end_is_cut_off() {
    let (stage, _sessions) = Stage::established(config(&[2])).await;
    let before = tokio::time::Instant::now();
    stage.speaker.shutdown(false).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn rfc4724_4_1_a_restarting_speaker_announces_when_all_peers_have_spoken() {
    let mut config = config(&[2, 3]);
    config.originate.insert(prefix(9), Origination::default());
    let options = SpeakerOptions {
        restarting: true,
        ..SpeakerOptions::default()
    };
    let mut stage = Stage::new(config, options);
    let (two, three) = (stage.session().await, stage.session().await);
    assert!(two.start.restarting_until.is_some());
    for session in [&two, &three] {
        session.up().await;
    }
    two.update(UpdateMessage::end_of_rib(Family::Ipv4)).await;
    assert!(stage.speaker.status().await.unwrap().deferring);
    assert!(two.feed.is_empty());
    three.update(UpdateMessage::end_of_rib(Family::Ipv4)).await;
    let batch = two.next_batch().await;
    assert_eq!((batch.announced.len(), batch.markers.len()), (1, 1));
    assert!(!stage.speaker.status().await.unwrap().deferring);
}

#[tokio::test(start_paused = true)]
async fn answers_can_be_serialised() {
    let mut config = config(&[2, 3]);
    config.originate.insert(prefix(9), Origination::default());
    let (stage, sessions) = Stage::established(config).await;
    sessions[0].announce(1).await;
    stage.peer(2, |peer| peer.routes.received == 1).await;
    let status = stage.speaker.status().await.unwrap();
    let text = serde_json::to_string(&status).unwrap();
    assert!(text.contains(r#""state":"Established""#), "{text}");
    assert_eq!(
        serde_json::from_str::<crate::speaker::status::SpeakerStatus>(&text).unwrap(),
        status
    );
    let explained = stage.speaker.explain(prefix(1)).await.unwrap();
    let text = serde_json::to_string(&explained).unwrap();
    assert!(
        text.contains(r#""status":"best","reason":"only-path""#),
        "{text}"
    );
    assert_eq!(
        serde_json::from_str::<crate::rib::Explanation>(&text).unwrap(),
        explained
    );
    let advertised = stage.speaker.advertised(name(3)).await.unwrap().unwrap();
    assert_eq!(advertised.len(), 1);
    let received = stage.speaker.received(name(2)).await.unwrap().unwrap();
    assert!(
        serde_json::to_string(&received)
            .unwrap()
            .contains(r#""nextHop":"10.0.0.2""#)
    );
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_another_name_keeps_its_session() {
    let (stage, mut sessions) = Stage::established(config(&[2, 3])).await;
    let start = stage.established_peer(2).await;
    let rename = |n: u8, to: u8| {
        let mut new = config(&[3]);
        new.peers
            .insert(name(to), PeerConfig::new(address(n), Asn(64512)));
        new
    };
    // There, to a third name, and back: messages of the session, under the name of its start,
    // are taken.
    for (round, now) in [(1, 7), (2, 8), (3, 2)] {
        stage.speaker.reconfigure(rename(2, now)).await.unwrap();
        sessions[0].announce(round).await;
        let peer = stage
            .peer(now, |peer| peer.routes.received == usize::from(round))
            .await;
        assert_eq!(peer.state, SessionState::Established);
        assert_eq!((peer.established_count, peer.since), (1, start.since));
    }
    // When it ends, the next one has the new name.
    stage.speaker.reconfigure(rename(2, 7)).await.unwrap();
    stage.peer(7, |_| true).await;
    drop(sessions.remove(0));
    let mut stage = stage;
    let next = stage.session().await;
    assert_eq!(next.start.peer, name(7));
}

/// Another peer gets the name that a session was started under: nobody takes the one for the other.
#[tokio::test(start_paused = true)]
async fn a_name_that_is_free_again_can_be_another_peers() {
    let (mut stage, sessions) = Stage::established(config(&[2])).await;
    let mut new = config(&[]);
    let mut peer = |n: u8, at: u8| {
        let peer = PeerConfig::new(address(at), Asn(64512));
        new.peers.insert(name(n), peer);
    };
    peer(7, 2);
    peer(2, 4);
    // First the name goes, then somebody else has it.
    let mut renamed = new.clone();
    renamed.peers.remove(&name(2));
    stage.speaker.reconfigure(renamed).await.unwrap();
    stage.speaker.reconfigure(new).await.unwrap();
    let other = stage.session().await;
    assert_eq!(other.start.peer, name(2));
    assert_ne!(other.start.key, sessions[0].start.key);
    other.up().await;
    other.announce(1).await;
    sessions[0].announce(2).await;
    sessions[0].announce(3).await;
    stage.peer(2, |peer| peer.routes.received == 1).await;
    let first = stage.peer(7, |peer| peer.routes.received == 2).await;
    assert_eq!(first.established_count, 1);
    sessions[0].down(false).await;
    stage.peer(7, |peer| peer.state == SessionState::Idle).await;
    assert_eq!(
        stage.established_peer(2).await.routes.received,
        1,
        "the end of the one is not the other's"
    );
}
