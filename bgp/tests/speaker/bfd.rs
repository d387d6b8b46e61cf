//! BFD over real sockets: the thread against itself, against BIRD, and what it does to sessions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use caracal_bgp::{
    BfdHandle, BfdOptions, BfdPacket, BfdSession, BfdStatus, BfdTarget, BfdTimers, PeerKey,
    SessionState,
};

use crate::interop::{Foreign, installed};
use crate::net::{AS, LIMIT, Net, Node, name, wait_for};

fn watch(net: Net, from: u8, to: u8, multihop: bool) -> BfdHandle {
    let handle = BfdHandle::spawn().unwrap();
    let target = BfdTarget {
        name: name(to),
        local: net.address(from),
        remote: net.address(to),
        multihop,
        options: BfdOptions::default(),
    };
    handle.set(BTreeMap::from([(PeerKey(to.into()), target)]));
    handle
}

async fn sees(
    handle: &BfdHandle,
    n: u8,
    what: &str,
    good: impl Fn(&BfdStatus) -> bool,
) -> BfdStatus {
    wait_for(what, async || {
        let seen = handle.seen().borrow().get(&PeerKey(n.into())).cloned();
        match seen {
            Some(seen) if good(&seen) => Ok(seen),
            seen => Err(seen),
        }
    })
    .await
}

fn up(seen: &BfdStatus) -> bool {
    seen.state == "Up"
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc5881_rfc5883_two_ends_find_each_other_and_miss_each_other() {
    for (number, multihop) in [(131, false), (132, true)] {
        let net = Net::new(number);
        let (one, two) = (watch(net, 1, 2, multihop), watch(net, 2, 1, multihop));
        sees(&one, 2, "up", up).await;
        sees(&two, 1, "up", up).await;
        // Without AdminDown.
        drop(two);
        let seen = sees(&one, 2, "down", |seen| seen.downs == 1).await;
        assert_eq!(
            seen.diagnostic.as_deref(),
            Some("control detection time expired")
        );
        let two = watch(net, 2, 1, multihop);
        sees(&one, 2, "up again", up).await;
        // With one: no failure.
        two.set(BTreeMap::new());
        let seen = sees(&one, 2, "the end", |seen| !up(seen)).await;
        assert_eq!(seen.downs, 1);
    }
}

/// RFC 5881 §5: what has passed a router, or was sent from afar to look so, has no say.
#[tokio::test(flavor = "multi_thread")]
async fn rfc5881_5_a_packet_of_a_smaller_ttl_is_not_heard() {
    let net = Net::new(133);
    let socket = tokio::net::UdpSocket::bind((net.address(2), 3784))
        .await
        .unwrap();
    let _one = watch(net, 1, 2, false);
    let timers = BfdTimers {
        interval: Duration::from_secs(1),
        multiplier: 3,
    };
    // Packets of sessions that have received none; only the numbers differ.
    let first_packet = |discriminator| {
        let now = Instant::now();
        let mut session = BfdSession::new(now, discriminator, timers, 1);
        let packet = session.poll(now + Duration::from_secs(2)).unwrap();
        packet.encode()
    };
    let next_packet = async || {
        let mut octets = [0; 64];
        let wait = tokio::time::timeout(LIMIT, socket.recv(&mut octets)).await;
        let len = wait.expect("a packet every second").unwrap();
        BfdPacket::decode(&octets[..len]).unwrap()
    };
    let say = async |ttl, octets: &[u8]| {
        socket.set_ttl(ttl).unwrap();
        socket
            .send_to(octets, (net.address(1), 3784))
            .await
            .unwrap();
    };
    assert_eq!(next_packet().await.your_discriminator, 0);
    for ttl in [1, 64, 254] {
        say(ttl, &first_packet(7)).await;
    }
    // The second packet from now on was made later.
    for _ in 0..3 {
        assert_eq!(next_packet().await.your_discriminator, 0);
    }
    say(255, &first_packet(9)).await;
    wait_for("an answer", async || {
        let packet = next_packet().await;
        if packet.your_discriminator == 9 {
            Ok(())
        } else {
            Err(packet)
        }
    })
    .await;
}

/// Speaker 1 with BFD towards speaker 2, whose BFD is in our hands.
async fn pair(net: Net, graceful: bool) -> (Node, Node, BfdHandle) {
    let mut config = net.mesh_member(1, &[1, 2]);
    config.peers.get_mut(&name(2)).unwrap().bfd = Some(BfdOptions {
        graceful,
        ..BfdOptions::default()
    });
    let one = Node::start(config).await;
    let two = Node::start(net.mesh_member(2, &[1, 2])).await;
    one.holds(&[2]).await;
    let theirs = watch(net, 2, 1, true);
    wait_for("BFD", async || {
        let peer = one.peer(2).await;
        if peer.bfd.as_ref().is_some_and(up) {
            Ok(())
        } else {
            Err(peer)
        }
    })
    .await;
    (one, two, theirs)
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc5882_4_2_a_dead_peer_loses_its_session_and_its_routes() {
    let (one, _two, theirs) = pair(Net::new(133), false).await;
    let cut = Instant::now();
    drop(theirs);
    let reason = wait_for("the end of the session", async || {
        let peer = one.peer(2).await;
        let said = peer.reason.clone().unwrap_or_default();
        if said.contains("BFD") {
            Ok(said)
        } else {
            Err(peer)
        }
    })
    .await;
    // The hold time is 90 s: it was not that.
    assert!(cut.elapsed() < Duration::from_secs(60), "{reason}");
    wait_for("the withdrawal", async || {
        let withdrawn = one.fib.lock().unwrap().withdrawn.len();
        if withdrawn == 1 {
            Ok(())
        } else {
            Err(withdrawn)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_with_another_name_is_watched_as_before() {
    let (mut one, _two, theirs) = pair(Net::new(136), false).await;
    one.reconfigure(|config| {
        let peer = config.peers.remove(&name(2)).unwrap();
        config.peers.insert(name(7), peer);
    })
    .await;
    let renamed = one.peer(7).await;
    assert!(renamed.bfd.as_ref().is_some_and(up), "{renamed:?}");
    assert_eq!(renamed.established_count, 1);
    drop(theirs);
    wait_for("the end of the session", async || {
        let peer = one.peer(7).await;
        let said = peer.reason.clone().unwrap_or_default();
        if said.contains("BFD") {
            Ok(())
        } else {
            Err(peer)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc5882_4_3_when_it_may_be_a_restart_the_routes_stay() {
    let (one, _two, theirs) = pair(Net::new(134), true).await;
    drop(theirs);
    // It comes back by itself, since only BFD was cut.
    wait_for("the second session", async || {
        let peer = one.peer(2).await;
        let again = peer.established_count == 2 && peer.state == SessionState::Established;
        if again { Ok(()) } else { Err(peer) }
    })
    .await;
    assert!(one.fib.lock().unwrap().withdrawn.is_empty(), "kept over it");
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_and_we_watch_each_other() {
    if !installed("bird") {
        return;
    }
    let net = Net::new(135);
    let mut bird = Foreign::new("bird-bfd", net);
    let (own, peer) = (net.address(2), net.address(1));
    let config = format!(
        "log stderr all;
         router id 10.0.0.2;
         protocol device {{ scan time 60; }}
         protocol bfd {{
           accept ipv4 multihop; strict bind;
           multihop {{ min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }};
           neighbor {peer} local {own} multihop;
         }}
         protocol bgp caracal {{
           local {own} port {} as {AS}; neighbor {peer} port {} as {AS};
           multihop; strict bind; bfd; connect delay time 1;
           ipv4 {{ import all; export all; }};
         }}",
        net.port, net.port
    );
    std::fs::write(bird.directory.join("bird.conf"), config).unwrap();
    bird.run(
        "bird",
        &["-f", "-c", "bird.conf", "-s", "bird.ctl", "-P", "bird.pid"],
    );
    let mut config = net.mesh_member(1, &[1, 2]);
    config.peers.get_mut(&name(2)).unwrap().bfd = Some(BfdOptions::default());
    let one = Node::start(config).await;
    one.established(2).await;
    let seen = wait_for("BFD here and there", async || {
        let peer = one.peer(2).await;
        let shown = bird.birdc("show bfd sessions");
        if peer.bfd.as_ref().is_some_and(up) && shown.contains("Up") {
            Ok(shown)
        } else {
            Err((peer, shown))
        }
    })
    .await;
    assert!(seen.contains("0.900"), "three times 300 ms: {seen}");
    bird.kill();
    wait_for("BFD's reason", async || {
        let peer = one.peer(2).await;
        if peer.bfd.as_ref().is_some_and(|seen| seen.downs == 1) {
            Ok(())
        } else {
            Err(peer)
        }
    })
    .await;
}
