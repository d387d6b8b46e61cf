//! What sockets add: TCP MD5, GTSM.

use caracal_bgp::{Password, PeerStatus, SessionState};

use super::speakers::{configs, established, peer, start, status};
use super::wait_for;

fn key(text: &str) -> Option<Password> {
    Some(Password(text.to_owned()))
}

/// True when the kernel cannot do TCP MD5; the test then says so and ends.
fn without_md5(status: &PeerStatus) -> bool {
    let missing = status
        .reason
        .as_ref()
        .is_some_and(|r| r.contains("cannot set the TCP MD5 key"));
    if missing {
        eprintln!("skipped: {}", status.reason.as_deref().unwrap_or_default());
    }
    missing
}

#[tokio::test]
async fn rfc2385_with_the_same_key_and_a_key_change_without_a_reset() {
    let mut configs = configs(20);
    for config in &mut configs {
        peer(config).password = key("first");
    }
    let [a, b] = configs.each_ref().map(start);
    let settled =
        |status: &PeerStatus| status.state == SessionState::Established || without_md5(status);
    if without_md5(&wait_for("a session", async || status(&a).await, settled).await) {
        return;
    }
    established(&b).await;
    for config in &mut configs {
        peer(config).password = key("second");
        // Something to send under the new key.
        config
            .originate
            .insert("10.99.0.0/16".parse().unwrap(), Default::default());
    }
    a.reconfigure(configs[0].clone()).await.unwrap();
    b.reconfigure(configs[1].clone()).await.unwrap();
    let two = |status: &PeerStatus| status.routes.received == 2;
    assert_eq!(
        wait_for("routes", async || status(&a).await, two)
            .await
            .established_count,
        1
    );
    assert_eq!(
        wait_for("routes", async || status(&b).await, two)
            .await
            .established_count,
        1
    );
}

#[tokio::test]
async fn rfc2385_with_different_keys_there_is_no_session() {
    let mut configs = configs(21);
    peer(&mut configs[0]).password = key("one");
    peer(&mut configs[1]).password = key("another");
    let [a, b] = configs.each_ref().map(start);
    // Segments with a wrong key are dropped in silence, so the attempt runs into its limit.
    let has_reason = |status: &PeerStatus| status.reason.is_some();
    let seen = wait_for("a reason", async || status(&a).await, has_reason).await;
    if without_md5(&seen) {
        return;
    }
    assert_eq!(
        seen.reason.as_deref(),
        Some("connection not accepted within 10 s")
    );
    assert_eq!(
        (seen.established_count, status(&b).await.established_count),
        (0, 0)
    );
}

#[tokio::test]
async fn rfc5082_directly_connected_peers_pass() {
    let mut configs = configs(22);
    for config in &mut configs {
        peer(config).ttl_security = Some(1);
    }
    let [a, _b] = configs.each_ref().map(start);
    established(&a).await;
}

#[tokio::test]
async fn rfc5082_packets_from_afar_are_dropped() {
    let mut configs = configs(23);
    peer(&mut configs[0]).ttl_security = Some(1);
    // The other end's packets look as if they had passed routers.
    peer(&mut configs[1]).ttl = Some(64);
    peer(&mut configs[0]).passive = true;
    let [_a, b] = configs.each_ref().map(start);
    let has_reason = |status: &PeerStatus| status.reason.is_some();
    let seen = wait_for("a reason", async || status(&b).await, has_reason).await;
    assert_eq!(seen.established_count, 0, "{:?}", seen.reason);
}
