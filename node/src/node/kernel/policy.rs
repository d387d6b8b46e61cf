//! Drives the writer of the table of policy: what the datastore holds goes to the kernel.

use std::sync::Arc;

use caracal_agent::{
    FailsafePorts, PolicySettings, PolicyStatus, PolicyWriteError, PolicyWriter, RefusedChain,
    Settings,
};
use caracal_datastore::View;
use caracal_model::{PolicyDirection, Problem, ProblemCode, Snapshot};
use serde_json::Value;
use tokio::sync::watch;

use super::datastore_way::{FIRST, LONGEST};
use crate::config::Config;
use crate::node::problems::ProblemReporter;

/// What is enforced on this node.
#[derive(Clone, Debug, Default)]
pub(crate) enum Enforced {
    /// Nothing: `CARACAL_POLICY` is off.
    #[default]
    Off,
    /// Not yet what the policies say.
    Unknown,
    /// The policies of a revision.
    Policies(Arc<PolicyStatus>),
}

impl Enforced {
    /// The table of policy after the last pass, where there was one.
    pub(crate) fn status(&self) -> Option<&PolicyStatus> {
        match self {
            Self::Policies(status) => Some(status),
            Self::Off | Self::Unknown => None,
        }
    }

    /// Why the policies of an interface are not in force; `None`: they are, or none is to be.
    pub(crate) fn lacks(&self, interface: &str) -> Option<String> {
        match self {
            Self::Off => None,
            Self::Policies(status) if status.is_in_force(interface) => None,
            _ => Some(format!("the policies of {interface} are not in force yet")),
        }
    }
}

/// Keys of FelixConfiguration.
const TO_NODE: &str = "defaultEndpointToHostAction";

/// Lists of ports that no host endpoint closes.
const FAILSAFE: [(&str, PolicyDirection); 2] = [
    ("failsafeInboundHostPorts", PolicyDirection::Ingress),
    ("failsafeOutboundHostPorts", PolicyDirection::Egress),
];

/// What this node's environment says, or its own FelixConfiguration, or that of all nodes.
fn given(config: &Config, snapshot: &Snapshot, key: &str) -> Option<Value> {
    let own = config.node.configuration();
    let stored = |name: &str| {
        let felix = snapshot.felix_configurations.get(name)?;
        felix.spec.extra.get(key).filter(|value| !value.is_null())
    };
    let environment = config.felix.get(&key.to_ascii_lowercase());
    let environment = environment.map(|text| Value::from(text.as_str()));
    environment.or_else(|| stored(&own).or_else(|| stored("default")).cloned())
}

/// The settings, and what of them cannot be read: the ports that are never closed without a setting
/// stay so.
pub(crate) fn settings(config: &Config, snapshot: &Snapshot) -> (PolicySettings, Vec<Problem>) {
    let (agent, _) = Settings::resolve(&Settings::default(), snapshot, &config.node, &config.felix);
    let action = given(config, snapshot, TO_NODE);
    let action = action.as_ref().and_then(Value::as_str);
    let (mut failsafe, mut problems) = (FailsafePorts::default(), Vec::new());
    for (key, direction) in FAILSAFE {
        let given = given(config, snapshot, key);
        if let Some(Err(reason)) = given.map(|given| failsafe.set(direction, &given)) {
            problems.push(Problem {
                code: ProblemCode::PolicyNotUnderstood,
                subject: key.to_owned(),
                reason: format!("{reason}; the ports that are never closed by default stay open"),
            });
        }
    }
    let settings = PolicySettings {
        interfaces: agent.interface_prefixes,
        nodes_take: !action.is_some_and(|action| action.eq_ignore_ascii_case("drop")),
        failsafe,
        vxlan_port: agent.vxlan_port,
    };
    (settings, problems)
}

/// Interfaces of the calling thread's network namespace, below two lines of header. What `/sys`
/// shows are those of the namespace in which it was mounted.
const INTERFACES: &str = "/proc/thread-self/net/dev";

/// Interfaces here that are named as those of workloads.
pub(super) fn interfaces_of_workloads(settings: &PolicySettings) -> Vec<String> {
    let table = std::fs::read_to_string(INTERFACES).unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    let is_workloads = |name: &&str| {
        let mut prefixes = settings.interfaces.iter();
        prefixes.any(|prefix| name.starts_with(prefix))
    };
    let names = names.map(|(name, _)| name.trim()).filter(is_workloads);
    names.map(str::to_owned).collect()
}

/// Takes away the table that an earlier process left, where policy is off now.
pub(crate) async fn leave(problems: ProblemReporter) {
    let mut wait = FIRST;
    while let Err(error) = PolicyWriter::remove().await {
        problems.warn(vec![unwritten(error)]);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST);
    }
    problems.warn(Vec::new());
}

/// Keeps the table until a channel closes.
pub(crate) async fn enforce_policy(
    config: Arc<Config>,
    mut view: watch::Receiver<View>,
    enforced: watch::Sender<Enforced>,
    problems: ProblemReporter,
) {
    enforced.send_replace(Enforced::Unknown);
    let mut writer = PolicyWriter::new(config.node.clone());
    let mut wait = FIRST;
    loop {
        let known = view.borrow_and_update().clone();
        let (settings, mut told) = settings(&config, &known.snapshot);
        let result = pass(&mut writer, settings, &known).await;
        let failed = result.is_err();
        match result {
            Ok(status) => {
                let refused = status.iter().flat_map(|status| &status.refused);
                told.extend(refused.map(closed));
                problems.warn(told);
                if let Some(status) = status {
                    enforced.send_replace(Enforced::Policies(Arc::new(status)));
                }
                wait = FIRST;
            }
            Err(error) => {
                told.push(unwritten(error));
                problems.warn(told);
                enforced.send_if_modified(|enforced| match enforced {
                    Enforced::Policies(known) => {
                        *known = Arc::new(writer.status().clone());
                        true
                    }
                    Enforced::Off | Enforced::Unknown => false,
                });
            }
        }
        let again = async {
            match failed {
                true => tokio::time::sleep(wait).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            () = writer.changed_by_others() => {}
            () = again => wait = (wait * 2).min(LONGEST),
        }
    }
}

/// One pass. Before the datastore was read, the table that an earlier process left stays as it is,
/// and a machine without endpoints is closed to those that come. While the datastore is away, what
/// was read last counts.
async fn pass(
    writer: &mut PolicyWriter,
    settings: PolicySettings,
    view: &View,
) -> Result<Option<PolicyStatus>, PolicyWriteError> {
    writer.set_settings(settings.clone());
    match view.snapshot.policy.as_ref().filter(|_| view.synced) {
        Some(data) => {
            let status = writer.pass(data, view.snapshot.revision).await?;
            Ok(Some(status.clone()))
        }
        None => {
            let are_at_work = !interfaces_of_workloads(&settings).is_empty();
            writer.close(are_at_work).await?;
            Ok(None)
        }
    }
}

/// Endpoints of which a chain is closed are named, so many.
const NAMED: usize = 5;

fn closed(refused: &RefusedChain) -> Problem {
    let judges = refused.judges.iter().take(NAMED);
    let mut judges: Vec<String> = judges
        .map(|(interface, direction)| format!("{interface} ({direction})"))
        .collect();
    if refused.judges.len() > NAMED {
        judges.push("…".to_owned());
    }
    let policy = refused.policy.as_deref();
    Problem {
        code: ProblemCode::PolicyUnwritten,
        subject: policy.unwrap_or(&refused.chain).to_owned(),
        reason: format!(
            "nft does not take its rules ({}); they drop everything that gets to them, of the endpoints {}, and all \
             others are judged as ever; change the policy, or update nft and the kernel and restart",
            refused.reason,
            judges.join(", ")
        ),
    }
}

fn unwritten(error: PolicyWriteError) -> Problem {
    let reason = format!("{:#}", anyhow::Error::new(error));
    Problem {
        code: ProblemCode::PolicyUnwritten,
        subject: "nftables".to_owned(),
        reason,
    }
}
