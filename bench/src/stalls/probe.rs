//! Probe during a case: short questions on the admin socket, one after the other, and the memory of
//! the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::dut::memory_of;

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(1);
/// Questions on one connection before it is replaced: the speaker reads a limited number of octets
/// from each.
const QUESTIONS: usize = 1000;
/// Limit for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to the admin socket.
pub struct Admin(BufReader<UnixStream>);

impl Admin {
    /// Connects to the speaker with this run directory.
    pub fn connect(dir: &Path) -> Result<Self> {
        let path = dir.join("caracal.sock");
        let stream = UnixStream::connect(&path)
            .with_context(|| format!("nobody answers on {}", path.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::with_capacity(256 * 1024, stream)))
    }

    pub fn put(&mut self, question: &str) -> Result<()> {
        let stream = self.0.get_mut();
        stream.write_all(question.as_bytes())?;
        stream.write_all(b"\n").context("the question")
    }

    /// The next line of the answer.
    pub fn line(&mut self, line: &mut String) -> Result<()> {
        line.clear();
        if self.0.read_line(line)? == 0 {
            bail!("the speaker hung up");
        }
        Ok(())
    }

    /// Puts a question and waits for its value.
    pub fn ask(&mut self, question: &str) -> Result<Value> {
        self.put(question)?;
        let mut line = String::new();
        loop {
            self.line(&mut line)?;
            let mut answer: Value = serde_json::from_str(&line)?;
            if let Some(reason) = answer.get("error") {
                bail!("{question}: {reason}");
            }
            if let Some(value) = answer.get_mut("ok") {
                return Ok(value.take());
            }
        }
    }
}

/// Values from the speaker's metrics.
#[derive(Clone, Copy, Debug)]
pub struct Metrics {
    /// The longest turn since the start.
    pub longest_turn: Duration,
    /// Turns of more than 20 ms since the start.
    pub slow_turns: u64,
    /// Prefixes in the table.
    pub prefixes: usize,
    /// Paths in the table.
    pub paths: usize,
    /// Pieces of long work under way.
    pub work: usize,
}

/// TCP port of the metrics of the speaker under test.
pub const METRICS_PORT: u16 = 9190;

/// Asks the speaker for its metrics.
pub fn metrics(address: Ipv4Addr) -> Result<Metrics> {
    let mut stream = TcpStream::connect((address, METRICS_PORT)).context("the metrics")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: dut\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let number = |name: &str| -> Result<f64> {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = line.and_then(|number| number.trim().parse().ok());
        number.with_context(|| format!("no {name} in the metrics: {text}"))
    };
    let slow = number("caracal_bgp_core_slow_turns_total")
        .or_else(|_| number("caracal_bgp_core_slow_turns"))?;
    #[allow(
        clippy::cast_sign_loss,
        reason = "counters and gauges that are never negative"
    )]
    Ok(Metrics {
        longest_turn: Duration::from_secs_f64(number("caracal_bgp_core_longest_turn_seconds")?),
        slow_turns: slow as u64,
        prefixes: number("caracal_bgp_prefixes")? as usize,
        paths: number("caracal_bgp_paths")? as usize,
        work: number("caracal_bgp_table_work")? as usize,
    })
}

/// Outcome of the questions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Number of questions that were answered.
    pub questions: usize,
    /// The longest that one took.
    pub longest: Duration,
    /// The most memory that was held, in KiB.
    pub peak_kib: u64,
}

/// Asks until told to stop.
pub fn ask_until(stop: &AtomicBool, dir: &Path, process: u32) -> Result<Seen> {
    let mut admin = Admin::connect(dir)?;
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        if seen.questions.is_multiple_of(QUESTIONS) {
            admin = Admin::connect(dir)?;
        }
        let begin = Instant::now();
        admin.ask(r#"{"request":"explain","prefix":"16.0.0.0/24"}"#)?;
        seen.longest = seen.longest.max(begin.elapsed());
        seen.questions += 1;
        seen.peak_kib = seen.peak_kib.max(memory_of(process)?.resident_kib);
        std::thread::sleep(PAUSE);
    }
    Ok(seen)
}
