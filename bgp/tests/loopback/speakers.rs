//! Two whole speakers.

use std::collections::BTreeMap;

use caracal_bgp::{
    Asn, Listen, Origination, PeerConfig, PeerName, PeerStatus, RouterId, SessionState, Speaker,
    SpeakerConfig, SpeakerHandle, SpeakerOptions,
};
use caracal_model::{Family, Prefix};

use super::{free_port, loopback, wait_for};

/// The only peer of each speaker.
fn other() -> PeerName {
    PeerName::from("other")
}

/// The configurations of the two ends of `test`, both dialling and listening.
pub(super) fn configs(test: u8) -> [SpeakerConfig; 2] {
    let port = free_port(&[loopback(test, 1), loopback(test, 2)]);
    [(1, 2), (2, 1)].map(|(end, far)| {
        let mut peer = PeerConfig::new(loopback(test, far), Asn(64512));
        peer.port = port;
        peer.source = Some(loopback(test, end));
        SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([10, 0, test, end].into()),
            listen: Some(Listen {
                address: Some(loopback(test, end)),
                second: None,
                port,
            }),
            peers: BTreeMap::from([(other(), peer)]),
            originate: [(block(end), Origination::default())].into(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        }
    })
}

pub(super) fn peer(config: &mut SpeakerConfig) -> &mut PeerConfig {
    config.peers.get_mut(&other()).unwrap()
}

/// What end `end` originates.
fn block(end: u8) -> Prefix {
    Prefix::v4([10, 244, end, 0].into(), 24)
}

pub(super) fn start(config: &SpeakerConfig) -> SpeakerHandle {
    Speaker::spawn(config.clone(), SpeakerOptions::default())
}

pub(super) async fn status(speaker: &SpeakerHandle) -> PeerStatus {
    speaker.status().await.unwrap().peers.remove(0)
}

pub(super) async fn established(speaker: &SpeakerHandle) -> PeerStatus {
    let up = |status: &PeerStatus| status.state == SessionState::Established;
    wait_for("a session", async || status(speaker).await, up).await
}

/// Waits until `speaker` has exactly these prefixes from the other.
async fn receives(speaker: &SpeakerHandle, prefixes: &[Prefix]) {
    let ask = async || {
        let routes = speaker.received(other()).await.unwrap().unwrap();
        routes
            .into_iter()
            .map(|route| route.prefix)
            .collect::<Vec<_>>()
    };
    wait_for("routes", ask, |seen| seen.as_slice() == prefixes).await;
}

#[tokio::test]
async fn both_dial_at_once_and_exchange_routes() {
    let configs = configs(1);
    let [a, b] = configs.each_ref().map(start);
    let status = established(&a).await;
    established(&b).await;
    let session = status.session.unwrap();
    assert_eq!(session.router_id, configs[1].router_id);
    assert_eq!(session.local_address, loopback(1, 1));
    assert_eq!(session.remote_address, loopback(1, 2));
    assert_eq!(session.families, [Family::Ipv4]);
    assert!(session.capabilities.contains(&"4-octet AS".to_owned()));
    receives(&a, &[block(2)]).await;
    receives(&b, &[block(1)]).await;
    let route = b.received(other()).await.unwrap().unwrap().remove(0);
    assert_eq!(route.attrs.next_hop, Some(loopback(1, 1)));
}

#[tokio::test]
async fn changes_and_withdrawals_reach_the_other_end() {
    let configs = configs(2);
    let [a, b] = configs.each_ref().map(start);
    receives(&b, &[block(1)]).await;
    let mut config = configs[0].clone();
    config.originate.insert(block(77), Origination::default());
    a.reconfigure(config.clone()).await.unwrap();
    receives(&b, &[block(1), block(77)]).await;
    config.originate.remove(&block(1));
    a.reconfigure(config).await.unwrap();
    receives(&b, &[block(77)]).await;
    assert_eq!(status(&b).await.established_count, 1);
}

#[tokio::test]
async fn both_families_share_a_session() {
    let mut configs = configs(3);
    let six: Prefix = "fd00:244:1::/64".parse().unwrap();
    for config in &mut configs {
        peer(config).families = vec![Family::Ipv4, Family::Ipv6];
    }
    let next_hop = Some("fd00::1".parse().unwrap());
    configs[0].originate.insert(
        six,
        Origination {
            next_hop,
            ..Origination::default()
        },
    );
    let [_a, b] = configs.each_ref().map(start);
    receives(&b, &[block(1), six]).await;
    let routes = b.received(other()).await.unwrap().unwrap();
    assert_eq!(routes[1].attrs.next_hop, next_hop);
}

#[tokio::test]
async fn a_hundred_thousand_routes_arrive() {
    let mut configs = configs(4);
    configs[0].originate = (0..100_000u32)
        .map(|n| {
            (
                Prefix::v4((0x1400_0000 | n << 8).into(), 24),
                Origination::default(),
            )
        })
        .collect();
    let [_a, b] = configs.each_ref().map(start);
    let count = async || status(&b).await.routes.received;
    wait_for("all routes", count, |seen| *seen == 100_000).await;
}

#[tokio::test]
async fn rfc9003_an_administrative_shutdown_is_shown_at_the_other_end() {
    let [a, b] = configs(5).each_ref().map(start);
    established(&b).await;
    receives(&b, &[block(1)]).await;
    a.shutdown(false).await.unwrap();
    let reason = |status: &PeerStatus| {
        status
            .reason
            .as_ref()
            .is_some_and(|reason| reason.contains("Administrative Shutdown"))
    };
    wait_for("the reason", async || status(&b).await, reason).await;
    receives(&b, &[]).await;
}

#[tokio::test]
async fn rfc9003_who_dials_a_disabled_speaker_is_told_why() {
    let configs = configs(41);
    let a = start(&configs[0]);
    a.disable("moving to rack 7".to_owned()).await.unwrap();
    // It has never had a session with us.
    let b = start(&configs[1]);
    let has_text = |status: &PeerStatus| {
        let reason = status.reason.as_deref().unwrap_or_default();
        reason.contains("Administrative Shutdown") && reason.contains("moving to rack 7")
    };
    wait_for("the text", async || status(&b).await, has_text).await;
    a.enable().await.unwrap();
    established(&b).await;
    receives(&b, &[block(1)]).await;
}

#[tokio::test]
async fn rfc4724_4_2_over_a_restart_the_routes_stay() {
    let configs = configs(6);
    let [a, b] = configs.each_ref().map(start);
    receives(&b, &[block(1)]).await;
    established(&a).await;
    a.shutdown(true).await.unwrap();
    let down = |status: &PeerStatus| status.state != SessionState::Established;
    wait_for("the end of the session", async || status(&b).await, down).await;
    let routes = b.received(other()).await.unwrap().unwrap();
    assert_eq!(routes.len(), 1);
    assert!(routes[0].stale);
    // It comes back, and what it says again is fresh.
    let restarting = SpeakerOptions {
        restarting: true,
        ..SpeakerOptions::default()
    };
    let _a = Speaker::spawn(configs[0].clone(), restarting);
    let fresh = |routes: &Vec<_>| {
        routes
            .iter()
            .all(|route: &caracal_bgp::RouteInfo| !route.stale)
            && routes.len() == 1
    };
    let ask = async || b.received(other()).await.unwrap().unwrap();
    wait_for("fresh routes", ask, fresh).await;
}

#[tokio::test]
async fn a_wrong_as_is_named_at_both_ends() {
    let mut configs = configs(7);
    peer(&mut configs[0]).remote_as = Asn(65001);
    let [a, b] = configs.each_ref().map(start);
    let reason = |words: &'static str| {
        move |status: &PeerStatus| {
            status
                .reason
                .as_ref()
                .is_some_and(|reason| reason.contains(words))
        }
    };
    let ours = reason("peer announces AS 64512, expected 65001");
    wait_for("the reason here", async || status(&a).await, ours).await;
    let theirs = reason("Bad Peer AS");
    wait_for("the reason there", async || status(&b).await, theirs).await;
    // The mistake is corrected: no need to wait for a pause to end.
    peer(&mut configs[0]).remote_as = Asn(64512);
    a.reconfigure(configs[0].clone()).await.unwrap();
    established(&a).await;
}

#[tokio::test]
async fn nobody_listens() {
    let mut configs = configs(8);
    configs[1].listen = None;
    peer(&mut configs[1]).passive = true;
    let a = start(&configs[0]);
    let port = peer(&mut configs[0]).port;
    let refused = format!("TCP {port} refused by 127.64.8.2");
    let named = |status: &PeerStatus| status.reason.as_deref() == Some(&refused);
    wait_for("the reason", async || status(&a).await, named).await;
}
