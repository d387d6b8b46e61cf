//! A node for tests: a network namespace without a name, an etcd in it, a Node and a pool in that
//! etcd. All of it belongs to threads and children of the test and is gone when they are.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod agent;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use caracal_datastore::{EtcdConfig, EtcdServer, EtcdStore, Store};
use caracal_model::{KeyRange, KeyValue, Txn, TxnWrite};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

/// Longest wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct World {
    pub(crate) etcd: EtcdServer,
    pub(crate) dir: PathBuf,
    pub(crate) plugins: PathBuf,
    /// Configuration of the network; tests change what they need.
    pub(crate) conf: Value,
}

/// A pod's network namespace.
pub(crate) struct Pod {
    file: File,
    pub(crate) id: String,
}

/// Answer of a plugin.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) json: Value,
    pub(crate) stderr: String,
}

/// Runs a test inside a node; prints why and returns when that is not possible here.
pub(crate) fn in_node(test: impl FnOnce(World) + Send) {
    let result = std::thread::scope(|scope| {
        let node = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                eprintln!("skipped: cannot make a network namespace ({error}); run as root");
                return;
            }
            sh("ip link set lo up");
            // The way to everywhere, as a node has one; proxy ARP answers only with it.
            sh("ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up");
            sh("ip addr add 192.0.2.1/24 dev up0 && ip route add default via 192.0.2.254");
            sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
            let Some(etcd) = EtcdServer::start() else {
                return;
            };
            test(World::new(etcd));
        });
        node.join()
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

impl World {
    fn new(etcd: EtcdServer) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("caracal-cni-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let plugins = dir.join("bin");
        fs::create_dir_all(&plugins).unwrap();
        for name in ["caracal-cni", "caracal-ipam", "calico-ipam"] {
            fs::hard_link(plugin(), plugins.join(name))
                .or_else(|_| fs::copy(plugin(), plugins.join(name)).map(drop))
                .unwrap();
        }
        let conf = json!({
            "cniVersion": "1.1.0",
            "name": "pods",
            "type": "caracal-cni",
            "etcd_endpoints": etcd.endpoint(),
            "nodename": "node-a",
            "mtu": 1420,
            "route_wait_seconds": 0,
            "log_level": "debug",
            "ipam": {"type": "caracal-ipam"},
        });
        let world = Self {
            etcd,
            dir,
            plugins,
            conf,
        };
        world.put(
            "/calico/resources/v3/projectcalico.org/nodes/node-a",
            &json!({"kind": "Node", "apiVersion": "projectcalico.org/v3",
                "metadata": {"name": "node-a"}, "spec": {"bgp": {"ipv4Address": "192.0.2.1/24"}}}),
        );
        for (name, cidr) in [("v4", "10.90.0.0/24"), ("v6", "fd90::/112")] {
            world.put(
                &format!("/calico/resources/v3/projectcalico.org/ippools/{name}"),
                &json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
                    "metadata": {"name": name}, "spec": {"cidr": cidr}}),
            );
        }
        world
    }

    /// Runs something against the etcd.
    pub(crate) fn with_store<T>(&self, work: impl AsyncFnOnce(EtcdStore) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let store = EtcdStore::new(EtcdConfig::new([self.etcd.endpoint()])).unwrap();
        runtime.block_on(work(store))
    }

    pub(crate) fn put(&self, key: &str, value: &Value) {
        let mut txn = Txn::new();
        txn.writes.push(TxnWrite::Put(
            key.to_owned(),
            value.to_string().into_bytes(),
        ));
        self.with_store(async |store| store.commit(&txn).await.unwrap());
    }

    /// Everything below a prefix.
    pub(crate) fn list(&self, prefix: &str) -> Vec<KeyValue> {
        let range = KeyRange::Prefix(prefix.to_owned());
        self.with_store(async |store| {
            let answer = store.read(std::slice::from_ref(&range)).await.unwrap();
            answer.ranges.into_iter().flatten().collect()
        })
    }

    pub(crate) fn handles(&self) -> Vec<String> {
        let prefix = "/calico/ipam/v2/handle/";
        let cut = |kv: KeyValue| kv.key[prefix.len()..].to_owned();
        self.list(prefix).into_iter().map(cut).collect()
    }

    pub(crate) fn endpoints(&self) -> Vec<Value> {
        let prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
        let parse = |kv: KeyValue| serde_json::from_slice(&kv.value).unwrap();
        self.list(prefix).into_iter().map(parse).collect()
    }

    /// Number of addresses in use, in all blocks.
    pub(crate) fn in_use(&self) -> usize {
        let used = |kv: KeyValue| {
            let block: Value = serde_json::from_slice(&kv.value).unwrap();
            let all = block["allocations"].as_array().unwrap().clone();
            all.iter().filter(|slot| !slot.is_null()).count()
        };
        self.list("/calico/ipam/v2/assignment/")
            .into_iter()
            .map(used)
            .sum()
    }

    /// Host sides of pods in the node.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let text = sh("ip -o link show");
        let name = |line: &str| {
            line.split(": ")
                .nth(1)?
                .split('@')
                .next()
                .map(str::to_owned)
        };
        let names = text.lines().filter_map(name);
        names.filter(|name| name.starts_with("cali")).collect()
    }

    /// Nothing of any attachment is left: no interface, endpoint, handle, address or pending
    /// release.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.interfaces(), Vec::<String>::new(), "interfaces");
        assert_eq!(self.endpoints(), Vec::<Value>::new(), "endpoints");
        assert_eq!(self.handles(), Vec::<String>::new(), "handles");
        assert_eq!(self.in_use(), 0, "addresses in use");
        assert_eq!(self.pending_releases(), 0, "pending releases");
    }

    pub(crate) fn pending_releases(&self) -> usize {
        caracal_cni::list_pending_releases(&self.dir.join("lib"))
            .unwrap()
            .len()
    }

    /// A call of a plugin, not yet started.
    pub(crate) fn command(&self, verb: &str, program: &str, pod: Option<&Pod>) -> Command {
        let mut command = Command::new(self.plugins.join(program));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CARACAL_LIB_DIR", self.dir.join("lib"))
            .env("CARACAL_RUN_DIR", self.dir.join("run"))
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(pod) = pod {
            command
                .env("CNI_CONTAINERID", &pod.id)
                .env("CNI_NETNS", pod.path())
                .env("CNI_IFNAME", "eth0");
        }
        command
    }

    /// Runs a call with the configuration.
    pub(crate) fn run(&self, command: Command) -> Answer {
        run(command, &self.conf)
    }

    /// A call for another interface than `eth0`.
    pub(crate) fn call_for(&self, verb: &str, pod: &Pod, ifname: &str) -> Answer {
        let mut command = self.command(verb, "caracal-cni", Some(pod));
        command.env("CNI_IFNAME", ifname);
        self.run(command)
    }

    pub(crate) fn call(&self, verb: &str, pod: &Pod) -> Answer {
        self.run(self.command(verb, "caracal-cni", Some(pod)))
    }

    pub(crate) fn add(&self, pod: &Pod) -> Value {
        let answer = self.call("ADD", pod);
        assert!(answer.ok, "ADD: {answer:#?}");
        answer.json
    }

    pub(crate) fn del(&self, pod: &Pod) {
        let answer = self.call("DEL", pod);
        assert!(answer.ok, "DEL: {answer:#?}");
        assert_eq!(answer.json, Value::Null);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Pod {
    /// A pod with this container id.
    pub(crate) fn new(id: &str) -> Self {
        let file = std::thread::scope(|scope| {
            let pod = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                File::open("/proc/thread-self/ns/net").unwrap()
            });
            pod.join().unwrap()
        });
        Self {
            file,
            id: id.to_owned(),
        }
    }

    /// Where a plugin finds the namespace.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Runs a shell line inside; its output.
    pub(crate) fn sh(&self, line: &str) -> String {
        sh(&format!(
            "nsenter --net={} sh -c '{line}'",
            self.path().display()
        ))
    }
}

/// The plugin: this crate's example, or what `CARACAL_TEST_PLUGIN` names.
fn plugin() -> PathBuf {
    if let Some(path) = std::env::var_os("CARACAL_TEST_PLUGIN") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let plugin = target.join("examples").join("plugin");
    assert!(
        plugin.exists(),
        "{} is missing: run `cargo test -p caracal-cni` without --test, or `cargo build --examples`",
        plugin.display()
    );
    plugin
}

/// Runs a call with a configuration.
pub(crate) fn run(command: Command, conf: &Value) -> Answer {
    let output = feed(command, conf.to_string().as_bytes());
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    Answer {
        ok: output.status.success(),
        json,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

pub(crate) fn feed(mut command: Command, stdin: &[u8]) -> Output {
    use std::io::Write as _;
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs a shell line that must succeed; its output.
pub(crate) fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{line}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Looks until `look` finds something; prints the last value seen when it does not in time.
pub(crate) fn wait_for<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if Instant::now() > end => panic!("{what}: last seen: {seen}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The first address of a result, without prefix length.
pub(crate) fn address(result: &Value) -> String {
    let text = result["ips"][0]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

/// The host side interface of a result.
pub(crate) fn host_interface(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}
