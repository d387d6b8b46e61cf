//! Questions of the CNI plugin to the node's process: are the pod's addresses announced, are
//! addresses in use?

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::Prefix;

/// The question. The node answers when it is so, or when the time is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AwaitAnnouncement {
    /// Addresses of the pod, of either family.
    pub addresses: Vec<IpAddr>,
    /// Revision of the datastore at which the pod's endpoint was written. An answer about an older
    /// one is none.
    pub revision: i64,
    /// How long to wait at most.
    pub milliseconds: u64,
}

/// Answer to [`AwaitAnnouncement`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Announced prefixes that cover the addresses: their block, or a borrowed address by itself.
    /// An address of a pool that is not exported has nothing here, and nothing is waited for.
    pub prefixes: Vec<Prefix>,
    /// Established sessions on which it went out.
    pub sessions: usize,
    /// Reason why the wait ended without success, as a sentence; absent when all is announced.
    pub missing: Option<String>,
}

/// The other question, before an address is given: who uses addresses of these blocks?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskInUse {
    /// Blocks of the node that asks.
    pub blocks: Vec<Prefix>,
}

/// An address that a WorkloadEndpoint has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Address of the pod, without a prefix length.
    pub address: IpAddr,
    /// Namespace of the WorkloadEndpoint.
    pub namespace: String,
    /// Name of the WorkloadEndpoint.
    pub name: String,
}
