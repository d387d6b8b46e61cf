use super::*;

fn config(pairs: &[(&str, &str)]) -> Result<Config, String> {
    let vars = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Config::from_env(&vars, None, "Host-1\n").map_err(|e| e.to_string())
}

#[test]
fn defaults_are_calicos() {
    let c = config(&[]).unwrap();
    assert_eq!(c.node.as_str(), "host-1");
    assert_eq!(c.backend, Backend::Bird);
    assert_eq!(
        c.ip,
        AddressChoice::Autodetect {
            method: Method::FirstFound,
            only_if_unset: true
        }
    );
    assert_eq!(c.ip6, AddressChoice::Keep);
    let pool = c.pool_v4.unwrap();
    assert_eq!(
        (pool.block_size, pool.nat_outgoing, pool.ipip),
        (26, true, EncapMode::Never)
    );
    assert_eq!(c.pool_v6, None);
}

#[test]
fn every_variable_has_its_effect() {
    let c = config(&[
        ("NODENAME", "a"),
        ("IP", "10.0.0.1/24"),
        ("IP6", "autodetect"),
        ("AS", "1.10"),
        ("CALICO_ROUTER_ID", "hash"),
        ("CALICO_NETWORKING_BACKEND", "vxlan"),
        ("CALICO_IPV4POOL_CIDR", "10.244.0.0/16"),
        ("CALICO_IPV4POOL_VXLAN", "cross-subnet"),
        ("CALICO_IPV4POOL_BLOCK_SIZE", "28"),
        ("CALICO_IPV4POOL_NAT_OUTGOING", "false"),
        ("WAIT_FOR_DATASTORE", "true"),
        (
            "CARACAL_DATASTORE_ACCEPT",
            "0123456789abcdef0123456789abcdef",
        ),
    ])
    .unwrap();
    let guid = "0123456789abcdef0123456789abcdef".to_owned();
    assert_eq!(c.accept, Accept::Cluster(guid));
    assert_eq!(c.asn, Some(Asn(65546)));
    assert_eq!(c.router_id, RouterIdSetting::Hash);
    assert_eq!(c.backend, Backend::Vxlan);
    assert_eq!(
        c.ip,
        AddressChoice::Literal {
            address: "10.0.0.1".parse().unwrap(),
            len: Some(24)
        }
    );
    let pool = c.pool_v4.unwrap();
    assert_eq!(
        (pool.vxlan, pool.block_size, pool.nat_outgoing),
        (EncapMode::CrossSubnet, 28, false)
    );
    assert_eq!(c.pool_v6.unwrap().block_size, 122);
    assert!(c.wait_for_datastore);
    assert!(
        config(&[("NO_DEFAULT_POOLS", "true")])
            .unwrap()
            .pool_v4
            .is_none()
    );
    assert!(
        config(&[("CALICO_IPV4POOL_CIDR", "none")])
            .unwrap()
            .pool_v4
            .is_none()
    );
}

#[test]
fn a_bad_value_names_the_variable() {
    let error = |k, v| config(&[(k, v)]).unwrap_err();
    assert_eq!(
        error("AS", "banana"),
        "AS=\"banana\": expected an AS number, 1 to 4294967295 or HIGH.LOW"
    );
    assert_eq!(error("AS", "0"), "AS=\"0\": AS 0 is reserved (RFC 7607)");
    assert!(error("IP", "fd00::1").contains("expected an IPv4 address"));
    assert!(error("CALICO_IPV4POOL_CIDR", "10.0.0.1/16").contains("host bits"));
    assert!(
        error("CALICO_IPV4POOL_IPIP", "maybe").contains("expected Always, CrossSubnet or Never")
    );
    assert!(error("CARACAL_DATASTORE_ACCEPT", "yes").contains("never, always, or"));
    assert!(error("CALICO_NETWORKING_BACKEND", "ospf").contains("bird, vxlan or none"));
    assert!(error("NODENAME", "a/b").contains("part of names in the datastore"));
    assert!(error("IP_AUTODETECTION_METHOD", "magic").contains("first-found"));
    assert!(error("WAIT_FOR_DATASTORE", "perhaps").contains("true or false"));
}

#[test]
fn unknown_felix_variables_are_named_once() {
    let c = config(&[
        ("FELIX_WIBBLE", "1"),
        ("FELIX_WOBBLE", "1"),
        ("FELIX_IPV6SUPPORT", "false"),
    ]);
    let warnings = c.unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("FELIX_WIBBLE, FELIX_WOBBLE"),
        "{warnings:?}"
    );
}
