//! Both families on one session over IPv4 (RFC 4760), with BIRD 2 and GoBGP: next hops, communities
//! of both sizes, the end.

use caracal_bgp::{AnyCommunity, Asn, NextHopMode, Origination, RouteInfo, SpeakerConfig};
use caracal_model::{Family, Prefix};

use crate::interop::{Foreign, installed, start_bird};
use crate::net::{AS, Net, Node, name, wait_for};

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// Speaker 1 with a route of each family, and speaker 2 of an AS as its peer.
fn ours(net: Net, remote_as: Asn) -> SpeakerConfig {
    let mut config = net.config(1, AS);
    let (name, mut peer) = net.peer(1, 2, remote_as);
    peer.families = vec![Family::Ipv4, Family::Ipv6];
    config.peers = [(name, peer)].into();
    let four = Origination {
        communities: vec![
            "64512:7".parse().unwrap(),
            AnyCommunity::Extended("rt:64512:9".parse().unwrap()),
        ],
        med: Some(5),
        ..Origination::default()
    };
    let six = Origination {
        next_hop: Some("fd00::9".parse().unwrap()),
        ..four.clone()
    };
    config.originate = [(p("10.10.1.0/24"), four), (p("fd00:10::/64"), six)].into();
    config
}

/// What the peer has announced, once it is so many routes.
async fn received(node: &Node, count: usize) -> Vec<RouteInfo> {
    wait_for("the peer's routes", async || {
        let routes = node.speaker.received(name(2)).await.unwrap().unwrap();
        if routes.len() == count {
            Ok(routes)
        } else {
            Err(routes)
        }
    })
    .await
}

async fn bird(number: u8, asn: Asn) {
    if !installed("bird") {
        return;
    }
    let net = Net::new(number);
    let mut bird = Foreign::new("bird-families", net);
    let (own, peer, port) = (net.address(2), net.address(1), net.port);
    let config = format!(
        "log stderr all;
         router id 10.0.0.2;
         protocol device {{ scan time 60; }}
         protocol static {{ ipv4; route 10.20.1.0/24 blackhole; route 10.20.2.0/24 blackhole; }}
         protocol bgp caracal {{
           local {own} port {port} as {asn};
           neighbor {peer} port {port} as {AS};
           multihop; strict bind; graceful restart; connect delay time 1;
           ipv4 {{
             import all; next hop self;
             export filter {{
               bgp_large_community.add((1, 2, 3)); bgp_ext_community.add((ro, 10.0.0.1, 4)); accept;
             }};
           }};
           ipv6 {{ import all; export all; }};
         }}"
    );
    std::fs::write(bird.directory.join("bird.conf"), config).unwrap();
    start_bird(&mut bird, &[]);
    let one = Node::start(ours(net, asn)).await;
    let session = one.established(2).await.session.unwrap();
    assert_eq!(session.families, [Family::Ipv4, Family::Ipv6]);
    assert!(session.graceful_restart.is_some());
    let routes = received(&one, 2).await;
    assert_eq!(routes[0].prefix, p("10.20.1.0/24"));
    assert_eq!(routes[0].attrs.next_hop, Some(own));
    let communities = [
        "1:2:3".parse().unwrap(),
        AnyCommunity::Extended("ro:10.0.0.1:4".parse().unwrap()),
    ];
    assert_eq!(routes[0].attrs.communities, communities);
    let seen = wait_for("our routes in BIRD", async || {
        let shown = bird.birdc("show route all protocol caracal");
        if shown.contains("10.10.1.0/24") && shown.contains("fd00:10::/64") {
            Ok(shown)
        } else {
            Err(shown)
        }
    })
    .await;
    assert!(seen.contains("BGP.community: (64512,7)"), "{seen}");
    assert!(seen.contains("BGP.ext_community: (rt, 64512, 9)"), "{seen}");
    assert!(seen.contains("BGP.next_hop: fd00::9"), "{seen}");
    one.speaker.shutdown(false).await.unwrap();
    wait_for("the reason in BIRD", async || {
        let shown = bird.birdc("show protocols all caracal");
        if shown.contains("Administrative shutdown") {
            Ok(())
        } else {
            Err(shown)
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_internal_both_families() {
    bird(116, AS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bird_external_both_families() {
    bird(117, Asn(4_200_000_001)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gobgp_external_both_families() {
    if !installed("gobgpd") {
        return;
    }
    let net = Net::new(118);
    let families = r#"[neighbors.ebgp-multihop.config]
            enabled = true
            multihop-ttl = 5
          [[neighbors.afi-safis]]
            [neighbors.afi-safis.config]
              afi-safi-name = "ipv4-unicast"
          [[neighbors.afi-safis]]
            [neighbors.afi-safis.config]
              afi-safi-name = "ipv6-unicast""#;
    let gobgp = Foreign::gobgp("gobgp-families", net, Asn(65001), families);
    let host = net.address(2).to_string();
    let mut config = ours(net, Asn(65001));
    // GoBGP takes no loopback address for a next hop.
    for peer in config.peers.values_mut() {
        peer.next_hop = NextHopMode::Keep.into();
    }
    let four = config.originate.get_mut(&p("10.10.1.0/24")).unwrap();
    four.next_hop = Some([192, 0, 2, 9].into());
    let one = Node::start(config).await;
    let session = one.established(2).await.session.unwrap();
    assert_eq!(session.families, [Family::Ipv4, Family::Ipv6]);
    let ask = |words: &[&str]| gobgp.ask_gobgp(net, words);
    ask(&["global", "rib", "add", "10.30.1.0/24", "nexthop", &host]);
    let routes = received(&one, 1).await;
    assert_eq!(routes[0].attrs.as_path, "65001");
    let seen = wait_for("our routes in GoBGP", async || {
        let rib = |family| ask(&["global", "rib", "-a", family]);
        let shown = rib("ipv4") + &rib("ipv6");
        if shown.contains("10.10.1.0/24") && shown.contains("fd00:10::/64") {
            Ok(shown)
        } else {
            Err(shown)
        }
    })
    .await;
    assert!(seen.contains("64512:7"), "{seen}");
}
