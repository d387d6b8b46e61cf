//! Addresses of this node's tunnel devices: claimed from IPAM under Calico's handles, written into
//! the Node.
//!
//! An address in the Node is the word that the device receives: other nodes send through a tunnel
//! to whoever names one. So the first address is written only once the kernel has the device up
//! (receive before send).
//!
//! Level-triggered: whenever the pools, their use or the Node change, each kind of tunnel is looked
//! at again. A pool that hands out nothing new takes nothing away: while workloads have addresses
//! of an encapsulated pool, the tunnel's address stays (decision 0168). An address goes into the
//! Node only once IPAM holds it for us; an old one is released only after the Node names another.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use caracal_agent::{AgentStatus, IPIP_DEVICE, vxlan_device};
use caracal_datastore::{Store, View};
use caracal_ipam::{Client, TunnelKind};
use caracal_model::{
    InsertEach, IpPool, Node, NodeBgp, NodeName, PoolName, Problem, ProblemCode, Snapshot,
    Timestamp,
};
use tokio::sync::watch;

use crate::node::problems::ProblemReporter;
use crate::register::update_node;

/// Pause after a failed try; doubled up to the second value.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Inputs of the decision: while they are unchanged, IPAM need not be asked.
#[derive(Clone, Debug, PartialEq)]
struct Inputs {
    pools: Vec<IpPool>,
    /// Encapsulated pools of which workloads have addresses.
    in_use: BTreeSet<PoolName>,
    node: Option<Node>,
}

impl Inputs {
    fn from_snapshot(snapshot: &Snapshot, me: &NodeName) -> Self {
        Self {
            pools: snapshot
                .pools
                .values()
                .map(|pool| IpPool::clone(pool))
                .collect(),
            in_use: pools_in_use(snapshot),
            node: snapshot.nodes.get(me).map(|node| Node::clone(node)),
        }
    }
}

/// The pools that some kind of tunnel carries and of which workloads have addresses.
fn pools_in_use(snapshot: &Snapshot) -> BTreeSet<PoolName> {
    let carried = |pool: &IpPool| {
        let mut kinds = TunnelKind::ALL.into_iter().filter(|k| !k.is_wireguard());
        kinds.any(|kind| kind.carries(pool))
    };
    let pools = snapshot.pools.iter();
    let used =
        pools.filter(|(_, pool)| carried(pool) && snapshot.has_workload_in(&pool.spec.prefix()));
    used.map(|(name, _)| name.clone()).insert_each()
}

/// Feeds that the addresses depend on.
pub(crate) struct TunnelInputs {
    /// Pools and our Node.
    pub(crate) view: watch::Receiver<View>,
    /// The devices that are up.
    pub(crate) kernel: watch::Receiver<Arc<AgentStatus>>,
}

/// How a look at one kind of tunnel ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TunnelOutcome {
    /// The Node names what it has to.
    Right,
    /// The Node was changed.
    Written,
    /// There is an address, but no device yet that receives.
    NoDevice,
}

/// Keeps the addresses right for ever. What fails is reported as problems and tried again.
pub(crate) async fn assign_tunnel_addresses<S: Store>(
    store: S,
    client: Client<S>,
    me: NodeName,
    mut feeds: TunnelInputs,
    problems: ProblemReporter,
) {
    let mut done: Option<Inputs> = None;
    let mut pause = RETRY.0;
    loop {
        // Never write on the basis of a last snapshot or of a faulty view.
        let known = feeds
            .view
            .wait_for(|view| view.synced && view.fault.is_none());
        if known.await.is_err() {
            return;
        }
        let inputs = Inputs::from_snapshot(&feeds.view.borrow_and_update().snapshot, &me);
        let up = feeds.kernel.borrow_and_update().kernel.tunnels.clone();
        if done.as_ref() != Some(&inputs) {
            let (found, waiting) = ensure(&store, &client, &me, &inputs.in_use, &up).await;
            let failed = !found.is_empty();
            problems.warn(found);
            if failed {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
                continue;
            }
            pause = RETRY.0;
            done = (!waiting).then_some(inputs);
        }
        let changed = tokio::select! {
            changed = feeds.view.changed() => changed,
            changed = feeds.kernel.changed(), if done.is_none() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Looks at each kind of tunnel once; says what failed, and whether a device is waited for.
async fn ensure<S: Store>(
    store: &S,
    client: &Client<S>,
    me: &NodeName,
    in_use: &BTreeSet<PoolName>,
    up: &[String],
) -> (Vec<Problem>, bool) {
    let mut problems = Vec::new();
    let mut waiting = false;
    for kind in TunnelKind::ALL {
        // The second call releases what the Node named before the first one.
        for _ in 0..2 {
            match ensure_one(store, client, (me, kind), in_use, up).await {
                Ok(TunnelOutcome::Written) => {}
                Ok(TunnelOutcome::Right) => break,
                Ok(TunnelOutcome::NoDevice) => {
                    waiting = true;
                    break;
                }
                Err(error) => {
                    problems.push(Problem {
                        code: ProblemCode::IpamTunnelAddress,
                        subject: kind.handle(me).to_string(),
                        reason: format!("no tunnel address: {error:#}"),
                    });
                    break;
                }
            }
        }
    }
    (problems, waiting)
}

/// The device of a kind of tunnel.
const fn device(kind: TunnelKind) -> &'static str {
    match kind {
        TunnelKind::Ipip => IPIP_DEVICE,
        TunnelKind::Vxlan | TunnelKind::VxlanV6 => vxlan_device(kind.family()),
        TunnelKind::Wireguard => "wireguard.cali",
        TunnelKind::WireguardV6 => "wg-v6.cali",
    }
}

async fn ensure_one<S: Store>(
    store: &S,
    client: &Client<S>,
    (me, kind): (&NodeName, TunnelKind),
    in_use: &BTreeSet<PoolName>,
    up: &[String],
) -> anyhow::Result<TunnelOutcome> {
    if kind.is_wireguard() {
        // Nobody makes the device here: what Calico left is kept or given up, and nothing new is
        // taken.
        let stored = crate::register::read_node(store, me).await?;
        if stored.is_none_or(|(node, _)| kind.current(&node).is_none()) {
            return Ok(TunnelOutcome::Right);
        }
    }
    let wanted = client.ensure_tunnel_address(kind, me, in_use).await?;
    let stored = crate::register::read_node(store, me).await?;
    let has = stored.as_ref().and_then(|(node, _)| kind.current(node));
    if has == wanted {
        return Ok(TunnelOutcome::Right);
    }
    if has.is_none() && !up.iter().any(|name| name == device(kind)) {
        return Ok(TunnelOutcome::NoDevice);
    }
    let now = Timestamp::from(SystemTime::now());
    update_node(store, me, now, |node| set(node, kind, wanted)).await?;
    tracing::info!(?kind, address = ?wanted, before = ?has, "tunnel address");
    Ok(TunnelOutcome::Written)
}

/// Writes the address into the field of its kind.
pub(crate) fn set(node: &mut Node, kind: TunnelKind, address: Option<IpAddr>) {
    let v4 = match address {
        Some(IpAddr::V4(v4)) => Some(v4),
        _ => None,
    };
    match kind {
        TunnelKind::Ipip => {
            let mut bgp = node.spec.bgp.take().unwrap_or_default();
            bgp.ipv4_ipip_tunnel_addr = v4;
            // Calico's readers want `bgp` absent rather than empty.
            node.spec.bgp = (bgp != NodeBgp::default()).then_some(bgp);
        }
        TunnelKind::Vxlan => node.spec.ipv4_vxlan_tunnel_addr = v4,
        TunnelKind::VxlanV6 => {
            node.spec.ipv6_vxlan_tunnel_addr = match address {
                Some(IpAddr::V6(v6)) => Some(v6),
                _ => None,
            };
        }
        TunnelKind::Wireguard | TunnelKind::WireguardV6 => {
            node.spec.set_wireguard_address(kind.family(), address);
        }
    }
}
