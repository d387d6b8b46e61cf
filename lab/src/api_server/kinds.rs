//! The kinds that are served: those of the core, and those of the definitions of custom resources.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

/// Everything of the API server lies below.
pub(super) const ROOT: &str = "/registry/";
/// Below this lie the definitions of custom resources.
pub(super) const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
/// A kind in one version of its group.
#[derive(Debug, Default)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) list_kind: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) short: Vec<String>,
    pub(super) is_namespaced: bool,
    /// Has it the subresource `status`?
    pub(super) has_status: bool,
    /// The schema of a custom resource.
    pub(super) schema: Option<Value>,
    /// Columns that the definition of a custom resource names.
    pub(super) columns: Vec<Value>,
}

/// Group, version, kind, plural, short names, namespaced, status.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    bool,
    bool,
);

const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
pub(super) const EXTENSIONS: &str = "apiextensions.k8s.io";

const BUILT_IN: [Row; 18] = [
    ("", "v1", "Namespace", "namespaces", "ns", false, true),
    ("", "v1", "Node", "nodes", "no", false, true),
    ("", "v1", "Pod", "pods", "po", true, true),
    (
        "",
        "v1",
        "ServiceAccount",
        "serviceaccounts",
        "sa",
        true,
        false,
    ),
    ("", "v1", "Service", "services", "svc", true, true),
    ("", "v1", "Secret", "secrets", "", true, false),
    ("", "v1", "ConfigMap", "configmaps", "cm", true, false),
    ("", "v1", "Event", "events", "ev", true, false),
    (
        "discovery.k8s.io",
        "v1",
        "EndpointSlice",
        "endpointslices",
        "",
        true,
        false,
    ),
    (
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        "netpol",
        true,
        false,
    ),
    (
        "coordination.k8s.io",
        "v1",
        "Lease",
        "leases",
        "",
        true,
        false,
    ),
    (APPS, "v1", "DaemonSet", "daemonsets", "ds", true, true),
    (
        APPS,
        "v1",
        "Deployment",
        "deployments",
        "deploy",
        true,
        true,
    ),
    (RBAC, "v1", "Role", "roles", "", true, false),
    (RBAC, "v1", "RoleBinding", "rolebindings", "", true, false),
    (RBAC, "v1", "ClusterRole", "clusterroles", "", false, false),
    (
        RBAC,
        "v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        "",
        false,
        false,
    ),
    (
        EXTENSIONS,
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd,crds",
        false,
        true,
    ),
];

impl Kind {
    fn built_in(row: &Row) -> Self {
        let (group, version, kind, plural, short, is_namespaced, has_status) = *row;
        let short = short.split(',').filter(|s| !s.is_empty());
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short: short.map(str::to_owned).collect(),
            is_namespaced,
            has_status,
            schema: None,
            columns: Vec::new(),
        }
    }

    /// The versions of a definition that are served.
    fn defined(definition: &Value) -> Vec<Self> {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let names = with_default_names(&spec["names"]);
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let versions = list(&spec["versions"]);
        let served = versions.iter().filter(|v| v["served"] == true);
        served
            .map(|version| Self {
                group: text(&spec["group"]),
                version: text(&version["name"]),
                kind: text(&names["kind"]),
                list_kind: text(&names["listKind"]),
                plural: text(&names["plural"]),
                singular: text(&names["singular"]),
                short: list(&names["shortNames"]).iter().map(text).collect(),
                is_namespaced: spec["scope"] == "Namespaced",
                has_status: version["subresources"]["status"].is_object(),
                schema: Some(version["schema"]["openAPIV3Schema"].clone()),
                columns: list(&version["additionalPrinterColumns"]),
            })
            .collect()
    }

    /// Is it from a definition of custom resources?
    pub(super) const fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    /// `group/version`, or the version for the core.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Where objects of the kind are stored, in one namespace or everywhere.
    pub(super) fn prefix(&self, namespace: Option<&str>) -> String {
        let group = if self.group.is_empty() {
            "core"
        } else {
            &self.group
        };
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => format!("{ROOT}{group}/{}/{namespace}/", self.plural),
            None => format!("{ROOT}{group}/{}/", self.plural),
        }
    }

    /// Where one object is stored.
    pub(super) fn key(&self, namespace: Option<&str>, name: &str) -> String {
        format!("{}{name}", self.prefix(namespace))
    }

    fn rows(&self) -> Vec<Value> {
        let verbs = [
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        let mut row = json!({
            "name": self.plural, "singularName": self.singular, "namespaced": self.is_namespaced,
            "kind": self.kind, "verbs": verbs,
        });
        if !self.short.is_empty() {
            row["shortNames"] = self.short.clone().into();
        }
        let mut rows = vec![row];
        let mut sub = |name: &str, kind: &str, verbs: &[&str]| {
            rows.push(json!({
                "name": format!("{}/{name}", self.plural), "singularName": "",
                "namespaced": self.is_namespaced, "kind": kind, "verbs": verbs,
            }));
        };
        if self.has_status {
            sub("status", &self.kind, &["get", "patch", "update"]);
        }
        if self.group.is_empty() && self.plural == "serviceaccounts" {
            sub("token", "TokenRequest", &["create"]);
        }
        if self.group.is_empty() && self.plural == "pods" {
            sub("binding", "Binding", &["create"]);
        }
        rows
    }
}

/// The names of a definition with what the server fills in.
pub(super) fn with_default_names(names: &Value) -> Value {
    let mut names = names.clone();
    let kind = names["kind"].as_str().unwrap_or_default().to_owned();
    for (key, default) in [
        ("singular", kind.to_lowercase()),
        ("listKind", format!("{kind}List")),
    ] {
        if names[key].as_str().is_none_or(str::is_empty) {
            names[key] = default.into();
        }
    }
    names
}

/// All kinds that are served.
#[derive(Debug)]
pub(super) struct Registry {
    kinds: Vec<Arc<Kind>>,
}

impl Registry {
    /// Kinds that are always there.
    pub(super) fn built_in() -> Self {
        let kinds = BUILT_IN.iter().map(|row| Arc::new(Kind::built_in(row)));
        Self {
            kinds: kinds.collect(),
        }
    }

    /// With those of the definitions.
    pub(super) fn with_definitions<'a>(definitions: impl Iterator<Item = &'a Value>) -> Self {
        let mut all = Self::built_in();
        all.kinds
            .extend(definitions.flat_map(Kind::defined).map(Arc::new));
        all
    }

    /// A kind by its place in the path.
    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let mut kinds = self.kinds.iter();
        let found =
            kinds.find(|k| (&*k.group, &*k.version, &*k.plural) == (group, version, plural));
        found.cloned()
    }

    /// A kind by what objects say they are.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let mut kinds = self.kinds.iter();
        let found = kinds.find(|k| k.kind == kind && k.api_version() == api_version);
        found.cloned()
    }

    /// All kinds, one version of each.
    pub(super) fn once_each(&self) -> impl Iterator<Item = &Arc<Kind>> {
        let mut seen = BTreeSet::new();
        self.kinds
            .iter()
            .filter(move |k| seen.insert((&k.group, &k.plural)))
    }

    /// The answer to `/apis`, `/apis/GROUP`, `/api/v1` or `/apis/GROUP/VERSION`.
    pub(super) fn discover(&self, path: &[&str]) -> Option<Value> {
        match path {
            ["api"] => Some(json!({
                "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
            })),
            ["apis"] => {
                let groups: BTreeSet<_> = self.kinds.iter().map(|k| &*k.group).collect();
                let groups = groups.into_iter().filter(|g| !g.is_empty());
                let groups: Vec<_> = groups.filter_map(|g| self.group(g)).collect();
                Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
            }
            ["apis", group] => {
                let mut answer = self.group(group)?;
                answer["kind"] = "APIGroup".into();
                answer["apiVersion"] = "v1".into();
                Some(answer)
            }
            ["api", version] => self.resources("", version),
            ["apis", group, version] => self.resources(group, version),
            _ => None,
        }
    }

    fn group(&self, group: &str) -> Option<Value> {
        let mut versions = Vec::new();
        for kind in self.kinds.iter().filter(|k| k.group == group) {
            let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
            if !versions.contains(&version) {
                versions.push(version);
            }
        }
        let preferred = versions.first()?.clone();
        Some(json!({"name": group, "versions": versions, "preferredVersion": preferred}))
    }

    fn resources(&self, group: &str, version: &str) -> Option<Value> {
        let kinds = self.kinds.iter();
        let kinds: Vec<_> = kinds
            .filter(|k| k.group == group && k.version == version)
            .collect();
        let name = kinds.first()?.api_version();
        let rows: Vec<Value> = kinds.iter().flat_map(|k| k.rows()).collect();
        Some(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows,
        }))
    }
}
