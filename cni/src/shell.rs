//! The process: stdin and environment in, JSON out, one verb in between. A runtime that needs
//! milliseconds: one thread, and the datastore is opened at most once, when it is first asked.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use caracal_datastore::{Datastore, DatastoreConfig, DatastoreConfigError, open_to_append};
use serde_json::Value;
use tokio::runtime::Runtime;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::attachment::EndpointUid;
use crate::call::{Call, Milestone, PluginRole, Progress};
use crate::error::CniError;
use crate::kubernetes::{self, api_config};
use crate::spec::{CniVersion, Command, ConfigError, Env, FlannelConf, NetConf, pod_cidr};
use crate::standard_error::StandardError;
use crate::{add, check, del, flannel_plugin, gc, ipam_plugin, second, status};

/// `caracal-cni`: the main plugin.
#[must_use]
pub fn main_cni() -> ExitCode {
    run_plugin(PluginRole::Main, &|_| {})
}

/// `caracal-ipam`: the IPAM plugin.
#[must_use]
pub fn main_ipam() -> ExitCode {
    run_plugin(PluginRole::Ipam, &|_| {})
}

/// `caracal-flannel`: flannel's plugin.
#[must_use]
pub fn main_flannel() -> ExitCode {
    answer(serve_flannel)
}

/// Serves one call from this process's environment and stdin.
#[must_use]
pub fn run_plugin(role: PluginRole, progress: Progress<'_>) -> ExitCode {
    answer(|stdin| serve(role, stdin, progress))
}

/// Answers a call with what `serve` says of the configuration on stdin.
fn answer(serve: impl FnOnce(&[u8]) -> Result<Option<Value>, CniError>) -> ExitCode {
    let mut stdin = Vec::new();
    let answer = io::stdin()
        .read_to_end(&mut stdin)
        .map_err(CniError::Stdin)
        .and_then(|_| serve(&stdin));
    let (answer, code) = match answer {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => {
            let version = NetConf::peek_version(&stdin);
            let version = version.as_deref().unwrap_or(CniVersion::NEWEST.as_str());
            (Some(error.failure().to_json(version)), ExitCode::FAILURE)
        }
    };
    let Some(answer) = answer else { return code };
    let mut out = io::stdout();
    match writeln!(out, "{answer:#}").and_then(|()| out.flush()) {
        Ok(()) => code,
        Err(error) => {
            // The runtime may have closed both.
            let _lost = writeln!(StandardError, "the answer cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(
    role: PluginRole,
    stdin: &[u8],
    progress: Progress<'_>,
) -> Result<Option<Value>, CniError> {
    let started = Instant::now();
    let get = |name: &str| std::env::var(name).ok();
    let env = Env::parse(get)?;
    if env.command == Command::Version {
        let asked = NetConf::peek_version(stdin);
        return Ok(Some(CniVersion::answer(asked.as_deref())));
    }
    let mut call = Call::new(role, env, stdin.to_vec(), get)?;
    log_to(&call.conf.log_level, &call.conf.log_file_path);
    warn_of_keys(&call.conf);
    if call.env.command == Command::Add {
        let place = second::check_place(&call.attachment);
        place.inspect_err(|error| tracing::error!(%error, "refused"))?;
    }
    let config = datastore_config(&call.conf, get).map_err(CniError::Datastore)?;
    let store = config.open().map_err(CniError::Datastore)?;
    let runtime = runtime()?;
    let hear = |milestone: Milestone| {
        tracing::debug!(?milestone, elapsed = ?started.elapsed());
        progress(milestone);
    };
    let answer = runtime.block_on(async {
        ask_kubernetes(&mut call, &store, get).await?;
        dispatch(&call, &store, &hear).await
    });
    log_answer(&call.env, started, &answer);
    answer
}

fn serve_flannel(stdin: &[u8]) -> Result<Option<Value>, CniError> {
    let started = Instant::now();
    let env = Env::parse(|name| std::env::var(name).ok())?;
    if env.command == Command::Version {
        let asked = NetConf::peek_version(stdin);
        return Ok(Some(CniVersion::answer(asked.as_deref())));
    }
    let conf = FlannelConf::parse(stdin)?;
    log_to("", "");
    for note in conf.notes() {
        tracing::warn!("{note}");
    }
    let answer = runtime()?.block_on(flannel_plugin::serve(&env, &conf));
    log_answer(&env, started, &answer);
    answer
}

fn runtime() -> Result<Runtime, CniError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CniError::Runtime)
}

fn log_answer(env: &Env, started: Instant, answer: &Result<Option<Value>, CniError>) {
    let (command, container) = (env.command.as_str(), &env.container_id);
    match answer {
        Ok(_) => tracing::info!(command, container, elapsed = ?started.elapsed(), "done"),
        Err(error) => {
            tracing::error!(command, container, elapsed = ?started.elapsed(), %error, "failed");
        }
    }
}

/// What a call has to know of Kubernetes: the pod of an ADD or CHECK, where the datastore is its
/// API or `policy.type` is `k8s`, and the ranges that `usePodCidr` stands for. Calls that free
/// addresses ask nobody.
async fn ask_kubernetes(
    call: &mut Call,
    store: &Datastore,
    get: impl Fn(&str) -> Option<String>,
) -> Result<(), CniError> {
    let asks = matches!(call.env.command, Command::Add | Command::Check);
    let mut conf: Value = serde_json::from_slice(&call.stdin).map_err(ConfigError::Decode)?;
    let ranges = pod_cidr::is_wanted(&conf);
    if ranges && !asks {
        pod_cidr::fill_with_any(&mut conf);
        call.stdin = conf.to_string().into_bytes();
    }
    let is_datastore = call.conf.uses_kubernetes(&get);
    let pods = is_datastore || call.conf.has_policy();
    if !asks || !(ranges || pods) {
        return Ok(());
    }
    let api = match is_datastore {
        true => store.clone(),
        false => kubernetes::beside(&call.conf, get)?,
    };
    if ranges {
        kubernetes::fill_ranges(&mut conf, &api, &call.attachment.node).await?;
        call.stdin = conf.to_string().into_bytes();
    }
    if pods {
        let uid = call.env.arg("K8S_POD_UID");
        call.pod = kubernetes::read_pod(&api, &call.attachment, uid).await?;
    }
    if let (EndpointUid::OfPod(uid @ None), Some(pod)) = (&mut call.attachment.uid, &call.pod) {
        *uid = Some(pod.uid.clone());
    }
    Ok(())
}

async fn dispatch(
    call: &Call,
    store: &Datastore,
    progress: Progress<'_>,
) -> Result<Option<Value>, CniError> {
    let version = call
        .conf
        .version()
        .map_err(crate::spec::ConfigError::from)?;
    match (call.env.command, call.role) {
        (Command::Add, PluginRole::Main) => {
            let outcome = add::add(call, store, progress).await?;
            return Ok(Some(outcome.to_json(version)));
        }
        (Command::Add, PluginRole::Ipam) => {
            let outcome = ipam_plugin::add(call, store, progress).await?;
            return Ok(Some(outcome.to_json(version)));
        }
        (Command::Del, PluginRole::Main) => del::del(call, store, progress).await?,
        (Command::Del, PluginRole::Ipam) => ipam_plugin::del(call, store, progress).await?,
        (Command::Check, PluginRole::Main) => check::check(call, store).await?,
        (Command::Check, PluginRole::Ipam) => ipam_plugin::check(call, store).await?,
        (Command::Status, _) => status::status(call, store).await?,
        (Command::Gc, _) => gc::gc(call, store).await?,
        (Command::Version, _) => {}
    }
    Ok(None)
}

/// The configuration's datastore, when it names one; else the environment's. The two are not mixed:
/// a certificate of one does not belong to the endpoints of the other.
fn datastore_config(
    conf: &NetConf,
    get: impl Fn(&str) -> Option<String>,
) -> Result<DatastoreConfig, DatastoreConfigError> {
    if conf.uses_kubernetes(&get) {
        return api_config(conf, get);
    }
    let legacy = (!conf.etcd_authority.is_empty()).then(|| {
        let scheme = match conf.etcd_scheme.as_str() {
            "" => "http",
            scheme => scheme,
        };
        format!("{scheme}://{}", conf.etcd_authority)
    });
    let endpoints = match conf.etcd_endpoints.as_str() {
        "" => legacy,
        list => Some(list.to_owned()),
    };
    let lookup = |name: &str| match (name, &endpoints) {
        // The configuration's kind was checked with it; the environment's is about the
        // environment's endpoints.
        ("DATASTORE_TYPE", endpoints) if endpoints.is_some() || !conf.datastore_type.is_empty() => {
            None
        }
        ("ETCD_ENDPOINTS", Some(endpoints)) => Some(endpoints.clone()),
        ("ETCD_CA_CERT_FILE", Some(_)) => Some(conf.etcd_ca_cert_file.clone()),
        ("ETCD_CERT_FILE", Some(_)) => Some(conf.etcd_cert_file.clone()),
        ("ETCD_KEY_FILE", Some(_)) => Some(conf.etcd_key_file.clone()),
        _ => get(name),
    };
    DatastoreConfig::from_lookup(lookup)
}

/// Logs go to stderr, since stdout is the result, and to the file that the configuration names.
fn log_to(level: &str, path: &str) {
    let level = match level.to_ascii_lowercase().as_str() {
        "debug" => LevelFilter::DEBUG,
        "warning" | "warn" => LevelFilter::WARN,
        "error" | "fatal" | "panic" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    };
    let file = match path {
        "" => None,
        path => Some(open_to_append(Path::new(path))),
    };
    let (file, fault) = match file {
        Some(Ok(file)) => (Some(file), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let writer = match file {
        Some(file) => BoxMakeWriter::new((|| StandardError).and(Mutex::new(file))),
        None => BoxMakeWriter::new(|| StandardError),
    };
    let format = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_target(false)
        // It would be told on standard error, and end the call where that takes nothing.
        .log_internal_errors(false)
        .with_writer(writer);
    // Of libraries only what is wrong.
    let filter = Targets::new()
        .with_target("caracal", level)
        .with_default(LevelFilter::ERROR);
    // A second call in one process keeps the first one's.
    let _ = tracing_subscriber::registry()
        .with(format.with_filter(filter))
        .try_init();
    if let Some(error) = fault {
        tracing::warn!(path, %error, "log_file_path cannot be written");
    }
}

fn warn_of_keys(conf: &NetConf) {
    let unknown = conf.unknown_keys();
    if !unknown.is_empty() {
        tracing::warn!(
            keys = unknown.join(", "),
            "unknown keys in the network configuration"
        );
    }
    let idle = conf.keys_without_effect();
    if !idle.is_empty() {
        tracing::debug!(keys = idle.join(", "), "keys that change nothing here");
    }
}
