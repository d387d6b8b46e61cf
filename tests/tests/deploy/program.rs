//! Every variable, path, port, probe and command of the manifests and units, looked up in the
//! program's sources and help.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use caracal_tests::binary;
use serde_json::Value;

use super::{containers, objects, pods, read, root};

/// The program: exit status and what it said.
pub(crate) fn caracal(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary())
        .args(arguments)
        .env_remove("ETCD_ENDPOINTS")
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; cargo build -p caracal", binary().display()));
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// The text of all product sources; left out are tests, and the list of what is read.
fn sources() -> String {
    fn walk(dir: &Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            if path.is_dir() {
                walk(&path, into);
            } else if name.ends_with(".rs") && name != "tests.rs" && name != "variables.rs" {
                let text = read(&path);
                into.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
            }
        }
    }
    let mut text = String::new();
    for folder in ["node", "datastore", "cni", "felix-like-agent"] {
        walk(&root().join(folder).join("src"), &mut text);
    }
    text
}

/// True when the program reads a variable: its name stands in a source, or the two parts of a name
/// that is put together.
fn is_read(sources: &str, name: &str) -> bool {
    let whole = sources.contains(&format!("\"{name}\""));
    let parts = name.match_indices('_').any(|(at, _)| {
        let (start, end) = name.split_at(at);
        sources.contains(&format!("\"{start}\"")) && sources.contains(&format!("}}{end}\""))
    });
    let ends = ["ENABLED", "HOST", "PORT"].iter().any(|end| {
        let start = name.strip_suffix(end);
        start.is_some_and(|s| {
            sources.contains(&format!("\"{s}\"")) && sources.contains(&format!("}}{end}\""))
        })
    });
    whole || parts || ends
}

#[test]
fn every_variable_is_read_by_the_program() {
    let sources = sources();
    let mut names = BTreeSet::new();
    for (_, object) in objects() {
        if object["kind"] == "ConfigMap" && object["metadata"]["name"] == "caracal-config" {
            names.extend(object["data"].as_object().unwrap().keys().cloned());
        }
    }
    for (_, pod) in pods() {
        for container in containers(&pod) {
            let command = container["command"].to_string();
            for variable in container["env"].as_array().into_iter().flatten() {
                let name = variable["name"].as_str().unwrap().to_owned();
                // One that its own command line uses need not be the program's.
                if !command.contains(&format!("$({name})")) {
                    names.insert(name);
                }
            }
        }
    }
    for unit in ["caracal-node.service", "caracal-reflector.service"] {
        let text = read(&root().join("deploy/systemd").join(unit));
        let set = text.lines().filter_map(|l| l.strip_prefix("Environment="));
        names.extend(set.map(|l| l.split('=').next().unwrap().to_owned()));
    }
    assert!(names.len() > 20, "{names:?}");
    let unknown: Vec<&String> = names
        .iter()
        .filter(|name| !is_read(&sources, name))
        .collect();
    assert!(unknown.is_empty(), "the program does not read {unknown:?}");
    for wrong in [
        "CALICO_IPV4POOL_VXLANN",
        "FELIX_HEALTHPROT",
        "ETCD_ENDPOINT",
        "CNI_CONFNAME",
    ] {
        assert!(!is_read(&sources, wrong), "{wrong}");
    }
}

#[test]
fn every_path_is_one_that_the_program_uses() {
    let sources = sources();
    let is_used = |path: &str| {
        let mut parents = Path::new(path).ancestors().filter_map(Path::to_str);
        parents.any(|p| p.len() > 1 && sources.contains(&format!("\"{p}\"")))
    };
    let mut seen = 0;
    for (name, pod) in pods() {
        for container in containers(&pod) {
            let command = container["command"].to_string();
            let env = container["env"].to_string();
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                let path = mount["mountPath"].as_str().unwrap();
                let used = is_used(path) || command.contains(path) || env.contains(path);
                assert!(used, "{name}: {path} is used by nobody");
                seen += 1;
            }
        }
    }
    assert!(seen > 20);
    assert!(!is_used("/var/lib/calicoo"));
}

#[test]
fn probes_and_ports_are_served() {
    let sources = sources();
    let mut probes = 0;
    for (name, pod) in pods() {
        for container in containers(&pod) {
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                let Some(get) = container[probe]["httpGet"].as_object() else {
                    continue;
                };
                probes += 1;
                let path = get["path"].as_str().unwrap();
                assert!(sources.contains(&format!("\"{path}\"")), "{name}: {path}");
                let port = get["port"].as_u64().unwrap();
                let configured = container["env"].to_string().contains(&format!(":{port}\""));
                let by_default = sources.contains(&format!("u16 = {port};"));
                assert!(
                    configured || by_default,
                    "{name}: nothing listens on {port}"
                );
                assert_eq!(
                    get["host"], "127.0.0.1",
                    "{name}: the kubelet asks on the node"
                );
            }
        }
    }
    assert!(probes >= 15, "{probes}");
}

#[test]
fn every_command_is_one_of_the_program() {
    for (name, pod) in pods() {
        for container in containers(&pod) {
            let command: Vec<&str> = list(&container["command"]);
            assert_eq!(command[0], "/caracal", "{name}");
            assert_arguments(&command[1..]);
        }
    }
}

fn list(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_str().unwrap())
        .collect()
}

/// The commands of a unit.
pub(crate) fn assert_command(unit: &str) {
    let lines = unit
        .lines()
        .filter_map(|l| l.strip_prefix("Exec")?.split_once('='));
    let ours: Vec<&str> = lines
        .filter_map(|(_, l)| l.strip_prefix("/usr/local/bin/caracal "))
        .collect();
    assert!(!ours.is_empty());
    for line in ours {
        assert_arguments(&line.split(' ').collect::<Vec<_>>());
    }
}

fn assert_arguments(arguments: &[&str]) {
    let (ok, help) = caracal(&[arguments[0], "--help"]);
    assert!(ok, "{arguments:?}: {help}");
    for option in arguments.iter().filter(|a| a.starts_with("--")) {
        let mut words = help.split_whitespace();
        assert!(words.any(|word| word == *option), "{arguments:?}: {help}");
    }
}
