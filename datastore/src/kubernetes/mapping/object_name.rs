//! Which objects of the API hold what stands under a key.

use caracal_model::{BlockOwner, DocumentKind, Family, Key, KeyRange, Kind};

use super::{lease, names};

/// A collection of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Collection {
    Nodes,
    Pods,
    Namespaces,
    ServiceAccounts,
    Services,
    Endpoints,
    EndpointSlices,
    /// Kubernetes' own, not Calico's.
    Policies(PolicyKind),
    /// Data that nodes keep beside Calico's.
    Leases,
    /// One of Calico's custom resources, by its plural.
    Custom(&'static str),
}

/// The kinds of policy that are Kubernetes' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PolicyKind {
    /// NetworkPolicy.
    Network,
    /// AdminNetworkPolicy.
    Admin,
    /// BaselineAdminNetworkPolicy.
    Baseline,
    /// ClusterNetworkPolicy, which follows the two before.
    Cluster,
}

impl PolicyKind {
    pub(crate) const ALL: [Self; 4] = [Self::Network, Self::Admin, Self::Baseline, Self::Cluster];

    /// `apiVersion` of its objects, and its plural there.
    const fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Network => ("networking.k8s.io/v1", "networkpolicies"),
            Self::Admin => (ALPHA1, "adminnetworkpolicies"),
            Self::Baseline => (ALPHA1, "baselineadminnetworkpolicies"),
            Self::Cluster => (
                "policy.networking.k8s.io/v1alpha2",
                "clusternetworkpolicies",
            ),
        }
    }

    /// `apiVersion` and `kind` of its objects.
    pub(crate) const fn names(self) -> (&'static str, &'static str) {
        let kind = match self {
            Self::Network => "NetworkPolicy",
            Self::Admin => "AdminNetworkPolicy",
            Self::Baseline => "BaselineAdminNetworkPolicy",
            Self::Cluster => "ClusterNetworkPolicy",
        };
        (self.place().0, kind)
    }

    /// Calico's kind that it is on etcd, by its plural, and what is before the name there.
    pub(crate) const fn on_etcd(self) -> (&'static str, &'static str) {
        match self {
            Self::Network => ("networkpolicies", "knp.default."),
            Self::Admin => ("globalnetworkpolicies", "kanp.adminnetworkpolicy."),
            Self::Baseline => ("globalnetworkpolicies", "kbanp.baselineadminnetworkpolicy."),
            Self::Cluster => ("globalnetworkpolicies", "kcnp.clusternetworkpolicy."),
        }
    }
}

const ALPHA1: &str = "policy.networking.k8s.io/v1alpha1";

/// The one object with IPAM's settings, under both of Calico's names for it.
pub(crate) const IPAM_CONFIG: Collection = Collection::Custom("ipamconfigs");
pub(crate) const BLOCKS: Collection = Collection::Custom("ipamblocks");
pub(crate) const AFFINITIES: Collection = Collection::Custom("blockaffinities");
pub(crate) const HANDLES: Collection = Collection::Custom("ipamhandles");

/// Which of Calico's two API groups a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiGroup {
    /// `crd.projectcalico.org/v1`.
    V1,
    /// `projectcalico.org/v3` without Calico's API server.
    V3,
}

impl ApiGroup {
    /// `apiVersion` of its objects.
    #[must_use]
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "crd.projectcalico.org/v1",
            Self::V3 => "projectcalico.org/v3",
        }
    }
}

impl Collection {
    /// Its path, over all namespaces.
    #[must_use]
    pub(crate) fn path(self, group: ApiGroup) -> String {
        self.path_in(group, None)
    }

    /// Its path in a namespace.
    #[must_use]
    pub(crate) fn path_in(self, group: ApiGroup, namespace: Option<&str>) -> String {
        let (base, plural) = match self {
            Self::Nodes => ("/api/v1".to_owned(), "nodes"),
            Self::Pods => ("/api/v1".to_owned(), "pods"),
            Self::Namespaces => ("/api/v1".to_owned(), "namespaces"),
            Self::ServiceAccounts => ("/api/v1".to_owned(), "serviceaccounts"),
            Self::Services => ("/api/v1".to_owned(), "services"),
            Self::Endpoints => ("/api/v1".to_owned(), "endpoints"),
            Self::EndpointSlices => ("/apis/discovery.k8s.io/v1".to_owned(), "endpointslices"),
            Self::Policies(kind) => {
                let (api_version, plural) = kind.place();
                (format!("/apis/{api_version}"), plural)
            }
            Self::Leases => {
                let base = format!(
                    "/apis/coordination.k8s.io/v1/namespaces/{}",
                    lease::NAMESPACE
                );
                return format!("{base}/leases");
            }
            Self::Custom(plural) => (format!("/apis/{}", group.api_version()), {
                match (self == IPAM_CONFIG, group) {
                    (true, ApiGroup::V3) => "ipamconfigurations",
                    _ => plural,
                }
            }),
        };
        match namespace {
            Some(namespace) => format!("{base}/namespaces/{namespace}/{plural}"),
            None => format!("{base}/{plural}"),
        }
    }
}

/// An object of the API by its collection, namespace and `metadata.name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    pub(crate) collection: Collection,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl ObjectName {
    fn new(collection: Collection, name: impl Into<String>) -> Self {
        Self {
            collection,
            namespace: None,
            name: name.into(),
        }
    }

    fn inside(collection: Collection, namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..Self::new(collection, name)
        }
    }

    #[must_use]
    pub(crate) fn path(&self, group: ApiGroup) -> String {
        let collection = self.collection.path_in(group, self.namespace.as_deref());
        format!("{collection}/{}", self.name)
    }

    /// Where what stands under a path is; `None` when Kubernetes has no such thing.
    #[must_use]
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        match lease::name(path) {
            Some(name) => Some(Self::inside(Collection::Leases, lease::NAMESPACE, &name)),
            None => Self::from_key(&Key::parse(path).ok()?),
        }
    }

    /// Where what stands under a key is; `None` when Kubernetes has no such thing.
    #[must_use]
    pub(crate) fn from_key(key: &Key) -> Option<Self> {
        Some(match key {
            Key::Block(cidr) => Self::new(BLOCKS, names::of_cidr(cidr)),
            Key::Affinity(owner, cidr) => Self::new(AFFINITIES, names::of_affinity(owner, cidr)),
            Key::Handle(id) => Self::new(HANDLES, names::of_handle(id)),
            Key::IpamConfig => Self::new(IPAM_CONFIG, "default"),
            Key::IpamHost(_) | Key::ServicesCheck => return None,
            Key::Document {
                kind,
                namespace,
                name,
            } => Self::inside(of_document(*kind), namespace, name),
            Key::Resource {
                kind,
                namespace,
                name,
            } => match (kind, namespace) {
                (Kind::Node, _) => Self::new(Collection::Nodes, name),
                (Kind::WorkloadEndpoint, Some(namespace)) => {
                    Self::inside(Collection::Pods, namespace, &pod_of_endpoint(name)?)
                }
                (Kind::WorkloadEndpoint, None) => return None,
                (Kind::Profile, _) => of_profile(name)?,
                (Kind::IpamConfiguration, _) => Self::new(IPAM_CONFIG, name),
                (kind, _) => Self::new(Collection::Custom(kind.plural()), name),
            },
        })
    }
}

const fn of_document(kind: DocumentKind) -> Collection {
    match kind {
        DocumentKind::Service => Collection::Services,
        DocumentKind::Endpoints => Collection::Endpoints,
        DocumentKind::EndpointSlice => Collection::EndpointSlices,
    }
}

fn of_profile(name: &str) -> Option<ObjectName> {
    if let Some(namespace) = name.strip_prefix("kns.") {
        return Some(ObjectName::new(Collection::Namespaces, namespace));
    }
    let (namespace, account) = name.strip_prefix("ksa.")?.split_once('.')?;
    let collection = Collection::ServiceAccounts;
    Some(ObjectName::inside(collection, namespace, account))
}

/// The pod of an endpoint's name, `NODE-k8s-POD-eth0` with dashes inside parts doubled.
#[must_use]
pub(crate) fn pod_of_endpoint(name: &str) -> Option<String> {
    let mark = name.replace("--", "\u{0}");
    let parts: Vec<&str> = mark.split('-').collect();
    match parts[..] {
        [_, "k8s", pod, _] => Some(pod.replace('\u{0}', "-")),
        _ => None,
    }
}

/// Scope of a list request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct List {
    pub(crate) collection: Collection,
    pub(crate) labels: Option<String>,
}

impl List {
    pub(crate) const fn all(collection: Collection) -> Self {
        Self {
            collection,
            labels: None,
        }
    }

    /// [`List::under_prefix`] where Nodes' `podCIDRs` are the blocks: lists of those are lists of
    /// Nodes.
    #[must_use]
    pub(crate) fn under_prefix_with_pod_cidrs(prefix: &str) -> Vec<Self> {
        let lists = Self::under_prefix(prefix).into_iter();
        let mut lists: Vec<_> = lists
            .map(|list| match list.collection {
                BLOCKS | AFFINITIES => Self::all(Collection::Nodes),
                _ => list,
            })
            .collect();
        lists.dedup();
        lists
    }

    /// The lists that hold all keys of a range that is a prefix; none when Kubernetes has nothing
    /// of the kind.
    #[must_use]
    pub(crate) fn under_prefix(prefix: &str) -> Vec<Self> {
        if let Some(labels) = lease::selector(prefix) {
            return vec![Self {
                collection: Collection::Leases,
                labels: Some(labels),
            }];
        }
        let ipam = caracal_model::ipam_prefix();
        if let Some(rest) = prefix.strip_prefix(&*ipam) {
            return of_ipam(rest);
        }
        if let Some(rest) = prefix.strip_prefix(&*caracal_model::resources_prefix()) {
            return of_resources(rest);
        }
        if prefix == caracal_model::documents_prefix() {
            return vec![
                Self::all(Collection::Services),
                Self::all(Collection::EndpointSlices),
            ];
        }
        let kinds = DocumentKind::ALL.into_iter().filter(|kind| {
            let all = format!("{}{}/", caracal_model::documents_prefix(), kind.plural());
            prefix.starts_with(&all)
        });
        kinds.map(of_document).map(Self::all).collect()
    }
}

fn of_ipam(rest: &str) -> Vec<List> {
    if rest.starts_with("assignment/") {
        return vec![List::all(BLOCKS)];
    }
    if rest.starts_with("handle/") {
        return vec![List::all(HANDLES)];
    }
    if rest.is_empty() {
        return [BLOCKS, AFFINITIES, HANDLES, IPAM_CONFIG]
            .map(List::all)
            .into();
    }
    let parts: Vec<&str> = rest.split('/').collect();
    let owner = |kind: &str, name: &str| match kind {
        "host" => BlockOwner::Host(name.into()),
        _ => BlockOwner::Virtual(name.to_owned()),
    };
    match parts[..] {
        [
            kind @ ("host" | "virtual"),
            name,
            family @ ("ipv4" | "ipv6"),
            ..,
        ] => {
            let family = match family {
                "ipv4" => Family::Ipv4,
                _ => Family::Ipv6,
            };
            let labels = names::affinity_labels(&owner(kind, name), family);
            let labels = labels.map(|(label, value)| format!("{label}={value}"));
            vec![List {
                collection: AFFINITIES,
                labels: Some(labels.join(",")),
            }]
        }
        ["host" | "virtual", ..] => vec![List::all(AFFINITIES)],
        _ => Vec::new(),
    }
}

/// Calico's kinds of policy, and its sets of addresses, which policies select: plural and kind.
const POLICIES: [(&str, &str); 2] = [
    ("globalnetworkpolicies", "GlobalNetworkPolicy"),
    ("networkpolicies", "NetworkPolicy"),
];
const SETS: [(&str, &str); 2] = [
    ("globalnetworksets", "GlobalNetworkSet"),
    ("networksets", "NetworkSet"),
];

/// The kind of a plural, where it is no [`Kind`].
pub(super) fn beside_kinds(plural: &str) -> Option<&'static str> {
    let mut all = POLICIES.into_iter().chain(SETS);
    all.find(|(known, _)| *known == plural)
        .map(|(_, kind)| kind)
}

fn of_resources(rest: &str) -> Vec<List> {
    if rest.is_empty() {
        let policies = POLICIES.map(|(plural, _)| plural);
        let plurals = Kind::ALL.into_iter().map(Kind::plural).chain(policies);
        return plurals.flat_map(of_resources).collect();
    }
    let plural = rest.split('/').next().unwrap_or_default();
    if let Some((plural, _)) = POLICIES.into_iter().find(|(known, _)| *known == plural) {
        let own = PolicyKind::ALL.into_iter();
        let own = own.filter(|kind| kind.on_etcd().0 == plural);
        let own = own.map(Collection::Policies);
        return own
            .chain([Collection::Custom(plural)])
            .map(List::all)
            .collect();
    }
    if let Some((plural, _)) = SETS.into_iter().find(|(known, _)| *known == plural) {
        return vec![List::all(Collection::Custom(plural))];
    }
    let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.plural() == plural) else {
        return Vec::new();
    };
    match kind {
        Kind::Node => vec![List::all(Collection::Nodes)],
        Kind::WorkloadEndpoint => vec![List::all(Collection::Pods)],
        Kind::IpamConfiguration => vec![List::all(IPAM_CONFIG)],
        Kind::Profile => vec![
            List::all(Collection::Namespaces),
            List::all(Collection::ServiceAccounts),
        ],
        kind => vec![List::all(Collection::Custom(kind.plural()))],
    }
}

/// Whether a key lies in a range.
#[must_use]
pub(crate) fn is_in(range: &KeyRange, key: &str) -> bool {
    match range {
        KeyRange::Key(one) => one == key,
        KeyRange::Prefix(prefix) => key.starts_with(prefix.as_str()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn path(key: &str) -> String {
        ObjectName::from_key(&Key::parse(key).unwrap())
            .unwrap()
            .path(ApiGroup::V1)
    }

    #[test]
    fn every_kind_of_key_has_its_object() {
        for (key, expected) in [
            (
                "/calico/ipam/v2/assignment/ipv4/block/10.244.3.64-26",
                "/apis/crd.projectcalico.org/v1/ipamblocks/10-244-3-64-26",
            ),
            (
                "/calico/ipam/v2/host/node-1/ipv4/block/10.244.3.64-26",
                "/apis/crd.projectcalico.org/v1/blockaffinities/node-1-10-244-3-64-26",
            ),
            (
                "/calico/ipam/v2/handle/k8s-pod-network.8f2c",
                "/apis/crd.projectcalico.org/v1/ipamhandles/k8s-pod-network.8f2c",
            ),
            (
                "/calico/ipam/v2/config",
                "/apis/crd.projectcalico.org/v1/ipamconfigs/default",
            ),
            (
                "/calico/resources/v3/projectcalico.org/ippools/p",
                "/apis/crd.projectcalico.org/v1/ippools/p",
            ),
            (
                "/calico/resources/v3/projectcalico.org/nodes/node-1",
                "/api/v1/nodes/node-1",
            ),
            (
                "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0",
                "/api/v1/namespaces/default/pods/web-0",
            ),
            (
                "/calico/resources/v3/projectcalico.org/profiles/ksa.red.builder",
                "/api/v1/namespaces/red/serviceaccounts/builder",
            ),
            (
                "/calico/caracal/v1/endpointslices/default/web-x",
                "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-x",
            ),
        ] {
            assert_eq!(path(key), expected);
        }
        let config = ObjectName::from_key(&Key::IpamConfig).unwrap();
        assert_eq!(
            config.path(ApiGroup::V3),
            "/apis/projectcalico.org/v3/ipamconfigurations/default"
        );
    }

    #[test]
    fn a_hosts_affinities_are_selected_by_calicos_labels() {
        let owner = BlockOwner::Host("node-1".into());
        let lists = List::under_prefix(&caracal_model::affinity_prefix(&owner, Family::Ipv4));
        assert_eq!(lists.len(), 1);
        let labels = lists[0].labels.as_deref().unwrap();
        assert!(
            labels.contains("projectcalico.org/affinity-type=host,"),
            "{labels}"
        );
        assert!(labels.contains("hostname-hash=A3XPYDATRKB7Q4"), "{labels}");
        assert_eq!(List::under_prefix("/calico/ipam/v2/host/")[0].labels, None);
        assert_eq!(List::under_prefix("/registry/"), []);
        let all = List::under_prefix(&caracal_model::resources_prefix());
        let pools = Collection::Custom("ippools");
        assert!(all.iter().any(|list| list.collection == Collection::Nodes));
        assert!(all.iter().any(|list| list.collection == pools));
        let twice = all.iter().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(twice.len(), all.len());
    }
}
