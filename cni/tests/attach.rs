//! ADD and DEL as a runtime sees them, with real namespaces and a real etcd.

#![allow(clippy::unwrap_used)]

mod world;

use serde_json::json;
use world::{Pod, address, host_interface, in_node, sh};

#[test]
fn a_pod_is_attached_reached_and_detached() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        let (ip, host) = (address(&result), host_interface(&result));
        assert_eq!(host, "cali8f2c41d09c");
        assert_eq!(result["cniVersion"], "1.1.0");
        assert_eq!(result["ips"][0]["address"], format!("{ip}/32"));
        assert_eq!(result["ips"][0]["interface"], 1);
        assert_eq!(result["interfaces"][0]["mac"], "ee:ee:ee:ee:ee:ee");
        assert_eq!(result["interfaces"][1]["name"], "eth0");
        assert_eq!(result["interfaces"][1]["mtu"], 1420);
        assert_eq!(
            result["interfaces"][1]["sandbox"],
            pod.path().to_str().unwrap()
        );

        let routes = pod.sh("ip route show");
        assert!(
            routes.contains("default via 169.254.1.1 dev eth0"),
            "{routes}"
        );
        assert!(
            routes.contains("169.254.1.1 dev eth0 scope link"),
            "{routes}"
        );
        assert!(pod.sh("ip -o link show lo").contains("UP"));
        assert_eq!(
            sh("ip route show | grep cali || true"),
            "",
            "routes are the agent's"
        );

        let endpoint = &world.endpoints()[0];
        assert_eq!(endpoint["metadata"]["name"], "node--a-cni-8f2c41d09c-eth0");
        assert_eq!(endpoint["spec"]["ipNetworks"], json!([format!("{ip}/32")]));
        assert_eq!(endpoint["spec"]["interfaceName"], host);
        assert_eq!(endpoint["spec"]["mac"], result["interfaces"][1]["mac"]);
        assert_eq!(endpoint["spec"]["containerID"], "8f2c41d09c");
        assert_eq!(endpoint["spec"]["profiles"], json!(["pods"]));
        assert_eq!(world.handles(), ["pods.8f2c41d09c"]);

        // What the agent does.
        sh(&format!("ip route add {ip}/32 dev {host} scope link"));
        sh(&format!("ping -c 1 -W 2 {ip}"));
        pod.sh("ping -c 1 -W 2 192.0.2.1");

        world.del(&pod);
        assert_eq!(pod.sh("ip -o link show | grep eth0 || true"), "");
        world.assert_clean();
    });
}
