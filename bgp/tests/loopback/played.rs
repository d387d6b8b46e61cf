//! One session task; its peer is the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use caracal_bgp::{
    Asn, Capability, FamilySet, Message, MessageFormat, OpenMessage, OutFeed, PathAttrs,
    PeerConfig, PeerKey, PeerName, RefreshKind, RouteRefresh, RouterId, SessionStart, SessionState,
    Shutdown, ToCore, ToSession, UpdateMessage, decode_message, encode_keepalive, encode_open,
    encode_refresh, encode_update, frame_len, run_session,
};
use caracal_model::{Family, Prefix};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{DEADLINE, loopback};

/// A session task and the ends of its channels.
struct Stage {
    core: mpsc::Receiver<ToCore>,
    control: mpsc::Sender<ToSession>,
    task: JoinHandle<()>,
    listener: TcpListener,
}

/// The test's end of the connection.
struct Played {
    stream: TcpStream,
    read: BytesMut,
}

fn format() -> MessageFormat {
    MessageFormat {
        four_octet_as: true,
        internal: true,
        families: FamilySet::ALL,
        extended_receive: true,
        ..MessageFormat::default()
    }
}

fn prefix(n: u32) -> Prefix {
    Prefix::v4((0x1400_0000 | n << 8).into(), 24)
}

impl Stage {
    /// A session that dials the test; the core's channel takes `depth` messages.
    async fn new(test: u8, depth: usize, tweak: impl FnOnce(&mut PeerConfig)) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(loopback(test, 2), 0))
            .await
            .unwrap();
        let mut config = PeerConfig::new(loopback(test, 2), Asn(64512));
        config.port = listener.local_addr().unwrap().port();
        config.source = Some(loopback(test, 1));
        config.families = vec![Family::Ipv4, Family::Ipv6];
        tweak(&mut config);
        let (to_core, core) = mpsc::channel(depth);
        let (control, commands) = mpsc::channel(4);
        let start = SessionStart {
            key: PeerKey(7),
            peer: PeerName::from("played"),
            config,
            local_as: Asn(64512),
            router_id: RouterId([10, 0, 0, 1].into()),
            restarting_until: None,
            had_session: false,
            counters: Arc::default(),
            core: to_core,
            control: commands,
        };
        Self {
            core,
            control,
            task: tokio::spawn(run_session(start)),
            listener,
        }
    }

    /// Accepts and goes through the OPENs.
    async fn establish(&self, hold_time: u16) -> Played {
        let mut peer = self.accept().await;
        peer.open(hold_time).await;
        peer
    }

    /// A connection of the peer, as the listener hands it over, and the address that it comes from.
    async fn dial_in(&self) -> (Played, SocketAddr) {
        let dialled = TcpStream::connect(self.listener.local_addr().unwrap());
        let (ours, accepted) = tokio::join!(dialled, self.listener.accept());
        let (stream, remote) = accepted.unwrap();
        let ticket = None;
        let stream = ToSession::Stream {
            stream,
            remote,
            ticket,
        };
        self.control.send(stream).await.unwrap();
        let played = Played {
            stream: ours.unwrap(),
            read: BytesMut::new(),
        };
        (played, remote)
    }

    async fn accept(&self) -> Played {
        let (stream, _) = timeout(DEADLINE, self.listener.accept())
            .await
            .unwrap()
            .unwrap();
        Played {
            stream,
            read: BytesMut::new(),
        }
    }

    /// The next message to the core that is no State.
    async fn next_message(&mut self) -> ToCore {
        loop {
            let message = timeout(DEADLINE, self.core.recv())
                .await
                .expect("a message")
                .unwrap();
            if !matches!(message, ToCore::State { .. }) {
                return message;
            }
        }
    }

    async fn ended(self) {
        timeout(DEADLINE, self.task)
            .await
            .expect("the task ends")
            .unwrap();
    }
}

impl Played {
    async fn send(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut out = BytesMut::new();
        encode(&mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn open(&mut self, hold_time: u16) {
        let Message::Open(mut open) = self.receive().await else {
            panic!("no OPEN")
        };
        open.router_id = RouterId([10, 0, 0, 2].into());
        open.hold_time = hold_time;
        self.answer(&open).await;
        assert_eq!(self.receive().await, Message::Keepalive);
    }

    async fn answer(&mut self, open: &OpenMessage) {
        self.send(|out| encode_open(open, out)).await;
        self.send(encode_keepalive).await;
    }

    /// The next message; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(len) = frame_len(&self.read, 65535).unwrap()
                && self.read.len() >= len
            {
                let message = decode_message(&self.read[..len], &format()).unwrap();
                self.read.advance(len);
                return Some(message);
            }
            let read = timeout(DEADLINE, self.stream.read_buf(&mut self.read)).await;
            if read.expect("octets").unwrap() == 0 {
                return None;
            }
        }
    }

    async fn receive(&mut self) -> Message {
        self.next().await.expect("a message")
    }

    async fn announce(&mut self, prefixes: &[Prefix]) {
        let attrs = PathAttrs {
            next_hop: Some([10, 0, 0, 2].into()),
            ..PathAttrs::default()
        };
        let update = UpdateMessage {
            announced: prefixes.to_vec(),
            attrs: Some(attrs),
            ..UpdateMessage::default()
        };
        self.send(|out| encode_update(&update, &format(), out).unwrap())
            .await;
    }
}

#[tokio::test]
async fn a_session_lives_and_ends_with_a_word() {
    let mut stage = Stage::new(40, 64, |_| ()).await;
    let mut peer = stage.establish(90).await;
    let ToCore::Up { session, feed, .. } = stage.next_message().await else {
        panic!("not up")
    };
    assert_eq!(session.router_id, RouterId([10, 0, 0, 2].into()));
    assert!(session.graceful_restart.is_some());
    peer.announce(&[prefix(1)]).await;
    let ToCore::Update { update, .. } = stage.next_message().await else {
        panic!("no update")
    };
    assert_eq!(update.announced, [prefix(1)]);
    peer.send(|out| {
        let family = Family::Ipv6.into();
        let kind = RefreshKind::Request;
        encode_refresh(&RouteRefresh { family, kind }, out);
    })
    .await;
    let refreshed = stage.next_message().await;
    assert!(matches!(
        refreshed,
        ToCore::RouteRefresh {
            family: Family::Ipv6,
            ..
        }
    ));

    // Routes in the feed when the end is ordered are still sent, then the Cease.
    let attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        ..PathAttrs::default()
    };
    feed.push(prefix(9), Some(Arc::new(attrs)));
    feed.end_of_rib(Family::Ipv4);
    let end = Shutdown::administrative("until noon");
    stage.control.send(ToSession::Shutdown(end)).await.unwrap();
    let Message::Update(decoded) = peer.receive().await else {
        panic!("no UPDATE")
    };
    assert_eq!(decoded.update.announced, [prefix(9)]);
    let Message::Update(decoded) = peer.receive().await else {
        panic!("no End-of-RIB")
    };
    assert_eq!(decoded.update.end_of_rib, Some(Family::Ipv4));
    let Message::Notification(last) = peer.receive().await else {
        panic!("no NOTIFICATION")
    };
    assert_eq!(last.shutdown_text().as_deref(), Some("until noon"));
    assert_eq!(peer.next().await, None);
    drop(peer);
    stage.ended().await;
}

#[tokio::test]
async fn rfc7313_4_the_marks_go_over_the_wire_both_ways() {
    let mut stage = Stage::new(47, 64, |_| ()).await;
    let mut peer = stage.establish(90).await;
    let ToCore::Up { session, feed, .. } = stage.next_message().await else {
        panic!("not up")
    };
    assert!(session.options.enhanced_refresh);
    let family = Family::Ipv4.into();
    for kind in [
        RefreshKind::Begin,
        RefreshKind::End,
        RefreshKind::Other(9),
        RefreshKind::Request,
    ] {
        peer.send(|out| encode_refresh(&RouteRefresh { family, kind }, out))
            .await;
    }
    for expected in [RefreshKind::Begin, RefreshKind::End, RefreshKind::Request] {
        let ToCore::RouteRefresh { kind, .. } = stage.next_message().await else {
            panic!("no refresh")
        };
        assert_eq!(kind, expected, "unknown ones are ignored");
    }
    let attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        ..PathAttrs::default()
    };
    feed.begin_refresh(Family::Ipv4);
    feed.push(prefix(9), Some(Arc::new(attrs)));
    feed.end_refresh(Family::Ipv4);
    let mark = |kind| Message::RouteRefresh(RouteRefresh { family, kind });
    assert_eq!(peer.receive().await, mark(RefreshKind::Begin));
    assert!(matches!(peer.receive().await, Message::Update(_)));
    assert_eq!(peer.receive().await, mark(RefreshKind::End));
    stage
        .control
        .send(ToSession::AskRefresh(Family::Ipv4))
        .await
        .unwrap();
    assert_eq!(peer.receive().await, mark(RefreshKind::Request));
}

#[tokio::test]
async fn rfc4724_4_1_a_restart_ends_without_a_word() {
    let stage = Stage::new(41, 64, |_| ()).await;
    let mut peer = stage.establish(90).await;
    stage
        .control
        .send(ToSession::Shutdown(Shutdown::Restart))
        .await
        .unwrap();
    assert_eq!(peer.next().await, None);
    drop(peer);
    stage.ended().await;
}

#[tokio::test]
async fn garbage_is_answered_and_the_next_attempt_follows() {
    let mut stage = Stage::new(42, 64, |_| ()).await;
    let mut peer = stage.accept().await;
    assert!(matches!(peer.receive().await, Message::Open(_)));
    peer.stream
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .await
        .unwrap();
    let Message::Notification(answer) = peer.receive().await else {
        panic!("no NOTIFICATION")
    };
    assert_eq!(answer.code.octets(), (1, 1));
    assert_eq!(peer.next().await, None);
    loop {
        let message = timeout(DEADLINE, stage.core.recv()).await.unwrap().unwrap();
        if let ToCore::State {
            state: SessionState::Idle,
            reason: Some(reason),
            ..
        } = message
        {
            assert!(reason.contains("16 octets of ones"), "{reason}");
            break;
        }
    }
    stage.establish(90).await;
    assert!(matches!(stage.next_message().await, ToCore::Up { .. }));
}

/// The core takes nothing for longer than the hold time: the session stops reading, keeps sending
/// KEEPALIVEs, and does not take the peer for dead. All routes arrive in the end.
#[tokio::test]
async fn a_busy_core_costs_no_session() {
    let mut stage = Stage::new(43, 1, |config| config.hold_time = Duration::from_secs(3)).await;
    let peer = stage.establish(3).await;
    let total = 20_000;
    let mut out = BytesMut::new();
    for n in 0..total {
        let attrs = PathAttrs {
            next_hop: Some([10, 0, 0, 2].into()),
            ..PathAttrs::default()
        };
        let update = UpdateMessage {
            announced: vec![prefix(n)],
            attrs: Some(attrs),
            ..UpdateMessage::default()
        };
        encode_update(&update, &format(), &mut out).unwrap();
    }
    // More than the session's buffers and ours in the kernel take only while somebody reads.
    let (mut read, mut write) = peer.stream.into_split();
    let writer = tokio::spawn(async move {
        write.write_all(&out).await.unwrap();
        write
    });
    // Nobody reads the core's channel; five KEEPALIVEs at about one second each.
    let mut buffer = BytesMut::new();
    while buffer.len() < 5 * 19 {
        let octets = timeout(DEADLINE, read.read_buf(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(octets > 0, "the session has ended");
    }
    while !buffer.is_empty() {
        assert_eq!(
            decode_message(&buffer[..19], &format()),
            Ok(Message::Keepalive)
        );
        buffer.advance(19);
    }
    assert!(matches!(stage.next_message().await, ToCore::Up { .. }));
    for n in 0..total {
        match stage.next_message().await {
            ToCore::Update { update, .. } => assert_eq!(update.announced, [prefix(n)]),
            other => panic!("{other:?} after {n} routes"),
        }
    }
    drop(writer.await.unwrap());
}

/// Waits until the session takes nothing more from its feed.
async fn at_rest(feed: &OutFeed) {
    super::wait_for("rest", async || feed.len(), {
        let last = std::cell::Cell::new((0, 0));
        move |len| {
            let (before, times) = last.get();
            last.set((*len, if *len == before { times + 1 } else { 0 }));
            times > 40
        }
    })
    .await;
}

/// A peer that reads nothing: packing stops at a bounded amount and the rest stays in the feed,
/// where it is overtaken by newer values.
#[tokio::test]
async fn a_peer_that_does_not_read_costs_bounded_memory() {
    let mut stage = Stage::new(44, 64, |_| ()).await;
    let mut peer = stage.establish(90).await;
    let ToCore::Up { feed, .. } = stage.next_message().await else {
        panic!("not up")
    };
    let mut attrs = PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        ..PathAttrs::default()
    };
    // Octets enough to fill every buffer of the kernel: each prefix with its own 4 KiB of
    // attributes.
    attrs.communities = (0..900).map(caracal_bgp::Community).collect();
    let total = 20_000;
    for n in 0..total {
        attrs.med = Some(n);
        feed.push(prefix(n), Some(Arc::new(attrs.clone())));
        if n % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // The session has taken what it may and rests. Withdraw all that waits.
    at_rest(&feed).await;
    let waiting = feed.len();
    assert!(waiting > 1000, "{waiting} of {total} wait");
    for n in 0..total {
        feed.push(prefix(n), None);
    }
    feed.end_of_rib(Family::Ipv4);
    // The peer reads again: what was packed, then withdrawals, and nothing of what was overtaken.
    let (mut announced, mut withdrawn) = (0, 0);
    loop {
        let Message::Update(decoded) = peer.receive().await else {
            continue;
        };
        announced += decoded.update.announced.len();
        withdrawn += decoded.update.withdrawn.len();
        if decoded.update.end_of_rib.is_some() {
            break;
        }
    }
    assert_eq!(withdrawn, total as usize);
    assert_eq!(announced, total as usize - waiting);
}

/// A connection that is reset can be written to at any time, and nothing goes. Without hold time no
/// timer comes to help.
#[tokio::test]
async fn a_reset_while_octets_wait_ends_the_session() {
    let mut stage = Stage::new(51, 64, |config| config.hold_time = Duration::ZERO).await;
    let peer = stage.establish(0).await;
    let ToCore::Up { feed, .. } = stage.next_message().await else {
        panic!("not up")
    };
    let attrs = Arc::new(PathAttrs {
        next_hop: Some([10, 0, 0, 1].into()),
        communities: (0..900).map(caracal_bgp::Community).collect(),
        ..PathAttrs::default()
    });
    // Octets enough to fill every buffer: no two prefixes share a message.
    for n in 0..20_000 {
        let attrs = PathAttrs {
            med: Some(n),
            ..(*attrs).clone()
        };
        feed.push(prefix(n), Some(Arc::new(attrs)));
    }
    at_rest(&feed).await;
    assert!(!feed.is_empty(), "the connection took everything");
    let socket = peer.stream.into_std().unwrap();
    socket2::SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(socket);
    let end = stage.next_message().await;
    assert!(matches!(end, ToCore::Down { .. }), "{end:?}");
}

/// RFC 5492: a peer without any capability gets a plain session.
#[tokio::test]
async fn a_peer_of_the_old_school() {
    let mut stage = Stage::new(45, 64, |_| ()).await;
    let mut peer = stage.accept().await;
    let Message::Open(mut open) = peer.receive().await else {
        panic!("no OPEN")
    };
    assert!(
        open.capabilities
            .contains(&Capability::FourOctetAs(Asn(64512)))
    );
    open.router_id = RouterId([10, 0, 0, 2].into());
    open.capabilities.clear();
    peer.answer(&open).await;
    let ToCore::Up { session, .. } = stage.next_message().await else {
        panic!("not up")
    };
    assert_eq!(session.families, [Family::Ipv4]);
    assert_eq!(session.graceful_restart, None);
    assert_eq!(session.capabilities, [""; 0]);
}

/// The peer closes while messages are still unread: they come first.
#[tokio::test]
async fn what_was_said_before_the_end_counts() {
    let mut stage = Stage::new(46, 1, |_| ()).await;
    let mut peer = stage.establish(90).await;
    for n in 0..500 {
        peer.announce(&[prefix(n)]).await;
    }
    drop(peer);
    assert!(matches!(stage.next_message().await, ToCore::Up { .. }));
    for n in 0..500 {
        match stage.next_message().await {
            ToCore::Update { update, .. } => assert_eq!(update.announced, [prefix(n)]),
            other => panic!("{other:?} after {n} routes"),
        }
    }
    let end = stage.next_message().await;
    assert!(
        matches!(end, ToCore::Down { graceful: true, .. }),
        "{end:?}"
    );
}

/// RFC 4724 §5: a connection from the peer's address is no restart; an OPEN on it is.
#[tokio::test]
async fn a_bare_connection_does_not_end_the_session() {
    let mut stage = Stage::new(55, 64, |config| config.passive = true).await;
    let (mut first, _) = stage.dial_in().await;
    first.open(90).await;
    assert!(matches!(stage.next_message().await, ToCore::Up { .. }));
    // Bare connections, one of which ends by itself and one with something that is no BGP.
    let (bare, _) = stage.dial_in().await;
    drop(bare);
    let (mut http, _) = stage.dial_in().await;
    http.send(|out| out.put_slice(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        .await;
    assert!(matches!(http.next().await, Some(Message::Open(_))));
    let Some(Message::Notification(answer)) = http.next().await else {
        panic!("no NOTIFICATION")
    };
    assert_eq!(answer.code.octets(), (1, 1));
    let (waiting, waiting_local) = stage.dial_in().await;
    first.announce(&[prefix(1)]).await;
    // The next message to the core is not the end of the session.
    let mut message = stage.next_message().await;
    while matches!(message, ToCore::Notified { .. }) {
        message = stage.next_message().await;
    }
    assert!(matches!(message, ToCore::Update { .. }), "{message:?}");
    // The peer itself, with everything in one write: the session goes over.
    let (mut second, second_local) = stage.dial_in().await;
    assert_ne!(waiting_local, second_local);
    let Message::Open(mut open) = second.receive().await else {
        panic!("no OPEN")
    };
    open.router_id = RouterId([10, 0, 0, 2].into());
    second
        .send(|out| {
            encode_open(&open, out);
            encode_keepalive(out);
        })
        .await;
    assert!(matches!(
        stage.next_message().await,
        ToCore::Down { graceful: true, .. }
    ));
    let ToCore::Up { monitored, .. } = stage.next_message().await else {
        panic!("not up")
    };
    assert_eq!(monitored.remote, second_local);
    assert_eq!(second.receive().await, Message::Keepalive);
    second.announce(&[prefix(2)]).await;
    let message = stage.next_message().await;
    assert!(matches!(message, ToCore::Update { .. }), "{message:?}");
    assert_eq!(first.next().await, None);
    drop(waiting);
}

/// The speaker is gone, as after a crash: the connection ends without a NOTIFICATION.
#[tokio::test]
async fn without_a_core_the_session_ends() {
    let stage = Stage::new(47, 64, |_| ()).await;
    let mut peer = stage.establish(90).await;
    let Stage {
        core,
        control,
        task,
        ..
    } = stage;
    drop((core, control));
    timeout(DEADLINE, task).await.unwrap().unwrap();
    assert_eq!(peer.next().await, None);
}
