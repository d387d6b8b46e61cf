//! Protocol between nodes and `caracal services apply --wait`: while the key
//! [`caracal_model::Key::ServicesCheck`] is there, every node that has in force what was written
//! before it says so in a key of its own. Shapes and keys only.

use caracal_model::NodeName;
use serde::{Deserialize, Serialize};

/// Keys of reports are below this; outside of `/calico/`, so that they wake nobody.
pub(crate) const REPORTS: &str = "/caracal/services/";

/// The key of a node's report.
pub(crate) fn report_path(node: &NodeName) -> String {
    format!("{REPORTS}{node}")
}

/// A node has in force what was written before the check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicesReport {
    /// The check that it is about.
    pub(crate) check: String,
    /// Addresses that it translates; `None` = it translates none (`CARACAL_SERVICES`).
    pub(crate) addresses: Option<usize>,
}
