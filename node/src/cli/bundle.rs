//! `caracal bundle`: what somebody who helps needs to know of this node, in one file, secrets
//! removed. Each part that cannot be had says why; the rest is there all the same.

mod archive;
mod others;
mod redaction;

use std::fmt::{Display, Write as _};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use caracal_agent::ActualTarget;
use caracal_datastore::Store;
use caracal_model::{Key, KeyRange, Kind, NodeName, Timestamp, find_code, kind_prefix};
use clap::Args;
use serde_json::{Map, Value, json};

use self::archive::Archive;
use self::redaction::Redaction;
use super::version::TEXT;
use super::{all_nodes, in_this_namespace, open_store, run_dir};
use crate::admin::{Request, RouteFilter, ask, ask_rows};
use crate::cluster_nodes::ClusterNode;

/// Routes of each table that are told; how many there are is told in any case.
const ROUTES: usize = 10_000;
/// Octets of the end of a log, and of the beginning of any other text.
const TEXT_LIMIT: usize = 512 * 1024;
/// Settings of the Debian package.
const SETTINGS: &str = "/etc/caracal/caracal.env";
/// Beginnings of the names of variables that Caracal reads. Others are not its business.
const VARIABLES: [&str; 14] = [
    "AS",
    "CALICO_",
    "CARACAL_",
    "CLUSTER_TYPE",
    "CNI_",
    "DATASTORE_TYPE",
    "ETCD_",
    "FELIX_",
    "IP",
    "K8S_",
    "KUBE",
    "NAMESPACE",
    "NODENAME",
    "NO_DEFAULT_POOLS",
];
/// What people configure; Nodes are many, and only this one's is taken.
const CONFIGURATION: [Kind; 7] = [
    Kind::IpPool,
    Kind::IpReservation,
    Kind::BgpConfiguration,
    Kind::BgpPeer,
    Kind::BgpFilter,
    Kind::FelixConfiguration,
    Kind::ClusterInformation,
];

/// `caracal bundle`.
#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// File to write; an existing one is overwritten.
    #[arg(long, value_name = "FILE", default_value = "caracal-bundle.tar.gz")]
    out: PathBuf,
    /// Add the status that all nodes published, and what they answer over their consoles.
    #[arg(long)]
    all_nodes: bool,
    /// Add the end of this file, such as the node's log.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// A file of the bundle, or why there is none.
struct Part {
    file: String,
    about: String,
    content: Result<String, String>,
}

pub(crate) fn run(args: &BundleArgs) -> anyhow::Result<ExitCode> {
    let environment: Vec<(String, String)> = crate::config::environment().into_iter().collect();
    let redaction = Redaction::new(&environment);
    let status = ask(&run_dir(), &Request::Status);
    let node = match &status {
        Ok(status) => status["node"].as_str().map(str::to_owned),
        Err(_) => std::env::var("NODENAME").ok(),
    };
    let now = Timestamp::from(SystemTime::now());
    let index = heading(node.as_deref(), now, status.as_ref().ok());
    in_this_namespace(async {
        let parts = parts(args, &redaction, &environment, node, status).await;
        let file = pack(redaction.text(&index), &parts);
        let mut written = OpenOptions::new();
        written.write(true).create(true).truncate(true).mode(0o600);
        written
            .open(&args.out)
            .and_then(|mut opened| opened.write_all(&file))
            .with_context(|| format!("writing {}", args.out.display()))?;
        for part in &parts {
            if let Err(reason) = &part.content {
                eprintln!("without {}: {reason}", part.file);
            }
        }
        println!(
            "{}: {} octets, secrets removed; INDEX is to be read first",
            args.out.display(),
            file.len()
        );
        Ok(ExitCode::SUCCESS)
    })
}

async fn parts(
    args: &BundleArgs,
    redaction: &Redaction,
    environment: &[(String, String)],
    node: Option<String>,
    status: anyhow::Result<Value>,
) -> Vec<Part> {
    let part = |file: &str, about: &str, content: anyhow::Result<String>| Part {
        file: file.to_owned(),
        about: about.to_owned(),
        content: content.map_err(|error| redaction.text(&format!("{error:#}"))),
    };
    let value = |content: anyhow::Result<Value>| {
        content.map(|mut value| {
            redaction.value(&mut value);
            format!("{value:#}\n")
        })
    };
    let text = |content: anyhow::Result<String>| content.map(|text| redaction.text(&text));
    let audit = ask(&run_dir(), &Request::Audit);
    let mut parts = vec![
        part("status.json", "`caracal status -o json`", value(status)),
        part("audit.json", "`caracal audit -o json`", value(audit)),
        part(
            "routes.jsonl",
            "`caracal bgp routes -o json`",
            text(routes()),
        ),
        part(
            "kernel-routes.txt",
            "the kernel's main table, everybody's routes",
            text(kernel_routes().await),
        ),
    ];
    for (table, rules) in caracal_agent::read_rules().await {
        let file = match table {
            "caracal" => "rules.txt",
            _ => "rules-services.txt",
        };
        let rules = rules.map(bounded).map_err(Into::into);
        parts.push(part(file, "our table of nftables", text(rules)));
    }
    parts.extend([
        part(
            "configuration.json",
            "resources of the datastore by key",
            value(configuration(node.as_deref()).await),
        ),
        part(
            "environment.txt",
            "variables of this command, as the node's where both run in one container",
            Ok(variables(environment, redaction)),
        ),
        part(
            "caracal.env",
            "the settings of the package",
            tail(Path::new(SETTINGS)).map(|text| redaction.settings(&text)),
        ),
        part(
            "system.txt",
            "kernel, memory, interfaces",
            text(Ok(system())),
        ),
    ]);
    if args.all_nodes {
        let nodes = all_nodes::published().await;
        let known = nodes.as_ref().ok().cloned().unwrap_or_default();
        let about = "`caracal status --all-nodes -o json`";
        parts.push(part("all-nodes.json", about, value(nodes)));
        let known: Vec<ClusterNode> = serde_json::from_value(known).unwrap_or_default();
        let (names, reason) = others::chosen(&known, node.as_deref());
        for (n, (name, answers)) in (1..).zip(others::ask_each(names).await) {
            let about = format!("what node {name} answers over its console");
            parts.push(part(&format!("nodes/{n:02}.json"), &about, value(answers)));
        }
        if let Some(reason) = reason {
            let about = "what other nodes answer over their consoles";
            parts.push(part("nodes/more", about, Err(anyhow::Error::msg(reason))));
        }
    }
    if let Some(log) = &args.log {
        parts.push(part("log.txt", "the end of the log", text(tail(log))));
    }
    parts
}

/// What is wrong, with the remedies.
fn heading(node: Option<&str>, now: Timestamp, status: Option<&Value>) -> String {
    let mut text = format!(
        "Support bundle of node {}\nmade {} by caracal {TEXT}\nSecrets are replaced by {}.\n\n",
        node.unwrap_or("(unknown)"),
        now.rfc3339(),
        redaction::REMOVED
    );
    let Some(status) = status else {
        return text + "The node does not answer: no status, no problems.\n";
    };
    let mut line = |what: &str, value: &dyn Display| {
        writeln!(text, "{what}: {value}").expect("a String takes everything");
    };
    line("Version", &status["version"]);
    line("Datastore", &status["datastore"]["state"]);
    line("Kernel", &status["kernel"]["phase"]);
    let peers = status["peers"].as_array();
    let up = |peer: &&Value| peer["state"] == "Established";
    let sessions = peers.map_or((0, 0), |peers| {
        (peers.iter().filter(up).count(), peers.len())
    });
    line(
        "Sessions up",
        &format_args!("{} of {}", sessions.0, sessions.1),
    );
    let problems = status["problems"].as_array().map_or(&[][..], Vec::as_slice);
    line("Problems", &problems.len());
    for problem in problems {
        let words = ["code", "subject", "reason"].map(|key| problem[key].as_str().unwrap_or("?"));
        line("* ", &words.join(" · "));
        if let Some(entry) = find_code(words[0]) {
            line("  remedy", &entry.remedy);
        }
    }
    text
}

/// The archive: the index, then the parts that there are.
fn pack(mut index: String, parts: &[Part]) -> Vec<u8> {
    index.push_str("\nFiles:\n");
    for Part {
        file,
        about,
        content,
    } in parts
    {
        let outcome = match content {
            Ok(text) => format!("{} octets, {about}", text.len()),
            Err(reason) => format!("MISSING ({about}): {reason}"),
        };
        index.push_str(&format!("{file}: {outcome}\n"));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut archive = Archive::new(since.map_or(0, |since| since.as_secs()));
    let mut add = |file: &str, text: &str| {
        archive.add(&format!("caracal-bundle/{file}"), text.as_bytes());
    };
    add("INDEX", &index);
    for part in parts {
        if let Ok(text) = &part.content {
            add(&part.file, text);
        }
    }
    archive.finish()
}

fn routes() -> anyhow::Result<String> {
    let mut told = 0;
    let mut text = String::new();
    let filter = RouteFilter::default();
    // The rest is only counted.
    let count = ask_rows(&run_dir(), &Request::Routes { filter }, |row| {
        told += 1;
        if told <= ROUTES {
            text.push_str(row.trim_end());
            text.push('\n');
        }
        Ok(())
    })?;
    text.push_str(&format!("{}\n", json!({"end": {"count": count}})));
    Ok(text)
}

async fn kernel_routes() -> anyhow::Result<String> {
    let kernel = caracal_agent::read_kernel().await?;
    let mut text = String::new();
    let routes = kernel.routes.values().flatten();
    for route in routes.clone().take(ROUTES) {
        write!(text, "{} ", route.prefix)?;
        match &route.target {
            ActualTarget::Known(target) => write!(text, "{target}")?,
            ActualTarget::Other(kind) => write!(text, "type {kind}")?,
        }
        writeln!(text, " proto {} metric {}", route.protocol, route.metric)?;
    }
    writeln!(text, "# {} routes", routes.count())?;
    Ok(text)
}

async fn configuration(node: Option<&str>) -> anyhow::Result<Value> {
    let store = open_store()?;
    let mut ranges: Vec<KeyRange> = CONFIGURATION
        .iter()
        .map(|kind| KeyRange::Prefix(kind_prefix(*kind)))
        .collect();
    if let Some(node) = node {
        ranges.push(KeyRange::Key(Key::node(&NodeName::from(node)).to_path()));
    }
    let answer = store.read(&ranges).await.context(store.advice())?;
    let entries = answer.ranges.into_iter().flatten().map(|entry| {
        let text = || Value::from(String::from_utf8_lossy(&entry.value));
        let value = serde_json::from_slice(&entry.value).unwrap_or_else(|_| text());
        (entry.key, value)
    });
    Ok(Value::Object(entries.collect::<Map<_, _>>()))
}

fn variables(environment: &[(String, String)], redaction: &Redaction) -> String {
    let ours = |name: &str| VARIABLES.iter().any(|start| name.starts_with(start));
    let mut lines: Vec<String> = environment
        .iter()
        .filter(|(name, _)| ours(name))
        .map(|(name, value)| redaction.variable(name, value) + "\n")
        .collect();
    lines.sort_unstable();
    lines.concat()
}

fn system() -> String {
    let files = [
        "sys/kernel/osrelease",
        "uptime",
        "loadavg",
        "meminfo",
        "net/dev",
        "net/snmp",
    ];
    let text = |file: &str| {
        let path = Path::new("/proc").join(file);
        let content = std::fs::read_to_string(&path).unwrap_or_else(|e| e.to_string());
        format!("== {}\n{content}\n", path.display())
    };
    files.iter().map(|file| text(file)).collect()
}

/// The end of a file, in whole lines.
fn tail(path: &Path) -> anyhow::Result<String> {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(TEXT_LIMIT as u64);
        file.seek(SeekFrom::Start(from))?;
        let mut octets = Vec::new();
        file.take(TEXT_LIMIT as u64).read_to_end(&mut octets)?;
        let text = String::from_utf8_lossy(&octets).into_owned();
        Ok::<_, std::io::Error>(match text.split_once('\n') {
            Some((_, whole)) if from > 0 => whole.to_owned(),
            _ => text,
        })
    };
    read().with_context(|| path.display().to_string())
}

fn bounded(text: String) -> String {
    match text.as_bytes().get(..TEXT_LIMIT) {
        Some(beginning) => String::from_utf8_lossy(beginning).into_owned() + "\n# cut off here\n",
        None => text,
    }
}
