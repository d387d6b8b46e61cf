//! Judges what a Service asks for, and collects what is refused of it, in words.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use caracal_model::{NodeAddresses, Problem, ProblemCode, ServiceAddressKind};

use super::address::{ServiceAddress, ServiceTarget};
use super::reserved::Reserved;
use crate::problem::problem;
use crate::transport::Transport;

/// Reasons that are told of one Service; there may be one for each endpoint.
const TOLD: usize = 4;

/// What is refused of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusals {
    reasons: BTreeSet<String>,
    /// It depends on the addresses of nodes what is refused.
    pub(super) by_nodes: bool,
}

impl Refusals {
    pub(super) fn add(&mut self, reason: String) {
        self.reasons.insert(reason);
    }

    /// Adds what else is refused.
    pub(super) fn extend(&mut self, others: Self) {
        self.reasons.extend(others.reasons);
    }

    /// Adds what is refused of a part of the Service.
    pub(super) fn add_of(&mut self, part: &str, of_part: Self) {
        let reasons = of_part.reasons.into_iter();
        self.reasons
            .extend(reasons.map(|reason| format!("{part}: {reason}")));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reasons.is_empty() && !self.by_nodes
    }

    /// The problem of a Service (`NAMESPACE/NAME`); `None` = nothing is refused.
    pub(super) fn problem(&self, service: &str) -> Option<Problem> {
        let mut told: Vec<&str> = self.reasons.iter().map(String::as_str).collect();
        let more = told.len().saturating_sub(TOLD);
        told.truncate(TOLD);
        let more = (more > 0).then(|| format!("; and {more} more"));
        let reason = format!("{service}: {}{}", told.join("; "), more.unwrap_or_default());
        let subject = format!("Service {service}");
        (!told.is_empty()).then(|| problem(ProblemCode::ServicesRefused, &subject, reason))
    }
}

/// What is not the Services' on this node.
pub(super) struct Judge<'a> {
    pub(super) reserved: &'a Reserved,
    pub(super) nodes: &'a NodeAddresses,
}

impl Judge<'_> {
    /// True when a Service may not have an address.
    pub(super) fn refuses(
        &self,
        of: (&str, ServiceAddressKind),
        at: &ServiceAddress,
        refusals: &mut Refusals,
    ) -> bool {
        refusals.by_nodes |= self.reserved.concerns(at.protocol, at.port);
        let Some(reason) = self.reserved.refuses(self.nodes, of, at) else {
            return false;
        };
        let (_, kind) = of;
        let shown = shown((at.address, at.port).into(), at.protocol);
        refusals.add(format!("{shown} ({}) is not its: {reason}", kind.as_str()));
        refusals.by_nodes = true;
        true
    }

    /// True when nobody is sent to an endpoint.
    pub(super) fn refuses_endpoint(
        &self,
        protocol: Transport,
        target: &ServiceTarget,
        refusals: &mut Refusals,
    ) -> bool {
        refusals.by_nodes |= self.reserved.concerns(protocol, target.port);
        let reason = self.reserved.refuses_endpoint(self.nodes, protocol, target);
        let Some(reason) = reason else {
            return false;
        };
        let shown = shown((target.address, target.port).into(), protocol);
        refusals.add(format!("nobody is sent to the endpoint {shown}: {reason}"));
        true
    }
}

fn shown(at: SocketAddr, protocol: Transport) -> String {
    format!("{at}/{}", protocol.as_str())
}
