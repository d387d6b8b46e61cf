//! Which datastore the environment names.

#![allow(clippy::unwrap_used)]
use super::*;

fn read(pairs: &[(&str, &str)]) -> Result<DatastoreConfig, DatastoreConfigError> {
    DatastoreConfig::from_lookup(|name| {
        let found = pairs.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn the_kind_decides_which_variables_are_read() {
    for kind in ["", " ", "etcdv3"] {
        let config = read(&[("DATASTORE_TYPE", kind)]).unwrap();
        assert_eq!(config, DatastoreConfig::Etcd(Box::default()));
    }
    let said = |pairs: &[_]| read(pairs).unwrap_err().to_string();
    assert_eq!(
        said(&[("DATASTORE_TYPE", "consul")]),
        "DATASTORE_TYPE=consul: not a kind of datastore; expected etcdv3, with ETCD_ENDPOINTS, or kubernetes"
    );
    read(&[("USE_POD_CIDR", "false")]).unwrap();
    let ranges = said(&[("USE_POD_CIDR", "true")]);
    assert!(ranges.contains("set DATASTORE_TYPE=kubernetes"), "{ranges}");
}

#[cfg(not(feature = "kubernetes"))]
#[test]
fn what_was_not_built_is_refused_with_what_to_do() {
    let said = read(&[("DATASTORE_TYPE", "kubernetes")])
        .unwrap_err()
        .to_string();
    assert!(said.contains("cargo build --release -p caracal"), "{said}");
    assert!(said.contains("set DATASTORE_TYPE=etcdv3"), "{said}");
}

#[cfg(feature = "kubernetes")]
#[test]
fn kubernetes_has_variables_of_its_own() {
    let endpoint = ("K8S_API_ENDPOINT", "https://10.0.0.1:6443");
    let config = read(&[("DATASTORE_TYPE", "kubernetes"), endpoint]).unwrap();
    let DatastoreConfig::Kubernetes(config) = config else {
        panic!("{config:?}");
    };
    assert_eq!(config.endpoint.as_deref(), Some(endpoint.1));
    let said = |pairs: &[_]| read(pairs).unwrap_err().to_string();
    let half = [
        ("DATASTORE_TYPE", "kubernetes"),
        ("K8S_CERT_FILE", "/c.pem"),
    ];
    assert!(said(&half).starts_with("K8S_CERT_FILE is set but K8S_KEY_FILE is not"));
    let ranges = [
        ("DATASTORE_TYPE", "kubernetes"),
        ("USE_POD_CIDR", "perhaps"),
    ];
    assert_eq!(
        said(&ranges),
        "USE_POD_CIDR=perhaps: expected true or false"
    );
}

#[test]
fn the_hosts_are_known_before_anything_is_connected() {
    let config = read(&[("ETCD_ENDPOINTS", "http://10.0.0.1:2380")]).unwrap();
    let expected = ("10.0.0.1".to_owned(), 2380);
    assert_eq!(config.hosts().unwrap(), [expected]);
}

#[cfg(feature = "kubernetes")]
#[test]
fn the_host_of_an_api_server_is_known_before_anything_is_connected() {
    let kubernetes = |endpoint| {
        read(&[
            ("DATASTORE_TYPE", "kubernetes"),
            ("K8S_API_ENDPOINT", endpoint),
        ])
        .unwrap()
    };
    for (endpoint, host, port) in [
        ("https://10.0.0.1:6443", "10.0.0.1", 6443),
        ("https://[fd00::1]:6443", "fd00::1", 6443),
        ("https://api.example", "api.example", 443),
    ] {
        let hosts = kubernetes(endpoint).hosts().unwrap();
        assert_eq!(hosts, [(host.to_owned(), port)]);
    }
    let lost = [
        ("DATASTORE_TYPE", "kubernetes"),
        ("KUBECONFIG", "/nonexistent/kubeconfig"),
    ];
    let said = read(&lost).unwrap().hosts().unwrap_err().to_string();
    assert!(
        said.starts_with("kubeconfig /nonexistent/kubeconfig: "),
        "{said}"
    );
}
