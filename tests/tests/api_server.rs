//! The strict API server of the tests, held to its word: by a foreign client (`kubectl`) and over
//! plain HTTP where the answers of a server have to be seen as they are.

#[path = "api_server/beside.rs"]
mod beside;
#[path = "api_server/commands.rs"]
mod commands;
#[path = "api_server/deaths.rs"]
mod deaths;
#[path = "api_server/emulator.rs"]
mod emulator;
#[path = "api_server/exchanged.rs"]
mod exchanged;
#[path = "api_server/http.rs"]
mod http;
#[path = "api_server/lab.rs"]
mod lab;
#[path = "api_server/limits.rs"]
mod limits;
#[path = "api_server/newer_group.rs"]
mod newer_group;
#[path = "api_server/objects.rs"]
mod objects;
#[path = "api_server/rights.rs"]
mod rights;
#[path = "api_server/services.rs"]
mod services;
#[path = "api_server/store.rs"]
mod store;
#[path = "api_server/streamed.rs"]
mod streamed;
#[path = "api_server/watches.rs"]
mod watches;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use caracal_datastore::EtcdServer;
use caracal_lab::wait_until;
use caracal_tests::possible;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd, the server over it, and a place for files.
struct Server {
    etcd: EtcdServer,
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    /// `None` when something is missing here.
    fn start(scenario: &str, arguments: &[&str]) -> Option<Self> {
        if !possible(scenario, &["kubectl"]) {
            return None;
        }
        let folder = std::env::temp_dir().join(format!("api-{scenario}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let etcd = EtcdServer::start().expect("etcd is there");
        let mut arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        // Who does not ask for it would meet it or not, by the speed of what was asked before.
        const INITIALIZING: &str = "--initializing-milliseconds";
        if !arguments.iter().any(|argument| argument == INITIALIZING) {
            arguments.extend([INITIALIZING.to_owned(), "0".to_owned()]);
        }
        let (process, address) = spawn(&etcd, "127.0.0.1:0", &arguments);
        Some(Self {
            etcd,
            process,
            address,
            folder,
            arguments,
        })
    }

    /// Kills the server and starts it again at the same address.
    fn restart(&mut self) {
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it ends");
        let address = self.address.to_string();
        self.process = spawn(&self.etcd, &address, &self.arguments).0;
    }

    /// A file for `kubectl`.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let cluster = json!({"server": format!("http://{}", self.address)});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        let config = self.write("kubeconfig", &config.to_string());
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env("KUBECONFIG", config)
            .env("HOME", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// Output of `kubectl`; fails when `kubectl` does.
    fn kubectl(&self, arguments: &[&str]) -> String {
        match self.try_kubectl(arguments) {
            Ok(text) => text,
            Err(text) => panic!("kubectl {}: {text}", arguments.join(" ")),
        }
    }

    /// Its output, or its complaint.
    fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self
            .kubectl_command(arguments)
            .output()
            .expect("kubectl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// One object, by `kubectl get -o json`.
    fn object(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.kubectl(&arguments)).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts the program and waits until it says where it listens.
fn spawn(etcd: &EtcdServer, listen: &str, arguments: &[String]) -> (Child, SocketAddr) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_caracal-test-api-server"))
        .args(["--listen", listen, "--etcd", &etcd.endpoint()])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let output = process.stdout.take().expect("a pipe");
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("it says where it listens");
    let address = line.trim().rsplit('/').next().unwrap_or_default();
    let address = address
        .parse()
        .unwrap_or_else(|_| panic!("no address: {line:?}"));
    (process, address)
}

/// The definitions that Caracal ships.
fn definitions() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    folder.display().to_string()
}

fn pool(name: &str, cidr: &str) -> String {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
        "metadata": {"name": name}, "spec": {"cidr": cidr}})
    .to_string()
}

fn pod(name: &str, node: Option<&str>) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    if let Some(node) = node {
        spec["nodeName"] = node.into();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": name, "namespace": "default"}})
}

#[test]
fn kubectl_creates_lists_patches_labels_and_deletes() {
    let Some(server) = Server::start("kubectl", &[]) else {
        return;
    };
    server.kubectl(&["apply", "-k", &definitions()]);
    let established = ["wait", "--for=condition=Established", "crd", "--all"];
    server.kubectl(&established);
    let file = server.write("pool.json", &pool("p1", "10.1.0.0/16"));
    let text = server.kubectl(&["apply", "-f", &file]);
    assert!(text.contains("created"), "{text}");
    let text = server.kubectl(&["apply", "-f", &file]);
    assert!(text.contains("unchanged"), "{text}");
    // Defaults of the schema.
    let stored = server.object(&["ippool", "p1"]);
    assert_eq!(stored["spec"]["nodeSelector"], "all()");
    assert_eq!(stored["metadata"]["generation"], 1);
    server.kubectl(&["label", "ippool", "p1", "site=a"]);
    assert!(
        server
            .kubectl(&["get", "ippools", "-l", "site=a"])
            .contains("p1")
    );
    assert!(
        !server
            .kubectl(&["get", "ippools", "-l", "site!=a"])
            .contains("p1")
    );
    let patch = [
        "patch",
        "ippool",
        "p1",
        "--type=merge",
        "-p",
        r#"{"spec":{"disabled":true}}"#,
    ];
    server.kubectl(&patch);
    let stored = server.object(&["ippool", "p1"]);
    assert_eq!(stored["spec"]["disabled"], true);
    // Labels do not count, the specification does.
    assert_eq!(stored["metadata"]["generation"], 2);
    let moved = [
        "patch",
        "ippool",
        "p1",
        "--type=merge",
        "-p",
        r#"{"spec":{"cidr":"10.2.0.0/16"}}"#,
    ];
    let refused = server.try_kubectl(&moved).expect_err("it is immutable");
    assert!(refused.contains("it cannot be changed"), "{refused}");
    let wrong = server.write("wrong.json", &pool("p2", "x").replace("cidr", "cdir"));
    let refused = server
        .try_kubectl(&["create", "-f", &wrong])
        .expect_err("no cidr");
    assert!(refused.contains("spec.cidr: Required value"), "{refused}");
    server.kubectl(&["delete", "ippool", "p1"]);
    let gone = server
        .try_kubectl(&["get", "ippool", "p1"])
        .expect_err("it is gone");
    assert!(
        gone.contains(r#"ippools.crd.projectcalico.org "p1" not found"#),
        "{gone}"
    );
}

#[test]
fn kubectl_works_with_the_core() {
    let Some(server) = Server::start("core", &[]) else {
        return;
    };
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    let space = server.write("space.json", &space.to_string());
    server.kubectl(&["apply", "-f", &space]);
    server.kubectl(&["-n", "shop", "get", "serviceaccount", "default"]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = server.write("node.json", &node.to_string());
    server.kubectl(&["apply", "-f", &node]);
    server.kubectl(&[
        "annotate",
        "node",
        "n1",
        "projectcalico.org/IPv4Address=10.0.0.1/24",
    ]);
    server.kubectl(&["cordon", "n1"]);
    assert_eq!(
        server.object(&["node", "n1"])["spec"]["unschedulable"],
        true
    );
    let web = server.write("web.json", &pod("web", Some("n1")).to_string());
    server.kubectl(&["create", "-f", &web]);
    let selected = [
        "get",
        "pods",
        "-A",
        "--field-selector",
        "spec.nodeName=n1",
        "-o",
        "name",
    ];
    assert_eq!(server.kubectl(&selected), "pod/web\n");
    let none = [
        "get",
        "pods",
        "-A",
        "--field-selector",
        "spec.nodeName=n2",
        "-o",
        "name",
    ];
    assert_eq!(server.kubectl(&none), "");
    // A strategic patch: what kubectl sends for the kinds of the core by default.
    let patch = r#"{"metadata":{"annotations":{"a":"1"}},"spec":{"tolerations":[{"key":"k"}]}}"#;
    server.kubectl(&["patch", "pod", "web", "-p", patch]);
    assert_eq!(
        server.object(&["pod", "web"])["metadata"]["annotations"]["a"],
        "1"
    );
    // Its kubelet would end it: until then it is on its way out.
    server.kubectl(&["delete", "pod", "web", "--wait=false"]);
    let leaving = server.object(&["pod", "web"]);
    assert!(
        leaving["metadata"]["deletionTimestamp"].is_string(),
        "{leaving}"
    );
    server.kubectl(&["delete", "pod", "web", "--grace-period=0", "--force"]);
    server
        .try_kubectl(&["get", "pod", "web"])
        .expect_err("it is gone");
    server.kubectl(&["delete", "namespace", "shop"]);
    let gone = ["-n", "shop", "get", "serviceaccount", "default"];
    server
        .try_kubectl(&gone)
        .expect_err("it went with its namespace");
}

#[test]
fn a_restart_keeps_everything() {
    let Some(mut server) = Server::start("restart", &[]) else {
        return;
    };
    server.kubectl(&["apply", "-k", &definitions()]);
    let file = server.write("pool.json", &pool("p1", "10.1.0.0/16"));
    server.kubectl(&["apply", "-f", &file]);
    let before = server.object(&["ippool", "p1"]);
    server.restart();
    // For a moment custom resources are not there yet: kubectl is told to come again, and does.
    assert_eq!(server.object(&["ippool", "p1"]), before);
    server.etcd.kill();
    server.etcd.run();
    let found = wait_until(PATIENCE, "the server to have its etcd again", || {
        server.try_kubectl(&["get", "ippool", "p1", "-o", "name"])
    });
    assert_eq!(
        found.expect("it serves"),
        "ippool.crd.projectcalico.org/p1\n"
    );
}

#[test]
fn kubectl_watches() {
    let Some(server) = Server::start("watch", &[]) else {
        return;
    };
    server.kubectl(&["apply", "-k", &definitions()]);
    let file = server.write("pool.json", &pool("p1", "10.1.0.0/16"));
    server.kubectl(&["apply", "-f", &file]);
    let watch = [
        "get",
        "ippools",
        "--watch",
        "--output-watch-events",
        "--no-headers",
    ];
    let mut process = server
        .kubectl_command(&watch)
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl runs");
    let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let mut next = move || lines.next().expect("a line").expect("text");
    assert!(next().starts_with("ADDED"));
    server.kubectl(&["label", "ippool", "p1", "a=b"]);
    assert!(next().starts_with("MODIFIED"));
    server.kubectl(&["delete", "ippool", "p1"]);
    assert!(next().starts_with("DELETED"));
    process.kill().expect("it is killed");
    process.wait().expect("it ends");
}
