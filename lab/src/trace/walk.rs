//! The walk: from one place to the next, as routes, devices, FDB and neighbours say.

use std::net::IpAddr;

use super::{Direction, Hop, Interface, Look, Lookup, Packet};

/// Octets that VXLAN adds over IPv4 and over IPv6, and IPIP.
const VXLAN_V4: u32 = 50;
const VXLAN_V6: u32 = 70;
const IPIP: u32 = 20;
/// Hops above which the way is a loop.
const LIMIT: usize = 16;

/// Packets stop here; the hop has been noted.
struct Stopped;

/// A packet at a place, and the interface on which it arrived there.
struct At {
    place: String,
    arrives: Option<String>,
}

pub(super) struct Walk<'a> {
    look: &'a dyn Look,
    hops: Vec<Hop>,
}

/// Walks from a pod to a pod.
pub(super) fn walk(look: &dyn Look, from: (&str, IpAddr), to: (&str, IpAddr)) -> Direction {
    let mut walk = Walk {
        look,
        hops: Vec::new(),
    };
    // How it ended stands in the hops.
    let _ = walk.pods(from, to);
    Direction {
        from: from.0.to_owned(),
        to: to.0.to_owned(),
        hops: walk.hops,
    }
}

impl Walk<'_> {
    fn ok(&mut self, place: &str, seen: impl Into<String>) {
        self.hops.push(Hop {
            place: place.to_owned(),
            seen: seen.into(),
            broken: false,
        });
    }

    fn broken(&mut self, place: &str, seen: impl Into<String>) -> Stopped {
        self.hops.push(Hop {
            place: place.to_owned(),
            seen: seen.into(),
            broken: true,
        });
        Stopped
    }

    fn pods(&mut self, from: (&str, IpAddr), to: (&str, IpAddr)) -> Result<(), Stopped> {
        let size = self.pod_mtu(from.0, from.1)?;
        let packet = Packet {
            source: from.1,
            destination: to.1,
            size,
        };
        let start = At {
            place: from.0.to_owned(),
            arrives: None,
        };
        let end = self.carry(start, packet, true)?;
        if end.place == to.0 {
            self.ok(to.0, format!("has {}", to.1));
            return Ok(());
        }
        let seen = format!("takes {} for itself; it is the address of {}", to.1, to.0);
        Err(self.broken(&end.place, seen))
    }

    /// The MTU of the interface that carries a pod's address.
    fn pod_mtu(&mut self, pod: &str, address: IpAddr) -> Result<u32, Stopped> {
        let interfaces = self.interfaces(pod)?;
        match interfaces.iter().find(|i| i.addresses.contains(&address)) {
            Some(interface) if interface.up => Ok(interface.mtu),
            Some(interface) => {
                let seen = format!("interface {} is down", interface.name);
                Err(self.broken(pod, seen))
            }
            None => Err(self.broken(pod, format!("no interface has {address}"))),
        }
    }

    fn interfaces(&mut self, place: &str) -> Result<Vec<Interface>, Stopped> {
        self.look
            .interfaces(place)
            .map_err(|why| self.broken(place, why))
    }

    /// One interface that has to be up.
    fn interface(&mut self, place: &str, name: &str) -> Result<Interface, Stopped> {
        let interfaces = self.interfaces(place)?;
        let Some(interface) = interfaces.into_iter().find(|i| i.name == name) else {
            return Err(self.broken(place, format!("interface {name} does not exist")));
        };
        if !interface.up {
            return Err(self.broken(place, format!("interface {name} is down")));
        }
        if !interface.carrier {
            let seen = format!("interface {name} is up and has no carrier: its other end is down");
            return Err(self.broken(place, seen));
        }
        Ok(interface)
    }

    /// Follows a packet until a machine takes it for itself.
    fn carry(&mut self, start: At, packet: Packet, inner: bool) -> Result<At, Stopped> {
        let mut at = start;
        for _ in 0..LIMIT {
            if let Some(arrives) = at.arrives.clone() {
                self.interface(&at.place, &arrives)?;
            }
            let lookup = self
                .look
                .lookup(&at.place, &packet, at.arrives.as_deref())
                .map_err(|why| self.broken(&at.place, why))?;
            if lookup == Lookup::Local {
                return Ok(at);
            }
            if let Some(arrives) = at.arrives.clone() {
                self.may_forward(&at.place, &arrives, &packet)?;
            }
            at = match lookup {
                Lookup::Local => return Ok(at),
                Lookup::Refused(words) => return Err(self.refused(&at, &packet, &words)),
                Lookup::Out { dev, gateway, mtu } => {
                    self.leave(&at.place, &packet, (&dev, gateway, mtu), inner)?
                }
            };
        }
        let seen = format!("{} goes round in circles", packet.destination);
        Err(self.broken(&at.place, seen))
    }

    /// Checks whether a router allows the packet.
    fn may_forward(&mut self, place: &str, arrives: &str, packet: &Packet) -> Result<(), Stopped> {
        let family = if packet.destination.is_ipv4() {
            "ipv4"
        } else {
            "ipv6"
        };
        let key = format!("net/{family}/conf/{arrives}/forwarding");
        if self.look.sysctl(place, &key).as_deref() == Some("0") {
            let seen = format!("{key} is 0: what arrives on {arrives} is not forwarded");
            return Err(self.broken(place, seen));
        }
        Ok(())
    }

    fn refused(&mut self, at: &At, packet: &Packet, words: &str) -> Stopped {
        let Packet {
            source,
            destination,
            ..
        } = packet;
        let arrives = at.arrives.as_deref().unwrap_or_default();
        let seen = if words.contains("cross-device") {
            format!("rp_filter of {arrives} drops it: the way back to {source} is another one")
        } else if words.contains("Invalid argument") {
            format!("the route to {destination} is a blackhole")
        } else if at.arrives.is_some() {
            format!("no route to {destination} for what arrives on {arrives} ({words})")
        } else {
            format!("no route to {destination} ({words})")
        };
        self.broken(&at.place, seen)
    }

    /// Out of a device to the next place.
    fn leave(
        &mut self,
        place: &str,
        packet: &Packet,
        (dev, gateway, mtu): (&str, Option<IpAddr>, Option<u32>),
        inner: bool,
    ) -> Result<At, Stopped> {
        let interface = self.interface(place, dev)?;
        let mtu = mtu.unwrap_or(interface.mtu).min(interface.mtu);
        let via = gateway.map_or_else(String::new, |gateway| format!("via {gateway} "));
        let seen = format!("route to {} {via}dev {dev}, MTU {mtu}", packet.destination);
        if packet.size > mtu {
            let seen = format!("{seen}: packets of {} octets do not fit", packet.size);
            return Err(self.broken(place, seen));
        }
        self.ok(place, seen);
        if inner && !self.look.is_pod(place) {
            self.keeps_source(place, packet)?;
        }
        let next = gateway.unwrap_or(packet.destination);
        match interface.kind.as_str() {
            "vxlan" => self.vxlan(place, &interface, next, packet),
            "ipip" => self.ipip(place, next, packet),
            _ => self.link(place, &interface, next),
        }
    }

    fn keeps_source(&mut self, place: &str, packet: &Packet) -> Result<(), Stopped> {
        match self.look.masquerades(place, packet) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let seen = format!(
                    "NAT changes the source {} on the way to {}",
                    packet.source, packet.destination
                );
                Err(self.broken(place, seen))
            }
            Err(why) => Err(self.broken(place, why)),
        }
    }

    fn vxlan(
        &mut self,
        place: &str,
        interface: &Interface,
        next: IpAddr,
        packet: &Packet,
    ) -> Result<At, Stopped> {
        let dev = interface.name.as_str();
        let stop = |walk: &mut Self, why: String| walk.broken(place, why);
        let entry = self.look.neighbour(place, dev, next);
        let Some(entry) = entry.map_err(|why| stop(self, why))? else {
            return Err(stop(
                self,
                format!("{dev} has no neighbour entry for {next}"),
            ));
        };
        let mac = entry.mac;
        let remote = self.look.fdb(place, dev, &mac);
        let Some(remote) = remote.map_err(|why| stop(self, why))? else {
            return Err(stop(
                self,
                format!("{dev} has no FDB entry for {mac} ({next})"),
            ));
        };
        let Some((vni, port, Some(local))) = interface.vxlan else {
            return Err(stop(self, format!("{dev} has no source address")));
        };
        self.ok(place, format!("{dev}: {next} is {mac} behind {remote}"));
        let added = if remote.is_ipv4() { VXLAN_V4 } else { VXLAN_V6 };
        let end = self.tunnel(place, (local, remote), packet.size + added)?;
        let peers = self.interfaces(&end.place)?;
        // A node of both families has two of the kind, and what arrives over IPv6 is not for the
        // other.
        let same = |i: &&Interface| {
            i.vxlan.is_some_and(|(v, p, local)| {
                let family = local.is_none_or(|local| local.is_ipv4() == remote.is_ipv4());
                (v, p) == (vni, port) && family
            })
        };
        let Some(peer) = peers.iter().find(same) else {
            let seen = format!("has no VXLAN device with VNI {vni} on port {port}");
            return Err(self.broken(&end.place, seen));
        };
        if !peer.mac.eq_ignore_ascii_case(&mac) {
            let seen = format!(
                "{} has MAC {} and drops frames for {mac}",
                peer.name, peer.mac
            );
            return Err(self.broken(&end.place, seen));
        }
        Ok(At {
            arrives: Some(peer.name.clone()),
            ..end
        })
    }

    fn ipip(&mut self, place: &str, next: IpAddr, packet: &Packet) -> Result<At, Stopped> {
        let outer = Packet {
            source: next,
            destination: next,
            size: packet.size + IPIP,
        };
        // The device has no source address of its own: the kernel takes the one of the way out.
        let source = match self.look.lookup(place, &outer, None) {
            Ok(Lookup::Out { dev, .. }) => {
                let interface = self.interface(place, &dev)?;
                interface.addresses.iter().copied().find(IpAddr::is_ipv4)
            }
            _ => None,
        };
        let end = self.tunnel(place, (source.unwrap_or(next), next), outer.size)?;
        let peers = self.interfaces(&end.place)?;
        match peers.iter().find(|i| i.kind == "ipip") {
            Some(peer) => Ok(At {
                arrives: Some(peer.name.clone()),
                ..end
            }),
            None => Err(self.broken(&end.place, "has no IPIP device")),
        }
    }

    /// The outer packet of a tunnel.
    fn tunnel(
        &mut self,
        place: &str,
        (source, destination): (IpAddr, IpAddr),
        size: u32,
    ) -> Result<At, Stopped> {
        let start = At {
            place: place.to_owned(),
            arrives: None,
        };
        let packet = Packet {
            source,
            destination,
            size,
        };
        self.carry(start, packet, false)
    }

    /// Follows a packet over a cable.
    fn link(&mut self, place: &str, interface: &Interface, next: IpAddr) -> Result<At, Stopped> {
        let dev = interface.name.as_str();
        let beside = self.look.beside(place, dev);
        let mut holder = None;
        for (other, name) in &beside {
            let found = self
                .interfaces(other)?
                .into_iter()
                .find(|i| i.name == *name);
            if let Some(found) = found
                && found.addresses.contains(&next)
            {
                holder = Some((other.clone(), found));
            }
        }
        let entry = self
            .look
            .neighbour(place, dev, next)
            .map_err(|why| self.broken(place, why))?;
        let (other, there) = match holder {
            Some(found) => found,
            // A pod's gateway is an address that its node answers for.
            None if self.look.is_pod(place) => self.gateway(place, dev, next, &beside)?,
            None => {
                let seen = format!("nobody on the link of {dev} has {next}");
                return Err(self.broken(place, seen));
            }
        };
        if let Some(entry) =
            entry.filter(|e| e.permanent && !e.mac.eq_ignore_ascii_case(&there.mac))
        {
            let seen = format!(
                "the neighbour entry of {next} on {dev} says {}, and {other} has {}",
                entry.mac, there.mac
            );
            return Err(self.broken(place, seen));
        }
        if !there.up {
            return Err(self.broken(&other, format!("interface {} is down", there.name)));
        }
        Ok(At {
            place: other,
            arrives: Some(there.name),
        })
    }

    /// The node's end of a pod's cable.
    fn gateway(
        &mut self,
        pod: &str,
        dev: &str,
        next: IpAddr,
        beside: &[(String, String)],
    ) -> Result<(String, Interface), Stopped> {
        let [(node, name)] = beside else {
            return Err(self.broken(pod, format!("nothing is at the other end of {dev}")));
        };
        let there = self.interface(node, name)?;
        let key = format!("net/ipv4/conf/{name}/proxy_arp");
        let known = self.look.neighbour(pod, dev, next);
        let known = known.ok().flatten().is_some_and(|entry| entry.permanent);
        if next.is_ipv4() && !known && self.look.sysctl(node, &key).as_deref() == Some("0") {
            let seen = format!("{key} is 0: nobody answers for the pod's gateway {next}");
            return Err(self.broken(node, seen));
        }
        Ok((node.clone(), there))
    }
}
