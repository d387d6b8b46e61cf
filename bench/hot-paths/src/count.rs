//! Instructions per unit of work of the hot paths, counted by valgrind, against the record in the
//! repository: a number that a busy machine does not change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

/// The two sizes whose difference is counted: what starting up costs falls out.
const SIZES: (usize, usize) = (5_000, 15_000);
/// Ratio to the record above which a path counts as slower. Compilers differ; the seeds of hashes
/// make less than one part in a hundred.
const TOLERANCE: f64 = 1.10;
/// Ratio to the record below which a new record is worth taking.
const GAIN: f64 = 0.90;

/// Instructions that this program needs for so many units.
fn count(path: paths::Path, units: usize) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["run", path.name, &units.to_string()])
        .output()
        .context("cannot run valgrind (Debian package valgrind)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {text}", path.name);
    let collected = text.lines().find_map(|l| l.split("Collected : ").nth(1));
    let number = collected.and_then(|number| number.trim().parse().ok());
    number.with_context(|| format!("valgrind collected nothing: {text}"))
}

fn per_unit(path: paths::Path) -> Result<u64> {
    let (few, many) = (count(path, SIZES.0)?, count(path, SIZES.1)?);
    Ok(many.saturating_sub(few) / (SIZES.1 - SIZES.0) as u64)
}

fn parse(text: &str) -> Result<BTreeMap<String, u64>> {
    let lines = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    lines
        .map(|line| match line.split_once(' ') {
            Some((name, number)) => Ok((name.to_owned(), number.trim().parse()?)),
            None => bail!("{line:?} is not NAME NUMBER"),
        })
        .collect()
}

/// Compares counts with the record: lines to print, and the regressions.
fn compare(record: &BTreeMap<String, u64>, seen: &BTreeMap<String, u64>) -> (String, Vec<String>) {
    let (mut text, mut worse) = (String::new(), Vec::new());
    for (name, now) in seen {
        let Some(then) = record.get(name) else {
            worse.push(format!("{name} is not in the record"));
            continue;
        };
        let ratio = *now as f64 / *then as f64;
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}: {now} a unit, recorded {then} ({ratio:.2})");
        text.push_str(if ratio < GAIN {
            ": better, record it\n"
        } else {
            "\n"
        });
        if ratio > TOLERANCE {
            worse.push(format!("{name} takes {ratio:.2} times its {then}"));
        }
    }
    (text, worse)
}

/// Counts every hot path and compares it with the record, or makes the record.
pub fn guard(file: &Path, record: bool) -> Result<()> {
    let mut seen = BTreeMap::new();
    for path in paths::PATHS {
        seen.insert(path.name.to_owned(), per_unit(path)?);
    }
    if record {
        let mut text =
            "# Instructions per unit of work (valgrind); written by caracal-hot-paths record.\n"
                .to_owned();
        for path in paths::PATHS {
            let _ = writeln!(text, "# {}: {}", path.name, path.unit);
        }
        for (name, number) in &seen {
            let _ = writeln!(text, "{name} {number}");
        }
        print!("{text}");
        return std::fs::write(file, text)
            .with_context(|| format!("cannot write {}", file.display()));
    }
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read {}; record makes it", file.display()))?;
    let (text, worse) = compare(&parse(&text)?, &seen);
    print!("{text}");
    origin_check(&seen)?;
    ensure!(
        worse.is_empty(),
        "more instructions than recorded; make it faster, or say why and record it anew (make instructions-record): {}",
        worse.join("; ")
    );
    Ok(())
}

/// Says what the origin check adds.
fn origin_check(seen: &BTreeMap<String, u64>) -> Result<()> {
    for (path, without) in paths::CHECKED {
        let (with, without) = (per_unit(path)?, (without, seen[without]));
        let more = with as f64 / without.1 as f64 * 100.0 - 100.0;
        println!(
            "{}: {with} a unit, {more:+.1} % beside {}",
            path.name, without.0
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_regression_is_told_from_noise() {
        let record = parse("# a comment\nload 1000\ndecode 100\n").unwrap();
        let seen = |load| BTreeMap::from([("load".to_owned(), load)]);
        assert_eq!(compare(&record, &seen(1090)).1, Vec::<String>::new());
        assert_eq!(
            compare(&record, &seen(1200)).1,
            ["load takes 1.20 times its 1000"]
        );
        assert!(compare(&record, &seen(500)).0.contains("record it"));
        let other = BTreeMap::from([("new".to_owned(), 1)]);
        assert_eq!(compare(&record, &other).1, ["new is not in the record"]);
        assert!(parse("load\n").is_err());
    }
}
