//! The datastore itself, and what others could not do about what it says.

use caracal_model::{Problem, ProblemCode};

use super::{AuditCode, AuditInputs, Observation};

pub(super) fn compare(inputs: &AuditInputs<'_>, found: &mut Vec<Observation>) {
    let mut add = |code, subject: &str, seen: String| {
        found.push(Observation::new(code, subject, seen));
    };
    if let Some(reason) = inputs.stale {
        let seen = format!(
            "the node works with revision {}, and the datastore is not fresh: {reason}",
            inputs.snapshot.revision
        );
        add(AuditCode::DatastoreStale, "datastore", seen);
    }
    for problem in inputs.snapshot.problems() {
        match problem.code {
            ProblemCode::DatastoreUnknownField | ProblemCode::DatastoreFieldWithoutEffect => {
                // One value can have several of them.
                let field = problem.reason.split([' ', ':']).next().unwrap_or_default();
                let subject = format!("{} {field}", problem.subject);
                add(AuditCode::FieldWithoutEffect, &subject, problem.reason);
            }
            ProblemCode::DatastoreLocked => {
                add(AuditCode::DatastoreLocked, &problem.subject, problem.reason);
            }
            ProblemCode::PolicyNotEnforced => {
                add(
                    AuditCode::PolicyNotEnforced,
                    &problem.subject,
                    problem.reason,
                );
            }
            _ => add(AuditCode::InvalidValue, &problem.subject, problem.reason),
        }
    }
    if !inputs.snapshot.nodes.contains_key(inputs.me) {
        let seen = format!(
            "the datastore has no Node {:?} at revision {}",
            inputs.me.as_str(),
            inputs.snapshot.revision
        );
        add(AuditCode::NodeMissing, inputs.me.as_str(), seen);
    }
    for problem in inputs.problems {
        if let Some(code) = code_of(problem) {
            let seen = match code {
                AuditCode::CannotPlan
                | AuditCode::Ipam
                | AuditCode::BgpConfiguration
                | AuditCode::Services => {
                    format!("{}: {}", problem.code, problem.reason)
                }
                _ => problem.reason.clone(),
            };
            let subject = match code {
                // One subject can have several of them.
                AuditCode::CannotPlan => format!("{} {}", problem.subject, problem.code),
                _ => problem.subject.clone(),
            };
            add(code, &subject, seen);
        }
    }
}

/// The code of a problem that its owner has found; `None` for those that this comparison finds
/// itself.
fn code_of(problem: &Problem) -> Option<AuditCode> {
    Some(match problem.code {
        ProblemCode::DatastoreInvalidValue
        | ProblemCode::AgentNoNode
        | ProblemCode::AgentForeignRoute
        | ProblemCode::AgentForeignDevice
        | ProblemCode::AgentNoEndpoint
        | ProblemCode::AgentWorkloadInterface => return None,
        ProblemCode::AgentPathMtu => AuditCode::PathNarrow,
        ProblemCode::AgentUntoldRouter => AuditCode::UntoldRouter,
        ProblemCode::AgentKernelRefused | ProblemCode::AgentRulesUnwritten => {
            AuditCode::KernelRefused
        }
        ProblemCode::NodeNeighbours => AuditCode::SysctlWrong,
        ProblemCode::AgentUndone => AuditCode::Undone,
        ProblemCode::AgentKernelUnreadable => AuditCode::KernelUnreadable,
        ProblemCode::BgpListen => AuditCode::ListenFailed,
        ProblemCode::BgpOwnerUnknown => AuditCode::OwnerUnknown,
        ProblemCode::BgpNotOwner => AuditCode::NotOwner,
        ProblemCode::DatastoreNoWrites => AuditCode::NoWrites,
        ProblemCode::DatastoreNodeGone => AuditCode::NodeGone,
        ProblemCode::DatastoreRanges
        | ProblemCode::AgentNodeAddressOfPods
        | ProblemCode::AgentServiceLoops => AuditCode::RangesOverlap,
        ProblemCode::NodeRegistration
        | ProblemCode::NodeCopied
        | ProblemCode::NodeLibDir
        | ProblemCode::NodeRunDir
        | ProblemCode::NodeLastSnapshot
        | ProblemCode::NodeWrittenAgain => AuditCode::NodeRecord,
        code if code.as_str().starts_with("agent.") => AuditCode::CannotPlan,
        code if code.as_str().starts_with("services.") => AuditCode::Services,
        ProblemCode::IpamTunnelAddress | ProblemCode::CniTombstone => AuditCode::Ipam,
        _ => AuditCode::BgpConfiguration,
    })
}
