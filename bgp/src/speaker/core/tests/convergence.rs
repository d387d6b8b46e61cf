//! The word that every peer has told everything.

use super::*;

#[tokio::test(start_paused = true)]
async fn convergence_waits_for_end_of_rib_or_the_restart_time() {
    let mut stage = Stage::new(config(&[2, 3]), SpeakerOptions::default());
    let two = stage.session().await;
    let mut convergence = stage.speaker.convergence();
    convergence
        .wait_for(|known| known.awaited.len() == 2)
        .await
        .unwrap();
    two.up().await;
    assert!(!stage.established_peer(2).await.told_all);
    two.update(UpdateMessage::end_of_rib(Family::Ipv4)).await;
    stage.peer(2, |peer| peer.told_all).await;
    let known = convergence
        .wait_for(|known| known.awaited == [name(3)])
        .await
        .unwrap()
        .clone();
    assert!(!known.converged);
    let before = tokio::time::Instant::now();
    convergence.wait_for(|known| known.converged).await.unwrap();
    assert!(
        before.elapsed() >= Duration::from_secs(119),
        "{:?}",
        before.elapsed()
    );
}

/// The word comes behind the routes that it is about, however many they are: whoever sweeps a
/// forwarding table upon it has them all. After a restart they wait for the last End-of-RIB and are
/// decided in slices.
#[tokio::test(start_paused = true)]
async fn rfc4724_4_1_convergence_comes_behind_all_that_was_learned_before() {
    const UPDATES: u32 = 80;
    const PREFIXES: u32 = 1000;
    for restarting in [true, false] {
        let options = SpeakerOptions {
            restarting,
            ..SpeakerOptions::default()
        };
        let mut stage = Stage::new(config(&[2, 3]), options);
        let (two, three) = (stage.session().await, stage.session().await);
        let fib = stage.speaker.fib().await.unwrap();
        let mut convergence = stage.speaker.convergence();
        for session in [&two, &three] {
            session.up().await;
        }
        for update in 0..UPDATES {
            let first = update * PREFIXES;
            let prefix = |n: u32| Prefix::v4((0x1400_0000 + (n << 8)).into(), 24);
            let attrs = PathAttrs {
                next_hop: Some(address(2)),
                ..PathAttrs::default()
            };
            two.update(UpdateMessage {
                announced: (first..first + PREFIXES).map(prefix).collect(),
                attrs: Some(attrs),
                ..UpdateMessage::default()
            })
            .await;
        }
        for session in [&two, &three] {
            let end = UpdateMessage::end_of_rib(Family::Ipv4);
            session.update(end).await;
        }
        convergence.wait_for(|known| known.converged).await.unwrap();
        let routes = fib.take();
        let learned = routes.iter().filter(|(_, route)| route.is_some());
        assert_eq!(
            learned.count(),
            (UPDATES * PREFIXES) as usize,
            "restarting: {restarting}"
        );
    }
}
