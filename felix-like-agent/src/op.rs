//! One change of the kernel's state.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Cidr, IfName, Mac, Prefix, format_mac};

use crate::actual::{ActualRoute, ActualTarget};
use crate::kernel_objects::{FdbKey, NeighbourKey, NextHopObject, Route, Tunnel};
use crate::nat::Nat;

/// One change of the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Create a tunnel device, up.
    AddTunnel(Tunnel),
    /// Set MTU, MAC address and the up flag of a tunnel device that is there.
    SetTunnel(Tunnel),
    /// Give the host side interface of a workload its MAC address back.
    SetMac(IfName, Mac),
    /// Add an address to a device.
    AddAddress(IfName, Cidr),
    /// Add or replace a permanent neighbour.
    PutNeighbour(NeighbourKey, Mac),
    /// Add or replace a permanent FDB entry.
    PutFdb(FdbKey, IpAddr),
    /// Make a next-hop object with a number that nobody has. Fails when somebody has it meanwhile.
    AddObject(NextHopObject),
    /// Change a next-hop object of ours: every route through it leads there at once.
    ReplaceObject(NextHopObject),
    /// Add a route where none with its key was seen. Fails when one has come meanwhile, whoever
    /// wrote it.
    AddRoute(Route),
    /// Replace the route of ours with the same key.
    ReplaceRoute(Route),
    /// Write a value below `/proc/sys`.
    WriteSysctl(String, String),
    /// Put our NAT rules in the place of those before, in one transaction.
    PutNat(Arc<Nat>),
    /// Delete a route exactly as it was read, so that nobody else's goes.
    DeleteRoute(ActualRoute),
    /// Delete a next-hop object that no route leads through.
    DeleteObject(u32),
    /// Delete an FDB entry.
    DeleteFdb(FdbKey, IpAddr),
    /// Delete a neighbour entry, static ARP, NDP or FDB.
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
                | Self::DeleteObject(_)
                | Self::DeleteFdb(..)
                | Self::DeleteNeighbour(_)
                | Self::DeleteAddress(..)
                | Self::DeleteTunnel(_)
                | Self::DeleteNat
        )
    }
}

impl Op {
    /// True for what is told the kernel by rtnetlink.
    #[must_use]
    pub(crate) const fn is_netlink(&self) -> bool {
        !matches!(
            self,
            Self::WriteSysctl(..) | Self::PutNat(_) | Self::DeleteNat
        )
    }

    /// The destination, of changes of routes.
    #[must_use]
    pub const fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::AddRoute(route) | Self::ReplaceRoute(route) => Some(route.prefix),
            Self::DeleteRoute(route) => Some(route.prefix),
            _ => None,
        }
    }

    /// True for changes of routes and of what they lead through.
    #[must_use]
    pub(crate) const fn is_route(&self) -> bool {
        matches!(
            self,
            Self::AddRoute(_)
                | Self::ReplaceRoute(_)
                | Self::DeleteRoute(_)
                | Self::AddObject(_)
                | Self::ReplaceObject(_)
                | Self::DeleteObject(_)
        )
    }
}

impl Hash for Op {
    /// By what is changed: there may be a great many changes of routes, and what they change them
    /// to tells few apart.
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self.prefix() {
            Some(prefix) => prefix.hash(state),
            None => self.to_string().hash(state),
        }
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
            Self::SetMac(link, mac) => write!(f, "set device {link} address {}", format_mac(mac)),
            Self::AddAddress(link, cidr) => write!(f, "add address {cidr} dev {link}"),
            Self::PutNeighbour(key, mac) => {
                write!(f, "put neighbour {key} lladdr {}", format_mac(mac))
            }
            Self::PutFdb(key, remote) => write!(f, "put fdb {key} dst {remote}"),
            Self::AddObject(object) => write!(f, "add nexthop {object}"),
            Self::ReplaceObject(object) => write!(f, "replace nexthop {object}"),
            Self::DeleteObject(id) => write!(f, "delete nexthop {id}"),
            Self::AddRoute(route) => write!(f, "add route {route}"),
            Self::ReplaceRoute(route) => write!(f, "replace route {route}"),
            Self::WriteSysctl(path, value) => write!(f, "write sysctl {path} = {value}"),
            // With what, so that one change after the other is not taken for a quarrel about the
            // same.
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
