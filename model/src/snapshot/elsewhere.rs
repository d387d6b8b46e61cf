//! Data of other nodes in a snapshot: of an endpoint its node and addresses, of a block a
//! [`KnownBlock`], of a node's name one copy. A cluster has as many of them as it has pods, and
//! every node of it hears of each.

use std::net::IpAddr;
use std::sync::Arc;

use super::{
    Holders, InvalidValue, KnownBlock, Snapshot, StoreEffect, Stored, Versioned, known_value,
};
use crate::ipam::BlockOwner;
use crate::keys::Key;
use crate::merge_join;
use crate::names::NodeName;
use crate::net::{Family, Prefix};
use crate::resource::{IpPoolSpec, Kind, ValueError, WorkloadEndpoint};
use crate::shared_map::SharedMap;

/// A workload endpoint of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// etcd's ModRevision.
    pub revision: i64,
    /// Node of the endpoint.
    pub node: NodeName,
    /// `spec.ipNetworks`.
    pub networks: Networks,
}

/// Addresses of an endpoint, which are one almost always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Networks {
    /// A single address, without an allocation.
    One(Prefix),
    /// None, or several.
    Many(Arc<[Prefix]>),
}

impl From<&[Prefix]> for Networks {
    fn from(networks: &[Prefix]) -> Self {
        match networks {
            [one] => Self::One(*one),
            more => Self::Many(more.into()),
        }
    }
}

impl Networks {
    /// As a list.
    #[must_use]
    pub fn as_slice(&self) -> &[Prefix] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(more) => more,
        }
    }
}

impl Elsewhere {
    /// Namespace and name, of its key in [`Snapshot::elsewhere`].
    #[must_use]
    pub fn names(key: &str) -> (&str, &str) {
        key.split_once('/').unwrap_or(("", key))
    }
}

impl Snapshot {
    /// Addresses of the endpoints that are kept, this node's and others'.
    pub fn endpoint_networks(&self) -> impl Iterator<Item = &Prefix> {
        let own = self.workloads.values().flat_map(|w| &w.spec.ip_networks);
        own.chain(self.elsewhere.values().flat_map(|e| e.networks.as_slice()))
    }

    /// True when a workload of any node has an address inside a range, as endpoints and blocks say.
    #[must_use]
    pub fn has_workload_in(&self, range: &Prefix) -> bool {
        let mut blocks = self.blocks.values();
        blocks.any(|block| block.workloads() > 0 && range.covers(&block.cidr))
            || self
                .endpoint_networks()
                .any(|network| range.covers(network))
    }

    /// True when nodes route addresses of a pool: of one for load balancers alone only as long as a
    /// node has something of it. That decides about new addresses, and those in use stay reached.
    #[must_use]
    pub fn makes_routes(&self, pool: &IpPoolSpec) -> bool {
        !pool.is_load_balancer_only() || self.is_of_nodes(&pool.prefix())
    }

    /// The node's block of a pool around a prefix: its addresses are pods', and one that a Node has
    /// all the same is used for nothing (decision 0189). A pool over an address of `own`, those of
    /// the machine that asks, is the mistake itself: none of its blocks counts.
    #[must_use]
    pub fn block_of_pods(
        &self,
        prefix: &Prefix,
        own: impl IntoIterator<Item = IpAddr>,
    ) -> Option<&KnownBlock> {
        let block = self.block_of(prefix)?;
        block.host()?;
        let range = self.pool_of(prefix)?.1.spec.prefix();
        let is_over_own = own.into_iter().any(|address| range.contains(address));
        (!is_over_own).then_some(&**block)
    }

    /// True when a node has a block inside a range or uses an address of a block that nobody has,
    /// or a workload has an address there.
    fn is_of_nodes(&self, range: &Prefix) -> bool {
        let blocks = self.blocks.range(range..).map(|(_, block)| block);
        let mut blocks = blocks.take_while(|block| range.contains(block.cidr.address()));
        let is_of_nodes = |block: &KnownBlock| match &block.owner {
            Some(owner) => owner.node().is_some(),
            None => block.is_borrowed(),
        };
        blocks.any(|block| range.covers(&block.cidr) && is_of_nodes(block))
            || self
                .endpoint_networks()
                .any(|network| range.covers(network))
    }

    /// Ranges of the pools for load balancers alone that make routes since `before`, or no longer:
    /// the first block or workload came, or the last one went. Costs what is different.
    #[must_use]
    pub fn pools_turned_since(&self, before: &Self) -> Vec<Prefix> {
        let pools = self.pools.values().map(|pool| &pool.spec);
        let pools = pools.filter(|pool| pool.is_load_balancer_only());
        let mut ranges: Vec<Prefix> = pools.map(IpPoolSpec::prefix).collect();
        if ranges.is_empty() {
            return ranges;
        }
        let mut touched = self.blocks.changed_since(&before.blocks);
        for key in self.workloads.changed_since(&before.workloads) {
            let both = [self, before].map(|snapshot| snapshot.workloads.get(&key));
            let both = both.into_iter().flatten();
            touched.extend(both.flat_map(|workload| &workload.spec.ip_networks));
        }
        for key in self.elsewhere.changed_since(&before.elsewhere) {
            let both = [self, before].map(|snapshot| snapshot.elsewhere.get(&key));
            let both = both.into_iter().flatten();
            touched.extend(both.flat_map(|endpoint| endpoint.networks.as_slice()));
        }
        ranges.retain(|range| {
            touched.iter().any(|prefix| range.covers(prefix))
                && self.is_of_nodes(range) != before.is_of_nodes(range)
        });
        ranges
    }

    /// Addresses of a node's workloads, as endpoints and blocks say; one that both say comes twice.
    pub fn workload_networks_of<'a>(
        &'a self,
        node: &'a NodeName,
    ) -> impl Iterator<Item = Prefix> + 'a {
        let own = self.workloads_of(node).flat_map(|w| &w.spec.ip_networks);
        let others = self.elsewhere.values().filter(move |e| e.node == *node);
        let kept = own.chain(others.flat_map(|e| e.networks.as_slice()));
        let blocks = self.blocks.values();
        let held = blocks.flat_map(move |block| block.workloads_of(node));
        kept.copied().chain(held.map(Prefix::host))
    }

    /// Number of the cluster's workloads, by their endpoints or their addresses of one family,
    /// whichever is more.
    #[must_use]
    pub fn workload_count(&self) -> usize {
        let (mut v4, mut v6) = (0, 0);
        for block in self.blocks.values() {
            match block.cidr.family() {
                Family::Ipv4 => v4 += block.workloads(),
                Family::Ipv6 => v6 += block.workloads(),
            }
        }
        v4.max(v6).max(self.workloads.len() + self.elsewhere.len())
    }

    /// Another node's endpoint that has an address, with its key; among those that are kept.
    #[must_use]
    pub fn elsewhere_with(&self, network: &Prefix) -> Option<(&Arc<str>, &Elsewhere)> {
        let mut all = self.elsewhere.iter();
        all.find(|(_, endpoint)| endpoint.networks.as_slice().contains(network))
    }

    /// The one copy of a node's name, if there is a Node of this name.
    pub(super) fn interned(&self, name: &str) -> NodeName {
        let known = self.nodes.get_key_value(name);
        known.map_or_else(|| name.into(), |(name, _)| name.clone())
    }

    pub(super) fn interned_owner(&self, owner: BlockOwner) -> BlockOwner {
        match owner {
            BlockOwner::Host(name) => BlockOwner::Host(self.interned(name.as_str())),
            other @ BlockOwner::Virtual(_) => other,
        }
    }

    /// True when nothing follows from another node's endpoint that blocks do not say, too: each of
    /// its addresses is held by a workload of that node.
    fn is_accounted_for(&self, node: &NodeName, networks: &[Prefix]) -> bool {
        let is_held = |network: &Prefix| {
            let block = self.block_of(network).filter(|b| b.whole().is_none());
            block.is_some_and(|b| network.is_host() && b.has_workload(network.address(), node))
        };
        !self.all_endpoints && !networks.is_empty() && networks.iter().all(is_held)
    }

    /// Keeps another node's endpoint where something follows from it.
    fn keep_elsewhere(&mut self, place: Arc<str>, endpoint: Elsewhere) {
        match self.is_accounted_for(&endpoint.node, endpoint.networks.as_slice()) {
            true => drop(self.elsewhere.remove(&place)),
            false => drop(self.elsewhere.insert(place, endpoint)),
        }
    }

    pub(super) fn store_block(
        &mut self,
        cidr: Prefix,
        v: Option<&[u8]>,
        rev: i64,
        holders: &mut Option<Holders>,
    ) -> Stored {
        let before = self.blocks.get(&cidr);
        let Some(value) = v else {
            self.blocks.remove(&cidr);
            return Ok(StoreEffect::Change);
        };
        let node = self.whole_blocks_of.as_ref();
        match known_value::block(cidr, value, node, &|name| self.interned(name), holders) {
            Ok(block) => {
                let effect = match before {
                    Some(before) if before.leads_where(&block) => StoreEffect::Quiet,
                    _ => StoreEffect::Change,
                };
                self.blocks.insert(cidr, Versioned::new(rev, block));
                Ok(effect)
            }
            Err(ValueError(reason)) => Err((reason, before.is_some())),
        }
    }

    pub(super) fn store_endpoint(
        &mut self,
        namespace: String,
        name: String,
        v: Option<&[u8]>,
        rev: i64,
    ) -> Stored {
        let place: Arc<str> = format!("{namespace}/{name}").into();
        let key = (namespace, name);
        if let (Some(value), Some(me)) = (v, &self.whole_blocks_of)
            && let Some((node, networks)) = known_value::elsewhere(value, me, &|n| self.interned(n))
        {
            let revision = rev;
            let other = Elsewhere {
                revision,
                node,
                networks,
            };
            self.keep_elsewhere(place, other);
            let was_own = self.workloads.contains_key(&key);
            return Ok(match was_own && self.workloads.remove(&key).is_some() {
                true => StoreEffect::Change,
                false => StoreEffect::Quiet,
            });
        }
        let endpoint = match v.map(WorkloadEndpoint::from_json) {
            Some(Err(ValueError(reason))) => {
                let known = self.workloads.contains_key(&key);
                return Err((reason, known || self.elsewhere.contains_key(&place)));
            }
            None => None,
            Some(Ok(endpoint)) => Some(endpoint),
        };
        let me = self.whole_blocks_of.as_ref().map(NodeName::as_str);
        let is_own = |e: &WorkloadEndpoint| me.is_none_or(|me| e.spec.node == me);
        let (own, other) = match endpoint {
            Some(endpoint) if is_own(&endpoint) => (Some(endpoint), None),
            Some(endpoint) => (None, Some(endpoint)),
            None => (None, None),
        };
        let mut effect = StoreEffect::Quiet;
        match own {
            Some(endpoint) => {
                self.workloads.insert(key, Versioned::new(rev, endpoint));
                effect = StoreEffect::Change;
            }
            None if self.workloads.remove(&key).is_some() => effect = StoreEffect::Change,
            None => {}
        }
        match other {
            Some(endpoint) => {
                let other = Elsewhere {
                    revision: rev,
                    node: self.interned(&endpoint.spec.node),
                    networks: endpoint.spec.ip_networks.as_slice().into(),
                };
                self.keep_elsewhere(place, other);
            }
            None => drop(self.elsewhere.remove(&place)),
        }
        Ok(effect)
    }
}

impl KnownBlock {
    /// True when everything that routes and announcements follow from is the same: who owns the
    /// block, and which of its addresses another node uses. How many are in use is only shown. Of a
    /// block that is kept whole nothing is left aside.
    pub(super) fn leads_where(&self, other: &Self) -> bool {
        self.whole().is_none()
            && other.whole().is_none()
            && self.cidr == other.cidr
            && self.owner == other.owner
            && self.has_guests_of(other)
    }

    /// The address of an ordinal.
    pub(super) fn at(cidr: Prefix, ordinal: usize) -> Option<IpAddr> {
        cidr.nth(u128::try_from(ordinal).ok()?)
    }
}

impl Snapshot {
    /// Of values that cannot be read, takes the last good one over from what was there before
    /// (MODEL-4).
    pub fn keep_last_good(&mut self, before: &Self) {
        if let (Some(policy), Some(before)) = (&mut self.policy, &before.policy) {
            policy.keep_last_good(before);
        }
        let faulty = self
            .invalid
            .iter()
            .filter(|(_, entry)| !entry.kept_last_good);
        let faulty: Vec<String> = faulty.map(|(path, _)| path.clone()).collect();
        for path in faulty {
            let kept = Key::parse(&path).is_ok_and(|key| self.keep_unread(key, before));
            if kept && let Some(entry) = self.invalid.get(&path) {
                let entry = InvalidValue {
                    kept_last_good: true,
                    ..entry.clone()
                };
                let notes = before.notes.get(&path).cloned();
                self.notes.extend(notes.map(|notes| (path.clone(), notes)));
                self.invalid.insert(path, entry);
            }
        }
    }

    /// Where a value is the same as before, takes the old one: then a list that is read again costs
    /// no memory, and who compares finds the same object.
    pub fn share(&mut self, before: &Self) {
        share(&mut self.nodes, &before.nodes);
        share(&mut self.pools, &before.pools);
        share(&mut self.reservations, &before.reservations);
        share(&mut self.bgp_configurations, &before.bgp_configurations);
        share(&mut self.bgp_peers, &before.bgp_peers);
        share(&mut self.bgp_filters, &before.bgp_filters);
        share(&mut self.felix_configurations, &before.felix_configurations);
        share(&mut self.workloads, &before.workloads);
        share(&mut self.blocks, &before.blocks);
        share(&mut self.affinities, &before.affinities);
        share(&mut self.documents, &before.documents);
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
            + self.pools.len()
            + self.reservations.len()
            + self.bgp_configurations.len()
            + self.bgp_peers.len()
            + self.bgp_filters.len()
            + self.felix_configurations.len()
            + self.workloads.len()
            + self.elsewhere.len()
            + self.blocks.len()
            + self.affinities.len()
            + self.documents.len()
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes one value over; false when there is none.
    fn keep_unread(&mut self, key: Key, before: &Self) -> bool {
        match key {
            Key::Block(cidr) => copy(&mut self.blocks, &before.blocks, cidr),
            Key::Affinity(owner, cidr) => {
                copy(&mut self.affinities, &before.affinities, (owner, cidr))
            }
            Key::IpamConfig => {
                self.ipam_config.clone_from(&before.ipam_config);
                self.ipam_config.is_some()
            }
            Key::Document {
                kind,
                namespace,
                name,
            } => copy(
                &mut self.documents,
                &before.documents,
                (kind, namespace, name),
            ),
            Key::Handle(_) | Key::IpamHost(_) | Key::ServicesCheck => false,
            Key::Resource {
                kind,
                namespace,
                name,
            } => self.keep_resource(kind, namespace.unwrap_or_default(), name, before),
        }
    }

    fn keep_resource(
        &mut self,
        kind: Kind,
        namespace: String,
        name: String,
        before: &Self,
    ) -> bool {
        match kind {
            Kind::Node => copy(&mut self.nodes, &before.nodes, name.into()),
            Kind::IpPool => copy(&mut self.pools, &before.pools, name.into()),
            Kind::IpReservation => copy(&mut self.reservations, &before.reservations, name),
            Kind::BgpConfiguration => {
                let old = &before.bgp_configurations;
                copy(&mut self.bgp_configurations, old, name)
            }
            Kind::BgpPeer => copy(&mut self.bgp_peers, &before.bgp_peers, name),
            Kind::BgpFilter => copy(&mut self.bgp_filters, &before.bgp_filters, name),
            Kind::FelixConfiguration => {
                let old = &before.felix_configurations;
                copy(&mut self.felix_configurations, old, name)
            }
            Kind::WorkloadEndpoint => {
                let place = format!("{namespace}/{name}").into();
                copy(&mut self.elsewhere, &before.elsewhere, place)
                    || copy(&mut self.workloads, &before.workloads, (namespace, name))
            }
            Kind::ClusterInformation => {
                self.cluster_guid.clone_from(&before.cluster_guid);
                self.locked = before.locked;
                self.cluster_guid.is_some() || self.locked
            }
            Kind::IpamConfiguration
            | Kind::Profile
            | Kind::Tier
            | Kind::HostEndpoint
            | Kind::KubeControllersConfiguration
            | Kind::CalicoNodeStatus => false,
        }
    }
}

fn share<K: Ord + Clone, V: PartialEq>(
    into: &mut SharedMap<K, Versioned<V>>,
    from: &SharedMap<K, Versioned<V>>,
) {
    let both = merge_join(&*into, from);
    let same = both.filter_map(|(key, is, was)| {
        let was = was.filter(|was| Some(*was) == is)?;
        Some((key.clone(), was.clone()))
    });
    let same: Vec<_> = same.collect();
    match same.len() == into.len() && into.len() == from.len() {
        true => into.clone_from(from),
        false => into.extend(same),
    }
}

fn copy<K: Ord + Clone, V: Clone>(
    into: &mut SharedMap<K, V>,
    from: &SharedMap<K, V>,
    key: K,
) -> bool {
    let Some(value) = from.get(&key) else {
        return false;
    };
    into.insert(key, value.clone());
    true
}
