//! Checks the data path of a pool while somebody changes its mode: echoes to addresses of the pool
//! on other nodes, whose answers come back only when both directions work. See
//! [`crate::mode_check`]. It changes nothing but its own report.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{AgentStatus, Echo};
use caracal_datastore::{Rarely, Store, View};
use caracal_model::{EncapMode, Family, InsertEach, IpPool, Node, NodeName, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mode_check::{ModeCheckReport, PeerAnswer, basis, report_path, wanted};
use crate::node::report;

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(500);
/// Limit of the wait for an answer.
const PATIENCE: Duration = Duration::from_millis(800);
/// The next nodes by name that each node tries, so that each is tried by as many.
const NEXT: usize = 4;
/// Others that it tries, chosen anew for each check.
const OTHERS: usize = 4;
/// Workloads of a node that are tried.
const WORKLOADS: usize = 2;

/// Reports until a channel closes. A report that cannot be written is written later.
pub(crate) async fn answer_mode_checks<S: Store>(
    store: S,
    me: NodeName,
    mut view: watch::Receiver<View>,
    mut kernel: watch::Receiver<Arc<AgentStatus>>,
) {
    // `None` = unknown: a run before may have left a report.
    let mut written: Option<Option<ModeCheckReport>> = None;
    let mut told = Rarely::default();
    loop {
        let reconciled = kernel.borrow_and_update().kernel.revision;
        let (snapshot, followed) = {
            let view = view.borrow_and_update();
            (Arc::clone(&view.snapshot), view.followed(reconciled))
        };
        let check = wanted(&snapshot);
        // Also who has nothing to check any more says so once its kernel has the pool without it.
        let report = match check {
            _ if followed < basis(&snapshot) => None,
            None => Some(None),
            Some((pool, check)) => Some(Some(check_mode(&snapshot, &me, pool, check).await)),
        };
        if let Some(report) = report
            && written.as_ref() != Some(&report)
        {
            match report::store_report(&store, report_path(&me), report.as_ref()).await {
                Ok(()) => {
                    written = Some(report);
                    told.over();
                }
                Err(error) if told.is_due(Instant::now(), &error.to_string()) => {
                    tracing::warn!(%error, "cannot report on the check of a mode");
                }
                Err(_) => {}
            }
        }
        let idle = check.is_none() && written == Some(None);
        let alive = tokio::select! {
            changed = view.changed() => changed,
            changed = kernel.changed(), if !idle => changed,
            () = tokio::time::sleep(PAUSE), if !idle => Ok(()),
        };
        if alive.is_err() {
            return;
        }
    }
}

/// One round, all nodes side by side.
async fn check_mode(
    snapshot: &Snapshot,
    me: &NodeName,
    pool: &IpPool,
    check: &str,
) -> ModeCheckReport {
    let sample = sample(snapshot, me, check);
    let probes = sample.iter().map(|name| async move {
        let node = &snapshot.nodes[name];
        (name.clone(), ask(snapshot, pool, name, node).await)
    });
    ModeCheckReport {
        check: check.to_owned(),
        basis: basis(snapshot),
        nodes: futures_util::future::join_all(probes)
            .await
            .into_iter()
            .insert_each(),
    }
}

/// The nodes that this one tries.
fn sample(snapshot: &Snapshot, me: &NodeName, check: &str) -> BTreeSet<NodeName> {
    let after = snapshot.nodes.range(me.clone()..).skip(1);
    let before = snapshot.nodes.range(..me.clone());
    let ring: Vec<&NodeName> = after.chain(before).map(|(name, _)| name).collect();
    let (next, rest) = ring.split_at(ring.len().min(NEXT));
    let mut rest = rest.to_vec();
    rest.sort_by_cached_key(|name| {
        let mut hasher = DefaultHasher::new();
        (check, me, name).hash(&mut hasher);
        hasher.finish()
    });
    let chosen = next.iter().copied().chain(rest.into_iter().take(OTHERS));
    chosen.cloned().insert_each()
}

async fn ask(snapshot: &Snapshot, pool: &IpPool, name: &NodeName, node: &Node) -> PeerAnswer {
    let family = pool.spec.prefix().family();
    let targets = targets(snapshot, pool, name, node);
    let Some(address) = node.spec.address(family) else {
        return PeerAnswer::Unknown(format!("it has no {family} address"));
    };
    if targets.is_empty() {
        return PeerAnswer::Unknown("it uses no address of the pool".to_owned());
    }
    for target in &targets {
        if Echo::to(*target).is_answered(PATIENCE).await {
            return PeerAnswer::Answers;
        }
    }
    if Echo::to(address).is_answered(PATIENCE).await {
        PeerAnswer::Silent(targets)
    } else {
        PeerAnswer::Unknown(format!("the node itself ({address}) answers no echo"))
    }
}

/// Addresses of the pool on a node: of the tunnel that its mode uses, and of workloads.
fn targets(snapshot: &Snapshot, pool: &IpPool, name: &NodeName, node: &Node) -> Vec<IpAddr> {
    let prefix = pool.spec.prefix();
    let family = prefix.family();
    let uses = |mode: EncapMode| mode != EncapMode::Never;
    let vxlan = node.spec.vxlan_address(family);
    let ipip = node.spec.ipip_address().map(IpAddr::from);
    let tunnel = match (uses(pool.spec.vxlan_mode), uses(pool.spec.ipip_mode)) {
        (true, _) => vxlan,
        (false, true) if family == Family::Ipv4 => ipip,
        _ => None,
    };
    let networks = snapshot.workload_networks_of(name);
    let addresses = networks.filter(|network| network.is_host());
    let inside = |address: &IpAddr| prefix.contains(*address);
    let workloads = addresses.map(|network| network.address()).filter(inside);
    let tunnel = tunnel.filter(inside);
    tunnel
        .into_iter()
        .chain(workloads.take(WORKLOADS))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn snapshot(nodes: usize, pool: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut put = |kind: &str, name: &str, spec: &str| {
            let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
            let name = name.rsplit('/').next().unwrap();
            let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{spec}}}}}"#);
            snapshot.apply(&path, Some(value.as_bytes()), 1);
        };
        for n in 0..nodes {
            let spec = format!(
                r#""ipv4VXLANTunnelAddr":"10.244.{n}.1","bgp":{{"ipv4Address":"10.0.0.{}/24","ipv4IPIPTunnelAddr":"10.9.{n}.1"}}"#,
                n + 1
            );
            put("nodes", &format!("n{n:02}"), &spec);
        }
        put("ippools", "p", &format!(r#""cidr":"10.244.0.0/16"{pool}"#));
        let spec =
            r#""node":"n01","interfaceName":"cali1","ipNetworks":["10.244.1.7/32","fd00::7/128"]"#;
        put("workloadendpoints", "default/w", spec);
        snapshot
    }

    #[test]
    fn every_node_is_tried_by_several() {
        let snapshot = snapshot(30, "");
        let mut tried = std::collections::BTreeMap::new();
        for me in snapshot.nodes.keys() {
            let sample = sample(&snapshot, me, "1");
            assert_eq!(sample.len(), NEXT + OTHERS);
            assert!(!sample.contains(me));
            for name in sample {
                *tried.entry(name).or_insert(0) += 1;
            }
        }
        assert_eq!(tried.len(), 30);
        assert!(tried.values().all(|n| *n >= NEXT), "{tried:?}");
        let alone = self::snapshot(1, "");
        assert_eq!(sample(&alone, &"n00".into(), "1").len(), 0);
    }

    #[test]
    fn targets_are_of_the_pool_and_of_its_mode() {
        let of = |pool: &str| {
            let snapshot = snapshot(3, pool);
            let pool = &**snapshot.pools.values().next().unwrap();
            let node = &snapshot.nodes["n01"];
            let targets = targets(&snapshot, pool, &"n01".into(), node);
            targets.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(""), ["10.244.1.7"]);
        assert_eq!(of(r#","vxlanMode":"Always""#), ["10.244.1.1", "10.244.1.7"]);
        // The IPIP addresses are of another pool, whose mode is another matter.
        assert_eq!(of(r#","ipipMode":"Always""#), ["10.244.1.7"]);
    }
}
