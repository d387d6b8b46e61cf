//! The addresses of the datastore's endpoints, which no route may cover: see
//! [`caracal_agent::free_lifelines`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use caracal_agent::{Overrides, Settings};
use caracal_model::{InsertEach, NodeName, Snapshot};
use tokio::sync::watch;

use crate::kernel_answer::await_kernel;

/// Longest time for names to be looked up: what can be reached without them is not kept waiting.
const LOOKUP: Duration = Duration::from_secs(2);
/// Interval of name look-ups.
const INTERVAL: Duration = Duration::from_secs(60);

/// Host and port.
pub(crate) type Hosts = Vec<(String, u16)>;

/// The addresses of endpoints. A name that is not found has none.
pub(crate) async fn look_up(hosts: &Hosts) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::new();
    for (host, port) in hosts {
        if let Ok(address) = host.parse() {
            addresses.insert(address);
            continue;
        }
        let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host.as_str(), *port)));
        match found.await {
            Ok(Ok(found)) => addresses.extend(found.map(|a| a.ip())),
            Ok(Err(error)) => tracing::debug!(host, %error, "an endpoint's name is not found"),
            Err(_) => tracing::debug!(host, "an endpoint's name is not found in time"),
        }
    }
    addresses
}

/// Address and port of each endpoint. `known`: what names were found to be.
pub(crate) fn endpoints(hosts: &Hosts, known: &BTreeSet<IpAddr>) -> BTreeSet<SocketAddr> {
    let of = |(host, port): &(String, u16)| -> Vec<SocketAddr> {
        match host.parse::<IpAddr>() {
            Ok(address) => vec![(address, *port).into()],
            Err(_) => known.iter().map(|a| (*a, *port).into()).collect(),
        }
    };
    hosts.iter().flat_map(of).insert_each()
}

/// Looks names up again and again. A name that has no address any more keeps its last one: others
/// may still be connected.
pub(crate) async fn resolve_lifelines(hosts: Hosts, addresses: watch::Sender<BTreeSet<IpAddr>>) {
    if hosts.iter().all(|(host, _)| host.parse::<IpAddr>().is_ok()) {
        addresses.closed().await;
        return;
    }
    while !addresses.is_closed() {
        tokio::time::sleep(INTERVAL).await;
        let found = look_up(&hosts).await;
        addresses.send_if_modified(|known| {
            let changed = !found.is_empty() && *known != found;
            if changed {
                *known = found;
            }
            changed
        });
    }
}

/// Takes away a blackhole of ours that an earlier process left between this node and its datastore.
pub(crate) async fn free(
    me: &NodeName,
    felix: &Overrides,
    addresses: &BTreeSet<IpAddr>,
    report: impl Fn(String),
) {
    // The datastore's setting of the protocol is not known yet; usually there is none.
    let (settings, _) = Settings::resolve(&Settings::default(), &Snapshot::default(), me, felix);
    let protocol = settings.route_protocol;
    let free = async || Ok(caracal_agent::free_lifelines(protocol, addresses).await?);
    match await_kernel(free, report).await {
        Ok(freed) => {
            for (route, result) in freed {
                match result {
                    Ok(()) => tracing::warn!(route, "it stood between this node and its datastore"),
                    Err(reason) => tracing::error!(
                        route,
                        reason,
                        "it stands between this node and its datastore, and stays"
                    ),
                }
            }
        }
        Err(error) => tracing::error!(%error, "cannot see whether a route covers the datastore"),
    }
}
