//! One change of the kernel's state.

use std::fmt;
use std::net::IpAddr;

use caracal_model::names::IfName;
use caracal_model::net::Cidr;
use caracal_model::resource::node::{Mac, format_mac};

use crate::actual::{ActualRoute, ActualTarget};
use crate::desired::{FdbKey, NeighbourKey, Route, Tunnel};
use crate::nat::Nat;

/// One change of the kernel's state.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Create a tunnel device, up.
    AddTunnel(Tunnel),
    /// Set MTU, MAC address and the up flag of a tunnel device that is there.
    SetTunnel(Tunnel),
    /// Add an address to a device.
    AddAddress(IfName, Cidr),
    /// Add or replace a permanent neighbour.
    PutNeighbour(NeighbourKey, Mac),
    /// Add or replace a permanent FDB entry.
    PutFdb(FdbKey, IpAddr),
    /// Add a route where none with its key was seen. Fails when one has come meanwhile, whoever wrote it.
    AddRoute(Route),
    /// Replace the route of ours with the same key.
    ReplaceRoute(Route),
    /// Write a value below `/proc/sys`.
    WriteSysctl(String, String),
    /// Replace all our NAT rules in one transaction.
    PutNat(Box<Nat>),
    /// Delete a route.
    DeleteRoute(ActualRoute),
    /// Delete an FDB entry.
    DeleteFdb(FdbKey, IpAddr),
    /// Delete a neighbour.
    DeleteNeighbour(NeighbourKey),
    /// Remove an address from a device.
    DeleteAddress(IfName, Cidr),
    /// Delete a tunnel device, and with it everything that uses it.
    DeleteTunnel(IfName),
    /// Remove all our NAT rules.
    DeleteNat,
}

impl Op {
    /// True when the kernel holds less afterwards.
    #[must_use]
    pub const fn is_delete(&self) -> bool {
        matches!(
            self,
            Self::DeleteRoute(_)
                | Self::DeleteFdb(..)
                | Self::DeleteNeighbour(_)
                | Self::DeleteAddress(..)
                | Self::DeleteTunnel(_)
                | Self::DeleteNat
        )
    }
}

impl Op {
    /// True for changes of routes.
    #[must_use]
    pub const fn is_route(&self) -> bool {
        matches!(
            self,
            Self::AddRoute(_) | Self::ReplaceRoute(_) | Self::DeleteRoute(_)
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTunnel(t) => {
                write!(f, "add {} device {} mtu {}", t.kind.as_str(), t.name, t.mtu)
            }
            Self::SetTunnel(t) => write!(
                f,
                "set {} device {} mtu {} up",
                t.kind.as_str(),
                t.name,
                t.mtu
            ),
            Self::AddAddress(link, cidr) => write!(f, "add address {cidr} dev {link}"),
            Self::PutNeighbour(key, mac) => {
                write!(f, "put neighbour {key} lladdr {}", format_mac(mac))
            }
            Self::PutFdb(key, remote) => write!(f, "put fdb {key} dst {remote}"),
            Self::AddRoute(route) => write!(f, "add route {route}"),
            Self::ReplaceRoute(route) => write!(f, "replace route {route}"),
            Self::WriteSysctl(path, value) => write!(f, "write sysctl {path} = {value}"),
            // With what, so that one change after the other is not taken for a quarrel about the same.
            Self::PutNat(nat) => write!(f, "replace the NAT rules by {}", nat.fingerprint()),
            Self::DeleteRoute(route) => match (&route.target, route.known()) {
                (_, Some(known)) => write!(f, "delete route {known}"),
                (ActualTarget::Other(kind), _) => {
                    write!(f, "delete route {} of type {kind}", route.prefix)
                }
                (ActualTarget::Known(target), _) => {
                    write!(f, "delete route {} {target}", route.prefix)
                }
            },
            Self::DeleteFdb(key, remote) => write!(f, "delete fdb {key} dst {remote}"),
            Self::DeleteNeighbour(key) => write!(f, "delete neighbour {key}"),
            Self::DeleteAddress(link, cidr) => write!(f, "delete address {cidr} dev {link}"),
            Self::DeleteTunnel(link) => write!(f, "delete device {link}"),
            Self::DeleteNat => f.write_str("delete the NAT rules"),
        }
    }
}
