//! `caracal status`: one node at a glance. Exit code 4 when something is wrong.

use std::collections::BTreeMap;
use std::process::ExitCode;

use caracal_model::{
    BlockStatus, CacheStatusJson, DatastoreStatus, KernelStatus, NodeStatus, OriginStatusJson,
    PathStatusJson, PeerStatusJson, StationStatusJson,
};

use serde_json::Value;

use super::all_nodes::{self, Aspect};
use super::duration;
use super::output::watch;
use super::whom::Whom;
use crate::admin::Request;
use crate::args::{NodesArgs, Output};
use crate::exit::DEGRADED;

/// Narrow paths that are named.
const SHOWN_PATHS: usize = 5;
/// The state of a peer whose session is up.
const UP: &str = "Established";

pub(crate) fn run(nodes: &NodesArgs, goes_on: bool, output: Output) -> anyhow::Result<ExitCode> {
    if nodes.all_nodes {
        return all_nodes::run(Aspect::Status, goes_on, output);
    }
    let whom = Whom::from(&nodes.one);
    let ask = || whom.ask(&Request::Status);
    if goes_on {
        return watch(output, ask, |value| show(value, output));
    }
    show(&ask()?, output)
}

fn show(value: &Value, output: Output) -> anyhow::Result<ExitCode> {
    let status: NodeStatus = serde_json::from_value(value.clone())?;
    match output {
        Output::Json | Output::Yaml => output.print(value),
        Output::Table | Output::Wide => print(&status, output),
    }
    Ok(if is_healthy(&status) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DEGRADED)
    })
}

/// Nothing is wrong. A standalone speaker has no datastore.
pub(super) fn is_healthy(status: &NodeStatus) -> bool {
    status.problems.is_empty() && matches!(status.datastore.state.as_str(), "fresh" | "none")
}

fn because(reason: Option<&String>) -> String {
    reason
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default()
}

fn list(items: &[String]) -> String {
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

/// The narrow ones by name.
fn paths(paths: &[PathStatusJson]) -> String {
    let narrow: Vec<&PathStatusJson> = paths.iter().filter(|p| p.mtu < p.interface_mtu).collect();
    let measured = format!("{} measured", paths.len());
    if narrow.is_empty() {
        return format!("{measured}, all as wide as the interface");
    }
    let shown = narrow.iter().take(SHOWN_PATHS).map(|p| {
        format!(
            "MTU {} to {} ({}; interface {})",
            p.mtu, p.node, p.address, p.interface_mtu
        )
    });
    let shown: Vec<String> = shown.collect();
    let more = match narrow.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{measured}; {}{more}", shown.join(", "))
}

/// Routes that are refused for their prefix, in a line.
fn refused(origin: &OriginStatusJson) -> String {
    let last = origin.last_violation.as_ref();
    let last = last.map_or_else(String::new, |last| format!("; the last was {last}"));
    format!(
        "Origin check: {}; {} routes not from the owner, {} waiting, {} over nodes, {} never routed; {} violations since the start{last}",
        origin.mode,
        origin.not_owner,
        origin.waiting,
        origin.over_nodes,
        origin.never_routed,
        origin.violations
    )
}

fn print(status: &NodeStatus, output: Output) {
    println!(
        "Node {} ({}), caracal {}, up {}, AS {}, router id {}",
        status.node,
        list(&status.addresses),
        status.version,
        duration(status.uptime_seconds),
        status.asn,
        status.router_id
    );
    for work in &status.work {
        println!("Table: {work}");
    }
    println!("{}", datastore_line(&status.datastore));
    println!("{}", kernel_line(&status.kernel));
    let kernel = &status.kernel;
    if !kernel.paths.is_empty() {
        println!("Paths: {}", paths(&kernel.paths));
    }
    if let Some(origin) = &status.origin {
        println!("{}", refused(origin));
    }
    if let Some(drain) = &status.drain {
        println!("Drain: {drain} (caracal drain --undo takes the node back into service)");
    }
    if !status.peers.is_empty() {
        println!("\n{}", peers(status, output, false));
    }
    if !status.stations.is_empty() {
        println!("\n{}", stations(&status.stations, output));
    }
    if !status.caches.is_empty() {
        println!("\n{}", caches(&status.caches, output));
    }
    if !status.blocks.is_empty() {
        println!("\n{}", blocks(&status.blocks, output));
    }
    if !status.problems.is_empty() {
        println!("\nPROBLEMS");
        for p in &status.problems {
            println!("  {} {}: {}", p.code, p.subject, p.reason);
        }
    }
}

fn datastore_line(datastore: &DatastoreStatus) -> String {
    let which = match datastore.kind.is_empty() {
        true => String::new(),
        false => format!(", {} at {}", datastore.kind, datastore.endpoints),
    };
    format!(
        "Datastore: {}{} at revision {}{which}{}",
        datastore.state,
        match datastore.no_writes {
            Some(_) => ", takes no writes",
            None => "",
        },
        datastore.revision,
        because(datastore.reason.as_ref())
    )
}

fn kernel_line(kernel: &KernelStatus) -> String {
    let routes = kernel.routes.iter();
    let routes: Vec<String> = routes.map(|(k, n)| format!("{n} {k}")).collect();
    format!(
        "Kernel: {} at revision {}{}; routes: {}; next hops: {}; tunnels: {}; NAT: {}",
        kernel.phase,
        kernel.revision,
        because(kernel.reason.as_ref()),
        list(&routes),
        kernel.next_hops,
        list(&kernel.tunnels),
        kernel.nat
    )
}

fn stations(stations: &[StationStatusJson], output: Output) -> comfy_table::Table {
    let mut table = output.table(&["STATION", "ADDRESS", "STATE", "CONNECTIONS", "INFO"]);
    for s in stations {
        table.add_row([
            s.name.clone(),
            s.address.clone(),
            s.state.clone(),
            s.connections.to_string(),
            s.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn caches(caches: &[CacheStatusJson], output: Output) -> comfy_table::Table {
    let header = ["CACHE", "ADDRESS", "STATE", "ENTRIES", "UPDATED", "INFO"];
    let mut table = output.table(&header);
    for c in caches {
        let updated = c.updated_seconds.map(|seconds| format!("{seconds} s ago"));
        table.add_row([
            c.name.clone(),
            c.address.clone(),
            c.state.clone(),
            c.entries.to_string(),
            updated.unwrap_or_default(),
            c.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn blocks(blocks: &[BlockStatus], output: Output) -> comfy_table::Table {
    let mut table = output.table(&["BLOCK", "STATE", "IN USE"]);
    for b in blocks {
        table.add_row([
            b.cidr.to_string(),
            b.state.clone(),
            format!("{} of {}", b.in_use, b.size),
        ]);
    }
    table
}

/// Warning of the session; else the reason why there is none, or why the last one ended (in the
/// past tense). What ended a session before the one that is up is over: `bgp peer` has it.
fn info(peer: &PeerStatusJson) -> String {
    if let Some(warning) = &peer.warning {
        return warning.clone();
    }
    let past = peer.last_error.as_ref().filter(|_| peer.state != UP);
    match (&peer.reason, past) {
        (Some(reason), _) => reason.clone(),
        (None, Some(past)) => {
            format!("was {} ago: {}", duration(past.age_seconds), past.text)
        }
        (None, None) => String::new(),
    }
}

/// `bad_open 3, collision 1`.
pub(super) fn errors(errors: &BTreeMap<String, u64>) -> String {
    let each = errors.iter().map(|(kind, count)| format!("{kind} {count}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The peers as a table; also what `caracal bgp peers` prints, with the errors by kind.
pub(super) fn peers(status: &NodeStatus, output: Output, with_errors: bool) -> comfy_table::Table {
    // Where nobody has asked for BFD, or written a BGPPeer, its column would be empty.
    let bfd = status.peers.iter().any(|peer| peer.bfd.is_some());
    let called = status.peers.iter().any(|peer| peer.bgp_peer.is_some());
    let mut columns = vec![
        "PEER", "ADDRESS", "AS", "TYPE", "STATE", "SINCE", "RX", "ACC", "TX", "INFO",
    ];
    if bfd {
        columns.insert(6, "BFD");
    }
    if called {
        columns.insert(1, "BGPPEER");
    }
    let with_errors = with_errors && status.peers.iter().any(|p| !p.errors.is_empty());
    if with_errors {
        columns.push("ERRORS");
    }
    let mut peers = output.table(&columns);
    for p in &status.peers {
        let mut row = vec![
            p.name.clone(),
            p.address.map(|a| a.to_string()).unwrap_or_default(),
            p.asn.to_string(),
            p.kind.clone(),
            p.state.clone(),
            // A peer that is down changes its state every few seconds.
            duration(p.down_seconds.unwrap_or(p.since_seconds)),
            p.received.to_string(),
            p.accepted.to_string(),
            p.advertised.to_string(),
            info(p),
        ];
        if with_errors {
            row.push(errors(&p.errors));
        }
        if bfd {
            row.insert(
                6,
                p.bfd
                    .as_ref()
                    .map(|bfd| bfd.state.clone())
                    .unwrap_or_default(),
            );
        }
        if called {
            row.insert(1, p.bgp_peer.clone().unwrap_or_default());
        }
        peers.add_row(row);
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;
    use caracal_model::{BfdStatusJson, PastErrorJson};

    fn status(bfd: Option<BfdStatusJson>) -> NodeStatus {
        let peer = PeerStatusJson {
            name: "edge".to_owned(),
            state: "Established".to_owned(),
            bfd,
            ..PeerStatusJson::default()
        };
        NodeStatus {
            peers: vec![peer, PeerStatusJson::default()],
            ..NodeStatus::default()
        }
    }

    #[test]
    fn what_ended_the_last_session_is_told_as_past_and_not_when_it_is_over() {
        let past = PastErrorJson {
            age_seconds: 190,
            text: "peer closed the connection".to_owned(),
        };
        let mut status = status(None);
        status.peers[0].last_error = Some(past);
        status.peers[0].errors = [("connection_lost".to_owned(), 2)].into();
        let shown = peers(&status, Output::Wide, true).to_string();
        let last_error = "was 3m10s ago: peer closed the connection";
        assert!(!shown.contains("ago"), "{shown}");
        status.peers[0].state = "Active".to_owned();
        let shown = peers(&status, Output::Wide, true).to_string();
        assert!(shown.contains(last_error), "{shown}");
        assert!(shown.contains("connection_lost 2"), "{shown}");
        assert!(
            !peers(&status, Output::Wide, false)
                .to_string()
                .contains("ERRORS")
        );
        status.peers[0].reason = Some("TCP 179 refused".to_owned());
        let shown = peers(&status, Output::Wide, false).to_string();
        assert!(
            !shown.contains("ago") && shown.contains("refused"),
            "{shown}"
        );
    }

    #[test]
    fn a_peer_that_is_down_is_so_since_its_last_session() {
        let mut status = status(None);
        status.peers[0].since_seconds = 4;
        let shown = peers(&status, Output::Wide, false).to_string();
        assert!(
            shown.contains("4s") && !shown.contains("BGPPEER"),
            "{shown}"
        );
        status.peers[0].state = "Active".to_owned();
        status.peers[0].down_seconds = Some(3 * 60);
        status.peers[0].bgp_peer = Some("tor".to_owned());
        let shown = peers(&status, Output::Wide, false).to_string();
        assert!(shown.contains("3m") && !shown.contains("4s"), "{shown}");
        assert!(
            shown.contains("BGPPEER") && shown.contains("tor"),
            "{shown}"
        );
    }

    #[test]
    fn bfd_has_a_column_where_somebody_asked_for_it() {
        let up = BfdStatusJson {
            state: "Up".to_owned(),
            ..BfdStatusJson::default()
        };
        let watched = status(Some(up));
        let shown = peers(&watched, Output::Table, false).to_string();
        assert!(shown.contains("BFD") && shown.contains("Up"), "{shown}");
        let plain = peers(&status(None), Output::Table, false).to_string();
        assert!(!plain.contains("BFD"), "{plain}");
        let json = serde_json::to_value(&watched).unwrap_or_default();
        assert_eq!(json["peers"][0]["bfd"]["state"], "Up");
        assert!(json["peers"][1].get("bfd").is_none(), "{json}");
    }
}
