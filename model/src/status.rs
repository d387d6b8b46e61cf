//! Status of a node: the answer of `caracal status -o json`. Stable, documented, additive.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::Prefix;
use crate::snapshot::Problem;

/// The state of a node's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// The node's name.
    pub node: String,
    /// Version of the program.
    pub version: String,
    /// Seconds since the process started.
    pub uptime_seconds: u64,
    /// The node's own addresses.
    pub addresses: Vec<String>,
    /// Our AS number.
    pub asn: u32,
    /// Our BGP Identifier.
    pub router_id: String,
    /// How far the datastore is followed.
    pub datastore: DatastoreStatus,
    /// Our peers, sorted by name.
    pub peers: Vec<PeerStatusJson>,
    /// The stations that monitor what peers announce (RFC 7854), sorted by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stations: Vec<StationStatusJson>,
    /// The RPKI caches whose entries filters ask (RFC 8210), sorted by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheStatusJson>,
    /// Long work on the routing table that is under way; routing goes on meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<WorkStatus>,
    /// The check of who announces what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginStatusJson>,
    /// Blocks with an affinity of this node.
    pub blocks: Vec<BlockStatus>,
    /// Progress of the kernel's writer.
    pub kernel: KernelStatus,
    /// Why the node is not in service, when somebody drains it: `leaving`, `withdrawing` or
    /// `drained`, and the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    /// Everything that is wrong, each with key and reason.
    pub problems: Vec<Problem>,
}

/// Long work on the routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkStatus {
    /// Description of the work: `run import filters again`.
    pub what: String,
    /// For which peer, if for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Destinations that are done.
    pub done: usize,
    /// Destinations in all.
    pub total: usize,
}

impl std::fmt::Display for WorkStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        if let Some(peer) = &self.peer {
            write!(f, " ({peer})")?;
        }
        write!(f, ": {} of {} destinations", self.done, self.total)
    }
}

/// Routes that are refused for their prefix, and the check of who announces what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OriginStatusJson {
    /// `enforce`, `log` or `off`.
    pub mode: String,
    /// Routes that must never be routed, now.
    pub never_routed: usize,
    /// Routes that do not come from the owner of the prefix, now.
    pub not_owner: usize,
    /// Routes over nodes that no import rule names, now.
    pub over_nodes: usize,
    /// Routes that wait until the owner of the prefix is known, now.
    pub waiting: usize,
    /// Times that a route was found not to come from the owner since the start.
    pub violations: u64,
    /// The last of them: `PREFIX from PEER`.
    pub last_violation: Option<String>,
}

/// The datastore as the node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatastoreStatus {
    /// `fresh`, `lagging` or `stale`.
    pub state: String,
    /// `etcd` or `Kubernetes' API`; empty for a speaker without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Addresses of its servers, separated by commas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoints: String,
    /// Revision of the snapshot in use.
    pub revision: i64,
    /// Why it is not fresh.
    pub reason: Option<String>,
    /// Why it takes no writes although it can be read; absent while it does.
    #[serde(rename = "noWrites", skip_serializing_if = "Option::is_none")]
    pub no_writes: Option<String>,
}

/// A configured peer and its session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeerStatusJson {
    /// Name, `Mesh_10_0_0_2`.
    pub name: String,
    /// The BGPPeer that asks for it; absent in the mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bgp_peer: Option<String>,
    /// Address of the peer; absent until it is known.
    pub address: Option<IpAddr>,
    /// AS number.
    pub asn: u32,
    /// `mesh`, `reflector` (an elected one), `global`, `node`, `workload`.
    pub kind: String,
    /// `Idle`, `Connect`, `Active`, `OpenSent`, `OpenConfirm`, `Established`.
    pub state: String,
    /// Seconds in this state.
    pub since_seconds: u64,
    /// Why there is no session; absent while there is one.
    pub reason: Option<String>,
    /// For how many seconds there has been no session; absent while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_seconds: Option<u64>,
    /// An operator, or the configuration, wants no session.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Why the last session ended or the last attempt failed, also when there is a session since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<PastErrorJson>,
    /// Errors since the start, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// Warning about the session although it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Prefixes received.
    pub received: usize,
    /// Prefixes accepted.
    pub accepted: usize,
    /// Prefixes advertised.
    pub advertised: usize,
    /// True while the peer's routes are kept past the end of its session (RFC 4724).
    pub stale: bool,
    /// BFD session with the peer, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatusJson>,
}

/// Something that went wrong once, which says nothing about now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PastErrorJson {
    /// How long ago, in seconds.
    pub age_seconds: u64,
    /// Description of the error, as a sentence.
    pub text: String,
}

/// A peer as BFD sees it (RFC 5880).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BfdStatusJson {
    /// `Up`, `Init`, `Down`, `AdminDown`; or why there is no BFD session.
    pub state: String,
    /// How often it went down.
    pub downs: u64,
    /// Why it last did.
    pub diagnostic: Option<String>,
}

/// A monitoring station (RFC 7854).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StationStatusJson {
    /// Name in the configuration.
    pub name: String,
    /// Address and port.
    pub address: String,
    /// `Connected`: it has been sent the whole table; `Table`: that is under way; `Down`.
    pub state: String,
    /// Octets that wait for it to read.
    pub waiting: usize,
    /// How many connections there have been.
    pub connections: u64,
    /// Why there is none.
    pub reason: Option<String>,
}

/// An RPKI cache (RFC 8210).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatusJson {
    /// Name in the configuration.
    pub name: String,
    /// Name or address of the machine, and port.
    pub address: String,
    /// `Current`: its entries are in use; `Synchronizing`; `Down`: what it sent last is in use
    /// until it expires.
    pub state: String,
    /// How many entries are in use.
    pub entries: usize,
    /// Version of the protocol that it speaks.
    pub version: Option<u8>,
    /// Its session, in which its serial numbers count.
    pub session: Option<u16>,
    /// Its serial number of them.
    pub serial: Option<u32>,
    /// Seconds since it last said that they are whole.
    pub updated_seconds: Option<u64>,
    /// Why there is no connection, or no entry.
    pub reason: Option<String>,
}

/// One block of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockStatus {
    /// The range.
    pub cidr: Prefix,
    /// State of our affinity.
    pub state: String,
    /// Addresses in use.
    pub in_use: usize,
    /// Addresses in all.
    pub size: usize,
}

/// The kernel as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KernelStatus {
    /// `learning` (nothing is deleted yet), `synced` or `frozen`.
    pub phase: String,
    /// Why nothing is deleted, while the phase is not `synced`.
    pub reason: Option<String>,
    /// Revision of the last snapshot that was applied without errors.
    pub revision: i64,
    /// Routes of ours by kind: `blackhole`, `local`, `direct`, `ipip`, `vxlan`.
    pub routes: BTreeMap<String, usize>,
    /// Tunnel devices that are up.
    pub tunnels: Vec<String>,
    /// `objects` when routes lead through next-hop objects, else `plain` with the reason.
    pub next_hops: String,
    /// Backend of NAT rules: `nft`, `iptables-legacy` or `none`.
    pub nat: String,
    /// The paths to other nodes that were measured, sorted by node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStatusJson>,
}

/// The path to one other node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathStatusJson {
    /// The node at its end.
    pub node: String,
    /// Address of that node which was probed.
    pub address: IpAddr,
    /// The largest packet that arrives, in octets.
    pub mtu: u32,
    /// MTU of the interface towards it.
    pub interface_mtu: u32,
}
