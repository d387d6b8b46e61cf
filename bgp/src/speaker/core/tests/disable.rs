//! All sessions shut down, and back.

use super::*;

async fn cease_text(session: &mut Played) -> String {
    let order = session.start.control.recv().await.unwrap();
    let ToSession::Shutdown(Shutdown::Cease { subcode, text }) = order else {
        panic!("{order:?}")
    };
    assert_eq!(subcode, 2, "Administrative Shutdown");
    text
}

#[tokio::test(start_paused = true)]
async fn rfc9003_a_disabled_speaker_says_why_drops_routes_and_starts_nothing() {
    let mut config = config(&[2]);
    let (mut stage, sessions) = Stage::established(config.clone()).await;
    let fib = stage.speaker.fib().await.unwrap();
    sessions[0].announce(1).await;
    assert_eq!(change(&fib).await.len(), 1);
    stage.speaker.disable("new rack".to_owned()).await.unwrap();
    let [mut session] = <[Played; 1]>::try_from(sessions).ok().unwrap();
    assert_eq!(cease_text(&mut session).await, "new rack");
    assert_eq!(change(&fib).await, [(prefix(1), None)]);
    drop(session);
    // Neither the end of the task, nor a new peer, nor a change of the peer starts a session.
    stage
        .reconfigure(&mut config, |config| {
            config.peers.get_mut(&name(2)).unwrap().hold_time = Duration::from_secs(9);
            let three = PeerConfig::new(address(3), Asn(64512));
            config.peers.insert(name(3), three);
        })
        .await;
    let peer = stage.peer(2, |peer| peer.state == SessionState::Idle).await;
    assert_eq!(peer.reason.as_deref(), Some("shut down here: new rack"));
    assert!(stage.starts.try_recv().is_err());
    stage.speaker.enable().await.unwrap();
    for n in [2, 3] {
        let session = stage.session().await;
        assert_eq!(session.start.peer, name(n));
        session.up().await;
        stage.established_peer(n).await;
        std::mem::forget(session);
    }
    // A second time means nothing.
    stage.speaker.enable().await.unwrap();
    assert!(stage.starts.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_still_ending_is_followed_by_one_and_not_two() {
    let (mut stage, mut sessions) = Stage::established(config(&[2])).await;
    stage.speaker.disable(String::new()).await.unwrap();
    assert_eq!(cease_text(&mut sessions[0]).await, "");
    stage.speaker.enable().await.unwrap();
    assert!(stage.starts.try_recv().is_err(), "the old task still runs");
    sessions.clear();
    let next = stage.session().await;
    next.up().await;
    stage.established_peer(2).await;
    assert!(stage.starts.try_recv().is_err());
}
