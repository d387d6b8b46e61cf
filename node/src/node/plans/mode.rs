//! Effect of a change of a pool's mode on each node, computed by the agent's own plan over a
//! snapshot that is not written yet.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_agent::{Assumed, Desired, Learned, PlanChange, RouteKind, compare_plans, forecast};
use caracal_ipam::TunnelKind;
use caracal_model::{
    BlockOwner, EncapMode, InsertEach, IpPool, Key, Kind, NodeName, Prefix, SharedMap, Snapshot,
};
use caracal_topologies::PlanOptions;
use serde_json::{Value, json};

use super::DRAWN;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModeError {
    /// No such pool.
    #[error("there is no pool {pool}; the pools are: {known}")]
    NoPool {
        /// As asked for.
        pool: String,
        /// Names of the existing pools.
        known: String,
    },
    /// The pool would not be valid.
    #[error("pool {pool} cannot have these modes: {reason}")]
    Invalid { pool: String, reason: String },
}

/// The modes that are asked for; what is `None` stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    pub(crate) ipip: Option<EncapMode>,
    pub(crate) vxlan: Option<EncapMode>,
}

/// The plan of a whole cluster.
pub(crate) struct ModePlan {
    /// The key of the pool.
    pub(crate) key: String,
    /// The revision of the pool that was read.
    pub(crate) revision: i64,
    /// The pool as it is and as it would be.
    pub(crate) pool: (IpPool, IpPool),
    /// From what to what, in words.
    pub(crate) summary: String,
    /// Nodes with what changes on them.
    pub(crate) nodes: BTreeMap<NodeName, PlanChange>,
    /// From one node to another, where few enough nodes are there to be drawn.
    pub(crate) ways: BTreeMap<(NodeName, NodeName), Ways>,
}

/// How many routes there are of one kind before and another one after; `None` = no route.
pub(crate) type Ways = BTreeMap<(Option<RouteKind>, Option<RouteKind>), usize>;

impl ModePlan {
    /// Plans a change.
    pub(crate) fn new(
        snapshot: &Snapshot,
        pool: &str,
        modes: Modes,
        assumed: &Assumed,
    ) -> Result<Self, ModeError> {
        let mut pools = snapshot.pools.iter();
        let found = pools.find(|(name, _)| name.as_str() == pool);
        let (_, before) = found.ok_or_else(|| no_pool(snapshot, pool))?;
        let mut after = IpPool::clone(before);
        after.spec.ipip_mode = modes.ipip.unwrap_or(after.spec.ipip_mode);
        after.spec.vxlan_mode = modes.vxlan.unwrap_or(after.spec.vxlan_mode);
        let value = after.to_json();
        IpPool::from_json(&value).map_err(|reason| ModeError::Invalid {
            pool: pool.to_owned(),
            reason: reason.to_string(),
        })?;
        let key = Key::resource(Kind::IpPool, pool).to_path();
        let mut changed = snapshot.clone();
        changed.apply(&key, Some(&value), snapshot.revision + 1);
        promise_addresses(&mut changed);
        let mut announced = Announced::from_snapshot(snapshot);
        let is_drawn = snapshot.nodes.len() <= DRAWN;
        let range = before.spec.prefix();
        let mut ways = BTreeMap::new();
        let nodes = snapshot
            .nodes
            .keys()
            .map(|me| {
                let learned = announced.to(me);
                let plan = |of: &Snapshot| forecast(of, me, learned, assumed);
                let plans = (plan(snapshot), plan(&changed));
                if is_drawn {
                    let others = ways_to_others(snapshot, range, &plans.0, &plans.1);
                    let others = others.into_iter().filter(|(other, _)| other != me);
                    ways.extend(others.map(|(other, way)| ((me.clone(), other), way)));
                }
                (me.clone(), compare_plans(&plans.0, &plans.1))
            })
            .insert_each();
        Ok(Self {
            key,
            revision: before.revision,
            summary: format!(
                "pool {pool}: ipipMode {} → {}, vxlanMode {} → {}",
                before.spec.ipip_mode,
                after.spec.ipip_mode,
                before.spec.vxlan_mode,
                after.spec.vxlan_mode
            ),
            pool: (IpPool::clone(before), after),
            nodes,
            ways,
        })
    }

    /// Nodes that would be stranded, with the reason.
    pub(crate) fn stranded(&self) -> Vec<(&NodeName, &str)> {
        let each = |(node, change): (_, &'_ PlanChange)| -> Vec<_> {
            let reasons = &change.stranded;
            (0..reasons.len()).map(|n| (node, n)).collect()
        };
        let all = self.nodes.iter().flat_map(each);
        all.map(|(node, n)| (node, self.nodes[node].stranded[n].as_str()))
            .collect()
    }

    pub(crate) fn json(&self) -> Value {
        let node = |(name, change): (&NodeName, _)| (name.to_string(), change_json(change));
        let nodes: serde_json::Map<String, Value> = self.nodes.iter().map(node).collect();
        json!({"change": self.summary, "revision": self.revision, "nodes": nodes})
    }
}

/// What changes on a node.
pub(crate) fn change_json(change: &PlanChange) -> Value {
    let come = change.devices_come.iter();
    let come = come.map(|(name, mtu)| json!({"name": name, "mtu": mtu}));
    json!({
        "devicesCome": come.collect::<Vec<_>>(),
        "devicesGo": change.devices_go,
        "routes": ways_json(&change.routes),
        "workloadMtu": {"before": change.workload_mtu.0, "after": change.workload_mtu.1},
        "stranded": change.stranded,
    })
}

/// Routes of each kind before and after.
pub(crate) fn ways_json(ways: &Ways) -> Vec<Value> {
    let word = |kind: &Option<RouteKind>| kind.map(RouteKind::as_str);
    let mut told = Vec::new();
    for ((from, to), count) in ways {
        told.push(json!({"from": word(from), "to": word(to), "count": count}));
    }
    told
}

fn no_pool(snapshot: &Snapshot, pool: &str) -> ModeError {
    let known: Vec<String> = snapshot.pools.keys().map(ToString::to_string).collect();
    ModeError::NoPool {
        pool: pool.to_owned(),
        known: known.join(", "),
    }
}

/// The routes of a plan and of another one that lead to blocks of a pool, by who has the block.
fn ways_to_others(
    snapshot: &Snapshot,
    pool: Prefix,
    before: &Desired,
    after: &Desired,
) -> BTreeMap<NodeName, Ways> {
    let kind = |of: &Desired, prefix| of.routes.get(prefix).map(|planned| planned.kind);
    let mut others: BTreeMap<NodeName, Ways> = BTreeMap::new();
    for (prefix, block) in &snapshot.blocks {
        let owner = block.owner.as_ref().and_then(BlockOwner::node);
        let Some(owner) = owner.filter(|_| pool.covers(prefix)) else {
            continue;
        };
        let way = (kind(before, prefix), kind(after, prefix));
        let ways = others.entry(owner.clone()).or_default();
        *ways.entry(way).or_default() += 1;
    }
    others
}

impl fmt::Display for ModePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        for (node, change) in &self.nodes {
            writeln!(f, "{node}: {}", sentence(change))?;
        }
        Ok(())
    }
}

fn sentence(change: &PlanChange) -> String {
    let mut parts = Vec::new();
    let come = change.devices_come.iter();
    parts.extend(come.map(|(name, mtu)| format!("device {name} (mtu {mtu}) comes")));
    let kind = |kind: &Option<RouteKind>| kind.map_or("none", RouteKind::as_str);
    for ((from, to), count) in &change.routes {
        parts.push(format!("{count} routes {} → {}", kind(from), kind(to)));
    }
    let go = change.devices_go.iter();
    parts.extend(go.map(|name| format!("device {name} goes")));
    let (before, after) = change.workload_mtu;
    if before != after {
        let note = if after < before {
            "; running pods keep theirs until they are made anew"
        } else {
            ""
        };
        parts.push(format!("MTU of new pods {before} → {after}{note}"));
    }
    if parts.is_empty() {
        return "nothing changes".to_owned();
    }
    parts.join(", ")
}

/// Gives each node the tunnel addresses that it will take from IPAM, where a pool would lend it
/// one. The addresses are those of benchmarks (RFC 2544, RFC 5180): only that there is one matters
/// here.
fn promise_addresses(snapshot: &mut Snapshot) {
    let names: Vec<NodeName> = snapshot.nodes.keys().cloned().collect();
    for (n, name) in names.iter().enumerate() {
        let mut node = caracal_model::Node::clone(&snapshot.nodes[name]);
        let low = u16::try_from(n % 0x1_0000).unwrap_or_default();
        for kind in TunnelKind::ALL {
            let qualifies = snapshot
                .pools
                .values()
                .any(|pool| kind.qualifies(pool, &node.metadata.labels));
            if !qualifies || kind.is_wireguard() || kind.current(&node).is_some() {
                continue;
            }
            let address: IpAddr = match kind {
                TunnelKind::VxlanV6 => Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, low).into(),
                _ => {
                    let [high, low] = low.to_be_bytes();
                    Ipv4Addr::new(198, 18, high, low).into()
                }
            };
            super::super::set_tunnel_address(&mut node, kind, Some(address));
        }
        let revision = snapshot.revision;
        snapshot.apply(&Key::node(name).to_path(), Some(&node.to_json()), revision);
    }
}

/// Which node announces what, when BGP works.
struct Announced {
    by: BTreeMap<Prefix, (NodeName, Learned)>,
    /// Nodes with at least one peer.
    speaking: std::collections::BTreeSet<NodeName>,
    view: SharedMap<Prefix, Learned>,
}

impl Announced {
    fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut announced = Self {
            by: BTreeMap::new(),
            speaking: std::collections::BTreeSet::new(),
            view: SharedMap::default(),
        };
        for name in snapshot.nodes.keys() {
            let config = caracal_topologies::plan(snapshot, name, &PlanOptions::default()).config;
            if config.peers.is_empty() {
                continue;
            }
            announced.speaking.insert(name.clone());
            for (prefix, origination) in &config.originate {
                if let Some(hop) = origination.next_hop {
                    let learned = (name.clone(), Learned::internal(hop));
                    announced.by.insert(*prefix, learned);
                }
            }
        }
        announced
    }

    /// Routes that a node learns: all that others announce, if it has a peer at all.
    fn to(&mut self, me: &NodeName) -> &SharedMap<Prefix, Learned> {
        let heard = self.speaking.contains(me);
        let others = self.by.iter().filter(|(_, (by, _))| heard && by != me);
        self.view = others.map(|(p, (_, l))| (*p, l.clone())).collect();
        &self.view
    }
}
