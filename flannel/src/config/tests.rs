#![allow(clippy::unwrap_used)]
use super::*;

fn parse(text: &str) -> FlannelConfig {
    FlannelConfig::parse(text.as_bytes()).unwrap()
}

fn refusal(text: &str) -> String {
    FlannelConfig::parse(text.as_bytes())
        .unwrap_err()
        .to_string()
}

#[test]
fn defaults_are_flannels() {
    let config = parse(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#);
    assert_eq!(
        {
            let v4 = config.v4.unwrap();
            (v4.len, v4.first, v4.last)
        },
        (24, 1, 255)
    );
    assert_eq!(config.v6, None);
    assert_eq!(
        config.backend,
        Backend::Vxlan(VxlanOptions {
            vni: 1,
            port: 8472,
            mtu: None,
            direct_routing: false
        })
    );
    // A small network is cut into four; any case of names and of the type will do.
    let config = parse(r#"{"network":"10.5.0.0/24","BACKEND":{"type":"Host-GW"},"x":1}"#);
    let v4 = config.v4.unwrap();
    assert_eq!((v4.len, v4.last), (26, 3));
    assert_eq!(config.backend, Backend::HostGw);
}

#[test]
fn no_backend_means_udp() {
    let backend = |text: &str| parse(text).backend;
    let usual = Backend::Udp { port: 8285 };
    assert_eq!(backend(r#"{"Network":"10.5.0.0/16"}"#), usual);
    let none = r#"{"Network":"10.5.0.0/16","Backend":null}"#;
    assert_eq!(backend(none), usual);
    let zero = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"UDP","Port":0}}"#;
    assert_eq!(backend(zero), usual);
    let own = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":7890}}"#;
    assert_eq!(backend(own), Backend::Udp { port: 7890 });
    assert_eq!(usual.lease_type(), "");
}

#[test]
fn both_families_and_bounds() {
    let config = parse(
        r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48",
           "SubnetMin":"10.5.10.0","SubnetMax":"10.5.99.0","SubnetLen":24,
           "Backend":{"Type":"vxlan","VNI":7,"Port":4789,"MTU":9000,"DirectRouting":true,"GBP":true}}"#,
    );
    let v4 = config.v4.unwrap();
    assert_eq!((v4.first, v4.last), (10, 99));
    assert!(v4.holds(&"10.5.99.0/24".parse().unwrap()));
    assert!(!v4.holds(&"10.5.100.0/24".parse().unwrap()));
    assert!(!v4.holds(&"10.5.20.0/25".parse().unwrap()));
    assert_eq!(config.v6.unwrap().len, 64);
    assert_eq!(config.notes.len(), 1);
}

#[test]
fn each_fault_is_named_with_its_field() {
    let vxlan = r#""Backend":{"Type":"vxlan"}"#;
    for (text, says) in [
        ("{".to_owned(), "no JSON object"),
        ("[]".to_owned(), "no JSON object"),
        (format!("{{{vxlan}}}"), "Network: it is missing"),
        (
            format!(r#"{{"Network":"10.5.0.0/29",{vxlan}}}"#),
            "at most /28",
        ),
        (
            format!(r#"{{"Network":"fd00::/48",{vxlan}}}"#),
            "no IPv4 network",
        ),
        (
            format!(r#"{{"Network":"10.5.0.0/16","SubnetLen":17,{vxlan}}}"#),
            "SubnetLen: 17",
        ),
        (
            format!(r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0",{vxlan}}}"#),
            "SubnetMin: 10.6.0.0 is not inside",
        ),
        (
            format!(r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.7",{vxlan}}}"#),
            "begins",
        ),
        (
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Port":65536}}"#.to_owned(),
            "Port: 65536 is more than",
        ),
        (
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}"#.to_owned(),
            "not supported",
        ),
        (
            r#"{"Network":"10.5.0.0/16","Backend":{"Type":"magic"}}"#.to_owned(),
            "unknown backend type \"magic\"",
        ),
        (
            r#"{"Network":"10.5.0.0/16","EnableIPv4":false}"#.to_owned(),
            "EnableIPv4: it is false, and EnableIPv6 is not set",
        ),
        (
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"ipip"}}"#
                .to_owned(),
            "ipip carries IPv4 alone",
        ),
    ] {
        let refusal = refusal(&text);
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
}
