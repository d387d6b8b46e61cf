//! All nodes as the datastore knows them: Nodes, liveness leases, and what each has published of
//! itself ([`crate::cluster_status`]). No node is asked.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_ipam::{LEASE_PREFIX, Lease};
use caracal_model::{InsertEach, KeyRange, KeyValue, Kind, Timestamp, kind_prefix};
use serde::{Deserialize, Serialize};

use crate::cluster_status::{NodeState, PublishedStatus, STATUSES};

/// A node as the cluster sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterNode {
    pub(crate) node: String,
    pub(crate) state: NodeState,
    /// Seconds since it renewed its lease, by the two clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<PublishedStatus>,
}

/// Reads Nodes, leases and records.
pub(crate) async fn gather(store: &Datastore) -> anyhow::Result<Vec<ClusterNode>> {
    let prefixes = [
        kind_prefix(Kind::Node),
        LEASE_PREFIX.to_owned(),
        STATUSES.to_owned(),
    ];
    let ranges = prefixes.clone().map(KeyRange::Prefix);
    let answer = store.read(&ranges).await.context(store.advice())?;
    let mut ranges = answer.ranges.into_iter().zip(prefixes);
    let mut next = || {
        let (entries, prefix) = ranges.next().unwrap_or_default();
        by_node(entries, &prefix)
    };
    let (nodes, leases, records) = (next(), next(), next());
    let names = nodes.into_keys().collect();
    Ok(judged(names, &leases, &records, SystemTime::now().into()))
}

fn by_node(entries: Vec<KeyValue>, prefix: &str) -> BTreeMap<String, KeyValue> {
    let named = |entry: KeyValue| Some((entry.key.strip_prefix(prefix)?.to_owned(), entry));
    entries.into_iter().filter_map(named).insert_each()
}

/// The nodes in the order in which somebody looks at them.
fn judged(
    names: Vec<String>,
    leases: &BTreeMap<String, KeyValue>,
    records: &BTreeMap<String, KeyValue>,
    now: Timestamp,
) -> Vec<ClusterNode> {
    let judge = |node: String| {
        let lease = leases.get(&node).and_then(Lease::read);
        let status: Option<PublishedStatus> = records
            .get(&node)
            .and_then(|stored| serde_json::from_slice(&stored.value).ok());
        let renewed = lease
            .as_ref()
            .and_then(|lease| Timestamp::parse_rfc3339(&lease.renewed));
        ClusterNode {
            state: NodeState::judge(lease.as_ref(), status.as_ref(), now),
            last_seen_seconds: renewed.map(|then| now.since(then).as_secs()),
            node,
            status,
        }
    };
    let mut nodes: Vec<ClusterNode> = names.into_iter().map(judge).collect();
    nodes.sort_by(|a, b| (a.state, &a.node).cmp(&(b.state, &b.node)));
    nodes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::Value;

    use super::*;

    fn stored(value: &Value) -> KeyValue {
        KeyValue {
            key: String::new(),
            value: value.to_string().into_bytes(),
            mod_revision: 1,
        }
    }

    #[test]
    fn those_to_look_at_come_first_and_a_record_without_a_node_is_none() {
        let lease = |node: &str, renewed: &str| {
            stored(&serde_json::json!({"node": node, "renewed": renewed, "seconds": 30}))
        };
        let record = |problems: &Value| {
            stored(
                &serde_json::json!({"version": "0.1.0", "datastore": "fresh", "problems": problems}),
            )
        };
        let now = Timestamp::parse_rfc3339("2026-01-01T00:01:00Z").unwrap();
        let fresh = "2026-01-01T00:00:50Z";
        let leases = [
            ("a", lease("a", fresh)),
            ("b", lease("b", fresh)),
            ("c", lease("c", "2026-01-01T00:00:00Z")),
        ];
        let healthy = record(&serde_json::json!({}));
        let records = [
            ("a", healthy.clone()),
            ("b", record(&serde_json::json!({"bgp.listen": 2}))),
            ("c", healthy.clone()),
            ("gone", healthy),
        ];
        let owned = |(name, value): (&str, KeyValue)| (name.to_owned(), value);
        let names = ["a", "b", "c", "calico"].map(str::to_owned).into();
        let nodes = judged(
            names,
            &leases.map(owned).into(),
            &records.map(owned).into(),
            now,
        );
        let seen: Vec<_> = nodes.iter().map(|n| (&*n.node, n.state)).collect();
        assert_eq!(
            seen,
            [
                ("c", NodeState::Silent),
                ("b", NodeState::Degraded),
                ("a", NodeState::Healthy),
                ("calico", NodeState::Foreign),
            ]
        );
        assert_eq!(nodes[1].last_seen_seconds, Some(10));
    }
}
