//! `caracal-scale`: clusters of hundreds and thousands of nodes in one process, on virtual time.
//!
//! The sessions are planned by the real planner, held by the real state machines, and carry real
//! octets between real tables; sockets, clocks and tasks are the simulation's. What it counts is
//! exact and the same in every run: sessions, messages, octets, and the heap but for the chance of
//! hash tables. What it says of time follows from the costs in [`network`], which are a model.
//!
//! A program of its own, for its allocator counts.
#![allow(unreachable_pub, reason = "a program has no public interface")]
#![allow(
    clippy::cast_precision_loss,
    reason = "figures for plots and for people"
)]

mod cluster;
mod heap;
mod network;
mod node;
mod report;
mod simulate;
mod svg;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use cluster::Shape;
use network::ClusterOutcome;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

#[derive(Debug, Parser)]
#[command(about = "Simulates clusters of any size under each topology")]
struct Args {
    /// Numbers of nodes to simulate.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500, 1000, 2000, 5000])]
    nodes: Vec<usize>,
    /// Sizes of the mesh; beyond them its figures are computed.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500, 1000])]
    mesh: Vec<usize>,
    /// Takes the outcomes that earlier runs printed into this file, and simulates nothing. May be
    /// repeated.
    #[arg(long, value_name = "FILE")]
    read: Vec<PathBuf>,
    /// Writes scale.md's tables and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let outcomes = if args.read.is_empty() {
        simulated(&args)?
    } else {
        read(&args.read)?
    };
    match &args.write {
        Some(folder) => report::write(folder, &outcomes),
        None => Ok(()),
    }
}

fn simulated(args: &Args) -> Result<Vec<ClusterOutcome>> {
    let mut outcomes = Vec::new();
    for shape in Shape::ALL {
        let sizes = if shape == Shape::Mesh {
            &args.mesh
        } else {
            &args.nodes
        };
        for nodes in sizes {
            let outcome = simulate::simulate(shape, *nodes)?;
            println!("{}", report::line(&outcome));
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

/// One outcome a topology and size, whoever printed it.
fn read(files: &[PathBuf]) -> Result<Vec<ClusterOutcome>> {
    let mut outcomes = BTreeMap::new();
    for file in files {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let found = text.lines().filter_map(report::parsed);
        outcomes.extend(found.map(|outcome| ((outcome.shape, outcome.nodes), outcome)));
    }
    Ok(outcomes.into_values().collect())
}
