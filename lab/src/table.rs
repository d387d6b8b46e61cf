//! A [`LabReport`] as tables for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::matrix::{self, Matrix};
use crate::report::{LabReport, NodeReport};
use crate::sessions;

/// Pods above which the matrix is told in words.
const MATRIX_WIDTH: usize = 12;
/// Nodes above which a lab is told in sums.
const EACH_NODE: usize = 8;
/// Lines about what is not as it should be.
const TROUBLES: usize = 20;
/// Kinds of routes, in the order of the columns.
const ROUTE_KINDS: [&str; 6] = ["blackhole", "local", "direct", "ipip", "vxlan", "udp"];
/// The last of them is shown where there are any: only flannel has them.
const RARE_KINDS: usize = 1;

/// How tables are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableForm {
    /// Their greatest width: cells wrap.
    pub columns: Option<u16>,
    /// Each node, also of a lab with many.
    pub wide: bool,
}

/// The whole report.
#[must_use]
pub fn render(report: &LabReport, form: TableForm) -> String {
    let mut text = String::new();
    let many = report.nodes.len() > EACH_NODE && !form.wide;
    let tables = match many {
        true => [
            Some(segments(report)),
            peer_sums(report),
            block_sums(report),
            lease_sums(report),
        ],
        false => [
            Some(nodes(report)),
            peers(report),
            blocks(report),
            leases(report),
        ],
    };
    let titles = ["Nodes", "Peers", "Blocks", "Leases"];
    for (title, table) in titles.into_iter().zip(tables) {
        if let Some(table) = table {
            section(&mut text, title, table, form.columns);
        }
    }
    if let Some(picture) = sessions::picture(report, form.columns) {
        let _ = writeln!(text, "{picture}");
    }
    section(&mut text, "Routes", routes(report, many), form.columns);
    text.push_str(&troubles(report));
    let matrices: Vec<_> = report.matrices().map(|m| pings(m, form.columns)).collect();
    text.push_str(&matrices.join("\n"));
    if many {
        let _ = writeln!(text, "each node: caracal lab status {} -o wide", report.lab);
    }
    text
}

fn section(text: &mut String, title: &str, mut table: Table, columns: Option<u16>) {
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(columns);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{title}\n{}\n", lines(&table));
}

/// A table without the blanks at the ends of its lines.
fn lines(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|l| l.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// Without borders, as the other commands print.
fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
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
    let header = [
        "NODE", "ADDRESS", "SEGMENT", "KIND", "STATE", "PEERS UP", "PODS",
    ];
    let mut table = table(&header, &[6]);
    for node in &report.nodes {
        let (up, all) = node.peers();
        table.add_row([
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
        ]);
    }
    table
}

/// Nodes of one kind on one segment: those that are as they should be, of all; and their sums.
fn segments(report: &LabReport) -> Table {
    let mut sums: BTreeMap<(&str, &str), [usize; 5]> = BTreeMap::new();
    for node in &report.nodes {
        let (up, all) = node.peers();
        let ready = usize::from(node.error.is_none());
        add(
            sums.entry((&node.segment, node.kind)).or_default(),
            [ready, 1, up, all, node.pods],
        );
    }
    let mut table = table(&["SEGMENT", "KIND", "READY", "PEERS UP", "PODS"], &[4]);
    for ((segment, kind), [ready, nodes, up, all, pods]) in sums {
        table.add_row([
            segment.to_owned(),
            kind.to_owned(),
            format!("{ready}/{nodes}"),
            format!("{up}/{all}"),
            pods.to_string(),
        ]);
    }
    table
}

fn add<const N: usize>(sums: &mut [usize; N], numbers: [usize; N]) {
    for (sum, number) in sums.iter_mut().zip(numbers) {
        *sum += number;
    }
}

/// Routes of each node by kind, or of all together.
fn routes(report: &LabReport, together: bool) -> Table {
    let count = |node: &NodeReport, kind: &str| node.routes.get(kind).copied().unwrap_or(0);
    let (usual, rare) = ROUTE_KINDS.split_at(ROUTE_KINDS.len() - RARE_KINDS);
    let some = |kind: &&&str| report.nodes.iter().any(|node| count(node, kind) > 0);
    let kinds: Vec<&str> = usual
        .iter()
        .chain(rare.iter().filter(some))
        .copied()
        .collect();
    let names: Vec<String> = kinds.iter().map(|kind| kind.to_ascii_uppercase()).collect();
    let mut header = vec!["NODE"];
    header.extend(names.iter().map(String::as_str));
    let right: Vec<usize> = (1..=kinds.len()).collect();
    let mut table = table(&header, &right);
    let mut row = |name: &str, counts: &mut dyn Iterator<Item = usize>| {
        let shown = counts.map(|count| match count {
            0 => "·".to_owned(),
            count => count.to_string(),
        });
        table.add_row([name.to_owned()].into_iter().chain(shown));
    };
    if together {
        let sum = |kind: &&str| report.nodes.iter().map(|node| count(node, kind)).sum();
        row("all", &mut kinds.iter().map(sum));
    } else {
        for node in &report.nodes {
            row(&node.name, &mut kinds.iter().map(|kind| count(node, kind)));
        }
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
        _ if node.flannel.is_some() => "ready".to_owned(),
        _ if node.running => "running".to_owned(),
        _ => "–".to_owned(),
    }
}

fn peers(report: &LabReport) -> Option<Table> {
    let header = [
        "NODE", "PEER", "ADDRESS", "AS", "KIND", "STATE", "ACCEPTED", "SENT",
    ];
    let mut table = table(&header, &[3, 7]);
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
                format!("{}/{}", peer.accepted, peer.received),
                peer.advertised.to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Sessions by kind and state.
fn peer_sums(report: &LabReport) -> Option<Table> {
    let mut sums: BTreeMap<(&str, &str), [usize; 4]> = BTreeMap::new();
    let status = report.nodes.iter().filter_map(|node| node.status.as_ref());
    for peer in status.flat_map(|status| &status.peers) {
        add(
            sums.entry((&peer.kind, &peer.state)).or_default(),
            [1, peer.accepted, peer.received, peer.advertised],
        );
    }
    let mut table = table(&["KIND", "STATE", "ENDS", "ACCEPTED", "SENT"], &[2, 4]);
    for ((kind, state), [ends, accepted, received, sent]) in sums {
        table.add_row([
            kind.to_owned(),
            state.to_owned(),
            ends.to_string(),
            format!("{accepted}/{received}"),
            sent.to_string(),
        ]);
    }
    (!table.is_empty()).then_some(table)
}

fn blocks(report: &LabReport) -> Option<Table> {
    let mut table = table(&["NODE", "BLOCK", "AFFINITY", "IN USE"], &[]);
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

/// Blocks by the state of their affinity.
fn block_sums(report: &LabReport) -> Option<Table> {
    let mut sums: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let status = report.nodes.iter().filter_map(|node| node.status.as_ref());
    for block in status.flat_map(|status| &status.blocks) {
        add(
            sums.entry(&block.state).or_default(),
            [1, block.in_use, block.size],
        );
    }
    let mut table = table(&["AFFINITY", "BLOCKS", "IN USE"], &[1]);
    for (state, [count, used, size]) in sums {
        table.add_row([
            state.to_owned(),
            count.to_string(),
            format!("{used}/{size}"),
        ]);
    }
    (!table.is_empty()).then_some(table)
}

/// Subnets of a flannel network's nodes, and of how many nodes each knows the lease.
fn leases(report: &LabReport) -> Option<Table> {
    let mut table = table(
        &["NODE", "SUBNET", "BACKEND", "MTU", "LEASES KNOWN"],
        &[3, 4],
    );
    for node in &report.nodes {
        if let Some(flannel) = &node.flannel {
            table.add_row([
                node.name.clone(),
                flannel.subnets.join("\n"),
                flannel.backend.to_owned(),
                flannel.mtu.to_string(),
                flannel.leases.to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// Nodes of a flannel network by what they have in common.
fn lease_sums(report: &LabReport) -> Option<Table> {
    let mut sums: BTreeMap<(&str, u32, usize), usize> = BTreeMap::new();
    for flannel in report.nodes.iter().filter_map(|node| node.flannel.as_ref()) {
        let alike = (flannel.backend, flannel.mtu, flannel.leases);
        *sums.entry(alike).or_default() += 1;
    }
    let mut table = table(&["BACKEND", "MTU", "LEASES KNOWN", "NODES"], &[1, 2, 3]);
    for ((backend, mtu, leases), nodes) in sums {
        let numbers = [mtu.to_string(), leases.to_string(), nodes.to_string()];
        table.add_row([backend.to_owned()].into_iter().chain(numbers));
    }
    (!table.is_empty()).then_some(table)
}

/// Everything that is not as it should be, one line each.
fn troubles(report: &LabReport) -> String {
    let mut text = String::new();
    let mut count = 0;
    let mut line = |node: &str, words: &str| {
        count += 1;
        if count <= TROUBLES {
            let _ = writeln!(text, "! {node}: {words}");
        }
    };
    for node in &report.nodes {
        if let Some(error) = &node.error {
            line(&node.name, error);
        }
        for (code, count) in node.flannel.iter().flat_map(|flannel| &flannel.problems) {
            line(&node.name, &format!("{code}: {count}, see the node's log"));
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
    if count > TROUBLES {
        let _ = writeln!(text, "! … and {} more", count - TROUBLES);
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
    let grid = (matrix.pods.len() <= MATRIX_WIDTH).then(|| grid(matrix));
    let fits = |grid: &Table| {
        let width = lines(grid).lines().map(|line| line.chars().count()).max();
        columns.is_none_or(|columns| width <= Some(columns.into()))
    };
    if let Some(grid) = grid.filter(fits) {
        let title = format!("{family}Ping (row to column, milliseconds)");
        section(&mut text, &title, grid, columns);
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
    let mut header = vec!["FROM \\ TO".to_owned()];
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
            address: format!("10.0.0.{}/24", &name[4..]),
            address6: None,
            segment: "lan".to_owned(),
            running: error.is_none(),
            status,
            flannel: None,
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
        let text = render(&report(), TableForm::default());
        for part in [
            "node1  10.0.0.1/24  lan      caracal  fresh @42  1/2",
            "node2  10.0.0.2/24  lan      caracal  down       –",
            "\nnode1\n▲ node2\n",
            "BLACKHOLE  LOCAL  DIRECT  IPIP  VXLAN",
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

    #[test]
    fn nodes_of_flannel_have_leases_and_the_relay_a_column() {
        let mut report = report_of(1);
        report.nodes[0].status = None;
        report.nodes[0].routes = BTreeMap::from([("udp", 1)]);
        report.nodes[0].flannel = Some(crate::flannel::FlannelReport {
            subnets: vec!["10.5.72.0/24".to_owned()],
            backend: "udp",
            mtu: 1472,
            leases: 3,
            problems: vec![("flannel.lease".to_owned(), 2)],
        });
        let text = render(&report, TableForm::default());
        for part in [
            "caracal  ready  –",
            "node1  10.5.72.0/24  udp      1472             3",
            "BLACKHOLE  LOCAL  DIRECT  IPIP  VXLAN  UDP",
            "! node1: flannel.lease: 2",
        ] {
            assert_eq!(text.matches(part).count(), 1, "{part} in\n{text}");
        }
        let sums = leases(&report).zip(lease_sums(&report)).expect("tables");
        assert!(lines(&sums.1).contains("udp      1472             3      1"));
    }

    fn report_of(count: usize) -> LabReport {
        let mut report = report();
        let first = report.nodes[0].clone();
        report.nodes = (1..=count)
            .map(|number| NodeReport {
                name: format!("node{number}"),
                segment: format!("rack{}", number % 2),
                ..first.clone()
            })
            .collect();
        report
    }

    #[test]
    fn above_eight_nodes_sums_are_shown() {
        let eight = render(&report_of(8), TableForm::default());
        assert!(eight.contains("\n node8 "), "{eight}");
        let many = report_of(60);
        let text = render(&many, TableForm::default());
        for part in [
            " rack0    caracal  30/30  30/60 ",
            " mesh  Established    60 ",
            " mesh  Active         60 ",
            " confirmed      60  120/3840",
            " all          60      ·     120     ·      ·",
            "! … and 40 more",
            "each node: caracal lab status t -o wide",
        ] {
            assert_eq!(text.matches(part).count(), 1, "{part:?} in\n{text}");
        }
        assert!(text.lines().count() < 50, "{text}");
        let wide = TableForm {
            wide: true,
            columns: None,
        };
        assert!(render(&many, wide).contains("\n node60 "));
    }

    #[test]
    fn nothing_is_wider_than_asked() {
        let columns = Some(80);
        let form = TableForm {
            columns,
            wide: false,
        };
        let mut with_pods = report();
        let pods: Vec<String> = (1..=8).map(|n| format!("node{n}/p1")).collect();
        with_pods.matrix = Some(Matrix {
            addresses: vec![Some([10, 244, 100, 200].into()); 8],
            cells: vec![vec![matrix::Cell::Own; 8]; 8],
            took: Duration::ZERO,
            pods,
        });
        for report in [report(), report_of(8), report_of(60), with_pods] {
            let text = render(&report, form);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(80), "{widest:?}\n{text}");
        }
    }
}
