//! The process: version, memory, processor time. Names as every Prometheus client has them.

use caracal_bgp::SpeakerStatus;
use serde::{Deserialize, Serialize};

use super::{count, total};
use crate::http::exposition::{MetricFamily, MetricKind};

/// The families. What the kernel does not tell is left out.
pub(crate) fn families() -> Vec<MetricFamily> {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let system = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let mut families = vec![
        MetricFamily::new("caracal_build", MetricKind::Info, "Version of the program.")
            .sample(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0),
        MetricFamily::new(
            "caracal_log_lines_dropped",
            MetricKind::Counter,
            "Log lines that were dropped: nobody read them, or they could not be written.",
        )
        .value(total(crate::telemetry::dropped_lines())),
        MetricFamily::new(
            "process_open_fds",
            MetricKind::Gauge,
            "Open file descriptors.",
        )
        .value(count(fds)),
    ];
    if let Some(usage) = Usage::read(&stat, &system) {
        families.extend([
            MetricFamily::new(
                "process_cpu_seconds",
                MetricKind::Counter,
                "Processor time.",
            )
            .value(usage.cpu_seconds),
            MetricFamily::new(
                "process_resident_memory_bytes",
                MetricKind::Gauge,
                "Resident memory.",
            )
            .value(usage.resident_bytes),
            MetricFamily::new(
                "process_start_time_seconds",
                MetricKind::Gauge,
                "Start of the process, in seconds of Unix time.",
            )
            .value(usage.start_seconds),
        ]);
    }
    families
}

/// What the process and the agent have cost since they started: two of them make a rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Figures {
    /// Processor time, in seconds.
    pub(crate) cpu_seconds: f64,
    /// Resident memory, in octets.
    pub(crate) resident_bytes: f64,
    /// The writer of the kernel; a standalone speaker has another one.
    pub(crate) agent: Option<AgentFigures>,
    /// The speaker; an older process does not tell it.
    #[serde(default)]
    pub(crate) speaker: Option<SpeakerFigures>,
}

/// Work of the speaker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SpeakerFigures {
    /// UPDATEs from peers.
    pub(crate) received: u64,
    /// UPDATEs to peers.
    pub(crate) sent: u64,
    /// The longest time for which the owner of the table heard nobody, in seconds.
    pub(crate) longest_turn_seconds: f64,
}

impl From<&SpeakerStatus> for SpeakerFigures {
    fn from(status: &SpeakerStatus) -> Self {
        Self {
            received: status.updates.received,
            sent: status.updates.sent,
            longest_turn_seconds: status.turns.longest.as_secs_f64(),
        }
    }
}

/// Work of the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentFigures {
    /// Passes from what the datastore and peers say to the kernel.
    pub(crate) passes: u64,
    /// Changes made in the kernel.
    pub(crate) applied: u64,
    /// Time spent in passes, in seconds.
    pub(crate) pass_seconds: f64,
}

impl Figures {
    /// Of this process, now.
    pub(crate) fn now(agent: Option<AgentFigures>, speaker: Option<&SpeakerStatus>) -> Self {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        let usage = Usage::read(&read("/proc/self/stat"), &read("/proc/stat"));
        Self {
            cpu_seconds: usage.as_ref().map_or(0.0, |usage| usage.cpu_seconds),
            resident_bytes: usage.map_or(0.0, |usage| usage.resident_bytes),
            agent,
            speaker: speaker.map(SpeakerFigures::from),
        }
    }
}

/// Fields of `/proc/self/stat` and `/proc/self/status` (proc(5)).
#[derive(Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident_bytes: f64,
    start_seconds: f64,
}

impl Usage {
    /// From `/proc/self/stat` and `/proc/stat`.
    fn read(stat: &str, system: &str) -> Option<Self> {
        // The command, field 2, may hold blanks and parentheses; after the last one comes field 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let tick = rustix::param::clock_ticks_per_second();
        let boot = system.lines().find_map(|l| l.strip_prefix("btime "))?;
        let seconds = |ticks: u64| total(ticks) / total(tick);
        Some(Self {
            cpu_seconds: seconds(field(14)? + field(15)?),
            resident_bytes: total(field(24)?) * count(rustix::param::page_size()),
            start_seconds: total(boot.trim().parse().ok()?) + seconds(field(22)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_proc_are_counted_after_the_command() {
        let mut fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        fields[14 - 3] = "150".to_owned();
        fields[15 - 3] = "50".to_owned();
        fields[22 - 3] = "1000".to_owned();
        fields[24 - 3] = "3".to_owned();
        let stat = format!("7 (a b) c) {}", fields.join(" "));
        let usage = Usage::read(&stat, "cpu 1\nbtime 1700000000\n");
        let tick = total(rustix::param::clock_ticks_per_second());
        assert_eq!(
            usage,
            Some(Usage {
                cpu_seconds: 200.0 / tick,
                resident_bytes: 3.0 * count(rustix::param::page_size()),
                start_seconds: 1_700_000_000.0 + 1000.0 / tick,
            })
        );
        assert_eq!(Usage::read("", ""), None);
    }
}
