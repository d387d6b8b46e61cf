//! Gain of the per-host IPAM lock: many `caracal-ipam` at once on one node, ADD and then DEL, on a
//! real etcd; runs with the lock (a run directory) alternate with runs without.
//!
//! `cargo run -p caracal-ipam --example turns -- target/debug/caracal [PLUGINS ROUNDS]`, 20 and 10
//! when not given.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, Store};
use caracal_ipam::Client;
use caracal_model::{IpPool, IpPoolSpec, Key, Kind, Node, NodeSpec, Txn};

struct Bench {
    binary: PathBuf,
    endpoint: String,
    folder: PathBuf,
}

impl Bench {
    fn start(&self, verb: &str, container: &str, run: &str) -> Child {
        let conf = format!(
            r#"{{"cniVersion":"1.0.0","name":"net","type":"bridge","nodename":"node-a","etcd_endpoints":"{}",
               "ipam":{{"type":"caracal-ipam"}}}}"#,
            self.endpoint
        );
        let mut child = Command::new(&self.binary)
            .arg0("caracal-ipam")
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_NETNS", "/var/run/netns/none")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/")
            .env("CARACAL_RUN_DIR", run)
            .env("CARACAL_LIB_DIR", self.folder.join("lib"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(conf.as_bytes()).unwrap();
        child
    }

    /// All at once; how long each took, and all of them.
    fn together(&self, verb: &str, plugins: usize, run: &str) -> (Vec<Duration>, Duration) {
        let start = Instant::now();
        let waiting: Vec<_> = (0..plugins)
            .map(|n| {
                let child = self.start(verb, &format!("c{n}"), run);
                std::thread::spawn(move || {
                    let output = child.wait_with_output().unwrap();
                    let text = String::from_utf8_lossy(&output.stdout);
                    assert!(output.status.success(), "{text}");
                    start.elapsed()
                })
            })
            .collect();
        let each = waiting.into_iter().map(|t| t.join().unwrap()).collect();
        (each, start.elapsed())
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let binary = arguments.next().expect("the path of the binary");
    let mut number = |default| arguments.next().map_or(default, |a| a.parse().unwrap());
    let (plugins, rounds) = (number(20), number(10));
    let server = EtcdServer::start().expect("etcd");
    let store = EtcdStore::new(EtcdConfig::new([server.endpoint()])).unwrap();
    let mut pool = IpPool::new("p", IpPoolSpec::default());
    pool.spec.cidr = "10.0.0.0/16".to_owned();
    let node = Node::new("node-a", NodeSpec::default());
    let txn = Txn::new()
        .create(Key::resource(Kind::IpPool, "p").to_path(), pool.to_json())
        .create(Key::node(&"node-a".into()).to_path(), node.to_json());
    store.commit(&txn).await.unwrap();
    let folder = std::env::temp_dir().join(format!("caracal-turns-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("run")).unwrap();
    let bench = Bench {
        binary: std::fs::canonicalize(binary).unwrap(),
        endpoint: server.endpoint(),
        folder: folder.clone(),
    };
    let with = folder.join("run").to_str().unwrap().to_owned();
    let ways = [("with turns", with.as_str()), ("without", "/proc/none")];
    bench.together("ADD", 1, ways[0].1);
    bench.together("DEL", 1, ways[0].1);
    let mut found = vec![Vec::new(); 4];
    let mut calls = vec![Vec::new(); 4];
    for _ in 0..rounds {
        for (way, (_, run)) in ways.iter().enumerate() {
            for (n, verb) in ["ADD", "DEL"].into_iter().enumerate() {
                let (each, all) = bench.together(verb, plugins, run);
                found[2 * way + n].push(all);
                calls[2 * way + n].extend(each);
            }
        }
    }
    for (way, (name, _)) in ways.iter().enumerate() {
        for (n, verb) in ["ADD", "DEL"].into_iter().enumerate() {
            let (all, each) = (&found[2 * way + n], &calls[2 * way + n]);
            println!(
                "{name}: {plugins} {verb} at once: all done after {:?} (median of {rounds}; longest {:?}); one {:?} (median)",
                median(all.clone()),
                all.iter().max().unwrap(),
                median(each.clone()),
            );
        }
    }
    let findings = Client::new(store).check().await.unwrap();
    assert!(findings.iter().all(|f| !f.is_fault()), "{findings:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
