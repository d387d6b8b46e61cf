//! Uninstallation: removes all that [`crate::ownership`] calls ours in this network namespace, and
//! nothing else. Sysctls are put back where [`crate::dataplane::write::saved_sysctls`] knows what
//! they were.

use std::path::Path;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};

use super::policy::PolicyWriter;
use super::services::ServiceWriter;
use super::write::sysctl;
use super::{chain, read, write};
use crate::actual::Actual;
use crate::dataplane::netlink::{Message, Netlink, NetlinkError, Request};
use crate::dataplane::write::nat::NatWriter;
use crate::dataplane::write::saved_sysctls::SavedSysctls;
use crate::diff::removal;
use crate::kernel_objects::IPIP_DEVICE;
use crate::op::Op;
use crate::ownership::Ownership;
use crate::policy::POLICY_TABLE;
use crate::services::SERVICES_TABLE;

/// One thing to remove, in the order in which it is removed.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// An operation of the agent's.
    Op(Op),
    /// The kernel's own IPIP device cannot be deleted; it is set down, as it was before anybody
    /// used it.
    LowerIpip,
    /// A sysctl gets back the value that it had.
    Sysctl(String, String),
    /// The table of services.
    Services,
    /// The table of policy: last, for until then nothing gets through that should not.
    Policy,
}

impl std::fmt::Display for Removal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Op(op) => op.fmt(f),
            Self::LowerIpip => write!(f, "set device {IPIP_DEVICE} down"),
            Self::Services => write!(f, "delete nftables table inet {SERVICES_TABLE}"),
            Self::Policy => write!(f, "delete nftables table inet {POLICY_TABLE}"),
            Self::Sysctl(path, value) => write!(f, "put {path} back to {value}"),
        }
    }
}

/// A look at this machine, and the power to remove what was seen.
pub struct Uninstall {
    netlink: Netlink,
    nat: NatWriter,
    actual: Actual,
    removals: Vec<Removal>,
    saved_sysctls: Option<SavedSysctls>,
}

impl Uninstall {
    /// Looks at the calling thread's network namespace. `lib_dir`: the folder with the file of
    /// sysctls; `None` = they stay.
    ///
    /// # Errors
    /// [`NetlinkError`] when the kernel cannot be asked.
    pub async fn plan(ownership: &Ownership, lib_dir: Option<&Path>) -> Result<Self, NetlinkError> {
        let mut found = Self::plan_network(ownership).await?;
        let nat = &mut found.nat;
        // Where they cannot be read their removal is tried, and says why it fails.
        found.actual.nat = nat.read(None).await.unwrap_or_else(|e| Some(chain(&e)));
        found.removals = removals(&found.actual, ownership);
        let services = ServiceWriter::is_there().await.unwrap_or(true);
        let removals = &mut found.removals;
        removals.extend(services.then_some(Removal::Services));
        let saved_sysctls = lib_dir.map(SavedSysctls::open);
        let values = saved_sysctls.iter().flat_map(SavedSysctls::to_restore);
        removals.extend(values.map(|(path, value)| Removal::Sysctl(path, value)));
        let policy = PolicyWriter::is_there().await.unwrap_or(true);
        removals.extend(policy.then_some(Removal::Policy));
        found.saved_sysctls = saved_sysctls;
        Ok(found)
    }

    /// The same for a network's routes, devices and their entries alone: rules of translation and
    /// sysctls are those of the node, whatever networks it is in.
    ///
    /// # Errors
    /// [`NetlinkError`] when the kernel cannot be asked.
    pub async fn plan_network(ownership: &Ownership) -> Result<Self, NetlinkError> {
        let mut netlink = Netlink::open()?;
        let actual = read::actual(&mut netlink).await?;
        Ok(Self {
            netlink,
            nat: NatWriter::default(),
            removals: removals(&actual, ownership),
            actual,
            saved_sysctls: None,
        })
    }

    /// Objects to remove: all that are ours.
    #[must_use]
    pub fn removals(&self) -> &[Removal] {
        &self.removals
    }

    /// Removes it; each removal with the kernel's reason when it refuses.
    ///
    /// # Errors
    /// [`NetlinkError`] when the kernel cannot be asked any more.
    pub async fn remove(mut self) -> Result<Vec<(Removal, Result<(), String>)>, NetlinkError> {
        let mut done = Vec::with_capacity(self.removals.len());
        for removal in std::mem::take(&mut self.removals) {
            let result = self.one(&removal).await?;
            done.push((removal, result));
        }
        let whole = done.iter().all(|(_, result)| result.is_ok());
        if let Some(saved_sysctls) = self.saved_sysctls.take().filter(|_| whole)
            && let Err(error) = saved_sysctls.forget()
        {
            tracing::warn!(%error, "cannot remove the file of sysctls");
        }
        Ok(done)
    }

    async fn one(&mut self, removal: &Removal) -> Result<Result<(), String>, NetlinkError> {
        let op = match removal {
            Removal::LowerIpip => {
                let index = self.actual.links.by_name(IPIP_DEVICE).map(|l| l.index);
                let request = lower(index.unwrap_or_default());
                let answer = self.netlink.send(request).await?;
                return Ok(answer.map_err(|refusal| refusal.to_string()));
            }
            Removal::Sysctl(path, value) => {
                return Ok(match sysctl::write(path, value) {
                    // It went with its device.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    result => result.map_err(|error| error.to_string()),
                });
            }
            Removal::Services => {
                let removed = ServiceWriter::remove().await;
                return Ok(removed.map_err(|error| chain(&error)));
            }
            Removal::Policy => {
                let removed = PolicyWriter::remove().await;
                return Ok(removed.map_err(|error| chain(&error)));
            }
            Removal::Op(Op::DeleteNat) => {
                return Ok(self.nat.remove().await.map_err(|error| chain(&error)));
            }
            Removal::Op(op) => op,
        };
        let links = &self.actual.links;
        let results = write::send(&mut self.netlink, std::slice::from_ref(op), links).await?;
        Ok(results.into_iter().next().unwrap_or(Ok(())))
    }
}

fn removals(actual: &Actual, ownership: &Ownership) -> Vec<Removal> {
    let ops = removal(actual, ownership);
    // An address on it was ours: without one nobody of us has used it.
    let used = |op: &Op| matches!(op, Op::DeleteAddress(name, _) if name.as_str() == IPIP_DEVICE);
    let lower = ops.iter().any(used).then_some(Removal::LowerIpip);
    ops.into_iter().map(Removal::Op).chain(lower).collect()
}

fn lower(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.change_mask = LinkFlags::Up;
    Request {
        message: Message::Rtnetlink(RouteNetlinkMessage::SetLink(message)),
        flags: 0,
    }
}
