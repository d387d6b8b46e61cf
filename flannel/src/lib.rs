//! Flannel's networks: who has which subnet, by leases in etcd, and what that means for the kernel.
//! A flanneld and a Caracal node share the same leases and reach each other.
//!
//! # Order of calls
//!
//! 1. [`FlannelConfig::parse`] reads the network's configuration.
//! 2. [`Acquire`] is a step machine that takes or renews the lease of a node: call
//!    [`Acquire::step`] with [`AcquireInput::Start`], carry out what it says, and call again.
//! 3. [`LeaseTable`] holds the leases of all nodes, from a list and the changes after it.
//! 4. [`plan_flannel`] makes of them what the agent writes: devices, routes, neighbours, FDB
//!    entries.
//! 5. [`plan_relay`] makes of them what the relay of the backend `udp` goes by; [`relay_outbound`]
//!    and [`relay_inbound`] decide about its packets.
//!
//! The feature `client` has `follow_leases`, a task that does the first three against a real etcd,
//! or with the Nodes of Kubernetes, whose annotations ([`NodeAnnotations`]) stand for leases.
//!
//! ```
//! use caracal_flannel::{FlannelConfig, NodeSubnets};
//!
//! let config = br#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
//! let config = FlannelConfig::parse(config).expect("a configuration");
//! let subnets = NodeSubnets::parse_key("10.5.72.0-24").expect("a key");
//! assert!(config.holds(&subnets));
//! ```
//!
//! # Invariants, cited by tests
//!
//! * `FLANNEL-1`: no lease is created that shares an address with another one, whatever their keys.
//! * `FLANNEL-2`: a node that comes back gets the subnets that it had, unless somebody else has
//!   them.
//! * `FLANNEL-3`: while etcd is away, and for a while after it came back, nothing is deleted from
//!   the kernel, whatever the TTL of leases was.
//! * `FLANNEL-4`: a value that cannot be read changes nothing of what was known of its node, and
//!   nothing of others.
//! * `FLANNEL-5`: a reservation (a key without a lease of etcd's) stays one.
//! * `FLANNEL-6`: no key is written without a comparison of its revision (or absence) in the same
//!   transaction.
//! * `FLANNEL-7`: a node is sent to as its lease says, and its lease says so once its devices are
//!   there. They stay while a lease is of their backend, and for a while after.

#![cfg_attr(
    not(feature = "client"),
    allow(dead_code, reason = "the shell alone calls some parts of the core")
)]

mod acquire;
mod config;
#[cfg(feature = "client")]
mod follow;
mod forward;
mod free;
mod lease;
mod leases;
mod masquerade;
mod network;
mod nodes;
mod plan;
mod relay;
#[cfg(feature = "client")]
mod source;
mod subnet_env;
mod subnet_file;

pub use acquire::{
    Acquire, AcquireError, AcquireInput, AcquireRequest, AcquireStep, DeviceMac, FlannelKeys,
    LeaseOrigin, OwnLease,
};
pub use config::{Backend, ConfigError, Families, FlannelConfig, SubnetRange, VxlanOptions};
#[cfg(feature = "client")]
pub use follow::{FollowOptions, follow_leases};
pub use forward::{FORWARD_CHAIN, FORWARD_COMMENT};
pub use lease::{LeaseError, NodeSubnets, SubnetLease, Vtep};
pub use leases::{KnownLease, LeaseTable, LeaseView};
pub use masquerade::{masquerade_chain, masquerade_rules, masquerade_table};
pub use network::{FlannelNetwork, FlannelState, Uplink, container_mtu, device_mac, vxlan_devices};
pub use nodes::NodeAnnotations;
pub use plan::{flannel_ownership, plan_flannel, plan_relay};
pub use relay::{
    AnswerLimit, DropReason, IcmpError, IpHeader, LARGEST_PACKET, Offload, RelayTable, Segment,
    complete_checksum, icmp_answer, may_be_fragmented, merge_segments, relay_inbound,
    relay_outbound, relay_overhead, run_of_segments, split_segments,
};
#[cfg(feature = "client")]
pub use source::{
    KubernetesNode, LeaseStore, LeaseStoreError, acquire_lease, config_changed, list_leases,
    read_config, remove_config, remove_lease,
};
pub use subnet_env::{SubnetEnv, SubnetEnvError};
pub use subnet_file::SubnetFile;
