//! The nodes of the scenarios in which a flannel network becomes a Calico network: where the data
//! of both are, and the steps of each node.

use std::path::PathBuf;
use std::process::Command;

use caracal_lab::{ProgramOutput, program_output, wait_for, wait_until};
use caracal_tests::{SECOND, binary};
use serde_json::{Value, json};

use super::runtime::Runtime;
use super::site::{PATIENCE, Site};
use super::{FOREIGN_MAC, HOST_GW, VXLAN, mac, reach, said, start_device_of_foreign};
use super::{start_foreign, subnet};

const ETCD: &str = "http://10.200.0.100:2379";
/// The list of flannel, as runtimes have it.
pub(crate) const FLANNELS: &str =
    r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"}]}"#;
/// Exit code of what has to wait for somebody.
const REFUSED: Option<i32> = Some(5);

/// Where the data of both networks are, and how packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Vxlan,
    HostGw,
    /// VXLAN, with Kubernetes' Nodes in the place of leases and Calico's data in Kubernetes' API.
    Kubernetes,
}

impl Network {
    /// A site of these nodes, with the network's configuration.
    pub(crate) fn start(self, nodes: &[u8]) -> Site {
        let mut site = Site::new(nodes);
        site.lease = 120 * SECOND;
        match self {
            Self::Vxlan => site.configure(VXLAN),
            Self::HostGw => site.configure(HOST_GW),
            Self::Kubernetes => {
                site.start_open_api_server();
                site.start_api_server();
                let ranges = r#"{"spec":{"podCIDR":"10.5.2.0/24","podCIDRs":["10.5.2.0/24"]}}"#;
                site.kubectl(&["patch", "node", "n2", "-p", ranges]);
            }
        }
        site
    }

    /// The node of which nothing is ours, with the subnet 10.5.72.0/24.
    pub(crate) fn start_foreign(self, site: &Site) {
        match self {
            Self::Vxlan => start_foreign(site),
            Self::HostGw => site.put_lease(
                "10.5.72.0-24",
                r#"{"PublicIP":"10.200.0.3","PublicIPv6":null,"BackendType":"host-gw"}"#,
            ),
            Self::Kubernetes => {
                annotate_foreign(site);
                start_device_of_foreign(site);
            }
        }
    }

    /// What flanneld would have in the kernel of the foreign node for another one.
    pub(crate) fn reach(self, site: &Site, node: u8, bridge: &str) {
        let mac = match self {
            Self::Vxlan => mac(site, node),
            Self::HostGw => {
                let route = format!("route replace {}/24 via 10.200.0.{node}", subnet(bridge));
                return site.ip("n3", &[route]);
            }
            Self::Kubernetes => {
                let data = said(&site.kubernetes_node(&format!("n{node}")), "backend-data");
                let data: Value = serde_json::from_str(&data).unwrap();
                data["VtepMAC"].as_str().unwrap().to_owned()
            }
        };
        reach(site, node, bridge, &mac);
    }

    /// How routes of `caracal node` to other nodes look.
    pub(crate) const fn new_way(self) -> &'static str {
        match self {
            Self::HostGw => "proto 80 ",
            Self::Vxlan | Self::Kubernetes => "dev vxlan.calico",
        }
    }

    /// How those of flannel's look.
    pub(crate) const fn old_way(self) -> &'static str {
        match self {
            Self::HostGw => "proto 82 ",
            Self::Vxlan | Self::Kubernetes => "dev flannel.1",
        }
    }

    /// Starts the daemon of flannel's, on what it had before or on nothing.
    pub(crate) fn start_flannel(self, site: &mut Site, node: u8, metric: Option<u32>) {
        let metric = metric.map(|metric| metric.to_string());
        if self == Self::Kubernetes {
            let name = format!("n{node}");
            let mut environment = vec![("NODE_NAME", &*name), ("FLANNELD_IP_MASQ", "true")];
            environment.extend(metric.as_deref().map(|n| ("FLANNELD_ROUTE_METRIC", n)));
            return site.start_kubernetes_node(node, &environment);
        }
        let metric = metric.map(|metric| format!("--route-metric={metric}"));
        let flags: Vec<&str> = metric.as_deref().into_iter().chain(["-ip-masq"]).collect();
        site.start_again(node, &flags);
    }

    /// What is left of Calico's blocks.
    pub(crate) fn blocks(self, site: &Site) -> String {
        match self {
            Self::Kubernetes => site.kubectl(&["get", "ipamblocks", "-o", "name"]),
            Self::Vxlan | Self::HostGw => {
                let key = "/calico/ipam/v2/assignment";
                site.etcdctl(&["get", "--prefix", "--keys-only", key])
            }
        }
    }
}

/// The Node of the foreign node, as flanneld annotates it.
pub(crate) fn annotate_foreign(site: &Site) {
    let data = format!(r#"{{"VNI":1,"VtepMAC":"{FOREIGN_MAC}"}}"#);
    let annotations = [
        ("backend-data", &*data),
        ("backend-type", "vxlan"),
        ("kube-subnet-manager", "true"),
        ("public-ip", "10.200.0.3"),
    ];
    site.annotate("n3", &annotations);
}

/// One node of ours.
pub(crate) struct Migrant {
    pub(crate) number: u8,
    pub(crate) network: Network,
    /// Flannel's plugin, and ours.
    pub(crate) flannels: Runtime,
    pub(crate) ours: Runtime,
}

impl Migrant {
    pub(crate) fn new(site: &Site, network: Network, number: u8) -> Self {
        let folder = |kind: &str| site.folder().join(format!("{kind}{number}"));
        for kind in ["netd", "own", "lib"] {
            std::fs::create_dir_all(folder(kind)).unwrap();
        }
        let mut ours = Runtime::new(site, number, "caracal-cni");
        let mut plugin = json!({
            "type": "caracal-cni", "nodename": format!("n{number}"),
            "ipam": {"type": "caracal-ipam"}, "policy": {},
        });
        match network {
            Network::Vxlan | Network::HostGw => plugin["etcd_endpoints"] = json!(ETCD),
            Network::Kubernetes => {
                plugin["datastore_type"] = json!("kubernetes");
                plugin["kubernetes"] = json!({"kubeconfig": site.admin_config()});
            }
        }
        ours.list = json!({"name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [plugin]});
        ours.environment = vec![
            ("CARACAL_RUN_DIR".to_owned(), folder("own")),
            ("CARACAL_LIB_DIR".to_owned(), folder("lib")),
        ];
        let migrant = Self {
            number,
            network,
            flannels: Runtime::new(site, number, "flannel"),
            ours,
        };
        migrant.configure_cni(site, FLANNELS);
        migrant
    }

    pub(crate) fn name(&self) -> String {
        format!("n{}", self.number)
    }

    pub(crate) fn configure_cni(&self, site: &Site, list: &str) {
        let folder = site.folder().join(format!("netd{}", self.number));
        std::fs::write(folder.join("10-flannel.conflist"), list).unwrap();
    }

    fn environment(&self, site: &Site, command: &mut Command) {
        for (name, folder) in &self.ours.environment {
            command.env(name, folder);
        }
        command
            .env("NODENAME", self.name())
            .env("IP", format!("10.200.0.{}/24", self.number))
            .env("NO_DEFAULT_POOLS", "true")
            .env("FLANNELD_SUBNET_FILE", site.subnet_file(self.number))
            .env("CNI_CONF_DIR", self.folder(site, "netd"));
        match self.network {
            Network::Vxlan | Network::HostGw => {
                command
                    .env("ETCD_ENDPOINTS", ETCD)
                    .env("FLANNELD_ETCD_ENDPOINTS", ETCD);
            }
            Network::Kubernetes => {
                command
                    .env("DATASTORE_TYPE", "kubernetes")
                    .env("KUBECONFIG", site.admin_config())
                    .env("FLANNELD_KUBE_SUBNET_MGR", "true")
                    .env("FLANNELD_KUBECONFIG_FILE", site.flannel_config())
                    .env("FLANNELD_NET_CONFIG_PATH", site.net_conf());
            }
        }
    }

    pub(crate) fn folder(&self, site: &Site, kind: &str) -> PathBuf {
        site.folder().join(format!("{kind}{}", self.number))
    }

    /// A command on this node.
    pub(crate) fn caracal(&self, site: &Site, words: &[&str]) -> ProgramOutput {
        let mut command = Command::new(binary());
        command.args(words);
        self.environment(site, &mut command);
        let netns = site.netns(&self.name());
        let output = program_output(Some(&netns), &mut command, b"", 60 * SECOND).unwrap();
        println!("{} {words:?}: {:?}", self.name(), output.status.code());
        println!("{}{}", output.stdout, output.stderr);
        output
    }

    /// A command of the migration; each may be called again, and is where the kernel was busy with
    /// other scenarios.
    pub(crate) fn migrate(&self, site: &Site, command: &str, more: &[&str]) -> ProgramOutput {
        let networks = self.folder(site, "cni").join("networks/cbr0");
        let networks = networks.display().to_string();
        let words = ["flannel", "migrate", command, "--networks-dir", &networks];
        let words = [&words, more].concat();
        let answered = wait_until(120 * SECOND, "the kernel's answer", || {
            let output = self.caracal(site, &words);
            match output.stderr.contains("no answer from the kernel") {
                true => Err(output.stderr),
                false => Ok(output),
            }
        });
        answered.unwrap_or_else(|e| panic!("{e}"))
    }

    /// A command that is refused, and says so.
    pub(crate) fn refused(&self, site: &Site, command: &str, says: &str) {
        let output = self.migrate(site, command, &[]);
        assert_eq!(output.status.code(), REFUSED, "{command}: {says}");
        assert!(output.stderr.contains(says), "{says}: {}", output.stderr);
    }

    pub(crate) fn done(&self, site: &Site, command: &str) -> String {
        let output = self.migrate(site, command, &[]);
        assert!(output.status.success(), "{command}: {}", output.stderr);
        output.stdout
    }

    /// The steps of the plan with their states.
    pub(crate) fn steps(&self, site: &Site) -> Vec<(String, String)> {
        let output = self.migrate(site, "plan", &["-o", "json"]);
        assert!(output.status.success(), "{}", output.stderr);
        let plan: Value = serde_json::from_str(&output.stdout).unwrap();
        let text = |step: &Value, key: &str| step[key].as_str().unwrap().to_owned();
        let steps = plan["steps"].as_array().unwrap().iter();
        steps
            .map(|step| (text(step, "step"), text(step, "state")))
            .collect()
    }

    pub(crate) fn state(&self, site: &Site, step: &str) -> String {
        let steps = self.steps(site).into_iter();
        let mut states = steps.filter(|(name, _)| name == step);
        states.next().map(|(_, state)| state).unwrap_or_default()
    }

    /// Restarts the daemon of flannel's.
    pub(crate) fn restart_flannel(&self, site: &mut Site, metric: Option<u32>) {
        assert_eq!(site.end(&self.name(), "-TERM"), Some(0));
        self.network.start_flannel(site, self.number, metric);
    }

    /// Starts `caracal node`, and waits until others can send to it.
    pub(crate) fn start_node(&self, site: &mut Site) {
        let mut command = Command::new(binary());
        command.arg("node");
        self.environment(site, &mut command);
        site.start(&format!("c{}", self.number), &self.name(), &mut command);
        let state = || self.state(site, "node");
        wait_for(PATIENCE, "the node's tunnel address", state, |s| {
            s == "done"
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", site.log_of(&format!("c{}", self.number))));
    }
}
