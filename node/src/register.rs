//! This node's own entry in the datastore, and the cluster's defaults: what `calico-node` does at
//! start-up.
//!
//! Every write is a compare-and-swap on what was read; a conflict reads again. Fields of the Node
//! that Caracal does not know survive.

mod claims;

use std::net::IpAddr;

use caracal_bgp::Asn;
use caracal_datastore::{Store, StoreError};
use caracal_model::{
    API_VERSION, AsNumber, Cidr, Family, IpPool, IpPoolSpec, Key, KeyRange, KeyValue, Kind, Node,
    NodeAddress, NodeBgp, NodeName, NodeSpec, OrchRef, Prefix, Timestamp, Txn, TxnOutcome,
    ValueError, kind_prefix,
};
use serde_json::json;

use crate::config::{Config, PoolDefaults};

/// Most tries of a write that conflicts; Calico's `apply` loops, too.
const TRIES: usize = 10;

/// Why a node could not be registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    /// The datastore did not answer or refused.
    #[error("registering this node")]
    Store(#[from] StoreError),
    /// The Node resource cannot be read.
    #[error("the Node resource at {key} cannot be read: {reason}; correct or delete it")]
    InvalidNode { key: String, reason: ValueError },
    /// Another node has our address.
    #[error(
        "node {other} already has the address {address}; two nodes with one address cannot both route. \
         Set IP to this node's own address, delete the stale Node {other}, or set DISABLE_NODE_IP_CHECK=true. An address \
         of this machine's is taken over by itself once {other} is off and its lease has run out"
    )]
    AddressConflict { other: NodeName, address: IpAddr },
    /// There is no address at all.
    #[error(
        "this node has no IPv4 and no IPv6 address; set IP or IP6 (or CALICO_NETWORKING_BACKEND=none)"
    )]
    NoAddress,
    /// Others write the same key all the time.
    #[error("{key} was changed by others {TRIES} times in a row; try again")]
    Contention { key: String },
}

/// The addresses that were found for this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// IPv4; `None` = the Node's value is left alone.
    pub(crate) v4: Option<Cidr>,
    /// IPv6; `None` = the Node's value is left alone.
    pub(crate) v6: Option<Cidr>,
}

async fn read<S: Store>(store: &S, key: &Key) -> Result<Option<KeyValue>, StoreError> {
    let answer = store.read(&[KeyRange::Key(key.to_path())]).await?;
    Ok(answer.ranges.into_iter().flatten().next())
}

/// A random UUID, version 4.
pub(crate) fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|text| text.trim().to_owned())
        .expect("the kernel's random UUID source is always readable")
}

/// The Node as it is stored, if it is.
pub(crate) async fn read_node<S: Store>(
    store: &S,
    name: &NodeName,
) -> Result<Option<(Node, i64)>, RegisterError> {
    let key = Key::node(name);
    let Some(entry) = read(store, &key).await? else {
        return Ok(None);
    };
    let node = Node::from_json(&entry.value).map_err(|reason| RegisterError::InvalidNode {
        key: key.to_path(),
        reason,
    })?;
    Ok(Some((node, entry.mod_revision)))
}

/// Writes this node's resource: addresses, AS number, references. Returns it as stored. `there`:
/// the addresses of this machine's interfaces.
pub(crate) async fn register<S: Store>(
    store: &S,
    config: &Config,
    addresses: Addresses,
    there: &[IpAddr],
    now: Timestamp,
) -> Result<Node, RegisterError> {
    if !config.skip_address_check {
        claims::settle(store, &config.node, addresses, there, now).await?;
    }
    update_node(store, &config.node, now, |node| {
        apply(node, config, addresses)
    })
    .await
}

/// The same for a Node that was overwritten: what it lacks comes back as it was, tunnel addresses
/// above all, because other nodes send nothing through a tunnel to a Node that names none.
pub(crate) async fn register_again<S: Store>(
    store: &S,
    config: &Config,
    addresses: Addresses,
    there: &[IpAddr],
    last: Option<&Node>,
    now: Timestamp,
) -> Result<Node, RegisterError> {
    if !config.skip_address_check {
        claims::settle(store, &config.node, addresses, there, now).await?;
    }
    update_node(store, &config.node, now, |node| {
        if let Some(last) = last {
            complete(node, last);
        }
        apply(node, config, addresses);
    })
    .await
}

/// Fills in what a Node lacks that it had before.
fn complete(node: &mut Node, last: &Node) {
    fn fill<T: Clone>(is: &mut Option<T>, was: &Option<T>) {
        *is = is.take().or_else(|| was.clone());
    }
    fill(&mut node.metadata.uid, &last.metadata.uid);
    let created = &last.metadata.creation_timestamp;
    fill(&mut node.metadata.creation_timestamp, created);
    if node.metadata.labels.is_empty() {
        node.metadata.labels.clone_from(&last.metadata.labels);
    }
    let (is, was) = (&mut node.spec, &last.spec);
    fill(&mut is.ipv4_vxlan_tunnel_addr, &was.ipv4_vxlan_tunnel_addr);
    fill(&mut is.ipv6_vxlan_tunnel_addr, &was.ipv6_vxlan_tunnel_addr);
    fill(&mut is.vxlan_tunnel_mac_addr, &was.vxlan_tunnel_mac_addr);
    fill(
        &mut is.vxlan_tunnel_mac_addr_v6,
        &was.vxlan_tunnel_mac_addr_v6,
    );
    if is.orch_refs.is_empty() {
        is.orch_refs.clone_from(&was.orch_refs);
    }
    if is.addresses.is_empty() {
        is.addresses.clone_from(&was.addresses);
    }
    let Some(was) = &was.bgp else { return };
    let is = is.bgp.get_or_insert_default();
    fill(&mut is.as_number, &was.as_number);
    fill(&mut is.ipv4_address, &was.ipv4_address);
    fill(&mut is.ipv6_address, &was.ipv6_address);
    fill(&mut is.ipv4_ipip_tunnel_addr, &was.ipv4_ipip_tunnel_addr);
    fill(
        &mut is.route_reflector_cluster_id,
        &was.route_reflector_cluster_id,
    );
}

/// Reads, changes and writes this node's resource until no one interferes. The resource is created
/// when it does not exist; nothing is written when nothing changes.
pub(crate) async fn update_node<S: Store>(
    store: &S,
    name: &NodeName,
    now: Timestamp,
    change: impl Fn(&mut Node),
) -> Result<Node, RegisterError> {
    let key = Key::node(name).to_path();
    for _ in 0..TRIES {
        let (mut node, revision) = match read_node(store, name).await? {
            Some((node, revision)) => (node, Some(revision)),
            None => {
                let mut node = Node::new(name.as_str(), NodeSpec::default());
                node.metadata.uid = Some(uuid());
                node.metadata.creation_timestamp = Some(now.rfc3339());
                (node, None)
            }
        };
        let before = node.clone();
        change(&mut node);
        let txn = match revision {
            Some(_) if node == before => return Ok(node),
            Some(revision) => Txn::new().update(key.clone(), revision, node.to_json()),
            None => Txn::new().create(key.clone(), node.to_json()),
        };
        if let TxnOutcome::Committed(_) = store.commit(&txn).await? {
            return Ok(node);
        }
    }
    Err(RegisterError::Contention { key })
}

/// Writes a Node as it was where there is none, or where something stands that is no Node. `false`:
/// there is one.
pub(crate) async fn restore_node<S: Store>(
    store: &S,
    name: &NodeName,
    node: &Node,
) -> Result<bool, RegisterError> {
    let key = Key::node(name).to_path();
    for _ in 0..TRIES {
        let txn = match read(store, &Key::node(name)).await? {
            None => Txn::new().create(key.clone(), node.to_json()),
            Some(entry) if Node::from_json(&entry.value).is_ok() => return Ok(false),
            Some(entry) => Txn::new().update(key.clone(), entry.mod_revision, node.to_json()),
        };
        if let TxnOutcome::Committed(_) = store.commit(&txn).await? {
            return Ok(true);
        }
    }
    Err(RegisterError::Contention { key })
}

fn apply(node: &mut Node, config: &Config, addresses: Addresses) {
    let spec = &mut node.spec;
    let mut bgp = spec.bgp.take().unwrap_or_default();
    if let Some(v4) = addresses.v4 {
        bgp.ipv4_address = Some(v4);
    }
    if let Some(v6) = addresses.v6 {
        bgp.ipv6_address = Some(v6);
    }
    if let Some(Asn(number)) = config.asn {
        bgp.as_number = Some(AsNumber(number));
    }
    // Calico's readers want `bgp` absent rather than empty.
    spec.bgp = (bgp != NodeBgp::default()).then_some(bgp);
    for cidr in [addresses.v4, addresses.v6].into_iter().flatten() {
        set_address(&mut spec.addresses, cidr);
    }
    if let Some(name) = &config.orch_ref {
        let wanted = OrchRef {
            node_name: name.clone(),
            orchestrator: "k8s".to_owned(),
        };
        spec.orch_refs.retain(|r| r.orchestrator != "k8s");
        spec.orch_refs.push(wanted);
    }
}

/// Puts the `CalicoNodeIP` of a family; entries of other kinds stay.
fn set_address(list: &mut Vec<NodeAddress>, cidr: Cidr) {
    let family = Family::of(cidr.address);
    let is_ours = |entry: &NodeAddress| {
        entry.kind == "CalicoNodeIP"
            && entry
                .address
                .parse::<Cidr>()
                .is_ok_and(|c| Family::of(c.address) == family)
    };
    let wanted = NodeAddress {
        address: cidr.to_string(),
        kind: "CalicoNodeIP".to_owned(),
    };
    match list.iter_mut().find(|entry| is_ours(entry)) {
        Some(entry) => *entry = wanted,
        None => list.push(wanted),
    }
}

/// Creates what every Calico cluster has: ClusterInformation, BGPConfiguration, FelixConfiguration
/// and IPAMConfiguration `default`, and the default pools. What exists is left as it is.
pub(crate) async fn ensure_defaults<S: Store>(
    store: &S,
    config: &Config,
    host_addresses: &[Cidr],
    guid: Option<&str>,
    now: Timestamp,
) -> Result<Vec<String>, RegisterError> {
    let mut made = Vec::new();
    // A ClusterInformation that was deleted comes back as it was: another identity would be another
    // cluster's.
    let guid = guid.map_or_else(|| uuid().replace('-', ""), str::to_owned);
    let cluster_type = match &config.cluster_type {
        Some(more) => format!("caracal,{more}"),
        None => "caracal".to_owned(),
    };
    let defaults = [
        (
            Kind::ClusterInformation,
            json!({"clusterGUID": guid, "clusterType": cluster_type, "datastoreReady": true}),
        ),
        (Kind::BgpConfiguration, json!({})),
        (
            Kind::FelixConfiguration,
            json!({"reportingInterval": "0s", "logSeverityScreen": "Info"}),
        ),
        (
            Kind::IpamConfiguration,
            json!({"strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 0}),
        ),
    ];
    for (kind, spec) in defaults {
        let key = Key::resource(kind, "default").to_path();
        let value = json!({
            "kind": kind.as_str(), "apiVersion": API_VERSION,
            "metadata": {"name": "default", "uid": uuid(), "creationTimestamp": now.rfc3339()},
            "spec": spec,
        });
        if create(store, &key, value.to_string().into_bytes()).await? {
            made.push(key);
        }
    }
    for (family, defaults) in [
        (Family::Ipv4, &config.pool_v4),
        (Family::Ipv6, &config.pool_v6),
    ] {
        if let Some(defaults) = defaults
            && let Some(key) = ensure_pool(store, family, defaults, host_addresses, now).await?
        {
            made.push(key);
        }
    }
    Ok(made)
}

/// True when the key was created now.
async fn create<S: Store>(store: &S, key: &str, value: Vec<u8>) -> Result<bool, StoreError> {
    let outcome = store.commit(&Txn::new().create(key, value)).await?;
    Ok(matches!(outcome, TxnOutcome::Committed(_)))
}

async fn ensure_pool<S: Store>(
    store: &S,
    family: Family,
    defaults: &PoolDefaults,
    host_addresses: &[Cidr],
    now: Timestamp,
) -> Result<Option<String>, RegisterError> {
    let prefix = kind_prefix(Kind::IpPool);
    let answer = store.read(&[KeyRange::Prefix(prefix)]).await?;
    let exists = answer.ranges.iter().flatten().any(|entry| {
        // A pool that cannot be read counts: a second one could overlap it.
        IpPool::from_json(&entry.value).map_or(true, |pool| pool.spec.prefix().family() == family)
    });
    if exists {
        return Ok(None);
    }
    let of_the_cluster = async || -> Result<Option<Prefix>, StoreError> {
        let ranges = store.pod_ranges().await?;
        Ok(ranges.into_iter().find(|range| range.family() == family))
    };
    let cidr = match defaults.cidr {
        Some(cidr) => cidr,
        None => of_the_cluster()
            .await?
            .unwrap_or_else(|| default_cidr(family, host_addresses)),
    };
    let name = format!("default-{}-ippool", family.as_str());
    let mut pool = IpPool::new(
        &name,
        IpPoolSpec {
            cidr: cidr.to_string(),
            ipip_mode: defaults.ipip,
            vxlan_mode: defaults.vxlan,
            nat_outgoing: defaults.nat_outgoing,
            block_size: defaults.block_size,
            node_selector: defaults.node_selector.clone(),
            disable_bgp_export: defaults.disable_bgp_export,
            allowed_uses: vec![
                caracal_model::AllowedUse::Workload,
                caracal_model::AllowedUse::Tunnel,
            ],
            assignment_mode: "Automatic".to_owned(),
            ..IpPoolSpec::default()
        },
    );
    pool.metadata.uid = Some(uuid());
    pool.metadata.creation_timestamp = Some(now.rfc3339());
    let key = Key::resource(Kind::IpPool, name).to_path();
    Ok(create(store, &key, pool.to_json()).await?.then_some(key))
}

/// Calico's choice: 192.168.0.0/16 unless it holds an address of this host, then the first free of
/// 172.16.0.0/16 … 172.31.0.0/16; a random /48 for IPv6.
fn default_cidr(family: Family, host_addresses: &[Cidr]) -> Prefix {
    if family == Family::Ipv6 {
        let random = u128::from_str_radix(&uuid().replace('-', ""), 16).unwrap_or(1);
        let bits = 0xfd << 120 | (random >> 80 & 0xff_ffff_ffff) << 80;
        return Prefix::v6(bits.into(), 48);
    }
    let free = |p: &Prefix| !host_addresses.iter().any(|a| p.overlaps(&a.prefix()));
    let candidates = std::iter::once(Prefix::v4([192, 168, 0, 0].into(), 16))
        .chain((16..32).map(|n| Prefix::v4([172, n, 0, 0].into(), 16)));
    candidates
        .into_iter()
        .find(free)
        .unwrap_or_else(|| Prefix::v4([192, 168, 0, 0].into(), 16))
}

#[cfg(test)]
mod tests;
