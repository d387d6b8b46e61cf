//! Checks of `deploy/` against Kubernetes' own types and against the program: nothing is misspelt,
//! and every variable, path, port and command exists.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "deploy/crds.rs"]
mod crds;
#[path = "deploy/kustomize.rs"]
mod kustomize;
#[path = "deploy/matrix.rs"]
mod matrix;
#[path = "deploy/monitoring.rs"]
mod monitoring;
#[path = "deploy/program.rs"]
mod program;
#[path = "deploy/schema.rs"]
mod schema;

use caracal_tests::{KUBERNETES_VERSIONS, has_python_packages, schema_faults};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Where Calico's data are: what the names of overlays begin with.
const DATASTORES: [&str; 2] = ["kubernetes", "etcd"];

/// What there is on either datastore, behind its name.
const VARIANTS: [&str; 7] = [
    "",
    "-vxlan",
    "-ipip-cross-subnet",
    "-dual-stack",
    "-no-kube-proxy",
    "-reflectors",
    "-migrate-from-calico",
];

/// Everything that `kubectl apply -k` takes.
fn overlays() -> Vec<String> {
    let parts = [
        "base",
        "crds",
        "etcd-pods",
        "examples/kubernetes-metrics",
        "kubernetes",
        "reflectors",
        "uninstall",
    ]
    .map(str::to_owned);
    let of = |store: &&'static str| VARIANTS.map(|variant| format!("overlays/{store}{variant}"));
    parts
        .into_iter()
        .chain(DATASTORES.iter().flat_map(of))
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap()
}

fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The documents of a YAML file.
fn documents(text: &str, name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All objects of all overlays.
fn objects() -> Vec<(String, Value)> {
    let of = |overlay: String| {
        let built = kustomize::build(&deploy(&overlay));
        built
            .into_iter()
            .map(move |object| (overlay.clone(), object))
    };
    overlays().into_iter().flat_map(of).collect()
}

/// The pod templates among them, with what they belong to.
fn pods() -> Vec<(String, Value)> {
    let pods = objects()
        .into_iter()
        .filter(|(_, o)| o["spec"]["template"].is_object());
    pods.map(|(overlay, o)| {
        (
            format!("{overlay} {}", o["metadata"]["name"]),
            o["spec"]["template"]["spec"].clone(),
        )
    })
    .collect()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers"]
        .into_iter()
        .filter_map(|key| pod[key].as_array());
    lists.flatten()
}

/// Runs a program; `None` when it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((
                output.status.success(),
                String::from_utf8_lossy(&text).into_owned(),
            ))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn every_object_is_what_kubernetes_takes() {
    let objects = objects();
    assert!(objects.len() >= 120, "{}", objects.len());
    for (overlay, object) in &objects {
        let name = format!(
            "{overlay}: {} {}",
            object["kind"], object["metadata"]["name"]
        );
        schema::check(object).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    }
}

/// The same as a foreign program judges it, by the schemas of the oldest and the newest Kubernetes.
#[test]
fn kubernetes_schemas_find_no_fault() {
    if !has_python_packages("kubernetes_schemas_find_no_fault") {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    let objects: Vec<_> = objects().into_iter().map(|(_, object)| object).collect();
    let mut once: Vec<_> = objects.into_iter().collect();
    once.retain(|object| seen.insert(object.to_string()));
    assert_eq!(schema_faults(&once), Vec::<String>::new());
    let mut wrong = once
        .into_iter()
        .find(|object| object["kind"] == "DaemonSet")
        .unwrap();
    wrong["spec"]["template"]["spec"]["hostNetwrok"] = true.into();
    let faults = schema_faults(&[wrong]);
    assert_eq!(faults.len(), KUBERNETES_VERSIONS.len(), "{faults:?}");
    assert!(faults[0].contains("hostNetwrok"), "{faults:?}");
}

#[test]
fn a_misspelt_field_and_a_wrong_type_are_refused() {
    let daemonset = || {
        let objects = kustomize::build(&deploy("base"));
        objects
            .into_iter()
            .find(|o| o["kind"] == "DaemonSet")
            .unwrap()
    };
    schema::check(&daemonset()).unwrap();
    let mut misspelt = daemonset();
    misspelt["spec"]["template"]["spec"]["hostNetwrok"] = true.into();
    assert!(
        schema::check(&misspelt)
            .unwrap_err()
            .contains("spec.template.spec.hostNetwrok")
    );
    let mut deep = daemonset();
    deep["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesytem"] =
        true.into();
    assert!(
        schema::check(&deep)
            .unwrap_err()
            .contains("readOnlyRootFilesytem")
    );
    let mut wrong = daemonset();
    wrong["spec"]["template"]["spec"]["hostNetwork"] = "yes".into();
    assert!(schema::check(&wrong).is_err());
    let mut unknown = daemonset();
    unknown["kind"] = "DaemonSett".into();
    assert!(schema::check(&unknown).unwrap_err().contains("DaemonSett"));
}

/// `kubectl kustomize`, where it is installed, builds the same objects as the test's own few rules.
#[test]
fn kubectl_builds_the_same() {
    for overlay in overlays() {
        let path = deploy(&overlay);
        let Some((ok, text)) = run("kubectl", &["kustomize", path.to_str().unwrap()]) else {
            println!("kubectl is not installed: not compared");
            return;
        };
        assert!(ok, "{overlay}: {text}");
        let key = |o: &Value| format!("{}/{}", o["kind"], o["metadata"]["name"]);
        let mut theirs = documents(&text, &overlay);
        let mut ours = kustomize::build(&path);
        theirs.sort_by_key(key);
        ours.sort_by_key(key);
        assert_eq!(
            schema::sorted(&ours.into()),
            schema::sorted(&theirs.into()),
            "{overlay}"
        );
    }
}

#[test]
fn containers_have_no_more_rights_than_they_need() {
    for (name, pod) in pods() {
        assert_eq!(pod["hostNetwork"], true, "{name}");
        // Only who talks to Kubernetes' API has a token.
        let api = name.contains("kubernetes") || name.starts_with("etcd-pods");
        let talks = api && name.contains("caracal-node");
        assert_eq!(pod["automountServiceAccountToken"], talks, "{name}");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{name}"
        );
        assert!(
            pod["priorityClassName"]
                .as_str()
                .unwrap()
                .starts_with("system-"),
            "{name}"
        );
        assert!(
            pod["hostPID"].is_null() && pod["hostIPC"].is_null(),
            "{name}"
        );
        for container in containers(&pod) {
            let name = format!("{name} {}", container["name"]);
            let security = &container["securityContext"];
            assert_eq!(security["privileged"], false, "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(
                security["capabilities"]["drop"],
                serde_json::json!(["ALL"]),
                "{name}"
            );
            let allowed = match container["name"].as_str().unwrap() {
                "caracal-node" => serde_json::json!(["NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"]),
                "caracal-reflector" => serde_json::json!(["NET_BIND_SERVICE"]),
                "caracal-uninstall" => serde_json::json!(["NET_ADMIN"]),
                _ => Value::Null,
            };
            assert_eq!(security["capabilities"]["add"], allowed, "{name}");
            assert!(
                container["resources"]["requests"]["memory"].is_string(),
                "{name}"
            );
        }
    }
}

#[test]
fn mounts_have_volumes() {
    for (name, pod) in pods() {
        let volumes: Vec<&Value> = pod["volumes"].as_array().unwrap().iter().collect();
        for container in containers(&pod) {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                assert!(
                    volumes.iter().any(|v| v["name"] == mount["name"]),
                    "{name}: {mount}"
                );
            }
        }
    }
}

#[test]
fn the_reflectors_files_are_valid() {
    let objects = kustomize::build(&deploy("overlays/etcd-reflectors"));
    let map = objects
        .iter()
        .find(|o| o["kind"] == "ConfigMap" && o["metadata"]["name"] == "caracal-reflector")
        .unwrap();
    let files = map["data"].as_object().unwrap();
    assert_eq!(files.len(), 2);
    for (name, text) in files {
        let path = std::env::temp_dir().join(format!("caracal-{}-{name}", std::process::id()));
        std::fs::write(&path, text.as_str().unwrap()).unwrap();
        let (ok, said) = program::caracal(&["speaker", "--check", path.to_str().unwrap()]);
        std::fs::remove_file(&path).unwrap();
        assert!(ok, "{name}: {said}");
        assert!(said.contains("3 peers"), "{said}");
    }
    let input = deploy("reflectors/calico-resources.yaml");
    let nodes = std::env::temp_dir().join(format!("caracal-{}-nodes.yaml", std::process::id()));
    let node = |n: u8| {
        format!(
            "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata: {{name: node{n}}}\nspec: {{bgp: {{ipv4Address: 10.0.0.1{n}/24}}}}\n"
        )
    };
    std::fs::write(&nodes, [node(1), node(2)].join("---\n")).unwrap();
    let (ok, view) = program::caracal(&[
        "render",
        "--style",
        "view",
        "--node",
        "node1",
        "--input",
        nodes.to_str().unwrap(),
        "--input",
        input.to_str().unwrap(),
    ]);
    std::fs::remove_file(&nodes).unwrap();
    assert!(ok, "{view}");
    for reflector in ["10.0.0.1", "10.0.0.2"] {
        assert!(view.contains(&format!("neighbor {reflector} ")), "{view}");
    }
    assert!(
        !view.contains("neighbor 10.0.0.12"),
        "the mesh is off: {view}"
    );
}

#[test]
fn systemd_takes_the_units() {
    let dir = std::env::temp_dir().join(format!("caracal-units-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for unit in ["caracal-node.service", "caracal-reflector.service"] {
        let text = read(&deploy("systemd").join(unit));
        program::assert_command(&text);
        // The program is looked for by systemd-analyze, and is not installed where tests run.
        let installed = text.replace("/usr/local/bin/caracal", "/bin/true");
        let path = dir.join(unit);
        std::fs::write(&path, installed).unwrap();
        match run(
            "systemd-analyze",
            &["verify", "--man=no", path.to_str().unwrap()],
        ) {
            Some((ok, said)) => {
                let about_it: Vec<_> = said.lines().filter(|l| l.contains("caracal")).collect();
                assert!(ok && about_it.is_empty(), "{unit}: {said}");
            }
            None => println!("systemd-analyze is not installed: {unit} not verified"),
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
