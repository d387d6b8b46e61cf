//! The datastore itself, and what others could not do about what it says.

use caracal_model::snapshot::{FIELD_WITHOUT_EFFECT, Problem, UNKNOWN_FIELD};

use super::{Code, Inputs, Observation};

pub(super) fn compare(inputs: &Inputs<'_>, found: &mut Vec<Observation>) {
    let mut add = |code, subject: &str, seen: String| {
        found.push(Observation::new(code, subject, seen));
    };
    if let Some(reason) = inputs.stale {
        let seen = format!(
            "the node works with revision {}, and the datastore is not fresh: {reason}",
            inputs.snapshot.revision
        );
        add(Code::DatastoreStale, "datastore", seen);
    }
    for problem in inputs.snapshot.problems() {
        match problem.code.as_str() {
            UNKNOWN_FIELD | FIELD_WITHOUT_EFFECT => {
                // One value can have several of them.
                let field = problem.reason.split([' ', ':']).next().unwrap_or_default();
                let subject = format!("{} {field}", problem.subject);
                add(Code::FieldWithoutEffect, &subject, problem.reason);
            }
            _ => add(Code::InvalidValue, &problem.subject, problem.reason),
        }
    }
    if !inputs.snapshot.nodes.contains_key(inputs.me) {
        let seen = format!(
            "the datastore has no Node {:?} at revision {}",
            inputs.me.as_str(),
            inputs.snapshot.revision
        );
        add(Code::NodeMissing, inputs.me.as_str(), seen);
    }
    for problem in inputs.problems {
        if let Some(code) = code_of(problem) {
            let seen = match code {
                Code::CannotPlan | Code::Ipam | Code::BgpConfiguration => {
                    format!("{}: {}", problem.code, problem.reason)
                }
                _ => problem.reason.clone(),
            };
            let subject = match code {
                // One subject can have several of them.
                Code::CannotPlan => format!("{} {}", problem.subject, problem.code),
                _ => problem.subject.clone(),
            };
            add(code, &subject, seen);
        }
    }
}

/// The code of a problem that its owner has found; `None` for those that this comparison finds itself.
fn code_of(problem: &Problem) -> Option<Code> {
    Some(match problem.code.as_str() {
        "datastore.invalid_value"
        | "agent.no_node"
        | "agent.foreign_route"
        | "agent.foreign_device"
        | "agent.workload_interface" => return None,
        "agent.path_mtu" => Code::PathNarrow,
        "agent.kernel_refused" => Code::KernelRefused,
        "agent.undone" => Code::Undone,
        "agent.kernel_unreadable" => Code::KernelUnreadable,
        "bgp.listen" => Code::ListenFailed,
        code if code.starts_with("agent.") => Code::CannotPlan,
        code if code.starts_with("ipam.") || code.starts_with("cni.") => Code::Ipam,
        _ => Code::BgpConfiguration,
    })
}
