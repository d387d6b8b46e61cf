//! GC: the runtime lists the attachments that are alive; what this node holds of the network
//! besides is released. Touches nothing of other nodes, of other networks, or of uncertain origin
//! (CNI-6).
//!
//! An interface is ours by its alias. The kernel takes none while it makes a pair, so an ADD that
//! was killed within that instant leaves an interface that is not seen here; ADD and DEL of the
//! attachment see it from the pod's side, and it ends with the pod's namespace.

use std::collections::BTreeSet;

use caracal_datastore::Store;
use caracal_model::{
    HandleId, InsertEach, Key, KeyRange, KeyValue, Kind, WorkloadEndpoint, handles_prefix,
    kind_prefix,
};

use crate::addresses;
use crate::attachment::{container_of, handle, handle_of_alias};
use crate::call::{Call, PluginRole};
use crate::endpoint::{self, EndpointError};
use crate::error::CniError;
use crate::kernel::link::{KernelError, Link, Links};
use crate::spec::{Command, ConfigError};

/// Releases what belongs to no attachment of the list.
///
/// # Errors
/// [`CniError`]; what was released until then stays released.
pub(crate) async fn gc<S: Store>(call: &Call, store: &S) -> Result<(), CniError> {
    let alive = alive(call)?;
    let dead = dead_handles(call, store, &alive).await?;
    if call.role == PluginRole::Main {
        let host = Links::here()?;
        let links = dead_links(call, &host, &alive).await?;
        let by_link = links.iter().map(|(_, handle)| handle.clone());
        let all: BTreeSet<_> = dead.iter().cloned().chain(by_link).insert_each();
        // The interfaces are what tells of attachments whose addresses another plugin has, so they
        // go last.
        remove_endpoints(call, store, &alive, &all).await?;
        for (link, handle) in &links {
            host.delete(link).await?;
            tracing::info!(link = link.name, %handle, "deleted: the runtime knows no such attachment");
        }
    }
    for handle in &dead {
        let addresses = addresses::release(store, handle, &[]).await?;
        tracing::info!(%handle, ?addresses, "released: the runtime knows no such attachment");
    }
    if let Some(delegate) = call.delegate()? {
        delegate.run(Command::Gc)?;
    }
    Ok(())
}

fn alive(call: &Call) -> Result<BTreeSet<HandleId>, ConfigError> {
    let Some(attachments) = &call.conf.valid_attachments else {
        return Err(ConfigError::Invalid {
            key: "cni.dev/valid-attachments",
            reason: "GC needs the list of attachments that are alive".to_owned(),
        });
    };
    let network = &call.attachment.network;
    Ok(attachments
        .iter()
        .map(|a| handle(network, &a.container_id, &a.ifname))
        .insert_each())
}

/// The interfaces of this network's attachments that are not alive, with the handle that their
/// alias tells.
async fn dead_links(
    call: &Call,
    host: &Links,
    alive: &BTreeSet<HandleId>,
) -> Result<Vec<(Link, HandleId)>, KernelError> {
    let of_alias = |link: Link| {
        let handle = link.alias.as_deref().and_then(handle_of_alias)?;
        Some((link, handle))
    };
    let dead = |(_, handle): &(Link, HandleId)| {
        let ours = container_of(handle, &call.attachment.network).is_some();
        ours && !alive.contains(handle)
    };
    let links = host.all().await?.into_iter();
    Ok(links.filter_map(of_alias).filter(dead).collect())
}

async fn dead_handles<S: Store>(
    call: &Call,
    store: &S,
    alive: &BTreeSet<HandleId>,
) -> Result<Vec<HandleId>, CniError> {
    let network = &call.attachment.network;
    let prefix = format!("{}{network}.", handles_prefix());
    let mut dead = Vec::new();
    for stored in read(store, KeyRange::Prefix(prefix)).await? {
        let Ok(Key::Handle(handle)) = Key::parse(&stored.key) else {
            continue;
        };
        if container_of(&handle, network).is_none() || alive.contains(&handle) {
            continue;
        }
        if addresses::is_of_node(store, &handle, &call.attachment.node).await? {
            dead.push(handle);
        }
    }
    Ok(dead)
}

/// Removes this node's endpoints of attachments that are `dead`; and of containers without
/// orchestrator, whose endpoint tells the network, all those that are not alive.
async fn remove_endpoints<S: Store>(
    call: &Call,
    store: &S,
    alive: &BTreeSet<HandleId>,
    dead: &BTreeSet<HandleId>,
) -> Result<(), CniError> {
    let network = call.attachment.network.as_str();
    let prefix = kind_prefix(Kind::WorkloadEndpoint);
    for stored in read(store, KeyRange::Prefix(prefix)).await? {
        let Ok(endpoint) = WorkloadEndpoint::from_json(&stored.value) else {
            continue;
        };
        let spec = &endpoint.spec;
        let attachment = handle(network, &spec.container_id, &spec.endpoint);
        let is_ours = spec.orchestrator == "cni" && spec.profiles == [network];
        if spec.node == call.attachment.node.as_str()
            && (dead.contains(&attachment) || is_ours && !alive.contains(&attachment))
            && let Ok(key) = Key::parse(&stored.key)
        {
            endpoint::remove(store, &key, &spec.container_id).await?;
        }
    }
    Ok(())
}

async fn read<S: Store>(store: &S, range: KeyRange) -> Result<Vec<KeyValue>, EndpointError> {
    let answer = store.read(&[range]).await.map_err(EndpointError::Store)?;
    Ok(answer.ranges.into_iter().flatten().collect())
}
