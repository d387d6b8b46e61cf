#![allow(clippy::unwrap_used)]

use std::error::Error;

use super::*;

const GOOD: &str = "\
name: t
segments:
  - {name: a, cidr: 10.0.1.0/24}
  - {name: b, cidr: 10.0.2.0/24}
routers:
  - {name: r, legs: [{segment: a}, {segment: b}]}
nodes:
  - {name: n1, segment: a, pods: 2}
  - {name: n2, segment: b, pods: [web, db], labels: {rack: r2}, asn: 64513}
";

fn parse(text: &str) -> Result<Topology, TopologyError> {
    Topology::parse(text, "t.yaml")
}

fn invalid(text: &str) -> (u64, u64, Invalid) {
    match parse(text).unwrap_err() {
        TopologyError::Invalid {
            line,
            column,
            reason,
            ..
        } => (line, column, *reason),
        other => panic!("not found by the checks: {other} ({:?})", other.source()),
    }
}

fn syntax(text: &str) -> String {
    let error = parse(text).unwrap_err();
    assert!(matches!(error, TopologyError::Syntax { .. }), "{error}");
    error.source().unwrap().to_string()
}

#[test]
fn a_file_is_read_with_defaults() {
    let t = parse(GOOD).unwrap();
    assert_eq!(t.backend, Backend::Bird);
    assert_eq!(t.pool.cidr.value.to_string(), "10.244.0.0/16");
    assert_eq!(t.pool.block_size(), 26);
    assert!(t.pool.nat_outgoing());
    assert_eq!(t.families(), [Family::Ipv4]);
    assert_eq!(t.segments[0].mtu, 1500);
    assert_eq!(
        t.node("n1").unwrap().pods.value,
        Pods(vec!["p1".into(), "p2".into()])
    );
    assert_eq!(
        t.node("n2").unwrap().pods.value,
        Pods(vec!["web".into(), "db".into()])
    );
    assert_eq!(t.node("n2").unwrap().asn, Some(64513));
    assert_eq!(t.node("n1").unwrap().kind, NodeKind::Caracal);
}

#[test]
fn an_unknown_key_is_refused_with_its_place() {
    let text = GOOD.replace("segment: b, pods", "segment: b, pdos");
    let message = syntax(&text);
    assert!(
        message.contains("pdos") && message.contains("9:"),
        "{message}"
    );
}

#[test]
fn wrong_shapes_are_refused_with_their_place() {
    let message = syntax(&GOOD.replace("10.0.2.0/24", "10.0.2.1/24"));
    assert!(
        message.contains("host bits") && message.contains("4:"),
        "{message}"
    );
    let message = syntax(&GOOD.replace("pods: 2", "pods: 300"));
    assert!(
        message.contains("300") && message.contains("up to 250"),
        "{message}"
    );
    let message = syntax(&GOOD.replace("10.0.2.0/24", "'fd00::1/64'"));
    assert!(message.contains("host bits"), "{message}");
    let message = syntax(&GOOD.replace("asn: 64513", "kind: birb"));
    assert!(
        message.contains("birb") && message.contains("bird2"),
        "{message}"
    );
    assert!(!syntax("name: [").is_empty());
    assert!(!syntax("").is_empty());
}

#[test]
fn references_are_checked() {
    let (line, column, reason) = invalid(&GOOD.replace("n2, segment: b", "n2, segment: c"));
    assert_eq!((line, column), (9, 25));
    assert_eq!(
        reason,
        Invalid::UnknownSegment {
            name: "c".into(),
            known: "a, b".into()
        }
    );
    let (line, _, reason) = invalid(&GOOD.replace("{segment: b}]", "{segment: z}]"));
    assert_eq!(line, 6);
    assert!(matches!(reason, Invalid::UnknownSegment { .. }));
}

#[test]
fn names_are_checked() {
    for (from, to) in [
        ("n1,", "N1,"),
        ("n1,", "-n1,"),
        ("[web", "[we/b"),
        ("name: t", "name: a_b"),
    ] {
        let (_, _, reason) = invalid(&GOOD.replace(from, to));
        assert!(matches!(reason, Invalid::Name { .. }), "{to}: {reason}");
    }
    for (from, to) in [
        ("n2,", "n1,"),
        ("n2,", "etcd,"),
        ("name: r,", "name: n1,"),
        ("[web, db]", "[web, web]"),
        ("{name: b,", "{name: a,"),
        // The pod's namespace would be called like the other node's.
        ("n2,", "n1-p1,"),
    ] {
        let (_, _, reason) = invalid(&GOOD.replace(from, to));
        assert!(
            matches!(reason, Invalid::Duplicate { .. }),
            "{to}: {reason}"
        );
    }
}

#[test]
fn addresses_are_checked() {
    let with = |address: &str| {
        GOOD.replace(
            "n1, segment: a",
            &format!("n1, segment: a, address: {address}"),
        )
    };
    assert!(parse(&with("10.0.1.7")).is_ok());
    for outside in ["10.0.2.7", "10.0.1.0", "10.0.1.255"] {
        let (_, _, reason) = invalid(&with(outside));
        assert!(
            matches!(reason, Invalid::OutsideSegment { .. }),
            "{outside}: {reason}"
        );
    }
    let text = with("10.0.1.7").replace("{segment: a}", "{segment: a, address: 10.0.1.7}");
    let (_, _, reason) = invalid(&text);
    let owner = "n1".to_owned();
    assert_eq!(
        reason,
        Invalid::DuplicateAddress {
            address: [10, 0, 1, 7].into(),
            owner
        }
    );
}

#[test]
fn subnets_are_checked() {
    let (line, _, reason) = invalid(&GOOD.replace("10.0.2.0/24", "10.0.0.0/16"));
    assert!(matches!(reason, Invalid::Overlap { .. }), "{reason}");
    assert_eq!(line, 4);
    let (_, _, reason) = invalid(&GOOD.replace("10.0.2.0/24", "10.244.8.0/24"));
    assert!(reason.to_string().contains("of the pool"), "{reason}");
    let (_, _, reason) = invalid(&GOOD.replace("10.0.2.0/24", "10.0.2.0/30"));
    assert!(matches!(reason, Invalid::SegmentSize { .. }), "{reason}");
    let mut crowd = GOOD.replace("10.0.2.0/24", "10.0.2.0/29");
    for i in 0..3 {
        crowd.push_str(&format!("  - {{name: m{i}, segment: b}}\n"));
    }
    // /29: six hosts; router, etcd, the dead gateway and three nodes fit, a fourth does not.
    let fits = crowd.replace("  - {name: m2, segment: b}\n", "");
    assert!(parse(&fits).is_ok());
    let (_, _, reason) = invalid(&crowd);
    assert!(
        matches!(
            reason,
            Invalid::SegmentFull {
                room: 6,
                wanted: 7,
                ..
            }
        ),
        "{reason}"
    );
}

#[test]
fn pools_are_checked() {
    let with = |pool: &str| format!("{GOOD}pool: {{{pool}}}\n");
    assert!(
        parse(&with(
            "cidr: 10.99.0.0/24, blockSize: 28, vxlanMode: Always"
        ))
        .is_ok()
    );
    let (_, _, reason) = invalid(&with("ipipMode: Always, vxlanMode: CrossSubnet"));
    assert_eq!(reason, Invalid::TwoEncapsulations);
    for pool in ["blockSize: 19", "blockSize: 33", "cidr: 10.99.0.0/28"] {
        let (_, _, reason) = invalid(&with(pool));
        assert!(
            matches!(reason, Invalid::BlockSize { .. }),
            "{pool}: {reason}"
        );
    }
    assert!(syntax(&with("ipipMode: Sometimes")).contains("Sometimes"));
}

#[test]
fn kinds_are_checked() {
    let node = |rest: &str| format!("{GOOD}  - {{name: x, segment: a, {rest}}}\n");
    assert!(parse(&node("kind: gobgp, config: 'x = 1'")).is_ok());
    let (_, _, reason) = invalid(&node("kind: gobgp"));
    assert!(matches!(reason, Invalid::ConfigMissing { .. }));
    let (_, _, reason) = invalid(&node("config: x"));
    assert!(matches!(reason, Invalid::ConfigUnused { .. }));
    let (_, _, reason) = invalid(&node("kind: plain, pods: 1"));
    assert!(matches!(reason, Invalid::PodsUnsupported { .. }));
    let (_, _, reason) = invalid(&GOOD.replace("[{segment: a}, {segment: b}]", "[{segment: a}]"));
    assert!(matches!(reason, Invalid::TooFewLegs { .. }));
}

#[test]
fn resources_are_checked() {
    let with = |r: &str| format!("{GOOD}resources:\n  - {r}\n");
    assert!(
        parse(&with(
            "{kind: BGPPeer, metadata: {name: x}, spec: {peerIP: 10.0.1.9}}"
        ))
        .is_ok()
    );
    let (line, _, reason) = invalid(&with("{kind: BGPeer, metadata: {name: x}}"));
    assert_eq!(line, 11);
    assert!(reason.to_string().contains("BGPPeer"), "{reason}");
    let (_, _, reason) = invalid(&with("{kind: BGPPeer, metadata: {}}"));
    assert!(matches!(reason, Invalid::ResourceUnnamed { .. }));
    let (_, _, reason) = invalid(&with(
        "{apiVersion: v1, kind: BGPPeer, metadata: {name: x}}",
    ));
    assert!(matches!(reason, Invalid::ApiVersion { .. }));
    let (_, _, reason) = invalid(&with("{kind: Node, metadata: {name: n1}}"));
    assert!(matches!(reason, Invalid::NodeResource { .. }));
}

#[test]
fn the_examples_are_good() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let topology = Topology::load(&path).unwrap_or_else(|e| panic!("{e}: {:?}", e.source()));
        assert_eq!(
            path.file_stem().unwrap().to_str().unwrap(),
            topology.name.value
        );
        names.push(topology.name.value);
    }
    for name in [
        "full-mesh",
        "cross-subnet",
        "ipip-always",
        "ipip-cross-subnet",
        "rr-pair",
        "mixed-bird",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} is missing");
    }
}

/// [`GOOD`] with IPv6 beside IPv4, or instead of it.
fn dual() -> String {
    GOOD.replace("10.0.1.0/24", "10.0.1.0/24, cidr6: 'fd00:1::/64'")
        .replace("10.0.2.0/24", "10.0.2.0/24, cidr6: 'fd00:2::/64'")
        .replace("name: t\n", "name: t\npool6: {cidr: 'fd00:244::/48'}\n")
}

fn ipv6() -> String {
    GOOD.replace("10.0.1.0/24", "'fd00:1::/64'")
        .replace("10.0.2.0/24", "'fd00:2::/64'")
        .replace("name: t\n", "name: t\npool: {cidr: 'fd00:244::/48'}\n")
}

#[test]
fn a_cluster_is_ipv4_ipv6_or_both() {
    let t = parse(&dual()).unwrap();
    assert_eq!(t.families(), [Family::Ipv4, Family::Ipv6]);
    let pool = t.pool_of(Family::Ipv6).unwrap();
    assert_eq!((pool.block_size(), pool.nat_outgoing()), (122, false));
    assert_eq!(t.pool_of(Family::Ipv4).unwrap().block_size(), 26);
    let t = parse(&ipv6()).unwrap();
    assert_eq!(t.families(), [Family::Ipv6]);
    assert_eq!(t.pool_of(Family::Ipv4).map(|p| p.cidr.value), None);
}

#[test]
fn half_a_family_is_refused() {
    let cases = [
        (
            dual().replace(", cidr6: 'fd00:2::/64'", ""),
            5,
            "b is not as the first segment",
        ),
        (
            dual().replace("pool6: {cidr: 'fd00:244::/48'}\n", ""),
            1,
            "pool6 is not as the first",
        ),
        (
            dual().replace("'fd00:244::/48'", "10.9.0.0/16"),
            2,
            "10.9.0.0/16 is IPv4, but pool6 is IPv6",
        ),
        (
            dual().replace("'fd00:2::/64'", "10.9.0.0/16"),
            5,
            "10.9.0.0/16 is IPv4, but cidr6 is IPv6",
        ),
        (
            ipv6().replace("'fd00:244::/48'", "10.9.0.0/16"),
            2,
            "but cidr of the first segment is IPv6",
        ),
        (
            ipv6().replace("'fd00:2::/64'", "10.0.2.0/24"),
            5,
            "but cidr of the first segment is IPv6",
        ),
        (
            ipv6().replace("'fd00:2::/64'", "'fd00:2::/48'"),
            5,
            "64 to 124 for IPv6",
        ),
        (
            ipv6().replace("/48'}", "/48', ipipMode: Always}"),
            2,
            "no IPIP for IPv6",
        ),
        (
            ipv6().replace("/48'}", "/48', blockSize: 26}"),
            2,
            "IPv6: 116 to 128",
        ),
        (
            dual().replace("n1, segment: a", "n1, segment: a, address6: 'fd00:2::9'"),
            9,
            "no host address of segment a",
        ),
        (
            dual()
                .replace("n1, segment: a", "n1, segment: a, address6: 'fd00:1::9'")
                .replace("[{segment: a}", "[{segment: a, address6: 'fd00:1::9'}"),
            7,
            "already the address of n1",
        ),
        (
            ipv6().replace("n1, segment: a", "n1, segment: a, address: 10.0.1.9"),
            9,
            "no host address of segment a",
        ),
    ];
    for (text, at, words) in cases {
        let (line, _, reason) = invalid(&text);
        assert!(reason.to_string().contains(words), "{reason} for\n{text}");
        assert_eq!(line, at, "{reason} for\n{text}");
    }
}

const FLANNEL: &str = "\
name: t
plugin: flannel
flannel:
  network: 10.5.0.0/16
  subnetLen: 25
  backend: {type: vxlan, vni: 7, directRouting: true}
segments:
  - {name: a, cidr: 10.0.1.0/24}
nodes:
  - {name: n1, segment: a, pods: 2, env: {FLANNELD_SETTLE_TIME: '3'}}
  - {name: n2, segment: a, kind: plain}
";

#[test]
fn flannels_configuration_has_flannels_names() {
    let t = parse(FLANNEL).unwrap();
    assert_eq!(
        t.flannel().unwrap().net_conf().to_string(),
        r#"{"Network":"10.5.0.0/16","SubnetLen":25,"Backend":{"Type":"vxlan","VNI":7,"DirectRouting":true}}"#
    );
    let dual = FLANNEL
        .replace("10.0.1.0/24", "10.0.1.0/24, cidr6: 'fd00:1::/64'")
        .replace("subnetLen: 25", "ipv6Network: 'fd00:5::/48'");
    let config = parse(&dual).unwrap().flannel().unwrap().net_conf();
    assert_eq!(config["EnableIPv6"], true);
    assert_eq!(config["IPv6Network"], "fd00:5::/48");
}

/// Each line is a change of [`FLANNEL`], with line and column of the complaint and a part of it.
#[test]
fn what_has_no_place_beside_flannel_is_named() {
    let cases = [
        ("plugin: flannel\n", "", (3, 3), "plugin: flannel alone"),
        (
            "name: t",
            "name: t\npool: {blockSize: 26}",
            (2, 1),
            "pool means nothing",
        ),
        (
            "name: t",
            "name: t\nbackend: vxlan",
            (2, 1),
            "backend means nothing",
        ),
        (
            "name: t",
            "name: t\ndatastore: etcd",
            (2, 1),
            "datastore means nothing",
        ),
        (
            "name: t",
            "name: t\nresources: []",
            (2, 1),
            "resources means nothing",
        ),
        (
            "pods: 2",
            "asn: 64512",
            (10, 28),
            "asn means nothing to flannel; with plugin: flannel a node may have name, segment",
        ),
        (
            "pods: 2",
            "labels: {a: b}",
            (10, 28),
            "labels means nothing",
        ),
        (
            "pods: 2",
            "autodetect: true",
            (10, 28),
            "autodetect means nothing",
        ),
        (
            "kind: plain",
            "routeReflectorClusterID: 1.0.0.1",
            (11, 28),
            "routeReflectorClusterID",
        ),
        (
            "kind: plain",
            "kind: bird2",
            (11, 12),
            "n2 is of kind bird2",
        ),
        (
            "FLANNELD_SETTLE_TIME",
            "CALICO_X",
            (10, 12),
            "does not read CALICO_X of node n1",
        ),
        (
            "vxlan, vni: 7",
            "udp, vni: 7",
            (6, 29),
            "the backend udp has no option vni; it has port",
        ),
        (
            "vxlan, vni: 7",
            "host-gw",
            (6, 43),
            "has no option directRouting; it has none",
        ),
        ("vni: 7", "vni: 77777777", (6, 31), "VNI"),
        (
            "subnetLen: 25",
            "subnetLen: 17",
            (5, 14),
            "SubnetLen: 17 is not between",
        ),
        (
            "subnetLen: 25",
            "subnetMin: 10.6.0.0",
            (5, 14),
            "SubnetMin: 10.6.0.0 is not inside",
        ),
        ("10.5.0.0/16", "'fd00::/64'", (4, 12), "Network: "),
        (
            "subnetLen: 25",
            "ipv6Network: 'fd00:5::/48'",
            (4, 12),
            "either all segments have cidr6",
        ),
        (
            "10.0.1.0/24",
            "'fd00:1::/64'",
            (4, 12),
            "no network of IPv6 alone",
        ),
        (
            "10.0.1.0/24",
            "10.5.1.0/24",
            (8, 21),
            "overlaps 10.5.0.0/16 of flannel's network",
        ),
    ];
    for (from, to, place, words) in cases {
        assert!(FLANNEL.contains(from), "{from}");
        let (line, column, reason) = invalid(&FLANNEL.replace(from, to));
        assert!(reason.to_string().contains(words), "{reason} for {to}");
        assert_eq!((line, column), place, "{reason} for {to}");
    }
    let (line, _, reason) = invalid(&GOOD.replace("name: t", "name: t\nplugin: flannel"));
    assert!(
        reason.to_string().contains("needs flannel's network"),
        "{reason}"
    );
    assert_eq!(line, 2);
    for (from, to, words) in [
        ("vxlan, vni: 7", "alloc", "host-gw"),
        ("vni: 7", "gbp: true", "gbp"),
        ("plugin: flannel", "plugin: weave", "weave"),
        ("kind: plain", "kind: flannel", "flannel"),
        ("10.5.0.0/16", "10.5.0.1/16", "host bits"),
    ] {
        let message = syntax(&FLANNEL.replace(from, to));
        assert!(message.contains(words), "{message}");
    }
    let ipip = FLANNEL
        .replace("10.0.1.0/24", "10.0.1.0/24, cidr6: 'fd00:1::/64'")
        .replace("subnetLen: 25", "ipv6Network: 'fd00:5::/48'")
        .replace("vxlan, vni: 7", "ipip");
    let (_, _, reason) = invalid(&ipip);
    assert!(reason.to_string().contains("IPv4 alone"), "{reason}");
}
