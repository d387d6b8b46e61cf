//! Speakers of our own among themselves.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use caracal_bgp::{
    Asn, CALICO_LOCAL_PREF, ClusterId, Filter, FilterAction, FilterCondition, FilterTerm,
    FilterVerdict, GracefulRestart, Origination, PeerConfig, PrefixPattern, RouterId, SessionState,
    SpeakerOptions,
};
use caracal_model::{Family, Prefix};

use crate::net::{AS, Net, Node, name, originate, prefix, stale, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_mesh_of_three_exchanges_what_it_originates() {
    let net = Net::new(101);
    let mut nodes = Vec::new();
    for n in 1..=3 {
        nodes.push(Node::start(net.mesh_member(n, &[1, 2, 3])).await);
    }
    nodes[0].holds(&[2, 3]).await;
    nodes[1].holds(&[1, 3]).await;
    nodes[2].holds(&[1, 2]).await;
    let route = nodes[0].route(3);
    assert_eq!(route.next_hops, [net.address(3)]);
    assert_eq!((route.peer, route.peer_address), (name(3), net.address(3)));
    assert_eq!(
        (route.internal, route.local_pref),
        (true, CALICO_LOCAL_PREF)
    );
    for node in &nodes {
        node.speaker
            .convergence()
            .wait_for(|known| known.converged)
            .await
            .unwrap();
    }
    let peer = nodes[0].peer(2).await;
    assert_eq!(peer.kind, "mesh");
    let counts = (
        peer.routes.received,
        peer.routes.accepted,
        peer.routes.advertised,
    );
    assert_eq!(counts, (1, 1, 1));
    let session = peer.session.unwrap();
    assert_eq!(session.router_id, RouterId([10, 0, 0, 2].into()));
    assert_eq!(
        (session.local_address, session.remote_address),
        (net.address(1), net.address(2))
    );
    assert_eq!(session.families, [Family::Ipv4]);

    nodes[2]
        .reconfigure(|config| drop(config.originate.remove(&prefix(3))))
        .await;
    nodes[0].holds(&[2]).await;
    nodes[1].holds(&[1]).await;
    for n in 50..250 {
        originate(&mut nodes[2].config, n);
    }
    nodes[2].reconfigure(|_| ()).await;
    let all: Vec<u8> = [2].into_iter().chain(50..250).collect();
    nodes[0].holds(&all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc4456_a_reflector_with_two_clients() {
    let net = Net::new(102);
    let cluster = ClusterId([10, 0, 0, 1].into());
    let mut reflector = net.config(1, AS);
    reflector.peers = [2, 3]
        .map(|n| {
            let (name, peer) = net.peer(1, n, AS);
            (
                name,
                PeerConfig {
                    client_of: Some(cluster),
                    ..peer
                },
            )
        })
        .into();
    let reflector = Node::start(reflector).await;
    let client = |n: u8| {
        let mut config = net.config(n, AS);
        config.peers = [net.peer(n, 1, AS)].into();
        originate(&mut config, n);
        config
    };
    let (two, three) = (Node::start(client(2)).await, Node::start(client(3)).await);
    two.holds(&[3]).await;
    three.holds(&[2]).await;
    reflector.holds(&[2, 3]).await;
    let reflected = three.received(1, 2).await.attrs;
    assert_eq!(
        reflected.originator_id,
        Some(RouterId([10, 0, 0, 2].into()))
    );
    assert_eq!(reflected.cluster_list, [cluster]);
    assert_eq!(
        reflected.next_hop,
        Some(net.address(2)),
        "the reflector is not in the way"
    );
    assert_eq!(three.route(2).next_hops, [net.address(2)]);
    let own_back = two.speaker.received(name(1)).await.unwrap().unwrap();
    assert_eq!(
        own_back.len(),
        1,
        "nobody gets back what it sent: {own_back:?}"
    );
}

/// Two speakers of which 2 announces its prefix and is kept for `seconds` without a session.
async fn pair(net: Net, seconds: u64) -> (Node, Node) {
    let member = |n: u8| {
        let mut config = net.mesh_member(n, &[1, 2]);
        for peer in config.peers.values_mut() {
            let restart_time = Duration::from_secs(seconds);
            peer.graceful_restart = Some(GracefulRestart { restart_time });
        }
        config
    };
    let (one, two) = (Node::start(member(1)).await, Node::start(member(2)).await);
    one.holds(&[2]).await;
    two.holds(&[1]).await;
    for node in [&one, &two] {
        node.speaker
            .convergence()
            .wait_for(|known| known.converged)
            .await
            .unwrap();
    }
    (one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc4724_routes_of_a_killed_speaker_stay_for_its_restart_time() {
    let (one, two) = pair(Net::new(103), 2).await;
    let killed = Instant::now();
    drop(two);
    stale(&one, 2).await;
    // On a busy machine that may be seen when the time is over.
    let is_held = one.fib.lock().unwrap().withdrawn.is_empty();
    assert!(is_held || killed.elapsed().as_secs() >= 2);
    one.holds(&[]).await;
    let kept = killed.elapsed();
    assert!(kept.as_secs() >= 2, "kept for {kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc4724_routes_of_a_speaker_that_comes_back_never_go_away() {
    let net = Net::new(104);
    let (one, two) = pair(net, 60).await;
    let config = two.config.clone();
    drop(two);
    stale(&one, 2).await;
    let options = SpeakerOptions {
        restarting: true,
        ..SpeakerOptions::default()
    };
    let two = Node::start_with(config, options).await;
    wait_for("a fresh route", async || {
        let route = one.route(2);
        if route.stale {
            Err((route, one.peer(2).await))
        } else {
            Ok(())
        }
    })
    .await;
    two.holds(&[1]).await;
    assert!(one.fib.lock().unwrap().withdrawn.is_empty());
    assert_eq!(one.peer(2).await.established_count, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc4724_5_shutdown_for_a_restart_keeps_routes_and_leaving_takes_them_along() {
    let (one, two) = pair(Net::new(105), 60).await;
    let config = two.config.clone();
    two.speaker.shutdown(true).await.unwrap();
    stale(&one, 2).await;
    assert!(
        two.fib.lock().unwrap().withdrawn.is_empty(),
        "our own table is kept as well"
    );
    let options = SpeakerOptions {
        restarting: true,
        ..SpeakerOptions::default()
    };
    let two = Node::start_with(config, options).await;
    two.holds(&[1]).await;
    let before = Instant::now();
    two.speaker.shutdown(false).await.unwrap();
    one.holds(&[]).await;
    // The restart time is a minute: it was not that.
    assert!(before.elapsed() < Duration::from_secs(50));
    let reason = one.peer(2).await.reason.unwrap();
    assert!(
        reason.to_lowercase().contains("administrative shutdown"),
        "{reason}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reconfiguration_touches_only_the_peer_that_changed() {
    let net = Net::new(106);
    let mut nodes = Vec::new();
    for n in 1..=3 {
        nodes.push(Node::start(net.mesh_member(n, &[1, 2, 3])).await);
    }
    nodes[0].holds(&[2, 3]).await;
    let before = nodes[0].peer(3).await;
    nodes[0]
        .reconfigure(|config| {
            config.peers.get_mut(&name(2)).unwrap().hold_time = Duration::from_secs(30);
        })
        .await;
    wait_for("a second session", async || {
        let peer = nodes[0].peer(2).await;
        let again = peer.established_count == 2 && peer.state == SessionState::Established;
        if again { Ok(()) } else { Err(peer) }
    })
    .await;
    nodes[0].holds(&[2, 3]).await;
    for node in &nodes {
        let fib = node.fib.lock().unwrap();
        assert!(
            fib.withdrawn.is_empty(),
            "RFC 8538: a reset keeps forwarding: {fib:?}"
        );
    }
    let after = nodes[0].peer(3).await;
    assert_eq!(
        (before.since, before.established_count),
        (after.since, after.established_count)
    );
    assert_eq!(nodes[2].peer(1).await.established_count, 1);

    nodes[0]
        .reconfigure(|config| drop(config.peers.remove(&name(2))))
        .await;
    nodes[0].holds(&[3]).await;
    wait_for("the end of the session at the other end", async || {
        let peer = nodes[1].peer(1).await;
        if peer.state == SessionState::Established {
            Err(peer)
        } else {
            Ok(())
        }
    })
    .await;
    nodes[1].holds(&[3]).await;
    assert_eq!(nodes[2].peer(1).await.established_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn external_peers_and_policy_without_a_reset() {
    let net = Net::new(107);
    let (inside, outside) = (Asn(64512), Asn(65001));
    let mut one = net.config(1, inside);
    one.peers = [net.peer(1, 2, outside)].into();
    originate(&mut one, 1);
    originate(&mut one, 9);
    let mut two = net.config(2, outside);
    two.peers = [net.peer(2, 1, inside)].into();
    let (mut one, mut two) = (Node::start(one).await, Node::start(two).await);
    two.holds(&[1, 9]).await;
    let route = two.received(1, 1).await.attrs;
    assert_eq!((route.as_path.as_str(), route.local_pref), ("64512", None));
    assert_eq!(route.next_hop, Some(net.address(1)));
    assert!(!two.route(1).internal);

    let patterns = vec![PrefixPattern::exact(prefix(9))];
    let conditions = vec![FilterCondition::Prefix {
        patterns,
        negated: false,
    }];
    let reject = FilterTerm {
        conditions,
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    one.reconfigure(|config| {
        config
            .filters
            .insert("out".to_owned(), Filter::from(vec![reject.clone()]));
        config.peers.get_mut(&name(2)).unwrap().export = vec!["out".to_owned()];
    })
    .await;
    two.holds(&[1]).await;
    let prefer = vec![FilterAction::SetLocalPref(777)];
    let prefer = FilterTerm {
        conditions: vec![],
        actions: prefer,
        verdict: None,
    };
    two.reconfigure(|config| {
        config
            .filters
            .insert("in".to_owned(), Filter::from(vec![prefer]));
        config.peers.get_mut(&name(1)).unwrap().import = vec!["in".to_owned()];
    })
    .await;
    wait_for("the new LOCAL_PREF", async || {
        let route = two.route(1);
        if route.local_pref == 777 {
            Ok(())
        } else {
            Err(route)
        }
    })
    .await;
    assert_eq!(two.peer(1).await.established_count, 1);
    assert_eq!(one.peer(2).await.established_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc4760_both_families_on_one_session() {
    let net = Net::new(108);
    let member = |n: u8| {
        let mut config = net.mesh_member(n, &[1, 2]);
        for peer in config.peers.values_mut() {
            peer.families = vec![Family::Ipv4, Family::Ipv6];
        }
        let v6: Prefix = format!("fd00:{n}::/64").parse().unwrap();
        let next_hop = Some(format!("fd00::{n}").parse().unwrap());
        config.originate.insert(
            v6,
            Origination {
                next_hop,
                ..Origination::default()
            },
        );
        config
    };
    let (one, two) = (Node::start(member(1)).await, Node::start(member(2)).await);
    two.established(1).await;
    let v6: Prefix = "fd00:2::/64".parse().unwrap();
    let route = wait_for("an IPv6 route", async || {
        let fib = one.fib.lock().unwrap();
        fib.routes
            .get(&v6)
            .cloned()
            .ok_or_else(|| format!("{fib:?}"))
    })
    .await;
    assert_eq!(route.next_hops, ["fd00::2".parse::<IpAddr>().unwrap()]);
    assert!(one.fib.lock().unwrap().routes.contains_key(&prefix(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_the_wrong_as_is_refused_with_a_reason() {
    let net = Net::new(109);
    let mut one = net.config(1, AS);
    one.peers = [net.peer(1, 2, Asn(65001))].into();
    let mut two = net.config(2, Asn(65002));
    two.peers = [net.peer(2, 1, AS)].into();
    let (one, _two) = (Node::start(one).await, Node::start(two).await);
    let reason = wait_for("a reason", async || {
        let peer = one.peer(2).await;
        let reason = peer
            .reason
            .clone()
            .filter(|reason| reason.contains("65002"));
        reason.ok_or(peer)
    })
    .await;
    assert!(reason.contains("65001"), "{reason}");
}
