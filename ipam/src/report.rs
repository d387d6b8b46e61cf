//! The file that `caracal ipam check -o FILE` writes and `caracal ipam release --from-report`
//! reads: what was leaked, in which cluster, seen by which version. Each allocation carries its
//! handle and sequence number, so an old report never frees a newer allocation (IPAM-8).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::audit::{Audit, Leak};
use crate::check::Inconsistency;

/// Which cluster, in which state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSummary {
    /// Its unique identifier.
    #[serde(rename = "clusterGUID")]
    pub guid: String,
    /// `typha,kdd`, …
    #[serde(rename = "clusterType", default)]
    pub kind: String,
    /// True while nobody shall change IPAM's data.
    #[serde(rename = "datastoreLocked")]
    pub locked: bool,
    /// Revision of the ClusterInformation.
    #[serde(rename = "clusterInformationRevision", default)]
    pub revision: String,
}

/// Leaked addresses as `caracal ipam check` stores them for `caracal ipam release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeakReport {
    /// Version of the program that wrote it.
    pub version: String,
    /// Cluster that they were found in: a release refuses another one's.
    #[serde(flatten)]
    pub cluster: ClusterSummary,
    /// By address; an address of two blocks that overlap has an entry for each.
    pub allocations: BTreeMap<IpAddr, Vec<Leak>>,
    /// Handles that hold nothing of what they count.
    pub leaked_handles: Vec<String>,
}

/// Why a report is not to be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeakReportError {
    /// It was made of another cluster.
    #[error(
        "the report is of cluster {report}, and this datastore is of cluster {here}; nothing forces that"
    )]
    OtherCluster {
        /// GUID in the report.
        report: String,
        /// GUID here.
        here: String,
    },
    /// It was made by another version.
    #[error("the report was made by version {report}, and this is {here}; add --force to trust it")]
    OtherVersion {
        /// Version in the report.
        report: String,
        /// This version.
        here: String,
    },
}

impl LeakReport {
    /// The report of an audit.
    #[must_use]
    pub fn new(audit: &Audit, cluster: ClusterSummary, version: &str) -> Self {
        let mut allocations: BTreeMap<IpAddr, Vec<Leak>> = BTreeMap::new();
        for leak in &audit.leaked {
            let list = allocations.entry(leak.allocation.address).or_default();
            list.push(leak.clone());
        }
        let empty = audit.findings.iter().filter_map(|finding| match finding {
            Inconsistency::Count {
                handle, held: 0, ..
            } => Some(handle.to_string()),
            _ => None,
        });
        Self {
            version: version.to_owned(),
            cluster,
            allocations,
            leaked_handles: empty.collect(),
        }
    }

    /// Whether it may be followed here.
    ///
    /// # Errors
    /// [`LeakReportError`].
    pub fn accept(
        &self,
        here: &ClusterSummary,
        version: &str,
        force: bool,
    ) -> Result<(), LeakReportError> {
        if self.cluster.guid != here.guid || here.guid.is_empty() {
            return Err(LeakReportError::OtherCluster {
                report: self.cluster.guid.clone(),
                here: here.guid.clone(),
            });
        }
        if self.version != version && !force {
            return Err(LeakReportError::OtherVersion {
                report: self.version.clone(),
                here: version.to_owned(),
            });
        }
        Ok(())
    }
}
