//! From snapshots to the speaker: plan, compare, reconfigure. An unchanged plan does not wake the speaker.

use caracal_bgp::config::SpeakerConfig;
use caracal_model::names::NodeName;
use caracal_model::snapshot::Problem;
use caracal_topologies::{PlanOptions, Planned, RouterIdChoice, plan};

use super::secrets::Secrets;
use crate::config::{Backend, Config, RouterIdSetting};
use caracal_model::Snapshot;

/// The speaker's configuration for a snapshot, and what could not be planned.
pub(super) fn speaker_config(snapshot: &Snapshot, config: &Config, secrets: &Secrets) -> Planned {
    let options = PlanOptions {
        router_id: match config.router_id {
            RouterIdSetting::NodeAddress => RouterIdChoice::NodeAddress,
            RouterIdSetting::Hash => RouterIdChoice::Hash,
            RouterIdSetting::Literal(id) => RouterIdChoice::Literal(id),
        },
        secrets: secrets.clone(),
        show_passwords: false,
    };
    let mut planned = plan(snapshot, &config.node, &options);
    if config.backend != Backend::Bird {
        silence(&mut planned.config);
    }
    planned
}

/// Without BGP the speaker stays up, with nothing to say and no one to say it to.
fn silence(config: &mut SpeakerConfig) {
    config.listen = None;
    config.peers.clear();
    config.originate.clear();
}

/// Logs what became wrong and what became right, each once.
pub(super) fn log_changes(old: &[Problem], new: &[Problem], node: &NodeName) {
    for problem in new.iter().filter(|p| !old.contains(p)) {
        tracing::warn!(%node, code = %problem.code, subject = %problem.subject, "{}", problem.reason);
    }
    for problem in old.iter().filter(|p| {
        !new.iter()
            .any(|n| n.code == p.code && n.subject == p.subject)
    }) {
        tracing::info!(%node, code = %problem.code, subject = %problem.subject, "corrected");
    }
}
