#![allow(clippy::unwrap_used)]
use caracal_model::{KeyRange, KeyValue};

use super::*;
use crate::step::Reading;

fn view_of(entries: &[(&str, &str)]) -> IpamData {
    let pool = (
        "/calico/resources/v3/projectcalico.org/ippools/p",
        r#"{"metadata":{"name":"p"},"spec":{"cidr":"10.0.0.0/24"}}"#,
    );
    let list = entries.iter().chain([&pool]).map(|(key, value)| KeyValue {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
        mod_revision: 1,
    });
    let mut view = IpamData::default();
    let reading = Reading {
        revision: 1,
        ranges: vec![list.collect()],
    };
    view.absorb(&[KeyRange::Prefix("/calico/".into())], reading);
    view
}

fn sentences(entries: &[(&str, &str)]) -> Vec<String> {
    let findings = check(&view_of(entries), Timestamp::from_nanos(0));
    findings.iter().map(ToString::to_string).collect()
}

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";
const AFFINITY: &str = "/calico/ipam/v2/host/node-a/ipv4/block/10.0.0.0-30";
const OF_A: &str = r#"{"cidr":"10.0.0.0/30","affinity":"host:node-a","allocations":[0,null,null,null],
    "unallocated":[1,2,3],"attributes":[{"handle_id":"h","secondary":{"node":"node-a"}}]}"#;
const HANDLE: (&str, &str) = ("/calico/ipam/v2/handle/h", r#"{"block":{"10.0.0.0/30":1}}"#);

#[test]
fn sound_data_has_no_findings() {
    assert!(sentences(&[]).is_empty());
    assert!(sentences(&[(BLOCK, OF_A), (AFFINITY, ""), HANDLE]).is_empty());
}

#[test]
fn ipam_1_queues_and_overlaps() {
    let broken = r#"{"cidr":"10.0.0.0/30","affinity":"host:node-a","allocations":[0,null,null,null],
        "unallocated":[0,1,1],"attributes":[{"handle_id":"h","secondary":{"node":"node-a"}},{}]}"#;
    assert_eq!(
        sentences(&[(BLOCK, broken), (AFFINITY, ""), HANDLE]),
        [
            "block 10.0.0.0/30: 10.0.0.0 is allocated and free at the same time",
            "block 10.0.0.0/30: 10.0.0.1 is queued as free twice",
            "block 10.0.0.0/30: 10.0.0.2 is neither allocated nor free",
            "block 10.0.0.0/30: 10.0.0.3 is neither allocated nor free",
            "block 10.0.0.0/30: no allocation refers to attribute 1",
        ]
    );
    let inner = r#"{"cidr":"10.0.0.2/31","affinity":"host:node-b","allocations":[null,null],"unallocated":[0,1]}"#;
    let found = sentences(&[
        (BLOCK, OF_A),
        (AFFINITY, ""),
        HANDLE,
        ("/calico/ipam/v2/assignment/ipv4/block/10.0.0.2-31", inner),
        ("/calico/ipam/v2/host/node-b/ipv4/block/10.0.0.2-31", ""),
    ]);
    assert_eq!(
        found,
        ["blocks 10.0.0.0/30 and 10.0.0.2/31 share addresses"]
    );
}

#[test]
fn ipam_2_counts() {
    assert_eq!(
        sentences(&[(BLOCK, OF_A), (AFFINITY, "")]),
        ["block 10.0.0.0/30 holds 1 for handle h, which does not count them"]
    );
    let two = (HANDLE.0, r#"{"block":{"10.0.0.0/30":2,"10.0.0.4/30":1}}"#);
    assert_eq!(
        sentences(&[(BLOCK, OF_A), (AFFINITY, ""), two]),
        [
            "handle h counts 2 in block 10.0.0.0/30, which holds 1 for it",
            "handle h counts 1 in block 10.0.0.4/30, which holds 0 for it",
        ]
    );
}

#[test]
fn ipam_3_4_7_owners() {
    let b = "/calico/ipam/v2/host/node-b/ipv4/block/10.0.0.0-30";
    assert_eq!(
        sentences(&[(BLOCK, OF_A), (AFFINITY, ""), (b, ""), HANDLE]),
        ["host:node-b has an affinity to block 10.0.0.0/30, which names host:node-a"]
    );
    assert_eq!(
        sentences(&[(BLOCK, OF_A), HANDLE]),
        ["block 10.0.0.0/30 names host:node-a, which has no affinity to it"]
    );
    assert_eq!(
        sentences(&[(AFFINITY, r#"{"state":"confirmed"}"#)]),
        ["host:node-a has an affinity to block 10.0.0.0/30, which does not exist or names nobody"]
    );
    let nobodys = r#"{"cidr":"10.0.0.0/30","affinity":null,"allocations":[null,null,null,null],
        "unallocated":[0,1,2,3],"attributes":null}"#;
    assert_eq!(
        sentences(&[(BLOCK, nobodys)]),
        ["block 10.0.0.0/30 is empty and belongs to nobody"]
    );
    let found = check(
        &view_of(&[(AFFINITY, r#"{"state":"pending"}"#)]),
        Timestamp::from_nanos(0),
    );
    assert_eq!(found.len(), 1);
    assert!(!found[0].is_fault());
}

#[test]
fn the_rest() {
    let odd = r#"{"cidr":"10.9.0.0/30","affinity":"host:node-a","allocations":[0,1,null,null],
        "unallocated":[2,3],"attributes":[{},{"releasedAt":"2026-01-05T10:12:00Z"}]}"#;
    assert_eq!(
        sentences(&[
            ("/calico/ipam/v2/assignment/ipv4/block/10.9.0.0-30", odd),
            ("/calico/ipam/v2/host/node-a/ipv4/block/10.9.0.0-30", ""),
            ("/calico/ipam/v2/handle/x", "[]"),
        ]),
        [
            "/calico/ipam/v2/handle/x does not parse: invalid type: sequence, expected struct IpamHandle at line 1 \
             column 0"
                .to_owned(),
            "block 10.9.0.0/30: 10.9.0.1 cools down since \"2026-01-05T10:12:00Z\", which is no time in the past"
                .to_owned(),
            "block 10.9.0.0/30: 10.9.0.0 is held without naming a node, so it gets no route".to_owned(),
            "block 10.9.0.0/30 is in no IP pool".to_owned(),
        ]
    );
}
