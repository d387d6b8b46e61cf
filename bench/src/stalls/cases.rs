//! Cases that concern the whole table.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::CaseOutcome;
use super::probe::{self, Admin, Seen};
use super::test_bed::{LATER, LIMIT, RECEIVER, SENDER, STATION_PORT, Settings, TestBed};
use crate::dut::memory_of;
use crate::generator::Generator;
use crate::lab::LINK;
use caracal_hot_paths::routes::DUT;
use caracal_hot_paths::wire::{self, Attrs};

/// Static routes that a reload brings.
const OWN_ROUTES: usize = 100_000;
/// Paths to one prefix.
const PATHS: u32 = 60_000;

/// What happens to the whole table while the questions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Nothing happens.
    Rest,
    /// All routes are asked for.
    Query,
    /// The import filter changes.
    ImportFilter,
    /// The export filter changes.
    ExportFilter,
    /// A peer asks for everything again.
    Refresh,
    /// A new peer gets everything.
    NewPeer,
    /// The peer that announced everything is lost.
    PeerLoss,
    /// The announcing peer is lost for longer than its routes are kept.
    LongLived,
    /// The table is written to a file.
    Mrt,
    /// A monitoring station connects.
    Bmp,
    /// The configuration gets 100,000 static routes.
    OwnRoutes,
    /// A peer with 60,000 paths to one prefix is lost.
    ManyPaths,
}

impl Case {
    /// Description of the case.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Rest => "nothing, for a second",
            Self::Query => "all routes are asked for",
            Self::ImportFilter => "another import filter",
            Self::ExportFilter => "another export filter",
            Self::Refresh => "ROUTE-REFRESH from a peer",
            Self::NewPeer => "a new peer",
            Self::PeerLoss => "the peer that announced all is lost",
            Self::LongLived => "it restarts, and does not come back (LLGR)",
            Self::Mrt => "MRT dump",
            Self::Bmp => "a monitoring station (BMP) connects",
            Self::OwnRoutes => "100,000 own routes by a reload",
            Self::ManyPaths => "60,000 paths to one prefix come, and their peer is lost",
        }
    }
}

/// Measures a case with a speaker of its own.
pub fn measure(
    case: Case,
    routes: &str,
    namespace: &str,
    dir: &Path,
    program: Option<&PathBuf>,
) -> Result<CaseOutcome> {
    let settings = Settings {
        graceful: case == Case::LongLived,
        add_paths: case == Case::ManyPaths,
        ..Settings::default()
    };
    let mut test_bed = TestBed::loaded(routes, settings, namespace, dir, program)?;
    let process = test_bed.process.id();
    let (before, held) = (probe::metrics(DUT)?, memory_of(process)?.resident_kib);
    let stop = AtomicBool::new(false);
    let (happened, seen) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| probe::ask_until(&stop, dir, process));
        let happened = happen(case, &mut test_bed, dir);
        stop.store(true, Ordering::Relaxed);
        (happened, joined(asking))
    });
    let (wall, first) = happened?;
    let seen: Seen = seen?;
    let after = probe::metrics(DUT)?;
    Ok(CaseOutcome {
        wall,
        first,
        longest_turn: after.longest_turn,
        slow_turns: after.slow_turns - before.slow_turns,
        questions: seen.questions,
        longest_answer: seen.longest,
        grown_kib: seen.peak_kib.saturating_sub(held),
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Has it happen; how long until it was complete, and until the first line of an answer.
fn happen(
    case: Case,
    test_bed: &mut TestBed<'_>,
    dir: &Path,
) -> Result<(Duration, Option<Duration>)> {
    let begin = Instant::now();
    let mut first = None;
    match case {
        Case::Rest => test_bed
            .generator
            .idle(Duration::from_secs(1), &test_bed.scenario)?,
        Case::Query => first = Some(query(dir, test_bed.scenario.universe.nets.len())?),
        Case::Mrt => {
            let file = dir.join("table.mrt");
            let question = serde_json::json!({ "request": "mrt", "file": file });
            Admin::connect(dir)?.ask(&question.to_string())?;
            std::fs::remove_file(file)?;
        }
        Case::ImportFilter | Case::ExportFilter | Case::OwnRoutes => {
            test_bed.configure(|settings| match case {
                Case::ImportFilter => settings.import_filter = true,
                Case::OwnRoutes => settings.own_routes = OWN_ROUTES,
                _ => settings.export_filter = true,
            })?;
            // Their UPDATEs are read meanwhile; the content differs from the first announcement by
            // now.
            std::thread::scope(|scope| -> Result<()> {
                let reload = scope.spawn(|| Admin::connect(dir)?.ask(r#"{"request":"reload"}"#));
                while !reload.is_finished() {
                    test_bed
                        .generator
                        .idle(Duration::from_millis(5), &test_bed.scenario)?;
                }
                joined(reload).map(|_| ())
            })?;
        }
        Case::Refresh => {
            let mut octets = Vec::new();
            wire::route_refresh(&mut octets);
            test_bed.generator.forget(RECEIVER);
            test_bed.generator.expect(&test_bed.scenario);
            test_bed.generator.send(RECEIVER, octets);
            test_bed.generator.converge(&test_bed.scenario, LIMIT)?;
        }
        Case::NewPeer => {
            let mut later = test_bed.another_receiver()?;
            later.expect(&test_bed.scenario);
            later.converge(&test_bed.scenario, LIMIT)?;
        }
        Case::PeerLoss | Case::LongLived => {
            test_bed.generator.cut(SENDER);
            test_bed.scenario.reset();
            test_bed.generator.expect(&test_bed.scenario);
            test_bed.generator.converge(&test_bed.scenario, LIMIT)?;
            test_bed.serve_until("the end of all routes", |metrics| {
                metrics.prefixes == 0 && metrics.work == 0
            })?;
        }
        Case::Bmp => monitored(test_bed, dir)?,
        Case::ManyPaths => many_paths(test_bed)?,
    }
    Ok((begin.elapsed(), first))
}

/// Asks for all routes; how long the first line took.
fn query(dir: &Path, expected: usize) -> Result<Duration> {
    let begin = Instant::now();
    let mut admin = Admin::connect(dir)?;
    admin.put(r#"{"request":"routes"}"#)?;
    let (mut line, mut first, mut lines) = (String::new(), None, 0);
    loop {
        admin.line(&mut line)?;
        if line.starts_with("{\"prefix\":") {
            first.get_or_insert_with(|| begin.elapsed());
            lines += 1;
        } else if line.starts_with("{\"end\"") {
            break;
        } else {
            ensure!(line.starts_with("{\"progress\""), "{line}");
        }
    }
    match first {
        Some(first) if lines == expected => Ok(first),
        _ => bail!("{lines} routes of {expected} were told"),
    }
}

/// A peer announces many paths to a prefix that is known, and is lost when all are there.
fn many_paths(test_bed: &mut TestBed<'_>) -> Result<()> {
    let before = probe::metrics(DUT)?.paths;
    let mut later = test_bed.another_receiver()?;
    let attrs = Attrs {
        as_path: vec![test_bed.scenario.roles[LATER].asn],
        next_hop: Some(test_bed.scenario.roles[LATER].address),
        ..Attrs::default()
    };
    let net = test_bed.scenario.universe.nets[0];
    let mut octets = Vec::new();
    wire::paths(&attrs, net, 1..=PATHS, &mut octets);
    later.send(0, octets);
    let all = before + PATHS as usize;
    let mut serve = |what: &str, wanted: usize, later: &mut Option<Generator>| -> Result<()> {
        let begin = Instant::now();
        loop {
            for peers in later.iter_mut().chain([&mut test_bed.generator]) {
                peers.idle(Duration::from_millis(5), &test_bed.scenario)?;
            }
            let seen = probe::metrics(DUT)?;
            if (seen.paths, seen.work) == (wanted, 0) {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < LIMIT,
                "{what}: {seen:?}, not {wanted} paths"
            );
        }
    };
    let mut later = Some(later);
    serve("all paths are there", all, &mut later)?;
    later = None;
    serve("none of them is", before, &mut later)
}

/// A monitoring station that reads all it is sent.
fn monitored(test_bed: &mut TestBed<'_>, dir: &Path) -> Result<()> {
    let listener = TcpListener::bind((LINK, STATION_PORT))?;
    test_bed.configure(|settings| settings.station = true)?;
    let mut admin = Admin::connect(dir)?;
    admin.ask(r#"{"request":"reload"}"#)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut buffer = vec![0; 1 << 20];
    let begin = Instant::now();
    // A prefix with its headers and attributes takes more than that.
    let (mut octets, least) = (0, test_bed.scenario.universe.nets.len() * 5);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => bail!("the speaker hung up on the station"),
            Ok(read) => octets += read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let status = admin.ask(r#"{"request":"status"}"#)?;
                if status["stations"][0]["state"] == "Connected" {
                    ensure!(octets > least, "the station was sent {octets} octets");
                    return Ok(());
                }
            }
            Err(error) => return Err(error.into()),
        }
        ensure!(begin.elapsed() < LIMIT, "the station never has everything");
    }
}
