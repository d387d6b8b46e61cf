//! Waiting for routes, never making them: a subscription says "look again", the kernel's own lookup
//! says whether.
//!
//! On the host: until packets for the pod go to its interface. That route is the agent's work. In
//! the pod: until the kernel's own route to an IPv6 address is there. The kernel adds it, and joins
//! the address's solicited-node group (RFC 4291 §2.7.1), some time after it has acknowledged the
//! address, and the first packet in between would cost a second.

use std::net::IpAddr;
use std::time::Duration;

use caracal_model::{Family, Prefix};
use futures_util::StreamExt;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteFlags, RouteType};
use rtnetlink::{MulticastGroup, RouteMessageBuilder};

use super::link::{KernelError, Link, Links};
use super::netns::Netns;
use super::pod_routes::RouteAttributes;

type Messages = futures_util::stream::BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>;

/// A subscription to a namespace's routes. Opened before that which brings the route, so that
/// nothing is missed.
pub(crate) struct RouteWait {
    links: Links,
    messages: Messages,
}

/// Why the wait ended without the route.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RouteWaitError {
    /// The agent did not program the route in time.
    #[error(
        "no route to {missing} on {interface} after {seconds} s; is the agent of this node running? \
         See `caracal status` on node {node}",
        missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Missing {
        /// Prefixes without a route.
        missing: Vec<Prefix>,
        /// The host side interface.
        interface: String,
        /// How long was waited.
        seconds: u32,
        node: String,
    },
    /// The kernel could not be asked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl RouteWait {
    /// Subscribes in this thread's namespace.
    ///
    /// # Errors
    /// [`KernelError::Socket`].
    pub(crate) fn subscribe() -> Result<Self, KernelError> {
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, handle, messages) =
            rtnetlink::new_multicast_connection(&groups).map_err(KernelError::Socket)?;
        tokio::spawn(connection);
        Ok(Self {
            links: Links { handle },
            messages: messages.map(|(message, _)| message).boxed(),
        })
    }

    /// Subscribes in a pod's namespace.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) fn inside(netns: &Netns) -> Result<Self, KernelError> {
        let runtime = tokio::runtime::Handle::current();
        netns.run(move || {
            let _guard = runtime.enter();
            Self::subscribe()
        })?
    }

    /// Waits until the pod's kernel takes packets for its own IPv6 addresses on the link. Gives up
    /// after a while: the address is there, only the first packet may be slow.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) async fn wait_for_addresses(
        mut self,
        link: &Link,
        addresses: &[Prefix],
    ) -> Result<(), KernelError> {
        const LIMIT: Duration = Duration::from_secs(2);
        let mut missing = addresses.to_vec();
        missing.retain(|address| address.family() == Family::Ipv6);
        match tokio::time::timeout(
            LIMIT,
            self.read_missing(RouteType::Local, link, &mut missing),
        )
        .await
        {
            Ok(result) => result,
            Err(_elapsed) => {
                tracing::warn!(?missing, link = link.name, "the address is slow to come up");
                Ok(())
            }
        }
    }

    /// Waits until the kernel routes all `prefixes` to the link, at most `seconds`.
    ///
    /// # Errors
    /// [`RouteWaitError`].
    pub(crate) async fn wait(
        mut self,
        link: &Link,
        prefixes: &[Prefix],
        seconds: u32,
        node: &str,
    ) -> Result<(), RouteWaitError> {
        let mut missing = prefixes.to_vec();
        let limit = Duration::from_secs(u64::from(seconds));
        let waited = tokio::time::timeout(
            limit,
            self.read_missing(RouteType::Unicast, link, &mut missing),
        )
        .await;
        match waited {
            Ok(result) => Ok(result?),
            Err(_elapsed) => Err(RouteWaitError::Missing {
                missing,
                interface: link.name.clone(),
                seconds,
                node: node.to_owned(),
            }),
        }
    }

    async fn read_missing(
        &mut self,
        kind: RouteType,
        link: &Link,
        missing: &mut Vec<Prefix>,
    ) -> Result<(), KernelError> {
        loop {
            let mut rest = Vec::new();
            for prefix in missing.iter() {
                if !has_route(&self.links, kind, link, prefix).await? {
                    rest.push(*prefix);
                }
            }
            *missing = rest;
            if missing.is_empty() {
                return Ok(());
            }
            // An overrun arrives as another payload and means the same: look again.
            loop {
                match self.messages.next().await {
                    Some(message) if concerns(&message, missing) => break,
                    Some(_) => {}
                    // No more news; the deadline ends it.
                    None => std::future::pending().await,
                }
            }
        }
    }
}

fn concerns(message: &NetlinkMessage<RouteNetlinkMessage>, missing: &[Prefix]) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
            let mut seen = RouteAttributes::default();
            seen.read(route);
            seen.destination
                .is_some_and(|ip| missing.iter().any(|p| p.address() == ip))
        }
        NetlinkPayload::InnerMessage(_) => false,
        _ => true,
    }
}

/// True when the kernel sends packets for exactly the prefix to the link.
///
/// # Errors
/// [`KernelError::Refused`].
pub(crate) async fn is_routed(
    host: &Links,
    link: &Link,
    prefix: &Prefix,
) -> Result<bool, KernelError> {
    has_route(host, RouteType::Unicast, link, prefix).await
}

/// The interface of the kernel's route to just this address, whether to a workload, to another node
/// or to itself.
///
/// # Errors
/// [`KernelError::Refused`].
pub(crate) async fn host_route(links: &Links, address: IpAddr) -> Result<Option<u32>, KernelError> {
    let prefix = Prefix::host(address);
    for kind in [RouteType::Unicast, RouteType::Local] {
        if let Some(seen) = exact(links, kind, &prefix).await? {
            return Ok(seen.oif);
        }
    }
    Ok(None)
}

async fn has_route(
    links: &Links,
    kind: RouteType,
    link: &Link,
    prefix: &Prefix,
) -> Result<bool, KernelError> {
    let seen = exact(links, kind, prefix).await?;
    Ok(seen.is_some_and(|seen| seen.oif == Some(link.index)))
}

/// The route of a kind that the kernel takes for a prefix, when it is for just this prefix.
async fn exact(
    links: &Links,
    kind: RouteType,
    prefix: &Prefix,
) -> Result<Option<RouteAttributes>, KernelError> {
    let mut question = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(prefix.address(), prefix.len())
        .expect("MODEL-2: the length fits the family")
        .build();
    question.header.flags = RouteFlags::FibMatch;
    let mut answer = Box::pin(links.handle.route().get(question).execute());
    match answer.next().await {
        None => Ok(None),
        // "Unreachable", "prohibited", "invalid": a route of another kind or none at all.
        Some(Err(rtnetlink::Error::NetlinkError(_))) => Ok(None),
        Some(Err(error)) => Err(KernelError::refused(format!("look up {prefix}"))(error)),
        Some(Ok(route)) => {
            let mut seen = RouteAttributes::default();
            seen.read(&route);
            let exact = route.header.destination_prefix_length == prefix.len()
                && seen.destination == Some(prefix.address());
            Ok((exact && route.header.kind == kind).then_some(seen))
        }
    }
}
