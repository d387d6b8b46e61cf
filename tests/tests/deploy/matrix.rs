//! Overlays: each variant on each datastore, by what it renders to.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{DATASTORES, VARIANTS, deploy, kustomize, overlays};

/// What an overlay renders to.
struct Rendered {
    name: String,
    objects: Vec<Value>,
}

impl Rendered {
    fn read(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            objects: kustomize::build(&deploy(&format!("overlays/{name}"))),
        }
    }

    fn has(&self, kind: &str, name: &str) -> bool {
        self.find(kind, name).is_some()
    }

    fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        let is_it = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == name;
        let mut found = self.objects.iter().filter(is_it);
        let first = found.next();
        assert!(
            found.next().is_none(),
            "{}: two of {kind} {name}",
            self.name
        );
        first
    }

    fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self.find(kind, name);
        found.unwrap_or_else(|| panic!("{}: no {kind} {name}", self.name))
    }

    fn config(&self) -> BTreeMap<String, String> {
        let data = self.get("ConfigMap", "caracal-config")["data"].as_object();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let data = data.unwrap().iter();
        data.map(|(key, value)| (key.clone(), text(value)))
            .collect()
    }

    fn pod(&self) -> &Value {
        &self.get("DaemonSet", "caracal-node")["spec"]["template"]["spec"]
    }

    fn kinds(&self) -> usize {
        let is_kind = |o: &&Value| o["kind"] == "CustomResourceDefinition";
        self.objects.iter().filter(is_kind).count()
    }
}

#[test]
fn every_folder_is_a_combination() {
    let mut there: Vec<String> = std::fs::read_dir(deploy("overlays"))
        .unwrap()
        .map(|entry| format!("overlays/{}", entry.unwrap().file_name().display()))
        .collect();
    there.sort();
    let mut known = overlays();
    known.retain(|name| name.starts_with("overlays/"));
    known.sort();
    assert_eq!(there, known);
}

#[test]
fn an_overlay_is_of_its_datastore() {
    for variant in VARIANTS {
        let rendered = Rendered::read(&format!("kubernetes{variant}"));
        let name = &rendered.name;
        let config = rendered.config();
        assert_eq!(config["DATASTORE_TYPE"], "kubernetes", "{name}");
        assert_eq!(config["ETCD_ENDPOINTS"], "", "{name}");
        assert_eq!(config["CALICO_CNI_SERVICE_ACCOUNT"], "caracal-cni-plugin");
        assert_eq!(rendered.pod()["automountServiceAccountToken"], true);
        for account in ["caracal-node", "caracal-cni-plugin"] {
            assert!(rendered.has("ServiceAccount", account), "{name}: {account}");
            let role = rendered.get("ClusterRole", account);
            assert!(!role["rules"].as_array().unwrap().is_empty(), "{name}");
        }
        // Where Calico is, its kinds know more fields than ours.
        let takes_over = variant == "-migrate-from-calico";
        assert_eq!(rendered.kinds() == 0, takes_over, "{name}");

        let rendered = Rendered::read(&format!("etcd{variant}"));
        let name = &rendered.name;
        let config = rendered.config();
        assert!(!config.contains_key("DATASTORE_TYPE"), "{name}");
        assert!(config["ETCD_ENDPOINTS"].starts_with("http"), "{name}");
        assert_eq!(rendered.pod()["automountServiceAccountToken"], false);
        assert!(!rendered.has("ServiceAccount", "caracal-cni-plugin"));
        let role = rendered.get("ClusterRole", "caracal-node");
        assert_eq!(role["rules"], json!([]), "{name}");
        assert_eq!(rendered.kinds(), 0, "{name}");
    }
}

/// What a variant sets, beside the overlay without one.
fn set_by(store: &str, variant: &str) -> BTreeMap<String, String> {
    let plain = Rendered::read(store).config();
    let mut config = Rendered::read(&format!("{store}{variant}")).config();
    config.retain(|key, value| plain.get(key) != Some(value));
    config
}

#[test]
fn a_variant_is_the_same_on_either_datastore() {
    for variant in VARIANTS {
        let sets = match variant {
            "-vxlan" => json!({"CALICO_NETWORKING_BACKEND": "vxlan",
                "CALICO_IPV4POOL_VXLAN": "Always", "CLUSTER_TYPE": "k8s"}),
            "-ipip-cross-subnet" => json!({"CALICO_IPV4POOL_IPIP": "CrossSubnet"}),
            "-dual-stack" => json!({"IP6": "autodetect", "IP6_AUTODETECTION_METHOD": "first-found",
                "FELIX_IPV6SUPPORT": "true", "CALICO_IPV6POOL_CIDR": "",
                "CALICO_IPV6POOL_NAT_OUTGOING": "true"}),
            // Where the API server is, only who asks it has to know.
            "-no-kube-proxy" => json!({"CARACAL_SERVICES": "on"}),
            "-migrate-from-calico" => {
                json!({"IP": "", "NO_DEFAULT_POOLS": "true", "CARACAL_POLICY": "on",
                "CNI_CONF_NAME": "10-calico.conflist"})
            }
            _ => json!({}),
        };
        for store in DATASTORES {
            let name = format!("{store}{variant}");
            let mut set = set_by(store, variant);
            set.retain(|key, _| !key.starts_with("KUBERNETES_SERVICE_"));
            assert_eq!(json!(set), sets, "{name}");
            let rendered = Rendered::read(&name);
            let pod = rendered.pod();
            let labels = &pod["nodeSelector"];
            let waits_for_label = labels["caracal.io/node"] == "true";
            assert_eq!(waits_for_label, variant == "-migrate-from-calico", "{name}");
            assert_eq!(labels["kubernetes.io/os"], "linux", "{name}");
            let apart = variant == "-reflectors";
            assert_eq!(rendered.has("Deployment", "caracal-reflector"), apart);
            let rule = pod.pointer(
                "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                 /nodeSelectorTerms/0/matchExpressions/0",
            );
            let keeps_off = json!({"key": "caracal.io/reflector", "operator": "DoesNotExist"});
            assert_eq!(rule, apart.then_some(&keeps_off), "{name}");
        }
    }
}

/// As Calico's: with hostNetwork, everybody who reaches the node reaches a port of all addresses.
#[test]
fn metrics_are_off_until_the_component_is_added() {
    for store in DATASTORES {
        let plain = Rendered::read(store);
        let config = plain.config();
        assert_eq!(config["FELIX_PROMETHEUSMETRICSENABLED"], "false", "{store}");
        assert_eq!(plain.pod()["containers"][0].get("ports"), None, "{store}");
    }
    let with = Rendered {
        name: "kubernetes-metrics".to_owned(),
        objects: kustomize::build(&deploy("examples/kubernetes-metrics")),
    };
    assert_eq!(with.config()["FELIX_PROMETHEUSMETRICSENABLED"], "true");
    let template = &with.get("DaemonSet", "caracal-node")["spec"]["template"];
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], "9091");
    let port = &template["spec"]["containers"][0]["ports"][0];
    assert_eq!(port["name"], "metrics");
}
