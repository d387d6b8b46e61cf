//! What nftables prints of our table.

use super::super::clients::{Client, clients, strays};
use super::super::listing::Listed;
use super::super::{ServiceAddress, ServiceTarget};
use crate::nft::{Element, Fields};

fn fields(text: &str) -> Fields {
    Fields::parse(text).unwrap()
}

#[test]
fn what_nftables_prints_is_read_back() {
    let text = "table inet caracal-services {
\tmap endpoints4-udp {
\t\ttypeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
\t\telements = { 10.96.0.1 . udp . 53 . 1 : 10.2.0.9 . 5353,
\t\t\t     10.96.0.1 . udp . 53 . 0 : 10.2.0.1 . 5353 }
\t}

\tset pods4 {
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = { 10.0.0.0/8 }
\t}
\tmap clients4/shop/web//tcp {
\t\telements = { 10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80 }
\t}
\tchain pick-endpoints-2 {
\t}
}";
    let listed = Listed::parse(text);
    assert_eq!(listed.elements.len(), 3);
    assert!(listed.chains.contains("pick-endpoints-2") && !listed.is_ours());
    let address = ServiceAddress::of_key(&fields("10.96.0.1 . udp . 53")).unwrap();
    let (order, here) = listed.order(&address);
    let order: Vec<String> = order.iter().map(ToString::to_string).collect();
    assert_eq!(order, ["10.2.0.1 . 5353", "10.2.0.9 . 5353"]);
    assert_eq!(here, []);
}

/// A map's clients are told by text and by octets alike.
#[test]
fn clients_whose_endpoint_is_gone_are_told() {
    let text = |elements: &str| format!("map inet x y {{\nelements = {{ {elements} }}\n}}");
    let target = |text: &str| {
        let (address, port) = text.split_once(" . ").unwrap();
        ServiceTarget {
            address: address.parse().unwrap(),
            port: port.parse().unwrap(),
        }
    };
    let gone = |clients: &[Client], allowed: &str| {
        let strays = strays(clients, &[target(allowed)].into());
        strays.iter().map(Element::to_string).collect::<Vec<_>>()
    };
    let v4 = clients(&text(
        "10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80,
        10.0.0.2 timeout 3h expires 1s : 10.2.0.8 . 80, 10.0.0.3 timeout 3h : 10.2.0.8 . 81",
    ));
    assert_eq!(gone(&v4, "10.2.0.8 . 80"), ["10.0.0.1", "10.0.0.3"]);
    let octets = [
        ([10, 0, 0, 1], [10, 2, 0, 9, 0, 80, 0, 0]),
        ([10, 0, 0, 2], [10, 2, 0, 8, 0, 80, 0, 0]),
        ([10, 0, 0, 3], [10, 2, 0, 8, 0, 81, 0, 0]),
    ];
    let read = octets.map(|(key, data)| Client::of_octets(&key, &data).unwrap());
    assert_eq!(v4, read);
    // Those of IPv6 are kept with an address alone.
    let v6 = clients(&text(
        "fd00::1 timeout 3h : fd01::8, fd00::2 timeout 3h : fd01::9",
    ));
    assert_eq!(gone(&v6, "fd01::8 . 80"), ["fd00::2"]);
    let octets = ["fd00::1", "fd01::8"].map(|a| a.parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(Client::of_octets(&octets[0], &octets[1]), Some(v6[0]));
    for (key, data) in [(0, 0), (4, 3), (5, 5)] {
        assert_eq!(Client::of_octets(&[1; 8][..key], &[1; 8][..data]), None);
    }
}
