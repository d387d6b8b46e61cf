//! A look at the kernel for those who only ask: the auditor and `caracal explain`. Reading changes
//! nothing.

use super::read;
use super::write::sysctl;
use crate::actual::Actual;
use crate::dataplane::netlink::{Netlink, NetlinkError};
use crate::dataplane::write::nat::NatWriter;
use crate::desired::Desired;

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
pub async fn observe_nat(desired: &Desired) -> Option<String> {
    NatWriter::default().read(desired.nat.as_ref()).await
}
