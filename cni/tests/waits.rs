//! Waits of an ADD before it begins and before it ends, and how often it opens etcd.

#![allow(clippy::unwrap_used)]

mod world;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use world::agent::FakeAgent;
use world::{Pod, address, in_node, sh, wait_for};

#[test]
fn add_returns_when_the_pod_is_announced() {
    in_node(|mut world| {
        let agent = FakeAgent::start(&world);
        world.conf["announce_wait_seconds"] = json!(60);
        let pod = Pod::new("8f2c41d09c");
        let command = world.command("ADD", "caracal-cni", Some(&pod));
        let conf = world.conf.clone();
        let answer = std::thread::scope(|scope| {
            let call = scope.spawn(|| world::run(command, &conf));
            let question = wait_for("the question", || {
                agent.asked().pop().ok_or_else(|| "none".to_owned())
            });
            assert!(!call.is_finished(), "ADD waits");
            assert_eq!(question["request"], "announced");
            assert_eq!(question["milliseconds"], 60_000);
            let network = &world.endpoints()[0]["spec"]["ipNetworks"][0];
            let network = network.as_str().unwrap().trim_end_matches("/32");
            assert_eq!(question["addresses"], json!([network]));
            let endpoints = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
            let written = world.list(endpoints)[0].mod_revision;
            assert_eq!(question["revision"], written);
            agent.announces(json!({"prefixes": ["10.90.0.0/26"], "sessions": 2}));
            call.join().unwrap()
        });
        assert!(answer.ok, "{answer:#?}");
        assert!(
            !answer.stderr.contains("not announced yet"),
            "{}",
            answer.stderr
        );
        // Zero: nobody is asked.
        world.conf["announce_wait_seconds"] = json!(0);
        assert!(world.call("ADD", &pod).ok);
        assert_eq!(agent.asked().len(), 1);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn a_node_that_starts_is_asked_again_when_it_has_made_the_route() {
    in_node(|mut world| {
        let agent = FakeAgent::start(&world);
        agent.starts(true);
        world.conf["announce_wait_seconds"] = json!(60);
        world.conf["route_wait_seconds"] = json!(60);
        let pod = Pod::new("8f2c41d09c");
        let command = world.command("ADD", "caracal-cni", Some(&pod));
        let conf = world.conf.clone();
        let times = |least: usize| {
            wait_for("questions", || match agent.asked().len() {
                asked if asked >= least => Ok(()),
                asked => Err(format!("{asked} questions")),
            });
        };
        let answer = std::thread::scope(|scope| {
            let call = scope.spawn(|| world::run(command, &conf));
            times(1);
            let spec = world.endpoints()[0]["spec"].take();
            let network = spec["ipNetworks"][0].as_str().unwrap();
            let name = spec["interfaceName"].as_str().unwrap();
            sh(&format!("ip route replace {network} dev {name} scope link"));
            times(3);
            assert!(!call.is_finished(), "ADD waits for a node that starts");
            agent.announces(json!({"prefixes": ["10.90.0.0/26"], "sessions": 2}));
            agent.starts(false);
            call.join().unwrap()
        });
        assert!(answer.ok, "{answer:#?}");
        assert!(!answer.stderr.contains("cannot tell"), "{}", answer.stderr);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn a_pod_that_is_not_announced_in_time_starts_with_a_warning() {
    in_node(|world| {
        let agent = FakeAgent::start(&world);
        let missing = "no session is established";
        agent.announces(json!({"prefixes": [], "sessions": 0, "missing": missing}));
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert!(answer.ok, "{answer:#?}");
        assert!(
            answer.stderr.contains("not announced yet") && answer.stderr.contains(missing),
            "{}",
            answer.stderr
        );
        world.del(&pod);
        world.assert_clean();
    });
}

/// Answers one health check after the other with these codes, then with the last one.
fn gate(codes: &'static [u16]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/readiness", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "GET /readiness HTTP/1.1\r\n");
            let n = count.fetch_add(1, Ordering::SeqCst).min(codes.len() - 1);
            let _ = write!(stream, "HTTP/1.1 {} x\r\n\r\n", codes[n]);
        }
    });
    (url, asked)
}

#[test]
fn readiness_gates_hold_an_add_back() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let (opening, asked) = gate(&[503, 503, 200]);
        world.conf["readiness_gates"] = json!([opening]);
        world.add(&pod);
        assert_eq!(asked.load(Ordering::SeqCst), 3, "asked until it was ready");
        world.del(&pod);
        world.assert_clean();

        let (closed, _) = gate(&[503]);
        world.conf["readiness_gates"] = json!([opening, closed]);
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 11, "{answer:#?}");
        let message = answer.json["msg"].as_str().unwrap();
        assert!(message.contains(&format!("gate {closed} is closed")));
        assert!(
            answer.json["details"].as_str().unwrap().contains("503"),
            "{answer:#?}"
        );
        // A DEL needs no readiness gate.
        world.del(&pod);
        world.assert_clean();
    });
}

/// Passes connections on to etcd and counts them.
fn counting_proxy(etcd: &str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let etcd = etcd.trim_start_matches("http://").to_owned();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
            let (near, far) = (stream.unwrap(), TcpStream::connect(&etcd).unwrap());
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (url, count)
}

#[test]
fn a_call_opens_etcd_at_most_once() {
    in_node(|mut world| {
        let _agent = FakeAgent::start(&world);
        let (proxy, count) = counting_proxy(&world.etcd.endpoint());
        world.conf["etcd_endpoints"] = json!(proxy);
        world.conf["announce_wait_seconds"] = json!(0);
        world.conf["ipam"]["assign_ipv6"] = json!(true);
        world.conf["cni.dev/valid-attachments"] = json!([]);
        let pod = Pod::new("8f2c41d09c");
        let connections = |what: &str, expected: usize| {
            assert_eq!(count.swap(0, Ordering::SeqCst), expected, "{what}");
        };
        assert!(world.run(world.command("VERSION", "caracal-cni", None)).ok);
        connections("VERSION", 0);
        let result = world.add(&pod);
        assert!(address(&result).starts_with("10.90.0."));
        connections("ADD", 1);
        assert_eq!(world.add(&pod), result);
        connections("a repeated ADD", 1);
        for verb in ["CHECK", "STATUS", "DEL", "DEL", "GC"] {
            let named = matches!(verb, "CHECK" | "DEL");
            let command = world.command(verb, "caracal-cni", named.then_some(&pod));
            let answer = world.run(command);
            assert!(answer.ok, "{verb}: {answer:#?}");
            connections(verb, 1);
        }
        world.assert_clean();
    });
}
