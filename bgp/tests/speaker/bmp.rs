//! Monitoring (RFC 7854): whole speakers, and a station that decodes what it receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use caracal_bgp::{
    Asn, BMP_COMMON_HEADER, CeaseSubcode, FamilySet, Filter, FilterCondition, FilterTerm,
    FilterVerdict, Message, MessageFormat, NotificationCode, Origination, PrefixPattern,
    SessionState, Station, StationStatus, decode_message,
};
use caracal_model::{Family, Prefix};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

use crate::net::{AS, Net, Node, name, originate, prefix, wait_for};

/// A station's state of a peer.
#[derive(Clone, Debug, Default, PartialEq)]
struct Peer {
    asn: u32,
    /// AS numbers and the ports of the OPENs.
    opens: Vec<Asn>,
    ports: (u16, u16),
    /// By view: 0 as received, 1 after policy. Each prefix with its LOCAL_PREF.
    routes: [BTreeMap<Prefix, Option<u32>>; 2],
    end_of_rib: [BTreeSet<Family>; 2],
    statistics: BTreeMap<u16, u64>,
}

/// Everything that a station has received.
#[derive(Clone, Debug, Default)]
struct Received {
    connections: usize,
    name: Option<String>,
    peers: BTreeMap<IpAddr, Peer>,
    /// Peer Downs: reason, and the NOTIFICATION in it.
    downs: Vec<(u8, Option<NotificationCode>, Option<String>)>,
    terminated: bool,
}

struct Playing {
    received: Arc<Mutex<Received>>,
    task: JoinHandle<()>,
}

impl Playing {
    fn start(listener: TcpListener) -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let shared = received.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // RFC 7854 §3.3: a new connection is a new beginning.
                let connections = shared.lock().unwrap().connections + 1;
                *shared.lock().unwrap() = Received {
                    connections,
                    ..Received::default()
                };
                read_all(stream, &shared).await;
            }
        });
        Self { received, task }
    }

    /// Waits until the received state is `good`.
    async fn waits_for(&self, what: &str, good: impl Fn(&Received) -> bool) -> Received {
        wait_for(what, async || {
            let received = self.received.lock().unwrap().clone();
            if good(&received) {
                Ok(received)
            } else {
                Err(received)
            }
        })
        .await
    }
}

async fn read_all(mut stream: TcpStream, received: &Mutex<Received>) {
    let mut head = [0; BMP_COMMON_HEADER];
    while stream.read_exact(&mut head).await.is_ok() {
        assert_eq!(head[0], 3, "version");
        let len = u32::from_be_bytes(head[1..5].try_into().unwrap());
        let mut body = vec![0; usize::try_from(len).unwrap() - BMP_COMMON_HEADER];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        received.lock().unwrap().take(head[5], &body);
    }
}

fn u16_at(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(octets[at..at + 2].try_into().unwrap())
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

/// Type, length, value.
fn tlvs(mut octets: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while !octets.is_empty() {
        let len = usize::from(u16_at(octets, 2));
        found.push((u16_at(octets, 0), &octets[4..4 + len]));
        octets = &octets[4 + len..];
    }
    found
}

fn address(octets: &[u8]) -> IpAddr {
    let six: [u8; 16] = octets[..16].try_into().unwrap();
    match six {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, four @ ..] => IpAddr::from(four),
        six => IpAddr::from(six),
    }
}

const FORMAT: MessageFormat = MessageFormat {
    four_octet_as: true,
    extended_receive: true,
    extended_send: true,
    internal: true,
    families: FamilySet::ALL,
    extended_next_hop: false,
    path_ids_in: FamilySet::NONE,
    path_ids_out: FamilySet::NONE,
};

impl Received {
    fn take(&mut self, kind: u8, body: &[u8]) {
        match kind {
            4 => {
                let tlvs = tlvs(body);
                let text = |kind| {
                    let (_, text) = tlvs.iter().find(|(seen, _)| *seen == kind).unwrap();
                    String::from_utf8(text.to_vec()).unwrap()
                };
                assert!(text(1).starts_with("caracal "), "{}", text(1));
                self.name = Some(text(2));
                return;
            }
            5 => {
                self.terminated = true;
                return;
            }
            _ => assert!(self.name.is_some(), "Initiation comes first"),
        }
        let (flags, peer, asn) = (body[1], address(&body[10..]), u32_at(body, 26));
        let view = usize::from(flags & 0x40 != 0);
        let rest = &body[42..];
        match kind {
            0 => {
                let peer = self.peers.get_mut(&peer).expect("Peer Up comes first");
                let Message::Update(decoded) = decode_message(rest, &FORMAT).unwrap() else {
                    panic!("no UPDATE");
                };
                assert!(decoded.faults.is_empty(), "{:?}", decoded.faults);
                for update in decoded.into_updates() {
                    for prefix in &update.withdrawn {
                        peer.routes[view].remove(prefix);
                    }
                    let pref = update.attrs.as_ref().and_then(|attrs| attrs.local_pref);
                    let announced = update.announced.iter().map(|prefix| (*prefix, pref));
                    peer.routes[view].extend(announced);
                    peer.end_of_rib[view].extend(update.end_of_rib);
                }
            }
            1 => {
                let peer = self.peers.get_mut(&peer).unwrap();
                for (kind, value) in tlvs(&rest[4..]) {
                    let gauge = value[value.len() - 8..].try_into().unwrap();
                    peer.statistics.insert(kind, u64::from_be_bytes(gauge));
                }
            }
            2 => {
                assert!(self.peers.remove(&peer).is_some(), "Peer Up comes first");
                let notification =
                    (rest.len() > 19).then(|| match decode_message(&rest[1..], &FORMAT) {
                        Ok(Message::Notification(notification)) => notification,
                        other => panic!("{other:?}"),
                    });
                let text = notification.as_ref().and_then(|n| n.shutdown_text());
                let code = notification.map(|n| n.inner().unwrap_or(n).code);
                self.downs.push((rest[0], code, text));
            }
            3 => {
                let first = usize::from(u16_at(rest, 20 + 16));
                let (sent, theirs) = rest[20..].split_at(first);
                let opens =
                    [sent, theirs].map(|open| match decode_message(open, &FORMAT).unwrap() {
                        Message::Open(open) => open.asn,
                        other => panic!("{other:?}"),
                    });
                let up = Peer {
                    asn,
                    opens: opens.into(),
                    ports: (u16_at(rest, 16), u16_at(rest, 18)),
                    ..Peer::default()
                };
                assert!(self.peers.insert(peer, up).is_none(), "up already");
            }
            other => panic!("type {other}"),
        }
    }
}

async fn listen(net: Net) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((net.address(250), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn station(address: SocketAddr) -> Station {
    Station {
        post_policy: true,
        statistics: Some(Duration::from_secs(1)),
        ..Station::new(address.ip(), address.port())
    }
}

async fn status(node: &Node) -> StationStatus {
    let status = node.speaker.status().await.unwrap();
    status.stations.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc7854_a_station_hears_of_peers_routes_and_their_end() {
    let net = Net::new(125);
    let (listener, address) = listen(net).await;
    let mut config = net.mesh_member(1, &[1, 2, 3]);
    config.stations.insert("watch".into(), station(address));
    // Refused: prefix 5 of everybody.
    let refuse = FilterTerm {
        conditions: vec![FilterCondition::Prefix {
            patterns: vec![PrefixPattern::exact(prefix(5))],
            negated: false,
        }],
        actions: vec![],
        verdict: Some(FilterVerdict::Reject),
    };
    let terms = vec![refuse];
    config.filters.insert("no5".into(), Filter::from(terms));
    for peer in config.peers.values_mut() {
        peer.import = vec!["no5".into()];
    }
    let mut one = Node::start(config).await;
    let mut two_config = net.mesh_member(2, &[1, 2, 3]);
    originate(&mut two_config, 5);
    let mut two = Node::start(two_config).await;
    let three = Node::start(net.mesh_member(3, &[1, 2, 3])).await;
    one.holds(&[2, 3]).await;
    // The station begins to listen late: it gets the table.
    let station = Playing::start(listener);
    let (second, third) = (net.address(2), net.address(3));
    let routes = |received: &Received, peer: IpAddr, view: usize| -> Vec<Prefix> {
        let peer = received.peers.get(&peer);
        peer.map_or_else(Vec::new, |peer| peer.routes[view].keys().copied().collect())
    };
    let received = station
        .waits_for("the table and its end", |received| {
            routes(received, second, 0) == [prefix(2), prefix(5)]
                && routes(received, second, 1) == [prefix(2)]
                && routes(received, third, 1) == [prefix(3)]
                && received.peers[&second]
                    .end_of_rib
                    .iter()
                    .all(|families| families.contains(&Family::Ipv4))
        })
        .await;
    assert_eq!(received.name.as_deref(), Some("10.0.0.1"));
    let peer = &received.peers[&second];
    assert_eq!((peer.asn, &peer.opens[..]), (AS.0, &[AS, AS][..]));
    assert!(peer.ports.0 == net.port || peer.ports.1 == net.port);
    let shown = status(&one).await;
    assert!(shown.connected && shown.connections == 1, "{shown:?}");
    // Changes, in both directions.
    two.reconfigure(|config| {
        originate(config, 7);
        config.originate.remove(&prefix(5));
        config.originate.get_mut(&prefix(2)).unwrap().local_pref = Some(7);
    })
    .await;
    let now = [(prefix(2), Some(7)), (prefix(7), two_pref(&two))];
    station
        .waits_for("changed routes", |received| {
            received.peers[&second].routes[0] == now.into()
                && received.peers[&second].routes[1] == now.into()
        })
        .await;
    // A change of policy changes one view.
    one.reconfigure(|config| {
        let no5 = config.filters.get_mut("no5").unwrap();
        no5.terms[0].conditions = vec![];
    })
    .await;
    station
        .waits_for("refused routes", |received| {
            routes(received, second, 1).is_empty()
                && received.peers[&second].routes[0] == now.into()
        })
        .await;
    station
        .waits_for("numbers", |received| {
            let numbers = &received.peers[&second].statistics;
            [7, 9, 15].map(|kind| numbers.get(&kind).copied()) == [Some(2), Some(2), Some(1)]
        })
        .await;
    // The ends: a NOTIFICATION of the peer, and a change here.
    three.speaker.disable("moving".into()).await.unwrap();
    let received = station
        .waits_for("a peer's end", |received| received.downs.len() == 1)
        .await;
    let shutdown = Some(NotificationCode::Cease(
        CeaseSubcode::AdministrativeShutdown,
    ));
    assert_eq!(received.downs[0], (3, shutdown, Some("moving".to_owned())));
    one.reconfigure(|config| drop(config.peers.remove(&name(2))))
        .await;
    let received = station
        .waits_for("the end of the other", |received| received.downs.len() == 2)
        .await;
    let removed = Some(NotificationCode::Cease(CeaseSubcode::PeerDeconfigured));
    assert_eq!((received.downs[1].0, received.downs[1].1), (1, removed));
    assert!(received.peers.is_empty());
    one.speaker.shutdown(false).await.unwrap();
    let received = station
        .waits_for("Termination", |received| received.terminated)
        .await;
    assert_eq!(received.connections, 1);
    station.task.abort();
}

fn two_pref(node: &Node) -> Option<u32> {
    node.config.originate[&prefix(7)].local_pref
}

/// So many routes of speaker 2, each with attributes of its own, which differ from round to round.
fn many(round: u32) -> BTreeMap<Prefix, Origination> {
    let route = |n: u32| {
        let route = Origination {
            local_pref: Some(100 + round),
            med: Some(n),
            ..Origination::default()
        };
        (Prefix::v4((0x0af8_0000 + n).into(), 32), route)
    };
    (0..3000).map(route).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_station_that_does_not_read_delays_nobody_and_begins_anew() {
    let net = Net::new(126);
    // Little room in the kernel, and a station that does not even accept.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((net.address(250), 0).into()).unwrap();
    let listener = socket.listen(8).unwrap();
    let address = listener.local_addr().unwrap();
    let mut config = net.mesh_member(1, &[1, 2]);
    let slow = Station {
        buffer: 256 << 10,
        ..station(address)
    };
    config.stations.insert("slow".into(), slow);
    let one = Node::start(config).await;
    let mut two = Node::start(net.mesh_member(2, &[1, 2])).await;
    one.holds(&[2]).await;
    wait_for("a connection", async || {
        let station = status(&one).await;
        if station.connections > 0 {
            Ok(())
        } else {
            Err(station)
        }
    })
    .await;
    let mut rounds = 0;
    let lost = wait_for("the station's connection to be given up", async || {
        rounds += 1;
        two.reconfigure(|config| config.originate = many(rounds).into())
            .await;
        // Every round arrives at once, whatever the station does.
        let arrived = async || {
            let routes = one.fib.lock().unwrap().routes.clone();
            let new = routes.values().filter(|r| r.local_pref == 100 + rounds);
            if new.count() == 3000 {
                Ok(())
            } else {
                Err(routes.len())
            }
        };
        wait_for("a round of changes", arrived).await;
        let station = status(&one).await;
        let gone = station.reason.clone().filter(|r| r.contains("too slowly"));
        gone.ok_or(station)
    })
    .await;
    assert!(lost.contains("262144 octets"), "{lost}");
    let peer = one.peer(2).await;
    assert_eq!(
        (peer.state, peer.established_count),
        (SessionState::Established, 1)
    );
    // Now it reads: on its newest connection it receives everything.
    let station = Playing::start(listener);
    let second = net.address(2);
    station
        .waits_for("the whole table", |received| {
            let peer = received.peers.get(&second);
            peer.is_some_and(|peer| {
                let last = |routes: &BTreeMap<Prefix, Option<u32>>| {
                    routes.len() == 3000 && routes.values().all(|pref| *pref == Some(100 + rounds))
                };
                peer.routes.iter().all(last) && peer.end_of_rib[0].contains(&Family::Ipv4)
            })
        })
        .await;
    station.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_station_comes_and_goes_with_the_configuration() {
    let net = Net::new(127);
    let (listener, address) = listen(net).await;
    let mut one = Node::start(net.mesh_member(1, &[1, 2])).await;
    let _two = Node::start(net.mesh_member(2, &[1, 2])).await;
    one.holds(&[2]).await;
    let playing = Playing::start(listener);
    one.reconfigure(|config| {
        let named = Station {
            system_name: Some("one".into()),
            post_policy: false,
            statistics: None,
            ..station(address)
        };
        config.stations.insert("watch".into(), named);
    })
    .await;
    let second = net.address(2);
    let known = |received: &Received| {
        received
            .peers
            .get(&second)
            .is_some_and(|p| p.routes[0].len() == 1)
    };
    let received = playing.waits_for("the table", known).await;
    assert_eq!(received.name.as_deref(), Some("one"));
    assert!(received.peers[&second].routes[1].is_empty());
    // Other settings are another connection.
    one.reconfigure(|config| {
        let station = config.stations.get_mut("watch").unwrap();
        station.system_name = Some("uno".into());
    })
    .await;
    let again = |received: &Received| received.connections == 2 && known(received);
    let received = playing.waits_for("the table again", again).await;
    assert_eq!(received.name.as_deref(), Some("uno"));
    one.reconfigure(|config| config.stations.clear()).await;
    playing
        .waits_for("Termination", |received| received.terminated)
        .await;
    assert_eq!(one.peer(2).await.established_count, 1);
    assert!(one.speaker.status().await.unwrap().stations.is_empty());
    playing.task.abort();
}
