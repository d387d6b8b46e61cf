//! The node-address watcher: follows a change of the node's own address while the node runs, where
//! the address is detected (`IP=autodetect`). An address that is still on an interface stays the
//! node's: only one that went away is looked for again, by the method of the start, so that a new
//! interface never moves a node. An address that was given (`IP=10.0.0.1/24`) is never changed; the
//! agent's plan says when no interface carries it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use caracal_agent::{AgentStatus, Links};
use caracal_datastore::{Store, View};
use caracal_model::{Cidr, Family, Node, Problem, ProblemCode, Timestamp};
use tokio::sync::watch;

use crate::config::{AddressChoice, Config};
use crate::node::membership::{address, startup};
use crate::node::problems::ProblemReporter;
use crate::register::{self, Addresses};

/// A change of address is a deletion and an addition: what is seen this long after the first of
/// them counts.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause after a failed try.
const RETRY: Duration = Duration::from_secs(5);

/// Follows for ever. What fails is reported as problems and tried again.
///
/// `store` opens a new connection: those that are open come from the address that went away, and
/// are dead.
pub(crate) async fn watch_node_address<S: Store>(
    store: impl Fn() -> anyhow::Result<S>,
    config: Arc<Config>,
    view: watch::Receiver<View>,
    mut kernel: watch::Receiver<Arc<AgentStatus>>,
    problems: ProblemReporter,
) {
    loop {
        let links = Arc::clone(&kernel.borrow_and_update().links);
        let known = view.borrow().clone();
        let node = known.snapshot.nodes.get(&config.node);
        let moved = !known.forbids_writing()
            && node.is_some_and(|node| !lost(&config, node, &links).is_empty());
        let mut found = Vec::new();
        if moved {
            tokio::time::sleep(SETTLE).await;
            let followed = match store() {
                Ok(store) => follow(&store, &config).await,
                Err(error) => Err(error),
            };
            if let Err(error) = followed {
                found.push(Problem {
                    code: ProblemCode::NodeAddress,
                    subject: config.node.to_string(),
                    reason: format!(
                        "the node's address went away and no other is registered: {error:#}"
                    ),
                });
            }
        }
        let failed = !found.is_empty();
        problems.replace(found);
        if failed {
            tokio::time::sleep(RETRY).await;
        } else if kernel.changed().await.is_err() {
            return;
        }
    }
}

/// Families whose detected address is on no interface any more, in this form.
fn lost(config: &Config, node: &Node, links: &Links) -> Vec<Family> {
    let there = |cidr: Cidr| links.iter().any(|link| link.addresses.contains(&cidr));
    let choices = [(Family::Ipv4, &config.ip), (Family::Ipv6, &config.ip6)];
    let detected = |choice: &AddressChoice| {
        matches!(
            choice,
            AddressChoice::Autodetect {
                only_if_unset: false,
                ..
            }
        )
    };
    // Before the first pass no interface is known.
    let known = links.iter().next().is_some();
    choices
        .into_iter()
        .filter(|(_, choice)| known && detected(choice))
        .map(|(family, _)| family)
        .filter(|family| node.spec.cidr(*family).is_some_and(|cidr| !there(cidr)))
        .collect()
}

async fn follow<S: Store>(store: &S, config: &Config) -> anyhow::Result<()> {
    let links = caracal_agent::read_links().await?;
    let Some((node, _)) = register::read_node(store, &config.node).await? else {
        return Ok(());
    };
    let lost = lost(config, &node, &links);
    if lost.is_empty() {
        return Ok(());
    }
    let found = address::resolve(config, Some(&node), &startup::of_links(&links))?;
    let only = |family, cidr: Option<Cidr>| cidr.filter(|_| lost.contains(&family));
    let addresses = Addresses {
        v4: only(Family::Ipv4, found.v4),
        v6: only(Family::Ipv6, found.v6),
    };
    let there = startup::addresses(&startup::of_links(&links));
    let now = Timestamp::from(SystemTime::now());
    register::register(store, config, addresses, &there, now).await?;
    tracing::info!(node = %config.node, v4 = ?addresses.v4, v6 = ?addresses.v6, "the node's address has changed");
    Ok(())
}
