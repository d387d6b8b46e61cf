//! `caracal-scale`: clusters of hundreds and thousands of nodes in one process, on virtual time.
//!
//! The sessions are planned by the real planner, held by the real state machines, and carry real octets between real
//! tables; sockets, clocks and tasks are the simulation's. What it counts is exact and the same in every run: sessions,
//! messages, octets, and the heap but for the chance of hash tables. What it says of time follows from the costs in
//! [`network`], which are a model.
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

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

use cluster::Shape;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

#[derive(Debug, Parser)]
#[command(about = "Simulates clusters of any size under each topology")]
struct Args {
    /// Sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500, 1000, 2000, 5000])]
    nodes: Vec<usize>,
    /// Sizes of the mesh; beyond them its figures are computed.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 100, 200, 500, 1000])]
    mesh: Vec<usize>,
    /// Writes scale.md's tables and the plots into this folder.
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
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
    match &args.write {
        Some(folder) => report::write(folder, &outcomes),
        None => Ok(()),
    }
}
