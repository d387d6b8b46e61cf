//! Plan of one destination.

use std::net::IpAddr;

use caracal_model::{Mac, Problem, ProblemCode};

use crate::kernel_objects::{NeighbourKey, PlannedRoute, Route, RouteKind};
use crate::problem::problem;

/// Plan of one destination.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Destination {
    /// The route: of several the one of the smallest kind, of those the first (AGENT-1).
    pub(super) route: Option<PlannedRoute>,
    /// See [`Desired::deferred`](crate::Desired::deferred).
    pub(super) deferred: Option<IpAddr>,
    /// Why there is no route although nothing is wrong.
    pub(super) skipped: Option<String>,
    /// The permanent neighbour of a workload.
    pub(super) neighbour: Option<(NeighbourKey, Mac)>,
    pub(super) warnings: Vec<RouteWarning>,
    /// VTEPs that have to be on the tunnel's link before the route is.
    pub(super) vteps: Vec<IpAddr>,
}

/// Fault of a destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RouteWarning {
    Problem(Problem),
    /// One of many of its kind: the names of all go into one sentence.
    OneOf {
        code: ProblemCode,
        subject: String,
        sentence: String,
        name: String,
    },
}

impl Destination {
    /// Takes a route, unless there is one of a preferred kind (AGENT-1).
    pub(super) fn add(&mut self, kind: RouteKind, route: Route) {
        if self.route.as_ref().is_none_or(|there| kind < there.kind) {
            self.route = Some(PlannedRoute { route, kind });
        }
    }

    pub(super) fn skip(&mut self, reason: impl Into<String>) {
        self.skipped = Some(reason.into());
    }

    pub(super) fn problem(&mut self, code: ProblemCode, subject: &str, reason: String) {
        let found = problem(code, subject, reason);
        self.warnings.push(RouteWarning::Problem(found));
    }

    pub(super) fn warn(
        &mut self,
        code: ProblemCode,
        subject: String,
        sentence: String,
        name: &str,
    ) {
        self.warnings.push(RouteWarning::OneOf {
            code,
            subject,
            sentence,
            name: name.to_owned(),
        });
    }
}
