//! The addresses of an attachment, through Caracal's IPAM: an earlier call's are kept, else the wished
//! ones are taken, and all go by the handle.

use std::net::IpAddr;
use std::path::Path;

use caracal_datastore::store::Store;
use caracal_ipam::client::{Client, ClientError};
use caracal_ipam::error::{AssignError, AssignIpError, ReleaseError, Unreadable};
use caracal_ipam::request::{AssignIpRequest, AssignRequest, Target};
use caracal_model::names::{HandleId, NodeName};
use caracal_model::net::{Family, Prefix};
use caracal_model::resource::ip_pool::AllowedUse;
use caracal_model::txn::{Compare, KeyValue};

use crate::attachment::{Attachment, calicos_handle};
use crate::spec::Wishes;
use crate::turn::Turn;

/// An address of the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The address.
    pub address: IpAddr,
    /// The block it is from.
    pub block: Prefix,
}

/// What an attachment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The addresses, IPv4 first.
    pub held: Vec<Held>,
    /// When an earlier call took them: that the handle is still as it was read. An attachment without endpoint may look
    /// dead for long enough by then to be collected, and what is released is somebody else's the moment after.
    pub proof: Option<Compare>,
}

/// Why there are no addresses, or why they could not be released.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// None could be taken.
    #[error("no address can be assigned")]
    Assign(#[source] ClientError<AssignError>),
    /// A wished one could not be taken.
    #[error("address {address} cannot be assigned")]
    AssignIp {
        /// The address.
        address: IpAddr,
        /// Why.
        #[source]
        source: ClientError<AssignIpError>,
    },
    /// One that Calico's plugin took could not be released.
    #[error(
        "cannot release addresses of {handle} that Calico's plugin took for a further interface"
    )]
    Calicos {
        /// The handle.
        handle: HandleId,
        /// Why.
        #[source]
        source: ClientError<ReleaseError>,
    },
    /// They could not be released or looked up.
    #[error("cannot look up or release handle {handle}")]
    Handle {
        /// The handle.
        handle: HandleId,
        /// Why.
        #[source]
        source: ClientError<Unreadable>,
    },
}

impl AddressError {
    /// True when the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Assign(error) => error.is_transient(),
            Self::AssignIp { source, .. } => source.is_transient(),
            Self::Calicos { source, .. } => source.is_transient(),
            Self::Handle { source, .. } => source.is_transient(),
        }
    }
}

/// Makes sure that the attachment holds what it wishes, when it is this plugin's turn. `handle` is the stored
/// handle, when an earlier call left one.
///
/// # Errors
/// [`AddressError`]; the attachment may hold addresses then, which are released by its handle.
pub async fn hold<S: Store>(
    store: &S,
    run_dir: &Path,
    attachment: &Attachment,
    wishes: &Wishes,
    handle: Option<&KeyValue>,
) -> Result<Holding, AddressError> {
    if let Some(handle) = handle {
        let held = held(store, &attachment.handle()).await?;
        if fits(&held, wishes) {
            let proof = Some(Compare::Unchanged(handle.key.clone(), handle.mod_revision));
            return Ok(Holding { held, proof });
        }
        release(store, &attachment.handle(), &[]).await?;
    }
    if !wishes.addresses.is_empty() {
        let held = take_named(store, attachment, &wishes.addresses).await?;
        return Ok(Holding { held, proof: None });
    }
    let mut turn = Turn::wait(run_dir).await;
    let held = take(store, attachment, wishes, turn.likely()).await?;
    turn.remember(held.iter().map(|h| h.block));
    Ok(Holding { held, proof: None })
}

/// True when what is held is what would be taken now.
fn fits(held: &[Held], wishes: &Wishes) -> bool {
    if wishes.addresses.is_empty() {
        let mut families: Vec<_> = held.iter().map(|h| Family::of(h.address)).collect();
        families.sort_unstable();
        let mut wanted = wishes.wanted_families();
        wanted.sort_unstable();
        return families == wanted;
    }
    let mut addresses: Vec<_> = held.iter().map(|h| h.address).collect();
    addresses.sort_unstable();
    let mut wanted = wishes.addresses.clone();
    wanted.sort_unstable();
    addresses == wanted
}

async fn look_up<S: Store>(
    store: &S,
    handle: &HandleId,
) -> Result<Vec<caracal_ipam::usage::Held>, AddressError> {
    let client = Client::new(store.clone());
    client
        .addresses_of(handle)
        .await
        .map_err(|source| AddressError::Handle {
            handle: handle.clone(),
            source,
        })
}

/// True when the handle holds addresses, and all of them for this node.
///
/// # Errors
/// [`AddressError::Handle`].
pub async fn is_of_node<S: Store>(
    store: &S,
    handle: &HandleId,
    node: &NodeName,
) -> Result<bool, AddressError> {
    let held = look_up(store, handle).await?;
    Ok(!held.is_empty()
        && held
            .iter()
            .all(|h| h.node.as_deref() == Some(node.as_str())))
}

/// The addresses of a handle, IPv4 first.
///
/// # Errors
/// [`AddressError::Handle`].
pub async fn held<S: Store>(store: &S, handle: &HandleId) -> Result<Vec<Held>, AddressError> {
    let mut held: Vec<_> = look_up(store, handle)
        .await?
        .iter()
        .map(|h| Held {
            address: h.address,
            block: h.block,
        })
        .collect();
    held.sort_unstable();
    Ok(held)
}

async fn take<S: Store>(
    store: &S,
    attachment: &Attachment,
    wishes: &Wishes,
    likely: &[Prefix],
) -> Result<Vec<Held>, AddressError> {
    let families = wishes.wanted_families();
    let count = |family| usize::from(families.contains(&family));
    let mut request = AssignRequest::workload(attachment.node.clone(), attachment.handle());
    request.num_v4 = count(Family::Ipv4);
    request.num_v6 = count(Family::Ipv6);
    request.attributes = attachment.attributes();
    request.likely_blocks = likely.to_vec();
    request.pools_v4.clone_from(&wishes.ipv4_pools);
    request.pools_v6.clone_from(&wishes.ipv6_pools);
    let client = Client::new(store.clone());
    let assigned = client
        .auto_assign(request)
        .await
        .map_err(AddressError::Assign)?;
    let held = assigned.all().map(|a| Held {
        address: a.address,
        block: a.block,
    });
    Ok(held.collect())
}

async fn take_named<S: Store>(
    store: &S,
    attachment: &Attachment,
    addresses: &[IpAddr],
) -> Result<Vec<Held>, AddressError> {
    let client = Client::new(store.clone());
    let mut held = Vec::new();
    for &address in addresses {
        let request = AssignIpRequest {
            address,
            node: attachment.node.clone(),
            handle: attachment.handle(),
            attributes: attachment.attributes(),
            usage: AllowedUse::Workload,
        };
        let taken = client
            .assign_ip(request)
            .await
            .map_err(|source| AddressError::AssignIp { address, source })?;
        held.push(Held {
            address: taken.address,
            block: taken.block,
        });
    }
    held.sort_unstable();
    Ok(held)
}

/// Releases all addresses of an attachment, when it is this plugin's turn.
///
/// # Errors
/// [`AddressError::Handle`].
pub async fn let_go<S: Store>(
    store: &S,
    run_dir: &Path,
    attachment: &Attachment,
) -> Result<Vec<IpAddr>, AddressError> {
    let turn = Turn::wait(run_dir).await;
    release(store, &attachment.handle(), turn.likely()).await
}

/// Releases all addresses of a handle and says which. A right guess of the blocks saves a read.
///
/// # Errors
/// [`AddressError::Handle`].
pub async fn release<S: Store>(
    store: &S,
    handle: &HandleId,
    likely: &[Prefix],
) -> Result<Vec<IpAddr>, AddressError> {
    let client = Client::new(store.clone());
    let released = client
        .release_by_handle(handle, likely)
        .await
        .map_err(|source| AddressError::Handle {
            handle: handle.clone(),
            source,
        })?;
    Ok(released.addresses)
}

/// Releases what Calico's plugin has assigned to a further interface of a container. It has one handle for all of a
/// container's interfaces, so that only the endpoint tells which addresses are this interface's.
///
/// # Errors
/// [`AddressError`].
pub async fn release_calicos<S: Store>(
    store: &S,
    handle: &HandleId,
    networks: &[Prefix],
) -> Result<(), AddressError> {
    let Some(handle) = calicos_handle(handle).filter(|_| !networks.is_empty()) else {
        return Ok(());
    };
    let held = look_up(store, &handle).await?.into_iter();
    let of_interface = held.filter(|h| networks.contains(&Prefix::host(h.address)));
    let targets: Vec<_> = of_interface
        .map(|h| Target {
            address: h.address,
            handle: Some(handle.clone()),
            sequence: h.sequence,
        })
        .collect();
    if targets.is_empty() {
        return Ok(());
    }
    let client = Client::new(store.clone());
    match client.release_ips(targets).await {
        Ok(released) => {
            tracing::info!(%handle, addresses = ?released.addresses, "released: Calico's plugin took them");
            Ok(())
        }
        Err(source) => Err(AddressError::Calicos { handle, source }),
    }
}
