//! A look at the kernel for those who only ask: the auditor and `caracal explain`. Reading changes
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_model::{Family, SharedMap};

use super::read;
use super::write::sysctl;
use crate::actual::Actual;
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::dataplane::write::nat::NatWriter;
use crate::dataplane::write::programs::{CommandError, run};
use crate::desired::Desired;
use crate::nat::nft::TABLE;
use crate::services::{
    self, NeededElements, SERVICES_TABLE, ServiceAddress, ServiceDifferences, ServiceElement,
    ServiceEntry, ServiceTable,
};

/// Why the table of services cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[error("the table of services cannot be read")]
pub struct ServiceReadError(#[source] CommandError);

/// Why a table cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("the table cannot be listed")]
pub struct RulesReadError(#[source] CommandError);

/// Reads the kernel state that a plan is about, except NAT rules.
///
/// # Errors
/// [`NetlinkError`] when the kernel cannot be asked.
pub async fn observe_kernel(desired: &Desired) -> Result<Actual, NetlinkError> {
    let mut actual = read::actual(&mut Netlink::open()?).await?;
    actual.sysctls = sysctl::read(desired.sysctls.keys());
    Ok(actual)
}

/// The fingerprint of our NAT rules in the kernel; `None` = none are there. Starts a program.
///
/// # Errors
/// The reason when a program does not answer in time.
pub async fn observe_nat(desired: &Desired) -> Result<Option<String>, String> {
    let seen = NatWriter::default().read(desired.nat.as_ref()).await;
    seen.map_err(|error| super::chain(&error))
}

/// New connections to each address since it came into the table of services. Starts programs.
///
/// # Errors
/// [`ServiceReadError`] when `nft` cannot be run, or there is no table.
pub async fn observe_service_hits() -> Result<BTreeMap<ServiceAddress, u64>, ServiceReadError> {
    let mut hits = BTreeMap::new();
    // nft 1.0.6 finds only the first of several sets that one script lists.
    for family in [Family::Ipv4, Family::Ipv6] {
        let listing = list(&ServiceTable::listing_of_hits(family)).await?;
        hits.extend(services::hits(&listing));
    }
    Ok(hits)
}

/// What the table of services has to hold for an address, and whether it does. Starts programs.
///
/// # Errors
/// [`ServiceReadError`] when `nft` cannot be run, or there is no table.
pub async fn observe_service_elements(
    address: &ServiceAddress,
    entry: &ServiceEntry,
) -> Result<Vec<ServiceElement>, ServiceReadError> {
    let needed = NeededElements::new(address, entry);
    let mut elements = Vec::new();
    for set in needed.sets() {
        let listing = match list(&needed.script(set)).await {
            Ok(listing) => listing,
            // One of them is missing: which, only the whole set says.
            Err(_) => list(&needed.whole(set)).await?,
        };
        elements.extend(needed.compare(set, &listing));
    }
    Ok(elements)
}

/// Compares the table of services with what these addresses need. Starts a program that lists all
/// of it.
pub async fn observe_services(
    entries: &SharedMap<ServiceAddress, Arc<ServiceEntry>>,
) -> ServiceDifferences {
    match list(&ServiceTable::listing()).await {
        Ok(listing) => services::differences(entries, &listing),
        Err(error) => ServiceDifferences {
            unreadable: Some(super::chain(&error)),
            ..ServiceDifferences::default()
        },
    }
}

/// Our tables of nftables as text, each with its name. Starts programs.
pub async fn read_rules() -> [(&'static str, Result<String, RulesReadError>); 2] {
    let read = async |table| {
        let script = format!("list table inet {table}\n");
        let listing = run("nft", &["-f", "-"], &script).await;
        (table, listing.map_err(RulesReadError))
    };
    [read(TABLE).await, read(SERVICES_TABLE).await]
}

async fn list(script: &str) -> Result<String, ServiceReadError> {
    let listing = run("nft", &["-f", "-"], script).await;
    listing.map_err(ServiceReadError)
}
