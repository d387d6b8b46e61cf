//! The user's check and reload commands. The only file of the command line that starts programs:
//! what a daemon accepts is known to the daemon alone, and how it is told is the user's to say.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

/// A command that takes longer is killed and counts as failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// Octets of a command's error output that are passed on.
const MAX_ERROR_OUTPUT: u64 = 4096;

/// Runs a command in a shell, with the folder as `{dir}` and in `CARACAL_RENDER_DIR`.
pub(super) fn run(command: &str, folder: &Path) -> anyhow::Result<()> {
    let text = command.replace("{dir}", &folder.display().to_string());
    let mut child = Command::new("/bin/sh")
        .args(["-c", &text])
        .env("CARACAL_RENDER_DIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {text:?}"))?;
    let stderr = child.stderr.take();
    // Read beside the waiting: a command that complains at length must not block on a full pipe.
    let error_output = std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = stderr
                .by_ref()
                .take(MAX_ERROR_OUTPUT)
                .read_to_end(&mut kept);
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        }
        String::from_utf8_lossy(&kept).trim().to_owned()
    });
    let end = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("{text:?} did not end within {} s", DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if status.success() {
        return Ok(());
    }
    let error_output = error_output.join().unwrap_or_default();
    anyhow::bail!("{text:?} failed ({status}): {error_output}")
}
