//! DEL: the interface first, so that no packet carries an address that is free again; then the
//! endpoint, then the addresses. What is gone already is no error. Without the datastore a pending
//! release takes the place of the second half (CNI-4).

use std::time::{Duration, SystemTime};

use caracal_datastore::Store;
use caracal_model::Timestamp;

use crate::addresses;
use crate::attachment::{INTERFACE_PREFIX, calicos_handle};
use crate::call::{Call, Milestone, PluginRole, Progress};
use crate::endpoint;
use crate::error::{CniError, chain};
use crate::kernel::link::{KernelError, Link, Links};
use crate::kernel::netns::{Netns, NetnsError};
use crate::pending_releases::{self, Patience, PendingRelease, PendingReleaseError};
use crate::second;
use crate::spec::Command;

/// Longest wait of a DEL for the datastore, then it writes a pending release: the runtime waits for
/// the DEL, and nobody for the node that replays the file.
const LIMIT: Duration = Duration::from_secs(5);

/// Detaches the container.
///
/// # Errors
/// [`CniError`] when the interface cannot be deleted, or neither the datastore nor the disk takes
/// the rest.
pub(crate) async fn del<S: Store>(
    call: &Call,
    store: &S,
    progress: Progress<'_>,
) -> Result<(), CniError> {
    let netns = call.env.netns.as_deref().map(Netns::open);
    if let Some(Ok(netns)) = &netns
        && !netns.take_turn(LIMIT).await
    {
        // Also an ADD that hangs must end, and it does without its interface.
        tracing::warn!("another call for this container takes long; going on beside it");
    }
    delete_interface(call).await?;
    progress(Milestone::InterfaceDeleted);
    release_or_leave(call, store, progress).await?;
    if let Some(delegate) = call.delegate()? {
        delegate.run(Command::Del)?;
    }
    Ok(())
}

/// Releases endpoint and addresses, or leaves a pending release.
///
/// # Errors
/// [`CniError`] when the pending release cannot be written, or the kernel does not answer.
pub(crate) async fn release_or_leave<S: Store>(
    call: &Call,
    store: &S,
    progress: Progress<'_>,
) -> Result<(), CniError> {
    let endpoint = has_endpoint(call).await?;
    let released = release(call, store, endpoint, progress);
    let released = tokio::time::timeout(LIMIT, released).await;
    let reason = match released {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => chain(&error),
        Err(_elapsed) => format!("the datastore did not answer in {} s", LIMIT.as_secs()),
    };
    let pending_release = pending_release(call, endpoint);
    let path = pending_releases::write(&call.dirs.lib, &call.attachment, &pending_release)?;
    tracing::warn!(
        reason,
        ?path,
        "left a pending release; the node will release the address"
    );
    Ok(())
}

/// True when the endpoint of the call's name is this attachment's. While another network's
/// attachment of the container has the interface, the endpoint is that one's.
async fn has_endpoint(call: &Call) -> Result<bool, KernelError> {
    if call.role != PluginRole::Main {
        return Ok(false);
    }
    let occupant = second::occupant(&Links::here()?, &call.attachment).await?;
    Ok(occupant.is_none())
}

fn pending_release(call: &Call, endpoint: bool) -> PendingRelease {
    let attachment = &call.attachment;
    let endpoint = endpoint.then(|| attachment.endpoint_key().to_path());
    PendingRelease {
        handle: call.has_own_addresses().then(|| attachment.handle()),
        container_id: attachment.container_id.clone(),
        endpoint,
        left_at: Timestamp::from(SystemTime::now()).rfc3339(),
    }
}

async fn release<S: Store>(
    call: &Call,
    store: &S,
    endpoint: bool,
    progress: Progress<'_>,
) -> Result<(), PendingReleaseError> {
    let attachment = &call.attachment;
    pending_releases::replay_of(store, &call.dirs.lib, attachment, Patience::None).await?;
    if endpoint {
        let handle = attachment.handle();
        let (key, container) = (attachment.endpoint_key(), &attachment.container_id);
        if calicos_handle(&handle).is_some() {
            let networks = endpoint::networks_of(store, &key, container).await?;
            addresses::release_calicos(store, &handle, &networks).await?;
        }
        endpoint::remove(store, &key, container).await?;
        progress(Milestone::EndpointDeleted);
    }
    if call.has_own_addresses() {
        addresses::let_go(store, &call.dirs.run, attachment).await?;
    }
    progress(Milestone::AddressesReleased);
    Ok(())
}

/// Deletes the attachment's veth pair, wherever one of its ends can be seen.
///
/// # Errors
/// [`KernelError`].
pub(crate) async fn delete_interface(call: &Call) -> Result<(), KernelError> {
    let host = Links::here()?;
    let found = match seen_from_pod(call, &host).await? {
        Some(link) => Some(link),
        None => seen_from_host(call, &host).await?,
    };
    match found {
        Some(link) => host.delete(&link).await,
        None => Ok(()),
    }
}

/// The host side of the pod's interface, when that is one of a Calico-style pair.
async fn seen_from_pod(call: &Call, host: &Links) -> Result<Option<Link>, KernelError> {
    let Some(path) = &call.env.netns else {
        return Ok(None);
    };
    let netns = match Netns::open(path) {
        Ok(netns) => netns,
        Err(NetnsError::Gone { .. }) => return Ok(None),
        Err(error) => {
            tracing::warn!(%error, "looking for the interface on the host's side only");
            return Ok(None);
        }
    };
    let inside = Links::inside(&netns, || Ok(()))?;
    let Some(pod_link) = inside.by_name(&call.attachment.ifname).await? else {
        return Ok(None);
    };
    let Some(index) = pod_link.peer else {
        return Ok(None);
    };
    // Calico's plugin sets no alias. One of ours that names another attachment: the namespace was
    // used again, and this DEL is late.
    let alias = call.attachment.alias();
    let is_ours = |link: &Link| {
        link.is_pair_with(&pod_link)
            && link.name.starts_with(INTERFACE_PREFIX)
            && link.alias.as_ref().is_none_or(|other| *other == alias)
    };
    Ok(host.by_index(index).await?.filter(is_ours))
}

/// The host side by name, when its alias says that it is this attachment's.
async fn seen_from_host(call: &Call, host: &Links) -> Result<Option<Link>, KernelError> {
    let link = host
        .by_name(call.attachment.host_interface().as_str())
        .await?;
    let alias = call.attachment.alias();
    Ok(link.filter(|link| link.alias.as_deref() == Some(alias.as_str())))
}
