//! `--ip-masq` where `nft` cannot be used: not installed, or in a kernel without nftables.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_lab::{find_program, wait_for};
use caracal_tests::{in_ipip_kernel, possible};

use super::HOST_GW;
use super::site::{PATIENCE, Site};

/// Programs that the daemon may start.
const SAVE_AND_RESTORE: [&str; 8] = [
    "iptables-nft-save",
    "iptables-nft-restore",
    "ip6tables-nft-save",
    "ip6tables-nft-restore",
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
];
const JUMP: &str = r#"-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG"#;
/// A guest is slow; no lease is to end while it is busy.
const LEASE: Duration = Duration::from_secs(600);

/// A folder with these programs alone.
fn folder_of(site: &Site, name: &str, programs: &[&str]) -> PathBuf {
    let folder = site.folder().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for program in programs {
        let found = find_program(program).unwrap();
        symlink(found, folder.join(program)).unwrap();
    }
    folder
}

/// Starts a node's daemon, which finds programs in one folder alone.
fn start_with(site: &mut Site, node: u8, folder: &Path, flags: &[&str]) {
    let _before = std::fs::remove_file(site.subnet_file(node));
    let mut command = site.daemon(node, flags);
    command.env("PATH", folder);
    site.start(&format!("n{node}"), &format!("n{node}"), &mut command);
}

/// The rules of iptables' table nat, by one form of it.
fn rules(site: &Site, node: &str, program: &str) -> String {
    site.call(node, program, &["-w", "-t", "nat", "-S"])
}

fn await_rules(site: &Site, program: &str, what: &str, fits: impl Fn(&String) -> bool) {
    let seen = || rules(site, "n1", program);
    wait_for(PATIENCE, what, seen, fits).unwrap_or_else(|e| panic!("{e}\n{}", site.log(1)));
}

/// flanneld's rules for a subnet, as `iptables -S` prints them.
fn flannelds(bridge: &str) -> String {
    let subnet = bridge.replace(".1/24", ".0/24");
    let comment = r#"-m comment --comment "flanneld masq""#;
    let rules = [
        format!("-m mark --mark 0x4000/0x4000 {comment} -j RETURN"),
        format!("-s {subnet} -d 10.5.0.0/16 {comment} -j RETURN"),
        format!("-s 10.5.0.0/16 -d {subnet} {comment} -j RETURN"),
        format!("! -s 10.5.0.0/16 -d {subnet} {comment} -j RETURN"),
        format!("-s 10.5.0.0/16 ! -d 224.0.0.0/4 {comment} -j MASQUERADE --random-fully"),
        format!("! -s 10.5.0.0/16 -d 10.5.0.0/16 {comment} -j MASQUERADE --random-fully"),
    ];
    let line = |rule: &String| format!("-A FLANNEL-POSTRTG {rule}\n");
    rules.iter().map(line).collect()
}

/// What flanneld leaves in iptables, with a jump too many.
fn leave_flannelds_rules(site: &Site, node: &str, program: &str) {
    let call = |arguments: &str| {
        let words: Vec<&str> = ["-w", "-t", "nat"]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        site.call(node, program, &words);
    };
    call("-N FLANNEL-POSTRTG");
    call("-A FLANNEL-POSTRTG -s 10.5.9.0/24 -j RETURN");
    for _ in 0..2 {
        call("-A POSTROUTING -m comment --comment flanneld -j FLANNEL-POSTRTG");
    }
    call("-A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE");
}

#[test]
fn iptables_masquerades_where_there_is_no_nft() {
    let scenario = "iptables_masquerades_where_there_is_no_nft";
    if !possible(scenario, &[&SAVE_AND_RESTORE[..], &["nft"]].concat()) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.configure(HOST_GW);
    let flags = ["-ip-masq", "--iptables-resync=1"];
    // With nftables: what flanneld has left in either form of iptables goes.
    for program in ["iptables-nft", "iptables-legacy"] {
        leave_flannelds_rules(&site, "n1", program);
    }
    site.start_node(1, &flags);
    site.start_node(2, &flags);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    for program in ["iptables-nft", "iptables-legacy"] {
        await_rules(&site, program, "no chain of flanneld", |rules| {
            !rules.contains("FLANNEL") && rules.contains("-s 10.9.0.0/16 -j MASQUERADE")
        });
    }
    let tables = |site: &Site| site.call("n1", "nft", &["list", "tables"]);
    assert!(tables(&site).contains("flannel-ipv4"), "{}", tables(&site));
    let pods: Vec<String> = (1..)
        .zip(&bridges)
        .map(|(n, b)| site.start_pod(n, b, 1500))
        .collect();
    site.await_ping(1, "10.200.0.100", 1500);
    // Without nft. The table of before cannot be seen by the daemon.
    site.end("n1", "-KILL");
    site.call("n1", "nft", &["delete", "table", "ip", "flannel-ipv4"]);
    let folder = folder_of(&site, "without-nft", &SAVE_AND_RESTORE);
    start_with(&mut site, 1, &folder, &flags);
    let env = site.subnet_env(1);
    assert!(env.contains("FLANNEL_IPMASQ=true"), "{env}");
    assert_eq!(site.bridge_address(1), bridges[0]);
    let all = flannelds(&bridges[0]);
    let whole = |rules: &String| rules.contains(&all) && rules.matches(JUMP).count() == 1;
    await_rules(&site, "iptables-nft", "flanneld's rules", whole);
    assert!(
        site.log(1).contains("nft cannot be used"),
        "{}",
        site.log(1)
    );
    // Out of the network with the node's address; inside of it with the pod's own.
    site.await_ping(1, "10.200.0.100", 1500);
    site.await_ping(1, &pods[1], 1500);
    site.await_ping(2, &pods[0], 1500);
    // What people and tools send ends nothing: the daemon repairs its rules after it.
    for (signal, name) in [
        ("-HUP", "SIGHUP: nothing to reload"),
        ("-QUIT", "SIGQUIT: ignored"),
        ("-USR1", "SIGUSR1: ignored"),
        ("-USR2", "SIGUSR2: ignored"),
    ] {
        site.signal("n1", signal);
        wait_for(PATIENCE, name, || site.log(1), |log| log.contains(name)).unwrap();
    }
    // Somebody empties the chain, takes the jump away, and adds it once too often.
    let iptables = |arguments: &[&str]| {
        let words = [&["-w", "-t", "nat"], arguments].concat();
        site.call("n1", "iptables-nft", &words);
    };
    iptables(&["-F", "FLANNEL-POSTRTG"]);
    await_rules(&site, "iptables-nft", "the rules again", whole);
    iptables(&["-F", "POSTROUTING"]);
    await_rules(&site, "iptables-nft", "the jump again", whole);
    let comment = ["-m", "comment", "--comment", "flanneld masq"];
    iptables(
        &[
            &["-A", "POSTROUTING"],
            &comment[..],
            &["-j", "FLANNEL-POSTRTG"],
        ]
        .concat(),
    );
    await_rules(&site, "iptables-nft", "one jump", whole);
    site.await_ping(1, "10.200.0.100", 1500);
    // Neither: docker or the CNI plugin has to.
    site.end("n1", "-TERM");
    let nothing = folder_of(&site, "nothing", &[]);
    start_with(&mut site, 1, &nothing, &flags);
    let env = site.subnet_env(1);
    assert!(env.contains("FLANNEL_IPMASQ=false"), "{env}");
    for says in [
        "cannot run nft",
        "cannot run iptables-nft-save",
        "cannot run iptables-legacy-save",
    ] {
        assert!(site.log(1).contains(says), "{says}: {}", site.log(1));
    }
    // With nft again.
    site.end("n1", "-TERM");
    site.start_node(1, &flags);
    await_rules(&site, "iptables-nft", "no chain", |rules| {
        !rules.contains("FLANNEL")
    });
    assert!(tables(&site).contains("flannel-ipv4"), "{}", tables(&site));
    site.await_ping(1, "10.200.0.100", 1500);
}

#[test]
fn a_kernel_without_nftables_has_iptables() {
    in_ipip_kernel("masquerade::a_kernel_without_nftables_has_iptables", || {
        let mut site = Site::new(&[1]);
        site.lease = LEASE;
        site.configure(HOST_GW);
        leave_flannelds_rules(&site, "n1", "iptables-legacy");
        site.start_node(1, &["-ip-masq", "--iptables-resync=1"]);
        let bridge = site.bridge_address(1);
        assert!(
            site.subnet_env(1).contains("FLANNEL_IPMASQ=true"),
            "{}",
            site.log(1)
        );
        let all = flannelds(&bridge);
        let whole = |rules: &String| rules.contains(&all) && rules.matches(JUMP).count() == 1;
        await_rules(&site, "iptables-legacy", "flanneld's rules", whole);
        let pod = site.start_pod(1, &bridge, 1500);
        assert!(pod.starts_with("10.5."));
        site.await_ping(1, "10.200.0.100", 1500);
        site.call(
            "n1",
            "iptables-legacy",
            &["-w", "-t", "nat", "-F", "FLANNEL-POSTRTG"],
        );
        await_rules(&site, "iptables-legacy", "the rules again", whole);
    });
}
