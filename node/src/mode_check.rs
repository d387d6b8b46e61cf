//! Protocol between nodes and `caracal mode apply`: while an IPPool has the annotation [`CHECK`],
//! every node sends echoes to addresses of the pool on other nodes and reports which of them are
//! answered. Shapes and keys only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{IpPool, NodeName, Snapshot};
use serde::{Deserialize, Serialize};

/// Annotation of an IPPool whose data path is to be checked; its value tells this check from
/// others.
pub(crate) const CHECK: &str = "caracal.io/mode-check";

/// Keys of reports are below this; outside of `/calico/`, so that they wake no watcher of Calico's
/// data.
pub(crate) const REPORTS: &str = "/caracal/mode/";

/// The key of a node's report.
pub(crate) fn report_path(node: &NodeName) -> String {
    format!("{REPORTS}{node}")
}

/// Report of a node whose kernel is in step with the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModeCheckReport {
    /// The check that it is about.
    pub(crate) check: String,
    /// The [`basis`] with which the kernel was in step before the first echo.
    pub(crate) basis: i64,
    /// The nodes that were tried.
    pub(crate) nodes: BTreeMap<NodeName, PeerAnswer>,
}

/// Result of the echoes to one other node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PeerAnswer {
    /// An address of the pool answers.
    Answers,
    /// None of these does, while the node itself answers.
    Silent(Vec<IpAddr>),
    /// It cannot be told, and why.
    Unknown(String),
}

/// The revision of what decides how packets travel between nodes: the last change of a pool or a
/// Node.
pub(crate) fn basis(snapshot: &Snapshot) -> i64 {
    let pools = snapshot.pools.values().map(|pool| pool.revision);
    let nodes = snapshot.nodes.values().map(|node| node.revision);
    pools.chain(nodes).max().unwrap_or_default()
}

/// The pool that is to be checked, and the check.
pub(crate) fn wanted(snapshot: &Snapshot) -> Option<(&IpPool, &str)> {
    snapshot.pools.values().find_map(|pool| {
        let check = pool.metadata.annotations.get(CHECK)?;
        Some((&**pool, check.as_str()))
    })
}
