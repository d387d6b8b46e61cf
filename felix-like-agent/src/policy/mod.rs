//! Network policy in the kernel: the plan of all policies for the endpoints of this node, and what
//! changes our nftables table by element and by chain. Pure; the shell writes.
//!
//! * `sets` names and fills sets, `compile` makes rules (`rule`) of a policy's rule, `table` puts
//!   lists of policies together for each endpoint, and `layout` is what does not depend on them.
//! * `hosts` says which host endpoint judges which interface of the node itself, and `failsafe`
//!   what none of them closes.
//! * `change` says what differs from what is there, and reads the table back after a start; `walk`
//!   goes through the table as the kernel does, for flows that were allowed before a change;
//!   `refused` is what becomes of a chain that `nft` does not take.
//!
//! A packet is looked up by its interface, and the chain of that decides: *out* of an endpoint an
//! allowed packet goes on to `to-dispatch`, which looks up the interface that it leaves by; *in*
//! leads to `leave`, where the host endpoint of that interface judges what passes through the node.
//! No mark is used, and no set without a name. Interfaces of endpoints that no map has are dropped
//! by rules that are always there.
//!
//! Invariants, cited by tests:
//!
//! * `POL-1`: the table decides as [`PolicyData::judge`](caracal_model::PolicyData::judge) does.
//! * `POL-2`: after any history the table is the same as that of a new plan.
//! * `POL-3`: a set of intervals is filled before a rule names it, and never changed.
//! * `POL-4`: a chain that something leads to is never changed, unless it is not known what is in
//!   it.
//! * `POL-5`: a flow that the table does not let begin any more is marked, and its packets are
//!   refused; one that it lets begin is not.

mod change;
mod compile;
mod failsafe;
mod hosts;
mod layout;
mod refused;
mod rule;
mod sets;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

pub(crate) use change::{listing, removal, structure};
pub use failsafe::FailsafePorts;
pub(crate) use hosts::asks_for_addresses;
pub(crate) use layout::{POLICY_TABLE, REVOKED};
pub use refused::RefusedChain;
pub use table::PolicyCounts;
pub(crate) use table::PolicyTable;

/// Settings of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// What the names of endpoints' interfaces begin with.
    pub interfaces: Vec<String>,
    /// What an endpoint's policies let go to the node itself is taken there
    /// (`defaultEndpointToHostAction`), else dropped.
    pub nodes_take: bool,
    /// What no host endpoint closes.
    pub failsafe: FailsafePorts,
    /// UDP port of VXLAN between nodes, which none closes either.
    pub vxlan_port: u16,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            interfaces: vec!["cali".to_owned()],
            nodes_take: true,
            failsafe: FailsafePorts::default(),
            vxlan_port: 4789,
        }
    }
}
