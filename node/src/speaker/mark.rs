//! The mark of a run, by which the next one knows that it is a restart.
//!
//! A speaker without a forwarding table of its own loses no forwarding by a restart, so its peers
//! may keep its routes (RFC 4724 §4.1). It says so in its OPENs when the mark of a run that ended a
//! short while ago, or that ended without a word, is still there. The run directory does not
//! outlive the machine's own restart.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use caracal_datastore::{PUBLIC_MODE, put_file, read_text_file};

/// After this long no peer keeps our routes any more: the longest restart time that fits the
/// capability (12 bits of seconds, RFC 4724 §3).
const LONGEST_RESTART: Duration = Duration::from_secs(4095);

/// A run; the file outlives it unless it ends for good.
#[derive(Debug)]
pub(super) struct Mark(PathBuf);

impl Mark {
    /// Marks the beginning of a run. True: it is a restart.
    pub(super) fn begin(run_dir: &Path) -> std::io::Result<(Self, bool)> {
        let path = run_dir.join("speaker.mark");
        let restart = read_text_file(&path).is_ok_and(|text| is_restart(&text, now()));
        put_file(&path, b"running\n", PUBLIC_MODE)?;
        Ok((Self(path), restart))
    }

    /// The run ends, and another one is expected soon.
    pub(super) fn expect_restart(&self) -> std::io::Result<()> {
        let text = format!("ended {}\n", now().as_secs());
        put_file(&self.0, text.as_bytes(), PUBLIC_MODE)
    }

    /// The run ends for good.
    pub(super) fn end(&self) -> std::io::Result<()> {
        std::fs::remove_file(&self.0)
    }
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

fn is_restart(mark: &str, now: Duration) -> bool {
    match mark.trim().split_once(' ') {
        Some(("ended", at)) => at.parse().is_ok_and(|at| {
            now.checked_sub(Duration::from_secs(at))
                .is_some_and(|age| age < LONGEST_RESTART)
        }),
        // The run before did not come to write how it ended.
        _ => mark.trim() == "running",
    }
}

#[cfg(test)]
mod tests {
    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn a_run_after_a_recent_one_is_a_restart() {
        let dir = TestFolder::new("mark");
        let (first, restart) = Mark::begin(&dir).unwrap();
        assert!(!restart, "the first run");
        let (_, restart) = Mark::begin(&dir).unwrap();
        assert!(restart, "after a crash");
        first.expect_restart().unwrap();
        let (second, restart) = Mark::begin(&dir).unwrap();
        assert!(restart, "after SIGTERM");
        second.end().unwrap();
        let (_, restart) = Mark::begin(&dir).unwrap();
        assert!(!restart, "after the end for good");
    }

    #[test]
    fn an_old_mark_is_none() {
        let at = |seconds| Duration::from_secs(seconds);
        assert!(is_restart("ended 1000\n", at(1000)));
        assert!(is_restart("ended 1000\n", at(5094)));
        assert!(!is_restart("ended 1000\n", at(5095)));
        assert!(
            !is_restart("ended 1000\n", at(900)),
            "the clock went backwards"
        );
        assert!(!is_restart("", at(1000)));
    }
}
