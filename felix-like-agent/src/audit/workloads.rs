//! Datastore ↔ live interfaces: each workload of this node has its interface and an address that
//! IPAM gave it, and each workload interface has its workload.

use std::collections::BTreeSet;

use caracal_model::Prefix;

use super::{AuditCode, AuditInputs, Observation};

pub(super) fn compare(inputs: &AuditInputs<'_>, found: &mut Vec<Observation>) {
    let Ok(actual) = inputs.actual else { return };
    let mut known = BTreeSet::new();
    for workload in inputs.snapshot.workloads_of(inputs.me) {
        let name = &workload.metadata.name;
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let subject = format!("{namespace}/{name}");
        let interface = workload.spec.interface_name.as_str();
        known.insert(interface);
        match actual.links.by_name(interface) {
            None => {
                let seen = format!(
                    "endpoint {subject} is to be behind {interface}, and there is no such interface"
                );
                found.push(Observation::new(
                    AuditCode::InterfaceMissing,
                    &subject,
                    seen,
                ));
            }
            Some(link) if !link.up => {
                let seen = format!("interface {interface} of endpoint {subject} is down");
                found.push(Observation::new(AuditCode::InterfaceDown, &subject, seen));
            }
            Some(_) => {}
        }
        for address in workload.spec.ip_networks.iter().filter(|a| a.is_host()) {
            if !is_allocated(inputs, address) {
                let seen = format!(
                    "endpoint {subject} (revision {}) has {address}, which is free in its block, or in no block",
                    workload.revision
                );
                let subject = format!("{subject} {address}");
                found.push(Observation::new(
                    AuditCode::AddressNotAllocated,
                    subject,
                    seen,
                ));
            }
        }
    }
    let prefixes = &inputs.desired.ownership.interface_prefixes;
    for link in actual.links.iter() {
        let name = link.name.as_str();
        let workloads = prefixes
            .iter()
            .any(|prefix| name.starts_with(prefix.as_str()));
        if link.kind == "veth" && workloads && !known.contains(name) {
            let seen = format!(
                "interface {name} has a workload's name, and no endpoint of this node is behind it"
            );
            found.push(Observation::new(AuditCode::InterfaceUnknown, name, seen));
        }
    }
}

/// True when IPAM has given the address out, and for addresses that are not IPAM's at all, as those
/// of `host-local`.
fn is_allocated(inputs: &AuditInputs<'_>, address: &Prefix) -> bool {
    if inputs.snapshot.pool_of(address).is_none() {
        return true;
    }
    let block = inputs.snapshot.block_of(address);
    block.is_some_and(|block| {
        let not_ours = block.whole().is_some_and(|block| block.is_pod_cidr);
        not_ours || block.is_allocated(address.address())
    })
}
