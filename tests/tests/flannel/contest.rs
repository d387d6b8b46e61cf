//! Two machines that want what only one of them can have.

use caracal_lab::wait_for;
use caracal_tests::{SECOND, possible};

use super::site::{PATIENCE, PREFIX, Site};

/// No lease is renewed while the test looks.
const LEASE: std::time::Duration = SECOND.saturating_mul(3600);

fn config(max: &str, backend: &str) -> String {
    format!(
        r#"{{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"{max}","Backend":{{"Type":"{backend}"}}}}"#
    )
}

/// Waits until a node's log says something so many times.
fn await_log(site: &Site, node: u8, text: &str, times: usize) {
    let says = |log: &String| log.matches(text).count() >= times;
    wait_for(PATIENCE, text, || site.log(node), says).unwrap_or_else(|e| panic!("n{node}: {e}"));
}

/// What `ethtool` says of who makes checksums for `flannel.1`.
fn checksums(site: &Site, node: u8) -> String {
    let all = site.call(&format!("n{node}"), "ethtool", &["-k", "flannel.1"]);
    let mut lines = all.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("tx-checksum-ip-generic"));
    line.unwrap_or_default().to_owned()
}

#[test]
fn two_machines_want_what_one_can_have() {
    let scenario = "contest::two_machines_want_what_one_can_have";
    if !possible(scenario, &["ethtool"]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.lease = LEASE;
    the_only_subnet(&mut site);
    addresses_of_another(&mut site);
    one_public_address(&mut site);
}

/// The second one waits, says why, and gets the subnet once it is free.
fn the_only_subnet(site: &mut Site) {
    site.configure(&config("10.5.1.0", "host-gw"));
    site.start_node(1, &[]);
    assert_eq!(site.bridge_address(1), "10.5.1.1/24");
    site.start_node(2, &[]);
    await_log(site, 2, "no lease yet", 1);
    await_log(site, 2, "out of subnets", 1);
    assert!(!site.subnet_file(2).exists(), "{}", site.log(2));
    assert_eq!(
        site.lease(1).unwrap().0,
        format!("{PREFIX}/subnets/10.5.1.0-24")
    );
    site.end("n1", "-TERM");
    site.etcdctl(&["del", "--prefix", &format!("{PREFIX}/subnets/")]);
    assert_eq!(site.bridge_address(2), "10.5.1.1/24");
}

/// A lease that reaches into ours is named, and takes nothing away, also after a restart.
fn addresses_of_another(site: &mut Site) {
    let foreign = r#"{"PublicIP":"10.200.0.3","PublicIPv6":null,"BackendType":"host-gw"}"#;
    site.put_lease("10.5.0.0-23", foreign);
    let reason = "10.5.0.0/23 is the lease of 10.200.0.3, and shares addresses with ours";
    await_log(site, 2, reason, 1);
    site.end("n2", "-KILL");
    site.start_again(2, &[]);
    await_log(site, 2, reason, 2);
    site.put_lease("10.5.72.0-24", &foreign.replace("0.3", "0.4"));
    let reached = |lines: &[String]| lines.iter().any(|line| line.contains("10.5.72.0/24 via"));
    let routes = site.await_lines("n2", &["route", "show", "proto", "82"], "n4", reached);
    assert_eq!(routes.len(), 1, "{routes:?}");
    assert_eq!(site.bridge_address(2), "10.5.1.1/24");
    site.end("n2", "-TERM");
    site.etcdctl(&["del", "--prefix", &format!("{PREFIX}/")]);
}

/// Two machines behind one address of NAT: the second takes the first one's lease over, with the
/// same value, as it has no device yet. The first says so; so does the second after the first one's
/// restart.
fn one_public_address(site: &mut Site) {
    site.configure(&config("10.5.60.0", "vxlan"));
    let flags = [
        "-iface=eth0",
        "-public-ip=10.200.0.77",
        "--vxlan-tx-checksum=false",
    ];
    site.start_node(1, &flags);
    let taken = site.bridge_address(1);
    let off = |line: &String| line == "tx-checksum-ip-generic: off";
    wait_for(PATIENCE, "checksums", || checksums(site, 1), off).unwrap();
    site.start_node(
        2,
        &[
            "-iface=eth0",
            "-public-ip=10.200.0.77",
            "--vxlan-tx-checksum",
        ],
    );
    assert_eq!(site.bridge_address(2), taken);
    await_log(site, 1, "flannel.same_address", 1);
    let on = |line: &String| line == "tx-checksum-ip-generic: on";
    wait_for(PATIENCE, "checksums", || checksums(site, 2), on).unwrap();
    assert!(
        !site.log(2).contains("flannel.same_address"),
        "{}",
        site.log(2)
    );
    site.end("n1", "-KILL");
    site.start_again(1, &flags);
    await_log(site, 2, "flannel.same_address", 1);
}
