//! A cluster as Calico writes it into etcd, all of it on nodes that nobody runs; and its pods that
//! come and go.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, bail, ensure};
use caracal_datastore::{EtcdStore, Store};
use caracal_model::{
    AffinityState, AllocationAttribute, Block, BlockAffinity, BlockOwner, IpamHandle, Key, Kind,
    NodeName, Prefix, Txn, TxnOutcome, TxnWrite, endpoint_name,
};

/// Operations in one transaction; etcd allows 128.
const TOGETHER: usize = 100;
/// Transactions under way at once while the cluster is written.
const AT_ONCE: usize = 16;
/// The first block; those of the node under test come before it.
const FIRST: u32 = 64;

/// Size of the simulated cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) nodes: u32,
    pub(super) blocks: u32,
    /// Pods in each block.
    pub(super) pods: u32,
}

/// One pod: block and place in it.
#[derive(Clone, Copy, Debug)]
struct Pod {
    block: u32,
    ordinal: usize,
    number: u32,
}

/// The cluster as it stands in etcd.
pub(super) struct StoredCluster {
    size: Size,
    store: EtcdStore,
    blocks: Vec<Block>,
    /// Pods that came up during the measurement.
    up: VecDeque<Pod>,
    count: u32,
    /// One more node than the cluster has is there.
    joined: bool,
}

fn cidr(block: u32) -> Prefix {
    let base = u32::from(Ipv4Addr::new(10, 128, 0, 0));
    Prefix::truncated(Ipv4Addr::from(base + (FIRST + block) * 64).into(), 26)
}

/// The address of a node; the machine under test has one below 172.16.1.0.
fn address(node: u32) -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(172, 16, 1, 0)) + node / 250 * 256 + node % 250 + 1).into()
}

fn hex(seed: u32, digits: usize) -> String {
    let mut text = String::new();
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while text.len() < digits {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Writing to a String cannot fail.
        let _ = write!(text, "{state:016x}");
    }
    text.truncate(digits);
    text
}

impl Size {
    fn node(self, block: u32) -> String {
        format!("worker-{}", block % self.nodes)
    }
}

impl Pod {
    fn name(self) -> String {
        format!("web-{}-{}", hex(self.number, 10), hex(self.number + 1, 5))
    }

    fn handle(self) -> String {
        format!("k8s-pod-network.{}", hex(self.number, 64))
    }

    fn attribute(self, size: Size) -> AllocationAttribute {
        let mut attribute = AllocationAttribute {
            handle_id: Some(self.handle()),
            ..AllocationAttribute::default()
        };
        for (key, value) in [
            ("node", size.node(self.block)),
            ("namespace", "default".to_owned()),
            ("pod", self.name()),
            ("timestamp", "2026-11-22 18:00:00 +0000 UTC".to_owned()),
        ] {
            attribute.secondary.insert(key.to_owned(), value);
        }
        attribute
    }

    fn address(self) -> IpAddr {
        let address = cidr(self.block).nth(self.ordinal as u128);
        address.unwrap_or_else(|| Ipv4Addr::UNSPECIFIED.into())
    }

    /// The pod's own two keys with their values: the handle and the endpoint.
    fn keys(self, size: Size) -> [(String, Vec<u8>); 2] {
        let mut handle = IpamHandle::default();
        handle.block.insert(cidr(self.block), 1);
        let (node, pod) = (size.node(self.block), self.name());
        let name = endpoint_name(&node, "k8s", &pod, "eth0");
        let endpoint = serde_json::json!({
            "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": name, "namespace": "default",
                "uid": hex(self.number, 32), "creationTimestamp": "2026-11-22T18:00:00Z",
                "labels": {
                    "app": "web", "pod-template-hash": hex(self.number, 10),
                    "projectcalico.org/namespace": "default",
                    "projectcalico.org/orchestrator": "k8s",
                    "projectcalico.org/serviceaccount": "default",
                },
            },
            "spec": {
                "orchestrator": "k8s", "node": node, "containerID": hex(self.number, 64),
                "pod": pod, "endpoint": "eth0", "serviceAccountName": "default",
                "ipNetworks": [format!("{}/32", self.address())],
                "profiles": ["kns.default", "ksa.default.default"],
                "interfaceName": format!("cali{}", hex(self.number, 11)),
                "mac": "ee:ee:ee:ee:ee:ee",
            },
        });
        let handle_key = Key::Handle(self.handle().as_str().into()).to_path();
        [
            (handle_key, handle.to_json()),
            (
                Key::workload("default", &name).to_path(),
                endpoint.to_string().into_bytes(),
            ),
        ]
    }
}

fn allocate(block: &mut Block, pod: Pod, size: Size) {
    block.attributes.push(pod.attribute(size));
    block.allocations[pod.ordinal] = Some(block.attributes.len() - 1);
    block.unallocated.retain(|free| *free != pod.ordinal);
    block.sequence_number += 1;
}

impl StoredCluster {
    /// Writes the cluster into etcd.
    pub(super) async fn write(store: EtcdStore, size: Size) -> Result<Self> {
        let mut cluster = Self {
            size,
            store,
            blocks: Vec::new(),
            up: VecDeque::new(),
            count: size.blocks * size.pods,
            joined: false,
        };
        let mut puts = Vec::new();
        for n in 0..size.nodes {
            puts.push(node(n));
        }
        for number in 0..size.blocks {
            let owner = BlockOwner::Host(size.node(number).as_str().into());
            let mut block = Block::new(cidr(number), Some(&owner), 1_767_607_872_000_000_000);
            for place in 0..size.pods {
                let pod = Pod {
                    block: number,
                    ordinal: place as usize,
                    number: number * size.pods + place,
                };
                allocate(&mut block, pod, size);
                puts.extend(pod.keys(size));
            }
            let confirmed = BlockAffinity::new(AffinityState::Confirmed).to_json();
            puts.push((Key::Affinity(owner, cidr(number)).to_path(), confirmed));
            puts.push((Key::Block(cidr(number)).to_path(), block.to_json()));
            cluster.blocks.push(block);
            if puts.len() >= TOGETHER * AT_ONCE {
                cluster.put(std::mem::take(&mut puts)).await?;
            }
        }
        cluster.put(puts).await?;
        Ok(cluster)
    }

    async fn put(&self, puts: Vec<(String, Vec<u8>)>) -> Result<()> {
        let commit = |chunk: &[(String, Vec<u8>)]| {
            let put = |(key, value): &(String, Vec<u8>)| TxnWrite::Put(key.clone(), value.clone());
            let writes = chunk.iter().map(put).collect();
            async move { self.commit(writes).await }
        };
        let all = puts.chunks(TOGETHER).map(commit);
        futures_util::future::try_join_all(all).await?;
        Ok(())
    }

    /// A pod comes up or goes, by turns, each on another node.
    pub(super) async fn change(&mut self, turn: u32) -> Result<()> {
        match turn % 2 == 1 {
            true => self.remove().await,
            false => self.add().await,
        }
    }

    /// A node comes with a block, or goes with it, by turns, in the order in which Calico writes.
    pub(super) async fn join_or_leave(&mut self) -> Result<()> {
        let (node_key, node_value) = node(self.size.nodes);
        let cidr = cidr(self.size.blocks);
        let owner = BlockOwner::Host(format!("worker-{}", self.size.nodes).as_str().into());
        let block = Block::new(cidr, Some(&owner), 1_767_607_872_000_000_000);
        let affinity = |state| BlockAffinity::new(state).to_json();
        let affinity_key = Key::Affinity(owner, cidr).to_path();
        let block_key = Key::Block(cidr).to_path();
        let writes = match self.joined {
            false => vec![
                TxnWrite::Put(node_key, node_value),
                TxnWrite::Put(affinity_key.clone(), affinity(AffinityState::Pending)),
                TxnWrite::Put(block_key, block.to_json()),
                TxnWrite::Put(affinity_key, affinity(AffinityState::Confirmed)),
            ],
            true => vec![
                TxnWrite::Put(
                    affinity_key.clone(),
                    affinity(AffinityState::PendingDeletion),
                ),
                TxnWrite::Delete(block_key),
                TxnWrite::Delete(affinity_key),
                TxnWrite::Delete(node_key),
            ],
        };
        for write in writes {
            self.commit(vec![write]).await?;
        }
        self.joined = !self.joined;
        Ok(())
    }

    async fn commit(&self, writes: Vec<TxnWrite>) -> Result<()> {
        let compare = Vec::new();
        let outcome = self.store.commit(&Txn { compare, writes }).await?;
        ensure!(
            matches!(outcome, TxnOutcome::Committed(_)),
            "etcd did not take what was written"
        );
        Ok(())
    }

    /// As Calico's plugin: the handle, the block, the endpoint, each by itself.
    async fn add(&mut self) -> Result<()> {
        let (size, number) = (self.size, self.count);
        self.count += 1;
        let index = number.wrapping_mul(7919) % size.blocks;
        let block = &mut self.blocks[index as usize];
        let Some(ordinal) = block.unallocated.first().copied() else {
            bail!("block {} is full", block.cidr);
        };
        let pod = Pod {
            block: index,
            ordinal,
            number,
        };
        allocate(block, pod, size);
        let value = block.to_json();
        let [handle, endpoint] = pod.keys(size);
        let path = Key::Block(cidr(index)).to_path();
        for (key, value) in [handle, (path, value), endpoint] {
            self.commit(vec![TxnWrite::Put(key, value)]).await?;
        }
        self.up.push_back(pod);
        Ok(())
    }

    async fn remove(&mut self) -> Result<()> {
        let Some(pod) = self.up.pop_front() else {
            return Ok(());
        };
        let [(handle, _), (endpoint, _)] = pod.keys(self.size);
        let block = &mut self.blocks[pod.block as usize];
        block.allocations[pod.ordinal] = None;
        // Others came after it; an attribute that nobody refers to may stay.
        block.unallocated.push(pod.ordinal);
        block.sequence_number += 1;
        let gone = block.allocations.iter().flatten().count();
        if block.attributes.len() > gone + 8 {
            tidy(block);
        }
        let value = block.to_json();
        let path = Key::Block(cidr(pod.block)).to_path();
        for write in [
            TxnWrite::Delete(endpoint),
            TxnWrite::Put(path, value),
            TxnWrite::Delete(handle),
        ] {
            self.commit(vec![write]).await?;
        }
        Ok(())
    }
}

/// Leaves attributes out that nobody refers to.
fn tidy(block: &mut Block) {
    let mut kept = Vec::new();
    for allocation in block.allocations.iter_mut().flatten() {
        kept.push(block.attributes[*allocation].clone());
        *allocation = kept.len() - 1;
    }
    block.attributes = kept;
}

fn node(n: u32) -> (String, Vec<u8>) {
    let name = NodeName::from(format!("worker-{n}"));
    // In the pool, and in no block: the device's address of a node that does not run.
    let vtep = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 192, 0, 0)) + n);
    let mac = format!("66:00:00:00:{:02x}:{:02x}", n / 256, n % 256);
    let value = serde_json::json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": name.as_str(), "uid": hex(n, 32), "creationTimestamp": "2026-11-22T18:00:00Z",
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name.as_str(),
                "kubernetes.io/os": "linux", "node-role.kubernetes.io/worker": "",
            },
        },
        "spec": {
            "addresses": [{"address": format!("{}/16", address(n)), "type": "CalicoNodeIP"},
                {"address": address(n).to_string(), "type": "InternalIP"}],
            "bgp": {"ipv4Address": format!("{}/16", address(n))},
            "ipv4VXLANTunnelAddr": vtep.to_string(), "vxlanTunnelMACAddr": mac,
            "orchRefs": [{"nodeName": name.as_str(), "orchestrator": "k8s"}],
        },
    });
    (
        Key::resource(Kind::Node, name.as_str()).to_path(),
        value.to_string().into_bytes(),
    )
}
