//! `caracal services`: Kubernetes' Services and their endpoints, placed in the datastore for the
//! nodes to read: `kubectl get services,endpointslices -A -o json | caracal services apply - --prune`.
//! Where the datastore is Kubernetes' API they are there already, and are never written.

mod wait;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_model::{
    DocumentKind, InsertEach, Key, KeyRange, NodeName, Snapshot, Txn, TxnOutcome, documents_prefix,
};
use caracal_topologies::{Services, resources_from_yaml};
use clap::Subcommand;
use serde_json::{Value, json};

use super::ipam::{now, on_store, refuse};
use super::{mode, run_dir, table};
use crate::admin::{Request, ask};
use crate::args::{Output, OutputArgs};
use crate::exit::{conflict, invalid};
use crate::node::answers::services::TranslatedServices;
use crate::service_list;

/// Writes of one transaction; etcd takes 128.
const BATCH: usize = 100;

const OF_KUBERNETES: &str = "the datastore is Kubernetes' API: its Services and EndpointSlices are read as they are, and others write \
                             them; use `kubectl apply`, and `caracal services show --here` on a node to see what it has of them";

/// Fields that change without a meaning for routes, or that nobody here reads; without them most
/// updates of an endpoint are none.
const NOISE: [&str; 3] = ["managedFields", "resourceVersion", "annotations"];

/// `caracal services COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServicesCommand {
    /// Store Services, Endpoints and EndpointSlices in etcd. Refused on the Kubernetes datastore,
    /// which has them.
    Apply {
        /// Files as `kubectl get -o yaml` or `-o json` prints them; - = standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Delete stored Services that are not in the files.
        #[arg(long)]
        prune: bool,
        /// With --prune: proceed although the files have no Service, or more than half of the
        /// stored ones would be deleted.
        #[arg(long, requires = "prune")]
        force: bool,
        /// Wait until all nodes have applied the change; exit code 1 if one does not in time.
        #[arg(long)]
        wait: bool,
        /// Longest wait in seconds.
        #[arg(long, default_value_t = 60, requires = "wait")]
        timeout: u64,
        /// Do not wait for this node, which is down. May be repeated.
        #[arg(long, value_name = "NODE", requires = "wait")]
        skip: Vec<String>,
    },
    /// Show the stored Services and which addresses nodes announce; with --here, what this node
    /// translates.
    Show {
        /// Show what this node translates: addresses and their endpoints in the kernel
        /// (`CARACAL_SERVICES=on`).
        #[arg(long)]
        here: bool,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(command: ServicesCommand) -> anyhow::Result<ExitCode> {
    if let ServicesCommand::Show { here: true, output } = command {
        return show_here(output.output);
    }
    on_store(async |store| match command {
        ServicesCommand::Apply { .. } if store.has_nodes_of_kubernetes() => {
            Ok(refuse(OF_KUBERNETES))
        }
        ServicesCommand::Apply {
            files,
            prune,
            force,
            wait,
            timeout,
            skip,
        } => {
            if let Some(reason) = apply(&store, &files, (prune, force)).await? {
                return Ok(refuse(&reason));
            }
            match wait {
                true => {
                    let timeout = Duration::from_secs(timeout);
                    wait::wait_until_in_force(&store, timeout, &skip).await
                }
                false => Ok(ExitCode::SUCCESS),
            }
        }
        ServicesCommand::Show { output, .. } => show(&store, output.output).await,
    })
}

/// Writes and removes; the reason why not, where that is refused.
async fn apply(
    store: &Datastore,
    files: &[PathBuf],
    (prune, force): (bool, bool),
) -> anyhow::Result<Option<String>> {
    let mut wanted = BTreeMap::new();
    for file in files {
        wanted.extend(read(file).map_err(invalid)?);
    }
    let range = KeyRange::Prefix(documents_prefix());
    let there = store.read(&[range]).await?.ranges.into_iter().flatten();
    let mut there: BTreeMap<String, (i64, Vec<u8>)> = there
        .filter(|entry| entry.key != Key::ServicesCheck.to_path())
        .map(|entry| (entry.key, (entry.mod_revision, entry.value)))
        .insert_each();
    let reason = why_not_prune(&wanted, &there).filter(|_| prune && !force);
    if reason.is_some() {
        return Ok(reason);
    }
    // Of two that come within one second, the first is the older one, too.
    let now = now().rfc3339_micros();
    let (mut put, mut deleted) = (0, 0);
    let mut txn = Txn::new();
    for (path, value) in wanted {
        let old = there.remove(&path);
        let value = dated(
            &path,
            value,
            old.as_ref().map(|(_, old)| old.as_slice()),
            &now,
        )?;
        txn = match old {
            Some((_, old)) if old == value => continue,
            Some((revision, _)) => txn.update(path, revision, value),
            None => txn.create(path, value),
        };
        put += 1;
        if txn.writes.len() == BATCH {
            commit(store, std::mem::take(&mut txn)).await?;
        }
    }
    if prune {
        for (path, (revision, _)) in there {
            txn = txn.delete(path, revision);
            deleted += 1;
            if txn.writes.len() == BATCH {
                commit(store, std::mem::take(&mut txn)).await?;
            }
        }
    }
    commit(store, txn).await?;
    println!("{put} written, {deleted} deleted");
    Ok(None)
}

/// Why the files may not be all that there is: what stands on the left of a pipe may have failed.
fn why_not_prune<T>(
    wanted: &BTreeMap<String, Vec<u8>>,
    there: &BTreeMap<String, T>,
) -> Option<String> {
    let goes: Vec<&String> = there.keys().filter(|p| !wanted.contains_key(*p)).collect();
    let count = |kind: DocumentKind, paths: &mut dyn Iterator<Item = &String>| {
        paths.filter(|path| is_of(kind, path)).count()
    };
    let no_service = count(DocumentKind::Service, &mut wanted.keys()) == 0;
    // A Service may have many slices, so that the number of all says little of either.
    let mostly = [
        (DocumentKind::Service, "Services"),
        (DocumentKind::EndpointSlice, "EndpointSlices"),
        (DocumentKind::Endpoints, "Endpoints"),
    ];
    let mostly = mostly.into_iter().find_map(|(kind, plural)| {
        let going = count(kind, &mut goes.iter().copied());
        let all = count(kind, &mut there.keys());
        (going * 2 > all).then(|| format!("{going} of {all} {plural}"))
    });
    let what = match mostly {
        _ if no_service => "there is no Service in what was given".to_owned(),
        Some(most) => format!("{most} that are stored are not in what was given"),
        None => return None,
    };
    Some(format!(
        "{what}; nothing is changed: remove them with --force"
    ))
}

fn is_of(kind: DocumentKind, path: &str) -> bool {
    matches!(Key::parse(path), Ok(Key::Document { kind: found, .. }) if found == kind)
}

fn is_service(path: &str) -> bool {
    is_of(DocumentKind::Service, path)
}

/// A Service that does not say its age gets one, and keeps it: of two with one address the older
/// has it. What was stored before there were ages is older than all others.
fn dated(path: &str, value: Vec<u8>, old: Option<&[u8]>, now: &str) -> anyhow::Result<Vec<u8>> {
    const AGE: &str = "creationTimestamp";
    const FIRST: &str = "1970-01-01T00:00:00Z";
    if !is_service(path) {
        return Ok(value);
    }
    let mut document: Value = serde_json::from_slice(&value)?;
    let metadata = document.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata.filter(|m| !m.get(AGE).is_some_and(Value::is_string)) else {
        return Ok(value);
    };
    let old: Option<Value> = old.map(serde_json::from_slice).transpose()?;
    let age = match &old {
        Some(old) => old["metadata"][AGE].as_str().unwrap_or(FIRST),
        None => now,
    };
    metadata.insert(AGE.to_owned(), age.into());
    Ok(document.to_string().into_bytes())
}

async fn commit(store: &Datastore, txn: Txn) -> anyhow::Result<()> {
    if txn.writes.is_empty() {
        return Ok(());
    }
    match store.commit(&txn).await? {
        TxnOutcome::Committed(_) => Ok(()),
        TxnOutcome::Conflict => Err(conflict("somebody else writes services too; try again")),
    }
}

/// The documents of a file by their paths.
fn read(file: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut text = String::new();
    if file == Path::new("-") {
        let mut input = std::io::stdin();
        input
            .read_to_string(&mut text)
            .context("reading standard input")?;
    } else {
        text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    }
    documents(&text).with_context(|| file.display().to_string())
}

fn documents(text: &str) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let resources = resources_from_yaml(text)?;
    let mut snapshot = Snapshot::default();
    let faults = resources.apply(&mut snapshot);
    anyhow::ensure!(
        faults.is_empty(),
        "{}",
        faults
            .iter()
            .map(|p| format!("{}: {}", p.subject, p.reason))
            .collect::<Vec<_>>()
            .join("; ")
    );
    let (_, faults) = Services::from_snapshot(&snapshot);
    for fault in faults {
        eprintln!("{}: {}", fault.subject, fault.reason);
    }
    let others = resources.len() - snapshot.documents.len();
    anyhow::ensure!(
        others == 0,
        "{others} document(s) are no Service, Endpoints or EndpointSlice"
    );
    let paths = resources.entries().map(|(_, key, value)| {
        let mut value: Value = serde_json::from_slice(value)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in NOISE {
                metadata.remove(field);
            }
        }
        Ok((key.to_path(), value.to_string().into_bytes()))
    });
    paths.collect()
}

fn show_here(output: Output) -> anyhow::Result<ExitCode> {
    let value = ask(&run_dir(), &Request::Services)?;
    if matches!(output, Output::Json | Output::Yaml) {
        output.print(&value);
        return Ok(ExitCode::SUCCESS);
    }
    if !value.is_object() {
        let reason = value.as_str().unwrap_or("the node is starting");
        println!("services are not translated on this node: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let translated: TranslatedServices = serde_json::from_value(value)?;
    let mut shown = table(&[
        "ADDRESS",
        "SERVICE",
        "KIND",
        "POLICY",
        "HERE",
        "ELSEWHERE",
        "HITS",
    ]);
    for row in translated.rows {
        shown.add_row([
            row.address,
            row.service,
            row.kind,
            row.policy,
            row.here.join(", "),
            row.elsewhere.join(", "),
            row.hits.map_or_else(String::new, |hits| hits.to_string()),
        ]);
    }
    println!("{shown}");
    for problem in translated.problems {
        println!("{}: {}: {}", problem.code, problem.subject, problem.reason);
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(store: &Datastore, output: Output) -> anyhow::Result<ExitCode> {
    let mut snapshot = mode::read(store).await?;
    let answer = store.read(&[KeyRange::Prefix(documents_prefix())]).await?;
    for entry in answer.ranges.iter().flatten() {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    let (services, _) = Services::from_snapshot(&snapshot);
    let routes: BTreeMap<&NodeName, Vec<String>> = snapshot
        .nodes
        .keys()
        .map(|node| {
            let announced = services.routes(&snapshot, node).announced;
            (node, announced.iter().map(ToString::to_string).collect())
        })
        .insert_each();
    let stored = service_list::services(&snapshot);
    if output.is_data() {
        output.print(&json!({"services": stored, "announced": routes}));
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = table(&["SERVICE", "TYPE", "ADDRESSES", "PORTS", "READY"]);
    for service in stored {
        shown.add_row([
            service.service,
            service.service_type,
            service.addresses.join(", "),
            service.ports.join(", "),
            service.endpoints.len().to_string(),
        ]);
    }
    println!("{shown}\n");
    let mut shown = table(&["NODE", "ANNOUNCES"]);
    for (node, routes) in routes {
        shown.add_row([node.to_string(), routes.join(", ")]);
    }
    println!("{shown}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::{dated, documents, why_not_prune};

    fn service(name: &str) -> String {
        format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{}}}}")
    }

    /// kubectl failed on the left of the pipe, or another file was meant.
    #[test]
    fn nothing_is_pruned_by_a_file_that_cannot_be_all() {
        let stored = |names: &[&str]| -> BTreeMap<String, Vec<u8>> {
            let texts: Vec<String> = names.iter().map(|name| service(name)).collect();
            documents(&texts.join("\n---\n")).unwrap()
        };
        let there = stored(&["a", "b", "c", "d"]);
        let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1}}";
        for empty in [
            "",
            "---\n",
            "{kind: List, apiVersion: v1, items: []}",
            slice,
        ] {
            let refused = why_not_prune(&documents(empty).unwrap(), &there).unwrap();
            assert!(refused.contains("no Service"), "{empty}: {refused}");
        }
        let refused = why_not_prune(&stored(&["a", "x"]), &there).unwrap();
        assert!(refused.starts_with("3 of 4 Services"), "{refused}");
        assert_eq!(why_not_prune(&stored(&["a", "b"]), &there), None);
        assert_eq!(why_not_prune(&stored(&["a"]), &stored(&[])), None);
        // Slices that stay do not hide the Services that go.
        let slices: Vec<String> = (1..=9)
            .map(|n| slice.replace("a-1", &format!("a-{n}")))
            .collect();
        let slices = documents(&slices.join("\n---\n")).unwrap();
        let with_slices = |names: &[&str]| {
            let mut all = stored(names);
            all.extend(slices.clone());
            all
        };
        let there = with_slices(&["a", "b", "c"]);
        let refused = why_not_prune(&with_slices(&["a"]), &there).unwrap();
        assert!(refused.starts_with("2 of 3 Services"), "{refused}");
        assert_eq!(why_not_prune(&with_slices(&["a", "b"]), &there), None);
        // Nor do Services that stay hide the slices: `kubectl get services` alone has none.
        let refused = why_not_prune(&stored(&["a", "b", "c"]), &there).unwrap();
        assert!(refused.starts_with("9 of 9 EndpointSlices"), "{refused}");
    }

    /// 800 Services with ten endpoints each are more nodes than a parser of YAML takes by itself.
    #[test]
    fn a_file_is_limited_by_its_length() {
        let endpoints: Vec<String> = (1..=10)
            .map(|n| format!("{{\"addresses\": [\"10.1.0.{n}\"], \"conditions\": {{\"ready\": true, \"serving\": true, \"terminating\": false}}, \"nodeName\": \"n\", \"targetRef\": {{\"kind\": \"Pod\", \"name\": \"p{n}\", \"namespace\": \"default\", \"uid\": \"u\"}}}}"))
            .collect();
        let endpoints = endpoints.join(",");
        let items: Vec<String> = (0..1600)
            .map(|n| format!("{{\"apiVersion\": \"discovery.k8s.io/v1\", \"kind\": \"EndpointSlice\", \"metadata\": {{\"name\": \"s{n}\"}}, \"addressType\": \"IPv4\", \"endpoints\": [{endpoints}]}}"))
            .collect();
        let text = format!(
            "{{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [{}]}}",
            items.join(",")
        );
        assert_eq!(documents(&text).unwrap().len(), 1600);
        let many: Vec<String> = (0..1500).map(|n| service(&format!("s{n}"))).collect();
        assert_eq!(documents(&many.join("\n---\n")).unwrap().len(), 1500);
    }

    #[test]
    fn a_service_gets_an_age_and_keeps_it() {
        let found = documents(&service("a")).unwrap();
        let (path, value) = found.into_iter().next().unwrap();
        let dated = |value: &[u8], old: Option<&[u8]>, now: &str| {
            let text = dated(&path, value.to_vec(), old, now).unwrap();
            let read: serde_json::Value = serde_json::from_slice(&text).unwrap();
            (
                read["metadata"]["creationTimestamp"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
                text,
            )
        };
        let (age, stored) = dated(&value, None, "2026-01-01T00:00:00.000002Z");
        assert_eq!(age, "2026-01-01T00:00:00.000002Z");
        assert_eq!(
            dated(&value, Some(&stored), "2026-01-02T00:00:00Z"),
            (age, stored.clone())
        );
        assert_eq!(
            dated(&value, Some(&value), "2026-01-02T00:00:00Z").0,
            "1970-01-01T00:00:00Z"
        );
        assert_eq!(dated(&stored, None, "2026-01-02T00:00:00Z").1, stored);
    }

    #[test]
    fn documents_are_stored_by_kind_namespace_and_name_without_noise() {
        let text = r#"{"kind": "List", "apiVersion": "v1", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "n", "resourceVersion": "7"}, "spec": {}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1"}}]}"#;
        let found = documents(text).unwrap();
        let paths: Vec<_> = found.keys().collect();
        assert_eq!(
            paths,
            [
                "/calico/caracal/v1/endpointslices/default/web-1",
                "/calico/caracal/v1/services/n/web"
            ]
        );
        let service =
            String::from_utf8(found["/calico/caracal/v1/services/n/web"].clone()).unwrap();
        assert!(!service.contains("resourceVersion"), "{service}");
        let error = documents("kind: Node\nmetadata: {name: a}\nspec: {}").unwrap_err();
        assert!(error.to_string().contains("no Service"), "{error}");
    }
}
