//! Plan ↔ kernel: what the agent would have to do now, were it asked again, is what is wrong.

use std::collections::BTreeSet;

use caracal_model::{IfName, InsertEach, Problem, ProblemCode};

use super::{AuditCode, AuditInputs, Observation};
use crate::actual::{Actual, ActualTarget};
use crate::diff::{CompareJob, Phase};
use crate::kernel_objects::Route;
use crate::op::Op;

/// Everything but the comparison of plan and kernel, and that one where there is one to make.
pub(super) fn compare<'a>(
    inputs: &AuditInputs<'a>,
    found: &mut Vec<Observation>,
) -> Option<CompareJob<'a>> {
    if let Some(reason) = &inputs.agent.reason
        && !is_synced(inputs)
    {
        let seen = format!("the agent is {}: {reason}", inputs.agent.phase);
        found.push(Observation::new(AuditCode::NotSynced, "agent", seen));
    }
    let (planned, done) = (inputs.desired.revision, inputs.agent.revision);
    if done < inputs.revision {
        let seen = format!(
            "the datastore is at revision {}, the plan at {planned}, and the kernel at {done}",
            inputs.revision
        );
        // Another revision is another finding: the agent moves.
        let subject = format!("revision {done}");
        found.push(Observation::new(AuditCode::Behind, subject, seen));
    }
    let actual = match inputs.actual {
        Ok(actual) => actual,
        Err(reason) => {
            let seen = format!("reading routes, devices and neighbours failed: {reason}");
            found.push(Observation::new(
                AuditCode::KernelUnreadable,
                "kernel",
                seen,
            ));
            return None;
        }
    };
    // Nothing is planned before the first snapshot.
    (planned != 0).then(|| CompareJob::new(inputs.desired, actual, Phase::Synced))
}

fn is_synced(inputs: &AuditInputs<'_>) -> bool {
    inputs.agent.phase == Phase::Synced.as_str()
}

/// What the comparison of plan and kernel says.
pub(super) fn judge(
    inputs: &AuditInputs<'_>,
    (ops, conflicts): (Vec<Op>, Vec<Problem>),
    found: &mut Vec<Observation>,
) {
    let Ok(actual) = inputs.actual else { return };
    foreign(conflicts, found);
    let made_anew: BTreeSet<IfName> = ops
        .iter()
        .filter_map(|op| match op {
            Op::AddTunnel(tunnel) => Some(tunnel.name.clone()),
            _ => None,
        })
        .filter(|name| actual.links.by_name(name.as_str()).is_some())
        .insert_each();
    for op in &ops {
        // Unwanted objects stay on purpose while the agent is not in sync.
        if op.is_delete() && !is_synced(inputs) {
            continue;
        }
        if matches!(op, Op::DeleteTunnel(name) if made_anew.contains(name)) {
            continue;
        }
        found.extend(observation(op, actual, &made_anew));
    }
}

/// Findings about objects of other programs.
fn foreign(conflicts: Vec<Problem>, found: &mut Vec<Observation>) {
    for problem in conflicts {
        let (code, what) = match problem.code {
            ProblemCode::AgentForeignDevice => (AuditCode::DeviceForeign, "device"),
            _ => (AuditCode::RouteForeign, "route"),
        };
        let seen = format!("{what} {}: {}", problem.subject, problem.reason);
        found.push(Observation::new(code, problem.subject, seen));
    }
}

/// Finding that a needed operation proves.
fn observation(op: &Op, actual: &Actual, made_anew: &BTreeSet<IfName>) -> Option<Observation> {
    let (code, subject, seen) = missing(op, actual, made_anew).or_else(|| left_over(op))?;
    Some(Observation {
        code,
        subject,
        seen,
        settling: false,
    })
}

/// Code, subject and sentence of an observation.
type KernelFinding = (AuditCode, String, String);

/// Finding of a needed operation that adds or replaces: something is missing or wrong.
fn missing(op: &Op, actual: &Actual, made_anew: &BTreeSet<IfName>) -> Option<KernelFinding> {
    Some(match op {
        Op::AddTunnel(tunnel) if made_anew.contains(&tunnel.name) => (
            AuditCode::DeviceWrong,
            tunnel.name.to_string(),
            format!("device {} is not made as planned", tunnel.name),
        ),
        Op::AddTunnel(tunnel) => (
            AuditCode::DeviceMissing,
            tunnel.name.to_string(),
            format!(
                "the kernel has no {} device {}",
                tunnel.kind.as_str(),
                tunnel.name
            ),
        ),
        Op::SetTunnel(tunnel) => {
            let link = actual.links.by_name(tunnel.name.as_str())?;
            let seen = format!(
                "device {} is {} with MTU {}; it is to be up with MTU {}",
                tunnel.name,
                if link.up { "up" } else { "down" },
                link.mtu,
                tunnel.mtu
            );
            (AuditCode::DeviceWrong, tunnel.name.to_string(), seen)
        }
        Op::SetMac(link, mac) => {
            let mac = caracal_model::format_mac(mac);
            let seen = format!(
                "device {link} does not have the MAC address {mac}, by which its workload knows this node"
            );
            (AuditCode::DeviceWrong, link.to_string(), seen)
        }
        Op::AddAddress(link, cidr) => (
            AuditCode::TunnelAddressMissing,
            link.to_string(),
            format!("device {link} does not have {cidr}"),
        ),
        Op::PutNeighbour(key, mac) => {
            let mac = caracal_model::format_mac(mac);
            let seen = format!("the kernel does not have neighbour {key} with {mac}");
            (AuditCode::NeighbourMissing, key.to_string(), seen)
        }
        Op::PutFdb(key, remote) => {
            let there = actual.fdb.get(key).map_or_else(
                || "has no such entry".to_owned(),
                |other| format!("sends to {other}"),
            );
            let seen = format!("the FDB is to send {key} to {remote}, and {there}");
            (AuditCode::FdbMissing, key.to_string(), seen)
        }
        Op::AddObject(object) | Op::ReplaceObject(object) => (
            AuditCode::NextHopMissing,
            object.id.to_string(),
            format!("the kernel has no next-hop object {object}"),
        ),
        Op::AddRoute(route) => (
            AuditCode::RouteMissing,
            route.prefix.to_string(),
            format!("the kernel has no route {route}"),
        ),
        Op::ReplaceRoute(route) => (
            AuditCode::RouteWrong,
            route.prefix.to_string(),
            format!(
                "the kernel has {} in the place of {route}",
                present(route, actual)
            ),
        ),
        Op::WriteSysctl(path, value) => {
            let there = actual
                .sysctls
                .get(path)
                .map_or("not readable", String::as_str);
            let seen = format!("/proc/sys/{path} is {there}, and is to be {value}");
            (AuditCode::SysctlWrong, path.clone(), seen)
        }
        Op::PutNat(_) | Op::DeleteNat => nat(actual),
        Op::DeleteObject(_)
        | Op::DeleteRoute(_)
        | Op::DeleteFdb(..)
        | Op::DeleteNeighbour(_)
        | Op::DeleteAddress(..)
        | Op::DeleteTunnel(_) => return None,
    })
}

/// Finding of a needed operation that deletes: something is left over.
fn left_over(op: &Op) -> Option<KernelFinding> {
    Some(match op {
        Op::DeleteObject(id) => (
            AuditCode::NextHopLeftover,
            id.to_string(),
            format!("the kernel has next-hop object {id}, which no route leads through"),
        ),
        Op::DeleteRoute(route) => (
            AuditCode::RouteLeftover,
            route.prefix.to_string(),
            format!(
                "the kernel has {} (protocol {}, metric {}), which nothing asks for",
                words(&route.target, route.prefix),
                route.protocol,
                route.metric
            ),
        ),
        Op::DeleteFdb(key, remote) => (
            AuditCode::FdbLeftover,
            key.to_string(),
            format!("the FDB sends {key} to {remote}, which nothing asks for"),
        ),
        Op::DeleteNeighbour(key) => (
            AuditCode::NeighbourLeftover,
            key.to_string(),
            format!("the kernel has neighbour {key}, which nothing asks for"),
        ),
        Op::DeleteAddress(link, cidr) => (
            AuditCode::DeviceLeftover,
            format!("{link} {cidr}"),
            format!("device {link} has address {cidr}, which nothing asks for"),
        ),
        Op::DeleteTunnel(link) => (
            AuditCode::DeviceLeftover,
            link.to_string(),
            format!("device {link} is there, and no pool uses it"),
        ),
        _ => return None,
    })
}

fn nat(actual: &Actual) -> KernelFinding {
    let there = match &actual.nat {
        None => "there are none",
        Some(_) => "others are there",
    };
    let seen = format!("NAT and forwarding rules of ours are planned, and {there}");
    (AuditCode::NatWrong, "nat".to_owned(), seen)
}

/// The route that stands where one is planned.
fn present(route: &Route, actual: &Actual) -> String {
    let there = actual.routes.get(&route.key()).and_then(|all| all.first());
    match there.map(|other| (other, other.known())) {
        Some((_, Some(known))) => known.to_string(),
        Some((other, None)) => words(&other.target, other.prefix),
        None => "nothing".to_owned(),
    }
}

fn words(target: &ActualTarget, prefix: caracal_model::Prefix) -> String {
    match target {
        ActualTarget::Known(target) => format!("{prefix} {target}"),
        ActualTarget::Other(kind) => format!("{prefix} of route type {kind}"),
    }
}
