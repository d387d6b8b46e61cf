//! The addresses of an attachment, through Caracal's IPAM: an earlier call's are kept, else the
//! wished ones are taken, and all go by the handle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use caracal_datastore::Store;
use caracal_ipam::{
    AssignError, AssignIpError, AssignIpRequest, AssignRequest, Client, ClientError, ReleaseError,
    ReleaseTarget, Unreadable,
};
use caracal_model::{
    AllowedUse, Compare, Family, HandleId, InsertEach, KeyValue, NodeName, Prefix,
};

use crate::attachment::{AssignedAddress, Attachment, calicos_handle};
use crate::host_lock::HostLock;
use crate::in_use;
use crate::kernel::link::{KernelError, Links};
use crate::settings::Dirs;
use crate::spec::Wishes;

/// Most rounds of an ADD that finds the assigned addresses in use; each round skips all addresses
/// of their blocks that are in use.
const ROUNDS: usize = 8;

/// Addresses that an attachment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// IPv4 first.
    pub held: Vec<AssignedAddress>,
    /// When an earlier call took them: that the handle is still as it was read. An attachment
    /// without endpoint may look dead for long enough by then to be collected, and what is released
    /// is somebody else's the moment after.
    pub precondition: Option<Compare>,
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
        address: IpAddr,
        #[source]
        source: ClientError<AssignIpError>,
    },
    /// One that Calico's plugin took could not be released.
    #[error(
        "cannot release addresses of {handle} that Calico's plugin took for a further interface"
    )]
    Calicos {
        handle: HandleId,
        #[source]
        source: ClientError<ReleaseError>,
    },
    /// IPAM has it free, and it is in use.
    #[error(
        "address {address} is free in IPAM, but in use: {by}; did the datastore lose data? \
         See `caracal ipam check`"
    )]
    InUse {
        address: IpAddr,
        /// User of the address.
        by: String,
    },
    /// Whether it is in use could not be asked.
    #[error("cannot see whether an address is in use")]
    Kernel(#[source] KernelError),
    /// They could not be released or looked up.
    #[error("cannot look up or release handle {handle}")]
    Handle {
        handle: HandleId,
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
            Self::InUse { .. } | Self::Kernel(_) => false,
        }
    }
}

/// Makes sure that the attachment holds what it wishes, under the host's IPAM lock. `handle` is the
/// stored handle, when an earlier call left one.
///
/// # Errors
/// [`AddressError`]; the attachment may hold addresses then, which are released by its handle.
pub(crate) async fn hold<S: Store>(
    store: &S,
    dirs: &Dirs,
    attachment: &Attachment,
    wishes: &Wishes,
    handle: Option<&KeyValue>,
) -> Result<Holding, AddressError> {
    if let Some(handle) = handle {
        let held = held(store, &attachment.handle()).await?;
        if fits(&held, wishes) {
            let precondition = Some(Compare::Unchanged(handle.key.clone(), handle.mod_revision));
            return Ok(Holding { held, precondition });
        }
        release(store, &attachment.handle(), &[]).await?;
    }
    if !wishes.addresses.is_empty() {
        let held = take_named(store, attachment, &wishes.addresses).await?;
        let in_use = in_use(store, dirs, attachment, &held).await?;
        return match in_use
            .into_iter()
            .find(|(a, _)| wishes.addresses.contains(a))
        {
            None => Ok(Holding {
                held,
                precondition: None,
            }),
            Some((address, by)) => Err(AddressError::InUse { address, by }),
        };
    }
    let mut lock = HostLock::wait(&dirs.run).await;
    let mut avoided = BTreeMap::new();
    let mut rounds = 0;
    loop {
        let passed_over = avoided.keys().copied().insert_each();
        let held = take(store, attachment, wishes, lock.hints(), passed_over).await?;
        let found = in_use(store, dirs, attachment, &held).await?;
        let hit = held
            .iter()
            .find_map(|one| found.get_key_value(&one.address));
        let Some((address, by)) = hit.map(|(address, by)| (*address, by.clone())) else {
            lock.remember(held.iter().map(|h| h.block));
            return Ok(Holding {
                held,
                precondition: None,
            });
        };
        rounds += 1;
        if rounds > ROUNDS {
            return Err(AddressError::InUse { address, by });
        }
        tracing::warn!(
            %address, by,
            "free in IPAM and in use all the same, so that it is not given out; did the datastore lose data? see `caracal ipam check`"
        );
        release(store, &attachment.handle(), lock.hints()).await?;
        avoided.extend(found);
    }
}

async fn in_use<S: Store>(
    store: &S,
    dirs: &Dirs,
    attachment: &Attachment,
    held: &[AssignedAddress],
) -> Result<BTreeMap<IpAddr, String>, AddressError> {
    let own = attachment.endpoint_key();
    let found = in_use::found(store, &dirs.admin_socket(), &own, held).await;
    found.map_err(AddressError::Kernel)
}

/// True when what is held is what would be taken now.
fn fits(held: &[AssignedAddress], wishes: &Wishes) -> bool {
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
) -> Result<Vec<caracal_ipam::Held>, AddressError> {
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
pub(crate) async fn is_of_node<S: Store>(
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
pub(crate) async fn held<S: Store>(
    store: &S,
    handle: &HandleId,
) -> Result<Vec<AssignedAddress>, AddressError> {
    let mut held: Vec<_> = look_up(store, handle)
        .await?
        .iter()
        .map(|h| AssignedAddress {
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
    hints: &[Prefix],
    in_use: BTreeSet<IpAddr>,
) -> Result<Vec<AssignedAddress>, AddressError> {
    let families = wishes.wanted_families();
    let count = |family| usize::from(families.contains(&family));
    let mut request = AssignRequest::workload(attachment.node.clone(), attachment.handle());
    request.num_v4 = count(Family::Ipv4);
    request.num_v6 = count(Family::Ipv6);
    request.attributes = attachment.attributes();
    request.block_hints = hints.to_vec();
    request.in_use = in_use;
    request.pools_v4.clone_from(&wishes.ipv4_pools);
    request.pools_v6.clone_from(&wishes.ipv6_pools);
    let client = Client::new(store.clone());
    let assigned = client
        .auto_assign(request)
        .await
        .map_err(AddressError::Assign)?;
    let held = assigned.all().map(|a| AssignedAddress {
        address: a.address,
        block: a.block,
    });
    Ok(held.collect())
}

async fn take_named<S: Store>(
    store: &S,
    attachment: &Attachment,
    addresses: &[IpAddr],
) -> Result<Vec<AssignedAddress>, AddressError> {
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
        let taken = match client.assign_ip(request.clone()).await {
            Err(ClientError::Refused(AssignIpError::Taken { .. }))
                if earlier_is_gone(attachment, address).await? =>
            {
                let taken = client.take_over_ip(request).await;
                if taken.is_ok() {
                    tracing::info!(%address, "taken over from an earlier container of this workload, which is gone");
                }
                taken
            }
            other => other,
        };
        let taken = taken.map_err(|source| AddressError::AssignIp { address, source })?;
        held.push(AssignedAddress {
            address: taken.address,
            block: taken.block,
        });
    }
    held.sort_unstable();
    Ok(held)
}

/// True when no earlier container of this workload has an address any more: nobody else has the
/// interface that is made for it, and the kernel has no route to it.
async fn earlier_is_gone(attachment: &Attachment, address: IpAddr) -> Result<bool, AddressError> {
    let look = async {
        let host = Links::here()?;
        let interface = attachment.host_interface();
        let link = host.by_name(interface.as_str()).await?;
        let of_another = link.is_some_and(|link| link.alias != Some(attachment.alias()));
        let routed = in_use::routed_addresses([address]).await?;
        Ok(!of_another && routed.is_empty())
    };
    look.await.map_err(AddressError::Kernel)
}

/// Releases all addresses of an attachment, under the host's IPAM lock.
///
/// # Errors
/// [`AddressError::Handle`].
pub(crate) async fn let_go<S: Store>(
    store: &S,
    run_dir: &Path,
    attachment: &Attachment,
) -> Result<Vec<IpAddr>, AddressError> {
    let lock = HostLock::wait(run_dir).await;
    release(store, &attachment.handle(), lock.hints()).await
}

/// Releases all addresses of a handle and says which. A right guess of the blocks saves a read.
///
/// # Errors
/// [`AddressError::Handle`].
pub(crate) async fn release<S: Store>(
    store: &S,
    handle: &HandleId,
    hints: &[Prefix],
) -> Result<Vec<IpAddr>, AddressError> {
    let client = Client::new(store.clone());
    let released = client
        .release_by_handle(handle, hints)
        .await
        .map_err(|source| AddressError::Handle {
            handle: handle.clone(),
            source,
        })?;
    Ok(released.addresses)
}

/// Releases what Calico's plugin has assigned to a further interface of a container. It has one
/// handle for all of a container's interfaces, so that only the endpoint tells which addresses are
/// this interface's.
///
/// # Errors
/// [`AddressError`].
pub(crate) async fn release_calicos<S: Store>(
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
        .map(|h| ReleaseTarget {
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
