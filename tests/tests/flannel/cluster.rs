//! Kubernetes' API beside a site's etcd: Nodes with their `podCIDRs`, and flannel's account with
//! the rights of its own manifest.

use std::net::TcpStream;
use std::process::Command;

use caracal_lab::{call_program, program_command, run_in_netns, wait_for};
use caracal_tests::{SECOND, binary};
use serde_json::{Value, json};

use super::site::{PATIENCE, Site};

const SERVER: &str = "10.200.0.100:6443";
/// A second server over the same etcd, for the administrator: `kubectl` sends no token without TLS.
const OPEN_SERVER: &str = "10.200.0.100:6444";
const NET_CONF: &str =
    r#"{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}"#;

fn rule(group: &str, resources: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resources], "verbs": verbs})
}

/// Nodes n1 to n3, the second without a range, and pods on it and on the first.
fn objects() -> Value {
    let rbac = "rbac.authorization.k8s.io/v1";
    let node = |name: &str, cidr: Option<&str>| {
        let spec = match cidr {
            Some(cidr) => json!({"podCIDR": cidr, "podCIDRs": [cidr]}),
            None => json!({}),
        };
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})
    };
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]}})
    };
    json!([
        pod("young"),
        pod("ended"),
        node("n1", Some("10.5.1.0/24")),
        node("n2", None),
        node("n3", Some("10.5.72.0/24")),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-flannel"}},
        {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "flannel-x", "namespace": "kube-flannel"},
            "spec": {"nodeName": "n2", "containers": [{"name": "f", "image": "f"}]}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "flannel"}, "rules": [
            rule("", "pods", &["get"]),
            rule("", "nodes", &["get", "list", "watch"]),
            rule("", "nodes/status", &["patch"]),
        ]},
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "flannel"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flannel"},
            "subjects": [{"kind": "ServiceAccount", "name": "flannel", "namespace": "kube-flannel"}]},
    ])
}

fn kubeconfig(server: &str, token: &str) -> Value {
    let cluster = json!({"server": format!("http://{server}")});
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    })
}

impl Site {
    fn write(&self, name: &str, text: &str) -> String {
        let (path, new) = (self.folder().join(name), format!("{name}.new"));
        // Whole at any time: a node that has just started may be reading it.
        let new = self.folder().join(new);
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path.display().to_string()
    }

    /// Starts the API server, or starts it again with what it had.
    pub(crate) fn start_api_server(&mut self) {
        let account = "system:serviceaccount:kube-flannel:flannel";
        let groups =
            "system:serviceaccounts,system:serviceaccounts:kube-flannel,system:authenticated";
        let tokens = format!("flannel,{account},flannel,\"{groups}\"\n");
        let tokens = self.write("tokens.csv", &tokens);
        self.serve("api", SERVER, &["--token-auth-file", &tokens]);
    }

    /// Starts that of the administrator, which makes the first objects.
    pub(crate) fn start_open_api_server(&mut self) {
        let objects = self.write("objects.json", &objects().to_string());
        let flags = ["--calico-definitions", "--objects", &objects];
        self.serve("open-api", OPEN_SERVER, &flags);
    }

    fn serve(&mut self, name: &str, address: &str, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_caracal-test-api-server"));
        command.args(["--listen", address]).args(arguments);
        self.start(name, "lan", &mut command);
        let lan = self.netns("lan");
        let serves = || run_in_netns(&lan, || TcpStream::connect(address).map(drop));
        let up = wait_for(PATIENCE, name, serves, |up| matches!(up, Ok(Ok(()))));
        drop(up.expect("it serves"));
    }

    /// The administrator's kubeconfig.
    pub(crate) fn admin_config(&self) -> String {
        self.write("admin", &kubeconfig(OPEN_SERVER, "").to_string())
    }

    /// That of flannel's account.
    pub(crate) fn flannel_config(&self) -> String {
        self.write("flannel", &kubeconfig(SERVER, "flannel").to_string())
    }

    /// The file with the network's configuration.
    pub(crate) fn net_conf(&self) -> String {
        self.folder().join("net-conf.json").display().to_string()
    }

    /// An administrator's command.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let mut command = program_command("kubectl").unwrap();
        command
            .args(arguments)
            .env("HOME", self.folder())
            .env("KUBECONFIG", self.admin_config());
        call_program(Some(&self.netns("lan")), &mut command, b"", 30 * SECOND)
            .unwrap_or_else(|e| panic!("kubectl {arguments:?}: {e}"))
    }

    pub(crate) fn kubernetes_node(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "node", name, "-o", "json"])).unwrap()
    }

    /// Starts the daemon of a node with flannel's account.
    pub(crate) fn start_kubernetes_node(&mut self, node: u8, environment: &[(&str, &str)]) {
        let mut command = Command::new(binary());
        command
            .args([
                "flannel",
                "-kube-subnet-mgr",
                "-settle-time=3",
                "-kubeconfig-file",
            ])
            .arg(self.flannel_config())
            .arg("-net-config-path")
            .arg(self.write("net-conf.json", NET_CONF))
            .arg("-subnet-file")
            .arg(self.subnet_file(node))
            .envs(environment.iter().copied());
        self.start(&format!("n{node}"), &format!("n{node}"), &mut command);
    }

    /// Sets flannel's annotations of a Node.
    pub(crate) fn annotate(&self, node: &str, annotations: &[(&str, &str)]) {
        let named = |(name, text): &(&str, &str)| format!("flannel.alpha.coreos.com/{name}={text}");
        let all: Vec<String> = annotations.iter().map(named).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        self.kubectl(&[&["annotate", "--overwrite", "node", node], &all[..]].concat());
    }
}
