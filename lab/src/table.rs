//! A [`LabReport`] as tables for people.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::matrix::{self, Matrix};
use crate::report::{LabReport, NodeReport};

/// Pods above which the matrix is told in words.
const MATRIX_WIDTH: usize = 12;
/// Kinds of routes, in the order of the columns.
const ROUTE_KINDS: [&str; 5] = ["blackhole", "local", "direct", "ipip", "vxlan"];

/// The whole report. Tables are at most `columns` wide, if that is given: cells wrap.
#[must_use]
pub fn render(report: &LabReport, columns: Option<u16>) -> String {
    let mut text = String::new();
    section(&mut text, "Nodes", nodes(report), columns);
    if let Some(peers) = peers(report) {
        section(&mut text, "Peers", peers, columns);
    }
    if let Some(blocks) = blocks(report) {
        section(&mut text, "Blocks", blocks, columns);
    }
    text.push_str(&troubles(report));
    let matrices: Vec<_> = report.matrices().map(|m| pings(m, columns)).collect();
    text.push_str(&matrices.join("\n"));
    text
}

fn section(text: &mut String, title: &str, mut table: Table, columns: Option<u16>) {
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(columns);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{title}\n{table}\n");
}

fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn nodes(report: &LabReport) -> Table {
    let mut header = vec![
        "node", "address", "segment", "kind", "state", "peers up", "pods",
    ];
    header.extend(ROUTE_KINDS);
    let mut table = table(&header, &[6, 7, 8, 9, 10, 11]);
    for node in &report.nodes {
        let (up, all) = node.peers();
        let mut row = vec![
            node.name.clone(),
            match &node.address6 {
                Some(second) => format!("{}\n{second}", node.address),
                None => node.address.clone(),
            },
            node.segment.clone(),
            node.kind.to_owned(),
            state(node),
            if node.status.is_some() {
                format!("{up}/{all}")
            } else {
                "–".to_owned()
            },
            node.pods.to_string(),
        ];
        row.extend(ROUTE_KINDS.map(|kind| match node.routes.get(kind) {
            Some(count) => count.to_string(),
            None => "·".to_owned(),
        }));
        table.add_row(row);
    }
    table
}

/// One word for how a node is.
fn state(node: &NodeReport) -> String {
    match (&node.status, &node.error) {
        (_, Some(_)) if !node.running => "down".to_owned(),
        (_, Some(_)) => "no answer".to_owned(),
        (Some(status), None) if !status.datastore.state.is_empty() => {
            format!("{} @{}", status.datastore.state, status.datastore.revision)
        }
        _ if node.running => "running".to_owned(),
        _ => "–".to_owned(),
    }
}

fn peers(report: &LabReport) -> Option<Table> {
    let header = [
        "node",
        "peer",
        "address",
        "AS",
        "kind",
        "state",
        "received",
        "accepted",
        "advertised",
    ];
    let mut table = table(&header, &[3, 6, 7, 8]);
    for node in &report.nodes {
        for peer in node.status.iter().flat_map(|s| &s.peers) {
            let stale = if peer.stale { " (stale)" } else { "" };
            table.add_row([
                node.name.clone(),
                peer.name.clone(),
                peer.address
                    .map_or_else(|| "–".to_owned(), |a| a.to_string()),
                peer.asn.to_string(),
                peer.kind.clone(),
                format!("{}{stale}", peer.state),
                peer.received.to_string(),
                peer.accepted.to_string(),
                peer.advertised.to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn blocks(report: &LabReport) -> Option<Table> {
    let mut table = table(&["node", "block", "affinity", "in use"], &[3]);
    for node in &report.nodes {
        for block in node.status.iter().flat_map(|s| &s.blocks) {
            table.add_row([
                node.name.clone(),
                block.cidr.to_string(),
                block.state.clone(),
                format!("{}/{}", block.in_use, block.size),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Everything that is not as it should be, one line each.
fn troubles(report: &LabReport) -> String {
    let mut text = String::new();
    let mut line = |node: &str, words: &str| {
        let _ = writeln!(text, "! {node}: {words}");
    };
    for node in &report.nodes {
        if let Some(error) = &node.error {
            line(&node.name, error);
        }
        let Some(status) = &node.status else { continue };
        if let Some(reason) = &status.datastore.reason {
            line(&node.name, &format!("datastore: {reason}"));
        }
        if let Some(reason) = &status.kernel.reason {
            line(&node.name, &format!("kernel: {reason}"));
        }
        for peer in status.peers.iter().filter(|p| p.state != "Established") {
            let reason = peer.reason.as_deref().unwrap_or("no reason given");
            line(
                &node.name,
                &format!("peer {} is {}: {reason}", peer.name, peer.state),
            );
        }
        for problem in &status.problems {
            line(
                &node.name,
                &format!("{}: {}", problem.subject, problem.reason),
            );
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn pings(matrix: &Matrix, columns: Option<u16>) -> String {
    let lost = matrix.lost();
    let mut text = String::new();
    let family = match matrix.addresses.iter().flatten().any(|a| a.is_ipv6()) {
        true => "IPv6 ",
        false => "",
    };
    if matrix.pods.len() <= MATRIX_WIDTH {
        section(
            &mut text,
            &format!("{family}Ping (row to column, milliseconds)"),
            grid(matrix),
            columns,
        );
    }
    for (from, to, reason) in lost.iter().take(20) {
        let _ = writeln!(text, "✗ {from} → {to}: {reason}");
    }
    if lost.len() > 20 {
        let _ = writeln!(text, "✗ … and {} more", lost.len() - 20);
    }
    let (pairs, took) = (matrix.pairs(), matrix.took.as_secs_f64());
    let mark = if lost.is_empty() { "✓" } else { "✗" };
    let _ = writeln!(
        text,
        "{mark} {} of {pairs} {family}pings answered in {took:.1} s",
        pairs - lost.len()
    );
    text
}

fn grid(matrix: &Matrix) -> Table {
    let mut header = vec!["from \\ to".to_owned()];
    header.extend(matrix.pods.iter().cloned());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let right: Vec<usize> = (1..=matrix.pods.len()).collect();
    let mut table = table(&header, &right);
    for (i, row) in matrix.cells.iter().enumerate() {
        let address = matrix.addresses[i]
            .map(|a| format!(" {a}"))
            .unwrap_or_default();
        let mut cells = vec![Cell::new(format!("{}{address}", matrix.pods[i]))];
        cells.extend(row.iter().map(|cell| match cell {
            matrix::Cell::Own => Cell::new("·"),
            matrix::Cell::Answer { ms, .. } => Cell::new(format!("✓ {ms:.2}")),
            matrix::Cell::Lost { .. } => Cell::new("✗"),
        }));
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use caracal_model::{BlockStatus, NodeStatus, PeerStatusJson};

    use super::*;

    fn report() -> LabReport {
        let peer = |name: &str, state: &str| PeerStatusJson {
            name: name.to_owned(),
            address: Some([10, 0, 0, 2].into()),
            asn: 64512,
            kind: "mesh".to_owned(),
            state: state.to_owned(),
            ..PeerStatusJson::default()
        };
        let mut status = NodeStatus {
            node: "node1".to_owned(),
            peers: vec![
                peer("Mesh_10_0_0_2", "Established"),
                peer("Mesh_10_0_0_3", "Active"),
            ],
            blocks: vec![BlockStatus {
                cidr: "10.244.1.0/26".parse().expect("a prefix"),
                state: "confirmed".to_owned(),
                in_use: 2,
                size: 64,
            }],
            ..NodeStatus::default()
        };
        status.datastore.state = "fresh".to_owned();
        status.datastore.revision = 42;
        let node = |name: &str, status: Option<NodeStatus>, error: Option<&str>| NodeReport {
            name: name.to_owned(),
            kind: "caracal",
            address: "10.0.0.1/24".to_owned(),
            address6: None,
            segment: "lan".to_owned(),
            running: error.is_none(),
            status,
            error: error.map(str::to_owned),
            routes: BTreeMap::from([("blackhole", 1), ("direct", 2)]),
            pods: 1,
        };
        let ms = |ms| matrix::Cell::Answer { ms, attempts: 1 };
        let lost = matrix::Cell::Lost {
            reason: "no answer".to_owned(),
            attempts: 3,
        };
        LabReport {
            lab: "t".to_owned(),
            nodes: vec![
                node("node1", Some(status), None),
                node("node2", None, Some("gone")),
            ],
            matrix: Some(Matrix {
                pods: vec!["node1/p1".to_owned(), "node2/p1".to_owned()],
                addresses: vec![Some([10, 244, 1, 1].into()), None],
                cells: vec![
                    vec![matrix::Cell::Own, ms(0.05)],
                    vec![lost, matrix::Cell::Own],
                ],
                took: Duration::from_millis(1200),
            }),
            matrix6: None,
        }
    }

    #[test]
    fn everything_is_shown_once() {
        let text = render(&report(), None);
        for part in [
            "│ node1 ┆ 10.0.0.1/24 ┆ lan     ┆ caracal ┆ fresh @42 ┆ 1/2      ┆",
            "│ node2 ┆ 10.0.0.1/24 ┆ lan     ┆ caracal ┆ down      ┆ –        ┆",
            "10.244.1.0/26",
            "2/64",
            "! node1: peer Mesh_10_0_0_3 is Active: no reason given",
            "! node2: gone",
            "✓ 0.05",
            "✗ node2/p1 → node1/p1: no answer",
            "✗ 1 of 2 pings answered in 1.2 s",
        ] {
            assert_eq!(text.matches(part).count(), 1, "{part} in\n{text}");
        }
        assert!(!report().is_healthy());
    }
}
