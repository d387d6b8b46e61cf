//! Objects of IPAM whose `spec` does not say what they are of.

use super::*;

/// It is what its name says, with a value that nobody can read: what hangs on it stays.
#[test]
fn an_object_without_what_names_it_goes_by_its_name() {
    let of = |collection, name: &str, spec: Value| {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let found = values(collection, &object, ApiGroup::V1);
        found.map(|mut found| {
            let (key, value) = found.remove(0);
            (key.to_path(), value)
        })
    };
    let missing = |field| json!(format!("spec.{field} is missing"));
    let wrong = |field: &str, text: &str| json!(format!("spec.{field} cannot be read: {text:?}"));
    let v6 = "/calico/ipam/v2/assignment/ipv6/block/fd00:10:244::7:8d15:9040-122";
    let long = "fd00-10-244--7-8d15-9040-122";
    for (collection, name, spec, key, value) in [
        (
            BLOCKS,
            "10-244-3-64-26",
            json!({"cidr": "10.0.0.0/99"}),
            BLOCK,
            wrong("cidr", "10.0.0.0/99"),
        ),
        (BLOCKS, long, json!({}), v6, missing("cidr")),
        (
            AFFINITIES,
            "node-1-10-244-3-64-26",
            json!({"node": "node-1", "cidr": "all"}),
            AFFINITY,
            wrong("cidr", "all"),
        ),
        (
            AFFINITIES,
            "node-1-10-244-3-64-26",
            json!({"cidr": "10.244.3.64/26", "state": "confirmed"}),
            AFFINITY,
            missing("node"),
        ),
        (
            AFFINITIES,
            "x",
            json!({"node": "node-1", "cidr": "10.244.3.64/26", "type": "y"}),
            AFFINITY,
            wrong("type", "y"),
        ),
        (
            HANDLES,
            "h",
            json!({"block": {}}),
            "/calico/ipam/v2/handle/h",
            missing("handleID"),
        ),
    ] {
        let found = of(collection, name, spec);
        assert_eq!(found, Ok((key.to_owned(), value)), "{name}");
    }
    // A name that says nothing either.
    for name in ["x", "10-244-3-64-99", "node-1"] {
        let said = of(BLOCKS, name, json!({})).unwrap_err();
        assert_eq!(said, MappingError::Missing("cidr"), "{name}");
        assert!(of(AFFINITIES, name, json!({})).is_err(), "{name}");
    }
}
