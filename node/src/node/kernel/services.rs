//! Drives the writer of the table of services: what the datastore holds goes to the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use caracal_agent::{
    NodePortAddresses, PublishedUnderlay, ServiceStatus, ServiceWriteError, ServiceWriter,
};
use caracal_datastore::{View, read_text_file};
use caracal_model::{InsertEach, Problem, ProblemCode, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use super::datastore_way::{DatastoreWay, FIRST, LONGEST, remove_service_table};
use super::kube_proxy::{KubeProxyWatch, Turn};
use crate::config::Config;
use crate::node::problems::ProblemReporter;

/// What is translated on this node.
#[derive(Clone, Debug, Default)]
pub(crate) enum Translated {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Nothing, and why.
    Nothing(String),
    /// These services.
    Services(Arc<ServiceStatus>),
}

impl Translated {
    /// The table, where there is one.
    pub(crate) const fn status(&self) -> Option<&Arc<ServiceStatus>> {
        match self {
            Self::Services(status) => Some(status),
            Self::Unknown | Self::Nothing(_) => None,
        }
    }
}

/// What the task listens to.
pub(crate) struct ServiceInputs {
    pub(crate) view: watch::Receiver<View>,
    /// Addresses of this machine.
    pub(crate) underlay: watch::Receiver<PublishedUnderlay>,
    /// The way to the datastore.
    pub(crate) datastore: DatastoreWay,
    /// Rules of kube-proxy.
    pub(crate) kube_proxy: KubeProxyWatch,
}

/// Where this node listens itself, for health and metrics.
fn listeners(config: &Config, snapshot: &Snapshot) -> BTreeSet<SocketAddr> {
    let (ports, _) = config.ports.with(snapshot, &config.node);
    ports.addresses().chain(config.proxy_health).insert_each()
}

/// The name servers of this machine.
fn name_servers() -> BTreeSet<IpAddr> {
    let text = read_text_file(Path::new("/etc/resolv.conf")).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver"));
    lines
        .filter_map(|address| address.trim().parse::<IpAddr>().ok())
        .insert_each()
}

/// Tells the writer what is not the Services'.
fn reserve(
    writer: &mut ServiceWriter,
    datastore: &mut DatastoreWay,
    config: &Config,
    snapshot: &Snapshot,
) {
    let way = (datastore.endpoints(), datastore.is_kubernetes);
    writer.set_reserved(way, listeners(config, snapshot), &config.felix);
    writer.set_name_servers(name_servers());
}

/// What the table is made of. While the view is not current, what is in the kernel may be newer
/// than what was read last, and stays; where there is no table, as after a boot, Services that were
/// accepted last are better than none.
async fn to_write(view: View) -> Result<Option<Arc<Snapshot>>, ServiceWriteError> {
    let is_known = view.snapshot.revision > 0;
    let is_usable = view.is_current() || is_known && !ServiceWriter::is_there().await?;
    Ok(is_usable.then_some(view.snapshot))
}

/// Keeps the table until a channel closes.
pub(crate) async fn translate_services(
    config: Arc<Config>,
    inputs: ServiceInputs,
    translated: watch::Sender<Translated>,
    problems: ProblemReporter,
) {
    let ServiceInputs {
        mut view,
        mut underlay,
        mut datastore,
        mut kube_proxy,
    } = inputs;
    let settings = &config.service_settings;
    let needs_addresses = settings.node_ports != NodePortAddresses::Primary;
    let new_writer = || ServiceWriter::new(config.node.clone(), settings.clone());
    let mut writer = new_writer();
    let mut wait = FIRST;
    datastore.await_freed().await;
    loop {
        match await_turn(&mut kube_proxy, &mut view, &translated, &problems).await {
            Some(true) => writer = new_writer(),
            Some(false) => {}
            None => return,
        }
        let known = view.borrow_and_update().clone();
        let is_known = {
            let underlay = underlay.borrow_and_update();
            writer.set_addresses(&underlay.local.addresses);
            underlay.number > 0 || !needs_addresses
        };
        let result = match to_write(known).await {
            Ok(Some(snapshot)) if is_known => {
                reserve(&mut writer, &mut datastore, &config, &snapshot);
                Some(writer.pass(&snapshot).await)
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        let failed = matches!(result, Some(Err(_)));
        if let Some(result) = result {
            publish(result, kube_proxy.problem(), &translated, &problems);
        }
        wait = if failed { wait } else { FIRST };
        let again = async {
            match failed {
                true => tokio::time::sleep(wait).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            changed = underlay.changed() => if changed.is_err() { return },
            Ok(()) = datastore.addresses.changed() => datastore.free().await,
            () = writer.changed_by_others() => {}
            () = kube_proxy.changed() => {}
            () = again => wait = (wait * 2).min(LONGEST),
        }
    }
}

/// Waits until it is this node that translates. True when our table went meanwhile; `None` = a
/// channel is closed.
async fn await_turn(
    kube_proxy: &mut KubeProxyWatch,
    view: &mut watch::Receiver<View>,
    translated: &watch::Sender<Translated>,
    problems: &ProblemReporter,
) -> Option<bool> {
    let mut is_gone = false;
    loop {
        kube_proxy.look().await;
        match kube_proxy.turn() {
            Turn::Ours => return Some(is_gone),
            Turn::KubeProxys(reason) => is_gone |= leave(reason, translated, problems).await,
            Turn::Unknown => {}
        }
        tokio::select! {
            changed = view.changed() => changed.ok()?,
            () = kube_proxy.changed() => {}
        }
    }
}

/// Leaves services to kube-proxy: takes our table away, unless that is done already. True when
/// nothing is known of the kernel any more.
async fn leave(
    reason: String,
    translated: &watch::Sender<Translated>,
    problems: &ProblemReporter,
) -> bool {
    if matches!(&*translated.borrow(), Translated::Nothing(known) if *known == reason) {
        return false;
    }
    tracing::info!(reason, "services are not translated");
    if let Err(reason) = remove_service_table().await {
        tracing::warn!(reason, "the table of services may still be there");
    }
    problems.replace(Vec::new());
    translated.send_replace(Translated::Nothing(reason));
    true
}

/// What a pass came to, for all who listen.
fn publish(
    result: Result<&ServiceStatus, ServiceWriteError>,
    beside: Option<Problem>,
    translated: &watch::Sender<Translated>,
    problems: &ProblemReporter,
) {
    let error = match result {
        Ok(status) => {
            problems.replace(status.problems.iter().cloned().chain(beside).collect());
            translated.send_replace(Translated::Services(Arc::new(status.clone())));
            return;
        }
        Err(error) => anyhow::Error::new(error),
    };
    let reason = format!("{error:#}");
    tracing::warn!(reason, "services are not as planned");
    problems.replace(vec![Problem {
        code: ProblemCode::ServicesUnwritten,
        subject: "nftables".to_owned(),
        reason,
    }]);
    translated.send_modify(|status| {
        let mut known = status.status().cloned().unwrap_or_default();
        let since = &mut Arc::make_mut(&mut known).failing_since;
        since.get_or_insert_with(Instant::now);
        *status = Translated::Services(known);
    });
}
