//! `caracal explain ADDRESS:PORT`: an address of a service at each stage on its way from the
//! datastore to the elements in this node's kernel, and what is announced of it.

use std::net::SocketAddr;

use caracal_agent::{
    ServiceAddress, ServiceElement, ServiceStatus, Transport, observe_service_elements,
    observe_service_hits,
};
use caracal_bgp::Explanation;
use caracal_model::{DocumentKind, KubernetesSlice, NodeName, Prefix, Problem, Snapshot};
use serde::{Deserialize, Serialize};

use super::Owners;
use super::explain::{DataStage, Revision};
use super::services::{TranslatedRow, row};
use crate::admin::AskService;
use crate::admin::routes::text;
use crate::node::kernel::services::Translated;
use crate::service_list::{ListedService, with_address};

/// Everything that this node knows of an address of a service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExplainedService {
    /// The node that answers.
    pub(crate) node: String,
    /// Address and port that were asked for.
    pub(crate) address: SocketAddr,
    /// What the address does here. `None` = nothing.
    pub(crate) service: Option<TranslatedRow>,
    /// The Services that have the address in the datastore, where this node does nothing for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<ListedService>,
    /// Why this node does not translate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    /// Elements that the table has to hold for it.
    pub(crate) elements: Vec<ElementJson>,
    /// The kernel has all of them.
    pub(crate) in_step: bool,
    /// What is announced of the address.
    pub(crate) bgp: Explanation,
    /// The revision of the datastore at each stage.
    pub(crate) revisions: Vec<Revision>,
    /// Problems that name the address or its Service.
    pub(crate) problems: Vec<Problem>,
}

/// An element of the table of services.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ElementJson {
    pub(crate) set: String,
    pub(crate) element: String,
    /// The kernel has it.
    pub(crate) is_there: bool,
}

impl ExplainedService {
    /// What the datastore holds of the address, where nothing of it is in the kernel.
    fn follow_stored(&mut self, snapshot: &Snapshot) {
        self.services = with_address(snapshot, self.address.ip());
        let services = self.services.iter();
        let revisions = services.flat_map(|service| revisions(snapshot, &service.service, None));
        self.revisions = revisions.collect();
    }
}

/// Asks everybody.
pub(super) async fn explain(
    owners: &Owners,
    me: &NodeName,
    question: &AskService,
) -> Result<ExplainedService, String> {
    let AskService { address, protocol } = *question;
    let snapshot = owners.view.borrow().snapshot.clone();
    let translated = owners.translated.borrow().clone();
    let destination = Prefix::host(address.ip());
    let mut explained = ExplainedService {
        node: me.to_string(),
        address,
        service: None,
        services: Vec::new(),
        skipped: None,
        elements: Vec::new(),
        in_step: false,
        bgp: owners.speaker.explain(destination).await.map_err(text)?,
        revisions: Vec::new(),
        problems: Vec::new(),
    };
    let skipped = match &translated {
        Translated::Services(_) => "no Service has this address and port".to_owned(),
        Translated::Nothing(reason) => format!("services are not translated here: {reason}"),
        Translated::Unknown => "nothing is translated yet".to_owned(),
    };
    let Some(status) = translated.status() else {
        explained.skipped = Some(skipped);
        explained.follow_stored(&snapshot);
        return Ok(explained);
    };
    let Some((key, entry)) = entry(status, address, protocol) else {
        explained.skipped = Some(skipped);
        // One may want it, and be refused.
        let wanted = |problem: &Problem| problem.reason.contains(&format!("{address}/"));
        let problems = status.problems.iter();
        explained.problems = problems.filter(|p| wanted(p)).cloned().collect();
        explained.follow_stored(&snapshot);
        return Ok(explained);
    };
    match observe_service_elements(key, entry).await {
        Ok(elements) => {
            explained.in_step = elements.iter().all(|element| element.is_there);
            explained.elements = elements.into_iter().map(json).collect();
        }
        Err(error) => explained.skipped = Some(format!("{:#}", anyhow::Error::new(error))),
    }
    let hits = observe_service_hits().await.unwrap_or_default();
    explained.service = Some(row(key, entry, hits.get(key).copied()));
    explained.revisions = revisions(&snapshot, &entry.service, Some(status.revision));
    let names = [entry.service.clone(), address.to_string(), key.to_string()];
    let names_it = |problem: &Problem| {
        let said = |name: &String| problem.subject.contains(name) || problem.reason.contains(name);
        problem.code.as_str().starts_with("services.") && names.iter().any(said)
    };
    let problems = owners.problems(None).into_iter();
    explained.problems = problems.filter(names_it).collect();
    Ok(explained)
}

/// The entry of an address; without a protocol the first of TCP, UDP and SCTP that has one.
fn entry(
    status: &ServiceStatus,
    address: SocketAddr,
    protocol: Option<Transport>,
) -> Option<(&ServiceAddress, &caracal_agent::ServiceEntry)> {
    let matches = |key: &&ServiceAddress| {
        let is_asked = protocol.is_none_or(|protocol| protocol == key.protocol);
        is_asked && SocketAddr::new(key.address, key.port) == address
    };
    let key = status.entries.keys().find(matches)?;
    Some((key, status.entries.get(key)?))
}

fn json(element: ServiceElement) -> ElementJson {
    ElementJson {
        set: element.set,
        element: element.element,
        is_there: element.is_there,
    }
}

/// Revisions of the documents of a Service (`NAMESPACE/NAME`), of the snapshot and of the table,
/// where there is one.
fn revisions(snapshot: &Snapshot, service: &str, kernel: Option<i64>) -> Vec<Revision> {
    let concerns = |kind: DocumentKind, namespace: &str, name: &str, label: Option<&str>| {
        let of = match kind {
            DocumentKind::Service => Some(name),
            DocumentKind::EndpointSlice => label,
            DocumentKind::Endpoints => None,
        };
        let named = service.split_once('/');
        named.is_some_and(|(n, s)| n == namespace && Some(s) == of)
    };
    let mut revisions = Vec::new();
    for ((kind, namespace, name), document) in &snapshot.documents {
        let label = document.slice().and_then(KubernetesSlice::service_name);
        if concerns(*kind, namespace, name, label) {
            revisions.push(Revision {
                stage: DataStage::Datastore,
                what: format!("{} {namespace}/{name}", kind.names().1),
                revision: document.revision,
            });
        }
    }
    let read = snapshot.revision;
    let read = (DataStage::Snapshot, read, "of the whole cluster");
    let table = kernel.map(|revision| (DataStage::Kernel, revision, "of services"));
    let stages = std::iter::once(read).chain(table);
    revisions.extend(stages.map(|(stage, revision, what)| Revision {
        stage,
        what: what.to_owned(),
        revision,
    }));
    revisions
}
