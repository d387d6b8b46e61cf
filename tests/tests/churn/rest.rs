//! Invariants of a cluster at rest, stated without the diff that brought it about: the kernel holds
//! what is planned, and of ours nothing else; and a packet gets from every pod to every other one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_agent::{ActualRoute, Desired, FdbKey, NeighbourKey, NextHop, Owner, leads_elsewhere};
use caracal_model::{IfName, Prefix};

use crate::cluster::{Machine, addresses, gateways};
use crate::history::World;
use crate::kernel::{Kernel, UPLINK};

/// Routes of others that are not part of the network: the agent yields to them.
const INTRUDERS: u8 = 4;

/// Each process that knows everything has made its kernel what it wants; one that does not has put
/// everything and taken nothing.
///
/// # Errors
/// The first difference.
pub fn check(world: &World) -> Result<(), String> {
    for machine in world.cluster.machines.values() {
        let Some(agent) = &machine.agent else {
            continue;
        };
        if agent.snapshot.revision == 0 {
            continue;
        }
        let desired = agent.desired(&machine.kernel);
        let name = &machine.name;
        puts(&desired, &machine.kernel).map_err(|e| format!("{name}: {e}"))?;
        if agent.fresh && agent.converged && !agent.is_waiting() {
            nothing_else(&desired, &machine.kernel).map_err(|e| format!("{name}: {e}"))?;
        }
    }
    Ok(())
}

/// Everything that is planned is there, but for what somebody else's route is in the place of, and
/// what the kernel refuses because somebody else's route leads to the next hop.
fn puts(desired: &Desired, kernel: &Kernel) -> Result<(), String> {
    let actual = &kernel.actual;
    for planned in desired.routes.values() {
        let route = &planned.route;
        let there = actual.routes.get(&route.key());
        let there = there.map_or(&[][..], Vec::as_slice);
        let right = |r: &ActualRoute| r.satisfies(route);
        let taken = there.iter().any(|r| kernel.foreign().contains(r));
        let held = desired.deferred.contains_key(&route.prefix);
        let barred = route.target.hops().iter().any(|hop| {
            let elsewhere = leads_elsewhere(actual, hop);
            elsewhere.is_some_and(|r| kernel.foreign().contains(r))
        });
        if !there.iter().any(right) && !taken && !held && !barred {
            return Err(format!("no route {route}; there is {there:?}"));
        }
    }
    for (name, tunnel) in &desired.tunnels {
        let link = actual.links.by_name(name.as_str());
        let Some(link) = link.filter(|l| l.up && l.mtu == tunnel.mtu) else {
            return Err(format!("device {name} is {link:?}"));
        };
        if tunnel
            .cidr()
            .is_some_and(|cidr| !link.addresses.contains(&cidr))
        {
            return Err(format!("device {name} has {:?}", link.addresses));
        }
    }
    for (key, mac) in &desired.neighbours {
        let there = actual.neighbours.get(key);
        if there.is_none_or(|n| !n.permanent || n.mac != Some(*mac)) {
            return Err(format!("neighbour {key} is {there:?}"));
        }
    }
    for (key, remote) in &desired.fdb {
        if actual.fdb.get(key) != Some(remote) {
            return Err(format!("FDB entry {key} is {:?}", actual.fdb.get(key)));
        }
    }
    for (path, value) in &desired.sysctls {
        if actual.sysctls.get(path) != Some(value) {
            return Err(format!("{path} is {:?}", actual.sysctls.get(path)));
        }
    }
    let nat = desired.nat.as_ref().map(|nat| nat.fingerprint());
    if nat.is_some() && actual.nat != nat {
        return Err(format!("NAT is {:?}", actual.nat));
    }
    Ok(())
}

/// Nothing of ours is there that is not planned.
fn nothing_else(desired: &Desired, kernel: &Kernel) -> Result<(), String> {
    let actual = &kernel.actual;
    // A route that stays until its far end can receive what the pool's mode sends keeps its device
    // (AGENT-7).
    let held = actual.all_routes().filter(|r| {
        desired.ownership.route(r) == Owner::Ours && desired.deferred.contains_key(&r.prefix)
    });
    let in_use: BTreeSet<&IfName> = held
        .flat_map(|r| r.next_hops())
        .map(|hop| &hop.link)
        .collect();
    for route in actual.all_routes() {
        if desired.ownership.route(route) != Owner::Ours {
            continue;
        }
        let planned = desired.routes.get(&route.prefix);
        let right = |p: &caracal_agent::PlannedRoute| route.satisfies(&p.route);
        if !planned.is_some_and(right) && !desired.deferred.contains_key(&route.prefix) {
            return Err(format!("{route:?} is not wanted"));
        }
    }
    for link in actual.links.iter() {
        let wanted = desired.tunnels.get(&link.name);
        if in_use.contains(&link.name) {
            continue;
        }
        if desired.ownership.tunnel(link) && wanted.is_none() && link.kind == "vxlan" {
            return Err(format!("device {} is not wanted", link.name));
        }
        for address in &link.addresses {
            let right = wanted.is_some_and(|t| t.address.is_none() || t.cidr() == Some(*address));
            if desired.ownership.address(link, address) && !right {
                return Err(format!("address {address} of {} is not wanted", link.name));
            }
        }
    }
    let neighbours = actual.neighbours.iter();
    for (key, neighbour) in neighbours {
        let wanted = desired.neighbours.contains_key(key) || in_use.contains(&key.link);
        if desired.ownership.neighbour(key, neighbour) && !wanted {
            return Err(format!("neighbour {key} is not wanted"));
        }
    }
    for key in actual.fdb.keys() {
        let wanted = desired.fdb.contains_key(key) || in_use.contains(&key.link);
        if desired.ownership.fdb(key) && !wanted {
            return Err(format!("FDB entry {key} is not wanted"));
        }
    }
    Ok(())
}

/// A packet from every pod reaches every pod, where all processes run, the lines are up, and no
/// route of somebody else's is in the way.
///
/// # Errors
/// The first pair that fails, with the way that the packet took.
pub fn reach(world: &World) -> Result<usize, String> {
    let mut walked = 0;
    for from in &world.pods {
        for to in &world.pods {
            for prefix in &to.addresses {
                let family = prefix.family();
                if !from.addresses.iter().any(|a| a.family() == family) {
                    continue;
                }
                let mut way = Vec::new();
                let arrives = walk(world, from.machine, prefix.address(), &mut way);
                match arrives {
                    Some(interface) if interface == to.interface => walked += 1,
                    Some(_) if way.last().is_some_and(|w| w == "intruder") => {}
                    other => {
                        let (a, b) = (&from.name, &to.name);
                        return Err(format!("{a} to {b} ({prefix}): {way:?}, {other:?}"));
                    }
                }
            }
        }
    }
    Ok(walked)
}

/// The interface at which a packet leaves for its pod.
fn walk(world: &World, start: usize, to: IpAddr, way: &mut Vec<String>) -> Option<String> {
    let mut at = start;
    for _ in 0..4 {
        let machine = world.cluster.machines.get(&at)?;
        let route = machine.kernel.lookup(to)?;
        way.push(format!(
            "{}: {} {:?}",
            machine.name, route.prefix, route.target
        ));
        if route.protocol > INTRUDERS && route.protocol != 80 {
            way.push("intruder".to_owned());
            return Some(String::new());
        }
        let [hop] = route.next_hops() else {
            return None;
        };
        if hop.link.as_str().starts_with("cali") {
            return Some(hop.link.to_string());
        }
        at = next(world, machine, hop, to)?;
    }
    None
}

/// The machine behind a next hop. The router between the subnets knows where pods are: where
/// packets go unencapsulated, the fabric has to.
fn next(world: &World, machine: &Machine, hop: &NextHop, to: IpAddr) -> Option<usize> {
    let gateway = hop.gateway?;
    let link = hop.link.as_str();
    let kernel = &machine.kernel.actual;
    if !kernel.links.by_name(link)?.up {
        return None;
    }
    let owner = |address: IpAddr| {
        let mut machines = world.cluster.machines.values();
        machines
            .find(|m| addresses(m.number).iter().any(|a| a.address == address))
            .map(|m| m.number)
    };
    match link {
        UPLINK if gateways(machine.number).contains(&gateway) => {
            let mut pods = world.pods.iter();
            let pod = pods.find(|pod| pod.addresses.contains(&Prefix::host(to)))?;
            Some(pod.machine)
        }
        UPLINK => {
            let own = addresses(machine.number);
            let near = own.iter().any(|a| a.prefix().contains(gateway));
            owner(gateway).filter(|_| near)
        }
        "tunl0" => {
            let other = owner(gateway)?;
            let tunnel = world.cluster.machines[&other]
                .kernel
                .actual
                .links
                .by_name(link);
            tunnel.filter(|l| l.up).map(|_| other)
        }
        _ => {
            let neighbour = NeighbourKey {
                link: hop.link.clone(),
                address: gateway,
            };
            let mac = kernel.neighbours.get(&neighbour)?.mac?;
            let remote = kernel.fdb.get(&FdbKey {
                link: hop.link.clone(),
                mac,
            })?;
            let other = owner(*remote)?;
            let tunnel = world.cluster.machines[&other]
                .kernel
                .actual
                .links
                .by_name(link)?;
            (tunnel.up && tunnel.mac == Some(mac)).then_some(other)
        }
    }
}

/// Definition of rest: the network and the datastore are whole, and every process runs.
pub fn is_calm(world: &World) -> bool {
    let cluster = &world.cluster;
    cluster.etcd_up
        && cluster
            .machines
            .values()
            .all(|m| m.agent.is_some() && m.is_connected())
}
