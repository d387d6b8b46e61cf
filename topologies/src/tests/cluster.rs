//! Mesh, announcements and the settings of BGPConfiguration.

use super::*;

/// Three nodes on one segment and a pool.
pub(super) const THREE: &str = "
kind: IPPool
metadata: {name: p}
spec: {cidr: 10.244.0.0/16}
---
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.9/24}}
---
kind: Node
metadata: {name: b, labels: {rack: r1}}
spec: {bgp: {ipv4Address: 10.0.0.10/24}}
---
kind: Node
metadata: {name: c, labels: {rack: r2}}
spec: {bgp: {ipv4Address: 10.0.0.11/24, asNumber: 65001}}
";

pub(super) fn snapshot(texts: &[&str]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for text in texts {
        let refused = resources_from_yaml(text).unwrap().apply(&mut snapshot);
        assert_eq!(refused, [], "{text}");
    }
    snapshot
}

pub(super) fn planned(node: &str, texts: &[&str]) -> BgpPlan {
    plan(&snapshot(texts), &node.into(), &PlanOptions::default())
}

/// The configuration of a plan without problems.
pub(super) fn config(node: &str, texts: &[&str]) -> SpeakerConfig {
    let planned = planned(node, texts);
    assert_eq!(planned.problems, []);
    planned.config
}

pub(super) fn names(config: &SpeakerConfig) -> Vec<&str> {
    config.peers.keys().map(PeerName::as_str).collect()
}

pub(super) fn codes(planned: &BgpPlan) -> Vec<&str> {
    planned.problems.iter().map(|p| p.code.as_str()).collect()
}

pub(super) fn peer<'a>(config: &'a SpeakerConfig, name: &str) -> &'a PeerConfig {
    &config.peers[&PeerName::from(name)]
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

#[test]
fn topo_3_mesh_names_as_numbers_and_who_waits() {
    let a = config("a", &[THREE]);
    assert_eq!(names(&a), ["Mesh_10_0_0_10", "Mesh_10_0_0_11"]);
    let b = peer(&a, "Mesh_10_0_0_10");
    assert_eq!((b.remote_as, b.port), (Asn(64512), 179));
    assert_eq!(b.source, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(b.kind, "mesh");
    assert_eq!(b.export, [announce::EXPORT_FILTER]);
    assert_eq!(peer(&a, "Mesh_10_0_0_11").remote_as, Asn(65001));
    // Compared as text, 10.0.0.10 comes before 10.0.0.9: so b waits for a, and a dials.
    assert!(!b.passive);
    let from_b = config("b", &[THREE]);
    assert!(peer(&from_b, "Mesh_10_0_0_9").passive);
    assert!(peer(&from_b, "Mesh_10_0_0_11").passive);
}

#[test]
fn a_mesh_peer_without_an_as_has_ours() {
    // Calico's rule: the AS of the peer's node, else our own effective one.
    let c = config("c", &[THREE]);
    assert_eq!(c.local_as, Asn(65001));
    assert_eq!(peer(&c, "Mesh_10_0_0_9").remote_as, Asn(65001));
}

#[test]
fn every_mesh_session_has_exactly_one_dialler() {
    let mut text = String::from(THREE);
    for i in 0..30 {
        let address = 95 + i;
        write!(
            text,
            "---\nkind: Node\nmetadata: {{name: n{i}}}\nspec: {{bgp: {{ipv4Address: 10.0.0.{address}/24, ipv6Address: 'fd00::{i:x}a/64'}}}}\n"
        )
        .unwrap();
    }
    let all = snapshot(&[&text]);
    let plans: BTreeMap<IpAddr, SpeakerConfig> = all
        .nodes
        .iter()
        .flat_map(|(name, node)| {
            let config = plan(&all, name, &PlanOptions::default()).config;
            [Family::Ipv4, Family::Ipv6]
                .into_iter()
                .filter_map(|f| node.spec.address(f))
                .map(move |address| (address, config.clone()))
        })
        .collect();
    let mut sessions = 0;
    for (own, config) in &plans {
        for peer in config.peers.values().filter(|p| p.source == Some(*own)) {
            let back = plans[&peer.address]
                .peers
                .values()
                .find(|p| p.address == *own)
                .unwrap();
            assert_ne!(peer.passive, back.passive, "{own} and {}", peer.address);
            assert_eq!(peer.families, [Family::of(*own)]);
            sessions += 1;
        }
    }
    assert_eq!(sessions, 33 * 32 + 30 * 29);
}

#[test]
fn mesh_off_leaves_no_mesh() {
    let off = "
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false, asNumber: 64999, listenPort: 1179}
";
    let a = config("a", &[THREE, off]);
    assert_eq!(names(&a), [] as [&str; 0]);
    assert_eq!(a.local_as, Asn(64999));
    assert_eq!(a.listen.unwrap().port, 1179);
}

#[test]
fn ports_and_binding() {
    let settings = "
kind: BGPConfiguration
metadata: {name: default}
spec: {listenPort: 1179, bindMode: NodeIP, nodeMeshMaxRestartTime: 200.6s, logSeverityScreen: Debug}
---
kind: BGPConfiguration
metadata: {name: node.b}
spec: {listenPort: 2179}
";
    let a = config("a", &[THREE, settings]);
    assert_eq!(a.listen.unwrap().address, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(peer(&a, "Mesh_10_0_0_10").port, 2179);
    assert_eq!(peer(&a, "Mesh_10_0_0_11").port, 1179);
    let restart = peer(&a, "Mesh_10_0_0_11").graceful_restart.unwrap();
    assert_eq!(restart.restart_time, Duration::from_secs(201));
    assert_eq!(config("b", &[THREE, settings]).listen.unwrap().port, 2179);
}

#[test]
fn own_blocks_are_announced_by_the_state_of_their_affinity() {
    let mut s = snapshot(&[THREE]);
    for (block, state) in [
        ("10.244.0.0-26", r#"{"state":"confirmed"}"#),
        ("10.244.0.64-26", r#"{"state":"pending"}"#),
        ("10.244.0.128-26", r#"{"state":"pendingDeletion"}"#),
        ("10.244.0.192-26", ""),
        ("10.244.1.0-26", "{}"),
        ("10.99.0.0-26", r#"{"state":"confirmed"}"#),
    ] {
        let path = format!("/calico/ipam/v2/host/a/ipv4/block/{block}");
        s.apply(&path, Some(state.as_bytes()), 9);
    }
    assign_block(&mut s, &"b".into(), prefix("10.244.9.0/26"));
    let planned = plan(&s, &"a".into(), &PlanOptions::default());
    let announced: Vec<_> = planned
        .config
        .originate
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        announced,
        [
            "10.244.0.0/26",
            "10.244.0.128/26",
            "10.244.0.192/26",
            "10.244.1.0/26"
        ]
    );
    let route = &planned.config.originate[&prefix("10.244.0.0/26")];
    assert_eq!(route.local_pref, Some(CALICO_LOCAL_PREF));
    assert_eq!(route.next_hop, Some("10.0.0.9".parse().unwrap()));
    // The one without a pool serves no workload.
    assert_eq!(planned.problems, []);
}

#[test]
fn a_disabled_pool_keeps_its_routes_and_a_hidden_one_has_none() {
    let pools = "
kind: IPPool
metadata: {name: q}
spec: {cidr: 10.245.0.0/16, disabled: true}
---
kind: IPPool
metadata: {name: r}
spec: {cidr: 10.246.0.0/16, disableBGPExport: true}
";
    let mut s = snapshot(&[THREE, pools]);
    for block in ["10.244.0.0/26", "10.245.0.0/26", "10.246.0.0/26"] {
        assign_block(&mut s, &"a".into(), prefix(block));
    }
    let planned = plan(&s, &"a".into(), &PlanOptions::default());
    assert_eq!(planned.problems, []);
    let announced: Vec<_> = planned
        .config
        .originate
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(announced, ["10.244.0.0/26", "10.245.0.0/26"]);
    let filter = &planned.config.filters[announce::EXPORT_FILTER];
    let first = &filter.terms[0];
    assert_eq!(first.verdict, Some(FilterVerdict::Reject));
    assert!(format!("{:?}", first.conditions).contains("10.246.0.0/16"));
    assert_eq!(
        filter.terms.last().unwrap().verdict,
        Some(FilterVerdict::Reject)
    );
}

/// A pool that somebody deleted all the same: what workloads have of it stays announced, and the
/// node says so.
#[test]
fn a_block_in_use_outlives_its_pool() {
    let nodes = "
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64'}}
";
    for (cidr, key, address) in [
        ("10.99.0.0/30", "ipv4/block/10.99.0.0-30", "10.99.0.8/30"),
        (
            "fd00:99::/126",
            "ipv6/block/fd00:99::-126",
            "fd00:99::8/126",
        ),
    ] {
        let mut s = snapshot(&[nodes]);
        assign_block(&mut s, &"a".into(), prefix(cidr));
        assign_block(&mut s, &"a".into(), prefix(address));
        let mut put = |attribute: &str, allocations: &str| {
            let block = format!(
                r#"{{"cidr":"{cidr}","affinity":"host:a","allocations":{allocations},"unallocated":[],"attributes":[{attribute}]}}"#
            );
            let path = format!("/calico/ipam/v2/assignment/{key}");
            let applied = s.apply(&path, Some(block.as_bytes()), 9);
            assert_eq!(applied, caracal_model::Applied::Changed);
            let planned = plan(&s, &"a".into(), &PlanOptions::default());
            let routes = planned.config.originate.keys();
            let routes: Vec<_> = routes.map(ToString::to_string).collect();
            let problems = planned.problems.iter();
            let reasons: Vec<_> = problems.map(|p| p.reason.clone()).collect();
            (routes, reasons)
        };
        let pod = r#"{"handle_id":"x","secondary":{"node":"a","pod":"p"}}"#;
        let tunnel = r#"{"handle_id":"x","secondary":{"node":"a","type":"vxlanTunnelAddress"}}"#;
        let first = prefix(cidr).address();
        let (routes, reasons) = put(pod, "[0,null,null,null]");
        assert_eq!(routes, [cidr]);
        let begin =
            format!("{cidr} lies in no pool, and pods have addresses of it ({first} of p):");
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].starts_with(&begin), "{reasons:?}");
        for lost in [
            "encapsulation",
            "NAT",
            "ipipMode, vxlanMode and natOutgoing",
        ] {
            assert!(reasons[0].contains(lost), "{lost}: {reasons:?}");
        }
        // Three are named, and the rest is counted; a pod's namespace is said where it is known.
        let named = r#"{"handle_id":"x","secondary":{"node":"a","namespace":"n","pod":"p"}}"#;
        let (_, reasons) = put(named, "[0,0,0,0]");
        assert!(
            reasons[0].contains(&format!("({first} of n/p, ")),
            "{reasons:?}"
        );
        assert!(reasons[0].contains(" of n/p and 1 more):"), "{reasons:?}");
        // A tunnel's address and one that cools down are nobody's.
        let beside = format!("{pod},{tunnel}");
        let (_, reasons) = put(&beside, "[1,null,0,null]");
        let (_, last) = reasons[0].split_once("addresses of it (").unwrap();
        let third = prefix(cidr).nth(2).unwrap();
        assert!(last.starts_with(&format!("{third} of p):")), "{reasons:?}");
        assert_eq!(put(tunnel, "[0,null,null,null]"), (vec![], vec![]));
    }
}

#[test]
fn borrowed_addresses_of_workloads_are_announced() {
    let mut s = snapshot(&[THREE]);
    assign_block(&mut s, &"a".into(), prefix("10.244.0.0/30"));
    assign_block(&mut s, &"b".into(), prefix("10.244.0.4/30"));
    let block = |cidr: &str, owner: &str| {
        format!(
            r#"{{"cidr":"{cidr}","affinity":"host:{owner}","allocations":[0,1,2,3],"unallocated":[],"attributes":[
            {{"handle_id":"x","secondary":{{"node":"a","pod":"p"}}}},
            {{"handle_id":"y","secondary":{{"node":"a","type":"vxlanTunnelAddress"}}}},
            {{"handle_id":"z","secondary":{{"node":"b","pod":"q"}}}},
            {{"handle_id":"w","secondary":{{"node":"a"}},"releasedAt":"2026-01-05T10:11:12Z"}}]}}"#
        )
    };
    for (key, text) in [
        ("10.244.0.0-30", block("10.244.0.0/30", "a")),
        ("10.244.0.4-30", block("10.244.0.4/30", "b")),
    ] {
        let path = format!("/calico/ipam/v2/assignment/ipv4/block/{key}");
        assert_eq!(
            s.apply(&path, Some(text.as_bytes()), 9),
            caracal_model::Applied::Changed
        );
    }
    let announced = |node: &str| {
        let config = plan(&s, &node.into(), &PlanOptions::default()).config;
        config
            .originate
            .keys()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(announced("a"), ["10.244.0.0/30", "10.244.0.4/32"]);
    assert_eq!(announced("b"), ["10.244.0.2/32", "10.244.0.4/30"]);
    assert_eq!(announced("c"), [] as [&str; 0]);
}

#[test]
fn communities_and_priorities() {
    let settings = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  ipv4NormalRoutePriority: 2000
  communities: [{name: site, value: '64512:100'}, {name: big, value: '1:2:3'}]
  prefixAdvertisements:
  - {cidr: 10.244.0.0/16, communities: [site, '64512:50', site, nonsense]}
  - {cidr: 10.244.0.0/24, communities: [big]}
  - {cidr: banana, communities: [site]}
---
kind: BGPConfiguration
metadata: {name: node.b}
spec:
  communities: [{name: site, value: '64512:7'}]
  prefixAdvertisements: [{cidr: 10.244.0.0/16, communities: [site, big]}]
  nodeToNodeMeshEnabled: false
";
    let mut s = snapshot(&[THREE, settings]);
    assign_block(&mut s, &"a".into(), prefix("10.244.0.0/26"));
    assign_block(&mut s, &"b".into(), prefix("10.244.9.0/26"));
    let a = plan(&s, &"a".into(), &PlanOptions::default());
    let route = &a.config.originate[&prefix("10.244.0.0/26")];
    assert_eq!(route.local_pref, Some(2_147_483_647 - 2000));
    let shown: Vec<_> = route.communities.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["64512:50", "64512:100", "1:2:3"]);
    let reasons: Vec<_> = a.problems.iter().map(|p| p.reason.as_str()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|r| r.contains("\"nonsense\" is neither a community"))
    );
    assert!(
        reasons
            .iter()
            .any(|r| r.contains("\"banana\" is not a CIDR"))
    );
    let filter = &a.config.filters[announce::EXPORT_FILTER];
    assert_eq!(
        filter.terms[0].actions,
        [
            FilterAction::AddCommunity("64512:50".parse().unwrap()),
            FilterAction::AddCommunity("64512:100".parse().unwrap()),
        ]
    );
    assert_eq!(filter.terms[0].verdict, None);

    let b = plan(&s, &"b".into(), &PlanOptions::default());
    let route = &b.config.originate[&prefix("10.244.9.0/26")];
    let shown: Vec<_> = route.communities.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["64512:7", "1:2:3"]);
    assert_eq!(codes(&b), ["bgp.node_configuration"]);
    assert!(!b.config.peers.is_empty());
}

#[test]
fn both_families_have_sessions_of_their_own() {
    let dual = "
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64'}}
---
kind: Node
metadata: {name: b}
spec: {bgp: {ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64'}}
---
kind: Node
metadata: {name: c}
spec: {bgp: {ipv6Address: 'fd00::3/64'}}
---
kind: IPPool
metadata: {name: six}
spec: {cidr: 'fd00:10::/48'}
---
kind: BGPConfiguration
metadata: {name: default}
spec: {bindMode: NodeIP}
";
    let mut s = snapshot(&[dual]);
    assign_block(&mut s, &"a".into(), prefix("fd00:10::/122"));
    let a = plan(&s, &"a".into(), &PlanOptions::default());
    assert_eq!(
        names(&a.config),
        ["Mesh_10_0_0_2", "Mesh_fd00__2", "Mesh_fd00__3"]
    );
    assert_eq!(peer(&a.config, "Mesh_fd00__2").families, [Family::Ipv6]);
    assert_eq!(
        a.config.originate[&prefix("fd00:10::/122")].next_hop,
        Some("fd00::1".parse().unwrap())
    );
    assert_eq!(codes(&a), [""; 0]);
    let listen = a.config.listen.unwrap();
    let addresses = [listen.address, listen.second].map(|a| a.unwrap().to_string());
    assert_eq!(addresses, ["10.0.0.1", "fd00::1"]);
    let c = plan(&s, &"c".into(), &PlanOptions::default());
    assert_eq!(codes(&c), ["bgp.router_id"]);
    assert_eq!(c.config.router_id, router_id::hash(&"c".into()));
    assert_eq!(
        c.config.listen.unwrap().address,
        Some("fd00::3".parse().unwrap())
    );
}

#[test]
fn topo_2_what_is_wrong_is_named_and_the_rest_works() {
    let more = "
kind: Node
metadata: {name: twin}
spec: {bgp: {ipv4Address: 10.0.0.10/24, asNumber: 0}}
---
kind: BGPConfiguration
metadata: {name: default}
spec: {bindMode: Sometimes, nodeMeshMaxRestartTime: soon, asNumber: 0, serviceClusterIPs: [{cidr: 10.96.0.0/12}]}
";
    let a = planned("a", &[THREE, more]);
    assert_eq!(names(&a.config), ["Mesh_10_0_0_10", "Mesh_10_0_0_11"]);
    assert_eq!(a.config.local_as, Asn(64512));
    assert_eq!(
        codes(&a),
        [
            "bgp.as_number",
            "bgp.bind_mode",
            "bgp.restart_time",
            "node.as_number",
            "node.same_address"
        ]
    );
    let unknown = planned("nobody", &[THREE]);
    assert_eq!(codes(&unknown), ["node.missing"]);
    assert_eq!(names(&unknown.config), [] as [&str; 0]);
    let router = PlanOptions {
        router_id: "10.9.9.9".parse().unwrap(),
        ..PlanOptions::default()
    };
    let literal = plan(&snapshot(&[THREE]), &"a".into(), &router)
        .config
        .router_id;
    assert_eq!(literal.to_string(), "10.9.9.9");
}

#[test]
fn topo_4_a_mesh_without_its_password_does_not_come_up() {
    let text = "
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh}}}
";
    let s = snapshot(&[THREE, text]);
    let without = plan(&s, &"a".into(), &PlanOptions::default());
    assert_eq!(names(&without.config), [] as [&str; 0]);
    assert_eq!(codes(&without), ["bgp.password"]);
    let mut options = PlanOptions::default();
    let secret = SecretName {
        name: "bgp".into(),
        key: "mesh".into(),
    };
    options
        .secrets
        .insert(secret.clone(), Password("s3cret".into()));
    let with = plan(&s, &"a".into(), &options);
    assert_eq!(with.problems, []);
    let password = peer(&with.config, "Mesh_10_0_0_10").password.clone();
    assert_eq!(password, Some(Password("s3cret".into())));
    options.secrets.insert(secret, Password("x".repeat(81)));
    assert_eq!(codes(&plan(&s, &"a".into(), &options)), ["bgp.password"]);
}

#[test]
fn encapsulated_pools_as_a_foreign_daemon_must_know_them() {
    let pools = "
kind: IPPool
metadata: {name: v}
spec: {cidr: 10.246.0.0/16, vxlanMode: Always}
---
kind: IPPool
metadata: {name: i}
spec: {cidr: 10.245.0.0/16, ipipMode: CrossSubnet}
";
    let s = snapshot(&[THREE, pools]);
    let seen: Vec<_> = tunnels::tunnelled_pools(&s, &"a".into())
        .into_iter()
        .map(|p| (p.prefix, p.encap, p.direct_within))
        .collect();
    assert_eq!(
        seen,
        [
            (prefix("10.245.0.0/16"), "IPIP", Some(prefix("10.0.0.0/24"))),
            (prefix("10.246.0.0/16"), "VXLAN", None),
        ]
    );
}
