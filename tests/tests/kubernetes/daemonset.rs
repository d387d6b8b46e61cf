//! `kubectl apply -k` of an overlay on a cluster that has Nodes and nothing of Caracal, and then
//! nodes that are what the DaemonSet on the API server says: its containers in `crun`, with their
//! command, rights, environment, volumes and the token of their account. The lab plays kubelet and
//! scheduler, and the container runtime that calls the plugin as it was installed.
//!
//! Not played: images (the program and the libraries of this machine are mounted), seccomp, limits
//! of memory, and priorities.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};

use caracal_lab::{
    API_PORT, Datastore, ETCD_PORT, Extent, Lab, NodeLayout, PodState, RunningProcess, Topology,
    UpOptions, call_program, container_id, delete_namespaces, error_chain, netns_path,
    parse_cni_result, program_command, run_in_netns, wait_until,
};
use caracal_model::NodeStatus;
use caracal_tests::{
    Mount, SECOND, Stack, await_status, binary, caracals, crun, exit_code, has_no_problem,
    has_problem, kubectl, kubernetes_object, kubernetes_objects, possible, settled, write_bundle,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: daemonset
description: two Nodes as their kubelets make them, and a pod bound to each
datastore: kubernetes
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, pods: 1}
  - {name: node2, segment: lan, pods: 1}
";

/// The ranges of pods that kubeadm was told; most of these clusters have no IPv6.
const POD_SUBNET: &str = "10.251.0.0/16";
pub(super) const POD_SUBNET6: &str = "fd00:251::/64";
/// Where pods find the token of their account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What the image is made of.
const OF_THE_MACHINE: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

#[test]
fn a_bare_cluster_needs_one_command() {
    applied(
        "a_bare_cluster_needs_one_command",
        "overlays/kubernetes",
        |lab, _| {
            let routes = lab.routes("node1").unwrap();
            let by_vxlan = |dev: &String| dev.starts_with("vxlan");
            assert!(
                !routes.iter().filter_map(|r| r.dev.as_ref()).any(by_vxlan),
                "{routes:?}"
            );
            parts_say_who_they_are(lab);
            let pool = kubernetes_object(lab, "ippools", "default-ipv4-ippool");
            assert_eq!(pool["spec"]["cidr"], POD_SUBNET, "kubeadm was told");
            a_pool_over_the_services_is_named(lab);
        },
    );
}

/// Every node knows the Services' range that kubeadm was told.
fn a_pool_over_the_services_is_named(lab: &Lab) {
    let pool = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
        "metadata": {"name": "over-services"},
        "spec": {"cidr": "10.100.0.0/16", "disabled": true}});
    kubectl(lab, &["apply", "-f", "-"], pool.to_string().as_bytes());
    for node in caracals(lab) {
        await_status(lab, &node, 60 * SECOND, "the pool is named", |status| {
            has_problem(
                status,
                "datastore.ranges",
                "10.96.0.0/12 of the cluster's Services",
            )
        });
    }
    kubectl(lab, &["delete", "ippools", "over-services"], b"");
    for node in caracals(lab) {
        await_status(lab, &node, 60 * SECOND, "the pool is gone", |status| {
            has_no_problem(status, "datastore.ranges")
        });
    }
}

/// In the audit log of the API server: product, part, version and commit.
fn parts_say_who_they_are(lab: &Lab) {
    let path = lab.folder().path().join("kubernetes/audit.log");
    let log = std::fs::read_to_string(&path).unwrap();
    let entries = log.lines().map(|line| serde_json::from_str(line).unwrap());
    for (account, part) in [("caracal-node", "node"), ("caracal-cni-plugin", "cni")] {
        let mut agents: Vec<String> = entries
            .clone()
            .filter(|entry: &Value| entry["user"].as_str().unwrap().ends_with(account))
            .map(|entry| entry["userAgent"].as_str().unwrap_or_default().to_owned())
            .collect();
        agents.sort();
        agents.dedup();
        let expected = format!("caracal-{part}/{} (linux/", env!("CARGO_PKG_VERSION"));
        // The account of the node has the containers' commands, too.
        let found = agents.iter().find(|agent| agent.starts_with(&expected));
        let found = found.unwrap_or_else(|| panic!("{account}: {agents:?}"));
        assert!(found.contains(") caracal/"), "{found}");
        assert!(
            agents.iter().all(|agent| agent.starts_with("caracal-")),
            "{agents:?}"
        );
    }
}

#[test]
fn a_bare_cluster_with_vxlan_needs_one_command() {
    applied(
        "a_bare_cluster_with_vxlan_needs_one_command",
        "overlays/kubernetes-vxlan",
        |lab, _| {
            // Until node2 has published its VTEP, its routes stay unencapsulated.
            wait_until(60 * SECOND, "a route through vxlan.calico", || {
                let routes = lab.routes("node1").map_err(|e| error_chain(&e))?;
                let by_vxlan = |dev: &String| dev == "vxlan.calico";
                match routes.iter().filter_map(|r| r.dev.as_ref()).any(by_vxlan) {
                    true => Ok(()),
                    false => Err(format!("{routes:?}")),
                }
            })
            .unwrap_or_else(|e| panic!("{e}"));
            let status = lab.node_status("node1").unwrap();
            assert!(status.peers.is_empty(), "BGP is off: {:?}", status.peers);
        },
    );
}

/// With an etcd that is there: the plugin and the nodes need nothing of Kubernetes.
#[test]
fn etcd_is_all_that_the_etcd_overlay_needs() {
    let scenario = "etcd_is_all_that_the_etcd_overlay_needs";
    applied(scenario, "overlays/etcd", |lab, _| {
        for node in caracals(lab) {
            let stored = endpoint_in_etcd(lab, &node);
            assert_eq!(stored["metadata"]["labels"]["role"], Value::Null);
        }
        assert_eq!(kubernetes_objects(lab, "ipamblocks"), [] as [Value; 0]);
    });
}

/// The plugin reads pods with the kubeconfig that the nodes write.
#[test]
fn the_etcd_overlay_with_pods_describes_them() {
    let scenario = "the_etcd_overlay_with_pods_describes_them";
    applied(scenario, "etcd-pods", |lab, _| {
        for node in caracals(lab) {
            let stored = endpoint_in_etcd(lab, &node);
            assert_eq!(stored["metadata"]["labels"]["role"], "db", "{stored}");
        }
    });
}

/// The endpoint of the pod that is bound to a node.
fn endpoint_in_etcd(lab: &Lab, node: &str) -> Value {
    let name = format!("{node}-k8s-{node}--p1-eth0");
    let key = format!("/calico/resources/v3/projectcalico.org/workloadendpoints/default/{name}");
    let text = lab.etcdctl(&["get", &key, "--print-value-only"], b"");
    serde_json::from_str(&text.unwrap()).unwrap_or_else(|e| panic!("{key}: {e}"))
}

/// Tells the nodes what an administrator writes into the ConfigMap before it is applied.
fn configure(lab: &Lab, data: &Value) {
    let patch = json!({"data": data});
    let arguments = [
        "-n",
        "kube-system",
        "patch",
        "configmap",
        "caracal-config",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ];
    kubectl(lab, &arguments, b"");
}

/// Leaves what kubeadm leaves in a cluster that it makes.
fn name_pod_subnet(lab: &Lab) {
    let configuration = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnetworking:\n  \
         podSubnet: {POD_SUBNET},{POD_SUBNET6}\n  serviceSubnet: 10.96.0.0/12\n"
    );
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
        "data": {"ClusterConfiguration": configuration}});
    kubectl(lab, &["create", "-f", "-"], map.to_string().as_bytes());
}

/// Applies a folder of `deploy`, and runs what is on the API server then.
pub(super) fn applied(scenario: &str, overlay: &str, and: impl Fn(&Lab, &[PodState])) {
    if !possible(scenario, &["kubectl", "openssl", "crun", "nft"]) {
        return;
    }
    let stack = match overlay.contains("dual-stack") {
        true => Stack::Dual,
        false => Stack::Ipv4,
    };
    let name = format!("ds-{}", overlay.trim_start_matches("overlays/"));
    let mut lab = bare(&name, &stack.topology(TOPOLOGY));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let folder = folder.join(overlay).display().to_string();
    name_pod_subnet(&lab);
    let said = kubectl(&lab, &["apply", "-k", &folder], b"");
    assert!(
        said.contains("daemonset.apps/caracal-node created"),
        "{said}"
    );
    let again = kubectl(&lab, &["apply", "-k", &folder], b"");
    assert!(!again.contains("created"), "{again}");
    let server = lab.layout().etcd[0].address;
    if overlay.contains("etcd") {
        let etcd = format!("http://{server}:{ETCD_PORT}");
        configure(&lab, &json!({"ETCD_ENDPOINTS": etcd}));
        lab.use_datastore(Datastore::Etcd);
    } else if overlay.contains("no-kube-proxy") {
        let (host, port) = (server.to_string(), API_PORT.to_string());
        let server = json!({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port});
        configure(&lab, &server);
    }
    kubectl(&lab, &["label", "pod", "--all", "role=db"], b"");

    let set = kubernetes_object(&lab, "daemonsets", "caracal-node");
    let pod = &set["spec"]["template"]["spec"];
    let mut running: Vec<_> = caracals(&lab)
        .iter()
        .map(|node| start(&lab, node, pod))
        .collect();
    for node in caracals(&lab) {
        // A settled node may see one that started later and has not said all of itself yet.
        let well = |status: &NodeStatus| {
            settled(status)?;
            match status.problems.is_empty() {
                true => Ok(()),
                false => Err(format!("{:?}", status.problems)),
            }
        };
        await_status(
            &lab,
            &node,
            60 * SECOND,
            "settled and without problems",
            well,
        );
        answers_probes(&lab, &node, &pod["containers"][0]);
    }
    let pods: Vec<_> = caracals(&lab)
        .iter()
        .map(|node| attached(&lab, node))
        .collect();
    for from in &pods {
        for to in &pods {
            for family in stack.families() {
                reaches(&from.netns, to.address_of(*family).expect("an address"));
            }
        }
    }
    and(&lab, &pods);
    let (code, said) = exit_code(&lab, "node1", &["ipam", "check"]);
    assert_eq!(code, 0, "{said}");
    for process in &mut running {
        process.stop(30 * SECOND).unwrap();
    }
    let netns: Vec<_> = pods.into_iter().map(|pod| pod.netns).collect();
    match overlay {
        "overlays/kubernetes" => uninstall(&lab, &netns),
        _ => delete_namespaces(&netns).unwrap(),
    }
}

/// `deploy/uninstall` on the first node: no pod is made any more, the kernel is as it was, and the
/// plugin goes with its last pod.
fn uninstall(lab: &Lab, pods: &[String]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/uninstall");
    let folder = folder.display().to_string();
    kubectl(lab, &["apply", "-k", &folder], b"");
    let set = kubernetes_object(lab, "daemonsets", "caracal-uninstall");
    let pod = &set["spec"]["template"]["spec"];
    let [container] = &pod["containers"].as_array().unwrap()[..] else {
        panic!("one container");
    };
    let layout = lab.layout().node("node1").unwrap();
    let dir = bundle_of(lab, layout, pod, container);
    let mut command = crun(&dir, &format!("{}-uninstall", layout.netns));
    let log = lab.folder().log("node1");
    let mut running = RunningProcess::start(&layout.netns, &mut command, &log).unwrap();
    let configuration = of_host(lab, "node1", "/etc/cni/net.d/10-caracal.conflist");
    let plugin = of_host(lab, "node1", "/opt/cni/bin/caracal-cni");
    let gone = |path: &Path| {
        let what = format!("{} to go", path.display());
        let is_gone = || match path.exists() {
            true => Err(lab.folder().log_tail("node1", 5)),
            false => Ok(()),
        };
        wait_until(60 * SECOND, &what, is_gone).unwrap_or_else(|e| panic!("{e}"));
    };
    gone(&configuration);
    wait_until(60 * SECOND, "our routes to go", || {
        let routes = lab.routes("node1").map_err(|e| error_chain(&e))?;
        let ours = routes
            .iter()
            .filter(|r| r.protocol.as_deref() == Some("80"));
        match ours.count() {
            0 => Ok(()),
            _ => Err(format!("{routes:?}")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
    assert!(plugin.exists(), "a pod of it is there");
    delete_namespaces(pods).unwrap();
    gone(&plugin);
    let rest = configuration.parent().unwrap().read_dir().unwrap();
    let rest: Vec<_> = rest.map(|entry| entry.unwrap().file_name()).collect();
    assert!(rest.is_empty(), "{rest:?}");
    running.stop(30 * SECOND).unwrap();
}

/// A lab with an API server that has Nodes, pods and Calico's kinds, and no node that runs; the
/// accounts and rights that labs have are taken away.
fn bare(name: &str, text: &str) -> Lab {
    let topology = Topology::parse(text, name).unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let lab_name = caracal_lab::LabName::new(name).unwrap();
    let _leftovers = caracal_lab::down(&lab_name);
    let mut options = UpOptions::test(binary(), name);
    options.extent = Extent::Network;
    let lab = Lab::up(topology, text, options, &|_| {});
    let lab = lab.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    // For commands in the nodes.
    let program = std::path::absolute(binary()).unwrap();
    lab.folder().link_binary(&program).unwrap();
    for account in ["caracal-node", "caracal-cni-plugin"] {
        for kind in ["clusterrolebinding", "clusterrole"] {
            kubectl(&lab, &["delete", kind, account], b"");
        }
        kubectl(
            &lab,
            &["-n", "kube-system", "delete", "serviceaccount", account],
            b"",
        );
    }
    for kind in ["rolebinding", "role"] {
        kubectl(
            &lab,
            &["-n", "kube-system", "delete", kind, "caracal-node"],
            b"",
        );
    }
    lab
}

/// A folder of the host of a node.
fn of_host(lab: &Lab, node: &str, path: &str) -> PathBuf {
    match path {
        "/proc/sys/net" => path.into(),
        "/var/lib/calico" => lab.folder().lib(node),
        "/var/run/caracal" => lab.folder().run(node),
        path => lab
            .folder()
            .run(node)
            .join("host")
            .join(path.trim_start_matches('/')),
    }
}

/// The token of a pod's account, with the CA, as the kubelet mounts them.
fn account(lab: &Lab, node: &str, name: &str) -> Mount {
    let folder = lab.folder().run(node).join("account");
    std::fs::create_dir_all(&folder).unwrap();
    let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{name}/token");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3607}});
    let arguments = ["create", "--raw", &path, "-f", "-"];
    let answer = kubectl(lab, &arguments, request.to_string().as_bytes());
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let token = answer["status"]["token"].as_str().expect("a token");
    std::fs::write(folder.join("token"), token).unwrap();
    std::fs::write(folder.join("namespace"), "kube-system").unwrap();
    std::fs::copy(
        lab.folder().kubernetes().join("ca.pem"),
        folder.join("ca.crt"),
    )
    .unwrap();
    Mount::read_only(&folder, ACCOUNT)
}

/// What a container is told: the ConfigMaps that it names, its own variables, and where the API
/// server is.
fn environment(lab: &Lab, node: &str, container: &Value) -> Vec<String> {
    // What runtimes set for an image that says nothing.
    let mut all =
        vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    let layout = lab.layout();
    let uplink = &layout.node(node).unwrap().uplink;
    let server = layout.etcd.iter().find(|leg| leg.segment == uplink.segment);
    let server = server
        .expect("the API server on the node's segment")
        .address;
    all.push(format!("KUBERNETES_SERVICE_HOST={server}"));
    all.push(format!("KUBERNETES_SERVICE_PORT={API_PORT}"));
    for source in container["envFrom"].as_array().into_iter().flatten() {
        let map = kubernetes_object(
            lab,
            "configmaps",
            source["configMapRef"]["name"].as_str().unwrap(),
        );
        let data = map["data"].as_object().unwrap();
        all.extend(
            data.iter()
                .map(|(k, v)| format!("{k}={}", v.as_str().unwrap())),
        );
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("spec.nodeName") => node,
            Some(other) => panic!("{other} is not known to this test"),
            None => variable["value"].as_str().unwrap(),
        };
        all.push(format!("{}={value}", variable["name"].as_str().unwrap()));
    }
    all
}

/// The mounts of a container by the pod's volumes.
fn mounts(lab: &Lab, node: &str, pod: &Value, container: &Value) -> Vec<Mount> {
    let mut all = vec![Mount::read_only(Path::new("/usr"), "/usr")];
    let program = std::path::absolute(binary()).unwrap();
    all.push(Mount::read_only(&program, "/caracal"));
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|v| v["name"] == mount["name"]).unwrap();
        let source = match (volume["hostPath"]["path"].as_str(), &volume["secret"]) {
            (Some(path), _) => of_host(lab, node, path),
            // One that is not there, which is an empty folder.
            (None, secret) => {
                assert_eq!(secret["optional"], true, "{volume}");
                lab.folder().run(node).join("no-secret")
            }
        };
        if volume["hostPath"]["type"] != "Directory" {
            std::fs::create_dir_all(&source).unwrap();
        }
        let destination = mount["mountPath"].as_str().unwrap();
        all.push(match mount["readOnly"] == true {
            true => Mount::read_only(&source, destination),
            false => Mount::writable(&source, destination),
        });
    }
    if pod["automountServiceAccountToken"] != false {
        let name = pod["serviceAccountName"].as_str().unwrap();
        all.push(account(lab, node, name));
    }
    all
}

/// The bundle of a container, with a root that has nothing but what is mounted.
fn bundle_of(lab: &Lab, layout: &NodeLayout, pod: &Value, container: &Value) -> PathBuf {
    let name = container["name"].as_str().unwrap();
    let dir = lab.folder().run(&layout.name).join("containers").join(name);
    let root = dir.join("rootfs");
    std::fs::create_dir_all(&root).unwrap();
    for link in OF_THE_MACHINE {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    let env = environment(lab, &layout.name, container);
    let mounts = mounts(lab, &layout.name, pod, container);
    write_bundle(&dir, container, &netns_path(&layout.netns), &env, &mounts);
    dir
}

/// Runs the containers of a pod of the DaemonSet on a node: the first one to its end.
fn start(lab: &Lab, node: &str, pod: &Value) -> RunningProcess {
    assert_eq!(pod["hostNetwork"], true);
    let layout = lab.layout().node(node).unwrap();
    let [install] = &pod["initContainers"].as_array().unwrap()[..] else {
        panic!("one container that installs");
    };
    let dir = bundle_of(lab, layout, pod, install);
    let mut command = crun(&dir, &format!("{}-install", layout.netns));
    let said = call_program(Some(&layout.netns), &mut command, b"", 60 * SECOND);
    let said = said.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    assert!(said.contains("10-caracal.conflist"), "{said}");
    let [container] = &pod["containers"].as_array().unwrap()[..] else {
        panic!("one container");
    };
    let dir = bundle_of(lab, layout, pod, container);
    let mut command = crun(&dir, &format!("{}-node", layout.netns));
    RunningProcess::start(&layout.netns, &mut command, &lab.folder().log(node)).unwrap()
}

/// The kubelet's probes, on the node itself.
fn answers_probes(lab: &Lab, node: &str, container: &Value) {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        let host = get["host"].as_str().unwrap();
        let (port, path) = (get["port"].as_u64().unwrap(), get["path"].as_str().unwrap());
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(format!("{host}:{port}"))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        wait_until(60 * SECOND, probe, || {
            let answer = run_in_netns(&lab.netns(node).unwrap(), ask).unwrap();
            let answer = answer.map_err(|e| e.to_string())?;
            match answer.split(' ').nth(1) {
                Some("200") => Ok(()),
                _ => Err(answer),
            }
        })
        .unwrap_or_else(|e| panic!("{node}: {e}"));
    }
}

/// Calls the installed plugin for the pod that is bound to a node, as a container runtime does with
/// what `install-cni` has written.
fn attached(lab: &Lab, node: &str) -> PodState {
    let layout = lab.layout().node(node).unwrap();
    let netns = format!("{}-pod", layout.netns);
    caracal_lab::ip_batch(None, &[format!("netns add {netns}")]).unwrap();
    let (bin, net) = (
        of_host(lab, node, "/opt/cni/bin"),
        of_host(lab, node, "/etc/cni/net.d"),
    );
    let list = std::fs::read_to_string(net.join("10-caracal.conflist")).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let plugins = list["plugins"].as_array().unwrap();
    let ours = plugins
        .iter()
        .find(|plugin| plugin["type"] == "caracal-cni");
    let mut config = ours.expect("our plugin").clone();
    for key in ["name", "cniVersion"] {
        config[key] = list[key].clone();
    }
    // On the host its folder is at this path.
    let script = "mkdir -p /etc/cni/net.d && mount --bind \"$0\" /etc/cni/net.d && exec \"$@\"";
    let mut command = program_command("unshare").unwrap();
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.arg(&net).arg(bin.join("caracal-cni"));
    let container = container_id();
    command
        .env("CNI_COMMAND", "ADD")
        .env("CNI_PATH", &bin)
        .env("CNI_CONTAINERID", &container)
        .env("CNI_NETNS", netns_path(&netns))
        .env("CNI_IFNAME", "eth0")
        .env(
            "CNI_ARGS",
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={node}-p1"),
        )
        .env("CARACAL_RUN_DIR", of_host(lab, node, "/var/run/caracal"))
        .env("CARACAL_LIB_DIR", of_host(lab, node, "/var/lib/calico"));
    let answer = call_program(
        Some(&layout.netns),
        &mut command,
        config.to_string().as_bytes(),
        60 * SECOND,
    );
    let answer = answer.unwrap_or_else(|e| panic!("{node}: {}", error_chain(&e)));
    let attachment = parse_cni_result(&answer).expect("a result");
    let (address, address6) = (attachment.address, attachment.address6);
    let stored = match config["datastore_type"].as_str() {
        Some("kubernetes") => {
            let pod = kubernetes_object(lab, "pods", &format!("{node}-p1"));
            pod["metadata"]["annotations"]["cni.projectcalico.org/podIP"].clone()
        }
        _ => endpoint_in_etcd(lab, node)["spec"]["ipNetworks"][0].clone(),
    };
    assert_eq!(stored, json!(format!("{address}/32")));
    PodState {
        node: node.to_owned(),
        name: "p1".to_owned(),
        netns,
        container,
        address: Some(address),
        address6,
        host_interface: None,
    }
}

fn reaches(netns: &str, address: IpAddr) {
    wait_until(30 * SECOND, "an answer to a ping", || {
        let mut ping = program_command("ping").map_err(|e| e.to_string())?;
        ping.args(["-c", "1", "-W", "2", &address.to_string()]);
        let answer = call_program(Some(netns), &mut ping, b"", 10 * SECOND);
        answer.map(drop).map_err(|e| error_chain(&e))
    })
    .unwrap_or_else(|e| panic!("{netns} → {address}: {e}"));
}
