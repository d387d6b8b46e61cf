//! A BIRD daemon of the test's own, asked over its control socket. It has no peers, writes no
//! routes, and lives in a folder of its own.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Bird {
    folder: PathBuf,
    child: Child,
    answers: BufReader<UnixStream>,
}

/// The line of BIRD's first complaint about a text; `None`: there is no BIRD.
#[allow(clippy::option_option, reason = "no BIRD, no complaint, a line")]
pub(crate) fn first_error(text: &str) -> Option<Option<usize>> {
    let file = std::env::temp_dir().join(format!("caracal-parse-{}.conf", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new("bird").args(["-p", "-c"]).arg(&file).output();
    let _ = std::fs::remove_file(&file);
    let output = output.ok()?;
    if output.status.success() {
        return Some(None);
    }
    // `bird: FILE:LINE:COLUMN message`
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = message
        .split(".conf:")
        .nth(1)
        .and_then(|rest| rest.split(':').next());
    Some(Some(
        line.and_then(|line| line.parse().ok())
            .unwrap_or_else(|| panic!("{message}")),
    ))
}

impl Bird {
    /// A daemon with this configuration; `None`, and a word why, without a BIRD 2.
    pub(crate) fn start(name: &str, config: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("caracal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |end: &str| folder.join(end);
        std::fs::write(path("conf"), config).unwrap();
        let child = Command::new("bird")
            .args(["-f", "-c"])
            .arg(path("conf"))
            .arg("-s")
            .arg(path("ctl"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: no program \"bird\"; install it with: apt-get install bird2");
            let _ = std::fs::remove_dir_all(&folder);
            return None;
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(path("ctl")) {
                break stream;
            }
            let ended = child.try_wait().unwrap();
            let log = || std::fs::read_to_string(path("log")).unwrap_or_default();
            assert!(ended.is_none(), "bird ended: {ended:?}\n{}", log());
            assert!(Instant::now() < deadline, "bird does not answer\n{}", log());
            std::thread::park_timeout(Duration::from_millis(20));
        };
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).unwrap();
        let mut bird = Self {
            folder,
            child,
            answers: BufReader::new(stream),
        };
        bird.answer();
        Some(bird)
    }

    /// The lines of the answer to a command, without their codes, and the last code; `None`: the
    /// daemon has crashed.
    pub(crate) fn ask(&mut self, command: &str) -> Option<(Vec<String>, u16)> {
        assert!(command.len() < 4000, "too long for BIRD: {command}");
        let stream = self.answers.get_mut();
        stream.write_all(format!("{command}\n").as_bytes()).ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<(Vec<String>, u16)> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end_matches('\n');
            // `CODE-TEXT`, `CODE TEXT` at the end, or a blank and text.
            let code = line.get(..4).and_then(|code| code.parse::<u16>().ok());
            let Some(code) = code else {
                lines.push(line.get(1..).unwrap_or_default().to_owned());
                continue;
            };
            lines.push(line.get(5..).unwrap_or_default().to_owned());
            if line.as_bytes().get(4) == Some(&b' ') {
                return Some((lines, code));
            }
        }
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
