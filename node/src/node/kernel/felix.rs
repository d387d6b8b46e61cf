//! A Felix that was replaced leaves its rules, and nobody follows anything in them any more: pods
//! that start are dropped there as unknown. They are taken away once this node's policies are in
//! force; what both judge until then has to pass both.

use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{ForeignRules, ForeignRulesError, RuleOwner};
use caracal_datastore::View;
use caracal_model::{Problem, ProblemCode, Snapshot};
use tokio::sync::watch;

use super::policy::{Enforced, interfaces_of_workloads, settings};
use crate::config::Config;
use crate::node::problems::ProblemReporter;

/// Pause between two looks. A Felix that runs writes its rules again within 90 s.
const LOOK: Duration = Duration::from_secs(30);
/// What all of it is about, in problems.
const SUBJECT: &str = "Felix";
/// Interfaces that are named, so many.
const NAMED: usize = 5;

/// Why rules of Felix's are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    /// `CARACAL_POLICY` is off.
    Off,
    /// What this node has to enforce is not in the kernel yet.
    NotInForce,
    /// There are policies that this node does not do.
    Unenforced(String),
    /// They were taken away, and are back.
    Back,
    /// The kernel, or a program, does not do it.
    Failed(String),
}

impl Kept {
    fn reason(&self) -> String {
        match self {
            Self::Off => "where no Felix runs any more they follow nothing, and pods that start are dropped; \
                          CARACAL_POLICY=on takes them away once this node's policies are in force"
                .to_owned(),
            Self::NotInForce => "they go when this node's policies are in force".to_owned(),
            Self::Unenforced(what) => {
                format!("they stay, as what they close would open: {what}")
            }
            Self::Back => "they were taken away and are back: a Felix runs here, and a packet has to pass both; stop \
                           one of them"
                .to_owned(),
            Self::Failed(reason) => reason.clone(),
        }
    }
}

/// Looks for Felix's rules as long as the node runs, and takes them away once.
pub(crate) async fn follow_felix(
    config: Arc<Config>,
    view: watch::Receiver<View>,
    mut enforced: watch::Receiver<Enforced>,
    problems: ProblemReporter,
) {
    let mut were_removed = false;
    loop {
        let mut kept = None;
        match ForeignRules::find(RuleOwner::Felix).await {
            Ok(rules) if rules.is_empty() => problems.warn(Vec::new()),
            Ok(rules) => {
                let in_force = enforced.borrow_and_update().clone();
                let in_force = config.enforces_policy.then_some(&in_force);
                let snapshot = Arc::clone(&view.borrow().snapshot);
                kept = may_go(in_force, &snapshot, were_removed).err();
                if kept.is_none() {
                    were_removed = true;
                    kept = take_away(&rules).await.err();
                }
                let workloads = interfaces_of_workloads(&settings(&config, &snapshot).0);
                let told = match &kept {
                    Some(kept) => describe(&rules, kept, &workloads).await,
                    None => Vec::new(),
                };
                problems.warn(told);
            }
            // Without `nft` nothing else is known either, and the other writers of rules say so.
            Err(error) => tracing::debug!(reason = text(error), "rules of Felix"),
        }
        let waits = kept == Some(Kept::NotInForce);
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Ok(()) = enforced.changed(), if waits => {}
        }
    }
}

/// Rules go when everything that this node has to enforce is in force instead, and once: a Felix
/// that writes them again is not fought. `enforced`: `None` = nothing is to be.
fn may_go(
    enforced: Option<&Enforced>,
    snapshot: &Snapshot,
    were_removed: bool,
) -> Result<(), Kept> {
    match enforced {
        None => return Err(Kept::Off),
        Some(_) if were_removed => return Err(Kept::Back),
        Some(Enforced::Policies(_)) => {}
        Some(Enforced::Off | Enforced::Unknown) => return Err(Kept::NotInForce),
    }
    let problems = snapshot.problems().into_iter();
    let unenforced = problems.filter(|problem| problem.code == ProblemCode::PolicyNotEnforced);
    let reasons: Vec<String> = unenforced.map(|problem| problem.reason).collect();
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(Kept::Unenforced(reasons.join("; "))),
    }
}

async fn take_away(rules: &ForeignRules) -> Result<(), Kept> {
    rules
        .remove()
        .await
        .map_err(|error| Kept::Failed(text(error)))?;
    tracing::info!(%rules, "rules of Felix are taken away: this node's policies are in force");
    Ok(())
}

/// What there is, and which workloads it cuts off.
async fn describe(rules: &ForeignRules, kept: &Kept, workloads: &[String]) -> Vec<Problem> {
    let mut told = vec![Problem {
        code: ProblemCode::PolicyFelix,
        subject: SUBJECT.to_owned(),
        reason: format!(
            "rules of Felix are in the kernel ({rules}): {}",
            kept.reason()
        ),
    }];
    match rules.unknown_workloads(workloads).await {
        Ok(unknown) if unknown.is_empty() => {}
        Ok(mut unknown) => {
            let count = unknown.len();
            if count > NAMED {
                unknown.truncate(NAMED);
                unknown.push("…".to_owned());
            }
            told.push(Problem {
                code: ProblemCode::PolicyFelixDrops,
                subject: SUBJECT.to_owned(),
                reason: format!(
                    "rules of Felix ({rules}) do not know {count} interface(s) of pods here ({}) and drop their packets",
                    unknown.join(", ")
                ),
            });
        }
        Err(error) => tracing::debug!(reason = text(error), "rules of Felix"),
    }
    told
}

fn text(error: ForeignRulesError) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_agent::PolicyStatus;

    use super::*;

    fn snapshot(key: &str, value: &str) -> Snapshot {
        let mut snapshot = Snapshot::default().with_policy(true);
        let path = format!("/calico/resources/v3/projectcalico.org/{key}");
        snapshot.apply(&path, Some(value.as_bytes()), 1);
        snapshot
    }

    #[test]
    fn rules_go_once_and_when_nothing_opens() {
        let done = snapshot("networkpolicies/a/one", r#"{"spec":{}}"#);
        let untracked = r#"{"spec":{"doNotTrack":true}}"#;
        let undone = snapshot("globalnetworkpolicies/early", untracked);
        let in_force = Enforced::Policies(Arc::new(PolicyStatus::default()));
        assert_eq!(may_go(Some(&in_force), &done, false), Ok(()));
        assert_eq!(may_go(Some(&in_force), &done, true), Err(Kept::Back));
        assert_eq!(may_go(None, &done, false), Err(Kept::Off));
        let unknown = may_go(Some(&Enforced::Unknown), &done, false);
        assert_eq!(unknown, Err(Kept::NotInForce));
        let kept = may_go(Some(&in_force), &undone, false).unwrap_err();
        let reason = kept.reason();
        assert!(reason.contains("1 GlobalNetworkPolicy (early)"), "{reason}");
    }
}
