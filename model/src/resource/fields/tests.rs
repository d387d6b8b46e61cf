#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use serde_json::json;

use super::*;

/// Kinds with a table, in the order of the page.
const KINDS: [Kind; 10] = [
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
    Kind::IpPool,
    Kind::IpReservation,
    Kind::Node,
    Kind::WorkloadEndpoint,
    Kind::FelixConfiguration,
    Kind::ClusterInformation,
    Kind::IpamConfiguration,
];

fn rows(fields: &[FieldEntry]) -> String {
    let mut text = String::from("| field | here | |\n|---|---|---|\n");
    for (path, effect) in fields {
        let path = path.trim_start_matches("spec.");
        let _ = match effect {
            FieldEffect::Honoured => writeln!(text, "| `{path}` | honoured | |"),
            FieldEffect::Without([], reason) => {
                writeln!(text, "| `{path}` | **not honoured**, named | {reason} |")
            }
            FieldEffect::Without(harmless, reason) => writeln!(
                text,
                "| `{path}` | **not honoured**, named unless {} | {reason} |",
                harmless
                    .iter()
                    .map(|h| format!("`{h}`"))
                    .collect::<Vec<_>>()
                    .join(" or ")
            ),
            FieldEffect::NotApplicable(what) => {
                writeln!(text, "| `{path}` | not applicable | {what} |")
            }
        };
    }
    text
}

/// The tables of the page, and nothing else in them.
#[test]
fn the_page_of_resources_shows_these_tables() {
    let mut wanted = String::new();
    for kind in KINDS {
        let _ = write!(wanted, "## {kind}\n\n{}\n", rows(fields_of(kind).unwrap()));
    }
    let _ = write!(wanted, "## /calico/ipam/v2/config\n\n{}", rows(IPAM_CONFIG));
    let page = include_str!("../../../../docs/resources.md");
    let tables = page.find("## BGPConfiguration").map(|at| &page[at..]);
    assert!(
        tables == Some(wanted.as_str()),
        "docs/resources.md differs from the tables in the code; from `## BGPConfiguration` on it has to be:\n{wanted}"
    );
}

#[test]
fn every_kind_that_is_read_has_a_table() {
    let without = Kind::ALL
        .into_iter()
        .filter(|kind| fields_of(*kind).is_none());
    let without: Vec<_> = without.collect();
    let of_others = Kind::ALL.into_iter().filter(|kind| kind.is_of_others());
    assert_eq!(without, of_others.collect::<Vec<_>>());
    for kind in KINDS {
        let fields = fields_of(kind).unwrap();
        for (index, (path, effect)) in fields.iter().enumerate() {
            assert!(path.starts_with("spec."), "{path}");
            let twice = fields[index + 1..].iter().any(|(other, _)| other == path);
            assert!(!twice, "{kind} {path} twice");
            let (FieldEffect::Without(_, reason) | FieldEffect::NotApplicable(reason)) = effect
            else {
                continue;
            };
            assert!(!reason.is_empty(), "{kind} {path}");
        }
    }
}

/// Every field that the types read is in the tables as honoured: a field with a value of every
/// type's own serialises under its name.
#[test]
fn every_field_of_the_types_is_in_its_table() {
    let specs = [
        (
            Kind::IpPool,
            json!({"cidr":"10.0.0.0/16","ipipMode":"Never","vxlanMode":"Never","natOutgoing":true,"blockSize":26,
            "disabled":true,"disableBGPExport":true,"nodeSelector":"all()","namespaceSelector":"all()","allowedUses":["Workload"],
            "assignmentMode":"Manual"}),
        ),
        (
            Kind::IpReservation,
            json!({"reservedCIDRs":["10.0.0.0/30"]}),
        ),
    ];
    for (kind, spec) in specs {
        let value = json!({"metadata": {"name": "x"}, "spec": spec});
        assert_eq!(notes(kind, &value), [], "{kind}");
        for name in value["spec"].as_object().unwrap().keys() {
            let path = format!("spec.{name}");
            let field = fields_of(kind)
                .unwrap()
                .iter()
                .find(|(known, _)| *known == path);
            assert_eq!(
                field.map(|(_, e)| *e),
                Some(FieldEffect::Honoured),
                "{path}"
            );
        }
    }
}

fn note_texts(kind: Kind, resource: &Value) -> Vec<String> {
    let notes = notes(kind, resource);
    notes.iter().map(|n| n.text(kind.as_str())).collect()
}

#[test]
fn an_unknown_field_is_named_with_the_nearest_known_name() {
    let spec = |spec: Value| json!({"kind": "x", "metadata": {"name": "x", "labels": {"any": "1"}}, "spec": spec});
    for (kind, value, said) in [
        (
            Kind::IpPool,
            spec(json!({"cidr": "10.0.0.0/16", "nodeSelecter": "all()"})),
            "spec.nodeSelecter: an IPPool has no such field; did you mean nodeSelector? It has no effect",
        ),
        (
            Kind::IpPool,
            spec(json!({"ipipmode": "Always"})),
            "spec.ipipmode: an IPPool has no such field; did you mean ipipMode? It has no effect",
        ),
        (
            Kind::BgpPeer,
            spec(json!({"password": {"secretKeyRef": {"nam": "x"}}})),
            "spec.password.secretKeyRef.nam: a BGPPeer has no such field; did you mean name? It has no effect",
        ),
        (
            Kind::BgpFilter,
            spec(
                json!({"exportV4": [{"action": "Accept"}, {"cidr": "10.0.0.0/8", "prefixLength": {"mim": 9}}]}),
            ),
            "spec.exportV4[1].prefixLength.mim: a BGPFilter has no such field; did you mean min? The filter refuses every route until it is corrected",
        ),
        (
            Kind::BgpConfiguration,
            spec(json!({"colour": "blue"})),
            "spec.colour: a BGPConfiguration has no field of this name. It has no effect",
        ),
        (
            Kind::Node,
            json!({"kind": "Node", "metadata": {"name": "a"}, "sepc": {"bgp": {}}}),
            "sepc: a Node has no such field; did you mean spec? It has no effect",
        ),
        (
            Kind::Node,
            json!({"metadata": {"name": "a", "lables": {"rack": "1"}, "managedFields": [{"any": 1}]}, "spec": {}}),
            "metadata.lables: a Node has no such field; did you mean labels? It has no effect",
        ),
        (
            Kind::BgpFilter,
            json!({"metadata": {"name": "a", "anotations": {}}, "spec": {}}),
            "metadata.anotations: a BGPFilter has no such field; did you mean annotations? It has no effect",
        ),
    ] {
        assert_eq!(note_texts(kind, &value), [said]);
    }
}

#[test]
fn known_fields_without_effect_are_told_apart_from_mistakes() {
    let endpoint = json!({"spec": {"ipNATs": [{"internalIP": "10.0.0.1", "externalIP": "192.0.2.1"}], "ports": [{"port": 1}],
        "qosControls": {"ingressBandwidth": 1}, "serviceAccountName": "x"}});
    let texts = note_texts(Kind::WorkloadEndpoint, &endpoint);
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].starts_with("spec.ipNATs [{"), "{texts:?}");
    assert!(texts[1].contains("has no effect: bandwidth"), "{texts:?}");
    // Calico's default, or what is done anyway, is worth no word.
    let harmless = json!({"spec": {"ipv4ElevatedRoutePriority": 512, "nodeMeshPassword": {"secretKeyRef": {"optional": false}}}});
    assert_eq!(note_texts(Kind::BgpConfiguration, &harmless), [""; 0]);
    let other = json!({"spec": {"ipv4ElevatedRoutePriority": 100}});
    assert_eq!(
        note_texts(Kind::BgpConfiguration, &other),
        ["spec.ipv4ElevatedRoutePriority 100 has no effect: there is no live migration"]
    );
    // Of several FelixConfigurations one counts: who resolves them tells.
    let felix = json!({"spec": {"bpfEnabled": true, "bpfEnable": true}});
    assert_eq!(
        note_texts(Kind::FelixConfiguration, &felix),
        [
            "spec.bpfEnable: a FelixConfiguration has no such field; did you mean bpfEnabled? It has no effect"
        ]
    );
}

#[test]
fn the_nearest_name_is_near() {
    let near = |name| nearest(FELIX_FIELDS, "spec.", name);
    assert_eq!(near("vxlanMtu").as_deref(), Some("vxlanMTU"));
    assert_eq!(near("interfacePrefxi").as_deref(), Some("interfacePrefix"));
    assert_eq!(near("completelyDifferent"), None);
    assert_eq!(
        nearest(fields_of(Kind::IpPool).unwrap(), "spec.", "cdir").as_deref(),
        Some("cidr")
    );
    assert_eq!(
        nearest(fields_of(Kind::IpPool).unwrap(), "spec.", "abcd"),
        None
    );
}

/// One problem for all endpoints with the same field: there may be 100,000s of them.
#[test]
fn fields_of_endpoints_are_counted() {
    use crate::keys::Key;
    use crate::snapshot::Snapshot;

    let mut snapshot = Snapshot::default();
    let key = |n: u32| {
        Key::Resource {
            kind: Kind::WorkloadEndpoint,
            namespace: Some("default".to_owned()),
            name: format!("w{n}"),
        }
        .to_path()
    };
    let value = |spec: &str| format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec}}}"#).into_bytes();
    for n in 1..=3 {
        let spec = value(r#"{"node":"a","qosControls":{"ingressBandwidth":1},"interfaceNam":"x"}"#);
        snapshot.apply(&key(n), Some(&spec), 1);
    }
    let problems = snapshot.problems();
    let codes: Vec<_> = problems.iter().map(|p| p.code.as_str()).collect();
    let both = ["datastore.unknown_field", "datastore.field_without_effect"];
    assert_eq!(codes, both);
    assert!(problems.iter().all(|p| p.subject == key(1)), "{problems:?}");
    assert!(
        problems[1]
            .reason
            .ends_with("(3 WorkloadEndpoints have it; this is the first)")
    );
    // Corrected and deleted values are forgotten.
    snapshot.apply(&key(1), Some(&value(r#"{"node":"a"}"#)), 2);
    snapshot.apply(&key(2), None, 3);
    assert_eq!(snapshot.problems()[0].subject, key(3));
    snapshot.apply(&key(3), None, 4);
    assert_eq!(snapshot.problems(), []);
    assert!(snapshot.notes.is_empty());
}

/// A newer Calico writes fields by itself; what resembles a field that is known is a mistake.
#[test]
fn a_field_like_none_that_is_known_is_for_who_types_and_who_examines() {
    use crate::keys::Key;
    use crate::snapshot::Snapshot;

    for (kind, spec, told) in [
        (Kind::FelixConfiguration, r#"{"bpfQuantumTunnel":true}"#, 0),
        (Kind::FelixConfiguration, r#"{"vxlanMTUU":1400}"#, 1),
        (Kind::IpPool, r#"{"cidr":"10.0.0.0/16","quantum":true}"#, 0),
        // By this one everything is refused.
        (
            Kind::BgpFilter,
            r#"{"exportV4":[{"action":"Accept","quantum":"x"}]}"#,
            1,
        ),
    ] {
        let mut snapshot = Snapshot::default();
        let path = Key::resource(kind, "default").to_path();
        let value = format!(r#"{{"metadata":{{"name":"default"}},"spec":{spec}}}"#);
        snapshot.apply(&path, Some(value.as_bytes()), 1);
        let (problems, foreign) = (snapshot.problems(), snapshot.foreign_fields());
        assert_eq!(
            (problems.len(), foreign.len()),
            (told, 1 - told),
            "{spec}: {problems:?}"
        );
        let all = problems.iter().chain(&foreign);
        assert!(
            all.clone().all(|p| p.code == "datastore.unknown_field"),
            "{spec}"
        );
    }
}

/// Resources of which nothing else is read are held against their tables too.
#[test]
fn settings_of_the_cluster_are_held_against_their_tables() {
    use crate::keys::Key;
    use crate::snapshot::Snapshot;

    let mut snapshot = Snapshot::default();
    for (kind, wrong, hint) in [
        (Kind::ClusterInformation, "clusterGuid", "clusterGUID"),
        (Kind::IpamConfiguration, "strictAfinity", "strictAffinity"),
    ] {
        let path = Key::resource(kind, "default").to_path();
        let good = format!(r#"{{"metadata":{{"name":"default"}},"spec":{{"{hint}":"x"}}}}"#);
        let applied = snapshot.apply(&path, Some(good.as_bytes()), 1);
        assert_eq!(
            (applied, snapshot.problems()),
            (crate::snapshot::Applied::Changed, vec![])
        );
        snapshot.apply(&path, Some(good.replace(hint, wrong).as_bytes()), 2);
        let problems = snapshot.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].code, "datastore.unknown_field");
        assert!(
            problems[0]
                .reason
                .contains(&format!("did you mean {hint}?"))
        );
        snapshot.apply(&path, Some(b"nonsense"), 3);
        assert!(snapshot.invalid.contains_key(&path));
        snapshot.apply(&path, None, 4);
        assert_eq!(snapshot.problems(), []);
    }
}

/// A value that does not parse keeps the last good one, and what there is to know about that.
#[test]
fn notes_follow_the_value_in_use() {
    use crate::keys::Key;
    use crate::snapshot::Snapshot;

    let mut snapshot = Snapshot::default();
    let path = Key::resource(Kind::IpPool, "p").to_path();
    let mut put = |spec: &str| {
        let text = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
        snapshot.apply(&path, Some(text.as_bytes()), 1);
        snapshot
            .problems()
            .into_iter()
            .map(|p| p.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        put(r#"{"cidr":"10.0.0.0/16","natoutgoing":true}"#),
        ["datastore.unknown_field"]
    );
    let both = ["datastore.invalid_value", "datastore.unknown_field"];
    assert_eq!(put(r#"{"cidr":"nonsense"}"#), both);
    assert_eq!(put(r#"{"cidr":"10.0.0.0/16","natOutgoing":true}"#), [""; 0]);
}
