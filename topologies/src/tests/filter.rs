//! BGPFilter resources.

use super::cluster::{THREE, codes, config, planned};
use super::*;
use crate::filters::{Direction, function_name};

const PEER: &str = "
kind: BGPPeer
metadata: {name: tor}
spec: {peerIP: 10.1.0.1, asNumber: 65100, filters: [f, missing]}
";

#[test]
fn every_part_of_a_rule() {
    let text = "
kind: BGPFilter
metadata: {name: f}
spec:
  exportV4:
  - {cidr: 10.244.0.0/16, matchOperator: In, prefixLength: {min: 8, max: 26}, action: Accept,
     operations: [{addCommunity: {value: '65000:1'}}, {prependASPath: {prefix: [65001, 65002]}}, {setPriority: {value: 512}}]}
  - {cidr: 10.0.0.0/8, matchOperator: NotEqual, source: RemotePeers, interface: 'cali*', peerType: eBGP,
     communities: {values: ['1:2:3']}, asPathPrefix: [65003, 65004], priority: 1024, action: Reject}
  - {action: Accept}
  importV6:
  - {cidr: 'fd00::/16', matchOperator: NotIn, action: Reject}
";
    let a = planned("a", &[THREE, PEER, text]);
    assert_eq!(codes(&a), ["bgp.filter_missing"]);
    let peer = &a.config.peers[&PeerName::from("Global_10_1_0_1")];
    assert_eq!(
        peer.export,
        ["bgp_f_exportFilterV4", announce::EXPORT_FILTER]
    );
    // The only import list is for the other family.
    assert_eq!(peer.import, [] as [&str; 0]);
    assert_eq!(
        a.config.filters.keys().collect::<Vec<_>>(),
        ["bgp_f_exportFilterV4", announce::EXPORT_FILTER]
    );
    let terms = &a.config.filters["bgp_f_exportFilterV4"].terms;
    assert_eq!(
        format!("{:?}", terms[0]),
        "FilterTerm { conditions: [Prefix { patterns: [PrefixPattern { prefix: 10.244.0.0/16, min: 16, max: 26 }], negated: false }], \
         actions: [AddCommunity(Standard(65000:1)), PrependAsPath([AS65001, AS65002]), SetLocalPref(2147483135)], verdict: Some(Accept) }"
    );
    assert_eq!(terms[1].verdict, Some(FilterVerdict::Reject));
    assert_eq!(
        terms[1].conditions[0],
        FilterCondition::PeerKind(PeerKind::External)
    );
    assert_eq!(
        format!("{:?}", &terms[1].conditions[1..]),
        "[Prefix { patterns: [PrefixPattern { prefix: 10.0.0.0/8, min: 8, max: 8 }], negated: true }, Source(Bgp), \
         Interface(\"cali*\"), Community(Large(1:2:3)), AsPathPrefix([AS65003, AS65004]), LocalPref(2147482623)]"
    );
    assert_eq!(terms[2].conditions, []);
}

#[test]
fn a_rule_that_cannot_be_understood_refuses_all() {
    for (rule, reason) in [
        (
            "{action: Maybe}",
            "action \"Maybe\" is not Accept or Reject",
        ),
        (
            "{cidr: 10.0.0.0/8, action: Accept}",
            "cidr and matchOperator go together",
        ),
        (
            "{cidr: 'fd00::/8', matchOperator: In, action: Accept}",
            "of the other address family",
        ),
        (
            "{cidr: 10.0.0.0/8, matchOperator: Near, action: Accept}",
            "matchOperator \"Near\"",
        ),
        (
            "{cidr: 10.0.0.0/24, matchOperator: In, prefixLength: {max: 16}, action: Accept}",
            "holds no length",
        ),
        (
            "{communities: {values: ['70000:1']}, action: Accept}",
            "is not a community",
        ),
        (
            "{priority: 4000000000, action: Accept}",
            "exceeds 2147483647",
        ),
        (
            "{action: Reject, operations: [{setPriority: {value: 1}}]}",
            "with the action Accept only",
        ),
        (
            "{action: Accept, operations: [{}]}",
            "an operation is exactly one of",
        ),
        ("{peerType: both, action: Accept}", "peerType \"both\""),
    ] {
        let text = format!(
            "kind: BGPFilter\nmetadata: {{name: f}}\nspec: {{importV4: [{{action: Accept}}, {rule}]}}"
        );
        let one = PEER.replace(", missing", "");
        let a = planned("a", &[THREE, &one, &text]);
        assert_eq!(codes(&a), ["bgp.filter"], "{rule}");
        let problem = &a.problems[0];
        assert!(problem.reason.contains(reason), "{}", problem.reason);
        assert!(
            problem.reason.starts_with("spec.importV4[1]: "),
            "{}",
            problem.reason
        );
        let terms = &a.config.filters["bgp_f_importFilterV4"].terms;
        assert_eq!(terms.len(), 1);
        assert_eq!(terms[0].verdict, Some(FilterVerdict::Reject));
    }
}

#[test]
fn long_names_are_cut_and_hashed() {
    let long = "a".repeat(46);
    let name = function_name(&long, Direction::Import, Family::Ipv4);
    assert_eq!(name.len(), "bgp_".len() + 45 + "_importFilterV4".len());
    assert!(
        name.starts_with(&format!("bgp_{}_", "a".repeat(28))),
        "{name}"
    );
    let exact = function_name(&"a".repeat(45), Direction::Export, Family::Ipv6);
    assert_eq!(exact, format!("bgp_{}_exportFilterV6", "a".repeat(45)));
}

#[test]
fn filters_that_nobody_names_are_not_part_of_the_plan() {
    let text = "kind: BGPFilter\nmetadata: {name: unused}\nspec: {importV4: [{action: Nonsense}]}";
    let a = config("a", &[THREE, text]);
    assert_eq!(a.filters.len(), 1);
}

/// A filter that cannot be understood must pass nothing in either direction: routes that its writer
/// wanted to keep in would get out.
#[test]
fn a_filter_with_a_field_that_does_not_exist_refuses_every_route() {
    for spec in [
        "{exportV4: [{cdir: 10.244.0.0/16, matchOperator: In, action: Reject}, {action: Accept}]}",
        "{exprotV4: [{action: Reject}]}",
        "{exportV4: [{cidr: 10.244.0.0/16, matchOperator: In, prefixLength: {mx: 26}, action: Accept}]}",
        "{importV4: [{action: Accept, operations: [{addComunity: {value: '1:1'}}]}]}",
        // Does not parse at all.
        "{exportV4: [{cidr: 10.244.0.0/99, matchOperator: In, action: Accept}]}",
    ] {
        let text = format!("kind: BGPFilter\nmetadata: {{name: f}}\nspec: {spec}\n");
        let mut snapshot = super::cluster::snapshot(&[THREE, PEER]);
        let _told = resources_from_yaml(&text).unwrap().apply(&mut snapshot);
        let a = plan(&snapshot, &"a".into(), &PlanOptions::default());
        let peer = &a.config.peers[&PeerName::from("Global_10_1_0_1")];
        for function in [&peer.import[0], &peer.export[0]] {
            let terms = &a.config.filters[function].terms;
            assert_eq!(terms.len(), 1, "{spec}");
            assert_eq!(terms[0].verdict, Some(FilterVerdict::Reject), "{spec}");
            assert_eq!(terms[0].conditions, [], "{spec}");
        }
        assert_eq!(codes(&a), ["bgp.filter_missing"], "{spec}");
    }
}

/// It is named with the field, and with the name that was meant.
#[test]
fn unknown_fields_of_a_file_are_named_with_the_nearest_known_name() {
    let text = "kind: BGPFilter\nmetadata: {name: f}\nspec: {exportV4: [{cdir: 10.244.0.0/16, action: Reject}]}";
    let mut snapshot = Snapshot::default();
    let problems = resources_from_yaml(text).unwrap().apply(&mut snapshot);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].code, "datastore.unknown_field");
    let reason = "line 1: spec.exportV4[0].cdir: a BGPFilter has no such field; did you mean cidr? The filter refuses every route until it is corrected";
    assert_eq!(problems[0].reason, reason);
}
