//! The kinds of the core: the defaults and the rules that clients meet most. Their fields are not
//! known as a whole; what is not looked at is kept.

use serde_json::{Value, json};

use super::kinds::Kind;
use super::status::Cause;

/// Fills in the defaults of a built-in kind.
pub(super) fn fill_in(kind: &Kind, object: &mut Value, is_new: bool) {
    match (&*kind.group, &*kind.kind) {
        ("", "Namespace") => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            default(&mut object["spec"], "finalizers", json!(["kubernetes"]));
            default(&mut object["status"], "phase", "Active".into());
        }
        ("", "Pod") => fill_in_pod(object, is_new),
        ("", "Service") => fill_in_service(object),
        ("", "Secret") => {
            default(object, "type", "Opaque".into());
        }
        _ => {}
    }
}

fn default(object: &mut Value, key: &str, value: Value) {
    if object.is_null() {
        *object = json!({});
    }
    if let Some(map) = object.as_object_mut() {
        let entry = map.entry(key).or_insert(Value::Null);
        if entry.is_null() {
            *entry = value;
        }
    }
}

fn fill_in_pod(pod: &mut Value, is_new: bool) {
    if is_new {
        pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
    }
    let spec = &mut pod["spec"];
    if !spec.is_object() {
        return;
    }
    for (key, value) in [
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("serviceAccountName", "default"),
    ] {
        default(spec, key, value.into());
    }
    default(spec, "terminationGracePeriodSeconds", 30.into());
    default(spec, "enableServiceLinks", true.into());
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        default(container, "imagePullPolicy", "IfNotPresent".into());
        for port in container["ports"].as_array_mut().into_iter().flatten() {
            default(port, "protocol", "TCP".into());
        }
    }
}

fn fill_in_service(service: &mut Value) {
    default(&mut service["status"], "loadBalancer", json!({}));
    let spec = &mut service["spec"];
    if !spec.is_object() {
        return;
    }
    default(spec, "type", "ClusterIP".into());
    default(spec, "sessionAffinity", "None".into());
    default(spec, "internalTrafficPolicy", "Cluster".into());
    default(spec, "ipFamilyPolicy", "SingleStack".into());
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        default(port, "protocol", "TCP".into());
        let target = port["port"].clone();
        default(port, "targetPort", target);
    }
    let external =
        ["NodePort", "LoadBalancer"].contains(&spec["type"].as_str().unwrap_or_default());
    if external {
        default(spec, "externalTrafficPolicy", "Cluster".into());
    }
    if let Some(address) = spec["clusterIP"].as_str().filter(|a| !a.is_empty()) {
        let (address, is_ipv6) = (address.to_owned(), address.contains(':'));
        let family = if is_ipv6 { "IPv6" } else { "IPv4" };
        default(spec, "clusterIPs", json!([address]));
        default(spec, "ipFamilies", json!([family]));
    }
}

/// Faults of an object.
pub(super) fn check(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    match (&*kind.group, &*kind.kind) {
        ("", "Pod") => check_pod(object, old),
        ("", "Node") => {
            let was = old.map_or(&Value::Null, |old| &old["spec"]["podCIDRs"]);
            let now = &object["spec"]["podCIDRs"];
            if was.as_array().is_some_and(|w| !w.is_empty()) && was != now {
                let why = "node updates may not change podCIDR except from \"\" to valid";
                return vec![Cause::forbidden("spec.podCIDRs", why)];
            }
            Vec::new()
        }
        ("", "Service") => check_service(object),
        ("discovery.k8s.io", "EndpointSlice") => check_slice(object, old),
        _ => Vec::new(),
    }
}

fn check_pod(pod: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &pod["spec"];
    let containers = spec["containers"].as_array();
    if containers.is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.containers"));
    }
    for (index, container) in containers.into_iter().flatten().enumerate() {
        for key in ["name", "image"] {
            if container[key].as_str().is_none_or(str::is_empty) {
                causes.push(Cause::required(&format!("spec.containers[{index}].{key}")));
            }
        }
    }
    if let Some(old) = old {
        let bare = |pod: &Value| {
            let mut spec = pod["spec"].clone();
            if let Some(map) = spec.as_object_mut() {
                map.retain(|key, _| !["tolerations", "activeDeadlineSeconds"].contains(&&**key));
            }
            for container in spec["containers"].as_array_mut().into_iter().flatten() {
                container["image"] = Value::Null;
            }
            spec
        };
        if bare(pod) != bare(old) {
            let why = "pod updates may not change fields other than \
                       `spec.containers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`";
            causes.push(Cause::forbidden("spec", why));
        }
    }
    causes
}

fn check_service(service: &Value) -> Vec<Cause> {
    let spec = &service["spec"];
    let is_headless = spec["clusterIP"] == "None" || spec["type"] == "ExternalName";
    let ports = spec["ports"].as_array();
    let mut causes = Vec::new();
    if ports.is_none_or(Vec::is_empty) && !is_headless {
        causes.push(Cause::required("spec.ports"));
    }
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let path = format!("spec.ports[{index}].port");
        let number = port["port"].as_i64();
        if number.is_none_or(|n| !(1..=65535).contains(&n)) {
            let why = "must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(&path, &port["port"], why));
        }
        if port["name"].as_str().is_none_or(str::is_empty) && ports.is_some_and(|p| p.len() > 1) {
            causes.push(Cause::required(&format!("spec.ports[{index}].name")));
        }
    }
    causes
}

fn check_slice(slice: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let kind = &slice["addressType"];
    if kind.as_str().is_none_or(str::is_empty) {
        causes.push(Cause::required("addressType"));
    } else if !["IPv4", "IPv6", "FQDN"].contains(&kind.as_str().unwrap_or_default()) {
        let message =
            format!("Unsupported value: {kind}: supported values: \"FQDN\", \"IPv4\", \"IPv6\"");
        causes.push(Cause::new("FieldValueNotSupported", "addressType", message));
    }
    if old.is_some_and(|old| old["addressType"] != *kind) {
        causes.push(Cause::invalid("addressType", kind, "field is immutable"));
    }
    causes
}
