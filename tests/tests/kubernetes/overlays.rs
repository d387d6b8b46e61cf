//! Overlays of `deploy` for both families and without kube-proxy, on both datastores.

use std::net::SocketAddr;

use caracal_lab::{Lab, PodState, wait_until};
use caracal_model::Family;
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, VipConnection, endpoint_slices, exit_code, kubectl,
    kubernetes_object, kubernetes_objects,
};
use serde_json::{Value, json};

use super::daemonset::{POD_SUBNET6, applied};

/// Pods have an address of each family, and reach each other by both.
#[test]
fn the_overlays_of_dual_stack_give_pods_both_families() {
    let scenario = "the_overlays_of_dual_stack_give_pods_both_families";
    applied(scenario, "overlays/kubernetes-dual-stack", |lab, _| {
        let pool = kubernetes_object(lab, "ippools", "default-ipv6-ippool");
        assert_eq!(pool["spec"]["cidr"], POD_SUBNET6, "kubeadm was told");
        assert_eq!(pool["spec"]["natOutgoing"], true);
    });
    applied(scenario, "overlays/etcd-dual-stack", |lab, _| {
        assert_eq!(kubernetes_objects(lab, "ipamblocks"), [] as [Value; 0]);
    });
}

/// Nobody else translates Services, that of the API server among them.
#[test]
fn the_overlays_without_kube_proxy_translate_services() {
    let scenario = "the_overlays_without_kube_proxy_translate_services";
    for overlay in [
        "overlays/kubernetes-no-kube-proxy",
        "overlays/etcd-no-kube-proxy",
    ] {
        let in_etcd = overlay.contains("etcd");
        applied(scenario, overlay, |lab, pods| {
            a_service_is_reached(lab, pods, in_etcd);
        });
    }
}

fn a_service_is_reached(lab: &Lab, pods: &[PodState], in_etcd: bool) {
    const PORT: u16 = 8080;
    let (family, vip) = (Family::Ipv4, SocketAddr::from(([10, 96, 0, 80], 80)));
    let (client, server) = (&pods[0], &pods[1]);
    let echo = EchoServer::start(server, &[family], PORT);
    let endpoint = PodEndpoint {
        pod: server,
        port: PORT,
        terminates: false,
    };
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": vip.ip(), "clusterIPs": [vip.ip()], "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "targetPort": PORT, "protocol": "TCP"}]}});
    let slices = endpoint_slices("web", &[family], &[PORT], &[endpoint]);
    let text = format!("{service}\n{slices}");
    if in_etcd {
        let file = lab.folder().path().join("services.yaml");
        std::fs::write(&file, text).unwrap();
        let arguments = ["services", "apply", &*file.display().to_string()];
        let (code, said) = exit_code(lab, "node1", &arguments);
        assert_eq!(code, 0, "{said}");
    } else {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop"}});
        let text = format!("{namespace}\n---\n{text}");
        kubectl(lab, &["create", "-f", "-"], text.as_bytes());
    }
    let from_a_node = lab.netns("node1").unwrap();
    for netns in [&client.netns, &from_a_node] {
        let mut connection = wait_until(60 * SECOND, "a connection to the Service", || {
            VipConnection::open(netns, vip).map_err(|e| format!("{netns}: {e}"))
        })
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(connection.server, server.label());
        assert!(connection.works());
    }
    echo.stop();
}
