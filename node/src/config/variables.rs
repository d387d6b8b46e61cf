//! Variables that nothing reads: a name that was misspelt has no effect, and is told.

use std::collections::BTreeMap;

use caracal_model::{FELIX_FIELDS, close_name, nearest_name};

use super::is_known_felix;

/// What the program reads of Caracal's and Calico's names, whichever command it is. The pool's
/// variables of IPv4 stand for those of IPv6.
const READ: [&str; 50] = [
    "CALICO_API_GROUP",
    "CALICO_CNI_SERVICE_ACCOUNT",
    "CALICO_IPV4POOL_BLOCK_SIZE",
    "CALICO_IPV4POOL_CIDR",
    "CALICO_IPV4POOL_DISABLE_BGP_EXPORT",
    "CALICO_IPV4POOL_IPIP",
    "CALICO_IPV4POOL_NAT_OUTGOING",
    "CALICO_IPV4POOL_NODE_SELECTOR",
    "CALICO_IPV4POOL_VXLAN",
    "CALICO_K8S_NODE_REF",
    "CALICO_NETWORKING_BACKEND",
    "CALICO_NODENAME_FILE",
    "CALICO_ROUTER_ID",
    "CARACAL_ADMIN_GROUP",
    "CARACAL_ALLOW_MARTIANS",
    "CARACAL_CONSOLE",
    "CARACAL_CONSOLE_CA_CERT_FILE",
    "CARACAL_CONSOLE_CERT_FILE",
    "CARACAL_CONSOLE_KEY_FILE",
    "CARACAL_CONSOLE_TOKEN_FILE",
    "CARACAL_DATASTORE_ACCEPT",
    "CARACAL_EBGP_REQUIRES_POLICY",
    "CARACAL_ETCD_SECRETS_DIR",
    "CARACAL_HTTP",
    "CARACAL_IPAM_GC_GRACE_SECONDS",
    "CARACAL_LAB_DIR",
    "CARACAL_LAB_INSIDE",
    "CARACAL_LAB_TELL_WAITS",
    "CARACAL_LAB_TIME_SCALE",
    "CARACAL_LIB_DIR",
    "CARACAL_LOG",
    "CARACAL_MACHINE_ID",
    "CARACAL_MAX_PREFIXES",
    "CARACAL_MRT_DIR",
    "CARACAL_NEXTHOP_OBJECTS",
    "CARACAL_ORIGIN_CHECK",
    "CARACAL_PATH_MTU_DISCOVERY",
    "CARACAL_POLICY",
    "CARACAL_RENDER_DIR",
    "CARACAL_RUN_DIR",
    "CARACAL_SECRETS_DIR",
    "CARACAL_SERVICES",
    "CARACAL_SERVICES_HEALTHZ",
    "CARACAL_SERVICES_NODEPORT_ADDRESSES",
    "CARACAL_SERVICES_RESET_TCP",
    "CARACAL_UML",
    "IP",
    "IP6",
    "IP6_AUTODETECTION_METHOD",
    "IP_AUTODETECTION_METHOD",
];

/// For tests, and set while it was built.
const OTHERS: [&str; 3] = [
    "CARACAL_COMMIT",
    "CARACAL_REQUIRE_ETCD",
    "CARACAL_TEST_API_SERVER",
];

/// What `caracal speaker` reads of them; its file says the rest.
const OF_A_SPEAKER: [&str; 5] = [
    "CARACAL_ADMIN_GROUP",
    "CARACAL_ALLOW_MARTIANS",
    "CARACAL_HTTP",
    "CARACAL_LOG",
    "CARACAL_RUN_DIR",
];

/// One line for each variable that is a node's, and that a standalone speaker does not read.
pub(crate) fn without_effect_on_a_speaker<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_a_nodes = |name: &&str| {
        name.starts_with("CARACAL_")
            && !name.starts_with("CARACAL_LAB_")
            && READ.contains(name)
            && !OF_A_SPEAKER.contains(name)
    };
    let told = |name: &str| {
        format!(
            "the variable {name} has no effect on `caracal speaker`: it is read by `caracal node`"
        )
    };
    names.filter(is_a_nodes).map(told).collect()
}

/// One line for each variable that has no effect, and one for all of Felix's that are not ours.
pub(super) fn warnings(vars: &BTreeMap<String, String>) -> Vec<String> {
    let names = || vars.keys().map(String::as_str);
    let mut warnings: Vec<String> = names().filter_map(misspelt).collect();
    let is_set = |name: &str| vars.get(name).is_some_and(|value| !value.trim().is_empty());
    let idle = super::console::FILES.iter().filter(|name| is_set(name));
    for name in idle.filter(|_| !is_set("CARACAL_CONSOLE")) {
        warnings.push(format!(
            "{name} has no effect on a node without CARACAL_CONSOLE, the address of the console"
        ));
    }
    let unknown = names().filter(|name| name.starts_with("FELIX_") && !is_known_felix(name));
    let unknown: Vec<String> = unknown.map(felix).collect();
    if !unknown.is_empty() {
        warnings.push(format!(
            "not implemented and without effect: {}; set routing options in the FelixConfiguration resource",
            unknown.join(", ")
        ));
    }
    warnings
}

/// Every name that begins with ours is meant for us; of Calico's, which are more than Caracal's,
/// those that are one or two letters from one that counts.
fn misspelt(name: &str) -> Option<String> {
    let of_ipv4 = name.replacen("IPV6POOL", "IPV4POOL", 1);
    if READ.contains(&of_ipv4.as_str()) || OTHERS.contains(&name) || of_a_service(name) {
        return None;
    }
    let near = match name.strip_prefix("CARACAL_") {
        Some(rest) => {
            let known = READ.iter().filter_map(|read| read.strip_prefix("CARACAL_"));
            nearest_name(known, rest).map(|known| format!("CARACAL_{known}"))
        }
        None if name.starts_with("CALICO_") || name.starts_with("IP") => {
            let near = close_name(READ, &of_ipv4, 2)?;
            Some(match of_ipv4 == name {
                true => near.to_owned(),
                false => near.replacen("IPV4POOL", "IPV6POOL", 1),
            })
        }
        None => return None,
    };
    Some(match near {
        Some(near) => {
            format!("the variable {name} is not read and has no effect; did you mean {near}?")
        }
        None if name.starts_with("CARACAL_") => format!(
            "the variable {name} is not read and has no effect; docs/operations.md lists those that are"
        ),
        None => return None,
    })
}

/// Kubernetes describes each Service of a pod's namespace by such names: of a Service `caracal-x`
/// they begin with ours.
fn of_a_service(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"]
        .iter()
        .any(|part| name.contains(part))
        || name.ends_with("_PORT")
}

fn felix(name: &str) -> String {
    let keys = FELIX_FIELDS.iter();
    let keys = keys.map(|(path, _)| path.strip_prefix("spec.").unwrap_or(path));
    let typed = name.trim_start_matches("FELIX_");
    nearest_name(keys, typed).map_or_else(
        || name.to_owned(),
        |near| format!("{name} (did you mean FELIX_{}?)", near.to_ascii_uppercase()),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    fn warned(names: &[&str]) -> Vec<String> {
        let vars = names
            .iter()
            .map(|name| ((*name).to_owned(), "x".to_owned()));
        warnings(&vars.collect())
    }

    #[test]
    fn a_misspelt_variable_is_told_with_the_nearest_name() {
        for (typed, meant) in [
            ("CARACAL_SERVICE", "CARACAL_SERVICES"),
            ("CARACAL_LIBDIR", "CARACAL_LIB_DIR"),
            ("CALICO_IPV4POOL_CDIR", "CALICO_IPV4POOL_CIDR"),
            ("CALICO_IPV6POOL_CIDRS", "CALICO_IPV6POOL_CIDR"),
            ("IP_AUTODETECTON_METHOD", "IP_AUTODETECTION_METHOD"),
            ("IP4", "IP"),
        ] {
            let told = format!(
                "the variable {typed} is not read and has no effect; did you mean {meant}?"
            );
            assert_eq!(warned(&[typed]), [told]);
        }
        let said = warned(&["CARACAL_WIBBLEWOBBLE"]);
        assert!(said[0].contains("docs/operations.md"), "{said:?}");
        for name in super::super::console::FILES {
            let said = warned(&[name]);
            assert!(said[0].contains("without CARACAL_CONSOLE"), "{said:?}");
        }
        let said = warned(&["FELIX_IPTABLESBACKEN"]);
        assert!(
            said[0].contains("did you mean FELIX_IPTABLESBACKEND?"),
            "{said:?}"
        );
    }

    #[test]
    fn a_speaker_says_what_it_does_not_read() {
        let set = [
            "CARACAL_CONSOLE",
            "CARACAL_HTTP",
            "CARACAL_LAB_DIR",
            "HOME",
            "IP",
        ];
        let said = without_effect_on_a_speaker(set.into_iter());
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].contains("CARACAL_CONSOLE has no effect"),
            "{said:?}"
        );
    }

    #[test]
    fn what_is_read_and_what_kubernetes_sets_is_not_told() {
        assert_eq!(warned(&READ), Vec::<String>::new());
        let others = [
            "CALICO_IPV6POOL_NAT_OUTGOING",
            "CALICO_TYPHA_SERVICE_HOST",
            "CARACAL_STATUS_SERVICE_PORT_HTTP",
            "CARACAL_STATUS_PORT_9099_TCP_ADDR",
            "CALICO_DISABLE_FILE_LOGGING",
            "CALICO_MANAGE_CNI",
            "PATH",
            "HOME",
        ];
        assert_eq!(warned(&others), Vec::<String>::new());
    }

    /// The names in quotes, of product code.
    fn quoted(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != "tests" && name != "testing" {
                quoted(&path, found);
            } else if name.ends_with(".rs") && name != "tests.rs" && name != "variables.rs" {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                found.extend(words.map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_list_is_what_the_program_reads() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut words = Vec::new();
        for folder in [
            "node",
            "cni",
            "datastore",
            "ipam",
            "lab",
            "felix-like-agent",
        ] {
            quoted(&root.join(folder).join("src"), &mut words);
        }
        let of_a_pool = |name: &str| name.starts_with("CALICO_IPV4POOL_");
        for name in READ.into_iter().filter(|name| !of_a_pool(name)) {
            assert!(
                words.iter().any(|word| word == name),
                "nothing reads {name}"
            );
        }
        let prefixed = |word: &&String| word.len() > 8 && word.starts_with("CARACAL_");
        for word in words.iter().filter(prefixed) {
            let listed = READ.contains(&word.as_str()) || OTHERS.contains(&word.as_str());
            let internal = ["CARACAL_AGENT_TEST_INSIDE", "CARACAL_SHORT_TOKEN"];
            assert!(
                listed || internal.contains(&word.as_str()),
                "{word} is not listed"
            );
        }
    }
}
