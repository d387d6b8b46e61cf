//! A session task whose peer is the test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;
use crate::speaker::counters::ErrorKind;
use crate::speaker::log_limit::testing::Lines;
use crate::types::{Asn, RouterId};
use crate::wire::capability::Capability;
use crate::wire::open::OpenMessage;
use crate::wire::{encode_keepalive, encode_open};

const LIMIT: Duration = Duration::from_secs(120);
const COUNT: usize = 20_000;

/// An UPDATE of 10.1.1.0/24 whose ORIGIN has a value that does not exist.
fn bad_update() -> Vec<u8> {
    let attributes = [
        &[0x40, 1, 1, 9][..],
        &[0x40, 2, 0],
        &[0x40, 3, 4, 127, 0, 0, 1],
        &[0x40, 5, 4, 0, 0, 0, 100],
    ]
    .concat();
    let len = u8::try_from(attributes.len()).unwrap();
    let body = [&[0, 0, 0, len][..], &attributes, &[24, 10, 1, 1]].concat();
    let whole = u8::try_from(19 + body.len()).unwrap();
    [&[0xff; 16][..], &[0, whole, 2], &body].concat()
}

fn start(
    config: PeerConfig,
    counters: &Arc<Counters>,
    core: mpsc::Sender<ToCore>,
    control: mpsc::Receiver<ToSession>,
) -> SessionStart {
    SessionStart {
        key: PeerKey(7),
        peer: "bad".into(),
        config,
        local_as: Asn(64512),
        router_id: RouterId([10, 0, 0, 1].into()),
        restarting_until: None,
        had_session: false,
        counters: counters.clone(),
        core,
        control,
    }
}

/// The peer's OPEN and KEEPALIVE.
fn open() -> BytesMut {
    let mut octets = BytesMut::new();
    let open = OpenMessage {
        asn: Asn(64512),
        hold_time: 90,
        router_id: RouterId([10, 0, 0, 2].into()),
        capabilities: vec![Capability::FourOctetAs(Asn(64512))],
    };
    encode_open(&open, &mut octets);
    encode_keepalive(&mut octets);
    octets
}

#[tokio::test]
async fn twenty_thousand_bad_updates_write_ten_lines_and_one_summary() {
    let lines = Lines::collect();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = PeerConfig::new([127, 0, 0, 1].into(), Asn(64512));
    config.port = listener.local_addr().unwrap().port();
    let (core, mut from_session) = mpsc::channel(64);
    let (control, commands) = mpsc::channel(4);
    let counters = Arc::<Counters>::default();
    let task = tokio::spawn(run_session(start(config, &counters, core, commands)));
    let work = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut octets = open();
        for _ in 0..COUNT {
            octets.extend_from_slice(&bad_update());
        }
        let writer = tokio::spawn(async move {
            stream.write_all(&octets).await.unwrap();
            stream
        });
        let mut updates = 0;
        while updates < COUNT {
            updates += usize::from(matches!(
                from_session.recv().await.unwrap(),
                ToCore::Update { .. }
            ));
        }
        // As after a crash of the core: the session just ends.
        drop((control, from_session));
        task.await.unwrap();
        drop(writer.await.unwrap());
    };
    tokio::time::timeout(LIMIT, work).await.unwrap();
    let lines = lines.taken();
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(of("message=UPDATE with an error"), 10, "{lines:#?}");
    let summaries = of("more suppressed");
    // A slow machine takes more than ten seconds.
    assert!((1..=12).contains(&summaries), "{lines:#?}");
    assert!(lines.len() <= 10 + 12, "{lines:#?}");
    let count = u64::try_from(COUNT).unwrap();
    assert_eq!(counters.errors()[&ErrorKind::TreatAsWithdraw], count);
    assert_eq!(counters.messages_received().update, count);
    assert_eq!(counters.messages_sent().open, 1);
}

/// A session that is reconfigured has a new task; it goes on counting where the earlier one was.
#[tokio::test]
async fn flaps_are_counted_over_the_tasks_of_a_peer() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = PeerConfig::new([127, 0, 0, 1].into(), Asn(64512));
    config.port = listener.local_addr().unwrap().port();
    let counters = Arc::<Counters>::default();
    let work = async {
        for times in 1..=4 {
            let (core, mut from_session) = mpsc::channel(64);
            let (control, commands) = mpsc::channel(4);
            let task = tokio::spawn(run_session(start(
                config.clone(),
                &counters,
                core,
                commands,
            )));
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&open()).await.unwrap();
            while !matches!(from_session.recv().await.unwrap(), ToCore::Up { .. }) {}
            drop(stream);
            while !matches!(from_session.recv().await.unwrap(), ToCore::Down { .. }) {}
            let reason = loop {
                if let ToCore::State {
                    reason: Some(reason),
                    ..
                } = from_session.recv().await.unwrap()
                {
                    break reason;
                }
            };
            assert_eq!(counters.flaps(), times);
            let waits = reason.contains("4 sessions in a row");
            assert_eq!(waits, times == 4, "{times}: {reason}");
            drop((control, from_session));
            task.await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, work).await.unwrap();
}

/// Connections from an address that this machine has lost end, and no others.
#[tokio::test]
async fn connections_from_an_address_that_is_gone_end() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = PeerConfig::new([127, 0, 0, 1].into(), Asn(64512));
    config.port = listener.local_addr().unwrap().port();
    config.source = Some([127, 0, 0, 7].into());
    let (core, mut from_session) = mpsc::channel(64);
    let (control, commands) = mpsc::channel(4);
    let task = tokio::spawn(run_session(start(config, &Arc::default(), core, commands)));
    let gone = |address: [u8; 4]| {
        let gone = BTreeSet::from([IpAddr::from(address)]);
        ToSession::AddressesGone(Arc::new(gone))
    };
    let work = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&open()).await.unwrap();
        while !matches!(from_session.recv().await.unwrap(), ToCore::Up { .. }) {}
        control.send(gone([127, 0, 0, 1])).await.unwrap();
        // Behind that the session still reads from its peer.
        stream.write_all(&bad_update()).await.unwrap();
        while !matches!(from_session.recv().await.unwrap(), ToCore::Update { .. }) {}
        control.send(gone([127, 0, 0, 7])).await.unwrap();
        loop {
            match from_session.recv().await.unwrap() {
                ToCore::Down { reason, .. } => break reason,
                ToCore::State { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let reason = tokio::time::timeout(LIMIT, work).await.unwrap();
    assert!(reason.contains("its own address is gone"), "{reason}");
    drop((control, from_session));
    task.await.unwrap();
}
