//! From nothing to a registered node: wait for the datastore, find our addresses, write our
//! resource and the cluster's defaults.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use caracal_datastore::{Rarely, Store};
use caracal_model::{Node, Timestamp};
use tokio::time::Instant;

use crate::config::{Backend, Config};
use crate::detect::Interface;
use crate::kernel_answer::await_kernel;
use crate::node::membership::address;
use crate::register::{self, RegisterError};

/// First and longest pause between tries while the datastore does not answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Registers this node; returns its resource. `report` gets what is being waited for.
pub(crate) async fn register<S: Store>(
    store: &S,
    config: &Config,
    interfaces: impl AsyncFn() -> anyhow::Result<Vec<Interface>>,
    report: impl Fn(String),
) -> anyhow::Result<Node> {
    let mut pause = RETRY.0;
    let mut told = Rarely::default();
    loop {
        let interfaces = await_kernel(&interfaces, &report).await?;
        let error = match attempt(store, config, &interfaces, None).await {
            Ok(node) => return Ok(node),
            Err(error) => error,
        };
        let waits = config.wait_for_datastore
            && error
                .downcast_ref::<RegisterError>()
                .is_some_and(|e| matches!(e, RegisterError::Store(e) if e.is_transient()));
        if !waits {
            return Err(error);
        }
        let reason = format!("waiting for the datastore: {error:#}");
        if told.is_due(Instant::now(), &reason) {
            tracing::warn!("{reason}");
        }
        report(reason);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Registers this node once. `guid`: the cluster's identity, when it is known.
pub(crate) async fn attempt<S: Store>(
    store: &S,
    config: &Config,
    interfaces: &[Interface],
    guid: Option<&str>,
) -> anyhow::Result<Node> {
    let stored = register::read_node(store, &config.node)
        .await?
        .map(|(node, _)| node);
    let addresses = address::resolve(config, stored.as_ref(), interfaces)?;
    let known = |family| {
        stored
            .as_ref()
            .is_some_and(|n| n.spec.address(family).is_some())
    };
    let none = addresses == register::Addresses::default()
        && !known(caracal_model::Family::Ipv4)
        && !known(caracal_model::Family::Ipv6);
    if none && config.backend != Backend::None {
        return Err(RegisterError::NoAddress.into());
    }
    let now = Timestamp::from(SystemTime::now());
    let node =
        register::register(store, config, addresses, &self::addresses(interfaces), now).await?;
    let host: Vec<_> = interfaces
        .iter()
        .flat_map(|i| i.addresses.iter().copied())
        .collect();
    for key in register::ensure_defaults(store, config, &host, guid, now).await? {
        tracing::info!(key, "created with defaults");
    }
    tracing::info!(node = %config.node, v4 = ?addresses.v4, v6 = ?addresses.v6, "registered");
    Ok(node)
}

/// This machine's interfaces, as detection wants them.
pub(crate) async fn interfaces() -> anyhow::Result<Vec<Interface>> {
    let links = caracal_agent::read_links()
        .await
        .context("reading the interfaces")?;
    Ok(of_links(&links))
}

/// Their addresses.
pub(crate) fn addresses(interfaces: &[Interface]) -> Vec<IpAddr> {
    let all = interfaces.iter().flat_map(|i| &i.addresses);
    all.map(|cidr| cidr.address).collect()
}

/// Interfaces as detection wants them.
pub(crate) fn of_links(links: &caracal_agent::Links) -> Vec<Interface> {
    let interface = |link: &caracal_agent::Link| Interface {
        index: link.index,
        name: link.name.to_string(),
        addresses: link.addresses.clone(),
    };
    links.iter().map(interface).collect()
}
