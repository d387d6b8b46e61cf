#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const PEM: &str =
    "-----BEGIN PRIVATE KEY-----\nTHEKEY+abc/def=\nTHEKEY==\n-----END PRIVATE KEY-----";

fn redaction() -> Redaction {
    let variables = [
        ("ETCD_PASSWORD", "THEKNOWN\"one"),
        ("ETCD_KEY_FILE", "/etc/etcd/key.pem"),
        ("CARACAL_SHORT_TOKEN", "ab"),
    ];
    Redaction::new(&variables.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[test]
fn secrets_in_texts_are_removed() {
    let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJUSEVKV1QifQ.c2lnbmF0dXJlVEhFSldU";
    let texts = [
        format!("a key {PEM} and more"),
        format!("{{\"key\":{}}}", json!(PEM)),
        "THEKEY+abc/=\nTHEKEY\n-----END CERTIFICATE-----\nrest".to_owned(),
        "-----BEGIN CERTIFICATE-----\nTHEKEY\nTHEKEY".to_owned(),
        "connected with THEKNOWN\"one and THEKNOWN\\\"one".to_owned(),
        "ETCD_PASSWORD=THEPASS next".to_owned(),
        "password: THEPASS".to_owned(),
        "password \"THE PASS\";".to_owned(),
        r#"{"neighborPassword": "THE \" PASS", "x": 1}"#.to_owned(),
        "K8S_API_TOKEN=THEPASS".to_owned(),
        "client-key-data: THEPASS==".to_owned(),
        "Authorization: Bearer THEPASS123".to_owned(),
        "curl with bearer THEPASS123".to_owned(),
        format!("header {jwt}"),
        "https://user:THEPASS@etcd.example:2379/x".to_owned(),
    ];
    for text in texts {
        let clean = redaction().text(&text);
        for part in ["THEKEY", "THEKNOWN", "THE ", "PASS", "c2lnbmF0", "eyJ"] {
            assert!(
                !clean.replace("PASSWORD", "").contains(part),
                "{text} → {clean}"
            );
        }
        assert!(clean.contains(REMOVED), "{text} → {clean}");
    }
}

#[test]
fn what_is_no_secret_stays() {
    let texts = [
        r#"{"code":"bgp.password","subject":"peer"}"#,
        "the password of peer node2 is missing",
        "10.0.0.0/26 via 10.0.0.2 dev eth0 proto 80",
        "https://10.0.0.1:2379,https://10.0.0.2:2379",
        "key /calico/resources/v3/projectcalico.org/nodes/a",
    ];
    for text in texts {
        assert_eq!(redaction().text(text), text);
    }
    assert_eq!(
        redaction().variable("ETCD_KEY_FILE", "/etc/etcd/key.pem"),
        "ETCD_KEY_FILE=/etc/etcd/key.pem"
    );
}

#[test]
fn values_keep_their_shape() {
    let mut value = json!({
        "spec": {"password": {"secretKeyRef": {"name": "bgp", "key": "n1"}}, "token": "THEPASS"},
        "list": [{"note": "password=THEPASS"}],
        "problems": {"bgp.password": 2},
    });
    redaction().value(&mut value);
    assert_eq!(
        value,
        json!({
            "spec": {"password": {"secretKeyRef": {"name": "bgp", "key": "n1"}}, "token": REMOVED},
            "list": [{"note": "password=(removed)"}],
            "problems": {"bgp.password": 2},
        })
    );
}

#[test]
fn settings_keep_their_names() {
    let text =
        format!("# etcd\nETCD_ENDPOINTS=https://a:1\nETCD_PASSWORD=THEPASS\nETCD_KEY={PEM}\n");
    let clean = redaction().settings(&text);
    assert!(!clean.contains("THE"), "{clean}");
    assert!(
        clean.contains("ETCD_ENDPOINTS=https://a:1\nETCD_PASSWORD=(removed)\n"),
        "{clean}"
    );
}
