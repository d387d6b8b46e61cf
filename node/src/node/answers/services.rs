//! What is translated on this node, as rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::{ServiceAddress, ServiceEntry, ServiceStatus, ServiceTarget};
use caracal_model::Problem;
use serde::{Deserialize, Serialize};

/// The table of services of a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TranslatedServices {
    /// Revision that is in force.
    pub(crate) revision: i64,
    /// The last pass failed: the table is not as planned.
    #[serde(default)]
    pub(crate) failing: bool,
    /// A row an address, protocol and port.
    pub(crate) rows: Vec<TranslatedRow>,
    /// What is refused of the Services, and what several of them want.
    #[serde(default)]
    pub(crate) problems: Vec<Problem>,
}

/// An address of a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TranslatedRow {
    /// `ADDRESS:PORT/PROTOCOL`.
    pub(crate) address: String,
    /// `NAMESPACE/NAME`, with the port's name behind a colon.
    pub(crate) service: String,
    /// `ClusterIP`, `ExternalIP`, `LoadBalancer` or `NodePort`.
    pub(crate) kind: String,
    /// `Cluster` or `Local`.
    pub(crate) policy: String,
    /// Endpoints on this node.
    pub(crate) here: Vec<String>,
    /// Endpoints on others that connections are given to.
    pub(crate) elsewhere: Vec<String>,
    /// For how many seconds clients keep their endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) affinity_seconds: Option<u32>,
    /// Senders that are let in, or the word nobody; empty = all.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) sources: Vec<String>,
    /// New connections (of UDP: flows) to the address since it came into the table. `None` = the
    /// kernel's counters cannot be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) hits: Option<u64>,
}

impl TranslatedServices {
    /// `hits`: what the kernel has counted.
    pub(crate) fn from_status(
        status: &ServiceStatus,
        hits: &BTreeMap<ServiceAddress, u64>,
    ) -> Self {
        let row = |(address, entry): (&ServiceAddress, &Arc<ServiceEntry>)| {
            let hits = hits.get(address).copied();
            row(address, entry, hits)
        };
        Self {
            revision: status.revision,
            failing: status.failing_since.is_some(),
            rows: status.entries.iter().map(row).collect(),
            problems: status.problems.clone(),
        }
    }
}

pub(super) fn row(
    address: &ServiceAddress,
    entry: &ServiceEntry,
    hits: Option<u64>,
) -> TranslatedRow {
    let mut all: Vec<&ServiceTarget> = entry.cluster.iter().chain(&entry.here).collect();
    all.sort_unstable();
    all.dedup();
    let (here, elsewhere): (Vec<&ServiceTarget>, Vec<&ServiceTarget>) = all
        .into_iter()
        .partition(|target| entry.own.contains(&target.address));
    let texts = |targets: Vec<&ServiceTarget>| targets.into_iter().map(endpoint).collect();
    let name = &entry.service;
    TranslatedRow {
        address: format!(
            "{}/{}",
            std::net::SocketAddr::new(address.address, address.port),
            address.protocol.as_str()
        ),
        service: match entry.port_name.as_str() {
            "" => name.clone(),
            port => format!("{name}:{port}"),
        },
        kind: entry.kind.as_str().to_owned(),
        policy: if entry.local { "Local" } else { "Cluster" }.to_owned(),
        here: texts(here),
        elsewhere: texts(elsewhere),
        affinity_seconds: entry.affinity.as_ref().map(|affinity| affinity.seconds),
        sources: sources(entry),
        hits,
    }
}

/// Who is let in; nothing = everybody.
fn sources(entry: &ServiceEntry) -> Vec<String> {
    match &entry.sources {
        Some(sources) if sources.is_empty() => vec!["nobody".to_owned()],
        sources => sources.iter().flatten().map(ToString::to_string).collect(),
    }
}

fn endpoint(target: &ServiceTarget) -> String {
    std::net::SocketAddr::new(target.address, target.port).to_string()
}
