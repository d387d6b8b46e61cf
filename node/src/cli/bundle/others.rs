//! What other nodes answer over their consoles, for a bundle of all nodes.

use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use crate::cli::open_store;
use crate::cli::whom::Other;
use crate::cluster_nodes::ClusterNode;

/// Nodes that are asked, those first with which something is wrong.
const MOST: usize = 50;
/// Nodes that are asked at a time.
const AT_ONCE: usize = 8;
/// What each is asked, by the key of its answer; without the first answer nothing else is asked.
const QUESTIONS: [(&str, &str); 3] = [
    ("status", "status"),
    ("audit", "audit"),
    ("routes", "routes?limit=1000"),
];

/// The nodes to ask, and why others are not; `own` needs no question.
pub(super) fn chosen(nodes: &[ClusterNode], own: Option<&str>) -> (Vec<String>, Option<String>) {
    let others = nodes.iter().filter(|node| Some(&*node.node) != own);
    let has_console = |node: &&ClusterNode| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.console.is_some())
    };
    let (reached, silent): (Vec<_>, Vec<_>) = others.partition(has_console);
    let omitted = reached.len().saturating_sub(MOST);
    let mut reasons = Vec::new();
    if !silent.is_empty() {
        reasons.push(format!(
            "nodes without a console that others can ask (CARACAL_CONSOLE): {}",
            silent.len()
        ));
    }
    if omitted > 0 {
        reasons.push(format!(
            "nodes beyond the {MOST} that are asked: {omitted}; run `caracal bundle` on those that matter"
        ));
    }
    let names = reached.into_iter().take(MOST);
    let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    (names.map(|node| node.node.clone()).collect(), reason)
}

/// Asks each, and gives its answers in one value, or why there are none.
pub(super) async fn ask_each(names: Vec<String>) -> Vec<(String, anyhow::Result<Value>)> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let ask = |name: String| {
        let turns = Arc::clone(&turns);
        let asked = name.clone();
        let answers = tokio::spawn(async move {
            let _turn = turns.acquire().await;
            answers(&asked).await
        });
        (name, answers)
    };
    let asked: Vec<_> = names.into_iter().map(ask).collect();
    let mut told = Vec::new();
    for (name, answers) in asked {
        let answers = answers.await.context("the question ended").flatten();
        told.push((name, answers));
    }
    told
}

async fn answers(name: &str) -> anyhow::Result<Value> {
    let other = Other::find(&open_store()?, name).await?;
    let mut answers = Map::new();
    for (key, path) in QUESTIONS {
        let value = match other.value(path).await {
            Ok(value) => value,
            Err(error) if answers.is_empty() => return Err(error),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        answers.insert(key.to_owned(), value);
    }
    Ok(answers.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_status::{NodeState, PublishedStatus};

    fn node(n: usize, has_console: bool) -> ClusterNode {
        ClusterNode {
            node: format!("n{n:02}"),
            state: NodeState::Healthy,
            last_seen_seconds: None,
            status: Some(PublishedStatus {
                console: has_console.then(|| "http://10.0.0.1:9095".to_owned()),
                ..PublishedStatus::default()
            }),
        }
    }

    #[test]
    fn who_is_not_asked_is_counted() {
        let nodes: Vec<ClusterNode> = (0..60).map(|n| node(n, n % 6 > 0)).collect();
        let (names, reason) = chosen(&nodes[..13], Some("n01"));
        assert_eq!(names.first().map(String::as_str), Some("n02"));
        assert_eq!(names.len(), 9);
        let reason = reason.unwrap_or_default();
        assert!(reason.ends_with("(CARACAL_CONSOLE): 3"), "{reason}");
        assert!(!reason.contains("beyond"), "{reason}");
        let many: Vec<ClusterNode> = (0..53).map(|n| node(n, true)).collect();
        let (names, reason) = chosen(&many, None);
        assert_eq!(names.len(), 50);
        let reason = reason.unwrap_or_default();
        assert!(
            reason.contains("beyond the 50 that are asked: 3;"),
            "{reason}"
        );
        assert_eq!(
            chosen(&many[..2], Some("n01")),
            (vec!["n00".to_owned()], None)
        );
    }
}
