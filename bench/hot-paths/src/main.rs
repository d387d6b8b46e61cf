//! `caracal-hot-paths count [FILE]`: the instructions of the hot paths beside the record.
//! `caracal-hot-paths record [FILE]`: makes the record anew. `caracal-hot-paths run PATH UNITS`:
//! one path by itself, for valgrind and perf.

use std::path::Path;

use anyhow::{Context, Result, bail};
use caracal_hot_paths::{count, paths};

/// The allocator of the program that ships.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RECORD: &str = "bench/hot-paths/instructions.txt";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count"] => count::guard(Path::new(RECORD), false),
        ["count", file] => count::guard(Path::new(file), false),
        ["record"] => count::guard(Path::new(RECORD), true),
        ["record", file] => count::guard(Path::new(file), true),
        ["run", name, units] => {
            let number = units.parse();
            paths::find(name)?.run(number.with_context(|| format!("{units} is no number"))?)
        }
        _ => bail!("usage: caracal-hot-paths count|record [FILE] | run PATH UNITS"),
    }
}
