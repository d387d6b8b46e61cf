//! `caracal services apply --wait`: returns when every node has in force what was written. See
//! [`crate::services_check`].

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use caracal_datastore::Store;
use caracal_model::{InsertEach, Key, KeyRange, NodeName, Txn, TxnOutcome};

use crate::cli::mode;
use crate::exit::conflict;
use crate::services_check::{REPORTS, ServicesReport};

/// Pause between two looks at the reports.
const LOOK: Duration = Duration::from_millis(100);

/// Asks all nodes, and waits for their reports. The question is gone when this returns.
pub(super) async fn wait_until_in_force<S: Store>(
    store: &S,
    timeout: Duration,
    skip: &[String],
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let snapshot = mode::read(store).await?;
    let nodes = mode::reporters(store, &snapshot, skip).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let check = format!("{:x}", now.unwrap_or_default().as_nanos());
    ask_nodes(store, Some(&check)).await?;
    let awaited = loop {
        let reports = reports(store).await?;
        let awaited = awaited(&nodes, &reports, &check);
        if awaited.is_empty() || started.elapsed() >= timeout {
            break awaited;
        }
        tokio::time::sleep(LOOK).await;
    };
    ask_nodes(store, None).await?;
    let seconds = started.elapsed().as_secs_f64();
    if awaited.is_empty() {
        println!("in force on {} node(s) after {seconds:.1} s", nodes.len());
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<&str> = awaited.iter().map(|name| name.as_str()).collect();
    eprintln!(
        "not in force after {seconds:.1} s on {} node(s): {}; see `caracal status` there, or pass dead nodes over with --skip NODE",
        names.len(),
        names.join(", ")
    );
    Ok(ExitCode::FAILURE)
}

/// Makes the key of the question hold this, or be gone.
async fn ask_nodes<S: Store>(store: &S, check: Option<&str>) -> anyhow::Result<()> {
    let path = Key::ServicesCheck.to_path();
    let answer = store.read(&[KeyRange::Key(path.clone())]).await?;
    let there = answer.ranges.into_iter().flatten().next();
    let value = check.map(|check| check.as_bytes().to_vec());
    let txn = match (there, value) {
        (None, None) => return Ok(()),
        (Some(there), None) => Txn::new().delete(path, there.mod_revision),
        (None, Some(value)) => Txn::new().create(path, value),
        (Some(there), Some(value)) => Txn::new().update(path, there.mod_revision, value),
    };
    match store.commit(&txn).await? {
        TxnOutcome::Committed(_) => Ok(()),
        TxnOutcome::Conflict => Err(conflict("somebody else waits for services too; try again")),
    }
}

async fn reports<S: Store>(store: &S) -> anyhow::Result<BTreeMap<NodeName, ServicesReport>> {
    let range = KeyRange::Prefix(REPORTS.to_owned());
    let entries = store.read(&[range]).await?.ranges.into_iter().flatten();
    let report = |entry: caracal_model::KeyValue| {
        let node = entry.key.strip_prefix(REPORTS)?.into();
        Some((node, serde_json::from_slice(&entry.value).ok()?))
    };
    Ok(entries.filter_map(report).insert_each())
}

/// Nodes that have not reported on this check.
fn awaited<'a>(
    nodes: &'a BTreeSet<NodeName>,
    reports: &BTreeMap<NodeName, ServicesReport>,
    check: &str,
) -> Vec<&'a NodeName> {
    let reported = |node: &NodeName| reports.get(node).is_some_and(|r| r.check == check);
    nodes.iter().filter(|node| !reported(node)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_datastore::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn the_question_is_asked_anew_and_taken_back() {
        let store = MemoryStore::new();
        let asked = async || {
            let range = KeyRange::Key(Key::ServicesCheck.to_path());
            let answer = store.read(&[range]).await.unwrap();
            let entry = answer.ranges.into_iter().flatten().next();
            entry.map(|entry| String::from_utf8(entry.value).unwrap())
        };
        for check in [Some("a"), Some("b"), None, None] {
            ask_nodes(&store, check).await.unwrap();
            assert_eq!(asked().await.as_deref(), check);
        }
    }

    #[test]
    fn reports_on_another_check_do_not_count() {
        let nodes: BTreeSet<NodeName> = ["a", "b", "c"].map(NodeName::from).into();
        let report = |check: &str| ServicesReport {
            check: check.to_owned(),
            addresses: None,
        };
        let reports = [("a".into(), report("now")), ("b".into(), report("before"))].into();
        let awaited: Vec<&str> = awaited(&nodes, &reports, "now")
            .into_iter()
            .map(NodeName::as_str)
            .collect();
        assert_eq!(awaited, ["b", "c"]);
    }
}
