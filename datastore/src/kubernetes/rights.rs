//! What a missing right was needed for, and which role of `deploy/kubernetes` gives it: a refusal
//! (403) of the API server names the right, and not what fails without it. A test compares the
//! table with the manifests.

/// A rule of a role of `deploy/kubernetes`.
struct Rule {
    /// The service account that has the role.
    account: &'static str,
    /// Kind and name of the role.
    role: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    /// What fails without it, behind "needed to".
    purpose: &'static str,
}

const NODE: &str = "caracal-node";
const PLUGIN: &str = "caracal-cni-plugin";
const NODE_ROLE: &str = "ClusterRole caracal-node";
const NODE_ROLE_IN_NAMESPACE: &str = "Role kube-system/caracal-node";
const PLUGIN_ROLE: &str = "ClusterRole caracal-cni-plugin";

const FOLLOW: &[&str] = &["list", "watch"];
const FOLLOW_AND_GET: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "delete"];

const fn node(
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    purpose: &'static str,
) -> Rule {
    Rule {
        account: NODE,
        role: NODE_ROLE,
        resources,
        verbs,
        purpose,
    }
}

const fn in_namespace(
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    purpose: &'static str,
) -> Rule {
    Rule {
        role: NODE_ROLE_IN_NAMESPACE,
        ..node(resources, verbs, purpose)
    }
}

const fn plugin(
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    purpose: &'static str,
) -> Rule {
    Rule {
        account: PLUGIN,
        role: PLUGIN_ROLE,
        resources,
        verbs,
        purpose,
    }
}

const RULES: &[Rule] = &[
    node(
        &["nodes"],
        FOLLOW_AND_GET,
        "know the nodes of the cluster and their addresses",
    ),
    node(
        &["pods"],
        FOLLOW_AND_GET,
        "know the pods of this node, or of all where policies are enforced, and their addresses",
    ),
    node(
        &["services", "endpointslices"],
        FOLLOW,
        "announce addresses of Services",
    ),
    node(
        &["namespaces"],
        &["get"],
        "notice that another cluster is at this address",
    ),
    node(
        &["nodes/status"],
        &["patch"],
        "write the addresses of this node into its Node, and that its network is up",
    ),
    node(
        &["pods/status"],
        &["patch"],
        "take back the address of a pod whose DEL found no API server",
    ),
    node(
        &["bgpfilters", "bgppeers"],
        FOLLOW,
        "know with whom this node speaks BGP, and what it announces",
    ),
    node(
        &["bgpconfigurations"],
        FOLLOW,
        "know how this node speaks BGP",
    ),
    node(
        &["ippools"],
        FOLLOW,
        "know the pools and their encapsulation",
    ),
    node(
        &["blockaffinities", "ipamblocks"],
        FOLLOW_AND_GET,
        "know which node has which block",
    ),
    node(
        &["ipamconfigs", "ipamconfigurations"],
        FOLLOW_AND_GET,
        "know how addresses are given out",
    ),
    node(
        &["ipreservations"],
        FOLLOW,
        "know which addresses may not be given out",
    ),
    node(
        &["clusterinformations"],
        FOLLOW_AND_GET,
        "know the cluster, and whether its data are locked",
    ),
    node(
        &["felixconfigurations"],
        FOLLOW,
        "know the settings of the node",
    ),
    node(
        &[
            "adminnetworkpolicies",
            "baselineadminnetworkpolicies",
            "clusternetworkpolicies",
            "globalnetworkpolicies",
            "hostendpoints",
            "networkpolicies",
        ],
        FOLLOW,
        "enforce policies, or tell which are there",
    ),
    node(
        &[
            "globalnetworksets",
            "namespaces",
            "networksets",
            "serviceaccounts",
            "tiers",
        ],
        FOLLOW,
        "enforce policies (CARACAL_POLICY=on)",
    ),
    node(
        &["ipamhandles"],
        &["get", "list"],
        "find the addresses that belong together",
    ),
    node(
        &[
            "bgpconfigurations",
            "clusterinformations",
            "felixconfigurations",
            "ipamconfigs",
            "ipamconfigurations",
        ],
        &["create"],
        "write the defaults of a cluster that has none",
    ),
    node(
        &["ippools"],
        &["create"],
        "make the pool of a cluster that has none",
    ),
    node(
        &["blockaffinities", "ipamblocks", "ipamhandles"],
        WRITE,
        "take and give back addresses of tunnels, and give back blocks",
    ),
    in_namespace(
        &["leases"],
        &["get", "list", "create", "update", "delete"],
        "tell that this node lives, agree on who clears up after deleted nodes, and report to commands",
    ),
    in_namespace(
        &["configmaps"],
        &["get"],
        "make the pool of pods in the range that kubeadm was told, and see that no pool lies over the Services' range",
    ),
    in_namespace(
        &["serviceaccounts/token"],
        &["create"],
        "renew the token of the CNI plugin",
    ),
    plugin(
        &["nodes"],
        &["get"],
        "choose pools by the labels of the node, and know its ranges",
    ),
    plugin(
        &["pods"],
        &["get", "list"],
        "see that the pod is there, and read its labels and annotations",
    ),
    plugin(
        &["namespaces"],
        &["get"],
        "read the annotations of the pod's namespace",
    ),
    plugin(
        &["pods/status"],
        &["patch"],
        "write the addresses of the pod",
    ),
    plugin(
        &["clusterinformations"],
        &["get"],
        "know whether the data are locked",
    ),
    plugin(
        &["ipamconfigs", "ipamconfigurations"],
        &["get"],
        "know how addresses are given out",
    ),
    plugin(
        &["ippools", "ipreservations"],
        &["list"],
        "know which addresses may be given out",
    ),
    plugin(
        &["blockaffinities", "ipamblocks", "ipamhandles"],
        &["get", "list"],
        "find a free address, and those of a pod",
    ),
    plugin(
        &["blockaffinities", "ipamblocks", "ipamhandles"],
        WRITE,
        "take and give back addresses of pods",
    ),
];

/// Text between two marks.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}

/// A refusal with what the right is needed for and the role that gives it, where it is a right of
/// an account of `deploy/kubernetes`. One that these accounts do not have by intention is named as
/// such.
pub(super) fn explained(said: &str) -> String {
    let parts = || {
        let user = between(said, "User \"", "\"")?;
        let verb = between(said, "\" cannot ", " resource \"")?;
        let resource = between(said, " resource \"", "\"")?;
        let account = user.strip_prefix("system:serviceaccount:kube-system:")?;
        [NODE, PLUGIN]
            .contains(&account)
            .then_some((account, verb, resource))
    };
    let Some((account, verb, resource)) = parts() else {
        return said.to_owned();
    };
    let rule = RULES.iter().find(|rule| {
        let is_for = rule.account == account && rule.verbs.contains(&verb);
        is_for && rule.resources.contains(&resource)
    });
    match rule {
        Some(rule) => format!(
            "{said}: needed to {}, and given by {} (deploy/kubernetes)",
            rule.purpose, rule.role
        ),
        None if (account, resource) == (NODE, "secrets") => format!(
            "{said}: needed to read passwords of sessions; a Role on this Secret gives it, and no manifest \
             (docs/topologies.md, Passwords)"
        ),
        None => format!(
            "{said}: the account {account} does not have this right by intention; whoever gives this order needs \
             a KUBECONFIG with more"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn refusal(account: &str, verb: &str, resource: &str) -> String {
        format!(
            "{resource} is forbidden: User \"system:serviceaccount:kube-system:{account}\" cannot {verb} \
             resource \"{resource}\" in API group \"\" at the cluster scope"
        )
    }

    #[test]
    fn a_refusal_says_what_the_right_is_for_and_who_gives_it() {
        let said = explained(&refusal(NODE, "watch", "nodes"));
        let wanted = "at the cluster scope: needed to know the nodes of the cluster and their addresses, and given by \
                      ClusterRole caracal-node (deploy/kubernetes)";
        assert!(said.ends_with(wanted), "{said}");
        let said = explained(&refusal(NODE, "create", "serviceaccounts/token"));
        assert!(said.contains("Role kube-system/caracal-node"), "{said}");
        let said = explained(&refusal(PLUGIN, "patch", "pods/status"));
        assert!(said.contains("ClusterRole caracal-cni-plugin"), "{said}");
    }

    #[test]
    fn a_right_that_nobody_has_by_intention_is_named_as_such() {
        let said = explained(&refusal(NODE, "update", "ippools"));
        assert!(said.contains("by intention"), "{said}");
        let said = explained(&refusal(NODE, "list", "secrets"));
        assert!(said.contains("docs/topologies.md"), "{said}");
        // Of accounts that somebody else made nothing is known.
        for other in [
            "pods \"x\" is forbidden: exceeded quota",
            &refusal("me", "get", "pods"),
        ] {
            assert_eq!(explained(other), other);
        }
    }

    type Right = (String, String, String);

    fn of_manifests() -> BTreeSet<Right> {
        let texts = [
            include_str!("../../../deploy/kubernetes/node-rights.yaml"),
            include_str!("../../../deploy/kubernetes/rbac.yaml"),
        ];
        let mut rights = BTreeSet::new();
        for text in texts {
            let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
            for role in documents.iter().filter(|d| d["rules"].is_array()) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let namespace = role["metadata"]["namespace"].as_str();
                let namespace = namespace.map(|n| format!("{n}/")).unwrap_or_default();
                let name = text(&role["metadata"]["name"]);
                let role_name = format!("{} {namespace}{name}", text(&role["kind"]));
                for rule in role["rules"].as_array().unwrap() {
                    for resource in rule["resources"].as_array().unwrap() {
                        for verb in rule["verbs"].as_array().unwrap() {
                            rights.insert((role_name.clone(), text(resource), text(verb)));
                        }
                    }
                }
            }
        }
        rights
    }

    #[test]
    fn the_table_has_the_rights_of_the_manifests() {
        let of_table: BTreeSet<Right> = RULES
            .iter()
            .flat_map(|rule| {
                let verbs = move |resource: &'static str| {
                    let right = move |verb: &&str| {
                        (
                            rule.role.to_owned(),
                            resource.to_owned(),
                            (*verb).to_owned(),
                        )
                    };
                    rule.verbs.iter().map(right)
                };
                rule.resources
                    .iter()
                    .flat_map(move |resource| verbs(resource))
            })
            .collect();
        let manifests = of_manifests();
        let unnamed: Vec<_> = manifests.difference(&of_table).collect();
        let gone: Vec<_> = of_table.difference(&manifests).collect();
        assert!(
            unnamed.is_empty() && gone.is_empty(),
            "the manifests alone: {unnamed:?}; the table alone: {gone:?}"
        );
    }
}
