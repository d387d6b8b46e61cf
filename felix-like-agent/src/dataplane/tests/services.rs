//! The table of services in the real kernel.

mod affinity;
mod kept;
mod sctp;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use caracal_model::NodeName;

use super::*;
use crate::dataplane::conntrack;
use crate::dataplane::services::ServiceWriter;
use crate::dataplane::{observe_service_elements, observe_service_hits, observe_services};
use crate::services::{ServiceDifferences, ServiceSettings};
use crate::settings::Overrides;
use crate::transport::Transport;

const VIP: &str = "10.96.0.10";

/// A snapshot with node `a`, a pool, and these documents: kind of the key, name, JSON.
fn snapshot(documents: &[(&str, &str, String)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let entries = [
        node("a", "10.0.0.1/24", "10.244.0.1"),
        pool("p", "10.244.0.0/16", ""),
    ];
    let resources = "/calico/resources/v3/projectcalico.org";
    for (kind, name, value) in entries {
        let path = format!("{resources}/{kind}/{name}");
        snapshot.apply(&path, Some(value.as_bytes()), 1);
    }
    for (kind, name, value) in documents {
        let path = format!("/calico/caracal/v1/{kind}/shop/{name}");
        let applied = snapshot.apply(&path, Some(value.as_bytes()), 2);
        assert_eq!(applied, caracal_model::Applied::Changed, "{path}");
    }
    snapshot
}

/// With port 80, where `spec` says nothing of ports.
fn service(spec: &str) -> (&'static str, &'static str, String) {
    let ports = match spec.contains(r#""ports""#) {
        true => "",
        false => r#","ports":[{"port":80}]"#,
    };
    let value = format!(
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"web","namespace":"shop"}},
        "spec":{{"clusterIP":"{VIP}"{ports}{spec}}}}}"#
    );
    ("services", "web", value)
}

/// A slice with these addresses, all on this node.
fn slice(addresses: &[&str]) -> (&'static str, &'static str, String) {
    let endpoint = |a: &&str| format!(r#"{{"addresses":["{a}"],"nodeName":"a"}}"#);
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    let value = format!(
        r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","addressType":"IPv4",
        "metadata":{{"name":"web-1","namespace":"shop","labels":{{"kubernetes.io/service-name":"web"}}}},
        "ports":[{{"name":"","port":8080}}],"endpoints":[{}]}}"#,
        endpoints.join(",")
    );
    ("endpointslices", "web-1", value)
}

/// Listens on these addresses of this machine; each answers with its address.
fn servers(addresses: &[&str]) {
    for address in addresses {
        serve(address, 8080);
    }
}

/// Listens on an address that this machine gets, and answers with it.
fn serve(address: &str, port: u16) {
    let length = if address.contains(':') { 128 } else { 32 };
    sh(&format!(
        "ip address replace {address}/{length} dev lo nodad"
    ));
    let listener = TcpListener::bind((address.parse::<IpAddr>().unwrap(), port)).unwrap();
    let address = address.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(address.as_bytes()).unwrap();
        }
    });
}

fn connect(to: &str) -> Result<String, std::io::ErrorKind> {
    let to: SocketAddr = to.parse().unwrap();
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2));
    let mut answer = String::new();
    stream
        .map_err(|e| e.kind())?
        .read_to_string(&mut answer)
        .map_err(|e| e.kind())?;
    Ok(answer)
}

fn machine() {
    lab();
    sh("ip route add default via 10.0.0.2 dev eth0");
}

fn writer() -> ServiceWriter {
    ServiceWriter::new(NodeName::from("a"), ServiceSettings::default())
}

#[test]
fn a_service_is_translated_by_element_and_adopted() {
    in_namespace(
        "services::a_service_is_translated_by_element_and_adopted",
        || async {
            machine();
            servers(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
            let vip = format!("{VIP}:80");
            let node_port = r#","type":"NodePort","externalIPs":["192.0.2.7"],
            "ports":[{"port":80,"nodePort":30080}]"#;
            let with = |endpoints: &[&str]| snapshot(&[service(node_port), slice(endpoints)]);
            let mut ours = writer();
            ours.pass(&with(&[])).await.unwrap();
            for refused in [&*vip, "10.96.0.10:81", "192.0.2.7:80", "10.0.0.1:30080"] {
                let kind = connect(refused).unwrap_err();
                assert_eq!(kind, std::io::ErrorKind::ConnectionRefused, "{refused}");
            }
            let before = ours.pass(&with(&["10.1.0.1"])).await.unwrap().changed;
            for address in [&*vip, "192.0.2.7:80", "10.0.0.1:30080"] {
                assert_eq!(connect(address).as_deref(), Ok("10.1.0.1"), "{address}");
            }
            // Another endpoint: in each of three maps an element and a verdict.
            let status = ours.pass(&with(&["10.1.0.1", "10.1.0.2"])).await.unwrap();
            let changed = status.changed - before;
            assert!(changed <= 3 * 4 + 2, "{changed} parts changed");
            let seen: std::collections::BTreeSet<_> =
                (0..60).map(|_| connect(&vip).unwrap()).collect();
            assert_eq!(seen.len(), 2, "{seen:?}");
            // A new process takes away the chain that nobody needs any more; the next one finds the
            // table as it should be.
            let picks = || sh("nft list table inet caracal-services | grep 'chain pick-'");
            assert!(picks().contains("pick-endpoints-1 "));
            for changed in [1, 0] {
                drop(ours);
                ours = writer();
                let status = ours.pass(&with(&["10.1.0.1", "10.1.0.2"])).await.unwrap();
                assert_eq!(status.changed, changed);
                assert_eq!(status.transactions == 0, changed == 0);
                assert_eq!(picks(), "\tchain pick-endpoints-2 {\n");
            }
            // And one that missed a change writes what differs.
            drop(ours);
            let mut ours = writer();
            let status = ours.pass(&with(&["10.1.0.2", "10.1.0.3"])).await.unwrap();
            assert!(status.changed <= 8, "{} parts changed", status.changed);
            let seen: std::collections::BTreeSet<_> =
                (0..60).map(|_| connect(&vip).unwrap()).collect();
            assert!(!seen.contains("10.1.0.1") && seen.len() == 2, "{seen:?}");
            // What others do to it is heard of and undone.
            sh(
                "nft delete element inet caracal-services services4 '{ 10.96.0.10 . tcp . 80 }' ||
            nft delete element inet caracal-services services4 \
              '{ 10.96.0.10 . tcp . 80 : goto pick-endpoints-2 }'",
            );
            assert_eq!(connect(&vip), Err(std::io::ErrorKind::ConnectionRefused));
            ours.changed_by_others().await;
            ours.pass(&with(&["10.1.0.2", "10.1.0.3"])).await.unwrap();
            assert!(connect(&vip).is_ok());
            sh("nft delete table inet caracal-services");
            ours.changed_by_others().await;
            ours.pass(&with(&["10.1.0.2", "10.1.0.3"])).await.unwrap();
            assert!(connect(&vip).is_ok());
            // No Services, no translation.
            ours.pass(&snapshot(&[])).await.unwrap();
            assert!(connect(&vip).is_err());
            ServiceWriter::remove().await.unwrap();
            assert!(!sh("nft list tables").contains("caracal-services"));
        },
    );
}

/// A number of endpoints that no Service had before is a chain with rules: the kernel gets them as
/// `nft` would make them.
#[test]
fn another_number_of_endpoints_starts_no_program() {
    let test = "services::another_number_of_endpoints_starts_no_program";
    in_namespace(test, || async {
        machine();
        let all = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"];
        servers(&all);
        let with = |count: usize| snapshot(&[service(""), slice(&all[..count])]);
        let handle = || sh("nft -a list table inet caracal-services | head -1");
        let mut ours = writer();
        ours.pass(&with(3)).await.unwrap();
        let table = handle();
        std::fs::create_dir_all(programs()).unwrap();
        std::os::unix::fs::symlink("/bin/false", programs().join("nft")).unwrap();
        for count in [4, 5, 3, 4] {
            ours.pass(&with(count)).await.unwrap();
            let seen = (0..200).map(|_| connect(&format!("{VIP}:80")).unwrap());
            assert_eq!(seen.collect::<BTreeSet<_>>().len(), count);
        }
        std::fs::remove_dir_all(programs()).unwrap();
        let entries = ours.pass(&with(4)).await.unwrap().entries.clone();
        assert_eq!(
            observe_services(&entries).await,
            ServiceDifferences::default()
        );
        // The next process finds it sealed as it is, and takes away chains that nobody needs.
        drop(ours);
        let status = writer().pass(&with(4)).await.unwrap().clone();
        assert!(status.changed <= 1, "{status:?}");
        assert_eq!(handle(), table);
        let chain = "inet caracal-services pick-endpoints-4";
        let expressions = || {
            sh(&format!(
                "nft --debug=netlink list chain {chain} 2>&1 | grep ' \\['"
            ))
        };
        let ours = expressions();
        assert_eq!(ours.matches("numgen").count(), 12, "{ours}");
        let text = sh(&format!("nft list chain {chain}"));
        let rules = text.lines().filter(|line| line.contains("dnat"));
        let rules = rules.map(|rule| format!("add rule {chain} {rule}\n"));
        let script = rules.collect::<String>();
        sh(&format!(
            "nft -f - <<'END'\nflush chain {chain}\n{script}END"
        ));
        assert_eq!(ours, expressions());
    });
}

/// A flow of UDP to an endpoint that is gone would live as long as its sender sends.
#[test]
fn a_flow_of_udp_follows_its_endpoint() {
    in_namespace("services::a_flow_of_udp_follows_its_endpoint", || async {
        machine();
        for address in ["10.1.0.1", "10.1.0.2"] {
            sh(&format!("ip address add {address}/32 dev lo"));
            let socket = UdpSocket::bind((address.parse::<IpAddr>().unwrap(), 8080)).unwrap();
            std::thread::spawn(move || {
                let mut octets = [0; 64];
                while let Ok((_, from)) = socket.recv_from(&mut octets) {
                    socket.send_to(address.as_bytes(), from).unwrap();
                }
            });
        }
        let udp = r#","ports":[{"port":53,"protocol":"UDP"}]"#;
        let with = |endpoints: &[&str]| {
            let (kind, name, value) = slice(endpoints);
            let value = value.replace(r#""port":8080"#, r#""port":8080,"protocol":"UDP""#);
            snapshot(&[service(udp), (kind, name, value)])
        };
        let client = UdpSocket::bind("0.0.0.0:4000").unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        let ask = || {
            let mut octets = [0; 64];
            client.send_to(b"?", (VIP, 53)).ok()?;
            let (read, _) = client.recv_from(&mut octets).ok()?;
            Some(String::from_utf8_lossy(&octets[..read]).into_owned())
        };
        let mut ours = writer();
        ours.pass(&with(&["10.1.0.1"])).await.unwrap();
        assert_eq!(ask().as_deref(), Some("10.1.0.1"));
        // It stays where it is while its endpoint serves, also over a restart.
        ours.pass(&with(&["10.1.0.1", "10.1.0.2"])).await.unwrap();
        let mut ours = writer();
        let status = ours.pass(&with(&["10.1.0.1", "10.1.0.2"])).await.unwrap();
        assert_eq!(status.forgotten_flows, 0);
        assert_eq!(ask().as_deref(), Some("10.1.0.1"));
        let status = ours.pass(&with(&["10.1.0.2"])).await.unwrap();
        assert_eq!(status.forgotten_flows, 1);
        assert_eq!(ask().as_deref(), Some("10.1.0.2"));
        // Nobody is left.
        let status = ours.pass(&with(&[])).await.unwrap();
        assert_eq!(status.forgotten_flows, 2);
        assert_eq!(ask(), None);
    });
}

/// A connection to an endpoint that is gone is left alone, or reset, as is asked for.
#[test]
fn a_connection_ends_with_its_endpoint() {
    in_namespace("services::a_connection_ends_with_its_endpoint", || async {
        machine();
        for address in ["10.1.0.1", "10.1.0.2"] {
            sh(&format!("ip address add {address}/32 dev lo"));
            let listener = TcpListener::bind((address.parse::<IpAddr>().unwrap(), 8080)).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    std::thread::spawn(move || {
                        let mut octet = [0];
                        while stream.read_exact(&mut octet).is_ok() {
                            stream.write_all(&octet).unwrap();
                        }
                    });
                }
            });
        }
        let with = |endpoints: &[&str]| snapshot(&[service(""), slice(endpoints)]);
        let open = || {
            let stream = TcpStream::connect((VIP, 80)).unwrap();
            let patience = Some(Duration::from_secs(10));
            stream.set_read_timeout(patience).unwrap();
            stream
        };
        let echo = |stream: &mut TcpStream| {
            stream.write_all(b"?").map_err(|e| e.kind())?;
            stream.read_exact(&mut [0]).map_err(|e| e.kind())
        };
        for reset_tcp in [false, true] {
            let settings = ServiceSettings {
                reset_tcp,
                ..ServiceSettings::default()
            };
            for left in [&["10.1.0.2"][..], &[]] {
                let mut ours = ServiceWriter::new(NodeName::from("a"), settings.clone());
                ours.pass(&with(&["10.1.0.1"])).await.unwrap();
                let mut stream = open();
                assert_eq!(echo(&mut stream), Ok(()));
                ours.pass(&with(&["10.1.0.1", "10.1.0.2"])).await.unwrap();
                assert_eq!(echo(&mut stream), Ok(()));
                let status = ours.pass(&with(left)).await.unwrap();
                // Others may be closing still.
                assert_eq!(status.reset_connections > 0, reset_tcp, "{left:?}");
                let expected = match reset_tcp {
                    true => Err(std::io::ErrorKind::ConnectionReset),
                    false => Ok(()),
                };
                assert_eq!(echo(&mut stream), expected, "{left:?}");
            }
        }
    });
}

/// Conntrack does not pick up a connection by its end: it calls a FIN that it does not know
/// invalid, and invalid packets are not translated.
#[test]
fn what_is_not_translated_does_not_leave() {
    in_namespace(
        "services::what_is_not_translated_does_not_leave",
        || async {
            machine();
            sh("ip address add 10.1.0.1/32 dev lo");
            let listener = TcpListener::bind("10.1.0.1:8080").unwrap();
            // Before our chains and behind them.
            sh("nft -f - <<'END'
            table ip seen {
                chain sent { type filter hook output priority -1; ip daddr { 10.96.0.10, 192.0.2.7, 192.0.2.8 } ct state invalid counter; }
                chain left { type filter hook postrouting priority 300; ip daddr { 10.96.0.10, 192.0.2.7, 192.0.2.8 } counter; }
            }
END");
            let counted = |chain: &str| -> u64 {
                let listed = sh(&format!("nft list chain ip seen {chain}"));
                let (_, rest) = listed.split_once("packets ").unwrap();
                rest.split(' ').next().unwrap().parse().unwrap()
            };
            for (policy, to) in [
                ("Cluster", VIP),
                ("Cluster", "192.0.2.7"),
                ("Local", "192.0.2.8"),
            ] {
                let spec = format!(
                    r#","externalIPs":["192.0.2.7","192.0.2.8"],"externalTrafficPolicy":"{policy}""#
                );
                let mut ours = writer();
                ours.pass(&snapshot(&[service(&spec), slice(&["10.1.0.1"])]))
                    .await
                    .unwrap();
                let stream = TcpStream::connect((to, 80)).unwrap();
                let _accepted = listener.accept().unwrap();
                let end = (Transport::Tcp, (to.parse().unwrap(), 80));
                conntrack::forget_flows(&[end], |_| true).unwrap();
                let before = counted("sent");
                drop(stream);
                assert!(
                    counted("sent") > before,
                    "{to}: conntrack knows the end of the connection"
                );
                assert_eq!(counted("left"), 0, "{to} left the node");
            }
        },
    );
}

/// What a tenant's Service has done to a node that knew no better goes at the start of the next
/// process, before the datastore has said a word.
#[test]
fn nothing_stands_between_a_node_and_its_datastore() {
    in_namespace(
        "services::nothing_stands_between_a_node_and_its_datastore",
        || async {
            machine();
            let (etcd, etcd6) = ("192.0.2.50", "fd00:50::1");
            for (address, port) in [
                (etcd, 2379),
                (etcd6, 2379),
                ("10.1.0.1", 8080),
                ("fd00:1::1", 8080),
            ] {
                serve(address, port);
            }
            let at = [format!("{etcd}:2379"), format!("[{etcd6}]:2379")];
            let datastore: BTreeSet<SocketAddr> = at.iter().map(|at| at.parse().unwrap()).collect();
            let of_v6 = |(_, _, value): (&str, &str, String)| {
                let value = value.replace("IPv4", "IPv6");
                ("endpointslices", "web-6", value)
            };
            let external = format!(
                r#","clusterIPs":["{VIP}","fd00:96::10"],"externalIPs":["{etcd}","{etcd6}"],"ports":[{{"port":2379}}]"#
            );
            let bad = snapshot(&[
                service(&external),
                slice(&["10.1.0.1"]),
                of_v6(slice(&["fd00:1::1"])),
            ]);
            let pods = ["10.1.0.1", "fd00:1::1"];
            let answers = || at.each_ref().map(|at| connect(at));
            let right = || [Ok(etcd.to_owned()), Ok(etcd6.to_owned())];
            let wrong = || pods.map(|pod| Ok(pod.to_owned()));
            writer().pass(&bad).await.unwrap();
            assert_eq!(answers(), wrong(), "the node knows of no datastore");
            ServiceWriter::spare(&datastore, false).await.unwrap();
            assert_eq!(answers(), right());
            // A table of another version, which is replaced once there is a plan.
            for family in ["4", "6"] {
                sh(&format!(
                    "nft flush set inet caracal-services spared{family}"
                ));
            }
            let mark = sh("nft list table inet caracal-services | grep -o 'layout-[0-9a-f]*'");
            sh(&format!("nft delete chain inet caracal-services {mark}"));
            assert_eq!(answers(), wrong());
            ServiceWriter::spare(&datastore, true).await.unwrap();
            assert_eq!(answers(), right());
            // Other ports of a cluster address are refused, and unused ones of a range are dropped.
            let taken = format!(r#","clusterIPs":["{etcd}","{etcd6}"]"#);
            let (kind, name, value) = service(&taken);
            let taken = snapshot(&[(kind, name, value.replace(VIP, etcd))]);
            ServiceWriter::remove().await.unwrap();
            writer().pass(&taken).await.unwrap();
            sh("nft add element inet caracal-services ranges4 '{ 192.0.2.0/24 }'");
            sh("nft add element inet caracal-services ranges6 '{ fd00:50::/64 }'");
            let refused = Err(std::io::ErrorKind::ConnectionRefused);
            let refused = [refused.clone(), refused];
            assert_eq!(answers(), refused);
            // With Kubernetes' API as the datastore its own cluster address stays a Service's.
            ServiceWriter::spare(&datastore, true).await.unwrap();
            assert_eq!(answers(), refused);
            ServiceWriter::spare(&datastore, false).await.unwrap();
            assert_eq!(answers(), right());
            // A node that knows its datastore does not come to that, and says so.
            let mut ours = writer();
            let reserved = |ours: &mut ServiceWriter| {
                let way = (datastore.clone(), false);
                ours.set_reserved(way, BTreeSet::new(), &Overrides::new());
            };
            reserved(&mut ours);
            for bad in [bad, taken] {
                let status = ours.pass(&bad).await.unwrap();
                let codes: Vec<_> = status.problems.iter().map(|p| p.code.as_str()).collect();
                assert_eq!(codes, ["services.refused"]);
                assert_eq!(answers(), right());
            }
        },
    );
}

/// Chains and rules that others change are written again: by event, and by the next process.
#[test]
fn what_others_do_to_chains_is_undone() {
    in_namespace("services::what_others_do_to_chains_is_undone", || async {
        machine();
        servers(&["10.1.0.1"]);
        let spec = r#","sessionAffinity":"ClientIP""#;
        let wanted = snapshot(&[service(spec), slice(&["10.1.0.1"])]);
        let vip = format!("{VIP}:80");
        let table = "inet caracal-services";
        let mut ours = writer();
        ours.pass(&wanted).await.unwrap();
        let entries = ours.pass(&wanted).await.unwrap().entries.clone();
        let mut ours = Some(ours);
        let audit = async || observe_services(&entries).await;
        for restart in [false, true] {
            for damage in [
                format!("flush chain {table} translate"),
                format!("insert rule {table} translate accept"),
                format!("insert rule {table} nat-outputm101 ip daddr {VIP} dnat ip to 10.0.0.2"),
                format!("flush chain {table} pick-endpoints-1"),
                format!("flush table {table}"),
                format!("add table {table} {{ flags dormant; }}"),
                format!(
                    "add chain {table} more {{ type filter hook output priority 0; policy drop; }}"
                ),
            ] {
                if restart {
                    ours = None;
                }
                sh(&format!("nft -f - <<'END'\n{damage}\nEND"));
                assert!(audit().await.unreadable.is_some(), "{damage}");
                let ours = ours.get_or_insert_with(writer);
                if !restart {
                    ours.changed_by_others().await;
                }
                ours.pass(&wanted).await.unwrap();
                assert_eq!(connect(&vip).as_deref(), Ok("10.1.0.1"), "{damage}");
                assert_eq!(audit().await, ServiceDifferences::default(), "{damage}");
            }
        }
        // What is as it was is left alone.
        let before = sh(&format!("nft -a list table {table} | head -1"));
        writer().pass(&wanted).await.unwrap();
        assert_eq!(sh(&format!("nft -a list table {table} | head -1")), before);
    });
}

/// Those who only ask see the counters, each element of an address, and what is wrong with the
/// whole table.
#[test]
fn the_table_is_looked_at() {
    in_namespace("services::the_table_is_looked_at", || async {
        machine();
        servers(&["10.1.0.1", "10.1.0.2"]);
        let wanted = |spec| snapshot(&[service(spec), slice(&["10.1.0.1", "10.1.0.2"])]);
        let mut ours = writer();
        let spec = r#","externalIPs":["192.0.2.7"],"sessionAffinity":"ClientIP""#;
        let status = ours.pass(&wanted(spec)).await.unwrap().clone();
        for _ in 0..5 {
            connect("10.96.0.10:80").unwrap();
        }
        connect("192.0.2.7:80").unwrap();
        let hits = observe_service_hits().await.unwrap();
        let counted: Vec<(String, u64)> = hits.iter().map(|(a, n)| (a.to_string(), *n)).collect();
        let expected = [("10.96.0.10 . tcp . 80", 5), ("192.0.2.7 . tcp . 80", 1)];
        assert_eq!(counted, expected.map(|(a, n)| (a.to_owned(), n)));
        // The next process goes on counting, and finds nothing to write.
        let mut next = writer();
        let after = next.pass(&wanted(spec)).await.unwrap();
        assert_eq!(after.changed, 0, "{after:?}");
        connect("10.96.0.10:80").unwrap();
        let hits = observe_service_hits().await.unwrap();
        assert_eq!(hits.values().sum::<u64>(), 7);
        assert_eq!(
            observe_services(&status.entries).await,
            ServiceDifferences::default()
        );
        let missing = async || {
            let mut missing = Vec::new();
            for (address, entry) in &status.entries {
                let elements = observe_service_elements(address, entry).await.unwrap();
                assert!(elements.len() >= 5, "{elements:?}");
                missing.extend(elements.into_iter().filter(|e| !e.is_there).map(|e| e.set));
            }
            missing
        };
        assert_eq!(missing().await, Vec::<String>::new());
        sh("nft add element inet caracal-services masqueraded4 '{ 192.0.2.8 . tcp . 80 }'");
        sh("nft delete element inet caracal-services hits4 '{ 192.0.2.7 . tcp . 80 }'");
        assert_eq!(missing().await, ["hits4"]);
        sh("nft delete element inet caracal-services services4 '{ 192.0.2.7 . tcp . 80 }'");
        assert_eq!(missing().await, ["hits4", "services4"]);
        let seen = observe_services(&status.entries).await;
        assert_eq!(seen.missing.len(), 2, "{seen:?}");
        assert_eq!(seen.missing[0], "hits4 192.0.2.7 . tcp . 80");
        assert_eq!(seen.unwanted, ["masqueraded4 192.0.2.8 . tcp . 80"]);
        sh("nft delete table inet caracal-services");
        assert!(observe_services(&status.entries).await.unreadable.is_some());
        assert!(observe_service_hits().await.is_err());
    });
}

#[test]
fn source_ranges_and_local_policy_are_kept() {
    in_namespace(
        "services::source_ranges_and_local_policy_are_kept",
        || async {
            machine();
            servers(&["10.1.0.1"]);
            let balanced = |ranges: &str, policy: &str| {
                let (kind, name, value) = service(&format!(
                    r#","type":"LoadBalancer","externalTrafficPolicy":"{policy}",
                "loadBalancerSourceRanges":[{ranges}]"#
                ));
                let status = r#","status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.9"}]}}}"#;
                let value = format!("{}{status}", value.strip_suffix('}').unwrap());
                (kind, name, value)
            };
            let mut ours = writer();
            let with =
                |ranges: &str, policy| snapshot(&[balanced(ranges, policy), slice(&["10.1.0.1"])]);
            ours.pass(&with("", "Cluster")).await.unwrap();
            assert!(connect("192.0.2.9:80").is_ok());
            ours.pass(&with(r#""203.0.113.0/24""#, "Cluster"))
                .await
                .unwrap();
            let timed_out = |address| {
                let kind = connect(address).unwrap_err();
                assert!(
                    matches!(
                        kind,
                        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock
                    ),
                    "{kind}"
                );
            };
            timed_out("192.0.2.9:80");
            assert!(
                connect("10.96.0.10:80").is_ok(),
                "ranges are not for cluster addresses"
            );
            ours.pass(&with(r#""10.0.0.0/24","203.0.113.0/24""#, "Local"))
                .await
                .unwrap();
            assert!(connect("192.0.2.9:80").is_ok());
            // The node itself reaches endpoints elsewhere; the address says nothing to others.
            let (kind, name, value) = slice(&["10.1.0.1"]);
            let elsewhere = (
                kind,
                name,
                value.replace(r#""nodeName":"a""#, r#""nodeName":"b""#),
            );
            ours.pass(&snapshot(&[balanced("", "Local"), elsewhere]))
                .await
                .unwrap();
            assert!(connect("192.0.2.9:80").is_ok());
            let table = sh("nft list map inet caracal-services refused4");
            assert!(table.contains("192.0.2.9 . tcp . 80 : drop"), "{table}");
        },
    );
}
