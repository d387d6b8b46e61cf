//! All resources at one revision of the datastore.
//!
//! A snapshot is level-triggered: it is built by [`Snapshot::apply`], and two histories that end in
//! the same data give equal snapshots, but for values that never parsed. A value that does not
//! parse never replaces a good one (MODEL-4): the last good value stays in use and a [`Problem`]
//! names key and reason.

mod doubt;
mod elsewhere;
mod holders;
mod known_block;
mod known_value;
mod lock;
mod notes;
mod policy;
mod problem;
mod stored;

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;

use crate::code::ProblemCode;
use crate::ipam::{BlockAffinity, BlockOwner, IpamConfig};
use crate::keys::{DocumentKind, Key, KeyError};
use crate::kubernetes::KubernetesDocument;
use crate::names::{NodeName, PoolName};
use crate::net::{Family, Prefix};
use crate::policy::PolicyData;
use crate::resource::fields::FieldNote;
use crate::resource::{
    BgpConfiguration, BgpFilter, BgpPeer, FelixConfiguration, IpPool, IpReservation, Kind, Node,
    ValueError, WorkloadEndpoint,
};
use crate::shared_map::SharedMap;

pub use doubt::Doubt;
pub use elsewhere::{Elsewhere, Networks};
pub use holders::Holders;
pub use known_block::KnownBlock;
pub use lock::{LOCKED, is_locked};
pub use policy::POLICY_KINDS;
pub use problem::Problem;
pub use stored::{StoredEndpoints, StoredLineError};

/// A value with the revision of its last change. Cheap to clone.
#[derive(Debug)]
pub struct Versioned<T> {
    /// etcd's ModRevision.
    pub revision: i64,
    value: Arc<T>,
}

impl<T: PartialEq> PartialEq for Versioned<T> {
    /// Copies are equal at a glance: of the values beside a changed one nearly all are.
    fn eq(&self, other: &Self) -> bool {
        let same = || Arc::ptr_eq(&self.value, &other.value) || self.value == other.value;
        self.revision == other.revision && same()
    }
}

impl<T> Clone for Versioned<T> {
    fn clone(&self) -> Self {
        Self {
            revision: self.revision,
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> Deref for Versioned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Versioned<T> {
    /// Wraps a value.
    #[must_use]
    pub fn new(revision: i64, value: T) -> Self {
        Self {
            revision,
            value: Arc::new(value),
        }
    }
}

/// A value that does not parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// Revision of the value.
    pub revision: i64,
    /// Why it does not parse.
    pub reason: String,
    /// True when an earlier, good value is still in use.
    pub kept_last_good: bool,
}

/// Result of [`Snapshot::apply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The snapshot differs from before.
    Changed,
    /// It differs in what is only looked up when somebody asks: nothing that is planned, announced
    /// or written follows from it, so nobody has to be woken. Of other nodes' pods that is all
    /// there is.
    Quiet,
    /// The value is not one that Caracal reads.
    Ignored,
    /// The value does not parse; the reason.
    Invalid(String),
}

/// All resources at one revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Revision of the datastore.
    pub revision: i64,
    /// The node whose blocks ([`KnownBlock::whole`]) and endpoints are kept whole; `None` = all
    /// are. Set before the first value.
    pub whole_blocks_of: Option<NodeName>,
    /// Other nodes' endpoints are all kept, also those that their blocks say everything about.
    pub all_endpoints: bool,
    /// The cluster's identity, `clusterGUID` of ClusterInformation `default`.
    pub cluster_guid: Option<Versioned<String>>,
    /// The datastore is locked: `datastoreReady` of ClusterInformation `default` is false.
    pub locked: bool,
    /// All nodes, by name.
    pub nodes: SharedMap<NodeName, Versioned<Node>>,
    /// All IP pools that parse, by name.
    pub pools: SharedMap<PoolName, Versioned<IpPool>>,
    /// IPReservations by name: addresses that are not handed out.
    pub reservations: SharedMap<String, Versioned<IpReservation>>,
    /// BGPConfigurations: `default` and `node.NAME`.
    pub bgp_configurations: SharedMap<String, Versioned<BgpConfiguration>>,
    /// BGPPeers by name.
    pub bgp_peers: SharedMap<String, Versioned<BgpPeer>>,
    /// BGPFilters by name.
    pub bgp_filters: SharedMap<String, Versioned<BgpFilter>>,
    /// FelixConfigurations: `default` and `node.NAME`.
    pub felix_configurations: SharedMap<String, Versioned<FelixConfiguration>>,
    /// Workload endpoints by namespace and name; those of other nodes than
    /// [`Snapshot::whole_blocks_of`] are [`Snapshot::elsewhere`].
    pub workloads: SharedMap<(String, String), Versioned<WorkloadEndpoint>>,
    /// Other nodes' workload endpoints by `NAMESPACE/NAME`, as far as they are read: those that no
    /// block accounts for, and those with addresses of blocks that are kept whole; with
    /// [`Snapshot::all_endpoints`] all.
    pub elsewhere: SharedMap<Arc<str>, Elsewhere>,
    /// Blocks; those that do not concern [`Snapshot::whole_blocks_of`] without their addresses'
    /// holders.
    pub blocks: SharedMap<Prefix, Versioned<KnownBlock>>,
    /// Affinities by owner and block.
    pub affinities: SharedMap<(BlockOwner, Prefix), Versioned<BlockAffinity>>,
    /// The IPAM configuration, when there is one.
    pub ipam_config: Option<Versioned<IpamConfig>>,
    /// Documents of Kubernetes' API by kind, namespace and name, as they were placed.
    pub documents: SharedMap<(DocumentKind, String, String), Versioned<KubernetesDocument>>,
    /// Identifies who waits for all nodes to have the documents in force; none almost always.
    pub services_check: Option<Versioned<String>>,
    /// Which policies there are ([`policy::POLICY_KINDS`]).
    pub policies: policy::Policies,
    /// What policy is made of, on a node that enforces it.
    pub policy: Option<PolicyData>,
    /// Notes on fields of the values in use, by path: unknown fields, and known ones without
    /// effect.
    pub notes: SharedMap<String, Vec<FieldNote>>,
    /// Values that do not parse, by path.
    pub invalid: SharedMap<String, InvalidValue>,
}

fn document(text: &[u8]) -> Result<Value, ValueError> {
    match serde_json::from_slice(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ValueError("not a JSON object".to_owned())),
        Err(error) => Err(ValueError(error.to_string())),
    }
}

/// `spec.clusterGUID`; empty counts as not given.
fn cluster_guid(value: &Value) -> Option<String> {
    let guid = value["spec"]["clusterGUID"].as_str();
    guid.filter(|guid| !guid.is_empty()).map(str::to_owned)
}

/// Puts, removes or keeps one entry of a map.
fn set<K: Ord + Clone, T>(
    map: &mut SharedMap<K, Versioned<T>>,
    key: K,
    revision: i64,
    value: Option<Result<T, ValueError>>,
) -> Stored {
    match value {
        None => {
            map.remove(&key);
            Ok(StoreEffect::Change)
        }
        Some(Ok(value)) => {
            map.insert(key, Versioned::new(revision, value));
            Ok(StoreEffect::Change)
        }
        Some(Err(ValueError(reason))) => Err((reason, map.contains_key(&key))),
    }
}

/// Effect of storing a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreEffect {
    Change,
    Quiet,
}

/// Or why it was not stored, and whether an earlier value is still in use.
type Stored = Result<StoreEffect, (String, bool)>;

/// Puts, removes or keeps a single value; `Some(Ok(None))` is a value that says nothing.
fn set_one<T>(
    slot: &mut Option<Versioned<T>>,
    revision: i64,
    value: Option<Result<Option<T>, ValueError>>,
) -> Stored {
    match value.transpose() {
        Ok(value) => {
            *slot = value.flatten().map(|value| Versioned::new(revision, value));
            Ok(StoreEffect::Change)
        }
        Err(ValueError(reason)) => Err((reason, slot.is_some())),
    }
}

impl Snapshot {
    /// Applies one key: `Some` = put at `revision`, `None` = deleted. Never fails: what does not
    /// parse is recorded in [`Snapshot::invalid`] (MODEL-4).
    pub fn apply(&mut self, path: &str, value: Option<&[u8]>, revision: i64) -> Applied {
        self.apply_noting(path, value, revision, &mut None)
    }

    /// The same; of a block that is not kept whole, notes who holds its addresses.
    pub fn apply_noting(
        &mut self,
        path: &str,
        value: Option<&[u8]>,
        revision: i64,
        holders: &mut Option<Holders>,
    ) -> Applied {
        self.revision = self.revision.max(revision);
        let is_policys = self.apply_to_policy(path, value);
        let applied = self.apply_but_policy(path, value, revision, holders);
        match applied {
            Applied::Quiet | Applied::Ignored if is_policys => Applied::Changed,
            applied => applied,
        }
    }

    fn apply_but_policy(
        &mut self,
        path: &str,
        value: Option<&[u8]>,
        revision: i64,
        holders: &mut Option<Holders>,
    ) -> Applied {
        if let Some(policy) = policy::of_path(path) {
            let changed = match value {
                Some(_) => self.policies.insert(policy),
                None => self.policies.remove(&policy),
            };
            return match changed {
                true => Applied::Changed,
                false => Applied::Quiet,
            };
        }
        let key = match Key::parse(path) {
            Ok(key) => key,
            Err(KeyError::Foreign) => return Applied::Ignored,
            Err(e @ KeyError::Malformed(_)) => {
                return self.record(path, revision, value.map(|_| (e.to_string(), false)));
            }
        };
        match self.store(key, value, revision, holders) {
            None => Applied::Ignored,
            Some(Ok(effect)) => {
                let corrected = self.forget_fault(path);
                // Of what is other nodes' nothing is noted.
                let noted = match effect {
                    StoreEffect::Change => self.notes_of(path, value),
                    StoreEffect::Quiet => Vec::new(),
                };
                match noted {
                    notes if notes.is_empty() => self.forget_notes(path),
                    notes => drop(self.notes.insert(path.to_owned(), notes)),
                }
                match effect {
                    StoreEffect::Quiet if !corrected => Applied::Quiet,
                    _ => Applied::Changed,
                }
            }
            Some(Err(fault)) => self.record(path, revision, Some(fault)),
        }
    }

    /// True when there was one.
    fn forget_fault(&mut self, path: &str) -> bool {
        // Almost always there is none, and a key to look for would have to be made.
        self.invalid.contains_key(path) && self.invalid.remove(&path.to_owned()).is_some()
    }

    fn forget_notes(&mut self, path: &str) {
        if self.notes.contains_key(path) {
            self.notes.remove(&path.to_owned());
        }
    }

    fn record(&mut self, path: &str, revision: i64, fault: Option<(String, bool)>) -> Applied {
        match fault {
            None => {
                self.forget_fault(path);
                Applied::Changed
            }
            Some((reason, kept_last_good)) => {
                let entry = InvalidValue {
                    revision,
                    reason: reason.clone(),
                    kept_last_good,
                };
                self.invalid.insert(path.to_owned(), entry);
                Applied::Invalid(reason)
            }
        }
    }

    /// `None` when the kind is not part of a snapshot.
    fn store(
        &mut self,
        key: Key,
        v: Option<&[u8]>,
        rev: i64,
        holders: &mut Option<Holders>,
    ) -> Option<Stored> {
        Some(match key {
            Key::Block(cidr) => self.store_block(cidr, v, rev, holders),
            Key::Affinity(owner, cidr) => {
                let owner = self.interned_owner(owner);
                let parsed = v.map(BlockAffinity::from_json);
                set(&mut self.affinities, (owner, cidr), rev, parsed)
            }
            Key::IpamConfig => {
                let parsed = v.map(|value| IpamConfig::from_json(value).map(Some));
                set_one(&mut self.ipam_config, rev, parsed)
            }
            Key::Document {
                kind,
                namespace,
                name,
            } => set(
                &mut self.documents,
                (kind, namespace, name),
                rev,
                v.map(|text| KubernetesDocument::from_json(kind, text)),
            ),
            Key::ServicesCheck => {
                let text = |value| Ok(Some(String::from_utf8_lossy(value).into_owned()));
                set_one(&mut self.services_check, rev, v.map(text))
            }
            // Handles are many and no route depends on them.
            Key::Handle(_) | Key::IpamHost(_) => return None,
            Key::Resource {
                kind,
                namespace,
                name,
            } => match kind {
                Kind::Node => set(&mut self.nodes, name.into(), rev, v.map(Node::from_json)),
                Kind::IpPool => set(&mut self.pools, name.into(), rev, v.map(IpPool::from_json)),
                Kind::IpReservation => set(
                    &mut self.reservations,
                    name,
                    rev,
                    v.map(IpReservation::from_json),
                ),
                Kind::BgpConfiguration => set(
                    &mut self.bgp_configurations,
                    name,
                    rev,
                    v.map(BgpConfiguration::from_json),
                ),
                Kind::BgpPeer => set(&mut self.bgp_peers, name, rev, v.map(BgpPeer::from_json)),
                Kind::BgpFilter => set(
                    &mut self.bgp_filters,
                    name,
                    rev,
                    v.map(BgpFilter::from_json),
                ),
                Kind::FelixConfiguration => set(
                    &mut self.felix_configurations,
                    name,
                    rev,
                    v.map(FelixConfiguration::from_json),
                ),
                Kind::WorkloadEndpoint => {
                    self.store_endpoint(namespace.unwrap_or_default(), name, v, rev)
                }
                Kind::ClusterInformation if name == "default" => {
                    let value = v.map(document).transpose();
                    if let Ok(value) = &value {
                        self.locked = value.as_ref().is_some_and(lock::is_locked);
                    }
                    let guid = value
                        .transpose()
                        .map(|value| value.map(|v| cluster_guid(&v)));
                    set_one(&mut self.cluster_guid, rev, guid)
                }
                // Only its fields are looked at: IPAM's settings on etcd are in a key of their own.
                Kind::IpamConfiguration => match v.map(document) {
                    None | Some(Ok(_)) => Ok(StoreEffect::Change),
                    Some(Err(ValueError(reason))) => Err((reason, false)),
                },
                Kind::ClusterInformation
                | Kind::Profile
                | Kind::Tier
                | Kind::HostEndpoint
                | Kind::KubeControllersConfiguration
                | Kind::CalicoNodeStatus => {
                    return None;
                }
            },
        })
    }

    /// Problems of the data: one entry a key, a field, and a kind of policy, and the lock.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let invalid = self.invalid.iter().map(|(path, entry)| Problem {
            code: ProblemCode::DatastoreInvalidValue,
            subject: path.clone(),
            reason: format!("{}; {}", entry.reason, self.consequence(path, entry)),
        });
        let fields = self.all_field_problems(notes::is_told);
        let rest = self.unenforced().chain(self.misunderstood());
        let rest = rest.chain(self.lock_problem());
        invalid.chain(fields).chain(rest).collect()
    }

    /// What follows from a value that cannot be read.
    fn consequence(&self, path: &str, entry: &InvalidValue) -> String {
        let ignored = "the value is ignored until it is corrected";
        match self.doubt(path) {
            _ if entry.kept_last_good => "the last good value stays in use".to_owned(),
            Some(doubt) => format!("{ignored}, and until then {doubt}"),
            None => ignored.to_owned(),
        }
    }

    /// True while something is in doubt ([`Snapshot::doubts`]).
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.doubts().next().is_some()
    }

    /// The pool that holds an address range; the most specific one. Disabled pools count: their
    /// blocks live on.
    #[must_use]
    pub fn pool_of(&self, prefix: &Prefix) -> Option<(&PoolName, &Versioned<IpPool>)> {
        self.pools
            .iter()
            .filter(|(_, pool)| pool.spec.prefix().covers(prefix))
            .max_by_key(|(_, pool)| pool.spec.prefix().len())
    }

    /// The block that holds an address or range.
    #[must_use]
    pub fn block_of(&self, prefix: &Prefix) -> Option<&Versioned<KnownBlock>> {
        // Blocks do not overlap and are sorted by address, so it is the last one that starts at or
        // before.
        let (_, block) = self
            .blocks
            .range(..=Prefix::host(prefix.address()))
            .next_back()?;
        block.cidr.covers(prefix).then_some(block)
    }

    /// The affinities of a node with their blocks, in key order.
    pub fn affinities_of<'a>(
        &'a self,
        node: &'a NodeName,
    ) -> impl Iterator<Item = (Prefix, &'a Versioned<BlockAffinity>)> {
        let least = Prefix::v4(Ipv4Addr::UNSPECIFIED, 0);
        self.affinities
            .range((BlockOwner::Host(node.clone()), least)..)
            .take_while(move |((owner, _), _)| owner.node() == Some(node))
            .map(|((_, cidr), affinity)| (*cidr, affinity))
    }

    /// The workloads of a node.
    pub fn workloads_of<'a>(
        &'a self,
        node: &'a NodeName,
    ) -> impl Iterator<Item = &'a Versioned<WorkloadEndpoint>> {
        self.workloads
            .values()
            .filter(move |w| w.spec.node == node.as_str())
    }

    /// The cluster-wide BGPConfiguration.
    #[must_use]
    pub fn bgp_default(&self) -> Option<&Versioned<BgpConfiguration>> {
        self.bgp_configurations.get("default")
    }

    /// The cluster's default AS number: BGPConfiguration `default`, else 64512.
    #[must_use]
    pub fn default_asn(&self) -> u32 {
        self.bgp_default()
            .and_then(|c| c.spec.as_number)
            .map_or(64512, |asn| asn.0)
    }

    /// The AS number of a node: its own, else the cluster's default.
    #[must_use]
    pub fn asn_of(&self, node: &Node) -> u32 {
        node.spec
            .bgp
            .as_ref()
            .and_then(|bgp| bgp.as_number)
            .map_or_else(|| self.default_asn(), |asn| asn.0)
    }

    /// True when an enabled or disabled pool of the family exists.
    #[must_use]
    pub fn has_pool(&self, family: Family) -> bool {
        self.pools
            .values()
            .any(|pool| pool.spec.prefix().family() == family)
    }
}

#[cfg(test)]
mod tests;
