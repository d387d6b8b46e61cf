//! What nftables prints of our table.

use super::super::listing::{Listed, stray_clients};
use super::super::{ServiceAddress, ServiceTarget};
use crate::nft::Fields;

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
    let clients = "map inet x y {\nelements = { 10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80,
        10.0.0.2 timeout 3h expires 1s : 10.2.0.8 . 80 }\n}";
    let allowed = ServiceTarget::of_value(&fields("10.2.0.8 . 80")).unwrap();
    assert_eq!(stray_clients(clients, &[allowed].into()), ["10.0.0.1"]);
}
