//! `caracal-ipam`: our addresses for another main plugin (`bridge`, `macvlan`, `ptp`). Makes no
//! interface and writes no endpoint. Addresses carry their block's prefix length.

use caracal_datastore::Store;
use caracal_model::Cidr;
use serde_json::Map;

use crate::addresses;
use crate::assignment_stop;
use crate::attachment::AssignedAddress;
use crate::call::{Call, Milestone, Progress};
use crate::del;
use crate::endpoint;
use crate::error::{CheckError, CniError};
use crate::pending_releases::{self, Patience};
use crate::spec::{ConfigError, IpConfig, Outcome, Wishes};

/// Assigns addresses; the same ones for a repeated call.
///
/// # Errors
/// [`CniError`]; nothing stays assigned then.
pub(crate) async fn add<S: Store>(
    call: &Call,
    store: &S,
    progress: Progress<'_>,
) -> Result<Outcome, CniError> {
    assignment_stop::check(&call.dirs.run)?;
    pending_releases::replay_of(store, &call.dirs.lib, &call.attachment, Patience::Endless).await?;
    let wishes = Wishes::read(&call.env, &call.conf, call.pod.as_ref())?;
    if !wishes.without_ipam.is_empty() {
        return Err(ConfigError::Invalid {
            key: "ipAddrsNoIpam",
            reason: "an IPAM plugin has only IPAM's addresses; use the main plugin caracal-cni"
                .into(),
        }
        .into());
    }
    let known = endpoint::read(store, &call.attachment).await?;
    let handle = known.handle.as_ref();
    let held = match addresses::hold(store, &call.dirs, &call.attachment, &wishes, handle).await {
        // The endpoint is the main plugin's to write.
        Ok(holding) => holding.held,
        Err(error) => {
            del::release_or_leave(call, store, &|_| {}).await?;
            return Err(error.into());
        }
    };
    progress(Milestone::AddressesHeld);
    let ip = |held: &AssignedAddress| {
        let cidr = Cidr {
            address: held.address,
            len: held.block.len(),
        };
        IpConfig::new(cidr, None)
    };
    Ok(Outcome {
        interfaces: Vec::new(),
        ips: held.iter().map(ip).collect(),
        routes: call.conf.ipam.routes.clone(),
        dns: call.conf.dns.clone(),
        extra: Map::new(),
    })
}

/// Releases the addresses, or leaves a pending release.
///
/// # Errors
/// [`CniError`] when neither works.
pub(crate) async fn del<S: Store>(
    call: &Call,
    store: &S,
    progress: Progress<'_>,
) -> Result<(), CniError> {
    del::release_or_leave(call, store, progress).await
}

/// Checks that the addresses that the runtime remembers are held.
///
/// # Errors
/// [`CniError::Check`].
pub(crate) async fn check<S: Store>(call: &Call, store: &S) -> Result<(), CniError> {
    let handle = call.attachment.handle();
    let held = addresses::held(store, &handle).await?;
    let mut differences = Vec::new();
    if held.is_empty() {
        differences.push(format!("IPAM handle {handle} holds no address"));
    }
    if let Some(previous) = &call.conf.prev_result {
        let previous = Outcome::from_json(previous).map_err(CniError::PrevResult)?;
        for held in &held {
            if !previous.addresses().any(|address| address == held.address) {
                differences.push(format!(
                    "IPAM handle {handle} holds {}, prevResult does not",
                    held.address
                ));
            }
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(CheckError {
        ifname: call.attachment.ifname.clone(),
        differences,
    }
    .into())
}
