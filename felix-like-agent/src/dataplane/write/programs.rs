//! The programs that the agent starts: `nft`, and iptables' save and restore.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use caracal_model::Family;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::dataplane::read::hints::OwnChanges;

/// A program that runs longer than this is killed.
pub(in crate::dataplane) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Why a program's work was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// It cannot be started or spoken to.
    #[error("cannot run {program}")]
    Run {
        program: &'static str,
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("{program} did not finish within {} s", TIME_LIMIT.as_secs())]
    Timeout { program: &'static str },
    /// It said no.
    #[error("{program} says {:?}", first_line(stderr))]
    Refused {
        program: &'static str,
        /// Its standard error.
        stderr: String,
    },
}

impl CommandError {
    /// True when the program was ended for its time: what it would have said is not known.
    pub(in crate::dataplane) const fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}

/// What a program prints; `None` when it cannot be run or refuses, which an older kernel or machine
/// may be the reason of.
///
/// # Errors
/// [`CommandError::Timeout`].
pub(in crate::dataplane) fn unless_refused(
    answer: Result<String, CommandError>,
) -> Result<Option<String>, CommandError> {
    match answer {
        Ok(printed) => Ok(Some(printed)),
        Err(error) if error.is_timeout() => Err(error),
        Err(_) => Ok(None),
    }
}

fn first_line(text: &str) -> &str {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or("nothing")
}

/// `iptables-legacy` and its IPv6 twin.
#[derive(Clone, Copy)]
pub(in crate::dataplane) struct Iptables {
    pub(in crate::dataplane) family: Family,
    pub(in crate::dataplane) save: &'static str,
    pub(in crate::dataplane) restore: &'static str,
}

impl Iptables {
    /// The forms of iptables for a family, the one on top of nftables first.
    pub(in crate::dataplane) const fn forms(family: Family) -> [Self; 2] {
        match family {
            Family::Ipv4 => [IPTABLES_NFT, IPTABLES],
            Family::Ipv6 => [IP6TABLES_NFT, IP6TABLES],
        }
    }

    /// False when the kernel has no such table in the calling thread's network namespace. It is
    /// asked before `iptables-legacy`, which makes the tables that it is asked for; for iptables on
    /// top of nftables it costs nothing to look.
    pub(in crate::dataplane) fn has_table(&self, table: &str) -> bool {
        let names = match self.save {
            "iptables-legacy-save" => "ip_tables_names",
            "ip6tables-legacy-save" => "ip6_tables_names",
            _ => return true,
        };
        let tables = std::fs::read_to_string(format!("/proc/thread-self/net/{names}"));
        tables.unwrap_or_default().lines().any(|name| name == table)
    }
}

pub(in crate::dataplane) const IPTABLES: Iptables = Iptables {
    family: Family::Ipv4,
    save: "iptables-legacy-save",
    restore: "iptables-legacy-restore",
};
pub(in crate::dataplane) const IP6TABLES: Iptables = Iptables {
    family: Family::Ipv6,
    save: "ip6tables-legacy-save",
    restore: "ip6tables-legacy-restore",
};

/// iptables on top of nftables: its chains are in nftables tables of its own.
pub(in crate::dataplane) const IPTABLES_NFT: Iptables = Iptables {
    family: Family::Ipv4,
    save: "iptables-nft-save",
    restore: "iptables-nft-restore",
};
pub(in crate::dataplane) const IP6TABLES_NFT: Iptables = Iptables {
    family: Family::Ipv6,
    save: "ip6tables-nft-save",
    restore: "ip6tables-nft-restore",
};

/// Runs a program with `input` and answers with what it prints.
pub(in crate::dataplane) async fn run(
    program: &'static str,
    args: &[&str],
    input: &str,
) -> Result<String, CommandError> {
    run_as(program, args, input, None).await
}

/// As [`run`]; what the program changes is noted as our own doing before it can begin.
pub(in crate::dataplane) async fn run_as(
    program: &'static str,
    args: &[&str],
    input: &str,
    changes: Option<&OwnChanges>,
) -> Result<String, CommandError> {
    let failed = |source| CommandError::Run { program, source };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let (Some(changes), Some(process)) = (changes, child.id()) {
        // It reads all of its input before it begins.
        changes.expect_from(process);
    }
    let mut stdin = child.stdin.take();
    let work = async {
        if let Some(stdin) = &mut stdin {
            // A program that does not read its input says why on its standard error.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        drop(stdin);
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(TIME_LIMIT, work)
        .await
        .map_err(|_| CommandError::Timeout { program })?
        .map_err(failed)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(CommandError::Refused {
            program,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
