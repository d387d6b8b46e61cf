//! Programs the lab calls: where they are, which Debian package has them, and calls with a
//! deadline.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::netns::{self, NetnsError};
use crate::topology::{Datastore, NodeKind, Topology};
use crate::wait::{in_uml, wait_until};

/// CNI plugins that flannel's has do the work.
const BRIDGE: &str = "/usr/lib/cni/bridge";
const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

/// Programs that are called by name or path, with their Debian packages.
const PACKAGES: [(&str, &str); 17] = [
    (BRIDGE, "containernetworking-plugins"),
    (HOST_LOCAL, "containernetworking-plugins"),
    ("bird", "bird2"),
    ("birdc", "bird2"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("gobgpd", "gobgpd"),
    ("ip", "iproute2"),
    ("iptables-legacy", "iptables"),
    ("ipvsadm", "ipvsadm"),
    ("kubectl", "kubernetes-client"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("ping", "iputils-ping"),
    ("tcpdump", "tcpdump"),
    ("vtysh", "frr"),
];

/// Debian's folders of programs that a user's `PATH` may lack.
const SYSTEM_FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Programs that are not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not installed: {}; as root: apt-get update && apt-get install -y --no-install-recommends {}",
    .programs.join(", "), .packages.join(" "))]
pub struct Missing {
    /// Names of the programs.
    pub programs: Vec<String>,
    /// The Debian packages that have them.
    pub packages: Vec<String>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The namespace cannot be entered or the program does not start.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// It does not start.
    #[error("cannot start {program}")]
    Spawn {
        /// Name of the program.
        program: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The program's output cannot be read.
    #[error("cannot talk to {program}")]
    Stream {
        /// Name of the program.
        program: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// It ended with an error.
    #[error("{program} ended with {status}: {stderr}")]
    Failed {
        /// The program with its arguments.
        program: String,
        /// Exit status, or the signal that ended it.
        status: ExitStatus,
        /// Standard error of the program.
        stderr: String,
    },
    /// It did not end and was killed.
    #[error("{program} did not end within {after:.1?} and was killed")]
    Hung {
        /// The program with its arguments.
        program: String,
        /// Time that it was given.
        after: Duration,
    },
}

/// Output of a program.
#[derive(Clone, Debug)]
pub struct ProgramOutput {
    /// Exit status, or the signal that ended it.
    pub status: ExitStatus,
    /// Standard output of the program.
    pub stdout: String,
    /// Standard error of the program.
    pub stderr: String,
}

/// `PATH` with Debian's system folders, for us and for what we start.
#[must_use]
pub(crate) fn search_path() -> OsString {
    let own = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&own).collect();
    for folder in SYSTEM_FOLDERS.map(PathBuf::from) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    env::join_paths(folders).unwrap_or(own)
}

/// The file of a program.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&search_path())
        .map(|f| f.join(program))
        .find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Checks that programs are installed.
///
/// # Errors
/// [`Missing`], naming all of them at once.
pub fn require(programs: &[&str]) -> Result<(), Missing> {
    let missing: BTreeSet<&str> = programs
        .iter()
        .copied()
        .filter(|p| find(p).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: BTreeSet<&str> = missing.iter().copied().map(package).collect();
    Err(Missing {
        programs: missing.into_iter().map(str::to_owned).collect(),
        packages: packages.into_iter().map(str::to_owned).collect(),
    })
}

fn package(program: &str) -> &str {
    PACKAGES
        .iter()
        .find(|(p, _)| *p == program)
        .map_or(program, |(_, package)| package)
}

/// The programs a topology needs.
#[must_use]
pub(crate) fn needed(topology: &Topology) -> Vec<&'static str> {
    let mut programs = vec!["ip", "etcd", "etcdctl", "ping"];
    let has = |kind| topology.nodes.iter().any(|n| n.kind == kind);
    let mut pools = std::iter::once(&topology.pool).chain(&topology.pool6);
    let masquerades = match topology.flannel() {
        Some(flannel) => flannel.ip_masq,
        None => pools.any(crate::topology::Pool::nat_outgoing),
    };
    if topology.flannel().is_some() {
        programs.extend([BRIDGE, HOST_LOCAL]);
        if !masquerades {
            // Who does not masquerade leaves it to the plugin, which knows iptables alone.
            programs.push("iptables");
        }
    }
    if has(NodeKind::Caracal) && masquerades {
        // The IPIP test kernel has no nf_tables for ip.
        programs.push(if in_uml() { "iptables-legacy" } else { "nft" });
    }
    if topology.datastore == Datastore::Kubernetes {
        programs.push("openssl");
    }
    if has(NodeKind::Bird2) {
        programs.extend(["bird", "birdc"]);
    }
    if has(NodeKind::Gobgp) {
        programs.push("gobgpd");
    }
    programs
}

/// A command for a program by name or path, found as the lab finds programs.
///
/// # Errors
/// [`Missing`].
pub fn command(program: &str) -> Result<Command, Missing> {
    require(&[program])?;
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("PATH", search_path());
    Ok(command)
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let mut text = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Calls a program to its end, whatever its status, inside a namespace if one is given. Kills it
/// when it takes longer than `deadline` (scaled).
///
/// # Errors
/// [`ProgramError`], but never [`ProgramError::Failed`].
pub fn output(
    netns: Option<&str>,
    command: &mut Command,
    stdin: &[u8],
    deadline: Duration,
) -> Result<ProgramOutput, ProgramError> {
    let program = describe(command);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match netns {
        Some(name) => netns::spawn(name, command)?,
        None => command.spawn().map_err(|source| ProgramError::Spawn {
            program: program.clone(),
            source,
        })?,
    };
    let (mut sink, mut out, mut err) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A program that does not read its input is fine: the broken pipe is ignored.
        scope.spawn(move || sink.as_mut().map(|s| s.write_all(stdin)));
        let out = scope.spawn(move || read(out.as_mut()));
        let err = scope.spawn(move || read(err.as_mut()));
        let ended = wait_until(deadline, &program, || match child.try_wait() {
            Ok(Some(status)) => Ok(Ok(status)),
            Ok(None) => Err("running"),
            Err(e) => Ok(Err(e)),
        });
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let stdout = out.join().unwrap_or_default();
        let stderr = err.join().unwrap_or_default();
        match ended {
            Ok(Ok(status)) => Ok(ProgramOutput {
                status,
                stdout,
                stderr,
            }),
            Ok(Err(source)) => Err(ProgramError::Stream { program, source }),
            Err(timeout) => Err(ProgramError::Hung {
                program,
                after: timeout.after,
            }),
        }
    })
}

fn read(stream: Option<&mut impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // Output that arrived before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Like [`output`], but a bad exit status is an error; gives standard output.
///
/// # Errors
/// [`ProgramError`].
pub fn call(
    netns: Option<&str>,
    command: &mut Command,
    stdin: &[u8],
    deadline: Duration,
) -> Result<String, ProgramError> {
    let output = output(netns, command, stdin, deadline)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = output.stderr.trim().to_owned();
    Err(ProgramError::Failed {
        program: describe(command),
        status: output.status,
        stderr,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn missing_programs_name_the_packages_once() {
        let error = require(&["bird", "no-such-program", "sh"]);
        let Err(error) = error else {
            panic!("no-such-program exists")
        };
        assert!(error.programs.contains(&"no-such-program".to_owned()));
        assert!(!error.programs.contains(&"sh".to_owned()));
        let both = Missing {
            programs: vec!["bird".into(), "birdc".into()],
            packages: vec!["bird2".into()],
        };
        assert_eq!(
            both.to_string(),
            "not installed: bird, birdc; as root: apt-get update && apt-get install -y \
             --no-install-recommends bird2"
        );
    }

    #[test]
    fn a_lab_of_flannels_needs_the_plugins_of_the_cni_project() {
        let text = "name: t\nplugin: flannel\n\
            flannel: {network: 10.5.0.0/16, ipMasq: false, backend: {type: udp}}\n\
            segments: [{name: a, cidr: 10.0.0.0/24}]\nnodes: [{name: n, segment: a}]\n";
        let quiet = needed(&Topology::parse(text, "t").unwrap());
        assert!(quiet.contains(&BRIDGE) && quiet.contains(&HOST_LOCAL));
        assert!(!quiet.contains(&"nft") && quiet.contains(&"iptables"));
        let text = text.replace("false", "true");
        let masquerading = needed(&Topology::parse(&text, "t").unwrap());
        assert!(!masquerading.contains(&"iptables"));
        assert!(masquerading.contains(&"nft") || masquerading.contains(&"iptables-legacy"));
        for plugin in [BRIDGE, HOST_LOCAL] {
            assert_eq!(package(plugin), "containernetworking-plugins");
        }
    }

    #[test]
    fn a_call_gives_output_status_and_words() {
        let mut cat = Command::new("cat");
        let text = "x".repeat(1 << 20);
        assert_eq!(
            call(None, &mut cat, text.as_bytes(), 10 * SECOND).unwrap(),
            text
        );
        let mut fail = Command::new("sh");
        fail.args(["-c", "echo bad >&2; exit 3"]);
        let error = call(None, &mut fail, b"", 10 * SECOND).unwrap_err();
        assert!(
            error.to_string().ends_with("exit status: 3: bad"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let error = call(None, &mut sleep, b"", SECOND / 10).unwrap_err();
        assert!(matches!(error, ProgramError::Hung { .. }), "{error}");
    }
}
