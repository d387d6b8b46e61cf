//! What measures in a lab of whole nodes share: its etcd from within etcd's namespace, and the
//! process of a node.

use anyhow::{Context, Result};
use caracal_datastore::{EtcdConfig, EtcdStore};
use caracal_lab::{ETCD_PORT, Lab};

/// The lab's etcd, for a thread in its namespace.
pub(crate) fn store() -> Result<EtcdStore> {
    let endpoint = format!("http://127.0.0.1:{ETCD_PORT}");
    Ok(EtcdStore::new(EtcdConfig::new([endpoint]))?)
}

/// The process of a node.
pub(crate) fn process_of(lab: &Lab, node: &str) -> Result<u32> {
    let process = lab.state().processes.get(node);
    let process = process.with_context(|| format!("{node} does not run"))?;
    Ok(u32::try_from(process.pid)?)
}
