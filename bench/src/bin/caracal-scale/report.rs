//! Tables and plots of docs/scale.md.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::Shape;
use crate::network::ClusterOutcome;
use crate::svg::{Line, Plot};

/// The page's part that is the program's.
const BEGIN: &str = "<!-- begin simulation -->\n";
const END: &str = "<!-- end simulation -->\n";

/// Sizes for which the mesh is computed from its largest simulation.
const COMPUTED: [usize; 2] = [2000, 5000];

/// One outcome for people who watch.
pub fn line(outcome: &ClusterOutcome) -> String {
    format!(
        "{}: {} nodes ({} with tables): {} sessions, at most {}, {} messages, {:.1} MB, heap {:.1} / {:.1} MB, {:.2} s",
        outcome.shape.name(),
        outcome.nodes,
        outcome.full,
        outcome.sessions,
        outcome.busiest,
        outcome.messages,
        outcome.octets as f64 / 1e6,
        outcome.heap_most as f64 / 1e6,
        outcome.heap_client as f64 / 1e6,
        outcome.converged.as_secs_f64()
    )
}

/// The outcome in a line that [`line()`] made; `None` for other lines.
pub fn parsed(line: &str) -> Option<ClusterOutcome> {
    let (name, rest) = line.split_once(": ")?;
    let shape = Shape::ALL.into_iter().find(|shape| shape.name() == name)?;
    let numbers: Vec<f64> = rest
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [
        nodes,
        full,
        sessions,
        busiest,
        messages,
        octets,
        most,
        client,
        seconds,
    ] = numbers[..]
    else {
        return None;
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers that were counts before they were text"
    )]
    let count = |value: f64| value.round() as u64;
    let size = |value: f64| usize::try_from(count(value)).unwrap_or(usize::MAX);
    Some(ClusterOutcome {
        shape,
        nodes: size(nodes),
        sessions: size(sessions),
        busiest: size(busiest),
        messages: count(messages),
        octets: count(octets * 1e6),
        heap_most: count(most * 1e6),
        heap_client: count(client * 1e6),
        converged: Duration::from_secs_f64(seconds),
        full: size(full),
    })
}

/// A row: an outcome, or what a larger mesh would come to.
struct Row {
    shape: Shape,
    nodes: f64,
    sessions: f64,
    busiest: f64,
    messages: f64,
    megabytes: f64,
    heap_most: f64,
    heap_client: f64,
    seconds: f64,
    simulated: bool,
}

impl Row {
    fn from_outcome(outcome: &ClusterOutcome) -> Self {
        Self {
            shape: outcome.shape,
            nodes: outcome.nodes as f64,
            sessions: outcome.sessions as f64,
            busiest: outcome.busiest as f64,
            messages: outcome.messages as f64,
            megabytes: outcome.octets as f64 / 1e6,
            heap_most: outcome.heap_most as f64 / 1e6,
            heap_client: outcome.heap_client as f64 / 1e6,
            seconds: outcome.converged.as_secs_f64(),
            simulated: true,
        }
    }

    /// A larger mesh: per session everything stays as it is, per node everything grows with the
    /// nodes.
    fn larger(mesh: &Self, nodes: usize) -> Self {
        let nodes = nodes as f64;
        let sessions = nodes * (nodes - 1.0) / 2.0;
        let (all, one) = (sessions / mesh.sessions, (nodes - 1.0) / mesh.busiest);
        Self {
            shape: mesh.shape,
            nodes,
            sessions,
            busiest: nodes - 1.0,
            messages: mesh.messages * all,
            megabytes: mesh.megabytes * all,
            heap_most: mesh.heap_most * one,
            heap_client: mesh.heap_client * one,
            seconds: mesh.seconds * one,
            simulated: false,
        }
    }
}

/// Writes the plots, and the tables into the page.
///
/// # Errors
/// When a file cannot be read or written, or the page has no place for the tables.
pub fn write(folder: &Path, outcomes: &[ClusterOutcome]) -> Result<()> {
    let mut rows: Vec<Row> = outcomes.iter().map(Row::from_outcome).collect();
    let largest = rows.iter().rev().find(|row| row.shape == Shape::Mesh);
    let computed: Vec<Row> = largest
        .into_iter()
        .flat_map(|mesh| COMPUTED.map(|nodes| Row::larger(mesh, nodes)))
        .collect();
    rows.extend(computed);
    let plots = folder.join("scale");
    std::fs::create_dir_all(&plots).with_context(|| format!("creating {}", plots.display()))?;
    for (file, text) in plots_of(&rows) {
        let path = plots.join(file);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let page = folder.join("scale.md");
    let text =
        std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let (Some(from), Some(to)) = (text.find(BEGIN), text.find(END)) else {
        anyhow::bail!("{} has no place for the tables", page.display());
    };
    ensure!(
        from < to,
        "{}: the marks are in the wrong order",
        page.display()
    );
    let text = format!(
        "{}{}{}",
        &text[..from + BEGIN.len()],
        table(&rows),
        &text[to..]
    );
    std::fs::write(&page, text).with_context(|| format!("writing {}", page.display()))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for nodes in [1000.0, 2000.0, 5000.0] {
        let _ = write!(
            text,
            "\n{nodes} nodes:\n\n| topology | sessions | at the busiest node | messages | MB on the wire | heap of the busiest, MB | heap of an ordinary node, MB | seconds (model) |\n|---|---|---|---|---|---|---|---|\n"
        );
        for shape in Shape::ALL {
            let mut of_shape = rows.iter().filter(|r| r.shape == shape && r.nodes == nodes);
            let Some(row) = of_shape.next() else { continue };
            let _ = writeln!(
                text,
                "| {}{} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.2} |",
                shape.name(),
                if row.simulated { "" } else { " (computed)" },
                row.sessions,
                row.busiest,
                row.messages,
                row.megabytes,
                row.heap_most,
                row.heap_client,
                row.seconds
            );
        }
    }
    text.push('\n');
    text
}

/// A figure to plot.
type Figure = (&'static str, &'static str, &'static str, fn(&Row) -> f64);

fn plots_of(rows: &[Row]) -> Vec<(&'static str, String)> {
    const FIGURES: [Figure; 4] = [
        (
            "sessions.svg",
            "Sessions at the busiest node",
            "sessions",
            |r| r.busiest,
        ),
        (
            "messages.svg",
            "BGP messages from nothing to the last route",
            "messages",
            |r| r.messages,
        ),
        ("memory.svg", "Heap of the busiest node", "MB", |r| {
            r.heap_most
        }),
        (
            "time.svg",
            "Time from nothing to the last route",
            "seconds (model)",
            |r| r.seconds,
        ),
    ];
    let plot = |(file, title, y, value): Figure| {
        let lines: Vec<Line> = Shape::ALL
            .into_iter()
            .map(|shape| {
                let of_shape = rows.iter().filter(|row| row.shape == shape);
                let points = of_shape.map(|row| (row.nodes, value(row), row.simulated));
                Line {
                    name: shape.name().to_owned(),
                    points: points.collect(),
                }
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let plot = Plot {
            title,
            x: "nodes",
            y,
            lines: &lines,
        };
        (file, plot.svg())
    };
    FIGURES.map(plot).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::simulate::simulate;

    #[test]
    fn a_line_reads_back() {
        let outcome = simulate(Shape::TwoLevels, 30).unwrap();
        let text = line(&outcome);
        let read = parsed(&text).unwrap();
        assert_eq!(line(&read), text);
        assert_eq!(
            (read.shape, read.sessions),
            (outcome.shape, outcome.sessions)
        );
        assert_eq!(parsed("rc 0"), None);
    }

    #[test]
    fn a_page_with_its_plots() {
        let folder = std::env::temp_dir().join(format!("caracal-scale-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let page = folder.join("scale.md");
        std::fs::write(&page, format!("before\n{BEGIN}old\n{END}after\n")).unwrap();
        let outcomes = [Shape::Mesh, Shape::Flat].map(|shape| simulate(shape, 12).unwrap());
        write(&folder, &outcomes).unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("after\n"));
        assert!(!text.contains("old"));
        // 5,000 nodes have 12,497,500 pairs.
        assert!(
            text.contains("| mesh (computed) | 12497500 | 4999 |"),
            "{text}"
        );
        assert_eq!(std::fs::read_dir(folder.join("scale")).unwrap().count(), 4);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
