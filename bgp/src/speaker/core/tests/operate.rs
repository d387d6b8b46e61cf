//! Orders about one peer, and what is remembered of it.

use super::*;
use crate::speaker::counters::{ErrorKind, MessageDirection};
use crate::speaker::{PeerCommand, PeerCommandError};

impl Stage {
    async fn order(&self, n: u8, order: PeerCommand) -> Result<String, PeerCommandError> {
        self.speaker.operate(name(n), order).await.unwrap()
    }
}

async fn cease(session: &mut Played) -> (u8, String) {
    let order = session.start.control.recv().await.unwrap();
    let ToSession::Shutdown(Shutdown::Cease { subcode, text }) = order else {
        panic!("{order:?}")
    };
    (subcode, text)
}

#[tokio::test(start_paused = true)]
async fn rfc9003_a_disabled_peer_stays_so_over_reconfigurations_until_it_is_enabled() {
    let mut config = config(&[2, 3]);
    let (mut stage, sessions) = Stage::established(config.clone()).await;
    let fib = stage.speaker.fib().await.unwrap();
    sessions[0].announce(1).await;
    assert_eq!(change(&fib).await.len(), 1);
    let mut sessions = sessions.into_iter();
    let (mut two, three) = (sessions.next().unwrap(), sessions.next().unwrap());
    let done = stage
        .order(2, PeerCommand::Disable("rack 7".to_owned()))
        .await;
    assert_eq!(done, Ok("peer p2 is disabled".to_owned()));
    assert_eq!(cease(&mut two).await, (2, "rack 7".to_owned()));
    assert_eq!(change(&fib).await, [(prefix(1), None)], "its routes go");
    drop(two);
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().hold_time = Duration::from_secs(9);
        })
        .await;
    let peer = stage.peer(2, |peer| peer.disabled).await;
    assert_eq!(peer.reason.as_deref(), Some("disabled here: rack 7"));
    assert_eq!(peer.state, SessionState::Idle);
    assert!(stage.starts.try_recv().is_err(), "nothing dials");
    for order in [
        PeerCommand::Reset(String::new()),
        PeerCommand::SoftIn,
        PeerCommand::SoftOut,
    ] {
        assert_eq!(stage.order(2, order).await, Err(PeerCommandError::Disabled));
    }
    // The other peer was not touched.
    assert!(stage.established_peer(3).await.reason.is_none());
    stage.order(2, PeerCommand::Enable).await.unwrap();
    let session = stage.session().await;
    assert_eq!(session.start.peer, name(2));
    session.up().await;
    let peer = stage.established_peer(2).await;
    assert_eq!(
        (peer.disabled, peer.reason, peer.established_count),
        (false, None, 2)
    );
    drop(three);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_the_configuration_disables_is_neither_served_nor_waited_for() {
    let mut config = config(&[2, 3]);
    config.peers.get_mut(&name(2)).unwrap().disabled = true;
    let mut stage = Stage::new(config.clone(), SpeakerOptions::default());
    let session = stage.session().await;
    assert_eq!(session.start.peer, name(3));
    session.up().await;
    stage.established_peer(3).await;
    let status = stage.speaker.status().await.unwrap();
    assert_eq!(status.convergence.awaited, [name(3)]);
    let peer = stage.peer(2, |peer| peer.disabled).await;
    assert_eq!(
        peer.reason.as_deref(),
        Some("disabled in the configuration")
    );
    // An order counts until the configuration says something else, as birdc's users know it.
    stage.order(2, PeerCommand::Enable).await.unwrap();
    let two = stage.session().await;
    let same = config.clone();
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(3)).unwrap().allow_own_as = 1;
        })
        .await;
    assert!(!stage.peer(2, |_| true).await.disabled);
    drop(same);
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().disabled = false;
        })
        .await;
    assert!(!stage.peer(2, |_| true).await.disabled);
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().disabled = true;
        })
        .await;
    assert!(stage.peer(2, |_| true).await.disabled);
    drop((session, two));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_an_error_disables_has_no_session_until_it_is_enabled() {
    let (mut stage, mut sessions) = Stage::established(config(&[2])).await;
    sessions[0].down(false).await;
    let failed = |disables| ToCore::State {
        peer: sessions[0].start.key,
        state: SessionState::Idle,
        reason: Some("hold timer expired".to_owned()),
        refused: false,
        disables,
    };
    sessions[0].say(failed(false)).await;
    let peer = stage.peer(2, |peer| peer.reason.is_some()).await;
    assert!(!peer.disabled);
    sessions[0].say(failed(true)).await;
    let peer = stage.peer(2, |peer| peer.disabled).await;
    let reason = "disabled here: hold timer expired";
    assert_eq!(peer.reason.as_deref(), Some(reason));
    assert_eq!(cease(&mut sessions[0]).await.0, 2);
    sessions.clear();
    stage.order(2, PeerCommand::Enable).await.unwrap();
    let next = stage.session().await;
    next.up().await;
    assert_eq!(stage.established_peer(2).await.established_count, 2);
}

#[tokio::test(start_paused = true)]
async fn rfc4486_a_reset_ends_the_session_and_begins_the_next_at_once() {
    let (mut stage, mut sessions) = Stage::established(config(&[2])).await;
    let refused = stage.order(2, PeerCommand::Reset("é".repeat(128))).await;
    assert_eq!(refused, Err(PeerCommandError::Text(256)));
    assert_eq!(
        stage.order(9, PeerCommand::Enable).await,
        Err(PeerCommandError::NoPeer)
    );
    stage
        .order(2, PeerCommand::Reset("again".to_owned()))
        .await
        .unwrap();
    assert_eq!(cease(&mut sessions[0]).await, (4, "again".to_owned()));
    sessions.clear();
    let next = stage.session().await;
    next.up().await;
    assert_eq!(stage.established_peer(2).await.established_count, 2);
}

#[tokio::test(start_paused = true)]
async fn soft_out_announces_again_and_soft_in_asks_or_filters() {
    let mut config = config(&[2]);
    config.originate.insert(prefix(9), Origination::default());
    let (stage, mut sessions) = Stage::established(config.clone()).await;
    assert_eq!(sessions[0].next_batch().await.announced.len(), 1);
    stage.order(2, PeerCommand::SoftOut).await.unwrap();
    assert_eq!(sessions[0].next_batch().await.announced[0].1, [prefix(9)]);
    // The played session has not agreed on route refresh.
    let done = stage.order(2, PeerCommand::SoftIn).await.unwrap();
    assert!(done.contains("import filters again"), "{done}");
    assert!(sessions[0].start.control.try_recv().is_err());
    // One that has is asked.
    sessions[0].down(false).await;
    stage.peer(2, |peer| peer.state == SessionState::Idle).await;
    assert_eq!(
        stage.order(2, PeerCommand::SoftIn).await,
        Err(PeerCommandError::NoSession)
    );
    let options = SessionOptions {
        route_refresh: true,
        ..SessionOptions::default()
    };
    sessions[0].up_with(options).await;
    stage.established_peer(2).await;
    let done = stage.order(2, PeerCommand::SoftIn).await.unwrap();
    assert!(done.contains("asked for its routes"), "{done}");
    let asked = sessions[0].start.control.recv().await.unwrap();
    assert!(matches!(asked, ToSession::AskRefresh(Family::Ipv4)));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_over_is_shown_as_past() {
    let (stage, sessions) = Stage::established(config(&[2])).await;
    let session = &sessions[0];
    let (peer, text) = (session.start.key, "Cease / Administrative Reset".to_owned());
    let way = MessageDirection::Received;
    session.say(ToCore::Notified { peer, way, text }).await;
    session.down(false).await;
    let down = stage.peer(2, |peer| peer.reason.is_some()).await;
    assert_eq!(down.reason.as_deref(), Some("hold timer expired"));
    tokio::time::advance(Duration::from_secs(7)).await;
    let down = stage.peer(2, |_| true).await;
    assert_eq!(down.down_seconds, Some(7));
    // From the last session on, however often it is tried since.
    for state in [SessionState::Connect, SessionState::Active] {
        let (reason, refused) = (None, false);
        let tried = ToCore::State {
            peer,
            state,
            reason,
            refused,
            disables: false,
        };
        session.say(tried).await;
        tokio::time::advance(Duration::from_secs(2)).await;
        stage.peer(2, |peer| peer.state == state).await;
    }
    assert_eq!(stage.peer(2, |_| true).await.down_seconds, Some(11));
    session.start.counters.error(ErrorKind::HoldTimer);
    session.up().await;
    let up = stage.established_peer(2).await;
    assert_eq!((up.reason, up.down_seconds), (None, None));
    assert_eq!(up.last_error.unwrap().text, "hold timer expired");
    assert_eq!(up.errors[&ErrorKind::HoldTimer], 1);
    let detail = stage.speaker.peer(name(2)).await.unwrap().unwrap();
    let received = detail.last_notification_received.unwrap();
    assert_eq!(received.text, "Cease / Administrative Reset");
    assert_eq!(detail.last_notification_sent, None);
    session.down(false).await;
    stage.peer(2, |peer| peer.reason.is_some()).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(stage.peer(2, |_| true).await.down_seconds, Some(3));
    assert_eq!(
        (detail.established_count, detail.hold_time.configured),
        (2, 90)
    );
    assert_eq!(stage.speaker.peer(name(9)).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_flapping_peer_writes_few_lines_and_none_is_lost() {
    let (stage, sessions) = Stage::established(config(&[2])).await;
    stage.established_peer(2).await;
    let lines = crate::speaker::log_limit::testing::Lines::collect();
    for round in 0..1000 {
        sessions[0].down(false).await;
        sessions[0].up().await;
        stage
            .peer(2, |peer| peer.established_count == round + 2)
            .await;
    }
    let few = lines.taken();
    assert_eq!(
        few.len(),
        20 - 1,
        "one session was established before: {few:?}"
    );
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut summaries = lines.taken();
    summaries.sort();
    assert_eq!(summaries.len(), 2, "{summaries:?}");
    assert!(
        summaries[0].contains("990 more suppressed in 10 s"),
        "{summaries:?}"
    );
    assert!(
        summaries[1].contains("991 more suppressed in 10 s"),
        "{summaries:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn prefixes_advertised_are_counted_by_family() {
    let mut config = config(&[2]);
    let both = [Family::Ipv4, Family::Ipv6];
    let peer = config.peers.get_mut(&name(2)).unwrap();
    peer.families = both.into();
    peer.own_next_hops.set([0xfd00, 0, 0, 0, 0, 0, 0, 1].into());
    let six = |n: u8| Prefix::truncated([0xfd00, 0x9, n.into(), 0, 0, 0, 0, 0].into(), 48);
    for own in [prefix(9), six(1), six(2)] {
        config.originate.insert(own, Origination::default());
    }
    let (stage, mut sessions) = Stage::established(config.clone()).await;
    let advertised = async |stage: &Stage| {
        let detail = stage.speaker.peer(name(2)).await.unwrap().unwrap();
        let of = |family| detail.families.iter().find(|f| f.family == family).unwrap();
        let counts = both.map(|family| of(family).advertised);
        (counts, detail.advertised)
    };
    // Exports are decided a slice at a time.
    sessions[0].next_batch().await;
    assert_eq!(advertised(&stage).await, ([Some(1), None], 1), "one family");
    sessions[0].down(false).await;
    stage.peer(2, |peer| peer.state == SessionState::Idle).await;
    assert_eq!(advertised(&stage).await.0, [None, None], "no session");
    sessions[0].up_for(&both).await;
    stage.established_peer(2).await;
    let mut all = Vec::new();
    while all.len() < 3 {
        let batch = sessions[0].next_batch().await.announced.into_iter();
        all.extend(batch.flat_map(|(_, prefixes)| prefixes));
    }
    assert_eq!(advertised(&stage).await, ([Some(1), Some(2)], 3));
    sessions.clear();
}
