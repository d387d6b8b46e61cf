//! Is an address that IPAM calls free in use all the same? A datastore that was restored from an
//! older backup has lost the allocations since; the pods still run, with routes in the kernel and
//! endpoints in the datastore. Nobody gets such an address a second time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use caracal_datastore::Store;
use caracal_model::{InUse, Key, KeyRange, Prefix, WorkloadEndpoint};

use crate::attachment::AssignedAddress;
use crate::kernel::link::{KernelError, Links};
use crate::kernel::route_wait::host_route;
use crate::node_process;

/// Most addresses of a block that are looked up in the kernel once one is found in use.
const LOOKED_UP: u128 = 256;

/// Addresses of the same blocks that are in use, with who uses them; empty when none of those held
/// is. The endpoint `own` is that of the attachment that asks: its use is none.
pub(crate) async fn found<S: Store>(
    store: &S,
    socket: &Path,
    own: &Key,
    held: &[AssignedAddress],
) -> Result<BTreeMap<IpAddr, String>, KernelError> {
    let mut found = endpoints(store, socket, own, held).await;
    let links = Links::here()?;
    let mut routed = false;
    for one in held {
        routed |= by_kernel(&links, one.address, &mut found).await?;
    }
    if !routed {
        let ours = held.iter().any(|one| found.contains_key(&one.address));
        return Ok(if ours { found } else { BTreeMap::new() });
    }
    // One is lost, and so may be its neighbours.
    for block in held.iter().map(|one| one.block) {
        for n in 0..block.size().min(LOOKED_UP) {
            if let Some(address) = block.nth(n) {
                by_kernel(&links, address, &mut found).await?;
            }
        }
    }
    Ok(found)
}

/// Of some addresses those to which this node's kernel has a route of their own, by an interface
/// that lives; each with a sentence that says so. Whatever the datastore says, somebody uses them.
///
/// # Errors
/// [`KernelError`] when the kernel cannot be asked.
pub async fn routed_addresses(
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Result<BTreeMap<IpAddr, String>, KernelError> {
    let links = Links::here()?;
    let mut found = BTreeMap::new();
    for address in addresses {
        by_kernel(&links, address, &mut found).await?;
    }
    Ok(found)
}

/// Uses that the kernel shows: a route to just this address.
async fn by_kernel(
    links: &Links,
    address: IpAddr,
    found: &mut BTreeMap<IpAddr, String>,
) -> Result<bool, KernelError> {
    let Some(index) = host_route(links, address).await? else {
        return Ok(false);
    };
    let link = links.by_index(index).await?;
    let name = link.map_or_else(|| index.to_string(), |link| link.name);
    found
        .entry(address)
        .or_insert_with(|| format!("a route of this node leads to it by interface {name}"));
    Ok(true)
}

/// Uses that endpoints show. The node's process has all of them at hand; that one of those held is
/// gone by now is looked up.
async fn endpoints<S: Store>(
    store: &S,
    socket: &Path,
    own: &Key,
    held: &[AssignedAddress],
) -> BTreeMap<IpAddr, String> {
    let blocks = held.iter().map(|one| one.block).collect();
    let uses = match node_process::in_use(socket, blocks).await {
        Ok(uses) => uses,
        // An older one does not know the question, and none that runs is told of by the wait for
        // the route.
        Err(error) => {
            tracing::debug!(%error, "not known which addresses endpoints have");
            return BTreeMap::new();
        }
    };
    let mut found = BTreeMap::new();
    for used in uses {
        if Key::workload(&used.namespace, &used.name) == *own {
            continue;
        }
        let is_held = held.iter().any(|one| one.address == used.address);
        if !is_held || still_there(store, &used).await {
            let by = format!(
                "the WorkloadEndpoint {}/{} has it",
                used.namespace, used.name
            );
            found.insert(used.address, by);
        }
    }
    found
}

/// False only when the datastore says that the endpoint has the address no more.
async fn still_there<S: Store>(store: &S, used: &InUse) -> bool {
    let key = Key::workload(&used.namespace, &used.name).to_path();
    let Ok(answer) = store.read(&[KeyRange::Key(key)]).await else {
        return true;
    };
    let network = Prefix::host(used.address);
    let mut stored = answer.ranges.into_iter().flatten();
    stored.next().is_some_and(|kv| {
        WorkloadEndpoint::from_json(&kv.value)
            .map_or(true, |e| e.spec.ip_networks.contains(&network))
    })
}
