//! The vocabulary of Caracal: prefixes, names, Calico's resources and IPAM data, selectors, etcd
//! keys and the [`Snapshot`] of a datastore at one revision.
//!
//! This crate is pure data. It never opens a socket or a file, never reads a clock, and holds no
//! behaviour beyond parsing, printing, comparing and indexing. Everything is level-triggered: a
//! [`Snapshot`] says what is, never what happened.
//!
//! All names are at the root. The speaker uses the prefixes, the underlay and [`merge_join`], and
//! nothing else of this crate: it knows no resource of Calico.
//!
//! # Order of calls
//!
//! Whoever reads the datastore calls [`Snapshot::apply`] with each key and value, in any order;
//! [`Applied`] says whether something followed. Then plans read the maps of the snapshot, and
//! [`Snapshot::problems`] names what could not be read. Whoever writes what people wrote asks
//! [`Schema`] first: [`Schema::validate`], [`Schema::immutable`], [`Schema::conflicts`], and then
//! [`Schema::complete`] and [`Schema::carry_over`] to fill in what they left out.
//!
//! ```
//! use caracal_model::{Applied, IpPool, IpPoolSpec, Key, Kind, Snapshot};
//!
//! let pool = IpPool::new("blue", IpPoolSpec { cidr: "10.9.0.0/16".into(), ..Default::default() });
//! let key = Key::resource(Kind::IpPool, "blue").to_path();
//! let mut snapshot = Snapshot::default();
//! assert_eq!(snapshot.apply(&key, Some(&pool.to_json()), 7), Applied::Changed);
//! assert_eq!(snapshot.pools["blue"].revision, 7);
//!
//! // A value that does not parse is named, and the last good one stays in use.
//! assert!(matches!(snapshot.apply(&key, Some(b"{"), 8), Applied::Invalid(_)));
//! assert_eq!(snapshot.problems().len(), 1);
//! assert_eq!(snapshot.pools["blue"].revision, 7);
//! ```
//!
//! # Invariants, cited by tests
//!
//! * `MODEL-1`: `serialise(parse(value))` keeps every field this crate does not know.
//! * `MODEL-2`: a [`Prefix`] never has host bits set.
//! * `MODEL-3`: `Key::parse(key.to_path()) == key` for every key of Calico's layout that is
//!   modelled.
//! * `MODEL-4`: a value that does not parse never changes a snapshot's good data; it becomes a
//!   [`Problem`] with key and reason, and the last good value stays.

mod announcement;
mod code;
mod insert_each;
mod ipam;
mod keys;
mod kubernetes;
mod merge_join;
mod names;
mod net;
mod node_addresses;
mod picture;
mod policy;
mod ranges;
mod resource;
mod schema;
mod selector;
mod service_claim;
mod service_refusal;
mod shared_map;
mod snapshot;
mod spelling;
mod status;
mod time;
mod txn;

// Prefixes, families, and the underlay over which next hops are resolved.
pub use net::{
    Cidr, Family, Gateway, IfName, LocalNetworks, Prefix, PrefixError, Underlay, UnderlayRoute,
    is_zoned, outermost, range_around, unzoned, zone, zoned,
};

// Identity of things, and their keys in the datastore.
pub use keys::{
    CALICO_ROOT, DocumentKind, Key, KeyError, affinity_prefix, blocks_prefix, documents_prefix,
    handles_prefix, ipam_prefix, kind_prefix, resources_prefix,
};
pub use names::{HandleId, NodeName, PoolName};
pub use time::Timestamp;

// Calico's resources, and the table of their fields.
pub use resource::{
    ALIAS_PREFIX, API_VERSION, AddCommunity, AllowedUse, AsNumber, BgpConfiguration,
    BgpConfigurationSpec, BgpFilter, BgpFilterOperation, BgpFilterRule, BgpFilterSpec, BgpPeer,
    BgpPeerSpec, CidrEntry, CommunityMatch, EncapMode, FELIX_FIELDS, FelixConfiguration,
    FelixConfigurationSpec, FieldEffect, FieldEntry, FieldNote, HOST_END_MAC, IpPool, IpPoolSpec,
    IpReservation, IpReservationSpec, Kind, Mac, Metadata, NamedCommunity, Node, NodeAddress,
    NodeBgp, NodeSpec, OrchRef, PasswordRef, PrefixAdvertisement, PrefixLength, PrependAsPath,
    Resource, ResourceSpec, SecretKeyRef, SetPriority, ValueError, WorkloadEndpoint,
    WorkloadEndpointSpec, container_interface, default_block_len, endpoint_name, format_mac,
    parse_mac, pod_interface, vxlan_mac,
};

// Services of Kubernetes' API.
pub use kubernetes::{
    EndpointConditions, EndpointHint, EndpointHints, EndpointsAddress, KubernetesDocument,
    KubernetesEndpoint, KubernetesEndpoints, KubernetesService, KubernetesServicePort,
    KubernetesServiceSpec, KubernetesSlice, KubernetesSlicePort, LoadBalancerIngress,
};
pub use service_claim::{ServiceAddressKind, ServiceAge, ServiceClaim};
pub use service_refusal::{ReservedRanges, out_of_reach};

// Calico's IPAM data.
pub use ipam::{
    AffinityState, AllocationAttribute, Block, BlockAffinity, BlockOwner, DELEGATED_ATTRIBUTE,
    ENDPOINT_ATTRIBUTE, INTERFACE_ATTRIBUTE, IpamConfig, IpamHandle, WINDOWS_RESERVED_HANDLE,
    ipip_handle, vxlan_handle, vxlan_v6_handle, wireguard_handle, wireguard_v6_handle,
};

// Reads and transactions, whatever the datastore.
pub use txn::{Compare, KeyRange, KeyValue, LeasedTxn, LeasedValue, Txn, TxnOutcome, TxnWrite};

// Everything at one revision.
pub use snapshot::{
    Applied, Doubt, Elsewhere, Holders, InvalidValue, KnownBlock, LOCKED, Networks, POLICY_KINDS,
    Problem, Snapshot, StoredEndpoints, StoredLineError, Versioned, is_locked,
};

// Network policy.
pub use policy::{
    ALL_INTERFACES, AddressSet, Decision, IcmpMatch, NamedPort, POLICY_DATA_KINDS, Packet, Policy,
    PolicyAction, PolicyData, PolicyDirection, PolicyEndpoint, PolicyKind, PolicyOrder, PolicyPort,
    PolicyProfile, PolicyRule, PolicyStage, PolicyTier, RuleSide, Verdict, is_selected,
    namespace_of_selector,
};

// Addresses of all nodes, and ranges of different roles that lie over each other.
pub use node_addresses::NodeAddresses;
pub use picture::pair_picture;
pub use ranges::range_conflicts;

// Codes of everything that can be wrong.
pub use code::{
    AuditCode, CodeEntry, DoctorCode, IpamCode, ProblemCode, Reporter, Severity, code_entries,
    find_code, nearest_codes,
};

// Validation of resources that users write.
pub use schema::{ResourceType, Schema, WriteRule};
pub use selector::{Selector, SelectorError};

// What a node says about itself, as JSON.
pub use status::{
    BfdStatusJson, BlockStatus, CacheStatusJson, DatastoreStatus, KernelStatus, NodeStatus,
    OriginStatusJson, PastErrorJson, PathStatusJson, PeerStatusJson, StationStatusJson, WorkStatus,
};

// Questions of plugins to their node.
pub use announcement::{Announcement, AskInUse, AwaitAnnouncement, InUse};

// Maps and sets, how they are filled, and that planning and diffing walk.
pub use insert_each::InsertEach;
pub use merge_join::merge_join;
pub use shared_map::SharedMap;
pub use spelling::{close_name, nearest_name};
