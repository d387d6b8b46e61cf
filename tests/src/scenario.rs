//! A lab from a topology's text, and what every scenario asks of it: its nodes, their status, their
//! commands, pings between all pods.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_datastore::{Datastore, DatastoreConfig};
use caracal_ipam::Client;
use caracal_lab::{
    Lab, LabName, PodState, RouteKind, Topology, UpError, UpOptions, container_id, error_chain,
    ip_batch, list_netns, run_in_netns, wait_until,
};
use caracal_model::NodeStatus;
use serde_json::Value;

use crate::SECOND;
use crate::datastore::{calico_resource, is_kubernetes, put_calico_resource, resource_names};
use crate::program::binary;

/// The file of an example topology.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../topologies/examples")
        .join(format!("{name}.yaml"))
}

/// A GET on a port of a node's loopback address: status and body.
///
/// # Errors
/// Nothing answers, or not with HTTP.
///
/// # Panics
/// When there is no such node.
pub fn get_http(lab: &Lab, node: &str, port: u16, path: &str) -> Result<(u16, String), String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(60 * SECOND))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let netns = lab.netns(node).expect("a node of the lab");
    let text = run_in_netns(&netns, ask)
        .map_err(|e| e.to_string())?
        .map_err(|e| e.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    Ok((status.ok_or("no status")?, body.to_owned()))
}

/// Brings an example up under a name of its own; it is removed when the value goes out of scope,
/// and what an earlier, killed run of the same scenario left behind is removed first.
///
/// # Panics
/// With the whole chain of causes and the nodes' logs when it does not come up.
#[must_use]
pub fn up(topology: &str, name: &str) -> Lab {
    up_text(
        &std::fs::read_to_string(example(topology)).expect("an example"),
        topology,
        name,
    )
}

/// Brings a topology up from its text.
///
/// # Panics
/// As [`up`].
#[must_use]
pub fn up_text(text: &str, path: &str, name: &str) -> Lab {
    let topology = Topology::parse(text, path).unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let lab_name = LabName::new(name).unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let _leftovers = caracal_lab::down(&lab_name);
    let mut options = UpOptions::test(binary(), name);
    options.keep_on_failure = true;
    let up: Result<Lab, UpError> = Lab::up(topology, text, options, &|_| {});
    up.unwrap_or_else(|error| {
        let logs = logs(&lab_name);
        let _removed = caracal_lab::down(&lab_name);
        panic!("{}\n{logs}", error_chain(&error))
    })
}

/// The tail of every log of a lab.
#[must_use]
pub fn logs(name: &LabName) -> String {
    let folder = caracal_lab::LabFolder::new(name);
    let Ok(state) = folder.load() else {
        return String::new();
    };
    let tail = |process: &String| format!("--- {process}\n{}\n", folder.log_tail(process, 40));
    state.processes.keys().map(tail).collect()
}

/// Names of the nodes that run Caracal.
#[must_use]
pub fn caracals(lab: &Lab) -> Vec<String> {
    let is_caracal = |node: &&caracal_lab::NodeLayout| node.kind == caracal_lab::NodeKind::Caracal;
    lab.layout()
        .nodes
        .iter()
        .filter(is_caracal)
        .map(|node| node.name.clone())
        .collect()
}

/// Pods beside those of the topology, one for each node that is named: namespaces that nobody has
/// attached yet, each with a container's identifier.
///
/// # Panics
/// When a namespace cannot be made.
pub fn more_pods<'a>(lab: &Lab, nodes: impl IntoIterator<Item = &'a str>) -> Vec<PodState> {
    let pod = |(n, node): (usize, &str)| PodState {
        node: node.to_owned(),
        name: format!("more{n}"),
        netns: lab.name().netns(&format!("more{n}")),
        container: container_id(),
        address: None,
        address6: None,
        host_interface: None,
    };
    let pods: Vec<_> = nodes.into_iter().enumerate().map(pod).collect();
    let lines: Vec<_> = pods
        .iter()
        .map(|p| format!("netns add {}", p.netns))
        .collect();
    ip_batch(None, &lines).unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    pods
}

/// Calls the binary for a node: exit code and standard output.
///
/// # Panics
/// When it does not start or not end within a minute.
#[must_use]
pub fn exit_code(lab: &Lab, node: &str, arguments: &[&str]) -> (i32, String) {
    let output = lab
        .caracal_output(node, arguments, caracal_lab::scaled_time(60 * SECOND))
        .unwrap_or_else(|e| panic!("{node}: {}", error_chain(&e)));
    (output.status.code().unwrap_or(-1), output.stdout)
}

/// Runs lines of `ip` in the namespace of a node, pod or router.
///
/// # Panics
/// When one fails.
pub fn ip(lab: &Lab, target: &str, lines: &[impl AsRef<str>]) {
    let netns = lab.netns(target).expect("a place in the lab");
    let lines: Vec<String> = lines.iter().map(|l| l.as_ref().to_owned()).collect();
    ip_batch(Some(&netns), &lines).unwrap_or_else(|e| panic!("{target}: {}", error_chain(&e)));
}

/// Waits until a condition on a node's status holds; the reason why it does not is printed at the
/// deadline.
///
/// # Panics
/// At the deadline, with the last reason and the node's log.
pub fn await_status(
    lab: &Lab,
    node: &str,
    deadline: Duration,
    what: &str,
    condition: impl Fn(&NodeStatus) -> Result<(), String>,
) -> NodeStatus {
    let result = wait_until(deadline, what, || {
        let status = lab.node_status(node).map_err(|e| error_chain(&e))?;
        condition(&status).map(|()| status)
    });
    result.unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 60)))
}

/// A problem with this code is in a node's status, and its reason has this part: a condition for
/// [`await_status`].
///
/// # Errors
/// The problems that are there.
pub fn has_problem(status: &NodeStatus, code: &str, part: &str) -> Result<(), String> {
    let mut problems = status.problems.iter();
    match problems.any(|p| p.code == code && p.reason.contains(part)) {
        true => Ok(()),
        false => Err(format!("{:?}", status.problems)),
    }
}

/// No problem with this code is there.
///
/// # Errors
/// The problems that are there.
pub fn has_no_problem(status: &NodeStatus, code: &str) -> Result<(), String> {
    match has_problem(status, code, "") {
        Ok(()) => Err(format!("{:?}", status.problems)),
        Err(_) => Ok(()),
    }
}

/// Waits until a node's last snapshot has all of its pods, and the blocks that came before them.
///
/// # Panics
/// It is not written in time.
pub fn await_remembered(lab: &Lab, node: &str) {
    let file = lab.folder().lib(node).join("last-snapshot");
    let own = "/workloadendpoints/";
    wait_until(120 * SECOND, "the last snapshot", || {
        let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
        let pods = lab.state().pods.iter().filter(|p| p.node == node).count();
        match text.matches(own).count() >= pods {
            true => Ok(()),
            false => Err(text.lines().next().unwrap_or_default().to_owned()),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// All sessions are up, the datastore is fresh, the kernel is in step.
///
/// # Errors
/// Reason why a node is not settled.
pub fn settled(status: &NodeStatus) -> Result<(), String> {
    if status.datastore.state != "fresh" {
        return Err(format!("datastore {:?}", status.datastore));
    }
    if let Some(peer) = status.peers.iter().find(|p| p.state != "Established") {
        return Err(format!(
            "peer {} is {} ({:?})",
            peer.name, peer.state, peer.reason
        ));
    }
    if status.kernel.phase != "synced" {
        return Err(format!(
            "kernel is {} ({:?})",
            status.kernel.phase, status.kernel.reason
        ));
    }
    Ok(())
}

/// Waits until every Caracal node of the lab is [`settled`], and its kernel [`routed`]: an
/// Established session says nothing yet of the routes that come over it.
pub fn await_settled(lab: &Lab) {
    for node in caracals(lab) {
        await_status(
            lab,
            &node,
            60 * SECOND,
            "sessions up, kernel in step, and a way to every pod",
            |status| settled(status).and_then(|()| routed(lab, &node)),
        );
    }
}

/// The kernel of a node has a way to each pod of another node, by the longest prefix.
///
/// # Errors
/// The pod that it has none to.
pub fn routed(lab: &Lab, node: &str) -> Result<(), String> {
    let underlay = lab.underlay();
    let routes = lab.routes(node).map_err(|e| error_chain(&e))?;
    for pod in lab.state().pods.iter().filter(|pod| pod.node != node) {
        let families = lab.topology().families().into_iter();
        for address in families.filter_map(|family| pod.address_of(family)) {
            let to_it = routes.iter().filter_map(|route| {
                let prefix = route.destination().filter(|p| p.contains(address))?;
                Some((prefix.len(), route.classify(&underlay)))
            });
            match to_it.max_by_key(|(len, _)| *len) {
                None | Some((_, RouteKind::Blackhole | RouteKind::Underlay)) => {
                    return Err(format!("no way to {address}, {}: {routes:?}", pod.label()));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Changes the specification of every pool in the datastore, as `calicoctl apply` does: the nodes
/// are not told otherwise.
fn change_pools(lab: &Lab, change: impl Fn(&mut Value)) {
    for name in resource_names(lab, "ippools") {
        let mut pool = calico_resource(lab, "ippools", &name);
        change(&mut pool["spec"]);
        put_calico_resource(lab, "ippools", &pool);
    }
}

/// Each way in which a pool stops to lend addresses: its field, the value in JSON, and the one
/// before.
pub const NOTHING_NEW: [(&str, &str, &str); 5] = [
    ("disabled", "true", "false"),
    ("nodeSelector", r#""has(nobody)""#, r#""all()""#),
    ("allowedUses", r#"["Workload"]"#, r#"["Workload","Tunnel"]"#),
    (
        "allowedUses",
        r#"["LoadBalancer"]"#,
        r#"["Workload","Tunnel"]"#,
    ),
    ("assignmentMode", r#""Manual""#, r#""Automatic""#),
];

/// Changes a field of every pool, see [`set_pool_modes`].
///
/// # Panics
/// When the datastore does not take it.
pub fn set_pools(lab: &Lab, field: &str, value: &Value) {
    change_pools(lab, |spec| spec[field] = value.clone());
}

/// Changes the modes of every pool in the datastore, as `calicoctl apply` does: the nodes are not
/// told otherwise.
///
/// # Panics
/// When the datastore does not take it.
pub fn set_pool_modes(lab: &Lab, ipip: &str, vxlan: &str) {
    change_pools(lab, |spec| {
        spec["ipipMode"] = ipip.into();
        spec["vxlanMode"] = vxlan.into();
    });
}

/// All pods reach all pods, in every family of the lab.
///
/// # Panics
/// With the pairs that do not.
pub fn assert_full_matrix(lab: &Lab) {
    for family in lab.topology().families() {
        let matrix = lab.ping_matrix_of(family, 60 * SECOND);
        let matrix = matrix.expect("ping is installed");
        assert!(
            matrix.is_full() && matrix.pairs() > 0,
            "{family}, lost: {:?}\n{}",
            matrix.lost(),
            logs(lab.name())
        );
        println!(
            "{}: {} of {} pairs of pods reach each other over {family}",
            lab.name(),
            matrix.pairs(),
            matrix.pairs()
        );
    }
}

/// Asks IPAM on the lab's datastore, from beside etcd and the API server, as the administrator.
///
/// # Panics
/// When the namespace cannot be entered.
pub fn with_ipam<T: Send>(
    lab: &Lab,
    work: impl AsyncFnOnce(Client<Datastore>, Datastore) -> T + Send,
) -> T {
    let kubeconfig = lab.folder().kubeconfig("admin").display().to_string();
    let on_kubernetes = is_kubernetes(lab);
    let lookup = |name: &str| match (on_kubernetes, name) {
        (true, "DATASTORE_TYPE") => Some("kubernetes".to_owned()),
        (true, "KUBECONFIG") => Some(kubeconfig.clone()),
        (false, "ETCD_ENDPOINTS") => Some(format!("http://127.0.0.1:{}", caracal_lab::ETCD_PORT)),
        _ => None,
    };
    let config = DatastoreConfig::from_lookup(lookup).expect("a datastore");
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let store = config.open().expect("a valid endpoint");
        runtime.block_on(work(Client::new(store.clone()), store))
    };
    run_in_netns(&lab.layout().etcd_netns(), inside).expect("etcd's namespace")
}

/// Nothing of a lab is left.
///
/// # Panics
/// When something is.
pub fn assert_gone(name: &LabName) {
    assert_eq!(list_netns(&name.prefix()), Vec::<String>::new());
    assert!(!caracal_lab::LabFolder::new(name).path().exists());
}
