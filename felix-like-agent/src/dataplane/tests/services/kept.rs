//! Ports of a node that no Service leads from or to, in the kernel: the addresses here come after
//! the plan, which therefore knows nothing of them.

use super::*;

/// IPv4 and IPv6.
type Both = [String; 2];

/// Time in which this machine answers itself, however busy it is.
const ANSWER: Duration = Duration::from_secs(10);
/// Time after which an answer does not come any more.
const SILENCE: Duration = Duration::from_millis(300);

const VIP6: &str = "fd00:96::10";
/// Addresses of nobody's.
const CLUSTER: [&str; 2] = ["192.0.2.7", "fd00:7::7"];
const POD: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
/// Nodes speak with each other there.
const GUARDED: [(Transport, u16); 4] = [
    (Transport::Tcp, 179),
    (Transport::Udp, 3784),
    (Transport::Udp, 4784),
    (Transport::Udp, 4789),
];
/// This node's own.
const LISTENER: (Transport, u16) = (Transport::Tcp, 9091);

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Listens on an address that this machine gets, and answers with it.
fn answer_at(address: &str, (protocol, port): (Transport, u16)) {
    if protocol == Transport::Tcp {
        return serve(address, port);
    }
    let length = if address.contains(':') { 128 } else { 32 };
    sh(&format!(
        "ip address replace {address}/{length} dev lo nodad"
    ));
    let socket = UdpSocket::bind(socket(address, port)).unwrap();
    let address = address.to_owned();
    std::thread::spawn(move || {
        let mut octets = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut octets) {
            socket.send_to(address.as_bytes(), from).unwrap();
        }
    });
}

/// Who answers there within a time.
fn ask(address: &str, (protocol, port): (Transport, u16), limit: Duration) -> Option<String> {
    let to = socket(address, port);
    let mut said = Vec::new();
    if protocol == Transport::Tcp {
        let mut stream = TcpStream::connect_timeout(&to, limit).ok()?;
        stream.set_read_timeout(Some(limit)).unwrap();
        stream.read_to_end(&mut said).ok()?;
    } else {
        let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let client = UdpSocket::bind(any).unwrap();
        client.set_read_timeout(Some(limit)).unwrap();
        client.send_to(b"?", to).ok()?;
        said.resize(64, 0);
        let (read, _) = client.recv_from(&mut said).ok()?;
        said.truncate(read);
    }
    Some(String::from_utf8(said).unwrap())
}

/// A Service of both families, by its cluster addresses and external ones, and its endpoints.
fn with(
    (protocol, port): (Transport, u16),
    policy: &str,
    external: &Both,
    endpoints: (&Both, u16),
) -> Snapshot {
    let protocol = protocol.as_str().to_uppercase();
    let [v4, v6] = external;
    let spec = format!(
        r#","clusterIPs":["{VIP}","{VIP6}"],"externalIPs":["{v4}","{v6}"],
        "externalTrafficPolicy":"{policy}","ports":[{{"port":{port},"protocol":"{protocol}"}}]"#
    );
    let of = |n: usize, name: &'static str, family: &str| {
        let (kind, _, value) = slice(&[&endpoints.0[n]]);
        let target = format!(r#""port":{},"protocol":"{protocol}""#, endpoints.1);
        let value = value.replace(r#""port":8080"#, &target);
        (kind, name, value.replace("IPv4", family))
    };
    snapshot(&[
        service(&spec),
        of(0, "web-1", "IPv4"),
        of(1, "web-2", "IPv6"),
    ])
}

async fn planned(snapshot: &Snapshot) {
    let mut ours = writer();
    let listeners = ["127.0.0.1", "::1"].map(|address| socket(address, LISTENER.1));
    ours.set_reserved(
        (BTreeSet::new(), false),
        listeners.into(),
        &Overrides::new(),
    );
    let status = ours.pass(snapshot).await.unwrap();
    assert_eq!(status.problems, [], "the plan knows nothing of it");
}

/// Sets of the table that the next process fills again.
fn flush(set: &str) {
    sh(&format!("nft flush set inet caracal-services {set}"));
}

#[test]
fn no_service_leads_from_a_port_of_this_node() {
    let name = "services::kept::no_service_leads_from_a_port_of_this_node";
    in_namespace(name, || async {
        two_families();
        for (n, at) in GUARDED.into_iter().chain([LISTENER]).enumerate() {
            answer_at(POD[0], (at.0, 8080 + u16::try_from(n).unwrap()));
            answer_at(POD[1], (at.0, 8080 + u16::try_from(n).unwrap()));
            let own = [format!("198.51.100.{n}"), format!("2001:db8:7::{n:x}")];
            let target = 8080 + u16::try_from(n).unwrap();
            planned(&with(
                at,
                "Cluster",
                &own,
                (&POD.map(str::to_owned), target),
            ))
            .await;
            for (n, own) in own.iter().enumerate() {
                answer_at(own, at);
                let vip = [VIP, VIP6][n];
                assert_eq!(ask(vip, at, ANSWER).as_deref(), Some(POD[n]), "{at:?}");
                assert_eq!(ask(own, at, ANSWER).as_deref(), Some(&**own), "{at:?}");
            }
            // It is the kernel that knows it.
            flush("kept-ports");
            for (n, own) in own.iter().enumerate() {
                assert_eq!(ask(own, at, ANSWER).as_deref(), Some(POD[n]), "{at:?}");
            }
        }
    });
}

#[test]
fn no_service_leads_to_a_port_for_nodes() {
    let name = "services::kept::no_service_leads_to_a_port_for_nodes";
    in_namespace(name, || async {
        two_families();
        let cluster = CLUSTER.map(str::to_owned);
        let mut number = 0;
        for policy in ["Cluster", "Local"] {
            for at in GUARDED.into_iter().chain([LISTENER]) {
                number += 1;
                let own = [
                    format!("198.51.100.{number}"),
                    format!("2001:db8:7::{number:x}"),
                ];
                planned(&with(at, policy, &cluster, (&own, at.1))).await;
                for (n, own) in own.iter().enumerate() {
                    answer_at(own, at);
                    for to in [[VIP, VIP6][n], CLUSTER[n]] {
                        // What a node serves itself may be a Service, as its metrics are.
                        let (limit, answer) = match at == LISTENER {
                            true => (ANSWER, Some(&**own)),
                            false => (SILENCE, None),
                        };
                        assert_eq!(ask(to, at, limit).as_deref(), answer, "{to} {at:?}");
                    }
                }
                flush("guarded-ports");
                for (n, own) in own.iter().enumerate() {
                    for to in [[VIP, VIP6][n], CLUSTER[n]] {
                        let said = ask(to, at, ANSWER);
                        assert_eq!(said.as_deref(), Some(&**own), "{to} {at:?}");
                    }
                }
            }
        }
    });
}

fn two_families() {
    machine();
    sh("ip -6 route add default via fd00:a::2 dev eth0");
}
