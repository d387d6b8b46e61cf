//! Machines on one link, with an etcd and a bridge full of pods each, as in a docker cluster.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use caracal_lab::{
    call_program, delete_namespaces, ip_batch, netns_sysctl, program_command, run_in_netns,
    wait_for, wait_until,
};
use caracal_tests::{Processes, SECOND, binary};
use serde_json::Value;

/// A test waits so long for the whole of a state; a loaded machine needs a part of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Flannel's place in etcd.
pub(crate) const PREFIX: &str = "/coreos.com/network";
/// The machine with etcd.
const ETCD: &str = "10.200.0.100:2379";

/// Numbers the sites of a process.
static SITES: AtomicU32 = AtomicU32::new(0);

/// Everything; it ends with the test.
pub(crate) struct Site {
    prefix: String,
    nodes: Vec<u8>,
    /// How long the daemons' leases last.
    pub(crate) lease: Duration,
    /// `--settle-time`.
    pub(crate) settle: Duration,
    processes: Processes,
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                eprintln!("n{node}:\n{}", self.log(*node));
                eprintln!("{}", self.log_of(&format!("c{node}")));
                eprintln!("{}", self.show(&format!("n{node}"), &["route"]).join("\n"));
            }
        }
        let names = self
            .nodes
            .iter()
            .flat_map(|n| [format!("n{n}"), format!("p{n}")]);
        let all: Vec<String> = names
            .chain(["lan".to_owned()])
            .map(|n| self.netns(&n))
            .collect();
        let _gone = delete_namespaces(&all);
    }
}

impl Site {
    /// Machines with the addresses 10.200.0.NODE, and etcd at 10.200.0.100, which is also the
    /// default router.
    pub(crate) fn new(nodes: &[u8]) -> Self {
        let number = SITES.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("fla{}x{number}", std::process::id());
        let mut site = Self {
            processes: Processes::new(&prefix),
            prefix,
            nodes: nodes.to_vec(),
            lease: 6 * SECOND,
            settle: 3 * SECOND,
        };
        let lan = site.netns("lan");
        let mut lines = vec![format!("netns add {lan}")];
        let mut wires = vec![
            "link set lo up".to_owned(),
            "link add lan type bridge".to_owned(),
            "addr add 10.200.0.100/24 dev lan".to_owned(),
            "link set lan up".to_owned(),
        ];
        for node in nodes {
            let there = site.netns(&format!("n{node}"));
            lines.push(format!("netns add {there}"));
            lines.push(format!("netns add {}", site.netns(&format!("p{node}"))));
            lines.push(format!(
                "link add lan{node} netns {lan} type veth peer name eth0 netns {there}"
            ));
            wires.push(format!("link set lan{node} master lan up"));
        }
        ip_batch(None, &lines).unwrap();
        ip_batch(Some(&lan), &wires).unwrap();
        for node in nodes {
            let lines = [
                "link set lo up".to_owned(),
                format!("addr add 10.200.0.{node}/24 dev eth0"),
                "link set eth0 up".to_owned(),
                "route add default via 10.200.0.100".to_owned(),
            ];
            let there = site.netns(&format!("n{node}"));
            ip_batch(Some(&there), &lines).unwrap();
            netns_sysctl(&there, "net/ipv4/ip_forward", "1", false).unwrap();
        }
        site.start_etcd();
        site
    }

    pub(crate) fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// What a node's daemon has said.
    pub(crate) fn log(&self, node: u8) -> String {
        self.log_of(&format!("n{node}"))
    }

    /// What the programs of a name have said.
    pub(crate) fn log_of(&self, name: &str) -> String {
        self.processes.log(name)
    }

    /// Lines of `ip -4 -o …`.
    pub(crate) fn show(&self, name: &str, arguments: &[&str]) -> Vec<String> {
        let all = [&["-4", "-d", "-o"], arguments].concat();
        self.call(name, "ip", &all)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn call(&self, name: &str, program: &str, arguments: &[&str]) -> String {
        let mut command = program_command(program).unwrap();
        command.args(arguments);
        call_program(Some(&self.netns(name)), &mut command, b"", 30 * SECOND)
            .unwrap_or_else(|e| panic!("{program} {arguments:?}: {e}"))
    }

    pub(crate) fn ip(&self, name: &str, lines: &[String]) {
        ip_batch(Some(&self.netns(name)), lines).unwrap_or_else(|e| panic!("{name}: {e}"));
    }

    pub(crate) fn start(&mut self, name: &str, netns: &str, command: &mut Command) {
        let netns = self.netns(netns);
        self.processes.start(name, Some(&netns), command);
    }

    /// The process of a name.
    pub(crate) fn id(&self, name: &str) -> u32 {
        self.processes.id(name)
    }

    /// Sends a signal, as `kill` names it (`-HUP`), to a program.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        self.processes.signal(name, signal);
    }

    /// Ends a program and waits for it; its exit code.
    pub(crate) fn end(&mut self, name: &str, signal: &str) -> Option<i32> {
        self.processes.end(name, signal).code()
    }

    /// Starts etcd on the data that it had, and waits until it serves.
    pub(crate) fn start_etcd(&mut self) {
        let mut command = program_command("etcd").unwrap();
        command.args([
            "--data-dir=etcd",
            "--listen-client-urls=http://0.0.0.0:2379",
            "--advertise-client-urls=http://10.200.0.100:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--log-level=error",
        ]);
        self.start("etcd", "lan", &mut command);
        let lan = self.netns("lan");
        let serves = || run_in_netns(&lan, || TcpStream::connect(ETCD).map(drop));
        let up = wait_for(PATIENCE, "etcd", serves, |up| matches!(up, Ok(Ok(()))));
        drop(up.expect("etcd serves"));
    }

    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> String {
        let patient = [&["--command-timeout=25s"], arguments].concat();
        self.call("lan", "etcdctl", &patient)
    }

    pub(crate) fn configure(&self, config: &str) {
        self.etcdctl(&["put", &format!("{PREFIX}/config"), config]);
    }

    /// A lease as flanneld writes it: a value that goes with a lease of etcd's.
    pub(crate) fn put_lease(&self, subnet: &str, value: &str) {
        let granted = self.etcdctl(&["lease", "grant", "86400"]);
        let id = granted.split_whitespace().nth(1).unwrap();
        let key = format!("{PREFIX}/subnets/{subnet}");
        self.etcdctl(&["put", &format!("--lease={id}"), &key, value]);
    }

    /// Key and value of a node's lease.
    pub(crate) fn lease(&self, node: u8) -> Option<(String, Value)> {
        let all = self.etcdctl(&["get", "--prefix", &format!("{PREFIX}/subnets/")]);
        let lines: Vec<&str> = all.lines().collect();
        lines.chunks(2).find_map(|pair| {
            let value: Value = serde_json::from_str(pair.get(1)?).ok()?;
            let address = format!("10.200.0.{node}");
            (value["PublicIP"] == address.as_str()).then(|| (pair[0].to_owned(), value))
        })
    }

    /// Starts the daemon of a node, with a lease of some seconds.
    pub(crate) fn start_node(&mut self, node: u8, flags: &[&str]) {
        let _before = std::fs::remove_file(self.subnet_file(node));
        self.start_again(node, flags);
    }

    /// The same with the file of before.
    pub(crate) fn start_again(&mut self, node: u8, flags: &[&str]) {
        let mut command = self.daemon(node, flags);
        self.start(&format!("n{node}"), &format!("n{node}"), &mut command);
    }

    /// The daemon of a node, to be started.
    pub(crate) fn daemon(&self, node: u8, flags: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .arg("flannel")
            .arg(format!("-etcd-endpoints=http://{ETCD}"))
            .arg("-subnet-file")
            .arg(self.subnet_file(node))
            .arg(format!("--subnet-lease-ttl={}", self.lease.as_secs()))
            .arg(format!("--settle-time={}", self.settle.as_secs()))
            .args(flags);
        command
    }

    pub(crate) fn folder(&self) -> &Path {
        self.processes.folder()
    }

    pub(crate) fn subnet_file(&self, node: u8) -> PathBuf {
        self.folder().join(format!("run{node}/subnet.env"))
    }

    /// What `subnet.env` says, once it is there.
    pub(crate) fn subnet_env(&self, node: u8) -> String {
        let read = || std::fs::read_to_string(self.subnet_file(node)).map_err(|e| e.to_string());
        wait_until(PATIENCE, "subnet.env", read)
            .unwrap_or_else(|e| panic!("{e}\n{}", self.log(node)))
    }

    /// The address of a node's bridge, with its length.
    pub(crate) fn bridge_address(&self, node: u8) -> String {
        let text = self.subnet_env(node);
        let mut lines = text
            .lines()
            .filter_map(|l| l.strip_prefix("FLANNEL_SUBNET="));
        lines.next().unwrap().to_owned()
    }

    /// The FDB entries of a node's `flannel.1`, sorted.
    pub(crate) fn fdb(&self, node: &str) -> Vec<String> {
        let all = self.call(node, "bridge", &["fdb", "show", "dev", "flannel.1"]);
        let mut entries: Vec<String> = all.lines().map(|l| l.trim().to_owned()).collect();
        entries.sort();
        entries
    }

    /// Waits until a node's port 8080 answers with a text that contains `wanted`.
    pub(crate) fn await_http(&self, node: u8, path: &str, wanted: &str) {
        let answer = || self.http(node, path);
        wait_for(PATIENCE, path, answer, |text| text.contains(wanted))
            .unwrap_or_else(|e| panic!("{e}\n{}", self.log(node)));
    }

    /// What a node's port 8080 answers to a question, its head included.
    pub(crate) fn http(&self, node: u8, path: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", 8080))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: n\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = run_in_netns(&self.netns(&format!("n{node}")), ask).unwrap();
        answer.unwrap_or_else(|e| e.to_string())
    }

    /// A bridge with one pod behind it, as docker makes them from `subnet.env`. Answers with the
    /// pod's address.
    pub(crate) fn start_pod(&self, node: u8, bridge: &str, mtu: u32) -> String {
        let (gateway, len) = bridge.split_once('/').unwrap();
        let pod = gateway.strip_suffix(".1").unwrap().to_owned() + ".9";
        let there = self.netns(&format!("p{node}"));
        let lines = [
            "link add docker0 type bridge".to_owned(),
            format!("addr add {bridge} dev docker0"),
            format!("link set docker0 mtu {mtu} up"),
            format!("link add pod0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {there}"),
            "link set pod0 master docker0 up".to_owned(),
        ];
        self.ip(&format!("n{node}"), &lines);
        let lines = [
            "link set lo up".to_owned(),
            format!("addr add {pod}/{len} dev eth0"),
            "link set eth0 up".to_owned(),
            format!("route add default via {gateway}"),
        ];
        self.ip(&format!("p{node}"), &lines);
        pod
    }

    /// Waits until a pod answers another one's echo, at full size.
    pub(crate) fn await_ping(&self, from: u8, pod: &str, size: u32) {
        let name = self.netns(&format!("p{from}"));
        let payload = (size - 28).to_string();
        let ping = || {
            let mut command = program_command("ping").unwrap();
            command.args(["-c1", "-W1", "-Mdo", "-s", &payload, pod]);
            call_program(Some(&name), &mut command, b"", 10 * SECOND).map_err(|e| e.to_string())
        };
        let what = format!("p{from} reaches {pod}");
        wait_until(PATIENCE, &what, ping).unwrap_or_else(|e| panic!("{e}\n{}", self.log(from)));
    }

    /// Waits for a state of a namespace's kernel.
    pub(crate) fn await_lines(
        &self,
        name: &str,
        arguments: &[&str],
        what: &str,
        fits: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let seen = || self.show(name, arguments);
        wait_for(PATIENCE, what, seen, |lines| fits(lines)).unwrap_or_else(|e| panic!("{e}"))
    }
}
