//! `caracal doctor`: looks for what keeps a node from working, and says what to do about each
//! thing. It reads, and sends probes to the other nodes; it changes nothing.
//!
//! Each finding has a fixed name, so that a script can wait for it to go.

pub(super) mod cni;
pub(super) mod datastore;
pub(super) mod leftovers;
pub(super) mod machine;
pub(super) mod neighbours;
pub(super) mod network;

use std::path::PathBuf;
use std::process::ExitCode;

use caracal_model::DoctorCode;
use clap::Args;
use serde::Serialize;

use super::{in_this_namespace, table};
use crate::args::{Output, OutputArgs};
use crate::exit::DEGRADED;

/// `caracal doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Folder of CNI configurations; by default `CNI_CONF_DIR`, else /host/etc/cni/net.d where it
    /// is, else /etc/cni/net.d.
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Folder of CNI plugins; by default `CNI_BIN_DIR`, else /host/opt/cni/bin where it is, else
    /// /opt/cni/bin.
    #[arg(long, value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// Send nothing to other nodes.
    #[arg(long)]
    local: bool,
    /// Output format.
    #[command(flatten)]
    output: OutputArgs,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckVerdict {
    /// As it should be.
    Ok,
    /// Works now; may not later, or not for everybody.
    Warn,
    /// Keeps packets from arriving, or the node from working.
    Fail,
    /// Could not be looked at.
    Skip,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) check: DoctorCode,
    /// Object of the check: this machine, or another node.
    pub(super) subject: String,
    /// How serious it is.
    pub(super) verdict: CheckVerdict,
    /// Result as a sentence.
    pub(super) seen: String,
    /// Remedy; empty when all is well.
    pub(super) fix: String,
}

impl DoctorFinding {
    /// All is well.
    pub(super) fn ok(
        check: DoctorCode,
        subject: impl Into<String>,
        seen: impl Into<String>,
    ) -> Self {
        Self::new(check, subject, CheckVerdict::Ok, seen, "")
    }

    /// A finding.
    pub(super) fn new(
        check: DoctorCode,
        subject: impl Into<String>,
        verdict: CheckVerdict,
        seen: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check,
            subject: subject.into(),
            verdict,
            seen: seen.into(),
            fix: fix.into(),
        }
    }
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let config = crate::node::read_config()?;
    in_this_namespace(async {
        let mut findings = Vec::new();
        let snapshot = datastore::check_datastore(&mut findings).await;
        let links = caracal_agent::read_links().await?;
        machine::check_machine(&mut findings, snapshot.as_deref(), &config, &links).await;
        if let Some(snapshot) = snapshot.as_deref() {
            neighbours::check_neighbours(&mut findings, snapshot, &config.node, &links);
        }
        leftovers::check_leftovers(&mut findings, &links);
        let [conf, bin] = [&args.cni_conf_dir, &args.cni_bin_dir].map(Option::as_deref);
        cni::check_cni(&mut findings, &cni::CniFolders::new(conf, bin));
        if let Some(snapshot) = snapshot.as_deref().filter(|_| !args.local) {
            network::check_network(&mut findings, snapshot, &config.node, &links);
        }
        let sick = findings.iter().any(|f| f.verdict == CheckVerdict::Fail);
        let output = args.output.output;
        match output {
            Output::Json | Output::Yaml => {
                output.print(&serde_json::json!({ "healthy": !sick, "findings": findings }))
            }
            Output::Table | Output::Wide => show(&findings),
        }
        Ok(match sick {
            true => ExitCode::from(DEGRADED),
            false => ExitCode::SUCCESS,
        })
    })
}

fn show(findings: &[DoctorFinding]) {
    let mut rows = table(&["", "CHECK", "SUBJECT", "SEEN"]);
    for finding in findings {
        let sign = match finding.verdict {
            CheckVerdict::Ok => "ok",
            CheckVerdict::Warn => "warn",
            CheckVerdict::Fail => "FAIL",
            CheckVerdict::Skip => "skip",
        };
        rows.add_row([
            sign,
            finding.check.as_str(),
            &finding.subject,
            &finding.seen,
        ]);
    }
    println!("{rows}");
    let ills = findings.iter().filter(|finding| !finding.fix.is_empty());
    for finding in ills {
        println!(
            "\n{} ({}): {}",
            finding.check, finding.subject, finding.seen
        );
        println!("  fix: {}", finding.fix);
    }
}
