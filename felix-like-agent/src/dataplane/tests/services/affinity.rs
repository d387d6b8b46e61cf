//! Clients that keep their endpoints, in the kernel.

use super::*;

const VIP6: &str = "fd00:96::10";
const SERVERS: [[&str; 3]; 2] = [
    ["10.1.0.1", "10.1.0.2", "10.1.0.3"],
    ["fd00:1::1", "fd00:1::2", "fd00:1::3"],
];

/// A Service of both families with these servers of each, whose clients keep them for a time.
fn affine(servers: &[usize], seconds: u32) -> Snapshot {
    let spec = format!(
        r#","clusterIPs":["{VIP}","{VIP6}"],"sessionAffinity":"ClientIP",
        "sessionAffinityConfig":{{"clientIP":{{"timeoutSeconds":{seconds}}}}}"#
    );
    let of = |family: usize| {
        let all: Vec<&str> = servers.iter().map(|n| SERVERS[family][*n]).collect();
        slice(&all)
    };
    let (kind, _, v6) = of(1);
    let v6 = (kind, "web-2", v6.replace("IPv4", "IPv6"));
    snapshot(&[service(&spec), of(0), v6])
}

fn affine_machine() {
    machine();
    sh("ip -6 route add default via fd00:a::2 dev eth0");
    SERVERS.iter().for_each(|all| servers(all));
}

/// Who answers in both families.
fn answers() -> [String; 2] {
    [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|vip| connect(&vip).unwrap())
}

/// Has `nft` run by a script that notes each start.
fn note_programs() {
    std::fs::create_dir_all(programs()).unwrap();
    let (nft, noted) = (sh("command -v nft"), programs().join("starts"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec {} \"$@\"\n",
        noted.display(),
        nft.trim()
    );
    let file = programs().join("nft");
    std::fs::write(&file, script).unwrap();
    sh(&format!("chmod +x {}", file.display()));
}

/// How often `nft` was started since this was asked last.
fn starts() -> usize {
    let noted = programs().join("starts");
    let text = std::fs::read_to_string(&noted).unwrap_or_default();
    let _none = std::fs::remove_file(noted);
    text.lines().count()
}

/// The clients of a map, as nftables lists them.
fn clients(family: char) -> String {
    let map = format!("inet caracal-services clients{family}/shop/web//tcp");
    sh(&format!("nft list map {map}"))
}

#[test]
fn clients_keep_their_endpoint_until_it_is_gone() {
    let name = "services::affinity::clients_keep_their_endpoint_until_it_is_gone";
    in_namespace(name, || async {
        affine_machine();
        let all = [0, 1, 2];
        let mut ours = writer();
        ours.pass(&affine(&all, 10_800)).await.unwrap();
        let first = answers();
        for _ in 0..20 {
            assert_eq!(answers(), first);
        }
        // Another process reads the table, writes nothing, and starts nothing for any map: clients
        // keep their endpoints, and their time goes on.
        let handles = || sh("nft -a list table inet caracal-services | grep handle");
        let before = handles();
        drop(ours);
        note_programs();
        let mut ours = writer();
        let status = ours.pass(&affine(&all, 10_800)).await.unwrap();
        assert_eq!((status.changed, status.transactions), (0, 0));
        assert_eq!(starts(), 1);
        assert_eq!(handles(), before);
        assert_eq!(answers(), first);
        // Their endpoints go: no program is started for them either.
        starts();
        let rest = |first: &[String; 2]| {
            let is_there = |n: &usize| (0..2).all(|family| SERVERS[family][*n] != first[family]);
            all.into_iter().filter(is_there).collect::<Vec<_>>()
        };
        let of_rest = rest(&first);
        ours.pass(&affine(&of_rest, 10_800)).await.unwrap();
        assert_eq!(starts(), 0);
        let second = answers();
        assert!(second[0] != first[0] && second[1] != first[1]);
        assert_eq!(answers(), second);
        // The same while no process runs.
        drop(ours);
        let back: Vec<usize> = all.into_iter().filter(|n| !of_rest.contains(n)).collect();
        let mut ours = writer();
        starts();
        ours.pass(&affine(&back, 10_800)).await.unwrap();
        assert!(starts() <= 1, "the table is listed once");
        let third = answers();
        assert!(third[0] != second[0] && third[1] != second[1]);
        // One that was left behind, as by a process that was killed.
        sh(&format!(
            "nft add element inet caracal-services clients4/shop/web//tcp \
             '{{ 192.0.2.1 timeout 1h : {} . 8080 }}'",
            second[0]
        ));
        drop(ours);
        let mut ours = writer();
        ours.pass(&affine(&back, 10_800)).await.unwrap();
        assert!(!clients('4').contains("192.0.2.1"));
        assert_eq!(answers(), third);
        std::fs::remove_dir_all(programs()).unwrap();
        // Without affinity its chains and maps go.
        ours.pass(&snapshot(&[service(""), slice(&["10.1.0.1"])]))
            .await
            .unwrap();
        let table = sh("nft list table inet caracal-services");
        assert!(!table.contains("shop/web"), "{table}");
        assert!(connect(&format!("{VIP}:80")).is_ok());
    });
}

/// Another time, which is another rule, has the chains written again; and a client that is not
/// heard of for that time is none any more.
#[test]
fn a_client_is_forgotten_after_its_time() {
    let name = "services::affinity::a_client_is_forgotten_after_its_time";
    in_namespace(name, || async {
        affine_machine();
        let mut ours = writer();
        ours.pass(&affine(&[0, 1, 2], 60)).await.unwrap();
        drop(ours);
        let mut ours = writer();
        let status = ours.pass(&affine(&[0, 1, 2], 1)).await.unwrap();
        assert_ne!(status.changed, 0);
        answers();
        for family in ['4', '6'] {
            let is_none = |map: &str| !map.contains("elements");
            wait_for("no client", LIMIT, || clients(family), is_none).await;
        }
        // The next connection is a client again.
        for family in ['4', '6'] {
            let ask = || {
                answers();
                clients(family)
            };
            let is_one = |map: &str| map.contains("timeout 1s");
            wait_for("a client", LIMIT, ask, is_one).await;
        }
    });
}
