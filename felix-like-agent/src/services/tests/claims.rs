//! Several Services with one address.

use super::*;

/// A cluster address before external ones and these before node ports, then the older Service: a
/// newcomer takes nothing.
#[test]
fn of_several_services_with_one_address_kind_and_age_decide() {
    let of = |name: &str, created: &str, uid: &str, spec: Value| {
        let mut document = service(spec);
        let mut metadata = json!({"name": name, "namespace": "shop", "uid": uid});
        if !created.is_empty() {
            metadata["creationTimestamp"] = json!(created);
        }
        document["metadata"] = metadata;
        document
    };
    let cluster = || json!({"clusterIP": "192.0.2.1", "clusterIPs": ["192.0.2.1"]});
    let external = || json!({"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.11"], "externalIPs": ["192.0.2.1"]});
    let node_port = || json!({"clusterIP": "10.96.0.12", "clusterIPs": ["10.96.0.12"], "type": "NodePort", "ports": [{"port": 1, "nodePort": 30080}]});
    let here = || json!({"clusterIP": "10.96.0.13", "clusterIPs": ["10.96.0.13"], "externalIPs": ["10.0.0.1"], "ports": [{"port": 30080}]});
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z");
    for (has, loses) in [
        (
            of("zz", new, "z", cluster()),
            of("aa", old, "a", external()),
        ),
        (of("zz", new, "z", here()), of("aa", old, "a", node_port())),
        (
            of("zz", old, "z", external()),
            of("aa", new, "a", external()),
        ),
        (
            of("zz", old, "a", external()),
            of("aa", old, "b", external()),
        ),
        (
            of("zz", new, "z", external()),
            of("aa", "", "a", external()),
        ),
        (
            of("zz", new, "z", external()),
            of("aa", "yesterday", "a", external()),
        ),
    ] {
        let documents = [loses.clone(), has.clone()];
        let (mut table, mut kernel) = table(&documents[1..]);
        let change = table.follow(&snapshot(&documents), &own()).unwrap();
        kernel.run(&change);
        for address in ["192.0.2.1", "10.0.0.1"] {
            let all = table.entries();
            let found = all.iter().find(|(at, _)| at.address.to_string() == address);
            assert!(
                found.is_none_or(|(_, entry)| entry.service == "shop/zz"),
                "{documents:?}"
            );
        }
        let mut problems = table.problems();
        problems.retain(|p| !p.subject.contains(" 10.96."));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].code, "services.conflict");
        let reason = &problems[0].reason;
        assert!(
            reason.starts_with("shop/zz (") && reason.contains("; shop/aa ("),
            "{reason}"
        );
        let (_, anew) = self::table(&documents);
        assert_eq!(kernel.content(), anew.content());
    }
}

#[test]
fn two_services_with_one_address_are_a_problem_and_the_first_has_it() {
    let mut second = service(json!({}));
    second["metadata"]["name"] = json!("zzz");
    let (mut table, mut kernel) = table(&[service(json!({})), second.clone()]);
    let owners: BTreeSet<_> = table
        .entries()
        .values()
        .map(|e| e.service.clone())
        .collect();
    assert_eq!(owners, ["shop/web".to_owned()].into());
    assert_eq!(table.problems()[0].code, "services.conflict");
    let change = table.follow(&snapshot(&[second]), &own()).unwrap();
    kernel.run(&change);
    let owners: BTreeSet<_> = table
        .entries()
        .values()
        .map(|e| e.service.clone())
        .collect();
    assert_eq!(owners, ["shop/zzz".to_owned()].into());
    assert_eq!(table.problems(), []);
}
