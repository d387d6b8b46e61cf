//! Variables of the templates of the set `calico`. Every field is always there, so that strict mode
//! finds misspelt names; what does not apply is `null`, `false` or an empty list. Fields are added,
//! never changed.
//!
//! Addresses, ranges and conditions are text as BIRD 1.6 writes them.

use serde::Serialize;

/// Both daemons: the root of templates that users add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CalicoContext {
    /// Name of the node.
    pub node: String,
    /// The daemon `bird`.
    pub ipv4: Daemon,
    /// The daemon `bird6`.
    pub ipv6: Daemon,
}

/// One daemon: the root of the shipped templates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Daemon {
    /// Name of the node.
    pub node: String,
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// `4` or `6`.
    pub version: &'static str,
    /// Suffix of `bird` in file names: nothing, or `6`.
    pub suffix: &'static str,
    /// Length of a single address: 32 or 128.
    pub host_len: u8,
    /// The BGP Identifier.
    pub router_id: String,
    /// The node's address of the family; null when it has none, and then there is no BGP in the
    /// file.
    pub address: Option<String>,
    /// The node's AS number.
    pub local_as: u32,
    /// Listen on this address only (`bindMode: NodeIP`).
    pub listen_address: Option<String>,
    /// Listening port, when a BGPConfiguration sets one.
    pub listen_port: Option<u16>,
    /// Value of `debug` in protocols: `all`, `{ states }` or null.
    pub debug_protocols: Option<&'static str>,
    /// Value of `debug` in peers.
    pub debug_peers: Option<&'static str>,
    /// Patterns of interfaces that `direct` leaves out, besides the usual ones.
    pub ignored_interfaces: Vec<String>,
    /// LOCAL_PREF plus kernel metric: 2147483647.
    pub priority_base: u32,
    /// Kernel metric of a normal route, 1024.
    pub normal_priority: u32,
    /// LOCAL_PREF of a normal route, 2147482623.
    pub normal_local_pref: u32,
    /// BGPFilters, by name.
    pub filters: Vec<Filter>,
    /// Communities by range.
    pub communities: Vec<Community>,
    /// There are peers with BFD, for which BIRD has a protocol.
    pub bfd: bool,
    /// Peers, by name.
    pub peers: Vec<Peer>,
    /// Static routes to peers (`reachableBy`).
    pub reachable_by: Vec<Reach>,
    /// The node's blocks, pending ones left out, in the order of their text.
    pub blocks: Vec<Block>,
    /// Service ranges and addresses that this node announces.
    pub service_routes: Vec<String>,
    /// Ranges that never go to the kernel.
    pub reject_cidrs: Vec<String>,
    /// Pools with `disableBGPExport`.
    pub hidden_pools: Vec<String>,
    /// All other pools.
    pub exported_pools: Vec<String>,
    /// The node is a route reflector.
    pub reflector: bool,
    /// Ranges of services, inside which a reflector passes everything on.
    pub reflected_ranges: Vec<String>,
    /// Routes over `tunl0` are Felix's and stay inside the node.
    pub rejects_tunl0: bool,
    /// Addresses of other WireGuard nodes; empty unless this node runs WireGuard.
    pub wireguard_peers: Vec<String>,
    /// There is something to put into a static protocol.
    pub has_static_routes: bool,
    /// Kernel entries of the pools, in the order of their text.
    pub kernel_pools: Vec<KernelPool>,
}

/// A BGPFilter with its functions for the family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filter {
    /// Name of the resource.
    pub name: String,
    /// One or two functions, import first.
    pub functions: Vec<Function>,
}

/// A filter function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Function {
    /// Its name with BIRD's quotes.
    pub symbol: String,
    /// It has the parameter `is_same_as`.
    pub takes_same_as: bool,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

/// A rule of a BGPFilter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// `is_same_as`, `!is_same_as` or null: the kind of peer it is for.
    pub peer: Option<&'static str>,
    /// Conditions, joined; null for always.
    pub condition: Option<String>,
    /// Statements in order; the last one is the verdict.
    pub statements: Vec<String>,
}

/// Communities that routes of a range get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Community {
    /// The range.
    pub cidr: String,
    /// Statements that add them.
    pub statements: Vec<String>,
}

/// A call of a filter function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterCall {
    /// The function with BIRD's quotes.
    pub symbol: String,
    /// `true`, `false` or nothing.
    pub argument: &'static str,
}

/// A session of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Name of the protocol.
    pub name: String,
    /// Path of the resource that asks for the session.
    pub resource: String,
    /// Address of the peer.
    pub address: String,
    /// Its port, when it is not 179.
    pub port: Option<u16>,
    /// AS number of the peer.
    pub remote_as: u32,
    /// Our AS on this session, when it is not the node's.
    pub local_as: Option<u32>,
    /// Our AS on this session is the peer's.
    pub same_as: bool,
    /// Our address.
    pub source: Option<String>,
    /// Hops of TTL security; null = off.
    pub ttl_security: Option<u8>,
    /// BFD, with a peer on a link of the node.
    pub bfd: bool,
    /// Wait for the peer.
    pub passive: bool,
    /// Our cluster id, when the peer is our client.
    pub cluster: Option<String>,
    /// TCP MD5.
    pub password: Option<String>,
    /// There is a password, and it may not be shown.
    pub password_hidden: bool,
    /// Graceful restart time in seconds, when one is asked for.
    pub restart_time: Option<u64>,
    /// Keepalive interval in seconds, when one is asked for.
    pub keepalive: Option<u64>,
    /// `self`, `keep` or null.
    pub next_hop: Option<&'static str>,
    /// How often our AS may stand in a path; null for never.
    pub allow_own_as: Option<u8>,
    /// Filters on import, in order.
    pub import: Vec<FilterCall>,
    /// Filters on export, in order.
    pub export: Vec<FilterCall>,
}

/// A static route to a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Reach {
    /// The peer's address as a range.
    pub prefix: String,
    /// The gateway.
    pub via: String,
}

/// A block of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Block {
    /// The block.
    pub cidr: String,
    /// It is being given back: its affinity is `pendingDeletion`.
    pub leaving: bool,
    /// It holds a single address, and a blackhole would hide the workload behind it.
    pub single: bool,
}

/// Kernel entry of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelPool {
    /// The pool.
    pub cidr: String,
    /// Why, for the comment.
    pub comment: &'static str,
    /// Do not program its routes.
    pub reject: bool,
    /// Set `krt_tunnel` (the fork's attribute): the pool is IPIP.
    pub tunnel: bool,
    /// Next hops in this subnet need no tunnel.
    pub direct_within: Option<String>,
}
