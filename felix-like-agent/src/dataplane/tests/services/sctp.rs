//! SCTP through a Service, as packets (RFC 9260 §3): the kernel may have no sockets of it.

use socket2::{Domain, Protocol, Socket, Type};

use super::*;

/// IANA's number of SCTP.
const SCTP: i32 = 132;
/// Chunks that open an association, and answer to that.
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
/// The tag that the client wants to find in what it is sent.
const TAG: u32 = 0x2a2a_2a2a;
/// The client's port.
const CLIENT: u16 = 40_000;

/// The checksum of RFC 9260, appendix A.
fn crc32c(octets: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    let add = |crc: u32, octet: &u8| (0..8).fold(crc ^ u32::from(*octet), |crc, _| step(crc));
    !octets.iter().fold(u32::MAX, add)
}

/// A packet with one chunk, which is `INIT` or `INIT_ACK`.
fn packet((from, to): (u16, u16), tag: u32, chunk: u8) -> Vec<u8> {
    let mut packet = [from.to_be_bytes(), to.to_be_bytes()].concat();
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([chunk, 0, 0, 20]);
    packet.extend(TAG.to_be_bytes());
    // Room for what is sent, streams of either direction, and the first number.
    for word in [65_536_u32, 0x0001_0001, 1] {
        packet.extend(word.to_be_bytes());
    }
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// What is sent to an address of this machine.
fn raw(address: IpAddr) -> UdpSocket {
    let domain = Domain::for_address((address, 0).into());
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(SCTP))).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.into()
}

/// The next packet to a port with this chunk: from whom, and his port.
fn receive(socket: &UdpSocket, to: u16, chunk: u8) -> (IpAddr, u16) {
    let mut octets = [0; 256];
    loop {
        let (length, from) = socket.recv_from(&mut octets).unwrap();
        // Of IPv4 the header comes, too.
        let header = match from {
            SocketAddr::V4(_) => usize::from(octets[0] & 15) * 4,
            SocketAddr::V6(_) => 0,
        };
        let packet = &octets[header..length];
        let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        if (port(2), packet[12]) == (to, chunk) {
            return (from.ip(), port(0));
        }
    }
}

#[test]
fn an_association_is_led_to_an_endpoint_and_back() {
    let name = "services::sctp::an_association_is_led_to_an_endpoint_and_back";
    in_namespace(name, || async {
        machine();
        sh("ip -6 route add default via fd00:a::2 dev eth0");
        let vips = [VIP, "fd00:96::10"];
        let servers = ["10.1.0.1", "fd00:1::1"];
        sh("ip address add 10.1.0.1/32 dev lo && ip address add fd00:1::1/128 dev lo nodad");
        let spec = format!(
            r#","clusterIPs":["{}","{}"],"ports":[{{"port":80,"protocol":"SCTP"}}]"#,
            vips[0], vips[1]
        );
        let of = |name: &'static str, server: &str| {
            let (kind, _, value) = slice(&[server]);
            let value = value.replace(r#""port":8080"#, r#""port":8080,"protocol":"SCTP""#);
            (kind, name, value)
        };
        let (kind, name, v6) = of("web-2", servers[1]);
        let v6 = (kind, name, v6.replace("IPv4", "IPv6"));
        let wanted = snapshot(&[service(&spec), of("web-1", servers[0]), v6]);
        writer().pass(&wanted).await.unwrap();
        for ((vip, server), any) in vips.into_iter().zip(servers).zip(["0.0.0.0", "::"]) {
            let address = |text: &str| text.parse::<IpAddr>().unwrap();
            let (client, server) = (raw(address(any)), raw(address(server)));
            let init = packet((CLIENT, 80), 0, INIT);
            client.send_to(&init, (address(vip), 0)).unwrap();
            let (from, port) = receive(&server, 8080, INIT);
            let ack = packet((8080, port), TAG, INIT_ACK);
            server.send_to(&ack, (from, 0)).unwrap();
            let answer = receive(&client, CLIENT, INIT_ACK);
            assert_eq!(answer, (address(vip), 80));
        }
    });
}
