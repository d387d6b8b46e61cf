//! The ping matrix: every pod pings every other, at the same time, until all answer or the deadline
//! is over.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use caracal_model::Family;
use serde::Serialize;

use crate::lab::Lab;
use crate::program::{self, Missing, ProgramError};
use crate::wait::scaled;

/// Pings that run at once. Each is a process that mostly waits.
const WORKERS: usize = 16;
/// `ping -c1 -W1` takes a second and a little; more is a hung process.
const CALL: Duration = Duration::from_secs(30);

/// One pair of pods.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    /// A pod is not asked for itself.
    Own,
    Answer {
        /// Round trip in milliseconds.
        ms: f64,
        /// Echo requests it took.
        attempts: u32,
    },
    /// No echo request was answered.
    Lost {
        /// Last line of `ping`.
        reason: String,
        /// Echo requests sent.
        attempts: u32,
    },
}

/// Reachability between the pods of a lab.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matrix {
    /// Pods as `NODE/POD`, in the order of rows and columns.
    pub pods: Vec<String>,
    /// Address of each pod, where it has one.
    pub addresses: Vec<Option<IpAddr>>,
    /// Result of each pair, as `cells[from][to]`.
    pub cells: Vec<Vec<Cell>>,
    /// Duration of all pings.
    pub took: Duration,
}

impl Matrix {
    /// Did everybody reach everybody?
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lost().is_empty()
    }

    /// The pairs without an answer: from, to, reason.
    #[must_use]
    pub fn lost(&self) -> Vec<(&str, &str, &str)> {
        let mut lost = Vec::new();
        for (from, row) in self.cells.iter().enumerate() {
            for (to, cell) in row.iter().enumerate() {
                if let Cell::Lost { reason, .. } = cell {
                    lost.push((&*self.pods[from], &*self.pods[to], &**reason));
                }
            }
        }
        lost
    }

    /// The number of pairs.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.cells
            .iter()
            .flatten()
            .filter(|c| **c != Cell::Own)
            .count()
    }
}

struct Pair {
    from: usize,
    to: usize,
    netns: String,
    target: IpAddr,
    attempts: u32,
}

/// The outcome of one echo request.
fn ping(netns: &str, target: IpAddr) -> Result<f64, String> {
    let mut command = program::command("ping").map_err(|e| e.to_string())?;
    command.args(["-n", "-q", "-c1", "-W1", &target.to_string()]);
    match program::output(Some(netns), &mut command, b"", CALL) {
        Ok(output) => parse(&output.stdout).ok_or_else(|| reason(&output.stdout, &output.stderr)),
        Err(ProgramError::Hung { .. }) => Err("ping hung".to_owned()),
        Err(e) => Err(crate::error_chain(&e)),
    }
}

/// `rtt min/avg/max/mdev = 0.045/0.045/0.045/0.000 ms` is there only when an answer came.
fn parse(stdout: &str) -> Option<f64> {
    let (_, numbers) = stdout.split_once("min/avg/max/mdev = ")?;
    numbers.split('/').nth(1)?.parse().ok()
}

fn reason(stdout: &str, stderr: &str) -> String {
    if !stderr.trim().is_empty() {
        return stderr.trim().to_owned();
    }
    let line = stdout
        .lines()
        .find(|l| l.contains("packet loss"))
        .unwrap_or("no answer");
    if line.contains("error") {
        line.trim().to_owned()
    } else {
        "no answer".to_owned()
    }
}

impl Lab {
    /// Pings between the pods' first addresses, as [`Lab::ping_matrix_of`] the first family.
    ///
    /// # Errors
    /// [`Missing`] when there is no `ping`.
    pub fn ping_matrix(&self, deadline: Duration) -> Result<Matrix, Missing> {
        let first = self.topology.families().into_iter().next();
        self.ping_matrix_of(first.unwrap_or(Family::Ipv4), deadline)
    }

    /// Pings between all pods that have an address of a family; a pair without answer is tried
    /// again until `deadline` (scaled). A pod without address is lost in both directions.
    ///
    /// # Errors
    /// [`Missing`] when there is no `ping`.
    pub fn ping_matrix_of(&self, family: Family, deadline: Duration) -> Result<Matrix, Missing> {
        program::require(&["ping"])?;
        let pods = &self.state.pods;
        let start = Instant::now();
        let end = start + scaled(deadline);
        let lost = |reason: &str| Cell::Lost {
            reason: reason.to_owned(),
            attempts: 0,
        };
        let mut cells = vec![vec![lost("the pod has no address"); pods.len()]; pods.len()];
        let mut queue = VecDeque::new();
        for (from, source) in pods.iter().enumerate() {
            cells[from][from] = Cell::Own;
            for (to, target) in pods.iter().enumerate() {
                if let (Some(_), Some(target)) =
                    (source.address_of(family), target.address_of(family))
                    && from != to
                {
                    let netns = source.netns.clone();
                    queue.push_back(Pair {
                        from,
                        to,
                        netns,
                        target,
                        attempts: 0,
                    });
                }
            }
        }
        let (results, done) = mpsc::sync_channel(WORKERS);
        std::thread::scope(|scope| {
            let mut running = 0;
            loop {
                while running < WORKERS
                    && let Some(mut pair) = queue.pop_front()
                {
                    running += 1;
                    let results = results.clone();
                    scope.spawn(move || {
                        pair.attempts += 1;
                        let result = ping(&pair.netns, pair.target);
                        // The receiver outlives the scope.
                        let _ = results.send((pair, result));
                    });
                }
                if running == 0 {
                    break;
                }
                let (pair, result) = done.recv().expect("invariant: we hold a sender");
                running -= 1;
                let (from, to, attempts) = (pair.from, pair.to, pair.attempts);
                cells[from][to] = match result {
                    Ok(ms) => Cell::Answer { ms, attempts },
                    Err(reason) => {
                        if Instant::now() < end {
                            queue.push_back(pair);
                        }
                        Cell::Lost { reason, attempts }
                    }
                };
            }
        });
        Ok(Matrix {
            pods: pods.iter().map(crate::state::PodState::label).collect(),
            addresses: pods.iter().map(|p| p.address_of(family)).collect(),
            cells,
            took: start.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_output_is_read() {
        let good = "1 packets transmitted, 1 received, 0% packet loss, time 0ms\n\
                    rtt min/avg/max/mdev = 0.045/0.046/0.047/0.000 ms\n";
        assert_eq!(parse(good), Some(0.046));
        let bad = "1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms\n";
        assert_eq!(parse(bad), None);
        assert!(reason(bad, "").contains("+1 errors"));
        assert_eq!(
            reason("1 packets transmitted, 0 received, 100% packet loss", ""),
            "no answer"
        );
        assert_eq!(
            reason("", "ping: connect: Network is unreachable\n"),
            "ping: connect: Network is unreachable"
        );
    }
}
