//! Table dumps that the file asks for (`protocol mrt`): a task each, which ends with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use caracal_bgp::SpeakerHandle;
use caracal_model::Timestamp;
use caracal_templates::Dump;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::admin::mrt;

/// Value of `%N`: a speaker has one table of both families.
const TABLE: &str = "master";

/// The dumps of a file, each with its task.
#[derive(Debug, Default)]
pub(super) struct Dumps(BTreeMap<String, (Dump, DumpTask)>);

#[derive(Debug)]
struct DumpTask(JoinHandle<()>);

impl Drop for DumpTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Dumps {
    /// Goes over to other dumps; those that stay keep their time. True when something differed.
    pub(super) fn change(
        &mut self,
        wanted: BTreeMap<String, Dump>,
        speaker: &SpeakerHandle,
    ) -> bool {
        let before = self.0.len();
        self.0
            .retain(|name, (dump, _)| wanted.get(name) == Some(dump));
        let mut changed = self.0.len() != before;
        for (name, dump) in wanted {
            self.0.entry(name).or_insert_with(|| {
                changed = true;
                let task = tokio::spawn(run(dump.clone(), speaker.clone()));
                (dump, DumpTask(task))
            });
        }
        changed
    }
}

/// Writes the first dump when a period has gone by, as BIRD does. One that cannot be written is
/// told, and the next is tried.
async fn run(dump: Dump, speaker: SpeakerHandle) {
    let mut ticks = tokio::time::interval_at(Instant::now() + dump.period, dump.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let name = file_name(&dump.filename, SystemTime::now());
        match mrt::dump(&speaker, Path::new(&name)).await {
            Ok((octets, 0)) => tracing::debug!(file = name, %octets, "table dumped"),
            Ok((_, paths)) => tracing::warn!(file = name, paths, "{}", mrt::LEFT_OUT),
            Err(reason) => tracing::warn!(reason, "no dump of the table"),
        }
    }
}

/// The name of the file at a time, UTC.
fn file_name(pattern: &str, now: SystemTime) -> String {
    let text = Timestamp::from(now).rfc3339();
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    let clock = clock.trim_end_matches('Z');
    let part =
        |text: &str, n: usize, by: char| text.split(by).nth(n).unwrap_or_default().to_owned();
    let mut name = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            name.push(letter);
            continue;
        }
        name += &match letters.next() {
            Some('Y') => part(date, 0, '-'),
            Some('m') => part(date, 1, '-'),
            Some('d') => part(date, 2, '-'),
            Some('H') => part(clock, 0, ':'),
            Some('M') => part(clock, 1, ':'),
            Some('S') => part(clock, 2, ':'),
            Some('F') => date.to_owned(),
            Some('T') => clock.to_owned(),
            Some('N') => TABLE.to_owned(),
            Some('s') => {
                let since = now.duration_since(SystemTime::UNIX_EPOCH);
                since.unwrap_or_default().as_secs().to_string()
            }
            Some(other) => other.to_string(),
            None => String::new(),
        };
    }
    name
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_name_has_the_time_in_it() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_607_872);
        for (pattern, name) in [
            ("/var/%N_%F_%T.mrt", "/var/master_2026-01-05_10:11:12.mrt"),
            ("%Y%m%d-%H%M%S", "20260105-101112"),
            ("%s.100%%", "1767607872.100%"),
            ("plain", "plain"),
        ] {
            assert_eq!(file_name(pattern, now), name);
        }
    }
}
