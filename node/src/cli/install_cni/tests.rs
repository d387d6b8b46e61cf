#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;

use caracal_datastore::TestFolder;

use super::*;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    pairs.iter().map(pair).collect()
}

fn plan(pairs: &[(&str, &str)]) -> Result<InstallPlan, String> {
    InstallPlan::from_env(&Env::new(&env(pairs))).map_err(|e| e.to_string())
}

struct Folder(TestFolder);

impl Folder {
    fn new(name: &str) -> Self {
        let path = TestFolder::new(name);
        fs::create_dir_all(path.join("secrets")).unwrap();
        fs::write(path.join("program"), b"one").unwrap();
        Self(path)
    }

    fn plan(&self, more: &[(&str, &str)]) -> InstallPlan {
        let at = |name: &str| self.0.join(name).display().to_string();
        let (bin, net, secrets) = (at("bin"), at("net"), at("secrets"));
        let mut pairs = vec![
            ("CNI_BIN_DIR", bin.as_str()),
            ("CNI_CONF_DIR", net.as_str()),
            ("CARACAL_ETCD_SECRETS_DIR", secrets.as_str()),
            ("ETCD_ENDPOINTS", "https://10.0.0.1:2379"),
        ];
        pairs.extend(more);
        InstallPlan {
            standard_dir: self.0.join("standard"),
            ..plan(&pairs).unwrap()
        }
    }

    fn files(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(dir)).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn install(&self, plan: &InstallPlan) -> Result<(), String> {
        install(plan, &self.0.join("program")).map_err(|e| format!("{e:#}"))
    }
}

#[test]
fn one_program_under_two_names_and_a_configuration() {
    let folder = Folder::new("install");
    for secret in ["etcd-ca", "etcd-cert"] {
        fs::write(folder.0.join("secrets").join(secret), secret).unwrap();
    }
    fs::write(folder.0.join("secrets/etcd-key"), "").unwrap();
    folder.install(&folder.plan(&[])).unwrap();
    assert_eq!(folder.files("bin"), ["caracal-cni", "caracal-ipam"]);
    assert_eq!(folder.files("net"), ["10-caracal.conflist", "caracal-tls"]);
    let meta = fs::metadata(folder.0.join("bin/caracal-cni")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (2, 0o755));
    let path = folder.0.join("net/10-caracal.conflist");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let conf: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let plugin = &conf["plugins"][0];
    assert_eq!(plugin["type"], "caracal-cni");
    assert_eq!(plugin["ipam"]["type"], "caracal-ipam");
    assert_eq!(plugin["etcd_endpoints"], "https://10.0.0.1:2379");
    assert_eq!(
        plugin["etcd_ca_cert_file"],
        "/etc/cni/net.d/caracal-tls/etcd-ca"
    );
    assert_eq!(plugin["etcd_key_file"], "");
}

#[test]
fn pods_have_the_families_that_the_nodes_have() {
    for (ip, ip6, expected) in [
        (None, None, json!({})),
        (Some("autodetect"), Some("none"), json!({})),
        (Some("none"), None, json!({})),
        (None, Some("autodetect"), json!([true, true])),
        (Some("autodetect"), Some("fd00::1/64"), json!([true, true])),
        (Some("none"), Some("autodetect"), json!([false, true])),
    ] {
        for store in ["etcdv3", "kubernetes"] {
            let mut pairs = vec![("DATASTORE_TYPE", store)];
            pairs.extend(ip.map(|value| ("IP", value)));
            pairs.extend(ip6.map(|value| ("IP6", value)));
            let list: Value =
                serde_json::from_str(&plan(&pairs).unwrap().default_template()).unwrap();
            let ipam = &list["plugins"][0]["ipam"];
            let seen = match ipam.get("assign_ipv6") {
                None => json!({}),
                Some(ipv6) => json!([ipam["assign_ipv4"], ipv6]),
            };
            assert_eq!(seen, expected, "{ip:?}, {ip6:?}: {ipam}");
        }
    }
}

#[test]
fn in_etcd_clusters_a_plugin_with_an_account_looks_pods_up() {
    let folder = Folder::new("account");
    folder
        .install(&folder.plan(&[("CALICO_CNI_SERVICE_ACCOUNT", "plugin")]))
        .unwrap();
    let path = folder.0.join("net/10-caracal.conflist");
    let conf: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let plugin = &conf["plugins"][0];
    assert_eq!(plugin["policy"]["type"], "k8s");
    let file = "/etc/cni/net.d/caracal-kubeconfig";
    assert_eq!(plugin["kubernetes"]["kubeconfig"], file);
    assert_eq!(plugin["etcd_endpoints"], "https://10.0.0.1:2379");
}

#[test]
fn a_running_program_is_replaced_and_an_old_one_may_stay() {
    let folder = Folder::new("again");
    folder.install(&folder.plan(&[])).unwrap();
    // A running program keeps its file; a new call gets the new one.
    let running = fs::File::open(folder.0.join("bin/caracal-cni")).unwrap();
    fs::write(folder.0.join("program"), b"two").unwrap();
    let keep = folder.plan(&[("UPDATE_CNI_BINARIES", "false")]);
    folder.install(&keep).unwrap();
    let text = |name: &str| fs::read_to_string(folder.0.join("bin").join(name)).unwrap();
    assert_eq!(text("caracal-cni"), "one");
    folder.install(&folder.plan(&[])).unwrap();
    assert_eq!(
        (text("caracal-cni"), text("caracal-ipam")),
        ("two".into(), "two".into())
    );
    assert_eq!(io::read_to_string(running).unwrap(), "one");
    assert_eq!(
        folder.files("bin"),
        ["caracal-cni", "caracal-ipam"],
        "no drafts are left"
    );
}

#[test]
fn standard_plugins_are_installed_where_the_host_has_none() {
    let folder = Folder::new("standard");
    for (dir, name, text) in [
        ("standard", "portmap", "image"),
        ("standard", "loopback", "image"),
        ("standard", "tuning", "image"),
        ("bin", "loopback", "host"),
    ] {
        fs::create_dir_all(folder.0.join(dir)).unwrap();
        fs::write(folder.0.join(dir).join(name), text).unwrap();
    }
    let plan = folder.plan(&[("SKIP_CNI_BINARIES", "bandwidth, tuning")]);
    let (conf, _) = plan.configuration(&BTreeMap::new()).unwrap();
    let missing = missing_plugins(&plan.bin_dir, &conf);
    assert_eq!(missing, ["caracal-cni", "caracal-ipam", "portmap"]);
    folder.install(&plan).unwrap();
    let there = folder.files("bin");
    assert_eq!(
        there,
        ["caracal-cni", "caracal-ipam", "loopback", "portmap"]
    );
    let text = |name: &str| fs::read_to_string(folder.0.join("bin").join(name)).unwrap();
    assert_eq!(
        (text("loopback"), text("portmap")),
        ("host".into(), "image".into())
    );
    let portmap = fs::metadata(folder.0.join("bin/portmap")).unwrap();
    assert_eq!(portmap.mode() & 0o777, 0o755);
    assert_eq!(missing_plugins(&plan.bin_dir, &conf), Vec::<String>::new());
}

/// With either datastore the plugins learn a pod's annotations and limits.
#[test]
fn the_list_of_either_datastore_hands_annotations_and_limits_on() {
    let folder = Folder::new("capabilities");
    for dir in ["standard", "bin"] {
        fs::create_dir_all(folder.0.join(dir)).unwrap();
    }
    fs::write(folder.0.join("standard/bandwidth"), "image").unwrap();
    let list = |datastore: &str, skipped: &str| -> Value {
        let more = [
            ("DATASTORE_TYPE", datastore),
            ("SKIP_CNI_BINARIES", skipped),
        ];
        let (text, _) = folder.plan(&more).configuration(&BTreeMap::new()).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    for datastore in ["etcdv3", "kubernetes"] {
        let _absent = fs::remove_file(folder.0.join("bin/bandwidth"));
        let all = list(datastore, "tuning");
        let annotations = json!({"io.kubernetes.cri.pod-annotations": true});
        assert_eq!(all["plugins"][0]["capabilities"], annotations);
        assert_eq!(all["plugins"][2], bandwidth);
        assert_eq!(all["disableCheck"], true);
        // A list that names what is nowhere starts no pod.
        let without = list(datastore, "bandwidth");
        assert_eq!(without["plugins"].as_array().map(Vec::len), Some(2));
        assert_eq!(without["disableCheck"], Value::Null);
        // The host has its own.
        fs::write(folder.0.join("bin/bandwidth"), "host").unwrap();
        assert_eq!(list(datastore, "bandwidth"), all);
    }
}

#[test]
fn a_template_of_ones_own_is_filled_in_and_checked() {
    let folder = Folder::new("template");
    let template =
        r#"{"name":"n","type":"caracal-cni","mtu":__CNI_MTU__,"ipam":{"type":"caracal-ipam"}}"#;
    let name = ("CNI_CONF_NAME", "10-calico.conflist");
    let good = folder.plan(&[("CNI_NETWORK_CONFIG", template), ("CNI_MTU", "1400"), name]);
    folder.install(&good).unwrap();
    let text = fs::read_to_string(folder.0.join("net/10-calico.conflist")).unwrap();
    assert!(text.contains("\"mtu\": 1400"), "{text}");

    let folder = Folder::new("bad");
    for (template, complaint) in [
        ("{", "not valid JSON"),
        (r#"{"type":"calico"}"#, "no plugin of type caracal-cni"),
        (
            r#"{"type":"caracal-cni","x":"__KUBECONFIG__"}"#,
            "__KUBECONFIG__",
        ),
    ] {
        let error = folder.install(&folder.plan(&[("CNI_NETWORK_CONFIG", template)]));
        assert!(
            error.as_ref().is_err_and(|e| e.contains(complaint)),
            "{error:?}"
        );
        assert_eq!(
            folder.files("bin"),
            Vec::<String>::new(),
            "nothing is half installed"
        );
    }
}

#[test]
fn flannels_own_list_installs_flannels_plugin_alone() {
    let folder = Folder::new("flannel");
    let list = r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"isDefaultGateway":true}},{"type":"portmap"}]}"#;
    let name = ("CNI_CONF_NAME", "10-flannel.conflist");
    let plan = folder.plan(&[("CNI_NETWORK_CONFIG", list), name]);
    let missing = missing_plugins(&plan.bin_dir, list);
    assert_eq!(missing, ["flannel", "bridge", "host-local", "portmap"]);
    // In the place of the one that was there.
    fs::create_dir_all(&plan.bin_dir).unwrap();
    fs::write(plan.bin_dir.join("flannel"), "flannel's").unwrap();
    folder.install(&plan).unwrap();
    assert_eq!(folder.files("bin"), ["flannel"]);
    let text = fs::read_to_string(plan.bin_dir.join("flannel")).unwrap();
    assert_eq!(text, "one");
    let ours = list.replace("\"flannel\"", "\"caracal-flannel\"");
    let plan = folder.plan(&[("CNI_NETWORK_CONFIG", &ours), name]);
    folder.install(&plan).unwrap();
    assert_eq!(folder.files("bin"), ["caracal-flannel", "flannel"]);
    let dry_run = false;
    assert!(!Installed { plan, dry_run }.remove(0).unwrap());
    assert_eq!(
        folder.files("bin"),
        ["flannel"],
        "whose it is cannot be told"
    );
    assert_eq!(folder.files("net"), [""; 0]);
}

#[test]
fn bad_values_are_named() {
    let error = plan(&[("CNI_CONF_NAME", "../x.conflist")]).unwrap_err();
    assert!(error.contains("CNI_CONF_NAME=\"../x.conflist\""), "{error}");
    assert!(plan(&[("CNI_CONF_NAME", "10-caracal.json")]).is_err());
    assert!(
        plan(&[("CNI_MTU", "large")])
            .unwrap_err()
            .contains("CNI_MTU")
    );
}

#[test]
fn what_was_installed_goes_and_the_plugin_only_after_its_pods() {
    let folder = Folder::new("remove");
    fs::write(folder.0.join("secrets/etcd-ca"), "ca").unwrap();
    let plan = || folder.plan(&[]);
    folder.install(&plan()).unwrap();
    fs::write(folder.0.join("net/caracal-kubeconfig"), "{}").unwrap();
    fs::write(folder.0.join("net/20-other.conflist"), "{}").unwrap();
    let remove = |dry_run, pods| {
        let plan = plan();
        Installed { plan, dry_run }.remove(pods).unwrap()
    };
    assert!(!remove(true, 0));
    assert_eq!(folder.files("net").len(), 4, "only told");
    assert!(remove(false, 1));
    let net = ["20-other.conflist", "caracal-kubeconfig", "caracal-tls"];
    assert_eq!(folder.files("net"), net);
    assert_eq!(folder.files("bin"), ["caracal-cni", "caracal-ipam"]);
    assert!(!remove(false, 0));
    assert_eq!(folder.files("net"), ["20-other.conflist"]);
    assert_eq!(folder.files("bin"), [] as [&str; 0]);
    // Nothing is left: pods that another plugin made are not waited for.
    assert!(!remove(false, 1));
    // A configuration of the same name that is somebody else's stays.
    fs::write(folder.0.join("net/10-caracal.conflist"), "{}").unwrap();
    assert!(!remove(false, 0));
    assert_eq!(folder.files("net").len(), 2);
}
